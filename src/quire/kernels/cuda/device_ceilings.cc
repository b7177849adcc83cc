#include "quire/kernels/device_ceilings.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "quire/device/accelerator.h"
#include "quire/device/cuda/copy.h"
#include "quire/device/cuda/cuda_error.h"
#include "quire/device/cuda/cuda_stream.h"
#include "quire/device/cuda/device_buffer.h"
#include "quire/device/cuda/device_context.h"
#include "quire/kernels/cuda/matmul.h"
#include "quire/kernels/cuda/read_all.h"
#include "quire/result.h"
#include "quire/tensor/dtype.h"

namespace quire::kernels {
namespace {

using device::cuda::DeviceBuffer;
using device::cuda::DeviceContext;
using device::cuda::Event;

constexpr int kRounds = 11;

// Returns the median seconds of one round of `work` on the compute stream.
Result<double> median_seconds(DeviceContext& device, const std::function<Status()>& work) {
  QUIRE_TRY(const Event start, Event::create(true));
  QUIRE_TRY(const Event end, Event::create(true));
  std::vector<double> seconds;
  for (int round = 0; round <= kRounds; ++round) {
    QUIRE_TRY_STATUS(device.compute_stream().record(start));
    QUIRE_TRY_STATUS(work());
    QUIRE_TRY_STATUS(device.compute_stream().record(end));
    QUIRE_TRY_STATUS(end.synchronize());
    QUIRE_TRY(const float milliseconds, end.milliseconds_since(start));
    if (round > 0) {
      seconds.push_back(milliseconds * 1e-3);
    }
  }
  std::ranges::nth_element(seconds, seconds.begin() + kRounds / 2);
  return seconds[kRounds / 2];
}

// Returns near normal numbers in bf16 (the sum of four uniform bytes), as weights and activations
// are. At its power limit a GPU multiplies numbers of fewer different bits faster. An H200
// multiplies equal ones faster by 13 %, and those of two exponents by 5 %.
std::vector<std::uint16_t> normal_values(std::size_t count) {
  constexpr float kMean = 510.0f, kDeviation = 147.8f;
  std::vector<std::uint16_t> values(count);
  std::uint64_t state = 1;
  for (std::uint16_t& value : values) {
    state = state * 6364136223846793005u + 1442695040888963407u;  // Knuth's MMIX
    const std::uint64_t sum =
        (state >> 56u) + (state >> 48u & 255u) + (state >> 40u & 255u) + (state >> 32u & 255u);
    value = tensor::float_to_bf16((static_cast<float>(sum) - kMean) / kDeviation);
  }
  return values;
}

}  // namespace

Result<DeviceCeilings> measure_device_ceilings(device::Accelerator& accelerator) {
  constexpr std::size_t kReadBytes = std::size_t{1} << 30;
  constexpr std::size_t kCopyBytes = std::size_t{256} << 20;
  constexpr std::int64_t kSize = 8192;
  DeviceContext& device = accelerator.context();
  QUIRE_TRY_STATUS(device.make_current());
  CUstream_st* const stream = device.compute_stream().get();
  DeviceCeilings ceilings;
  {
    QUIRE_TRY(const auto data, DeviceBuffer<std::byte>::make(device.device_pool(), kReadBytes));
    QUIRE_TRY(const auto result, DeviceBuffer<std::uint32_t>::make(device.device_pool(), 1));
    QUIRE_TRY_STATUS(device::cuda::fill_async(data.data(), 1, kReadBytes, stream));
    QUIRE_TRY(const double seconds, median_seconds(device, [&] {
                return device::cuda::to_status(
                    cuda::read_all(data.data(), kReadBytes, result.data(), stream), "read_all");
              }));
    ceilings.read_bytes_per_second = static_cast<double>(kReadBytes) / seconds;
  }
  {
    QUIRE_TRY(const auto data, DeviceBuffer<std::byte>::make(device.device_pool(), kCopyBytes));
    QUIRE_TRY(const auto host, device.pinned_pool().allocate(kCopyBytes));
    QUIRE_TRY(const double seconds, median_seconds(device, [&] {
                return device::cuda::copy_async(data.data(), host.data(), kCopyBytes, stream);
              }));
    ceilings.to_device_bytes_per_second = static_cast<double>(kCopyBytes) / seconds;
  }
  QUIRE_TRY(auto matmul, cuda::MatMul::create(device, false));
  QUIRE_TRY(const auto x,
            DeviceBuffer<std::uint16_t>::make(device.device_pool(), std::size_t{kSize * kSize}));
  QUIRE_TRY(const auto weights,
            DeviceBuffer<std::uint16_t>::make(device.device_pool(), std::size_t{kSize * kSize}));
  QUIRE_TRY(const auto out,
            DeviceBuffer<float>::make(device.device_pool(), std::size_t{kSize * kSize}));
  const std::vector<std::uint16_t> values = normal_values(std::size_t{kSize * kSize});
  for (const auto* buffer : {&x, &weights}) {
    QUIRE_TRY_STATUS(device::cuda::copy_async(buffer->data(), values.data(),
                                              values.size() * sizeof(std::uint16_t), stream));
  }
  QUIRE_TRY(const double seconds, median_seconds(device, [&] {
              return matmul.run({.x = x.data(),
                                 .weights = weights.data(),
                                 .out = out.data(),
                                 .rows = kSize,
                                 .outputs = kSize,
                                 .inputs = kSize});
            }));
  ceilings.flops_per_second = 2.0 * kSize * kSize * kSize / seconds;
  return ceilings;
}

}  // namespace quire::kernels
