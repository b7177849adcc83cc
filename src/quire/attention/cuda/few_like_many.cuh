// Items of few columns over codes by one warpgroup, to the bits that their rows have among many
// (many_columns.cuh), for items_hopper.cuh. The small products of fragments.cuh add 16 terms at
// once and exactly, whatever their order, as those of wgmma.cuh do. So it is the same 16 that a
// product has here and there, and products follow each other in the same order.
//
// The warps share a tile of 128 tokens twice. For the scores each has 32 tokens and all dimensions,
// for the values a quarter of the dimensions and all tokens. In between they tell each other the
// largest scores and their weights. Codes become numbers in registers. Values of a tile are
// multiplied beside keys of the next one: each chain of products waits for itself.
#pragma once

#include <cstdint>
#include <type_traits>

#include "quire/attention/cuda/args.h"
#include "quire/attention/cuda/codes.cuh"
#include "quire/attention/cuda/copy_engine.cuh"
#include "quire/attention/cuda/few_parts.cuh"
#include "quire/attention/cuda/fragments.cuh"
#include "quire/attention/cuda/items_supply.cuh"
#include "quire/attention/cuda/partials.cuh"

#if QUIRE_WGMMA

namespace quire::attention::cuda {

template <DType T, KVFormat F, int D>
class FewLikeMany : private FewParts<T, F, D> {
  using Parts = FewParts<T, F, D>;
  using typename Parts::Scales;
  template <int N>
  using Queries = typename Parts::template Queries<N>;
  using Parts::args_, Parts::brief_, Parts::buffer_, Parts::cursor_, Parts::group_;
  using Parts::await_item, Parts::column, Parts::dim_of, Parts::hide, Parts::int4_codes_at;
  using Parts::int4_scales_at, Parts::lane, Parts::load_queries;
  using Parts::kInt4, Parts::kKeyParts, Parts::kMine, Parts::kOwn, Parts::kProduct;
  using Parts::kScaled, Parts::kSteps, Parts::kTile;
  using Parts::merge, Parts::multiply_part, Parts::place_of_codes, Parts::release;
  using Parts::merges_, Parts::shared_, Parts::thread_;
  using Parts::scale_scores, Parts::spread_scales, Parts::stored_scale, Parts::warp,
      Parts::write_column;

 public:
  // Prepares a warpgroup. With `merges` it merges the rows whose last partial it brings.
  __device__ FewLikeMany(const AttentionArgs& args, Shared<F, D>& shared, const Cursor<D>& cursor,
                         int group, bool merges)
      : Parts(args, shared, cursor, group, merges),
        exchange_(reinterpret_cast<FewExchange*>(shared.slots[0])[group]) {}

  __device__ void attend_all(int rounds) {
    for (int i = 0; i < rounds; ++i) {
      await_item(i);
      if (brief_.columns <= kTile) {
        attend<1>(i);
      } else if (brief_.columns <= 2 * kTile) {
        attend<2>(i);
      } else {
        attend<FewExchange::kTiles>(i);
      }
    }
  }

 private:
  static constexpr int kProducts = D / 16 / kGroupWarps;  // of a warp, for its dimensions
  static constexpr int kRoomStride = D + 4;               // of a column's values, where all meet
  static_assert(kTile * kRoomStride * sizeof(float) <= sizeof(FewExchange::weights));

  // State of a lane for N tiles of columns: columns 2t and 2t + 1 of each.
  template <int N>
  struct Sums {
    float largest[N][2];
    float out[N][kProducts][4];
    // Sum of column g of the tile with the warp's number. It has tokens 2t and 2t + 1 of each
    // eight, as a lane of many has.
    float total = 0;
  };

  template <int N>
  __device__ __forceinline__ void attend(int index) {
    Sums<N> mine;
    int num_partials[N] = {};
    Parts::count_partials(num_partials);
#pragma unroll
    for (int n = 0; n < N; ++n) {
      mine.largest[n][0] = mine.largest[n][1] = kNothing;
#pragma unroll
      for (auto& sixteen : mine.out[n]) {
        sixteen[0] = sixteen[1] = sixteen[2] = sixteen[3] = 0;
      }
    }
    Queries<N> query;
    load_queries(query);
    Scales scales;
    float score[N][kSteps][4];
    int tile = brief_.first_token;
    multiply<false, true>(mine, score, scales, query);
    while (true) {
      if constexpr (kScaled) {
        scale_scores(score, scales);
      }
      if (tile < brief_.all_begin || tile + kTokens > brief_.all_end) {
        hide(score, tile);
      }
      soften(mine, score, scales);
      tile += kTokens;
      if (tile >= brief_.last_token) {
        break;
      }
      multiply<true, true>(mine, score, scales, query);
    }
    multiply<true, false>(mine, score, scales, query);
    finish(mine);
    if (merges_) {
      merge(index, num_partials);
    }
    shared_.queries_free[group_][buffer_].arrive();
  }

