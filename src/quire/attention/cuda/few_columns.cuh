// Items of few columns by one warpgroup, for items_hopper.cuh. Each warp takes 32 of a tile's 128
// tokens with the small products of fragments.cuh, S^T = K Q^T and O^T = V^T P^T. The 64 rows of a
// warpgroup's product would be empty for the most part and its steps long. Warps meet at the end of
// an item alone, where they add up what they have. Last bits differ from those that the same rows
// have among many columns.
#pragma once

#include <cstdint>

#include "quire/attention/cuda/args.h"
#include "quire/attention/cuda/copy_engine.cuh"
#include "quire/attention/cuda/fragments.cuh"
#include "quire/attention/cuda/items_supply.cuh"
#include "quire/attention/cuda/merge.cuh"
#include "quire/attention/cuda/partials.cuh"
#include "quire/attention/device_plan.h"

#if QUIRE_WGMMA

namespace quire::attention::cuda {

template <DType T, int D>
class FewColumns {
 public:
  // Prepares a warpgroup for items of few columns. With `merges` it merges the rows whose last
  // partial it brings.
  __device__ FewColumns(const AttentionArgs& args, Shared<D>& shared, const Cursor<D>& cursor,
                        int group, bool merges)
      : args_(args),
        shared_(shared),
        cursor_(cursor),
        group_(group),
        merges_(merges),
        thread_(static_cast<int>(threadIdx.x) % kGroupThreads) {}

  __device__ void attend_all(int rounds) {
    for (int i = 0; i < rounds; ++i) {
      buffer_ = i % kQueryBuffers;
      shared_.queries_full[group_][buffer_].await(i / kQueryBuffers);
      brief_ = shared_.brief[group_][buffer_];
      if (brief_.columns <= kTile) {
        attend<1>(i);
      } else {
        attend<2>(i);
      }
    }
  }

 private:
  static constexpr int kTile = 8;                      // columns of a product
  static constexpr int kMine = kTokens / kGroupWarps;  // tokens of a warp
  static constexpr int kSteps = kMine / 16;            // steps of 16 tokens
  static constexpr int kOwn = 1;                       // barrier 1 + group is the warpgroup's
  // Rows of what the warps add up, in floats: columns lie four banks apart.
  static constexpr int kStride = D + 4;
  static_assert(kGroupWarps * kTile * kStride * 4 <= kTokens * D * 2, "of one tile in a slot");

  // Sums of a lane for N tiles of columns: columns 2t and 2t + 1 of each.
  template <int N>
  struct Sums {
    float largest[N][2], sum[N][2];
    float out[N][D / 16][4];  // dimensions g and g + 8 of 16
  };

