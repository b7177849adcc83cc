// State that the CTAs of items_hopper.cuh share, and the warps that serve its warpgroups. These
// find a CTA's items, bring tiles of keys and values by the copy engine, and bring queries.
#pragma once

#include <cuda.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <climits>
#include <cstddef>
#include <cstdint>

#include "quire/attention/cuda/args.h"
#include "quire/attention/cuda/codes.cuh"
#include "quire/attention/cuda/copy_engine.cuh"
#include "quire/attention/cuda/fragments.cuh"
#include "quire/attention/cuda/partials.cuh"
#include "quire/attention/cuda/wgmma.cuh"
#include "quire/attention/device_plan.h"
#include "quire/kernels/cuda/launch.cuh"

namespace quire::attention::cuda {

inline constexpr int kTokens = kTokenTile;  // tokens of a tile
inline constexpr int kGroupThreads = 128;
inline constexpr int kGroups = 2;
inline constexpr int kGroupColumns = kManyColumns / kGroups;
// There is room for the queries of two items of few columns.
inline constexpr int kQueryBuffers = kGroupColumns / kFewColumnsOfOneKernel;

inline constexpr int kRunTokens = tensor::kInt4RunTokens;  // of int4: a warp's share of a tile

// Slots in shared memory for tiles of keys or values as they are stored.
template <KVFormat F, int D>
constexpr int kSlots = F == KVFormat::kPlain  ? (D == 64 ? 12 : 6)
                       : F == KVFormat::kInt4 ? (D == 64 ? 32 : 19)
                                              : (D == 64 ? 20 : 11);
// Bytes of the numbers or codes of a slot. Behind codes of int4 lie their scales and minimums.
template <KVFormat F, int D>
constexpr int kNumbersBytes = kTokens * D * kNumberBits<F> / 8;
template <KVFormat F, int D>
constexpr int kSlotBytes =
    kNumbersBytes<F, D> + (F == KVFormat::kInt4 ? kTokens / kRunTokens * 4 * D : 0);

// Returns the slots that so many bytes take.
template <KVFormat F, int D>
constexpr int slots_of(int bytes) {
  return (bytes + kSlotBytes<F, D> - 1) / kSlotBytes<F, D>;
}

// Slots over codes. The first ones hold tiles of numbers for the products of many columns, two of
// keys and two of values. Items of few columns to the bits of many exchange numbers there. Over
// int4 other items of few have room for the sums of each warpgroup, which a slot has not. The other
// slots are rings for codes.
inline constexpr int kWideTilesOfMany = 4;
template <KVFormat F, int D>
constexpr int kWideSlotsOfMany = slots_of<F, D>(kWideTilesOfMany * kTokens * D * 2);
template <KVFormat F, int D>
constexpr int kKeySlotsOfMany = (kSlots<F, D> - kWideSlotsOfMany<F, D>)*2 / 3;
inline constexpr int kToldTiles = 3;

inline constexpr int kFewTile = 8;  // columns of a product of few

// Numbers that the warps of an item exchange, for a tile and for the item, where few columns have
// the bits of many.
struct FewExchange {
  static constexpr int kTiles = kFewColumnsOfOneKernel / kFewTile;
  static constexpr int kWarps = kGroupThreads / 32;
  uint4 weights[kTiles][kWarps][32];  // operands of a warp's tokens for a tile of columns
  float sums[kTiles][kWarps][kFewTile][8];
  float largest[kWarps][kFewColumnsOfOneKernel];
  float totals[kFewColumnsOfOneKernel], all_largest[kFewColumnsOfOneKernel];
};
// Floats from the sums of a column to those of the next, where the warps of a warpgroup add up. A
// slot of bytes has no room between columns.
template <KVFormat F, int D>
constexpr int kSumStride = kTokenScales<F> ? D : D + 4;
template <KVFormat F, int D>
constexpr int kSumBytes = kGroupThreads / 32 * kFewTile * kSumStride<F, D> * 4;

// Boxes of fp8, whose blocks have scales: the most of a tile.
inline constexpr int kMostBoxes = kTokens / 8;

// Bytes of Shared<F, D>, which only device code knows: bytes of a group, and of what codes need.
inline constexpr int kGroupBytes = kQueryBuffers * (2 * 8 + 28) + 16 * kGroupColumns +
                                   4 * (kGroupThreads / 32) + 2 * 4 * kFewColumnsOfOneKernel;
template <KVFormat F>
constexpr int kScaleBytes = F == KVFormat::kInt8  ? 2 * 2 * kTokens
                            : F == KVFormat::kFp8 ? 16 * kMostBoxes
                                                  : 0;  // of a slot, beside it
template <KVFormat F, int D>
constexpr int kCodeBytes =
    F == KVFormat::kPlain
        ? 0
        : kSlots<F, D> * kScaleBytes<F> + (kTokenScales<F> ? kToldTiles * 3 * 4 * kTokens : 0) +
              2 * 8 * kWideTilesOfMany + 64;
template <KVFormat F, int D>
constexpr int kSharedBytes = 2 * D * kManyColumns + kSlots<F, D> * kSlotBytes<F, D> +
                             2 * 8 * kSlots<F, D> + kGroups * kGroupBytes + kCodeBytes<F, D>;
static_assert(kSharedBytes<KVFormat::kInt4, 128> <= 232448 &&
                  kSharedBytes<KVFormat::kFp8, 128> <= 232448,
              "as much as a CTA may have");

#if QUIRE_WGMMA

inline constexpr int kGroupWarps = kGroupThreads / 32;

// Adds up the sums of a warpgroup's warps, in the order that few and many columns share.
__device__ __forceinline__ float add_warps(const float (&sum)[kGroupWarps]) {
  return __fadd_rn(__fadd_rn(sum[0], sum[1]), __fadd_rn(sum[2], sum[3]));
}

// An item as a warpgroup is told of it.
struct Brief {
  struct Column {
    int begin, end;  // tokens that it sees
    int place;       // place of its partial, or kNoPartial
    int row;
  };
  int first_token, first_seen, last_token;
  int first_head;  // first head of the KV head
  int columns;
  int all_begin, all_end;  // tokens that all columns see
};

// Rows of D numbers lie in columns of 64 numbers, each [rows][64], 16-byte pieces swapped by row %
// 8. Rows of codes have one column, with pieces swapped by row % 8 or, of 64 codes, by row / 2 % 4.
template <KVFormat F, int D>
struct SharedTiles {
  std::uint16_t queries[kGroups][kGroupColumns * D];
  std::uint16_t slots[kSlots<F, D>][kSlotBytes<F, D> / 2];
  PhaseBarrier full[kSlots<F, D>], free[kSlots<F, D>];
  PhaseBarrier queries_full[kGroups][kQueryBuffers], queries_free[kGroups][kQueryBuffers];
  Brief brief[kGroups][kQueryBuffers];
  Brief::Column columns[kGroups][kGroupColumns];
  float sums[kGroups][kGroupWarps];  // written, never read
  // Rows whose partials are all there, by column of an item of few, of this item and the one
  // before.
  int merging[kGroups][2][kFewColumnsOfOneKernel];
};
template <KVFormat F, int D>
struct Shared : SharedTiles<F, D> {};

// TokenScale of each token of a tile.
struct TileScales {
  float score[kTokens], exponent[kTokens], inverse[kTokens];

