#include <cuda_runtime.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "quire/device/cuda/cuda_error.h"
#include "quire/kv_cache.h"
#include "quire/kv_cache/cuda/update_kv_cache.h"
#include "quire/kv_cache/kv_update.h"
#include "quire/result.h"

namespace quire::kv_cache::cuda {
namespace {

constexpr int kThreads = 256;

// Number of vectors, keys and values together, from which on several vectors a thread are as fast
// or faster on an H100. Below it more blocks are faster.
constexpr std::int64_t kBusyVectors = std::int64_t{1} << 15;

struct KernelParams {
  std::byte* cache[2];  // keys, values
  const std::byte* rows[2];
  std::int64_t vectors;  // vectors of one tensor
  std::int64_t row_bytes;
  std::int64_t position;
  std::int64_t tokens;
  std::int64_t capacity;  // negative: unknown
  const std::int32_t* device_position;
  std::int32_t* refusals;
};

// Writes rows into the cache. Grid: x over the vectors, y over keys and values. Every thread takes
// the same decision to write or not, so a refused update writes nothing at all.
template <class Vector, int kPerThread>
__global__ void __launch_bounds__(kThreads) update_kernel(const __grid_constant__ KernelParams p) {
  const std::int64_t position = p.device_position != nullptr ? *p.device_position : p.position;
  if (position < 0 || (p.capacity >= 0 && position + p.tokens > p.capacity)) {
    if (p.refusals != nullptr && blockIdx.x == 0 && blockIdx.y == 0 && threadIdx.x == 0) {
      atomicAdd(p.refusals, 1);
    }
    return;
  }
  const auto* const from = reinterpret_cast<const Vector*>(p.rows[blockIdx.y]);
  auto* const to = reinterpret_cast<Vector*>(p.cache[blockIdx.y] + position * p.row_bytes);
  const std::int64_t first = std::int64_t{blockIdx.x} * (kThreads * kPerThread) + threadIdx.x;
  Vector held[kPerThread];
#pragma unroll
  for (int i = 0; i < kPerThread; ++i) {
    const std::int64_t at = first + i * kThreads;
    if (at < p.vectors) {
      held[i] = __ldg(from + at);
    }
  }
#pragma unroll
  for (int i = 0; i < kPerThread; ++i) {
    const std::int64_t at = first + i * kThreads;
    if (at < p.vectors) {
      to[at] = held[i];
    }
  }
}

template <class Vector, int kPerThread>
Status launch_kernel(const KernelParams& params, KVStream stream) {
  constexpr std::int64_t kPerBlock = std::int64_t{kThreads} * kPerThread;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>((params.vectors + kPerBlock - 1) / kPerBlock), 2);
  config.blockDim = dim3(kThreads);
  config.stream = stream;
  // cudaLaunchKernelEx returns this launch's own result; cudaGetLastError might give an older one.
  return device::cuda::to_status(
      cudaLaunchKernelEx(&config, update_kernel<Vector, kPerThread>, params),
      "launch of update_kv_cache");
}

template <class Vector>
Status launch_vectors(const UpdateLaunch& launch, KVStream stream) {
  const KVUpdate& update = launch.update;
  const std::int64_t row_bytes = kv_row_bytes(update);
  const KernelParams params = {
      .cache = {static_cast<std::byte*>(update.cache_keys),
                static_cast<std::byte*>(update.cache_values)},
      .rows = {static_cast<const std::byte*>(update.new_keys),
               static_cast<const std::byte*>(update.new_values)},
      .vectors = update.num_tokens * row_bytes / static_cast<std::int64_t>(sizeof(Vector)),
      .row_bytes = row_bytes,
      .position = update.position,
      .tokens = update.num_tokens,
      .capacity = update.capacity.tokens,
      .device_position = update.device_position,
      .refusals = update.device_refusals};
  switch (launch.shape.vectors_per_thread) {
    case 1:
      return launch_kernel<Vector, 1>(params, stream);
    case 2:
      return launch_kernel<Vector, 2>(params, stream);
    default:
      return launch_kernel<Vector, 4>(params, stream);
  }
}

bool divides(std::uintptr_t bytes, const KVUpdate& update) {
  const auto address = [](const void* pointer) {
    return reinterpret_cast<std::uintptr_t>(pointer);
  };
  // The row too: a position moves the target by whole rows.
  const std::uintptr_t all = address(update.cache_keys) | address(update.cache_values) |
                             address(update.new_keys) | address(update.new_values) |
                             static_cast<std::uintptr_t>(kv_row_bytes(update));
  return all % bytes == 0;
}

}  // namespace

UpdateLaunch plan_update(const KVUpdate& update) {
  UpdateShape shape;
  for (const int bytes : {16, 4, 2, 1}) {
    if (divides(static_cast<std::uintptr_t>(bytes), update)) {
      shape.vector_bytes = bytes;
      break;
    }
  }
  const std::int64_t vectors = update.num_tokens * kv_row_bytes(update) / shape.vector_bytes;
  shape.vectors_per_thread = 2 * vectors >= kBusyVectors ? 4 : 1;
  return {update, shape};
}

Status launch_update(const UpdateLaunch& launch, KVStream stream) {
  switch (launch.shape.vector_bytes) {
    case 16:
      return launch_vectors<uint4>(launch, stream);
    case 4:
      return launch_vectors<std::uint32_t>(launch, stream);
    case 2:
      return launch_vectors<std::uint16_t>(launch, stream);
    default:
      return launch_vectors<std::uint8_t>(launch, stream);
  }
}

}  // namespace quire::kv_cache::cuda
