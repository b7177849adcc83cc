// 64 columns of an item by one warpgroup, for items_hopper.cuh, with the products of wgmma.cuh. An
// item of many columns has two such warpgroups. An item of few takes one by itself, to the bits
// that its rows have among many. A warpgroup issues the scores of tile i before the values of tile
// i - 1 and computes its softmax beside the second one. Those with the same tiles take turns at
// issuing: the products of one run while the other computes (FlashAttention-3, Shah et al., arXiv
// 2407.08608). Work between a turn and its first product idles the tensor core: so slots, and with
// them descriptors, are known to be uniform.
//
// Codes are widened while products run. The first warpgroup widens keys a tile ahead, right after
// it has issued its products; the second one widens values. Few columns over codes have kernels of
// their own that give the same bits (few_like_many.cuh).
//
// A tile of 128 tokens, both warpgroups, head size 128: 2048 cycles of the tensor core, 1024 of the
// special function unit for the exponentials.
#pragma once

#include <climits>
#include <cmath>
#include <cstdint>

#include "quire/attention/cuda/args.h"
#include "quire/attention/cuda/code_tiles.cuh"
#include "quire/attention/cuda/codes.cuh"
#include "quire/attention/cuda/copy_engine.cuh"
#include "quire/attention/cuda/fragments.cuh"
#include "quire/attention/cuda/items_supply.cuh"
#include "quire/attention/cuda/merge.cuh"
#include "quire/attention/cuda/partials.cuh"
#include "quire/attention/cuda/wgmma.cuh"
#include "quire/attention/device_plan.h"
#include "quire/kernels/cuda/element.cuh"

#if QUIRE_WGMMA

namespace quire::attention::cuda {

// State of one of a lane's two columns so far.
struct Column {
  int place;  // place of its partial, or kNoPartial
  float largest, sum;
};

// The 64 columns of a warpgroup: a warp has 16, a lane columns g and g + 8 of them. With `kMany`
// both warpgroups have the same tiles. Without, a warpgroup's columns are few, and it merges the
// rows whose last partial it brings if `merges`.
template <DType T, KVFormat F, int D, bool kMany>
class Columns {
  static constexpr bool kCodes = F != KVFormat::kPlain;
  static constexpr bool kScaled = kTokenScales<F>;
  static constexpr bool kInt4 = F == KVFormat::kInt4;
  static constexpr DType kProduct = query_dtype(T, F);
  static_assert(kMany || !kCodes);

 public:
  // Prepares a warpgroup. `both`: without kMany it merges rows; with kMany its tiles are those of
  // the other CTA of a pair.
  __device__ Columns(const AttentionArgs& args, Shared<F, D>& shared, const Cursor<D>& cursor,
                     int group, bool both)
      : args_(args),
        shared_(shared),
        stored_(cursor),
        group_(group),
        merges_(!kMany && both),
        paired_(kMany && both),
        thread_(static_cast<int>(threadIdx.x) % kGroupThreads) {
    if (kMany && group_ == 1) {
      pass(kTurn, kGroups * kGroupThreads);
    }
  }

  __device__ void attend_all(int rounds) {
    widen_ahead(0, rounds > 0);
    for (int i = 0; i < rounds; ++i) {
      attend(i, i + 1 < rounds);
    }
  }

