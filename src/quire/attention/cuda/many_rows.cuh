// Items of many query columns, (row, head) pairs of one KV head stacked. Keys and values go through
// shared memory, tile after tile, while the next one is fetched. Every warp holds 16 columns
// (FlashAttention-2, Dao 2023, with paged KV and packed head groups). Hopper has a kernel of its
// own for common shapes: items_hopper.cuh. For many_rows_*.cu alone.
#pragma once

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

constexpr int kColumns = 64;  // columns of a CTA: an item is the work of kManyColumns / kColumns
constexpr int kWarps = kColumns / 16;
constexpr int kThreads = kWarps * 32;
constexpr float kNothing = -1e30f;

// `Tokens` rows of D elements in shared memory, in columns of 64 elements (one of D, where D is no
// multiple of 64). Pieces of 16 bytes change places inside a row, so that eight rows at one piece
// lie in different banks.
template <int D, int Tokens>
struct Rows {
  static constexpr bool kWhole = D % 64 == 0;

  __device__ static int offset(int row, int piece) {
    return kWhole ? piece / 8 * Tokens * 64 + row * 64 + (piece % 8 ^ (row & 7)) * 8
                  : row * D + (piece ^ (row / 2 & 3)) * 8;
  }
};

__device__ __forceinline__ void copy_16(std::uint16_t* to, const std::uint16_t* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;\n" ::"r"(shared_address(to)), "l"(from));
}
__device__ __forceinline__ void end_copies() { asm volatile("cp.async.commit_group;\n"); }
template <int Left>
__device__ __forceinline__ void await_copies() {
  asm volatile("cp.async.wait_group %0;\n" ::"n"(Left));
}

// Tokens of a tile, by head size: what fits twice.
template <int D>
constexpr int kTokens = D <= 128 ? 64 : 32;

// A tile in shared memory. Codes have become numbers; those of a byte have scales by token.
template <KVFormat F, int D>
struct alignas(16) TokenTile {  // two lie one behind the other
  std::uint16_t keys[kTokens<D> * D];
  std::uint16_t values[kTokens<D> * D];
  TokenScale scales[kTokenScales<F> ? kTokens<D> : 1];

  // Copies tokens from `first` on. Those that no row sees are read as the nearest one that some row
  // sees.
  __device__ void fetch(const AttentionArgs& args, const DevicePlan::WorkItem& item, int kv_head,
                        int first) {
    const std::uint16_t* head = args.kv.data + kv_head * args.kv.head_stride;
    const std::int32_t* blocks = args.work.blocks + item.first_block;
    // Pieces of 16 bytes, or words of int4.
    constexpr int kPieces = F == KVFormat::kInt4 ? D / 8 : D * kNumberBits<F> / 128;
    for (int i = static_cast<int>(threadIdx.x); i < kTokens<D> * kPieces; i += kThreads) {
      const int row = i / kPieces, piece = i % kPieces;
      const int token = min(max(first + row, item.first_seen), item.last_token - 1);
      const TokenPlace place = place_of(token, args.kv.block_tokens, args.kv.block_shift);
      const std::uint16_t* block = head + __ldg(blocks + place.block) * args.kv.block_stride;
      const std::uint16_t* from = block + (place.slot * kPieces + piece) * 8;
      if constexpr (F == KVFormat::kInt4) {
        widen_word(args.kv, block, place.slot, row, piece);
      } else if constexpr (kTokenScales<F>) {
        widen(keys, row, piece, load_16(from));
        widen(values, row, piece, load_16(from + args.kv.v_offset));
        if (piece == 0) {
          StoredScale<F> stored;
          stored.load(block, args.kv, place.slot);
          scales[row] = stored.with(args.scale_log2);
        }
      } else {
        const int at = Rows<D, kTokens<D>>::offset(row, piece);
        copy_16(keys + at, from);
        copy_16(values + at, from + args.kv.v_offset);
      }
    }
    end_copies();
  }

