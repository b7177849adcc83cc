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
#include "quire/kernels/cuda/e4m3_ceiling.h"
#include "quire/kernels/cuda/matmul.h"
#include "quire/kernels/cuda/read_all.h"
#include "quire/result.h"
#include "quire/tensor/dtype.h"
#include "quire/tensor/float8.h"

namespace quire::kernels {
namespace {

using device::cuda::DeviceBuffer;
using device::cuda::DeviceContext;
using device::cuda::Event;

constexpr int kRounds = 11;
constexpr std::int64_t kSize = 8192;  // of the factors of a product

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

// Returns the FLOP/s of products of bf16.
Result<double> bf16_rate(DeviceContext& device) {
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
                                              values.size() * sizeof(std::uint16_t),
                                              device.compute_stream().get()));
  }
  QUIRE_TRY(const double seconds, median_seconds(device, [&] {
              return matmul.run({.x = x.data(),
                                 .weights = weights.data(),
                                 .out = out.data(),
                                 .rows = kSize,
                                 .outputs = kSize,
                                 .inputs = kSize});
            }));
  return 2.0 * kSize * kSize * kSize / seconds;
}

// Returns the FLOP/s of products of e4m3. kDevice where the device has none.
Result<double> e4m3_rate(DeviceContext& device) {
  constexpr auto kCount = std::size_t{kSize * kSize};
  QUIRE_TRY(const auto codes, DeviceBuffer<std::uint8_t>::make(device.device_pool(), kCount));
  QUIRE_TRY(const auto out, DeviceBuffer<std::uint16_t>::make(device.device_pool(), kCount));
  std::vector<std::uint8_t> values;
  values.reserve(kCount);
  for (const std::uint16_t number : normal_values(kCount)) {
    values.push_back(tensor::float_to_e4m3(tensor::bf16_to_float(number)));
  }
  QUIRE_TRY_STATUS(device::cuda::copy_async(codes.data(), values.data(), values.size(),
                                            device.compute_stream().get()));
  QUIRE_TRY(const auto products, cuda::E4m3Products::make(device, codes.data(), out.data(), kSize));
  QUIRE_TRY(const double seconds, median_seconds(device, [&] { return products.run(); }));
  return 2.0 * kSize * kSize * kSize / seconds;
}

}  // namespace

Result<DeviceCeilings> measure_device_ceilings(device::Accelerator& accelerator) {
  constexpr std::size_t kReadBytes = std::size_t{1} << 30;
  constexpr std::size_t kCopyBytes = std::size_t{256} << 20;
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
  QUIRE_TRY(ceilings.flops_per_second, bf16_rate(device));
  const Result<double> e4m3 = e4m3_rate(device);
  ceilings.e4m3_flops_per_second = e4m3.ok() ? *e4m3 : 0;
  return ceilings;
}

}  // namespace quire::kernels
