// Tests approximate edits. The oracle is a composition of chunks that have the same KV. The part
// behind the edit was computed behind the prefix alone and is used further on, as an anchored chunk
// is.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "quire/api/test_support.h"
#include "quire/chunks.h"
#include "quire/llm.h"
#include "quire/result.h"
#include "quire/sequence.h"

namespace quire {
namespace {

using testing::HasSubstr;

ChunkedLLM open_exact_arithmetic() {
  return ChunkedLLM::open(kModel, here({.dtype = exact_dtype(), .threads = 2})).value();
}

Status edit(Sequence& sequence, std::int64_t start, std::int64_t stop, const Ids& ids) {
  return sequence.replace(start, stop, ids, {}, EditMode::kApproximate);
}

TEST(ApproximateEdit, WhatStandsBehindIsUsedAsItWasComputedAtItsNewPlace) {
  ChunkedLLM llm = open_exact_arithmetic();
  const Ids query = some_ids(6, 9);
  for (const std::size_t prefix : {5, 32, 47}) {
    for (const std::size_t added : {1, 13, 32}) {
      const Ids head = some_ids(prefix, 1), kept = some_ids(70, 2), middle = some_ids(added, 3);
      Sequence sequence = llm.llm().sequence(joined(joined(head, kept), {query.front()})).value();
      ASSERT_TRUE(edit(sequence, static_cast<std::int64_t>(prefix),
                       static_cast<std::int64_t>(prefix), middle)
                      .ok());
      EXPECT_EQ(sequence.tokens(), joined(joined(joined(head, middle), kept), {query.front()}));
      EXPECT_EQ(sequence.grade(), ReuseGrade::kApproximate);
      ASSERT_TRUE(sequence.append(Ids(query.begin() + 1, query.end())).ok());
      const CompositionSpec spec{
          .system_chunk_id =
              llm.register_chunk({.content = head, .type = ChunkType::kSystemPrompt}).value(),
          .context_chunk_ids = {llm.register_chunk({.content = middle}).value(),
                                llm.register_chunk({.content = kept}).value()},
          .query_chunk_id =
              llm.register_chunk({.content = query, .type = ChunkType::kQuery}).value(),
          .mode = ReuseMode::kAnchored};
      Sequence composed = llm.sequence(spec).value();
      EXPECT_EQ(composed.tokens(), sequence.tokens());
      EXPECT_LT(distance(sequence.logits().value(), composed.logits().value()), rounding())
          << prefix << " + " << added;
    }
  }
}

// Then nothing that stands behind depends on anything else than it did.
TEST(ApproximateEdit, ReplacingTokensByThemselvesChangesRoundingOnly) {
  ChunkedLLM llm = open_exact_arithmetic();
  const Ids ids = some_ids(150, 4);
  const std::vector<float> right = llm.llm().sequence(ids).value().logits().value();
  for (const auto& [start, stop] : std::vector<std::pair<std::int64_t, std::int64_t>>{
           {0, 1}, {31, 33}, {64, 65}, {50, 148}, {1, 2}}) {
    Sequence sequence = llm.llm().sequence(ids).value();
    ASSERT_TRUE(edit(sequence, start, stop, {ids.begin() + start, ids.begin() + stop}).ok());
    EXPECT_EQ(sequence.tokens(), ids);
    EXPECT_EQ(sequence.grade(), ReuseGrade::kApproximate);
    EXPECT_LT(distance(sequence.logits().value(), right), rounding()) << start;
    // Edited again, in the middle of what was moved.
    ASSERT_TRUE(edit(sequence, 40, 45, {ids.begin() + 40, ids.begin() + 45}).ok());
    EXPECT_LT(distance(sequence.logits().value(), right), rounding()) << start;
  }
}

TEST(ApproximateEdit, ComputesTheNewTokensAloneAndLeavesNoBlock) {
  LLM llm = LLM::open(kModel, here({.threads = 2, .prefix_cache = false})).value();
  const auto stat = [&](const std::string& name) {
    for (const auto& [key, value] : llm.stats().value()) {
      if (key == name) {
        return value;
      }
    }
    return -1.0;
  };
  {
    Sequence sequence = llm.sequence(some_ids(500, 5)).value();
    const double before = stat("tokens_computed");
    ASSERT_TRUE(edit(sequence, 20, 30, some_ids(7, 6)).ok());
    EXPECT_LE(stat("tokens_computed") - before, 9);
    const Sequence fork = sequence.fork().value();
    EXPECT_TRUE(sequence.generate({.temperature = 0, .max_tokens = 4}).ok());
  }
  EXPECT_EQ(stat("blocks_in_use"), 0);
}

TEST(ApproximateEdit, AtTheEndItIsExact) {
  LLM llm = LLM::open(kModel, here({.threads = 2})).value();
  const Ids ids = some_ids(60, 7);
  Sequence sequence = llm.sequence(ids).value();
  ASSERT_TRUE(edit(sequence, 50, 60, some_ids(3, 8)).ok());
  EXPECT_EQ(sequence.grade(), ReuseGrade::kExact);
  ASSERT_TRUE(edit(sequence, 10, 10, {}).ok());
  EXPECT_EQ(sequence.grade(), ReuseGrade::kExact);
  EXPECT_THAT(edit(sequence, 5, 61, {}).error().message, HasSubstr("has 53"));
  EXPECT_THAT(edit(sequence, 5, 6, {1 << 30}).error().message, HasSubstr("vocabulary"));
}

TEST(ApproximateEdit, IsSavedAndLoadedWithItsShiftedKeys) {
  LLM llm = LLM::open(kModel, here({.threads = 2})).value();
  const std::string file = testing::TempDir() + "/edited.qkv";
  Sequence sequence = llm.sequence(some_ids(120, 9)).value();
  ASSERT_TRUE(edit(sequence, 11, 40, some_ids(5, 10)).ok());
  ASSERT_TRUE(sequence.save(file).ok());
  LLM other = LLM::open(kModel, here({.threads = 2})).value();
  for (const bool wait : {true, false}) {
    Sequence loaded = other.load_sequence(file, {.wait = wait}).value();
    EXPECT_EQ(loaded.tokens(), sequence.tokens());
    EXPECT_EQ(loaded.grade(), ReuseGrade::kApproximate);
    EXPECT_EQ(loaded.logits().value(), sequence.logits().value());
  }
}

}  // namespace
}  // namespace quire
