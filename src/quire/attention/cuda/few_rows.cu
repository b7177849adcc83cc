// Items of few query columns. Every warp reads its own range of keys and values straight into the
// registers in which the tensor core wants them. So nothing waits for anybody.
//
// Products are transposed, S^T = K Q^T and O^T = V^T P^T. Tokens and dimensions lie on the 16-wide
// side of the instruction, query columns on the 8-wide one. The dimensions inside a dot product may
// come in any order if both operands agree, so a lane takes 16 neighbouring bytes of a key. Values
// are paired by token with byte permutations. Codes are widened in registers.
#include <cuda_runtime.h>

#include <cstdint>

#include "quire/attention/cuda/args.h"
#include "quire/attention/cuda/codes.cuh"
#include "quire/attention/cuda/fragments.cuh"
#include "quire/attention/cuda/kernels.h"
#include "quire/attention/cuda/partials.cuh"
#include "quire/attention/device_plan.h"

namespace quire::attention::cuda {
namespace {

constexpr int kWarps = 4;
constexpr int kStep = 16;  // tokens at a time
constexpr float kNothing = -1e30f;

// The address of a token of a run in one KV head, in words of 16 bits.
struct RunAddress {
  const DeviceKV& kv;
  const std::uint16_t* head;
  const std::int32_t* blocks;
  int row_words;
  int first_seen, last_token;  // tokens outside are read as the nearest one inside

  struct Token {
    const std::uint16_t* block;
    int slot;
  };
  __device__ Token token(int index) const {
    const int token = min(max(index, first_seen), last_token - 1);
    const TokenPlace place = place_of(token, kv.block_tokens, kv.block_shift);
    return {head + __ldg(blocks + place.block) * kv.block_stride, place.slot};
  }
  __device__ const std::uint16_t* key(int index) const {
    const Token found = token(index);
    return found.block + found.slot * row_words;
  }
};

// Keys of 16 tokens: a lane has 8 dimensions of each 32, of tokens g and g + 8.
template <KVFormat F, int D>
struct Keys {
  uint4 row[2][D / 32];

  __device__ void load(const RunAddress& run, int first, int g, int t) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const std::uint16_t* key = run.key(first + g + 8 * r) + t * 8;
#pragma unroll
      for (int d = 0; d < D / 32; ++d) {
        row[r][d] = load_16(key + d * 32);
      }
    }
  }
  __device__ uint4 numbers(int r, int d) const { return row[r][d]; }
};

template <KVFormat F, int D>
  requires(kTokenScales<F>)
struct Keys<F, D> {
  uint2 row[2][D / 32];
  StoredScale<F> scales[2];

  __device__ void load(const RunAddress& run, int first, int g, int t) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const RunAddress::Token token = run.token(first + g + 8 * r);
      const std::uint16_t* key = token.block + token.slot * run.row_words + t * 4;
#pragma unroll
      for (int d = 0; d < D / 32; ++d) {
        row[r][d] = __ldg(reinterpret_cast<const uint2*>(key + d * 16));
      }
      scales[r].load(token.block, run.kv, token.slot);
    }
  }
  __device__ uint4 numbers(int r, int d) const { return widen_8<F>(row[r][d].x, row[r][d].y); }
};

// The 16 tokens are of one run of 32.
template <int D>
struct Keys<KVFormat::kInt4, D> {
  std::uint32_t row[2][D / 32];
  uint4 scales[D / 32], minimums[D / 32];

  __device__ void load(const RunAddress& run, int first, int g, int t) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const RunAddress::Token token = run.token(first + g + 8 * r);
      const auto* words = reinterpret_cast<const std::uint32_t*>(token.block);
#pragma unroll
      for (int d = 0; d < D / 32; ++d) {
        row[r][d] = __ldg(words + kernels::cuda::int4_word(D, token.slot, d * 4 + t));
      }
    }
    const RunAddress::Token token = run.token(first);
    const std::uint16_t* from = token.block + run.kv.scale_offset +
                                token.slot / tensor::kInt4RunTokens * Int4Scales::words(D);
#pragma unroll
    for (int d = 0; d < D / 32; ++d) {
      scales[d] = load_16(from + Int4Scales::key(d * 32 + t * 8));
      minimums[d] = load_16(from + Int4Scales::key_minimum(D, d * 32 + t * 8));
    }
  }
  __device__ uint4 numbers(int r, int d) const {
    const uint4& s = scales[d];
    const uint4& m = minimums[d];
    const Int4Pair pairs[4] = {{s.x, m.x}, {s.y, m.y}, {s.z, m.z}, {s.w, m.w}};
    return widen_int4(row[r][d], pairs);
  }
};

