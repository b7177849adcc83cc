// DevicePlan: the work of a GPU for the entries of one step. make_device_plan makes it. Two
// families of kernels share it. Items of few query columns pay for reading KV (decode). Items of
// many pay for the arithmetic (prefill, chunks that many requests use). Each item gives every one
// of its rows a partial, (max, sum, values) over a range of the run's tokens. The partials of a row
// are merged in the order of its entries and their tokens. A partial that is the only one of its
// row takes no room: the item writes the row.
//
// Where the ranges begin decides the last bits of a result. With a fixed `range_tokens` they depend
// on the run alone, so that a row's bits do not depend on its batch. By default they depend on how
// much there is to do, which balances the load.
#pragma once

#include <cstdint>
#include <vector>

#include "quire/attention/attention_plan.h"

namespace quire::attention {

// Most columns of an item of few and of one of many, which are (row, head) pairs of one KV head.
// The second is of few, too, where one kind of kernel computes both families to equal bits.
inline constexpr int kFewColumns = 16;
inline constexpr int kFewColumnsOfOneKernel = 32;
inline constexpr int kManyColumns = 128;
inline constexpr int kTokenTile = 128;  // most tokens that a kernel takes at once

struct DevicePlan {
  // Rows of one entry, stacked, over a range of its tokens. Uploaded as it is.
  struct WorkItem {
    std::int32_t first_block = 0;  // first block of the entry's run: index into `blocks`
    std::int32_t first_token = 0;  // first token of the run: a multiple of kTokenTile, so that
                                   // tiles do not depend on what the rows see
    std::int32_t first_seen = 0;   // tokens before it are not read
    std::int32_t last_token = 0;   // one behind the last token; every token before it is stored
    std::int32_t first_row = 0;    // index into `rows`
    std::int32_t num_rows = 0;
  };
  // One row of an item.
  struct Row {
    std::int32_t query = 0;          // index into `query_rows`: which rotated query
    std::int32_t visible_begin = 0;  // tokens of the run that it sees
    std::int32_t visible_end = 0;
    // Index of its partial; where nothing is merged ~row of the batch, to be written whole.
    std::int32_t partial = 0;
    std::int32_t row = 0;  // row of the batch
  };
  // The partials of one row of the batch: [first, first + count).
  struct PartialResults {
    std::int32_t first = 0;  // -1: one item computes the whole row and writes it
    std::int32_t count = 0;  // 0: the row sees nothing
  };
  // The CTAs that share the items, where one kernel computes both families.
  struct CtaGroup {
    std::int32_t few_workers = 0, many_workers = 0;
    // 1: CTAs of many columns are pairs with one queue, whose items are pairs too, neighbours over
    // the same tokens, one for each CTA. Tokens are brought once for both.
    std::int32_t pairs = 0;
  };
  // The work of one CTA, or of one of its halves. A queued item is an item for one KV head, number
  // item * KV heads + head. Round i takes number first + i / 2 * (strides[0] + strides[1]) + i % 2
  // * strides[0]. All that a CTA needs to begin is in one place: where a kernel begins, each load
  // that waits for another costs time. Uploaded as it is.
  struct alignas(16) Queue {
    // The kind of a CTA: both halves have it. A word, as kernels read it.
    enum class Kind : std::int32_t { kNone, kFew, kMany, kPair };  // NOLINT(performance-enum-size)
    std::int32_t first = 0;
    std::int32_t strides[2] = {};
    std::int32_t count = 0;
    Kind kind = Kind::kNone;      // kPair: of many columns, cta_group.pairs
    std::int32_t workers = 0;     // CTAs of the family
    WorkItem item;                // item of the first round
    std::int32_t unused[4] = {};  // a CTA's two are a line of the cache
  };
  std::vector<WorkItem> few, many;
  std::vector<Row> rows;
  std::vector<PartialResults> partials;       // [rows of the batch]
  std::vector<std::int32_t> blocks;           // block ids, run after run
  std::vector<std::int32_t> query_rows;       // [entry rows] row of the batch
  std::vector<std::int32_t> query_positions;  // [entry rows]
  std::int32_t num_partials = 0;              // partials that take room
  std::int32_t num_merged = 0;                // rows of the batch that are not written by an item
  std::int32_t widest_few = 0;                // columns of an item of few
  bool like_many = false;                     // items of few give the bits of items of many
  CtaGroup cta_group;
  // [many_workers of the options, to an even number][2]: of each CTA; its halves have one each of
  // few columns, and of many both the same.
  std::vector<Queue> queues;
  PlanCounters counters;
  void clear();  // keeps its memory
};

struct DevicePlanOptions {
  std::int32_t block_tokens = 32;
  std::int32_t window_tokens = 0;  // 0: none
  int few_workers = 1584;          // items of few columns that run side by side
  int many_workers = 132;          // items of many columns that run side by side
  bool one_kernel = false;  // one kernel computes both families; a worker for one of many columns
                            // is instead two for few
  std::int32_t range_tokens = 0;  // 0: by load; else a multiple of kPieceTokens
};

}  // namespace quire::attention