 private:
  __device__ static void widen(std::uint16_t* to, int row, int piece, const uint4& codes) {
    using Place = Rows<D, kTokens<D>>;
    *reinterpret_cast<uint4*>(to + Place::offset(row, 2 * piece)) = widen_8<F>(codes.x, codes.y);
    *reinterpret_cast<uint4*>(to + Place::offset(row, 2 * piece + 1)) =
        widen_8<F>(codes.z, codes.w);
  }
  // Widens a word of a token's key and of its value.
  __device__ void widen_word(const DeviceKV& kv, const std::uint16_t* block, int slot, int row,
                             int word) {
    const auto* codes = reinterpret_cast<const std::uint32_t*>(block);
    const auto* value_codes = reinterpret_cast<const std::uint32_t*>(block + kv.v_offset);
    const int at = kernels::cuda::int4_word(D, slot, word),
              to = Rows<D, kTokens<D>>::offset(row, word);
    const int token = slot % tensor::kInt4RunTokens;
    const std::uint16_t* const from =
        block + kv.scale_offset + slot / tensor::kInt4RunTokens * Int4Scales::words(D);
    const uint4 s = load_16(from + Int4Scales::key(word * 8));
    const uint4 m = load_16(from + Int4Scales::key_minimum(D, word * 8));
    const Int4Pair pairs[4] = {{s.x, m.x}, {s.y, m.y}, {s.z, m.z}, {s.w, m.w}};
    *reinterpret_cast<uint4*>(keys + to) = widen_int4(__ldg(codes + at), pairs);
    const Int4Pair same(twice(__ldg(from + Int4Scales::value(D, word / 4, token))),
                        twice(__ldg(from + Int4Scales::value_minimum(D, word / 4, token))));
    const Int4Pair values_pairs[4] = {same, same, same, same};
    *reinterpret_cast<uint4*>(values + to) = widen_int4(__ldg(value_codes + at), values_pairs);
  }
};

// State of one of a lane's two columns so far.
struct Column {
  int begin = 0, end = 0;  // tokens that it sees
  int partial = kNoPartial;
  int head = 0;
  float largest = kNothing, sum = 0;
};

// The 16 columns of a warp. A lane holds columns g and g + 8.
template <DType T, KVFormat F, int D>
struct WarpColumns {
  static constexpr bool kScaled = kTokenScales<F>;
  static constexpr DType kProduct = query_dtype(T, F);

  std::uint32_t q[D / 16][4];
  float out[D / 8][4];
  Column column[2];

  __device__ void start(const AttentionArgs& args, const DevicePlan::WorkItem& item, int kv_head,
                        int first, int g, int t) {
    const int group = args.heads / args.kv_heads;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int index = first + g + 8 * half, row = index / group;
      Column& mine = column[half];
      mine = Column();
      const bool there = row < item.num_rows;
      const DevicePlan::Row seen = there ? args.work.rows[item.first_row + row] : DevicePlan::Row{};
      if (there) {
        mine.begin = seen.visible_begin;
        mine.end = seen.visible_end;
        mine.partial = seen.partial;
        mine.head = kv_head * group + index - row * group;
      }
      const std::uint16_t* from =
          args.q + (std::int64_t{seen.query} * args.heads + mine.head) * D + 2 * t;
#pragma unroll
      for (int k = 0; k < D / 16; ++k) {
        const auto word = [&](int at) {
          return there ? __ldg(reinterpret_cast<const std::uint32_t*>(from + k * 16 + at)) : 0u;
        };
        q[k][half] = word(0);
        q[k][2 + half] = word(8);
      }
    }
#pragma unroll
    for (auto& tile : out) {
      tile[0] = tile[1] = tile[2] = tile[3] = 0;
    }
  }

  // Multiplies the queries by all tokens of the tile.
  __device__ void weigh(const TokenTile<F, D>& tile, float (&score)[kTokens<D> / 8][4],
                        int lane) const {
#pragma unroll
    for (auto& tokens : score) {
      tokens[0] = tokens[1] = tokens[2] = tokens[3] = 0;
    }
#pragma unroll
    for (int k = 0; k < D / 16; ++k) {
#pragma unroll
      for (int n = 0; n < kTokens<D> / 16; ++n) {
        std::uint32_t b[4];  // tokens 0..7: two halves of the 16 dimensions; then tokens 8..15
        const int row = n * 16 + (lane & 7) + (lane & 16) / 2;
        load_matrices(b, shared_address(tile.keys +
                                        Rows<D, kTokens<D>>::offset(row, k * 2 + (lane >> 3 & 1))));
        const Left a = {q[k][0], q[k][1], q[k][2], q[k][3]};
        mma<kProduct>(score[2 * n], a, b[0], b[1]);
        mma<kProduct>(score[2 * n + 1], a, b[2], b[3]);
      }
    }
  }

  // Turns scores into probabilities relative to the largest one so far.
  __device__ void soften(const TokenTile<F, D>& tile, float (&score)[kTokens<D> / 8][4], int first,
                         float scale_log2, float cap_log2, int t) {
    if (cap_log2 != 0) {
      cap_scores(tile, score, scale_log2, cap_log2, t);
      scale_log2 = 1;
    } else if constexpr (kScaled) {
      scale_scores(tile, score, t);
      scale_log2 = 1;
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      Column& mine = column[half];
      if (first < mine.begin || first + kTokens<D> > mine.end) {
        hide(score, half, first, t);
      }
      float largest = -INFINITY;
#pragma unroll
      for (int n = 0; n < kTokens<D> / 8; ++n) {
        largest = fmaxf(largest, fmaxf(score[n][2 * half], score[n][2 * half + 1]));
      }
      largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, 1));
      largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, 2));
      largest = fmaxf(largest * scale_log2, mine.largest);
      const float shrink = exp2_approx(mine.largest - largest);
      mine.largest = largest;
      mine.sum *= shrink;
