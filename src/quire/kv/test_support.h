// Prompts, computing them, and looking at blocks, for the tests of the ledger.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <vector>

#include "quire/base/ids.h"
#include "quire/kv/format.h"
#include "quire/kv/ledger.h"
#include "quire/kv/types.h"
#include "quire/result.h"
#include "quire/types.h"

namespace quire::kv {

using Tokens = std::vector<TokenId>;
using Ids = std::vector<std::int32_t>;

// Returns the time of a test's clock at `second`.
inline TimePoint at(int second) { return TimePoint(std::chrono::seconds(second)); }

inline Tokens tokens_of(std::int32_t size, TokenId first = 0) {
  Tokens tokens;
  for (std::int32_t i = 0; i < size; ++i) {
    tokens.push_back(first + i);
  }
  return tokens;
}

inline constexpr FormatId kHalf{1};       // blocks of half the bytes of the pool's own
inline constexpr FormatId kBlockwise{2};  // written when a block is full, and the pool's own before

// Returns five slabs of four blocks of four tokens, in three formats of 100, 50 and 30 bytes.
inline LedgerConfig mixed_formats(std::int32_t num_blocks = 20) {
  return {.num_blocks = num_blocks,
          .block_tokens = 4,
          .formats = {{.block_bytes = 100},
                      {.block_bytes = 50},
                      {.block_bytes = 30, .open = kOwnFormat}},
          .slab_blocks = 4};
}

// Stores the KV of the next `count` tokens.
inline void compute(Ledger& ledger, SeqId id, std::int32_t count) {
  const Status status = ledger.sequences().extend(id, count);
  ASSERT_TRUE(status.ok()) << status.error().message;
  ledger.sequences().advance(id, count);
}

inline SeqId computed(Ledger& ledger, const Tokens& tokens, bool reuse = true,
                      BehindWindow past = BehindWindow::kKeeps) {
  const SeqId id = ledger.sequences().open(tokens, reuse, {}, {}, past);
  compute(ledger, id,
          static_cast<std::int32_t>(tokens.size()) - ledger.sequences().num_computed(id));
  return id;
}

inline Ids block_ids(const Ledger& ledger, SeqId id) {
  const RunView run = ledger.sequences().runs(id).back();
  Ids ids;
  for (const BlockId block : run.blocks) {
    ids.push_back(block.value);
  }
  return ids;
}

inline void expect_consistent(const Ledger& ledger) {
  const Status status = ledger.check();
  EXPECT_TRUE(status.ok()) << status.error().message;
  const LedgerCounts counts = ledger.counts();
  EXPECT_EQ(counts.blocks_free + counts.blocks_cached + counts.blocks_in_use, counts.blocks_total);
}

}  // namespace quire::kv