// Values of 16 tokens: a lane has 4 dimensions of each 32, of tokens 2t, 2t + 1, 2t + 8, 2t + 9.
template <KVFormat F, int D>
struct Values {
  uint2 row[4][D / 32];

  __device__ void load(const RunAddress& run, int first, int g, int t) {
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      const int token = first + 2 * t + (r & 1) + 8 * (r >> 1);
      const std::uint16_t* value = run.key(token) + run.kv.v_offset + g * 4;
#pragma unroll
      for (int d = 0; d < D / 32; ++d) {
        row[r][d] = __ldg(reinterpret_cast<const uint2*>(value + d * 32));
      }
    }
  }
  // Returns dimension I of the lane's four, of tokens `first` and the next one.
  template <int I>
  __device__ std::uint32_t pair(int first, int d) const {
    const uint2 a = row[first][d], b = row[first + 1][d];
    return __byte_perm(I < 2 ? a.x : a.y, I < 2 ? b.x : b.y, I & 1 ? 0x7632 : 0x5410);
  }
};

template <KVFormat F, int D>
  requires(kTokenScales<F>)
struct Values<F, D> {
  std::uint32_t row[4][D / 32];

  __device__ void load(const RunAddress& run, int first, int g, int t) {
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      const int token = first + 2 * t + (r & 1) + 8 * (r >> 1);
      const std::uint16_t* value = run.key(token) + run.kv.v_offset + g * 2;
#pragma unroll
      for (int d = 0; d < D / 32; ++d) {
        row[r][d] = __ldg(reinterpret_cast<const std::uint32_t*>(value + d * 16));
      }
    }
  }
  template <int I>
  __device__ std::uint32_t pair(int first, int d) const {
    const std::uint32_t both =
        ByteCodes<F>::raise(__byte_perm(row[first][d], row[first + 1][d], I < 2 ? 0x5140 : 0x7362));
    return ByteCodes<F>::template widen < I % 2 == 0 ? kLow : kHigh > (both);
  }
};

// A word has eight dimensions. Lanes of odd g take the upper four.
template <int D>
struct Values<KVFormat::kInt4, D> {
  std::uint32_t row[4][D / 32];
  std::uint32_t scales[2][D / 32], minimums[2][D / 32];  // of two tokens

  __device__ void load(const RunAddress& run, int first, int g, int t) {
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      const RunAddress::Token token = run.token(first + 2 * t + (r & 1) + 8 * (r >> 1));
      const auto* words = reinterpret_cast<const std::uint32_t*>(token.block + run.kv.v_offset);
#pragma unroll
      for (int d = 0; d < D / 32; ++d) {
        row[r][d] =
            __ldg(words + kernels::cuda::int4_word(D, token.slot, d * 4 + g / 2)) >> g % 2 * 8;
      }
    }
    // Those of tokens that nobody sees are there, too.
    const RunAddress::Token token = run.token(first);
    const std::uint16_t* from = token.block + run.kv.scale_offset +
                                token.slot / tensor::kInt4RunTokens * Int4Scales::words(D);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int of_run = first % tensor::kInt4RunTokens + 2 * t + 8 * half;
#pragma unroll
      for (int d = 0; d < D / 32; ++d) {
        const auto load = [&](int at) {
          return __ldg(reinterpret_cast<const std::uint32_t*>(from + at));
        };
        scales[half][d] = load(Int4Scales::value(D, d, of_run));
        minimums[half][d] = load(Int4Scales::value_minimum(D, d, of_run));
      }
    }
  }
  template <int I>
  __device__ std::uint32_t pair(int first, int d) const {
    const std::uint32_t both =
        __byte_perm(row[first][d], row[first + 1][d], I % 2 == 0 ? 0x5410 : 0x7632);
    return Int4Pair(scales[first / 2][d], minimums[first / 2][d]).numbers(int4_codes<I / 2>(both));
  }
};

__device__ __forceinline__ float max_over_tokens(float x) {
#pragma unroll
  for (int lanes = 4; lanes < 32; lanes *= 2) {
    x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, lanes));
  }
  return x;
}

