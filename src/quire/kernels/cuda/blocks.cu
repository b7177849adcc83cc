#include <cuda_runtime.h>

#include <cstdint>

#include "quire/kernels/cuda/blocks.h"
#include "quire/kernels/cuda/int4_place.h"
#include "quire/tensor/dtype.h"
#include "quire/tensor/kv_format.h"

namespace quire::kernels::cuda {
namespace {

constexpr int kThreads = 256;

using tensor::KVFormat;

// Returns the bytes of K or V of a head block; head_block_bytes returns those of all of it. The
// type of plain numbers has 16 bits, whichever it is.
__device__ __forceinline__ std::int64_t half_bytes(const KVPool& pool) {
  return std::int64_t{pool.slots} * pool.head_dim *
         tensor::kv_value_bits(pool.format, tensor::DType::kBFloat16) / 8;
}
__device__ __forceinline__ std::int64_t head_block_bytes(const KVPool& pool) {
  return 2 * half_bytes(pool) + tensor::kv_scales_bytes(pool.format, pool.head_dim, pool.slots);
}

// Copies K, then V, of one token of a head per warp.
__global__ void __launch_bounds__(kThreads)
    copy_kernel(const KVPool pool, const Slot* from, const Slot* to, std::int32_t count) {
  const int token = static_cast<int>(blockIdx.x) * (kThreads / 32) + threadIdx.x / 32;
  if (token >= count) {
    return;
  }
  // In words of 16 bits.
  const std::int64_t half = half_bytes(pool) / 2, block = head_block_bytes(pool) / 2;
  const int row = static_cast<int>(half / pool.slots), lane = static_cast<int>(threadIdx.x) % 32;
  const auto at = [&](Slot slot) {
    return pool.data + blockIdx.y * pool.head_words + slot / pool.slots * block;
  };
  const Half* const source = at(from[token]);
  Half* const target = at(to[token]);
  const int source_slot = static_cast<int>(from[token] % pool.slots);
  const int target_slot = static_cast<int>(to[token] % pool.slots);
  for (int word = lane; word < row; word += 32) {
    target[target_slot * row + word] = source[source_slot * row + word];
    target[half + target_slot * row + word] = source[half + source_slot * row + word];
  }
  if (pool.format != KVFormat::kPlain && lane < 2) {  // scales, of K and of V
    const std::int64_t scales = 2 * half + lane * pool.slots;
    target[scales + target_slot] = source[scales + source_slot];
  }
}

// Copies one head block per block of threads.
__global__ void __launch_bounds__(kThreads)
    copy_blocks_kernel(const KVPool pool, const std::int32_t* from, const std::int32_t* to) {
  const std::int64_t bytes = head_block_bytes(pool);
  const auto at = [&](std::int32_t block) {
    return reinterpret_cast<uint4*>(pool.data + blockIdx.y * pool.head_words + block * bytes / 2);
  };
  const uint4* const source = at(from[blockIdx.x]);
  uint4* const target = at(to[blockIdx.x]);
  for (int i = static_cast<int>(threadIdx.x); i < bytes / sizeof(uint4); i += kThreads) {
    target[i] = source[i];
  }
}

// Returns where element i of a head block on the host lies in one on the device.
__device__ __forceinline__ int device_element(const KVPool& pool, int i) {
  const int half = pool.slots * pool.head_dim;
  if (i < half) {  // K [dim / 2][slot][2]
    const int slot = i / 2 % pool.slots, dim = i / 2 / pool.slots * 2 + i % 2;
    return slot * pool.head_dim + dim;
  }
  const int j = i - half;  // V [slot / 2][dim][2]
  const int dim = j / 2 % pool.head_dim, slot = j / 2 / pool.head_dim * 2 + j % 2;
  return half + slot * pool.head_dim + dim;
}

// Returns the place on the device of byte i of a head block of codes and scales on the host.
__device__ __forceinline__ int device_byte(const KVPool& pool, int i) {
  const int half = pool.slots * pool.head_dim;
  const int inside = (i & 1) << 1 | (i >> 1 & 1);  // tensor::int8_place of i % 4, its own inverse
  if (i < half) {                                  // K [dim / 4][slot][4]
    return i / 4 % pool.slots * pool.head_dim + i / 4 / pool.slots * 4 + inside;
  }
  if (i >= 2 * half) {
    return i;  // scales
  }
  const int word = (i - half) / 4;  // V [slot / 4][dim][4]
  return half + (word / pool.head_dim * 4 + inside) * pool.head_dim + word % pool.head_dim;
}

// Returns a word of eight codes: code i is that at code_place(8, which) of word(i).
template <class Word>
__device__ __forceinline__ std::uint32_t gather_codes(int which, const Word& word) {
  std::uint32_t made = 0;
#pragma unroll
  for (int i = 0; i < kInt4WordCodes; ++i) {
    const std::uint32_t code = word(i) >> 4 * tensor::code_place(kInt4WordCodes, which) & 0xfu;
    made |= code << 4 * tensor::code_place(kInt4WordCodes, i);
  }
  return made;
}

// Converts a head block of int4. Words of K have the same codes on both sides. Those of V have
// eight channels of a token on the device and eight tokens of a channel on the host.
template <bool kPack>
__device__ __forceinline__ void convert_int4(const KVPool& pool, std::uint32_t* device,
                                             std::uint32_t* host) {
  const int dim = pool.head_dim, slots = pool.slots;
  const int half = slots * dim / kInt4WordCodes;
  const auto all =
      2 * half + static_cast<int>(tensor::kv_scales_bytes(pool.format, dim, slots) / 4);
  for (int i = static_cast<int>(threadIdx.x); i < all; i += kThreads) {
    const int at = i < half ? int4_word(dim, i % slots, i / slots) : i;
    if (i >= half && i < 2 * half) {
      if (kPack) {
        const int octet = (i - half) / dim, channel = (i - half) % dim;
        host[i] = gather_codes(channel % kInt4WordCodes, [&](int token) {
          return device[half +
                        int4_word(dim, octet * kInt4WordCodes + token, channel / kInt4WordCodes)];
        });
      } else {
        const int word = (i - half) / slots, slot = (i - half) % slots;
        device[half + int4_word(dim, slot, word)] =
            gather_codes(slot % kInt4WordCodes, [&](int channel) {
              return host[half + slot / kInt4WordCodes * dim + word * kInt4WordCodes + channel];
            });
      }
    } else if (kPack) {
      host[i] = device[at];
    } else {
      device[at] = host[i];
    }
  }
}

// Converts the elements of a head block, numbers of 16 bits or bytes.
template <bool kPack, class T, class Place>
__device__ __forceinline__ void convert(Half* on_device, Half* on_host, std::int64_t bytes,
                                        const Place& place) {
  auto* const device = reinterpret_cast<T*>(on_device);
  auto* const host = reinterpret_cast<T*>(on_host);
  for (int i = static_cast<int>(threadIdx.x); i < bytes / sizeof(T); i += kThreads) {
    if (kPack) {
      host[i] = device[place(i)];
    } else {
      device[place(i)] = host[i];
    }
  }
}

// Converts one head block per block of threads: from the pool with `kPack`, else to it.
template <bool kPack>
__global__ void __launch_bounds__(kThreads)
    convert_kernel(const KVPool pool, const HeadBlocks which, Half* host_layout) {
  const std::int64_t bytes = head_block_bytes(pool), words = bytes / 2;
  const std::int64_t head = which.first_head + static_cast<std::int64_t>(blockIdx.y);
  Half* device = pool.data + head * pool.head_words + which.blocks[blockIdx.x] * words;
  Half* host = host_layout + (std::int64_t{blockIdx.y} * gridDim.x + blockIdx.x) * words;
  if (pool.format == KVFormat::kPlain) {
    convert<kPack, Half>(device, host, bytes, [&](int i) { return device_element(pool, i); });
  } else if (pool.format == KVFormat::kInt4) {
    convert_int4<kPack>(pool, reinterpret_cast<std::uint32_t*>(device),
                        reinterpret_cast<std::uint32_t*>(host));
  } else {
    convert<kPack, std::uint8_t>(device, host, bytes, [&](int i) { return device_byte(pool, i); });
  }
}

dim3 grid(std::int32_t x, std::int32_t y) {
  return {static_cast<unsigned>(x), static_cast<unsigned>(y)};
}

}  // namespace

cudaError_t copy_slots(const KVPool& pool, const Slot* from, const Slot* to, std::int32_t count,
                       cudaStream_t stream) {
  if (count == 0) {
    return cudaSuccess;
  }
  constexpr int kWarps = kThreads / 32;
  copy_kernel<<<grid((count + kWarps - 1) / kWarps, pool.heads), kThreads, 0, stream>>>(pool, from,
                                                                                        to, count);
  return cudaGetLastError();
}

cudaError_t copy_blocks(const KVPool& pool, const std::int32_t* from, const std::int32_t* to,
                        std::int32_t count, cudaStream_t stream) {
  if (count == 0) {
    return cudaSuccess;
  }
  copy_blocks_kernel<<<grid(count, pool.heads), kThreads, 0, stream>>>(pool, from, to);
  return cudaGetLastError();
}

cudaError_t pack_blocks(const KVPool& pool, const HeadBlocks& which, Half* host_layout,
                        cudaStream_t stream) {
  if (which.count == 0) {
    return cudaSuccess;
  }
  convert_kernel<true>
      <<<grid(which.count, which.heads), kThreads, 0, stream>>>(pool, which, host_layout);
  return cudaGetLastError();
}

cudaError_t unpack_blocks(const KVPool& pool, const HeadBlocks& which, const Half* host_layout,
                          cudaStream_t stream) {
  if (which.count == 0) {
    return cudaSuccess;
  }
  convert_kernel<false><<<grid(which.count, which.heads), kThreads, 0, stream>>>(
      pool, which, const_cast<Half*>(host_layout));
  return cudaGetLastError();
}

}  // namespace quire::kernels::cuda