  template <int N>
  __device__ void attend(int index) {
    Sums<N> mine;
    int num_partials[N] = {};  // partials of the rows that this thread asks about; not needed soon
#pragma unroll
    for (int n = 0; n < N; ++n) {
      if (merges_) {
        const Brief::Column own = column(n * kTile + thread_ / 16);
        num_partials[n] = own.place >= 0 ? args_.work.partials[own.row].count : 0;
      }
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
    int slot = 0;  // slot of the values of the last tile
    for (int tile = brief_.first_token; tile < brief_.last_token; tile += kTokens) {
      const int first = tile + warp() * kMine;
      float score[N][kSteps][4] = {};
      std::uint32_t weight[N][kSteps][2];
      const bool seen = first < brief_.last_token && first + kMine > brief_.first_seen;
      shared_.full[cursor_.slot()].await(cursor_.round());
      if (seen) {
        multiply_keys(score);
      }
      release(cursor_.slot());
      cursor_.advance(1);
      if (seen) {
        if (first < brief_.all_begin || first + kMine > brief_.all_end) {
          hide(score, first);
        }
        soften(mine, score, weight);
      }
      slot = cursor_.slot();
      shared_.full[slot].await(cursor_.round());
      if (seen) {
        if (first < brief_.first_seen || first + kMine > brief_.last_token) {
          clear_unseen(slot, first);
        }
        add_values(mine, weight, slot);
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

  // Tells the supply that this warp has read the slot.
  __device__ void release(int slot) const {
    __syncwarp();
    if (lane() == 0) {
      shared_.free[slot].arrive();
    }
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

  // Sets scores of tokens that a column does not see to -inf.
  template <int N>
  __device__ void hide(float (&score)[N][kSteps][4], int first) const {
#pragma unroll
    for (int n = 0; n < N; ++n) {
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        const Brief::Column seen = column(n * kTile + lane() % 4 * 2 + c);
#pragma unroll
        for (int i = c; i < kSteps * 4; i += 2) {
          const int token = first + i / 4 * 16 + i % 4 / 2 * 8 + lane() / 4;
          if (token < seen.begin || token >= seen.end) {
            score[n][i / 4][i % 4] = -INFINITY;
          }
        }
      }
    }
  }

  // Turns scores into probabilities relative to the largest one that the warp has seen, as
  // operands.
  template <int N>
  __device__ void soften(Sums<N>& mine, float (&score)[N][kSteps][4],
                         std::uint32_t (&weight)[N][kSteps][2]) const {
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
        largest = fmaxf(largest * args_.scale_log2, mine.largest[n][c]);
        shrink[c] = exp2_approx(mine.largest[n][c] - largest);
        mine.largest[n][c] = largest;
        mine.sum[n][c] *= shrink[c];
#pragma unroll
        for (int step = 0; step < kSteps; ++step) {
#pragma unroll
          for (int i = c; i < 4; i += 2) {
            float& x = score[n][step][i];
            x = exp2_approx(__fmaf_rn(x, args_.scale_log2, -largest));
            mine.sum[n][c] += x;
          }
        }
      }
#pragma unroll
      for (auto& sixteen : mine.out[n]) {
        sixteen[0] *= shrink[0];
        sixteen[1] *= shrink[1];
        sixteen[2] *= shrink[0];
        sixteen[3] *= shrink[1];
      }
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        const float(&x)[4] = score[n][step];
        weight[n][step][0] = transpose_8x8(Element<T>::round_pair(x[0], x[1]));
        weight[n][step][1] = transpose_8x8(Element<T>::round_pair(x[2], x[3]));
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

  // Adds up what the warps have, in their order, where the values of the last tile and the queries
  // were. 16 threads share a column.
  template <int N>
  __device__ void finish(const Sums<N>& mine, int slot) const {
    auto* const sums = reinterpret_cast<float*>(shared_.slots[slot]);
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
          float* const to = sums + (warp() * kTile + 2 * t + c) * kStride + d * 16 + g;
          to[0] = mine.out[n][d][c];
          to[8] = mine.out[n][d][2 + c];
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
            *reinterpret_cast<const float4*>(sums + (i * kTile + within) * kStride + d + dim);
        out[0] = __fmaf_rn(from.x, scale[i], out[0]);
        out[1] = __fmaf_rn(from.y, scale[i], out[1]);
        out[2] = __fmaf_rn(from.z, scale[i], out[2]);
        out[3] = __fmaf_rn(from.w, scale[i], out[3]);
      }
    }
    if (place < 0) {
      const PartialWriter<T> writer(args_, place, largest, total);
      if (dim == 0) {
        writer.put_stats();
      }
#pragma unroll
      for (int d = 0; d < D; d += 64) {
        writer.template put_whole<4>(d + dim, all[d / 64]);
      }
      return;
    }
    write_partial(place, {largest, total}, all);
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

  [[nodiscard]] __device__ int head_of(int index) const {
    return brief_.first_head + index % (args_.heads / args_.kv_heads);
  }

  // Merges all partials of each row whose last partial this item brings. The warpgroup shares the
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

  const AttentionArgs& args_;
  Shared<D>& shared_;
  Cursor<D> cursor_;
  const int group_;
  const bool merges_;
  const int thread_;
  int buffer_ = 0;
  Brief brief_;
};

}  // namespace quire::attention::cuda

#endif