__device__ __forceinline__ float sum_over_tokens(float x) {
#pragma unroll
  for (int lanes = 4; lanes < 32; lanes *= 2) {
    x += __shfl_xor_sync(0xffffffffu, x, lanes);
  }
  return x;
}

// Turns a product of a query and a key into an exponent of 2.
template <bool kScaled>
__device__ __forceinline__ float exponent_of(const AttentionArgs& args, const TokenScale& scale,
                                             float product) {
  if (args.cap_log2 == 0) {
    return kScaled ? __fmaf_rn(product, scale.score, scale.exponent) : product * args.scale_log2;
  }
  const float x = product * (kScaled ? scale.score : args.scale_log2);
  const float capped = soft_capped(x, args.cap_log2, cap_step(args.cap_log2));
  return kScaled ? capped + scale.exponent : capped;
}

// A column of an item: a head of a row, and what it sees.
struct Column {
  int begin = 0, end = 0;  // tokens
  int partial = kNoPartial;
  int head = 0;  // inside the group
};

__device__ __forceinline__ Column column_of(const AttentionArgs& args,
                                            const DevicePlan::WorkItem& item, int column) {
  const int group = args.heads / args.kv_heads, row = column / group;
  if (row >= item.num_rows) {
    return {};
  }
  const DevicePlan::Row& seen = args.work.rows[item.first_row + row];
  return {seen.visible_begin, seen.visible_end, seen.partial, column - row * group};
}

// N: tiles of 8 columns.
template <DType T, KVFormat F, int D, int N>
__global__ void __launch_bounds__(kWarps * 32, D* N <= 128    ? 3
                                               : D * N <= 256 ? 2
                                                              : 1)
    few_rows(const AttentionArgs args) {
  constexpr bool kScaled = kTokenScales<F>;
  constexpr DType kProduct = query_dtype(T, F);
  const int index = static_cast<int>(blockIdx.x) * kWarps + static_cast<int>(threadIdx.x) / 32;
  if (index >= args.work.num_few) {
    return;
  }
  const int kv_head = static_cast<int>(blockIdx.y);
  const int lane = static_cast<int>(threadIdx.x) % 32, g = lane / 4, t = lane % 4;
  const DevicePlan::WorkItem item = args.work.few[index];
  const int group = args.heads / args.kv_heads;
  if (item.num_rows == 0 || (item.num_rows * group > 8) != (N > 1)) {
    return;  // empty, or the other instance's
  }
  const RunAddress run = {args.kv,
                          args.kv.data + kv_head * args.kv.head_stride,
                          args.work.blocks + item.first_block,
                          D * kNumberBits<F> / 16,
                          item.first_seen,
                          item.last_token};

  uint4 q[N][D / 32] = {};  // column g of each tile
  Column mine[N][2];        // columns 2t and 2t + 1
#pragma unroll
  for (int n = 0; n < N; ++n) {
    mine[n][0] = column_of(args, item, n * 8 + 2 * t);
    mine[n][1] = column_of(args, item, n * 8 + 2 * t + 1);
    const int row = (n * 8 + g) / group;
    if (row < item.num_rows) {
      const int query = args.work.rows[item.first_row + row].query;
      const std::int64_t head = kv_head * group + (n * 8 + g) - row * group;
      const std::uint16_t* from = args.q + (std::int64_t{query} * args.heads + head) * D + t * 8;
#pragma unroll
      for (int d = 0; d < D / 32; ++d) {
        q[n][d] = load_16(from + d * 32);
      }
    }
  }

  float out[N][D / 32][2][4] = {};
  float largest[N][2], sum[N][2] = {};
#pragma unroll
  for (int n = 0; n < N; ++n) {
    largest[n][0] = largest[n][1] = kNothing;
  }
  Keys<F, D> keys;
  keys.load(run, item.first_token, g, t);
  for (int first = item.first_token; first < item.last_token; first += kStep) {
    Values<F, D> values;
    values.load(run, first, g, t);
    TokenScale scale[2] = {};  // tokens g and g + 8
    if constexpr (kScaled) {
      scale[0] = keys.scales[0].with(args.scale_log2);
      scale[1] = keys.scales[1].with(args.scale_log2);
    }
    float score[N][4] = {};  // tokens g and g + 8, columns 2t and 2t + 1
#pragma unroll
    for (int d = 0; d < D / 32; ++d) {
      const uint4 a = keys.numbers(0, d), b = keys.numbers(1, d);
#pragma unroll
      for (int n = 0; n < N; ++n) {
        mma<kProduct>(score[n], {a.x, b.x, a.y, b.y}, q[n][d].x, q[n][d].y);
        mma<kProduct>(score[n], {a.z, b.z, a.w, b.w}, q[n][d].z, q[n][d].w);
      }
    }
    if (first + kStep < item.last_token) {
      keys.load(run, first + kStep, g, t);
    }

    std::uint32_t weights[N][2];  // P^T: tokens 2t.. and 2t + 8.., column g
#pragma unroll
    for (int n = 0; n < N; ++n) {
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        const Column& column = mine[n][c];
        float& low = score[n][c];
        float& high = score[n][2 + c];
        const int token = first + g;
        low = exponent_of<kScaled>(args, scale[0], low);
        high = exponent_of<kScaled>(args, scale[1], high);
        low = token >= column.begin && token < column.end ? low : -INFINITY;
        high = token + 8 >= column.begin && token + 8 < column.end ? high : -INFINITY;
        const float before = largest[n][c];
        const float now = fmaxf(before, max_over_tokens(fmaxf(low, high)));
        const float shrink = exp2_approx(before - now);
        largest[n][c] = now;
        low = exp2_approx(low - now);
        high = exp2_approx(high - now);
        if constexpr (kScaled) {
          sum[n][c] = sum[n][c] * shrink + low * scale[0].inverse + high * scale[1].inverse;
        } else {
          sum[n][c] = sum[n][c] * shrink + low + high;
        }
#pragma unroll
        for (int d = 0; d < D / 32; ++d) {
#pragma unroll
          for (int m = 0; m < 2; ++m) {
            out[n][d][m][c] *= shrink;
            out[n][d][m][2 + c] *= shrink;
          }
        }
      }
      weights[n][0] = transpose_8x8(Element<kProduct>::round_pair(score[n][0], score[n][1]));
      weights[n][1] = transpose_8x8(Element<kProduct>::round_pair(score[n][2], score[n][3]));
    }
#pragma unroll
    for (int d = 0; d < D / 32; ++d) {
      const Left low = {values.template pair<0>(0, d), values.template pair<1>(0, d),
                        values.template pair<0>(2, d), values.template pair<1>(2, d)};
      const Left high = {values.template pair<2>(0, d), values.template pair<3>(0, d),
                         values.template pair<2>(2, d), values.template pair<3>(2, d)};
#pragma unroll
      for (int n = 0; n < N; ++n) {
        mma<kProduct>(out[n][d][0], low, weights[n][0], weights[n][1]);
        mma<kProduct>(out[n][d][1], high, weights[n][0], weights[n][1]);
      }
    }
  }