  __device__ void tell(int token, const TokenScale& scale) {
    score[token] = scale.score;
    exponent[token] = scale.exponent;
    inverse[token] = scale.inverse;
  }
};
// Barriers of tiles of numbers: keys, keys, values, values.
struct WideBarriers {
  PhaseBarrier wide_full[kWideTilesOfMany], wide_free[kWideTilesOfMany];
};
template <KVFormat F, int D>
  requires(kTokenScales<F>)
struct Shared<F, D> : SharedTiles<F, D>, WideBarriers {
  // Scales of keys and of values, brought with a slot of keys: of int8 [boxes][2][tokens] in fp16,
  // of fp8 16 bytes of each box.
  alignas(16) std::uint16_t scales[kSlots<F, D>][kScaleBytes<F> / 2];
  alignas(16) TileScales told[kToldTiles];
};
template <int D>
struct Shared<KVFormat::kInt4, D> : SharedTiles<KVFormat::kInt4, D>, WideBarriers {};

// Returns the scales of a token of a slot of keys.
template <KVFormat F, int D>
__device__ __forceinline__ StoredScale<F> scale_in_slot(const AttentionArgs& args,
                                                        const Shared<F, D>& shared, int slot,
                                                        int token) {
  StoredScale<F> stored;
  // Boxes begin at multiples of the largest power of two in a block's size.
  const int box_tokens = min(args.kv.block_tokens & -args.kv.block_tokens, kTokens);
  if constexpr (F == KVFormat::kInt8) {
    stored.key = shared.scales[slot][(token & -box_tokens) + token];
    stored.value = shared.scales[slot][(token & -box_tokens) + token + box_tokens];
  } else {
    stored.of_block = *reinterpret_cast<const float2*>(&shared.scales[slot][token & -box_tokens]);
  }
  return stored;
}

// Returns the kind of a CTA, whole warps at once. Also brings all that there is about its queues,
// which is read next, by the same load.
__device__ __forceinline__ DevicePlan::Queue::Kind kind_of_cta(const AttentionArgs& args) {
  constexpr int kWords = sizeof(DevicePlan::Queue) / 4;
  static_assert(kWords * kGroups == 32);
  const auto* const words = reinterpret_cast<const int*>(args.work.queues + blockIdx.x * kGroups);
  const int word = words[threadIdx.x % 32];
  return static_cast<DevicePlan::Queue::Kind>(
      __shfl_sync(0xffffffffu, word, offsetof(DevicePlan::Queue, kind) / 4));
}

// The items of a worker, a CTA of those for many columns or a warpgroup of those for few.
class Queue {
 public:
  using Kind = DevicePlan::Queue::Kind;