 private:
  // Computes the item of round `index`. With `more` another one follows.
  __device__ void attend(int index, bool more) {
    start(index);
    float score[kTokens / 8][4];
    Left weight[kTokens / 16] = {};
    float shrink[2] = {1, 1};
    int first = first_token_;
    await_keys();
    issue_scores(score);
    widen_ahead(1, first + kTokens < last_token_ || more);
    await_products<0>();
    end_scores(score);
    if (busy()) {
      soften(score, first, shrink);
      pack(weight, score);
    }
    advance();
    for (first += kTokens; first < last_token_; first += kTokens) {
      await_keys();
      if (kMany) {
        meet(kTurn + group_, kGroups * kGroupThreads);
      }
      issue_scores(score);
      await_values(first - kTokens);
      issue_values(weight);
      if (kMany) {
        pass(kTurn + 1 - group_, kGroups * kGroupThreads);
      }
      widen_ahead(1, first + kTokens < last_token_ || more);
      await_products<1>();
      end_scores(score);
      if (busy()) {
        soften(score, first, shrink);
        if (kMany && thread_ % 32 == 0) {
          // The compiler may not move this store behind the wait, nor what its value is made of:
          // else it waits for both products first.
          *static_cast<volatile float*>(&shared_.sums[group_][thread_ / 32]) =
              column_[0].sum + column_[1].sum;
        }
      }
      await_products<0>();
      end_values();
      if (busy()) {
        pack(weight, score);
        rescale(shrink);
      }
      advance();
    }
    shared_.queries_free[group_][buffer_].arrive();
    await_values(first - kTokens);
    issue_values(weight);
    await_products<0>();
    end_values();
    if (busy()) {
      finish();
    }
    if (merges_) {
      merge(index);
    }
  }

  // Waits for the keys of the tile at hand. Stored tiles have a cursor. Over codes of many columns
  // `tile_` counts the tiles of numbers; keys and values have two each.
  __device__ void await_keys() {
    if constexpr (kCodes) {
      shared_.wide_full[tile_ % 2].await(tile_ / 2);
    } else {
      shared_.full[stored_.slot()].await(stored_.round());
    }
  }
  [[nodiscard]] __device__ std::uint32_t keys() const {
    if constexpr (kCodes) {
      return wide(tile_ % 2);
    } else {
      return shared_address(shared_.slots[stored_.slot()]);
    }
  }
  // Returns the address of the values of the tile before.
  [[nodiscard]] __device__ std::uint32_t values() const {
    if constexpr (kCodes) {
      return wide(2 + (tile_ - 1) % 2);
    } else {
      return shared_address(shared_.slots[stored_.slot_before()]);
    }
  }
  __device__ void advance() {
    if constexpr (kCodes) {
      ++tile_;
    } else {
      stored_.advance(2);
    }
  }
  [[nodiscard]] __device__ std::uint32_t wide(int tile) const {
    return shared_address(shared_.slots[0]) + tile * kTokens * D * 2;
  }
  [[nodiscard]] __device__ const TileScales& told() const {
    return shared_.told[tile_ % kToldTiles];
  }

  // Widens codes. The first warpgroup widens the keys `ahead` tiles of the one at hand, if there
  // are any, and the second one the values of that.
  __device__ void widen_ahead([[maybe_unused]] int ahead, [[maybe_unused]] bool more_keys) {
    if constexpr (kCodes) {
      if (group_ == 0 && more_keys) {
        widen(0, tile_ + ahead);
      } else if (group_ == 1 && ahead > 0) {
        widen(2, tile_);
      }
    }
  }
  // Widens tile number `tile` of keys, with first = 0, or of values, with 2.
  __device__ void widen(int first, int tile) {
    const int slot = stored_.slot(), to = first + tile % 2;
    shared_.full[slot].await(stored_.round());
    shared_.wide_free[to].await(tile / 2 + 1);
    widen_tile<F, D>(shared_address(shared_.slots[slot]), wide(to), first == 0, thread_);
    if (first == 0) {
      tell_scales(slot, tile % kToldTiles);
    }
    publish_shared();
    release(shared_.free[slot], true);
    if (thread_ % 32 == 0) {
      shared_.wide_full[to].arrive();
    }
    stored_.advance(1);
  }
  __device__ void tell_scales([[maybe_unused]] int slot, [[maybe_unused]] int to) {
    if constexpr (kScaled) {
      shared_.told[to].tell(
          thread_, scale_in_slot<F, D>(args_, shared_, slot, thread_).with(args_.scale_log2));
    }
  }

  // Barriers of a part of the CTA: 1 + group for one warpgroup, and whose turn it is.
  static constexpr int kOwn = 1, kTurn = kOwn + kGroups;

  // Tells whether the warp has columns. A warp without columns, where items have few, only takes
  // part in products, as all warps do.
  [[nodiscard]] __device__ bool busy() const { return kMany || busy_; }
  // Tells whether a warp has no columns for the second half. Then it has nothing to do there
  // either.
  [[nodiscard]] __device__ bool empty(int half) const { return !kMany && half == 1 && !both_; }

