// Items of few columns by one warpgroup, for items_hopper.cuh. Each warp takes 32 of a tile's 128
// tokens with the small products of fragments.cuh, S^T = K Q^T and O^T = V^T P^T. The 64 rows of a
// warpgroup's product would be empty for the most part and its steps long. Warps meet at the end of
// an item alone, where they add up what they have. Last bits differ from those that the same rows
// have among many columns.
#pragma once

#include <cstdint>

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
class FewColumns : private FewParts<T, F, D> {
  using Parts = FewParts<T, F, D>;
  using typename Parts::Scales;
  template <int N>
  using Queries = typename Parts::template Queries<N>;
  using Parts::args_, Parts::brief_, Parts::buffer_, Parts::cursor_, Parts::group_;
  using Parts::await_item, Parts::column, Parts::dim_of, Parts::further, Parts::hide;
  using Parts::int4_codes_at, Parts::int4_scales_at, Parts::lane, Parts::load_queries;
  using Parts::kCodes, Parts::kInt4, Parts::kKeyParts, Parts::kMine, Parts::kOwn;
  using Parts::kProduct, Parts::kScaled, Parts::kSteps, Parts::kTile;
  using Parts::merge, Parts::multiply_part, Parts::place;
  using Parts::merges_, Parts::shared_, Parts::thread_;
  using Parts::place_of_codes, Parts::release, Parts::scale_scores, Parts::spread_scales;
  using Parts::stored_scale, Parts::warp;
  using Parts::write_column;

 public:
  // Prepares a warpgroup for items of few columns. With `merges` it merges the rows whose last
  // partial it brings.
  __device__ FewColumns(const AttentionArgs& args, Shared<F, D>& shared, const Cursor<D>& cursor,
                        int group, bool merges)
      : Parts(args, shared, cursor, group, merges) {}

  __device__ void attend_all(int rounds) {
    for (int i = 0; i < rounds; ++i) {
      await_item(i);
      if (brief_.columns <= kTile) {
        attend<1>(i);
      } else {
        attend<2>(i);
      }
    }
  }

 private:
  // Rows of what the warps add up, in floats.
  static constexpr int kStride = kSumStride<F, D>;
  static_assert(kInt4 || kSumBytes<F, D> <= kSlotBytes<F, D>, "of one tile in a slot");