  __device__ Queue(const AttentionArgs& args, int group)
      : told_(args.work.queues[blockIdx.x * kGroups + group]), kv_heads_(args.kv_heads) {
    alone_ = args.work.queues[blockIdx.x * kGroups + 1 - group].count == 0;
    items_ = args.work.few;
    if (many()) {
      items_ = args.work.many + (paired() ? blockIdx.x % 2 : 0);
    }
    queued_ = told_.first;
  }
  // Tells whether its items are of many columns.
  [[nodiscard]] __device__ bool many() const { return told_.kind >= Kind::kMany; }
  // Tells whether its tiles are those of the other CTA of its cluster.
  [[nodiscard]] __device__ bool paired() const { return told_.kind == Kind::kPair; }
  [[nodiscard]] __device__ int workers() const { return told_.workers; }
  [[nodiscard]] __device__ bool empty() const { return round_ >= told_.count; }
  __device__ void pop() {
    queued_ += round_ % 2 == 0 ? told_.strides[0] : told_.strides[1];
    ++round_;
  }
  [[nodiscard]] __device__ int round() const { return round_; }
  // Returns the rounds of the family of many columns, or of few.
  [[nodiscard]] __device__ int rounds(bool of_many) const {
    return many() == of_many ? told_.count : 0;
  }
  // Returns the item of the first round, without a load.
  [[nodiscard]] __device__ const DevicePlan::WorkItem& first_item() const { return told_.item; }
  [[nodiscard]] __device__ const DevicePlan::WorkItem& item() const {
    return items_[queued_ / kv_heads_ * (paired() ? 2 : 1)];
  }
  [[nodiscard]] __device__ int kv_head() const { return queued_ % kv_heads_; }
  // Tells whether the CTA's other warpgroup has no items of its own.
  [[nodiscard]] __device__ bool alone() const { return alone_; }

 private:
  const DevicePlan::Queue told_;
  const DevicePlan::WorkItem* items_;
  int queued_, kv_heads_;
  int round_ = 0;
  bool alone_;
};

// A place in a ring of slots in which keys and values alternate.
template <int D>
class Cursor {
 public:
  __device__ Cursor(int first, int size) : size_(size), end_(first + size), slot_(first) {}
  [[nodiscard]] __device__ int slot() const { return slot_; }
  [[nodiscard]] __device__ int round() const { return round_; }
  [[nodiscard]] __device__ int slot_before() const {
    return slot_ == end_ - size_ ? end_ - 1 : slot_ - 1;
  }
  [[nodiscard]] __device__ int round_before() const {
    return slot_ == end_ - size_ ? round_ - 1 : round_;
  }
  __device__ void advance(int steps) {
    slot_ += steps;
    if (slot_ >= end_) {
      slot_ -= size_;
      ++round_;
    }
  }