  // Returns the number, in the warpgroup, of one of the lane's columns.
  [[nodiscard]] __device__ int index_of(int half) const {
    return thread_ / 32 * 16 + thread_ % 32 / 4 + 8 * half - skipped();
  }
  // Returns the rows of the products before the first column. Few columns are one warp's; those of
  // the two warpgroups should not be warps of the same quarter of the multiprocessor.
  [[nodiscard]] __device__ int skipped() const { return !kMany && group_ == 1 ? 16 : 0; }
  [[nodiscard]] __device__ Brief::Column column_of(int half) const {
    const int index = index_of(half);
    if (!kMany && (index < 0 || index >= kFewColumnsOfOneKernel)) {
      return {0, INT_MAX, kNoPartial, kNoRow};
    }
    return shared_.columns[group_][buffer_ * kFewColumnsOfOneKernel + index];
  }

  __device__ void start(int index) {
    const int buffers = kMany ? 1 : kQueryBuffers;
    buffer_ = index % buffers;
    shared_.queries_full[group_][buffer_].await(index / buffers);
    const Brief& brief = shared_.brief[group_][buffer_];
    first_token_ = uniform(brief.first_token);
    first_seen_ = uniform(brief.first_seen);
    last_token_ = uniform(brief.last_token);
    first_head_ = brief.first_head;
    all_begin_ = uniform(brief.all_begin);
    all_end_ = uniform(brief.all_end);
    bool there = false;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const Brief::Column told = column_of(half);
      column_[half] = {told.place, kNothing, 0};
      if (!kMany && told.place >= 0) {
        rows_[half] = told.row;
        num_partials_[half] = args_.work.partials[told.row].count;  // not needed soon
      }
      there = there || told.place != kNoPartial;
    }
    busy_ = __any_sync(0xffffffffu, there);
    both_ = __any_sync(0xffffffffu, column_[1].place != kNoPartial);
#pragma unroll
    for (auto& tile : out_) {
      tile[0] = tile[1] = tile[2] = tile[3] = 0;
    }
  }

  // Queues the products of the queries with all tokens of a tile.
  __device__ void issue_scores(float (&score)[kTokens / 8][4]) {
    // Around few columns lie rows that belong to others: what comes of them is not used.
    const std::uint32_t q = shared_address(shared_.queries[group_]) +
                            (buffer_ * kFewColumnsOfOneKernel - skipped()) * 128;
    const std::uint32_t keys = this->keys();
    settle(score);
    begin_products();
#pragma unroll
    for (int k = 0; k < D / 16; ++k) {
      multiply<kProduct>(score, describe(q + k / 4 * kGroupColumns * 128 + k % 4 * 32, 16, 1024),
                         describe(keys + k / 4 * kTokens * 128 + k % 4 * 32, 16, 1024), k > 0);
    }
    end_products();
  }

  __device__ void end_scores(float (&score)[kTokens / 8][4]) {
    settle(score);
    if constexpr (kCodes) {
      release(shared_.wide_free[tile_ % 2], false);
    } else {
      release(shared_.free[stored_.slot()], true);
    }
  }

  // Issues the products of the tile before the one at hand.
  __device__ void issue_values(const Left (&weight)[kTokens / 16]) {
    const std::uint32_t values = this->values();
    settle(out_);
    begin_products();
#pragma unroll
    for (int k = 0; k < kTokens / 16; ++k) {
      add_product<kProduct>(out_, weight[k], describe(values + k * 16 * 128, kTokens * 128, 1024));
    }
    end_products();
  }

  __device__ void end_values() {
    settle(out_);
    if constexpr (kCodes) {
      release(shared_.wide_free[2 + (tile_ - 1) % 2], false);
    } else {
      release(shared_.free[stored_.slot_before()], true);
    }
  }