  // Adds the values of the tile that has been softened, and multiplies the keys of the next one.
  template <bool kValues, bool kKeys, int N>
  __device__ __forceinline__ void multiply(Sums<N>& mine, float (&score)[N][kSteps][4],
                                           Scales& scales, const Queries<N>& query) {
    int values = 0, keys = 0;  // slots
    [[maybe_unused]] std::conditional_t<kScaled, StoredScale<F>, int> stored;
    if constexpr (kValues) {
      values = await_slot();
    }
    if constexpr (kKeys) {
      keys = await_slot();
      if constexpr (kScaled) {
        stored = stored_scale(keys);
      }
#pragma unroll
      for (int i = 0; i < N * kSteps * 4; ++i) {
        score[i / (kSteps * 4)][i / 4 % kSteps][i % 4] = 0;
      }
    }
#pragma unroll
    for (int quarter = 0; quarter < kGroupWarps; ++quarter) {
      if constexpr (kValues) {
        uint4 weight[N];
#pragma unroll
        for (int n = 0; n < N; ++n) {
          weight[n] = exchange_.weights[n][quarter][lane()];
        }
        add_values(mine, weight, values, quarter);
      }
      if constexpr (kKeys) {
#pragma unroll
        for (int part = quarter * kKeyParts / kGroupWarps;
             part < (quarter + 1) * kKeyParts / kGroupWarps; ++part) {
          multiply_part(score, query, keys, part);
        }
      }
    }
    if constexpr (kValues) {
      release(values);
    }
    if constexpr (kKeys) {
      release(keys);
      if constexpr (kScaled) {
        spread_scales(scales, stored);
      }
    }
  }

  // Waits for the next slot.
  [[nodiscard]] __device__ int await_slot() {
    const int slot = cursor_.slot();
    shared_.full[slot].await(cursor_.round());
    cursor_.advance(1);
    return slot;
  }

  // Adds the values of 32 tokens, in the warp's dimensions.
  template <int N>
  __device__ __forceinline__ void add_values(Sums<N>& mine, const uint4 (&weight)[N], int slot,
                                             int quarter) const {
    if constexpr (kInt4) {
      add_int4(mine, weight, slot, quarter);
    } else {
      add_bytes(mine, weight, slot, quarter);
    }
  }

  // Transposed, a lane has two dimensions of two tokens in a word of codes.
  template <int N>
  __device__ __forceinline__ void add_bytes(Sums<N>& mine, const uint4 (&weight)[N], int slot,
                                            int quarter) const {
    using Codes = ByteCodes<F>;
    constexpr int kPieces = kProducts, kRows = 32 / kPieces;  // of a load
    const std::uint32_t codes =
        place_of_codes(shared_.slots[slot], lane() % kRows, warp() * kPieces + lane() / kRows);
#pragma unroll
    for (int load = 0; load < 32 / kRows; ++load) {
      std::uint32_t value[4];  // tokens 2t.. and 2t + 8.., of 16 dimensions or of 16 tokens more
      load_transposed(value, codes + (quarter * 32 + load * kRows) * D);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const std::uint32_t low = Codes::raise(value[2 * half]);
        const std::uint32_t high = Codes::raise(value[2 * half + 1]);
        const Left a = {Codes::template widen<kEven>(low), Codes::template widen<kOdd>(low),
                        Codes::template widen<kEven>(high), Codes::template widen<kOdd>(high)};
        const bool second = (kPieces == 1 ? half : load) == 1;  // 16 tokens of the 32
#pragma unroll
        for (int n = 0; n < N; ++n) {
          mma<kProduct>(mine.out[n][kPieces == 1 ? 0 : half], a, second ? weight[n].z : weight[n].x,
                        second ? weight[n].w : weight[n].y);
        }
      }
    }
  }