  // Sums of a lane for N tiles of columns: columns 2t and 2t + 1 of each.
  template <int N>
  struct Sums {
    float largest[N][2], sum[N][2];
    float out[N][D / 16][4];  // dimensions dim_of(d, 0) and dim_of(d, 1)
  };
  template <int N>
  __device__ void attend(int index) {
    Sums<N> mine;
    int num_partials[N] = {};  // partials of the rows that this thread asks about; not needed soon
    Parts::count_partials(num_partials);
#pragma unroll
    for (int n = 0; n < N; ++n) {
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        mine.largest[n][c] = kNothing;
        mine.sum[n][c] = 0;
      }
#pragma unroll
      for (auto& sixteen : mine.out[n]) {
        sixteen[0] = sixteen[1] = sixteen[2] = sixteen[3] = 0;
      }
    }
    [[maybe_unused]] Queries<N> query;
    if constexpr (kCodes) {
      load_queries(query);
    }
    int slot = 0;  // slot of the values of the last tile
    for (int tile = brief_.first_token; tile < brief_.last_token; tile += kTokens) {
      const int first = tile + warp() * kMine;
      float score[N][kSteps][4] = {};
      std::uint32_t weight[N][kSteps][2];
      const bool seen = first < brief_.last_token && first + kMine > brief_.first_seen;
      shared_.full[cursor_.slot()].await(cursor_.round());
      [[maybe_unused]] Scales scales;
      if (seen) {
        if constexpr (kScaled) {
          spread_scales(scales, stored_scale(cursor_.slot()));
        }
        if constexpr (kCodes) {
#pragma unroll
          for (int part = 0; part < kKeyParts; ++part) {
            multiply_part(score, query, cursor_.slot(), part);
          }
        } else {
          multiply_keys(score);
        }
      }
      release(cursor_.slot());
      cursor_.advance(1);
      if (seen) {
        if constexpr (kScaled) {
          scale_scores(score, scales);
        }
        if (first < brief_.all_begin || first + kMine > brief_.all_end) {
          hide(score, tile);
        }
        soften(mine, score, weight, scales);
      }
      slot = cursor_.slot();
      shared_.full[slot].await(cursor_.round());
      if (seen) {
        if constexpr (kInt4) {
          add_int4(mine, weight, slot);
        } else if constexpr (kScaled) {
          add_codes(mine, weight, slot);
        } else {
          if (first < brief_.first_seen || first + kMine > brief_.last_token) {
            clear_unseen(slot, first);
          }
          add_values(mine, weight, slot);
        }
      }
      if (tile + kTokens < brief_.last_token) {
        release(slot);
      }
      cursor_.advance(1);
    }
    finish(mine, slot);
    publish_shared();
    release(slot);
    if (merges_) {
      merge(index, num_partials);
    }
    shared_.queries_free[group_][buffer_].arrive();
  }

  template <int N>
  __device__ void multiply_keys(float (&score)[N][kSteps][4]) const {
    const std::uint32_t keys =
        place(shared_.slots[cursor_.slot()], warp() * kMine + lane() % 16, lane() / 16);
    const std::uint32_t queries =
        place(shared_.queries[group_], buffer_ * kFewColumnsOfOneKernel + lane() % 8, lane() / 8);
#pragma unroll
    for (int d = 0; d < D / 32; ++d) {
      std::uint32_t query[N][4];
#pragma unroll
      for (int n = 0; n < N; ++n) {
        load_matrices(query[n],
                      further(queries, d * 4) + d / 2 * kGroupColumns * 128 + n * kTile * 128);
      }
#pragma unroll
      for (int half = 0; half < 2; ++half) {
#pragma unroll
        for (int step = 0; step < kSteps; ++step) {
          std::uint32_t key[4];
          load_matrices(key,
                        further(keys, d * 4 + half * 2) + d / 2 * kTokens * 128 + step * 16 * 128);
#pragma unroll
          for (int n = 0; n < N; ++n) {
            mma<T>(score[n][step], {key[0], key[1], key[2], key[3]}, query[n][2 * half],
                   query[n][2 * half + 1]);
          }
        }
      }
    }
  }

  // Transposed, a lane has four dimensions of two tokens in a word of codes.
  template <int N>
  __device__ void add_int4(Sums<N>& mine, const std::uint32_t (&weight)[N][kSteps][2],
                           int slot) const {
    const std::uint32_t values = int4_codes_at(slot, warp()) + lane() * 16;
    const std::uint32_t scales = int4_scales_at(slot, warp()) + lane() % 4 * 16;
#pragma unroll
    for (int d = 0; d < D / 32; ++d) {
      // The lane has eight tokens.
      const uint4 s = load_shared_16(scales + d * 128), m = load_shared_16(scales + d * 128 + 64);
      const Int4Pair pairs[4] = {{s.x, m.x}, {s.y, m.y}, {s.z, m.z}, {s.w, m.w}};
      std::uint32_t value[4];
      load_transposed(value, values + d * (kRunTokens * 16));
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        // Four dimensions of tokens 2t.. and 2t + 8.. of the step.
        const Int4Pair same_low[4] = {pairs[2 * step], pairs[2 * step], pairs[2 * step],
                                      pairs[2 * step]};
        const Int4Pair same_high[4] = {pairs[2 * step + 1], pairs[2 * step + 1],
                                       pairs[2 * step + 1], pairs[2 * step + 1]};
        const uint4 low = widen_int4(value[2 * step], same_low);
        const uint4 high = widen_int4(value[2 * step + 1], same_high);
#pragma unroll
        for (int n = 0; n < N; ++n) {
          mma<kProduct>(mine.out[n][2 * d], {low.x, low.y, high.x, high.y}, weight[n][step][0],
                        weight[n][step][1]);
          mma<kProduct>(mine.out[n][2 * d + 1], {low.z, low.w, high.z, high.w}, weight[n][step][0],
                        weight[n][step][1]);
        }
      }
    }
  }

  // Turns scores into probabilities relative to the largest one that the warp has seen, as
  // operands.
  template <int N>
  __device__ void soften(Sums<N>& mine, float (&score)[N][kSteps][4],
                         std::uint32_t (&weight)[N][kSteps][2],
                         [[maybe_unused]] const Scales& scales) const {
    const float scale_log2 = kScaled ? 1.0f : args_.scale_log2;
#pragma unroll
    for (int n = 0; n < N; ++n) {
      float shrink[2];
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        float largest = -INFINITY;
#pragma unroll
        for (int step = 0; step < kSteps; ++step) {
          largest = fmaxf(largest, fmaxf(score[n][step][c], score[n][step][2 + c]));
        }
#pragma unroll
        for (int lanes = 4; lanes < 32; lanes *= 2) {
          largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, lanes));
        }
        largest = fmaxf(largest * scale_log2, mine.largest[n][c]);
        shrink[c] = exp2_approx(mine.largest[n][c] - largest);
        mine.largest[n][c] = largest;
        mine.sum[n][c] *= shrink[c];