 private:
  int size_, end_, slot_, round_ = 0;
};

// The parts of each tile that a ring has.
enum class Parts : std::uint8_t { kBoth, kKeys, kValues };

// Returns the slots for items of many columns, whose tiles the warpgroups share. Codes of keys and
// of values have rings of their own, since one warpgroup widens keys and the other one values.
template <KVFormat F, int D, Parts P>
__device__ Cursor<D> ring_of_many() {
  constexpr int kFirst = kWideSlotsOfMany<F, D>, kKeys = kKeySlotsOfMany<F, D>;
  if constexpr (F == KVFormat::kPlain) {
    return {0, kSlots<F, D>};
  } else if constexpr (P == Parts::kKeys) {
    return {kFirst, kKeys};
  } else {
    return {kFirst + kKeys, kSlots<F, D> - kFirst - kKeys};
  }
}
// Returns the slots of a warpgroup for items of few columns: half, or all where it has the CTA to
// itself. With `kLikeMany` such items are computed as those of many columns.
template <KVFormat F, int D, bool kLikeMany>
__device__ Cursor<D> ring_of_few(const Queue& queue, int group) {
  constexpr int kFirst = F == KVFormat::kPlain  ? 0
                         : kLikeMany            ? slots_of<F, D>(kGroups * sizeof(FewExchange))
                         : F == KVFormat::kInt4 ? kGroups * slots_of<F, D>(kSumBytes<F, D>)
                                                : 0;
  constexpr int kOwn = (kSlots<F, D> - kFirst) / kGroups;
  return queue.alone() ? Cursor<D>(kFirst, kGroups * kOwn) : Cursor<D>(kFirst + group * kOwn, kOwn);
}

// The boxes of a worker's tiles, a lane to each. The place of the next one is fetched ahead, since
// every load takes as long as a tile when memory is busy.
class Boxes {
 public:
  __device__ Boxes(const AttentionArgs& args, const Queue& queue, int row, int box_tokens)
      : args_(args), queue_(queue), row_(row), box_tokens_(box_tokens) {
    if (!queue_.empty()) {
      next_ = queue_.first_item();
      begin_item();
    }
  }
  [[nodiscard]] __device__ bool empty() const { return ended_; }
  struct Place {
    int slot, block, kv_head;
  };
  [[nodiscard]] __device__ Place place() const { return {slot_, block_, kv_head_}; }

  __device__ void pop() {
    first_ += kTokens;
    if (first_ < item_.last_token) {
      find();
    } else {
      begin_item();
    }
  }

 private:
  __device__ void begin_item() {
    ended_ = queue_.empty();
    if (ended_) {
      return;
    }
    item_ = next_;
    first_ = item_.first_token;
    kv_head_ = queue_.kv_head();
    queue_.pop();
    if (!queue_.empty()) {
      next_ = queue_.item();
    }
    find();
  }
  // Finds the block of the box's tokens. A box without a token that some row sees is read as the
  // nearest one with such a token.
  __device__ void find() {
    const int token = min(max(first_ + row_, item_.first_seen & -box_tokens_),
                          (item_.last_token - 1) & -box_tokens_);
    const TokenPlace place = place_of(token, args_.kv.block_tokens, args_.kv.block_shift);
    slot_ = place.slot;
    block_ = __ldg(args_.work.blocks + item_.first_block + place.block);
  }

