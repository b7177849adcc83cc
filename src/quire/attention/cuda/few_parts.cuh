// Parts that few_columns.cuh and few_like_many.cuh share, whose sums have different orders. They
// are the facts of an item, queries, products with codes of keys, masks, partials and merging.
#pragma once

#include <cstdint>

#include "quire/attention/cuda/args.h"
#include "quire/attention/cuda/codes.cuh"
#include "quire/attention/cuda/copy_engine.cuh"
#include "quire/attention/cuda/fragments.cuh"
#include "quire/attention/cuda/items_supply.cuh"
#include "quire/attention/cuda/merge.cuh"
#include "quire/attention/cuda/partials.cuh"

#if QUIRE_WGMMA

namespace quire::attention::cuda {

template <DType T, KVFormat F, int D>
class FewParts {
 protected:
  static constexpr bool kCodes = F != KVFormat::kPlain;
  static constexpr DType kProduct = query_dtype(T, F);
  static constexpr bool kInt4 = F == KVFormat::kInt4;
  static constexpr bool kScaled = kTokenScales<F>;
  static constexpr int kTile = kFewTile;               // columns of a product
  static constexpr int kMine = kTokens / kGroupWarps;  // tokens of a warp
  static constexpr int kSteps = kMine / 16;            // steps of 16 tokens
  static constexpr int kOwn = 1;                       // barrier 1 + group is the warpgroup's
  // Products of a warp's codes with queries come in so many parts, each with one load of codes.
  static constexpr int kKeyParts = kInt4 ? D / 32 : D / 32 * kSteps;
  static_assert(!kInt4 || kMine == kRunTokens, "a warp's tokens have scales together");

  // Queries over codes stay in registers: two words for each 16 dimensions.
  template <int N>
  using Queries = std::uint32_t[N][kCodes ? D / 16 : 1][2];
  // Scales of a lane's tokens, g and g + 8 of each step.
  struct Scales {
    TokenScale of[kSteps][2];
  };

  __device__ FewParts(const AttentionArgs& args, Shared<F, D>& shared, const Cursor<D>& cursor,
                      int group, bool merges)
      : args_(args),
        shared_(shared),
        cursor_(cursor),
        group_(group),
        merges_(merges),
        thread_(static_cast<int>(threadIdx.x) % kGroupThreads) {}

  // Waits for the item of round `index`, and reads what it is.
  __device__ void await_item(int index) {
    buffer_ = index % kQueryBuffers;
    shared_.queries_full[group_][buffer_].await(index / kQueryBuffers);
    brief_ = shared_.brief[group_][buffer_];
  }

  [[nodiscard]] __device__ int lane() const { return thread_ % 32; }
  [[nodiscard]] __device__ int warp() const { return thread_ / 32; }
  [[nodiscard]] __device__ Brief::Column column(int index) const {
    return shared_.columns[group_][buffer_ * kFewColumnsOfOneKernel + index];
  }
  // Returns the address of piece `piece` of 16 bytes of a row. A lane's piece is a sum of an even
  // number and `piece`. So the other pieces it wants lie at exclusive ors of their numbers.
  [[nodiscard]] static __device__ std::uint32_t place(const std::uint16_t* rows, int row,
                                                      int piece) {
    return shared_address(rows) + row * 128 + (piece ^ row % 8) * 16;
  }
  [[nodiscard]] static __device__ std::uint32_t further(std::uint32_t place, int pieces) {
    return place ^ pieces % 8 * 16;
  }

  // Returns the token, of the tile, of one of the lane's rows of a product of step `step`.
  [[nodiscard]] __device__ int token_of(int step, int half) const {
    const int place = warp() * kMine + step * 16 + half * 8 + lane() / 4;
    return kInt4 ? place / kRunTokens * kRunTokens + kernels::cuda::int4_token(place % kRunTokens)
                 : place;
  }
  // Returns the dimension of a lane's two sums `half` of product `d`.
  [[nodiscard]] __device__ int dim_of(int d, int half) const {
    const int g = lane() / 4;
    if constexpr (kInt4) {
      return d / 2 * 32 + g / 2 * 8 + g % 2 + (d % 2 * 2 + half) * 2;
    }
    return d * 16 + (kScaled ? 2 * g + half : g + 8 * half);
  }

  // Returns the address of a piece of a row of codes.
  [[nodiscard]] static __device__ std::uint32_t place_of_codes(const std::uint16_t* rows, int row,
                                                               int piece) {
    const int swap = D == 64 ? row / 2 % 4 : row % 8;
    return shared_address(rows) + row * D + (piece ^ swap) * 16;
  }

  // Tells the supply that this warp has read the slot.
  __device__ void release(int slot) const {
    __syncwarp();
    if (lane() == 0) {
      shared_.free[slot].arrive();
    }
  }