  // Transposed, a lane has four dimensions of two tokens in a word of codes. Two warps
  // share them where heads have 64.
  template <int N>
  __device__ __forceinline__ void add_int4(Sums<N>& mine, const uint4 (&weight)[N], int slot,
                                           int quarter) const {
    const int piece = warp() * kProducts / 2;
    const std::uint32_t scales =
        int4_scales_at(slot, quarter) + lane() % 4 * 16 + piece * 4 * kRunTokens;
    const uint4 s = load_shared_16(scales), m = load_shared_16(scales + 2 * kRunTokens);
    const Int4Pair pairs[4] = {{s.x, m.x}, {s.y, m.y}, {s.z, m.z}, {s.w, m.w}};
    std::uint32_t value[4];
    load_transposed(value, int4_codes_at(slot, quarter) + lane() * 16 + piece * (kRunTokens * 16));
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
#pragma unroll
      for (int product = 0; product < kProducts; ++product) {
        const int shift = (kProducts == 1 ? warp() % 2 : product) * 8;
        const std::uint32_t low = value[2 * step] >> shift, high = value[2 * step + 1] >> shift;
        const Int4Pair &of_low = pairs[2 * step], &of_high = pairs[2 * step + 1];
        const Left a = {of_low.numbers(int4_codes<0>(low)), of_low.numbers(int4_codes<1>(low)),
                        of_high.numbers(int4_codes<0>(high)), of_high.numbers(int4_codes<1>(high))};
#pragma unroll
        for (int n = 0; n < N; ++n) {
          mma<kProduct>(mine.out[n][product], a, step == 1 ? weight[n].z : weight[n].x,
                        step == 1 ? weight[n].w : weight[n].y);
        }
      }
    }
  }

  // Turns scores into probabilities as Columns::soften does, and tells them to the other warps.
  template <int N>
  __device__ void soften(Sums<N>& mine, float (&score)[N][kSteps][4],
                         [[maybe_unused]] const Scales& scales) {
    const int t = lane() % 4;
    tell_largest(score);
    meet(kOwn + group_, kGroupThreads);
    float shrink[N][2];
#pragma unroll
    for (int n = 0; n < N; ++n) {
      float largest[2] = {-INFINITY, -INFINITY};
#pragma unroll
      for (const auto& of_warp : exchange_.largest) {
        const float2 two = *reinterpret_cast<const float2*>(of_warp + n * kTile + 2 * t);
        largest[0] = fmaxf(largest[0], two.x);
        largest[1] = fmaxf(largest[1], two.y);
      }
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        shrink[n][c] = raise(mine.largest[n][c], largest[c]);
        exchange_.sums[n][warp()][2 * t + c][lane() / 4] =
            soften_column(mine.largest[n][c], score[n], scales, c);
      }
      tell_weights(score[n], n);
      rescale(mine.out[n], shrink[n]);
    }
    meet(kOwn + group_, kGroupThreads);
    add_sums(mine, shrink);
  }

  // Tells the other warps the largest scores of the columns among the warp's tokens.
  template <int N>
  __device__ void tell_largest(const float (&score)[N][kSteps][4]) {
#pragma unroll
    for (int n = 0; n < N; ++n) {
      float largest[2];
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        largest[c] = fmaxf(fmaxf(score[n][0][c], score[n][0][2 + c]),
                           fmaxf(score[n][1][c], score[n][1][2 + c]));
#pragma unroll
        for (int lanes = 4; lanes < 32; lanes *= 2) {
          largest[c] = fmaxf(largest[c], __shfl_xor_sync(0xffffffffu, largest[c], lanes));
        }
      }
      if (lane() < 4) {
        *reinterpret_cast<float2*>(exchange_.largest[warp()] + n * kTile + 2 * lane()) = {
            largest[0], largest[1]};
      }
    }
  }

  [[nodiscard]] __device__ float scale_log2() const { return kScaled ? 1.0f : args_.scale_log2; }

  // Takes a tile's largest score where it passes the one before by much. Returns what sums shrink
  // by.
  __device__ float raise(float& largest, float of_tile) const {
    const float before = largest;
    of_tile *= scale_log2();
    largest = of_tile > before + kMostExponent ? of_tile : before;
    return exp2_approx(before - largest);
  }

  // Turns the lane's scores of column `c` of a tile of columns into probabilities. Returns their
  // sum.
  __device__ float soften_column(float largest, float (&score)[kSteps][4],
                                 [[maybe_unused]] const Scales& scales, int c) const {
    float added = 0;
#pragma unroll
    for (int i = 0; i < 2 * kSteps; ++i) {
      float& x = score[i / 2][i % 2 * 2 + c];
      x = exp2_approx(__fmaf_rn(x, scale_log2(), -largest));
      if constexpr (kScaled) {
        const float inverse = scales.of[i / 2][i % 2].inverse;
        added = i == 0 ? __fmul_rn(x, inverse) : __fmaf_rn(x, inverse, added);
      } else {
        added = i == 0 ? x : __fadd_rn(added, x);
      }
    }
    return added;
  }

  // Tells the other warps the weights of the warp's tokens, as operands.
  __device__ void tell_weights(const float (&x)[kSteps][4], int n) {
    exchange_.weights[n][warp()][lane()] = {
        weights_of(x[0][0], x[0][1]), weights_of(x[0][2], x[0][3]), weights_of(x[1][0], x[1][1]),
        weights_of(x[1][2], x[1][3])};
  }
  [[nodiscard]] __device__ static std::uint32_t weights_of(float x, float y) {
    return transpose_8x8(Element<kProduct>::round_pair(x, y));
  }

  __device__ static void rescale(float (&out)[kProducts][4], const float (&shrink)[2]) {
    if (__any_sync(0xffffffffu, shrink[0] != 1 || shrink[1] != 1)) {
#pragma unroll
      for (auto& sixteen : out) {
        sixteen[0] *= shrink[0];
        sixteen[1] *= shrink[1];
        sixteen[2] *= shrink[0];
        sixteen[3] *= shrink[1];
      }
    }
  }

  // Adds the sums of all warps, where the warp has a tile of columns for that.
  template <int N>
  __device__ void add_sums(Sums<N>& mine, const float (&shrink)[N][2]) const {
#pragma unroll
    for (int n = 0; n < N; ++n) {
      if (n != warp()) {
        continue;
      }
      const int column = lane() / 4;
      const float even = __shfl_sync(0xffffffffu, shrink[n][0], column / 2);
      const float odd = __shfl_sync(0xffffffffu, shrink[n][1], column / 2);
      float low[kGroupWarps], high[kGroupWarps];
#pragma unroll
      for (int i = 0; i < kGroupWarps; ++i) {
        const float2 two =
            *reinterpret_cast<const float2*>(exchange_.sums[n][i][column] + lane() % 4 * 2);
        low[i] = two.x;
        high[i] = two.y;
      }
      mine.total = __fmaf_rn(mine.total, column % 2 == 0 ? even : odd,
                             __fadd_rn(add_warps(low), add_warps(high)));
    }
  }

  // Writes what the item has of its columns. 16 threads share a column.
  template <int N>
  __device__ void finish(const Sums<N>& mine) {
    auto* const room = reinterpret_cast<float*>(exchange_.weights);
    const int g = lane() / 4, t = lane() % 4;
    if (warp() < N) {
      float total = mine.total;
      total += __shfl_xor_sync(0xffffffffu, total, 1);
      total += __shfl_xor_sync(0xffffffffu, total, 2);
      if (t == 0) {
        exchange_.totals[warp() * kTile + g] = total;
      }
    }
#pragma unroll
    for (int n = 0; n < N; ++n) {
      meet(kOwn + group_, kGroupThreads);  // everybody has read what is overwritten
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        if (thread_ < 4) {
          exchange_.all_largest[n * kTile + 2 * t + c] = mine.largest[n][c];
        }
#pragma unroll
        for (int i = 0; i < kProducts; ++i) {
          float* const to = room + (2 * t + c) * kRoomStride;
          const int product = warp() * kProducts + i;
          to[dim_of(product, 0)] = mine.out[n][i][c];
          to[dim_of(product, 1)] = mine.out[n][i][2 + c];
        }
      }
      meet(kOwn + group_, kGroupThreads);
      write(room, n * kTile + thread_ / 16);
    }
  }

  __device__ void write(const float* room, int index) const {
    const int place = column(index).place;
    if (place == kNoPartial) {
      return;
    }
    float all[D / 64][4];
#pragma unroll
    for (int i = 0; i < D / 64; ++i) {
      const float4 four = *reinterpret_cast<const float4*>(room + index % kTile * kRoomStride +
                                                           i * 64 + thread_ % 16 * 4);
      all[i][0] = four.x, all[i][1] = four.y, all[i][2] = four.z, all[i][3] = four.w;
    }
    write_column(place, exchange_.all_largest[index], exchange_.totals[index], all);
  }

  FewExchange& exchange_;
};

}  // namespace quire::attention::cuda

#endif