  const AttentionArgs& args_;
  Queue queue_;
  const int row_, box_tokens_;
  bool ended_ = true;
  DevicePlan::WorkItem item_, next_;
  int first_ = 0, slot_ = 0, block_ = 0, kv_head_ = 0;
};

// Lets the copy engine find tiles, in boxes of so many tokens.
struct TokenTileMap {
  const CUtensorMap& map;
  int box_tokens;
};

// A box of a worker's tiles on its way: what, and where to.
struct BoxCopy {
  const AttentionArgs& args;
  const TokenTileMap& tiles;
  Boxes::Place from;
  int to_slot, row;  // row: of the tile, the box's first
  int what;          // 0: keys, 1: values
  int column;        // of plain numbers 64 of them; over codes 0: these, 1: scales
};

// Returns the bytes that arrive for a slot of keys (what = 0) or of values.
template <KVFormat F, int D>
__device__ __forceinline__ int bytes_of_slot(int what, int boxes) {
  return kSlotBytes<F, D> + (what != 0              ? 0
                             : F == KVFormat::kInt8 ? kScaleBytes<F>
                             : F == KVFormat::kFp8  ? 16 * boxes
                                                    : 0);
}

// Copies one column of a box. One lane calls it.
template <KVFormat F, int D, bool kPaired>
__device__ __forceinline__ void bring(const BoxCopy& box, Shared<F, D>& shared) {
  const PhaseBarrier& full = shared.full[box.to_slot];
  std::uint16_t* const slot = shared.slots[box.to_slot];
  const Boxes::Place& from = box.from;
  const DeviceKV& kv = box.args.kv;
  [[maybe_unused]] const std::uint16_t* const block =
      kv.data + from.kv_head * kv.head_stride + from.block * kv.block_stride;
  if constexpr (F == KVFormat::kPlain) {
    copy_box<kPaired>(slot + box.column * kTokens * 64 + box.row * 64, box.tiles.map,
                      {box.column * 64, from.slot, box.what, from.block, from.kv_head}, full);
  } else if constexpr (F == KVFormat::kInt4) {
    // A box is a run of 32 tokens: one piece, and so are its scales and minimums.
    constexpr int kRunWords = kRunTokens * D / 4, kScaleWords = Int4Scales::words(D) / 2;
    const int run = from.slot / kRunTokens, to_run = box.row / kRunTokens;
    if (box.column == 0) {
      copy_piece<kPaired>(slot + to_run * kRunWords,
                          block + box.what * kv.v_offset + run * kRunWords, 2 * kRunWords, full);
    } else {
      copy_piece<kPaired>(slot + kNumbersBytes<F, D> / 2 + to_run * kScaleWords,
                          block + kv.scale_offset + (2 * run + box.what) * kScaleWords,
                          2 * kScaleWords, full);
    }
  } else if (box.column == 0) {
    copy_box<kPaired>(slot + box.row * (D / 2), box.tiles.map,
                      {0, from.slot, box.what, from.block, from.kv_head}, full);
  } else if (box.what == 0) {
    std::uint16_t* const scales = shared.scales[box.to_slot];
    if constexpr (F == KVFormat::kInt8) {
      const int tokens = box.tiles.box_tokens;
      if (kv.v_scale_offset - kv.scale_offset == tokens) {  // one behind the other
        copy_piece<kPaired>(scales + 2 * box.row, block + kv.scale_offset, 4 * tokens, full);
        return;
      }
      copy_piece<kPaired>(scales + 2 * box.row, block + kv.scale_offset + from.slot, 2 * tokens,
                          full);
      copy_piece<kPaired>(scales + 2 * box.row + tokens, block + kv.v_scale_offset + from.slot,
                          2 * tokens, full);
    } else {
      copy_piece<kPaired>(scales + box.row, block + kv.scale_offset, 16, full);
    }
  }
}

// Supplies keys and values of tile after tile, or one of them. One warp runs it. With `kPaired` the
// other CTA of the pair wants the same, and each brings every other box for both. With
// `kAlternates` keys and values share a ring also where this brings one of them.
template <KVFormat F, int D, bool kPaired, Parts P, bool kAlternates = false>
__device__ void feed(const AttentionArgs& args, const TokenTileMap& tiles, const Queue& queue,
                     Cursor<D> cursor, Shared<F, D>& shared) {
  // Columns of boxes: 64 numbers each, or all codes and beside them their scales.
  constexpr int kColumns = F != KVFormat::kPlain ? 2 : D / 64;
  const int lane = static_cast<int>(threadIdx.x) % 32, boxes = kTokens / tiles.box_tokens;
  if constexpr (F != KVFormat::kInt4) {
    fetch_map(tiles.map);
  }
  const int column = lane / boxes, row = lane % boxes * tiles.box_tokens;
  const bool brings =
      column < kColumns && (!kPaired || lane % 2 == static_cast<int>(blockIdx.x) % 2);
  Boxes next(args, queue, row, tiles.box_tokens);
  kernels::cuda::await_previous();
  while (!next.empty()) {
    const Boxes::Place here = next.place();
    next.pop();
#pragma unroll
    for (int what = 0; what < 2; ++what) {  // keys, values
      if (P == (what == 0 ? Parts::kValues : Parts::kKeys)) {
        cursor.advance(kAlternates ? 1 : 0);
        continue;
      }
      shared.free[cursor.slot()].await(cursor.round() + 1);
      if (lane == 0) {
        shared.full[cursor.slot()].arrive_expecting(bytes_of_slot<F, D>(what, boxes));
      }
      __syncwarp();
      if (brings) {
        bring<F, D, kPaired>({args, tiles, here, cursor.slot(), row, what, column}, shared);
      }
      cursor.advance(1);
    }
  }
}

// Supplies the queries of each item, and its facts. One warp runs it. Divisions, and the tokens
// that all columns see, are worked out here, where nobody waits for them. Items of many columns
// have one buffer, filled while the item before ends; items of few use two in turn. Over int4 a
// lane has eight neighbours of 32 dimensions, and a product takes four of each lane. So of each
// eight dimensions the first halves come first, then the others, 16 and 16.
template <KVFormat F, int D, bool kMany>
__device__ void brief(const AttentionArgs& args, Queue queue, int group, Shared<F, D>& shared) {
  constexpr int kPieces = D / 8, kAtOnce = 32 / kPieces;
  constexpr int kBuffers = kMany ? 1 : kQueryBuffers, kRoom = kGroupColumns / kBuffers;
  constexpr int kBatches = kRoom / 32;  // a lane to each of 32 columns
  const int lane = static_cast<int>(threadIdx.x) % 32, heads = args.heads / args.kv_heads;
  const int first_column = kMany ? group * kGroupColumns : 0;
  // Item and rows of the item to come, fetched ahead.
  DevicePlan::WorkItem next = {};
  DevicePlan::Row next_rows[kBatches] = {};
  const auto fetch = [&](const DevicePlan::WorkItem& item) {
    next = item;
#pragma unroll
    for (int batch = 0; batch < kBatches; ++batch) {
      const int row = (first_column + batch * 32 + lane) / heads;
      next_rows[batch] = row < next.num_rows ? args.work.rows[next.first_row + row]
                                             : DevicePlan::Row{.partial = kNoPartial};
    }
  };
  if (!queue.empty()) {
    fetch(queue.first_item());
  }
  kernels::cuda::await_previous();
  while (!queue.empty()) {
    const int round = queue.round(), buffer = round % kBuffers, first_place = buffer * kRoom;
    const int first_head = queue.kv_head() * heads;
    shared.queries_free[group][buffer].await(round / kBuffers + 1);
    int all_begin = 0, all_end = INT_MAX;
#pragma unroll
    for (int batch = 0; batch < kBatches; ++batch) {
      const DevicePlan::Row& row = next_rows[batch];
      const bool there = row.partial != kNoPartial;
      const int head = first_head + (first_column + batch * 32 + lane) % heads;
      const Brief::Column column = {
          there ? row.visible_begin : 0, there ? row.visible_end : INT_MAX,
          there ? place_of_head(row.partial, args.heads, head) : kNoPartial, row.row};
      shared.columns[group][first_place + batch * 32 + lane] = column;
      all_begin = max(all_begin, column.begin);
      all_end = min(all_end, column.end);
      // Values beyond the columns of the item are never used.
      const int count = min(32, next.num_rows * heads - first_column - batch * 32);
      const int query = row.query * args.heads + head;
#pragma unroll 2
      for (int c = 0; c < count; c += kAtOnce) {
        const int mine = c + lane / kPieces, piece = lane % kPieces;
        const int place = first_place + batch * 32 + mine;
        const std::int64_t from = __shfl_sync(0xffffffffu, query, mine);
        std::uint16_t* const to =
            shared.queries[group] + piece / 8 * kGroupColumns * 64 + place * 64;
        const std::uint16_t* const numbers = args.q + from * D + piece * 8;
        if constexpr (F == KVFormat::kInt4) {
          const int first = piece % 8 / 4 * 4 + piece % 4 / 2;
          copy_8(to + (first ^ place % 8) * 8 + piece % 2 * 4, numbers);
          copy_8(to + (first + 2 ^ place % 8) * 8 + piece % 2 * 4, numbers + 4);
        } else {
          copy_16(to + (piece % 8 ^ place % 8) * 8, numbers);
        }
      }
    }
    all_begin = __reduce_max_sync(0xffffffffu, all_begin);
    all_end = __reduce_min_sync(0xffffffffu, all_end);
    if (lane == 0) {
      shared.brief[group][buffer] = {next.first_token, next.first_seen,       next.last_token,
                                     first_head,       next.num_rows * heads, all_begin,
                                     all_end};
    }
    await_copies();
    publish_shared();
    shared.queries_full[group][buffer].arrive();
    queue.pop();
    if (!queue.empty()) {
      fetch(queue.item());
    }
  }
}

#endif  // QUIRE_WGMMA

}  // namespace quire::attention::cuda