#pragma unroll
  for (int n = 0; n < N; ++n) {
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      const float total = sum_over_tokens(sum[n][c]);
      const Column& column = mine[n][c];
      if (column.partial == kNoPartial) {
        continue;
      }
      const PartialWriter<T> writer(
          args, place_of_head(column.partial, args.heads, kv_head * group + column.head),
          largest[n][c], total);
      if (g == 0) {
        writer.put_stats();
      }
#pragma unroll
      for (int d = 0; d < D / 32; ++d) {
        writer.template put<4>(g * 4 + d * 32, {out[n][d][0][c], out[n][d][0][2 + c],
                                                out[n][d][1][c], out[n][d][1][2 + c]});
      }
    }
  }
}

template <DType T, KVFormat F, int D>
cudaError_t launch(const AttentionArgs& args, cudaStream_t stream) {
  const dim3 grid((args.work.num_few + kWarps - 1) / kWarps, args.kv_heads);
  few_rows<T, F, D, 1><<<grid, kWarps * 32, 0, stream>>>(args);
  if (args.work.wide) {
    few_rows<T, F, D, 2><<<grid, kWarps * 32, 0, stream>>>(args);
  }
  return cudaGetLastError();
}

}  // namespace

cudaError_t launch_few_rows(const AttentionArgs& args, cudaStream_t stream) {
  if (args.work.num_few == 0) {
    return cudaSuccess;
  }
  return launch_for_format(
      args.kv, [&]<DType T, KVFormat F, int D>() { return launch<T, F, D>(args, stream); });
}

}  // namespace quire::attention::cuda
