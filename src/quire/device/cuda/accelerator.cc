#include "quire/device/accelerator.h"

#include <charconv>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "quire/device/cuda/device_context.h"
#include "quire/device/device_properties.h"
#include "quire/result.h"

namespace quire::device {

Result<std::unique_ptr<Accelerator>> Accelerator::open(std::string_view device) {
  constexpr std::string_view kOrdinal = "cuda:";
  int ordinal = 0;
  if (device.starts_with(kOrdinal)) {
    const std::string_view digits = device.substr(kOrdinal.size());
    std::from_chars(digits.data(), digits.data() + digits.size(), ordinal);
  }
  QUIRE_TRY(auto context, cuda::DeviceContext::create(ordinal));
  return std::unique_ptr<Accelerator>(new Accelerator(std::move(context)));
}

Accelerator::Accelerator(std::unique_ptr<cuda::DeviceContext> context)
    : context_(std::move(context)) {}
Accelerator::~Accelerator() = default;

std::string Accelerator::name() const { return context_->properties().name; }

std::string Accelerator::kernels(bool deterministic) const {
  return kernels_name(context_->properties(), deterministic);
}

Result<std::int64_t> Accelerator::free_bytes() const {
  QUIRE_TRY(const cuda::DriverMemory memory, context_->driver_memory());
  return memory.free_bytes;
}

}  // namespace quire::device