  // Counts the partials of the rows that this thread asks about. They are not needed soon.
  template <int N>
  __device__ void count_partials(int (&num_partials)[N]) const {
#pragma unroll
    for (int n = 0; n < N; ++n) {
      if (merges_) {
        const Brief::Column own = column(n * kTile + thread_ / 16);
        num_partials[n] = own.place >= 0 ? args_.work.partials[own.row].count : 0;
      }
    }
  }

  // Loads the queries of the item. A product takes 16 dimensions in the order in which lanes have
  // codes. These are four neighbours; queries over int4 lie in shared memory as they need to.
  template <int N>
  __device__ void load_queries(Queries<N>& query) const {
    const int g = lane() / 4, t = lane() % 4;
#pragma unroll
    for (int n = 0; n < N; ++n) {
#pragma unroll
      for (int d = 0; d < D / 16; ++d) {
        const std::uint32_t from =
            place(shared_.queries[group_] + d / 4 * kGroupColumns * 64,
                  buffer_ * kFewColumnsOfOneKernel + n * kTile + g, d % 4 * 2 + t / 2);
        const uint2 words = load_shared_8(from + t % 2 * 8);
        query[n][d][0] = words.x;
        query[n][d][1] = words.y;
      }
    }
  }

  // Returns the stored scale of one of the warp's tokens, per lane.
  [[nodiscard]] __device__ StoredScale<F> stored_scale(int slot) const {
    return scale_in_slot<F, D>(args_, shared_, slot, warp() * kMine + lane());
  }
  // Computes scales, and hands them to the lanes that need them.
  __device__ void spread_scales(Scales& scales, const StoredScale<F>& stored) const {
    const TokenScale own = stored.with(args_.scale_log2);
#pragma unroll
    for (int i = 0; i < kSteps * 2; ++i) {
      const int from = i * 8 + lane() / 4;
      scales.of[i / 2][i % 2] = {__shfl_sync(0xffffffffu, own.score, from),
                                 __shfl_sync(0xffffffffu, own.exponent, from),
                                 __shfl_sync(0xffffffffu, own.inverse, from)};
    }
  }

  // Multiplies part `part` of the codes of the tile's keys by the queries.
  template <int N>
  __device__ __forceinline__ void multiply_part(float (&score)[N][kSteps][4],
                                                const Queries<N>& query, int slot, int part) const {
    if constexpr (kInt4) {
      multiply_int4(score, query, slot, part);
    } else if constexpr (kScaled) {
      multiply_bytes(score, query, slot, part / kSteps * 2, part % kSteps);
    }
  }

  // Returns where the codes of 32 tokens begin in a slot, and their scales.
  [[nodiscard]] __device__ std::uint32_t int4_codes_at(int slot, int run) const {
    return shared_address(shared_.slots[slot]) + run * (kRunTokens * D / 2);
  }
  [[nodiscard]] __device__ std::uint32_t int4_scales_at(int slot, int run) const {
    return shared_address(shared_.slots[slot]) + kNumbersBytes<F, D> + run * (4 * D);
  }

  // Turns products into exponents of 2.
  template <int N>
  __device__ static void scale_scores(float (&score)[N][kSteps][4], const Scales& scales) {
#pragma unroll
    for (int n = 0; n < N; ++n) {
#pragma unroll
      for (int i = 0; i < kSteps * 4; ++i) {
        const TokenScale& scale = scales.of[i / 4][i % 4 / 2];
        float& x = score[n][i / 4][i % 4];
        x = __fmaf_rn(x, scale.score, scale.exponent);
      }
    }
  }

  // Sets scores of tokens that a column does not see to -inf.
  template <int N>
  __device__ void hide(float (&score)[N][kSteps][4], int tile) const {
#pragma unroll
    for (int n = 0; n < N; ++n) {
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        const Brief::Column seen = column(n * kTile + lane() % 4 * 2 + c);
#pragma unroll
        for (int i = c; i < kSteps * 4; i += 2) {
          const int token = tile + token_of(i / 4, i % 4 / 2);
          if (token < seen.begin || token >= seen.end) {
            score[n][i / 4][i % 4] = -INFINITY;
          }
        }
      }
    }
  }

  // Writes what 16 threads have of a column: sums of 2^(score - largest), `total` of weights alone.
  __device__ void write_column(int place, float largest, float total,
                               const float (&all)[D / 64][4]) const {
    const int dim = thread_ % 16 * 4;
    if (place >= 0) {
      write_partial(place, {largest, total}, all);
      return;
    }
    const PartialWriter<T> writer(args_, place, largest, total);
    if (dim == 0) {
      writer.put_stats();
    }
#pragma unroll
    for (int d = 0; d < D; d += 64) {
      writer.template put_whole<4>(d + dim, all[d / 64]);
    }
  }

  [[nodiscard]] __device__ int head_of(int index) const {
    return brief_.first_head + index % (args_.heads / args_.kv_heads);
  }