#pragma unroll
        for (int step = 0; step < kSteps; ++step) {
#pragma unroll
          for (int i = c; i < 4; i += 2) {
            float& x = score[n][step][i];
            x = exp2_approx(__fmaf_rn(x, scale_log2, -largest));
            if constexpr (kScaled) {
              mine.sum[n][c] = __fmaf_rn(x, scales.of[step][i / 2].inverse, mine.sum[n][c]);
            } else {
              mine.sum[n][c] += x;
            }
          }
        }
      }
      if (__any_sync(0xffffffffu, shrink[0] != 1 || shrink[1] != 1)) {
#pragma unroll
        for (auto& sixteen : mine.out[n]) {
          sixteen[0] *= shrink[0];
          sixteen[1] *= shrink[1];
          sixteen[2] *= shrink[0];
          sixteen[3] *= shrink[1];
        }
      }
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        const float(&x)[4] = score[n][step];
        weight[n][step][0] = transpose_8x8(Element<kProduct>::round_pair(x[0], x[1]));
        weight[n][step][1] = transpose_8x8(Element<kProduct>::round_pair(x[2], x[3]));
      }
    }
  }

  // Zeroes the values of this warp's tokens that no row sees. They may be anything, but must not be
  // NaN.
  __device__ void clear_unseen(int slot, int first) const {
    for (int at = lane(); at < kMine * (D / 8); at += 32) {
      const int row = at / (D / 8), piece = at % (D / 8), token = first + row;
      if (token < brief_.first_seen || token >= brief_.last_token) {
        std::uint16_t* const tile = shared_.slots[slot] + piece / 8 * kTokens * 64;
        *reinterpret_cast<uint4*>(tile + (warp() * kMine + row) * 64 + piece % 8 * 8) = {};
      }
    }
    publish_shared();
    __syncwarp();
  }

  template <int N>
  __device__ void add_values(Sums<N>& mine, const std::uint32_t (&weight)[N][kSteps][2],
                             int slot) const {
    const std::uint32_t values =
        place(shared_.slots[slot], warp() * kMine + lane() % 8 + lane() / 16 * 8, lane() / 8 % 2);
#pragma unroll
    for (int d = 0; d < D / 16; ++d) {
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        std::uint32_t value[4];
        load_transposed(value, further(values, d * 2) + d / 4 * kTokens * 128 + step * 16 * 128);
#pragma unroll
        for (int n = 0; n < N; ++n) {
          mma<T>(mine.out[n][d], {value[0], value[1], value[2], value[3]}, weight[n][step][0],
                 weight[n][step][1]);
        }
      }
    }
  }

  // Transposed, a lane has two dimensions of two tokens in a word of codes.
  template <int N>
  __device__ void add_codes(Sums<N>& mine, const std::uint32_t (&weight)[N][kSteps][2],
                            int slot) const {
    const std::uint32_t values =
        place_of_codes(shared_.slots[slot], warp() * kMine + lane() % 16, lane() / 16);
#pragma unroll
    for (int d = 0; d < D / 16; d += 2) {
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        std::uint32_t value[4];  // tokens 2t.. and 2t + 8.. of 16 dimensions, then of 16 more
        load_transposed(value, further(values, d) + step * 16 * D);
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          using Codes = ByteCodes<F>;
          const std::uint32_t low = Codes::raise(value[2 * half]);
          const std::uint32_t high = Codes::raise(value[2 * half + 1]);
          const Left a = {Codes::template widen<kEven>(low), Codes::template widen<kOdd>(low),
                          Codes::template widen<kEven>(high), Codes::template widen<kOdd>(high)};
#pragma unroll
          for (int n = 0; n < N; ++n) {
            mma<kProduct>(mine.out[n][d + half], a, weight[n][step][0], weight[n][step][1]);
          }
        }
      }
    }
  }

  // Returns the place of the sum of a dimension for a column of a warp. Columns lie in different
  // banks, by the stride or, where it has no room for that, by the dimension.
  [[nodiscard]] static __device__ int sum_at(int column, int dim) {
    return column * kStride + (kScaled ? dim ^ column / 2 % 4 * 8 : dim);
  }

  // Adds up what the warps have, in their order, where the values of the last tile and the queries
  // were. Over int4 there is room beside the ring. 16 threads share a column.
  template <int N>
  __device__ void finish(const Sums<N>& mine, int slot) const {
    auto* const sums = reinterpret_cast<float*>(
        shared_.slots[kInt4 ? group_ * slots_of<F, D>(kSumBytes<F, D>) : slot]);
    auto* const stats =
        reinterpret_cast<float2*>(shared_.queries[group_] + buffer_ * kFewColumnsOfOneKernel * 64);
    const int g = lane() / 4, t = lane() % 4;
#pragma unroll
    for (int n = 0; n < N; ++n) {
      meet(kOwn + group_, kGroupThreads);  // everybody has read what is overwritten
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        float sum = mine.sum[n][c];
#pragma unroll
        for (int lanes = 4; lanes < 32; lanes *= 2) {
          sum += __shfl_xor_sync(0xffffffffu, sum, lanes);
        }
        if (g == 0) {
          stats[warp() * kTile + 2 * t + c] = {mine.largest[n][c], sum};
        }
#pragma unroll
        for (int d = 0; d < D / 16; ++d) {
          const int column = warp() * kTile + 2 * t + c;
          float* const to = sums + sum_at(column, dim_of(d, 0));
          if constexpr (kScaled) {
            *reinterpret_cast<float2*>(to) = {mine.out[n][d][c], mine.out[n][d][2 + c]};
          } else {
            to[0] = mine.out[n][d][c];
            to[dim_of(d, 1) - dim_of(d, 0)] = mine.out[n][d][2 + c];
          }
        }
      }
      meet(kOwn + group_, kGroupThreads);
      write(sums, stats, n * kTile + thread_ / 16);
    }
  }

  __device__ void write(const float* sums, const float2* stats, int index) const {
    const int place = column(index).place, within = index % kTile, dim = thread_ % 16 * 4;
    if (place == kNoPartial) {
      return;
    }
    float largest = kNothing, total = 0, scale[kGroupWarps];
#pragma unroll
    for (int i = 0; i < kGroupWarps; ++i) {
      largest = fmaxf(largest, stats[i * kTile + within].x);
    }
#pragma unroll
    for (int i = 0; i < kGroupWarps; ++i) {
      scale[i] = exp2_approx(stats[i * kTile + within].x - largest);
      total += stats[i * kTile + within].y * scale[i];
    }
    float all[D / 64][4];
#pragma unroll
    for (int d = 0; d < D; d += 64) {
      float(&out)[4] = all[d / 64];
      out[0] = out[1] = out[2] = out[3] = 0;
#pragma unroll
      for (int i = 0; i < kGroupWarps; ++i) {
        const float4 from =
            *reinterpret_cast<const float4*>(sums + sum_at(i * kTile + within, d + dim));
        out[0] = __fmaf_rn(from.x, scale[i], out[0]);
        out[1] = __fmaf_rn(from.y, scale[i], out[1]);
        out[2] = __fmaf_rn(from.z, scale[i], out[2]);
        out[3] = __fmaf_rn(from.w, scale[i], out[3]);
      }
    }
    write_column(place, largest, total, all);
  }
};

}  // namespace quire::attention::cuda

#endif