#pragma unroll
      for (int n = 0; n < kTokens<D> / 8; ++n) {
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          float& x = score[n][2 * half + c];
          x = exp2_approx(__fmaf_rn(x, scale_log2, -largest));
          if constexpr (kScaled) {
            mine.sum = __fmaf_rn(x, tile.scales[n * 8 + 2 * t + c].inverse, mine.sum);
          } else {
            mine.sum += x;
          }
        }
      }
#pragma unroll
      for (auto& tile : out) {
        tile[2 * half] *= shrink;
        tile[2 * half + 1] *= shrink;
      }
    }
  }

  // Turns products into exponents of 2.
  __device__ static void scale_scores(const TokenTile<F, D>& tile,
                                      float (&score)[kTokens<D> / 8][4], int t) {
#pragma unroll
    for (int n = 0; n < kTokens<D> / 8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const TokenScale& scale = tile.scales[n * 8 + 2 * t + i % 2];
        score[n][i] = __fmaf_rn(score[n][i], scale.score, scale.exponent);
      }
    }
  }

  // Turns products into exponents of 2 that are capped.
  __device__ static void cap_scores(const TokenTile<F, D>& tile, float (&score)[kTokens<D> / 8][4],
                                    float scale_log2, float cap, int t) {
    const float step = cap_step(cap);
#pragma unroll
    for (int n = 0; n < kTokens<D> / 8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if constexpr (kScaled) {
          const TokenScale& scale = tile.scales[n * 8 + 2 * t + i % 2];
          score[n][i] = soft_capped(score[n][i] * scale.score, cap, step) + scale.exponent;
        } else {
          score[n][i] = soft_capped(score[n][i] * scale_log2, cap, step);
        }
      }
    }
  }

  // Sets scores of tokens that a column does not see to -inf.
  __device__ void hide(float (&score)[kTokens<D> / 8][4], int half, int first, int t) const {
    const Column& mine = column[half];
#pragma unroll
    for (int n = 0; n < kTokens<D> / 8; ++n) {
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        const int token = first + n * 8 + 2 * t + c;
        if (token < mine.begin || token >= mine.end) {
          score[n][2 * half + c] = -INFINITY;
        }
      }
    }
  }

  // Returns the weights of 16 tokens as an operand.
  __device__ static Left left_of(const float (&weight)[kTokens<D> / 8][4], int k) {
    return {Element<kProduct>::round_pair(weight[2 * k][0], weight[2 * k][1]),
            Element<kProduct>::round_pair(weight[2 * k][2], weight[2 * k][3]),
            Element<kProduct>::round_pair(weight[2 * k + 1][0], weight[2 * k + 1][1]),
            Element<kProduct>::round_pair(weight[2 * k + 1][2], weight[2 * k + 1][3])};
  }

  __device__ void add_values(const TokenTile<F, D>& tile, const float (&weight)[kTokens<D> / 8][4],
                             int lane) {
#pragma unroll
    for (int k = 0; k < kTokens<D> / 16; ++k) {
      const Left a = left_of(weight, k);
#pragma unroll
      for (int d = 0; d < D / 16; ++d) {
        std::uint32_t b[4];  // dimensions 0..7: two halves of the 16 tokens; then 8..15
        load_transposed(
            b, shared_address(tile.values + Rows<D, kTokens<D>>::offset(k * 16 + (lane & 15),
                                                                        d * 2 + (lane >> 4))));
        mma<kProduct>(out[2 * d], a, b[0], b[1]);
        mma<kProduct>(out[2 * d + 1], a, b[2], b[3]);
      }
    }
  }

  __device__ void finish(const AttentionArgs& args, int t) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const Column& mine = column[half];
      float sum = mine.sum;
      sum += __shfl_xor_sync(0xffffffffu, sum, 1);
      sum += __shfl_xor_sync(0xffffffffu, sum, 2);
      if (mine.partial == kNoPartial) {
        continue;
      }
      const PartialWriter<T> writer(args, place_of_head(mine.partial, args.heads, mine.head),
                                    mine.largest, sum);
      if (t == 0) {
        writer.put_stats();
      }
