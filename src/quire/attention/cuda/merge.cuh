// Merging the partials of a row. The bits depend on the partials and their order alone, not on who
// merges.
#pragma once

#include <algorithm>
#include <cstdint>

#include "quire/attention/cuda/args.h"
#include "quire/attention/cuda/partials.cuh"
#include "quire/attention/device_plan.h"
#include "quire/kernels/cuda/element.cuh"
#include "quire/tensor/dtype.h"

namespace quire::attention::cuda {

// Loads floats that other multiprocessors may have written in this kernel, so not from this one's
// cache. Loads keep the order of the program.
__device__ __forceinline__ void load_fresh(float& to, const float* from) {
  asm volatile("ld.global.cg.f32 %0, [%1];\n" : "=f"(to) : "l"(from) : "memory");
}
__device__ __forceinline__ void load_fresh(float& x, float& y, const float* from) {
  asm volatile("ld.global.cg.v2.f32 {%0, %1}, [%2];\n" : "=f"(x), "=f"(y) : "l"(from) : "memory");
}
__device__ __forceinline__ void load_fresh(float (&to)[4], const float* from) {
  asm volatile("ld.global.cg.v4.f32 {%0, %1, %2, %3}, [%4];\n"
               : "=f"(to[0]), "=f"(to[1]), "=f"(to[2]), "=f"(to[3])
               : "l"(from)
               : "memory");
}

// Values of one head, spread over a warp: lane l holds dimensions [l * D / 32, (l + 1) * D / 32).
// Relative to 2^largest; the weights add up to `total`.
template <int D>
struct Merged {
  float sum[D / 32] = {};
  float largest = -INFINITY, total = 0;
};

template <tensor::DType T, int D>
__device__ void write_row(const AttentionArgs& args, int row, int head, int lane,
                          const Merged<D>& merged) {
  constexpr int kMine = D / 32;
  const std::int64_t to = std::int64_t{row} * args.heads + head;
  const float total = with_sink(args, to, merged.largest, merged.total);
  std::uint16_t* out = args.out + to * args.head_dim;
  constexpr int kAligned = kMine % 8 == 0 ? 16 : kMine % 4 == 0 ? 8 : kMine % 2 == 0 ? 4 : 2;
  struct alignas(kAligned) Mine {
    std::uint16_t value[kMine];
  } mine;
#pragma unroll
  for (int d = 0; d < kMine; ++d) {
    mine.value[d] = Rounding<T>::round(args, total > 0 ? merged.sum[d] / total : 0.0f);
  }
  if (args.head_dim == D) {
    *reinterpret_cast<Mine*>(out + lane * kMine) = mine;
  } else {
#pragma unroll
    for (int d = 0; d < kMine; ++d) {
      if (const int dim = lane * kMine + d; dim < args.head_dim) {
        out[dim] = mine.value[d];
      }
    }
  }
  if (args.lse != nullptr && lane == 0) {
    constexpr float kLn2 = 0.693147180559945f;
    args.lse[to] = total > 0 ? (merged.largest + log2f(total)) * kLn2 : -INFINITY;
  }
}

// Returns whether all other of the `count` partials of this head of a row are there. One thread
// calls it, which has made the caller's visible.
__device__ __forceinline__ bool is_last_partial(const AttentionArgs& args, int row, int head,
                                                int count) {
  const auto last = static_cast<unsigned>(count - 1);
  const bool all =
      atomicInc(args.work.partials_there + std::int64_t{row} * args.heads + head, last) == last;
  if (all) {
    __threadfence();
  }
  return all;
}

// Loads N words as elements [i * N, (i + 1) * N) of `room`.
template <int N, int R>
__device__ __forceinline__ void fetch(float (&room)[R][4], int i, const float* from) {
  if constexpr (N % 4 == 0) {
#pragma unroll
    for (int n = 0; n < N; n += 4) {
      load_fresh(room[(i * N + n) / 4], from + n);
    }
  } else if constexpr (N == 2) {
    load_fresh(room[i / 2][i % 2 * 2], room[i / 2][i % 2 * 2 + 1], from);
  } else {
#pragma unroll
    for (int n = 0; n < N; ++n) {
      load_fresh(room[(i * N + n) / 4][(i * N + n) % 4], from + n);
    }
  }
}
// Returns value d of the N words that were fetched for i: an fp32 number per word, or two in fp16.
template <bool kHalves, int N, int R>
__device__ __forceinline__ float fetched(const float (&room)[R][4], int i, int d) {
  const int word = i * N + (kHalves ? d / 2 : d);
  const float found = room[word / 4][word % 4];
  if constexpr (kHalves) {
    using Half = kernels::cuda::Element<tensor::DType::kFloat16>;
    const std::uint32_t pair = __float_as_uint(found);
    return d % 2 == 0 ? Half::widen_low(pair) : Half::widen_high(pair);
  } else {
    return found;
  }
}

// Merges one head of one row by a warp. Its partials are scaled to the largest of 32, 32 after 32,
// and added in order. `room` is overwritten: registers for kAtOnce partials, which a kernel may
// have anyway. With kHalves, values are fp16, of the kernel of Hopper.
template <tensor::DType T, int D, bool kHalves, int R>
__device__ void merge_partials(const AttentionArgs& args, DevicePlan::PartialResults partials,
                               int row, int head, float (&room)[R][4]) {
  constexpr int kAll = 32, kMine = D / kAll, kAtOnce = 4 * R / kMine;
  constexpr int kWords = kHalves ? kMine / 2 : kMine;
  const int lane = static_cast<int>(threadIdx.x) % kAll;
  const auto over_lanes = [](float x, const auto& combine) {
#pragma unroll
    for (int step = kAll / 2; step > 0; step /= 2) {
      x = combine(x, __shfl_xor_sync(0xffffffffu, x, step));
    }
    return x;
  };
  const auto at = [&](int partial) {
    return std::int64_t{partials.first + partial} * args.heads + head;
  };
  Merged<D> merged;
#pragma unroll 1
  for (int first = 0; first < partials.count; first += kAll) {
    const int left = min(kAll, partials.count - first);
    // Stats of the partial with this lane's number.
    float largest = -INFINITY, weight = 0, scale = 0;
    if (lane < left) {
      load_fresh(largest, weight,
                 reinterpret_cast<const float*>(args.work.partial_stats + at(first + lane)));
    }
#pragma unroll 1
    for (int begin = 0; begin < left; begin += kAtOnce) {
      // Under way before the statistics are there.
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        if (begin + i < left) {
          fetch<kWords>(room, i,
                        args.work.partial_values + (at(first + begin + i) * kAll + lane) * kWords);
        }
      }
      if (begin == 0) {
        const float now = fmaxf(merged.largest,
                                over_lanes(largest, [](float a, float b) { return fmaxf(a, b); }));
        const float keep = exp2f(merged.largest - now);
        scale = exp2f(largest - now);
        merged.largest = now;
        merged.total = merged.total * keep +
                       over_lanes(scale * weight, [](float a, float b) { return a + b; });
#pragma unroll
        for (float& x : merged.sum) {
          x *= keep;
        }
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const float take = __shfl_sync(0xffffffffu, scale, begin + i);
        if (begin + i < left) {
#pragma unroll
          for (int d = 0; d < kMine; ++d) {
            merged.sum[d] = __fmaf_rn(fetched<kHalves, kWords>(room, i, d), take, merged.sum[d]);
          }
        }
      }
    }
  }
  write_row<T, D>(args, row, head, lane, merged);
}

}  // namespace quire::attention::cuda
