#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "quire/kernels/cuda/weights.h"

namespace quire::kernels::cuda {
namespace {

// Constants of packed_weights.h, whose header no .cu file may include.
constexpr int kPanelColumns = 32;
constexpr int kStepDepth = 32;
constexpr int kTileColumns = 16;
constexpr int kThreads = 256;

__global__ void __launch_bounds__(kThreads)
    unpack(const std::uint32_t* packed, std::int64_t outputs, std::int64_t inputs, Half* out) {
  const std::int64_t output = blockIdx.x;
  const std::int64_t steps = (inputs + kStepDepth - 1) / kStepDepth;
  const std::int64_t panel = output / kPanelColumns;
  const int tile = static_cast<int>(output % kPanelColumns) / kTileColumns;
  const int column = static_cast<int>(output % kTileColumns);
  for (std::int64_t pair = threadIdx.x; pair * 2 < inputs; pair += kThreads) {
    const std::int64_t step = pair / (kStepDepth / 2);
    const std::int64_t row = pair % (kStepDepth / 2);
    const std::uint32_t word =
        packed[(((panel * steps + step) * 2 + tile) * (kStepDepth / 2) + row) * kTileColumns +
               column];
    out[output * inputs + pair * 2] = static_cast<Half>(word);
    if (pair * 2 + 1 < inputs) {
      out[output * inputs + pair * 2 + 1] = static_cast<Half>(word >> 16);
    }
  }
}

}  // namespace

cudaError_t unpack_weights(const std::byte* packed, std::int64_t outputs, std::int64_t inputs,
                           Half* out, cudaStream_t stream) {
  unpack<<<static_cast<unsigned>(outputs), kThreads, 0, stream>>>(
      reinterpret_cast<const std::uint32_t*>(packed), outputs, inputs, out);
  return cudaGetLastError();
}

}  // namespace quire::kernels::cuda