  // Waits until values from token `first` on are there. Zeroes those of tokens that no row sees, or
  // leaves codes, which are always finite.
  __device__ void await_values(int first) {
    if constexpr (kCodes) {
      shared_.wide_full[2 + (tile_ - 1) % 2].await((tile_ - 1) / 2);
    } else {
      const int slot = stored_.slot_before();
      shared_.full[slot].await(stored_.round_before());
      if (first < first_seen_ || first + kTokens > last_token_) {
        clear_unseen(shared_.slots[slot], first);
      }
    }
  }
  __device__ void clear_unseen(std::uint16_t* values, int first) const {
    for (int at = thread_; at < kTokens * (D / 8); at += kGroupThreads) {
      const int token = first + at / 8 % kTokens;
      if (token < first_seen_ || token >= last_token_) {
        *reinterpret_cast<uint4*>(values + at * 8) = {};
      }
    }
    publish_shared();
    meet(kOwn + group_, kGroupThreads);
  }

  // Tells the supply that this warp has read the buffer. With `fed` it is filled for both CTAs of a
  // pair.
  __device__ void release(PhaseBarrier& free, bool fed) const {
    __syncwarp();
    if (thread_ % 32 == 0) {
      free.arrive();
      if (kMany && paired_ && fed) {
        free.arrive_at_other();
      }
    }
  }

  // Turns scores into probabilities relative to the largest one so far, or to one that it exceeds
  // by kMostExponent at most. So few tiles make what was summed before shrink (FlashAttention-4).
  __device__ void soften(float (&score)[kTokens / 8][4], int first, float (&shrink)[2]) {
    const float scale_log2 = kScaled ? 1.0f : args_.scale_log2;
    if constexpr (kScaled) {
      scale_scores(score);
    }
    if (first < all_begin_ || first + kTokens > all_end_) {
      hide(score, first);
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if (empty(half)) {
        break;
      }
      Column& mine = column_[half];
      float low = score[0][2 * half], high = score[0][2 * half + 1];
#pragma unroll
      for (int n = 1; n < kTokens / 8; ++n) {
        low = fmaxf(low, score[n][2 * half]);
        high = fmaxf(high, score[n][2 * half + 1]);
      }
      float largest = fmaxf(low, high);
      largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, 1));
      largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, 2));
      largest *= scale_log2;
      largest = largest > mine.largest + kMostExponent ? largest : mine.largest;
      shrink[half] = exp2_approx(mine.largest - largest);
      mine.largest = largest;
      low = mine.sum * shrink[half];
      high = 0;
#pragma unroll
      for (int n = 0; n < kTokens / 8; ++n) {
        float& x = score[n][2 * half];
        float& y = score[n][2 * half + 1];
        x = exp2_approx(__fmaf_rn(x, scale_log2, -largest));
        y = exp2_approx(__fmaf_rn(y, scale_log2, -largest));
        if constexpr (!kCodes) {
          low += x;
          high += y;
        }
      }
      mine.sum = kCodes ? __fmaf_rn(mine.sum, shrink[half], sum_of(score, half)) : low + high;
    }
  }

  // Adds up the probabilities of a column over codes that the lane has. The order is that of few
  // columns, whose tokens four warps share.
  [[nodiscard]] __device__ float sum_of(const float (&weight)[kTokens / 8][4], int half) const {
    float low[kGroupWarps], high[kGroupWarps];
#pragma unroll
    for (int n = 0; n < kTokens / 8; ++n) {
      const float x = weight[n][2 * half], y = weight[n][2 * half + 1];
      float &even = low[n / 4], &odd = high[n / 4];
      if constexpr (kScaled) {
        const float2 inverse = of_tokens(told().inverse, n);
        even = n % 4 == 0 ? __fmul_rn(x, inverse.x) : __fmaf_rn(x, inverse.x, even);
        odd = n % 4 == 0 ? __fmul_rn(y, inverse.y) : __fmaf_rn(y, inverse.y, odd);
      } else {
        even = n % 4 == 0 ? x : __fadd_rn(even, x);
        odd = n % 4 == 0 ? y : __fadd_rn(odd, y);
      }
    }
    return __fadd_rn(add_warps(low), add_warps(high));
  }

  // Returns the numbers that a tile has for a lane's tokens n * 8 + c, c = 0, 1.
  [[nodiscard]] __device__ float2 of_tokens(const float (&all)[kTokens], int n) const {
    return *reinterpret_cast<const float2*>(all + n * 8 + thread_ % 4 * 2);
  }
  // Turns products into exponents of 2.
  __device__ void scale_scores(float (&score)[kTokens / 8][4]) const {
#pragma unroll
    for (int n = 0; n < kTokens / 8; ++n) {
      const float2 factor = of_tokens(told().score, n), term = of_tokens(told().exponent, n);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        score[n][2 * half] = __fmaf_rn(score[n][2 * half], factor.x, term.x);
        score[n][2 * half + 1] = __fmaf_rn(score[n][2 * half + 1], factor.y, term.y);
      }
    }
  }

  // Returns the token of a lane's score `c` of products `n`, behind those of the lanes before.
  // Tiles of int4 have the order in which codes lie.
  [[nodiscard]] static constexpr int token_of(int n, int c) {
    return kInt4 ? n / 4 * kRunTokens + n % 4 * 2 + c : n * 8 + c;
  }

  // Sets scores of tokens that a column does not see to -inf.
  __device__ void hide(float (&score)[kTokens / 8][4], int first) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if (empty(half)) {
        break;
      }
      // Token token_of(n, c) of this lane is seen where begin <= it < end.
      const Brief::Column seen = column_of(half);
      const int mine = first + thread_ % 4 * (kInt4 ? 8 : 2);
      const int begin = seen.begin - mine, end = seen.end - mine;