  // Merges all partials of each row whose last partial this item brings. A warpgroup shares the
  // rows of an item.
  template <int N>
  __device__ void merge(int index, const int (&num_partials)[N]) {
    int(&merging)[kFewColumnsOfOneKernel] = shared_.merging[group_][index % 2];
    __threadfence();
    __syncwarp();
#pragma unroll
    for (int n = 0; n < N; ++n) {
      if (const int i = n * kTile + thread_ / 16; thread_ % 16 == 0) {
        const Brief::Column mine = column(i);
        const bool last =
            mine.place >= 0 && is_last_partial(args_, mine.row, head_of(i), num_partials[n]);
        merging[i] = last ? mine.row : kNoRow;
      }
    }
    meet(kOwn + group_, kGroupThreads);
#pragma unroll 1
    for (int i = warp(); i < N * kTile; i += kGroupWarps) {
      if (const int row = merging[i]; row != kNoRow) {
        float room[D / 8][4];
        merge_partials<T, D, true>(args_, args_.work.partials[row], row, head_of(i), room);
      }
    }
  }

 private:
  // Multiplies codes of a byte.
  template <int N>
  __device__ __forceinline__ void multiply_bytes(float (&score)[N][kSteps][4],
                                                 const Queries<N>& query, int slot, int d,
                                                 int step) const {
    using Codes = ByteCodes<F>;
    const std::uint32_t keys =
        place_of_codes(shared_.slots[slot], warp() * kMine + lane() % 16, lane() / 16);
    std::uint32_t key[4];  // tokens g and g + 8 of 16 dimensions, then of 16 more
    load_matrices(key, further(keys, d) + step * 16 * D);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const std::uint32_t low = Codes::raise(key[2 * half]);
      const std::uint32_t high = Codes::raise(key[2 * half + 1]);
      const Left a = {Codes::template widen<kLow>(low), Codes::template widen<kLow>(high),
                      Codes::template widen<kHigh>(low), Codes::template widen<kHigh>(high)};
#pragma unroll
      for (int n = 0; n < N; ++n) {
        mma<kProduct>(score[n][step], a, query[n][d + half][0], query[n][d + half][1]);
      }
    }
  }

  // Multiplies codes of 4 bits. A lane has eight dimensions of a token in a word.
  template <int N>
  __device__ __forceinline__ void multiply_int4(float (&score)[N][kSteps][4],
                                                const Queries<N>& query, int slot, int d) const {
    const std::uint32_t scales = int4_scales_at(slot, warp()) + lane() % 4 * 16 + d * 64;
    const uint4 s = load_shared_16(scales), m = load_shared_16(scales + 2 * D);
    const Int4Pair pairs[4] = {{s.x, m.x}, {s.y, m.y}, {s.z, m.z}, {s.w, m.w}};
    std::uint32_t key[4];  // tokens of rows g and g + 8 of both steps
    load_matrices(key, int4_codes_at(slot, warp()) + lane() * 16 + d * (kRunTokens * 16));
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      const uint4 low = widen_int4(key[2 * step], pairs);
      const uint4 high = widen_int4(key[2 * step + 1], pairs);
#pragma unroll
      for (int n = 0; n < N; ++n) {
        mma<kProduct>(score[n][step], {low.x, high.x, low.y, high.y}, query[n][2 * d][0],
                      query[n][2 * d][1]);
        mma<kProduct>(score[n][step], {low.z, high.z, low.w, high.w}, query[n][2 * d + 1][0],
                      query[n][2 * d + 1][1]);
      }
    }
  }

  // Writes the values that 16 threads have of a column, in fp16.
  __device__ void write_partial(int place, float2 stats, const float (&out)[D / 64][4]) const {
    const unsigned together = 0xffffu << lane() / 16 * 16;
    const int dim = thread_ % 16 * 4;
    float most = 0;
#pragma unroll
    for (const auto& four : out) {
      most = fmaxf(fmaxf(most, fmaxf(fabsf(four[0]), fabsf(four[1]))),
                   fmaxf(fabsf(four[2]), fabsf(four[3])));
    }
#pragma unroll
    for (int step = 1; step < 16; step *= 2) {
      most = fmaxf(most, __shfl_xor_sync(together, most, step));
    }
    const PartialScale scale = scale_of_partial(most);
    const PartialWriter<T> writer(args_, place, stats.x + scale.exponent, stats.y * scale.factor);
    if (dim == 0) {
      writer.put_stats();
    }
#pragma unroll
    for (int d = 0; d < D; d += 64) {
      const float(&x)[4] = out[d / 64];
      const std::uint32_t words[2] = {
          Element<DType::kFloat16>::round_pair(x[0] * scale.factor, x[1] * scale.factor),
          Element<DType::kFloat16>::round_pair(x[2] * scale.factor, x[3] * scale.factor)};
      writer.put_halves(d + dim, words);
    }
  }

 protected:
  const AttentionArgs& args_;
  Shared<F, D>& shared_;
  Cursor<D> cursor_;
  const int group_;
  const bool merges_;
  const int thread_;
  int buffer_ = 0;
  Brief brief_;
};

}  // namespace quire::attention::cuda

#endif