#pragma unroll
      for (int d = 0; d < D / 8; ++d) {
        writer.template put<2>(d * 8 + 2 * t, {out[d][2 * half], out[d][2 * half + 1]});
      }
    }
  }
};

template <DType T, KVFormat F, int D>
__global__ void __launch_bounds__(kThreads, D <= 64    ? 4
                                            : D <= 128 ? 3
                                                       : 1) many_rows(const AttentionArgs args) {
  extern __shared__ __align__(1024) unsigned char shared[];
  auto* tiles = reinterpret_cast<TokenTile<F, D>*>(shared);  // two
  const int kv_head = static_cast<int>(blockIdx.y);
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  constexpr int kShares = kManyColumns / kColumns;
  const DevicePlan::WorkItem item = args.work.many[blockIdx.x / kShares];
  const int first_column = static_cast<int>(blockIdx.x % kShares) * kColumns;
  if (first_column >= item.num_rows * (args.heads / args.kv_heads)) {
    return;
  }
  WarpColumns<T, F, D> columns;
  columns.start(args, item, kv_head, first_column + warp * 16, lane / 4, lane % 4);
  const int tiles_to_do = (item.last_token - item.first_token + kTokens<D> - 1) / kTokens<D>;
  tiles[0].fetch(args, item, kv_head, item.first_token);
  for (int i = 0; i < tiles_to_do; ++i) {
    const int first = item.first_token + i * kTokens<D>;
    if (i + 1 < tiles_to_do) {
      tiles[(i + 1) % 2].fetch(args, item, kv_head, first + kTokens<D>);
      await_copies<1>();
    } else {
      await_copies<0>();
    }
    __syncthreads();
    float score[kTokens<D> / 8][4];
    columns.weigh(tiles[i % 2], score, lane);
    columns.soften(tiles[i % 2], score, first, args.scale_log2, args.cap_log2, lane % 4);
    columns.add_values(tiles[i % 2], score, lane);
    __syncthreads();
  }
  columns.finish(args, lane % 4);
}

}  // namespace

template <DType T, KVFormat F, int D>
cudaError_t launch_many_rows(const AttentionArgs& args, cudaStream_t stream) {
  constexpr int kBytes = static_cast<int>(2 * sizeof(TokenTile<F, D>));
  if (const cudaError_t error = cudaFuncSetAttribute(
          many_rows<T, F, D>, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
      error != cudaSuccess) {
    return error;
  }
  const dim3 grid(args.work.num_many * (kManyColumns / kColumns), args.kv_heads);
  many_rows<T, F, D><<<grid, kThreads, kBytes, stream>>>(args);
  return cudaGetLastError();
}

}  // namespace quire::attention::cuda