#pragma unroll
      for (int n = 0; n < kTokens / 8; ++n) {
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          if (const int token = token_of(n, c); token < begin || token >= end) {
            score[n][2 * half + c] = -INFINITY;
          }
        }
      }
    }
  }

  // Packs weights of 16 tokens each as operands.
  __device__ static void pack(Left (&to)[kTokens / 16], const float (&weight)[kTokens / 8][4]) {
#pragma unroll
    for (int k = 0; k < kTokens / 16; ++k) {
      to[k] = {Element<kProduct>::round_pair(weight[2 * k][0], weight[2 * k][1]),
               Element<kProduct>::round_pair(weight[2 * k][2], weight[2 * k][3]),
               Element<kProduct>::round_pair(weight[2 * k + 1][0], weight[2 * k + 1][1]),
               Element<kProduct>::round_pair(weight[2 * k + 1][2], weight[2 * k + 1][3])};
    }
  }

  __device__ void rescale(const float (&shrink)[2]) {
    if (!__any_sync(0xffffffffu, shrink[0] != 1 || shrink[1] != 1)) {
      return;
    }
#pragma unroll
    for (auto& tile : out_) {
      tile[0] *= shrink[0];
      tile[1] *= shrink[0];
      tile[2] *= shrink[1];
      tile[3] *= shrink[1];
    }
  }

  __device__ void finish() const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if (empty(half)) {
        break;
      }
      float sum = column_[half].sum;
      sum += __shfl_xor_sync(0xffffffffu, sum, 1);
      sum += __shfl_xor_sync(0xffffffffu, sum, 2);
      const int place = column_[half].place;
      if (__any_sync(0xffffffffu, place < 0 && place != kNoPartial)) {
        write_whole(half, sum);
      }
      if (__any_sync(0xffffffffu, place >= 0)) {
        write_partial(half, sum);
      }
    }
  }

  // Writes those of the warp's columns that nothing is merged with.
  __device__ void write_whole(int half, float sum) const {
    const int t = thread_ % 4;
    const Column& mine = column_[half];
    const bool whole = mine.place < 0 && mine.place != kNoPartial;
    const PartialWriter<T> writer(args_, whole ? mine.place : ~0, mine.largest, sum);
    if (whole && t == 0) {
      writer.put_stats();
    }
#pragma unroll
    for (int d = 0; d < D / 8; d += 4) {
      float row[8];
      gather(row, half, d, t);
      if (whole) {
        writer.template put_whole<8>((d + t) * 8, row);
      }
    }
  }

  // Writes the other columns, in fp16: partials take as long to leave a multiprocessor as they have
  // bytes.
  __device__ void write_partial(int half, float sum) const {
    const int t = thread_ % 4;
    const Column& mine = column_[half];
    float most = 0;
#pragma unroll
    for (const auto& tile : out_) {
      most = fmaxf(most, fmaxf(fabsf(tile[2 * half]), fabsf(tile[2 * half + 1])));
    }
    most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 1));
    most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 2));
    const PartialScale scale = scale_of_partial(most);
    const bool there = mine.place >= 0;
    const PartialWriter<T> writer(args_, there ? mine.place : 0, mine.largest + scale.exponent,
                                  sum * scale.factor);
    if (there && t == 0) {
      writer.put_stats();
    }
