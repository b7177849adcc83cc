// Chunks whose tails were to be moved by copies that fail: they go, and others stay. The oracle is
// the list of moves that the plan has made.
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <string>

#include "quire/kv/chunk_registry_scene.h"
#include "quire/kv/types.h"

namespace quire::kv {
namespace {

class ForgottenMoves : public ChunkRegistryTest {
 protected:
  ForgottenMoves() : ChunkRegistryTest(/*max_chunks=*/8, /*max_blocks=*/40) {}

  // Adds chunks of so many tokens each, in blocks of 4.
  void add_chunks(const std::string& names, std::size_t tokens) {
    for (const char name : names) {
      add(chunk(name, tokens));
    }
    (void)ledger.take_copies();
  }
};

TEST_F(ForgottenMoves, RemoveTheChunksOfTheLastCopiesAlone) {
  add_chunks("abc", 5);  // tails of one token
  EXPECT_EQ(registry.room().coalesce(1), 1);
  EXPECT_EQ(ledger.take_copies().size(), 1U);
  EXPECT_EQ(registry.room().coalesce(8), 1);
  EXPECT_EQ(ledger.take_copies().size(), 1U);
  ASSERT_EQ(ledger.coalescing().last_moved().size(), 1U);
  registry.room().forget_moved();
  EXPECT_EQ(names().size(), 2U) << "the first copy was made";
  EXPECT_EQ(blocks_in_use(), 3) << "two full blocks and the one that is shared";
  registry.room().forget_moved();
  EXPECT_EQ(names().size(), 2U) << "what is gone is not looked for again";
  EXPECT_TRUE(ledger.check().ok());
}

TEST_F(ForgottenMoves, RemoveAllThatMovedAndKeepWhoseBlockTheyMovedInto) {
  add_chunks("abcd", 5);
  EXPECT_EQ(registry.room().coalesce(8), 3);
  EXPECT_EQ(blocks_in_use(), 5);
  (void)ledger.take_copies();
  registry.room().forget_moved();
  EXPECT_EQ(names().size(), 1U);
  EXPECT_EQ(blocks_in_use(), 2) << "a full block, and its tail at the beginning of the other";
  EXPECT_EQ(registry.room().coalesce(8), 0);
}

TEST_F(ForgottenMoves, RemoveNoneWhereNothingWasMoved) {
  add_chunks("abc", 4);
  EXPECT_EQ(registry.room().coalesce(8), 0);
  (void)ledger.take_copies();
  registry.room().forget_moved();
  EXPECT_EQ(names(), "abc");
}

TEST_F(ForgottenMoves, RemoveWhoseTailWasToBeTakenOut) {
  add_chunks("ab", 5);
  EXPECT_EQ(registry.room().coalesce(8), 1);
  (void)ledger.take_copies();
  std::int32_t taken_out = 0;
  for (const Chunk* each : registry.list("")) {
    const SegmentId segment = each->variants.begin()->second;
    if (ledger.coalescing().is_moved(segment)) {
      ASSERT_TRUE(ledger.coalescing().take_out({&segment, 1}).ok());
      ++taken_out;
    }
  }
  EXPECT_EQ(taken_out, 1);
  EXPECT_EQ(ledger.take_copies().size(), 1U);
  registry.room().forget_moved();
  EXPECT_EQ(names().size(), 1U);
  EXPECT_EQ(blocks_in_use(), 2);
}

}  // namespace
}  // namespace quire::kv
