// The place where a kernel leaves what it computed for one column, a head of a row. That is its
// partial or, where no other item sees anything of the row, the output.
#pragma once

#include <climits>
#include <cstdint>

#include "quire/attention/cuda/args.h"
#include "quire/attention/cuda/fragments.cuh"

namespace quire::attention::cuda {

// DevicePlan::Row::partial of a column that is not there.
inline constexpr int kNoPartial = INT_MIN;
inline constexpr int kNoRow = -1;
// The largest score of a column that has seen nothing yet: finite, so that it can be subtracted.
inline constexpr float kNothing = -1e30f;
// Probabilities may reach 2^this before they are made relative to a larger score, where sums have a
// fixed order. 16-bit floats are as exact there as below 1.
inline constexpr float kMostExponent = 8;

// Returns the place of one head of a partial, counted in heads. Where the partial is a whole row,
// as in DevicePlan::Row, returns ~ of its place in the batch.
__device__ __forceinline__ int place_of_head(int partial, int heads, int head) {
  return partial < 0 ? ~(~partial * heads + head) : partial * heads + head;
}

// fp16 for the values of a partial: a multiple of 2^exponent each, so that the largest has most of
// fp16's range below it. A value relative to 2^largest is then relative to 2^(largest + exponent).
struct PartialScale {
  float exponent;
  float factor;  // 2^-exponent
};
// Returns the scale of values whose largest absolute is `most`.
__device__ __forceinline__ PartialScale scale_of_partial(float most) {
  constexpr int kBias = 127, kTop = 14;  // the largest becomes 2^kTop to 2^(kTop + 1)
  const int exponent = min(max((__float_as_int(most) >> 23) - kBias - kTop, -60), 100);
  return {static_cast<float>(exponent), __int_as_float((kBias - exponent) << 23)};
}

// Rounds results to T or, with kAnyResult, to the type that the arguments name.
template <DType T>
struct Rounding {
  __device__ static std::uint16_t round(const AttentionArgs& args, float x) {
    if constexpr (T == kAnyResult) {
      return args.kv.dtype == DType::kFloat16 ? Element<DType::kFloat16>::round(x)
                                              : Element<DType::kBFloat16>::round(x);
    } else {
      return Element<T>::round(x);
    }
  }
  __device__ static std::uint32_t round_pair(const AttentionArgs& args, float low, float high) {
    if constexpr (T == kAnyResult) {
      return args.kv.dtype == DType::kFloat16 ? Element<DType::kFloat16>::round_pair(low, high)
                                              : Element<DType::kBFloat16>::round_pair(low, high);
    } else {
      return Element<T>::round_pair(low, high);
    }
  }
};

// Returns the sum of 2^(score - largest) of head `at` of all rows, with that of the head's sink. A
// row that sees nothing stays zeros.
__device__ __forceinline__ float with_sink(const AttentionArgs& args, std::int64_t at,
                                           float largest, float sum) {
  constexpr float kLog2E = 1.44269504088896f;
  if (args.sinks == nullptr || sum == 0) {
    return sum;
  }
  return sum + exp2f(args.sinks[at % args.heads] * kLog2E - largest);
}

template <DType T>
class PartialWriter {
 public:
  // Prepares to write one row of a head. `place` is that of place_of_head(); `sum` is one of
  // 2^(score - largest).
  __device__ PartialWriter(const AttentionArgs& args, int place, float largest, float sum)
      : args_(args),
        whole_(place < 0),
        at_(place < 0 ? ~place : place),
        largest_(largest),
        sum_(place < 0 ? with_sink(args, ~place, largest, sum) : sum),
        scale_(place < 0 ? (sum_ == 0 ? 0.0f : 1 / sum_) : 1.0f) {}

  // Writes the stats that merging needs, or the lse. By one lane of those that share the column.
  __device__ void put_stats() const {
    if (!whole_) {
      args_.work.partial_stats[at_] = {largest_, sum_};
    } else if (args_.lse != nullptr) {
      constexpr float kLn2 = 0.693147180559945f;
      args_.lse[at_] = sum_ == 0 ? -INFINITY : (largest_ + log2f(sum_)) * kLn2;
    }
  }

  // Returns whether there is nothing to merge.
  [[nodiscard]] __device__ bool whole() const { return whole_; }

  // Writes N = 2, 4 or 8 neighbouring dimensions from `dim`, a multiple of N, on.
  template <int N>
  __device__ void put(int dim, const float (&value)[N]) const {
    if (whole_) {
      put_whole(dim, value);
      return;
    }
    put_partial(dim, value);
  }

  // Writes the dimensions of a column that is not whole(); put_whole those of one that is.
  template <int N>
  __device__ void put_partial(int dim, const float (&value)[N]) const {
    float* to = args_.work.partial_values + at_ * args_.kv.head_dim + dim;
#pragma unroll
    for (int i = 0; i < N; i += N < 4 ? 2 : 4) {
      if constexpr (N < 4) {
        *reinterpret_cast<float2*>(to + i) = {value[i], value[i + 1]};
      } else {
        *reinterpret_cast<float4*>(to + i) = {value[i], value[i + 1], value[i + 2], value[i + 3]};
      }
    }
  }
  // Writes N words of two fp16 values each. Precondition: the partial is not whole().
  template <int N>
  __device__ void put_halves(int dim, const std::uint32_t (&words)[N]) const {
    struct alignas(4 * N) Words {
      std::uint32_t word[N];
    } all;
#pragma unroll
    for (int i = 0; i < N; ++i) {
      all.word[i] = words[i];
    }
    auto* const values = reinterpret_cast<std::uint16_t*>(args_.work.partial_values);
    *reinterpret_cast<Words*>(values + at_ * args_.kv.head_dim + dim) = all;
  }
  template <int N>
  __device__ void put_whole(int dim, const float (&value)[N]) const {
    std::uint16_t* to = args_.out + at_ * args_.head_dim + dim;
    Words<N> words;
#pragma unroll
    for (int i = 0; i < N / 2; ++i) {
      words.word[i] =
          Rounding<T>::round_pair(args_, value[2 * i] * scale_, value[2 * i + 1] * scale_);
    }
    if (args_.head_dim % N == 0) {
      if (dim < args_.head_dim) {
        *reinterpret_cast<Words<N>*>(to) = words;
      }
      return;
    }
#pragma unroll
    for (int i = 0; i < N; ++i) {
      if (dim + i < args_.head_dim) {
        to[i] = static_cast<std::uint16_t>(words.word[i / 2] >> i % 2 * 16);
      }
    }
  }

 private:
  template <int N>
  struct alignas(2 * N) Words {
    std::uint32_t word[N / 2];
  };

  const AttentionArgs& args_;
  const bool whole_;
  const std::int64_t at_;
  const float largest_, sum_, scale_;
};

}  // namespace quire::attention::cuda