#pragma unroll
    for (int d = 0; d < D / 8; d += 4) {
      std::uint32_t words[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        words[i] = Element<DType::kFloat16>::round_pair(out_[d + i][2 * half] * scale.factor,
                                                        out_[d + i][2 * half + 1] * scale.factor);
      }
      transpose(words, t);
      if (there) {
        writer.put_halves((d + t) * 8, words);
      }
    }
  }

  // Merges all partials of each row whose last partial this item brings. A warpgroup shares the
  // rows of an item.
  __device__ void merge(int index) {
    int(&merging)[kFewColumnsOfOneKernel] = shared_.merging[group_][index % 2];
    if (busy()) {
      __threadfence();
      __syncwarp();
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int column = index_of(half);
      if (thread_ % 4 == 0 && column >= 0 && column < kFewColumnsOfOneKernel) {
        const int head = first_head_ + column % (args_.heads / args_.kv_heads);
        const bool last = column_[half].place >= 0 &&
                          is_last_partial(args_, rows_[half], head, num_partials_[half]);
        merging[column] = last ? rows_[half] : kNoRow;
      }
    }
    meet(kOwn + group_, kGroupThreads);
#pragma unroll 1
    for (int column = thread_ / 32; column < kFewColumnsOfOneKernel; column += kGroupWarps) {
      if (const int row = merging[column]; row != kNoRow) {
        merge_partials<T, D, true>(args_, args_.work.partials[row], row,
                                   first_head_ + column % (args_.heads / args_.kv_heads), out_);
      }
    }
  }

  // Gathers values over four lanes. They hold two dimensions each of four tiles of eight; lane t
  // gets tile first + t whole.
  __device__ void gather(float (&row)[8], int half, int first, int t) const {
#pragma unroll
    for (int step = 0; step < 4; ++step) {
      // Lane t gives what lane t ^ step wants, and gets dimensions 2 * (t ^ step) of its tile.
      const int other = t ^ step;
      float x[2];
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        float mine = 0;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          mine = other == i ? out_[first + i][2 * half + c] : mine;
        }
        x[c] = __shfl_xor_sync(0xffffffffu, mine, step);
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        row[2 * i] = other == i ? x[0] : row[2 * i];
        row[2 * i + 1] = other == i ? x[1] : row[2 * i + 1];
      }
    }
  }

  // Transposes words over four lanes: word i of lane t becomes word t of lane i.
  __device__ static void transpose(std::uint32_t (&words)[4], int t) {
#pragma unroll
    for (int step = 1; step < 4; step *= 2) {
      const bool up = (t & step) != 0;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if ((i & step) == 0) {
          const std::uint32_t low = words[i], high = words[i + step];
          const std::uint32_t other = __shfl_xor_sync(0xffffffffu, up ? low : high, step);
          words[i] = up ? other : low;
          words[i + step] = up ? high : other;
        }
      }
    }
  }

  const AttentionArgs& args_;
  Shared<F, D>& shared_;
  Cursor<D> stored_;
  const int group_;
  const bool merges_, paired_;
  const int thread_;
  int buffer_ = 0;
  int tile_ = 0;  // over codes: number of tiles before, of all items
  int first_token_ = 0, first_seen_ = 0, last_token_ = 0, first_head_ = 0;
  bool busy_ = false, both_ = false;  // the warp has columns, also of the second half
  int all_begin_ = 0, all_end_ = 0;   // tokens that all of them see
  Column column_[2];
  int rows_[2] = {}, num_partials_[2] = {};  // rows and partials of columns that are merged here
  float out_[D / 8][4];
};

}  // namespace quire::attention::cuda

#endif
