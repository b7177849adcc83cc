#include "quire/sequences/saved_state.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "quire/base/kv_fingerprint.h"
#include "quire/kv/types.h"
#include "quire/kv_store/kv_file_content.h"
#include "quire/output.h"
#include "quire/result.h"
#include "quire/tiers/kv_identity.h"
#include "quire/types.h"

namespace quire::sequences {
namespace {

namespace json = boost::json;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr std::int64_t kMost = std::int64_t{1} << 30;

SavedState composed_state() {
  return {.ranks = {{.chunk = ~std::uint64_t{0}, .variant = 3}, {.chunk = 5}},
          .stored_from = {0, 17},
          .own_position = 40,
          .tail = {7},
          .sampled = 2,
          .grade = ReuseGrade::kEqualMath,
          .kernels = "avx2"};
}

// Returns the JSON written of composed_state(), with one member changed.
std::string with(const char* key, json::value value) {
  json::object object = json::parse(to_json(composed_state())).as_object();
  object[key] = std::move(value);
  return json::serialize(object);
}

kv_store::SavedRun run_of(std::size_t tokens, std::int32_t start) {
  return {.tokens = std::vector<TokenId>(tokens, 9), .start_position = start};
}

TEST(SavedState, FingerprintsDifferByModelAndByKernels) {
  const base::KVFingerprint known = tiers::kv_fingerprint("model", "avx2");
  EXPECT_EQ(known, tiers::kv_fingerprint("model", "avx2"));
  EXPECT_FALSE(known == tiers::kv_fingerprint("other", "avx2"));
  EXPECT_FALSE(known == tiers::kv_fingerprint("model", "avx512"));
  EXPECT_FALSE(known == tiers::kv_fingerprint("model", ""));
  EXPECT_FALSE(known == tiers::kv_fingerprint("modelavx", "2")) << "the border counts";
  EXPECT_FALSE(tiers::kv_fingerprint("", "").empty());
}

TEST(SavedState, MapsAreTheLastSavedRunsOfRunsBefore) {
  SavedState composed = composed_state();
  composed.parts = {2, 3, 1};
  composed.map_blocks = {4, 1};
  const std::string json = to_json(composed);
  const SavedState read = parse_saved_state(json, 6, "file").value();
  EXPECT_THAT(read.map_blocks, ElementsAre(4, 1));
  const std::vector<kv_store::SavedRun> runs = {run_of(8, 0),  run_of(16, 8), run_of(8, 8),
                                                run_of(3, 16), run_of(4, 19), run_of(2, 19)};
  const auto parts = parts_of(runs, read);
  ASSERT_EQ(parts.size(), 3);
  EXPECT_EQ(parts[0].size(), 1);
  EXPECT_EQ(parts[1].size(), 2);
  EXPECT_EQ(parts[2].front().tokens.size(), 2);
  EXPECT_EQ(maps_of(runs, read, 0).tokens.size(), 16);
  EXPECT_EQ(maps_of(runs, read, 1).tokens.size(), 4);
}

TEST(SavedState, MapsThatAreNotThoseOfItsRunsAreMalformed) {
  SavedState composed = composed_state();
  composed.parts = {2, 3, 1};
  for (const std::vector<std::int32_t>& blocks :
       std::vector<std::vector<std::int32_t>>{{4}, {4, 0}, {4, -1}, {4, 1, 1}}) {
    composed.map_blocks = blocks;
    EXPECT_FALSE(parse_saved_state(to_json(composed), 6, "file").ok());
  }
  composed.map_blocks = {4, 1};
  composed.parts = {1, 3, 2};
  EXPECT_FALSE(parse_saved_state(to_json(composed), 6, "file").ok()) << "a run of maps alone";
  composed.parts = {};
  EXPECT_FALSE(parse_saved_state(to_json(composed), 3, "file").ok());
}

TEST(SavedState, WhatIsWrittenIsRead) {
  const SavedState read = parse_saved_state(to_json(composed_state()), 3, "file").value();
  EXPECT_THAT(read.ranks, ElementsAre(kv::MergeRank{.chunk = ~std::uint64_t{0}, .variant = 3},
                                      kv::MergeRank{.chunk = 5}));
  EXPECT_THAT(read.stored_from, ElementsAre(0, 17));
  EXPECT_EQ(read.own_position, 40);
  EXPECT_THAT(read.tail, ElementsAre(7));
  EXPECT_EQ(read.sampled, 2);
  EXPECT_EQ(read.grade, ReuseGrade::kEqualMath);
  EXPECT_EQ(read.kernels, "avx2");
  const SavedState empty = parse_saved_state(to_json({}), 0, "file").value();
  EXPECT_THAT(empty.tail, IsEmpty());
  EXPECT_EQ(empty.grade, ReuseGrade::kExact);
}

TEST(SavedState, AGradeThatNobodyKnowsIsTheLowest) {
  EXPECT_EQ(parse_saved_state(with("grade", "perfect"), 3, "file")->grade,
            ReuseGrade::kApproximate);
  EXPECT_EQ(parse_saved_state(with("grade", nullptr), 3, "file")->grade, ReuseGrade::kApproximate);
}

TEST(SavedState, BoundsAreWhatTheySay) {
  EXPECT_TRUE(parse_saved_state(with("stored_from", {0, kMost}), 3, "file").ok());
  EXPECT_TRUE(parse_saved_state(with("own_position", kMost), 3, "file").ok());
  EXPECT_TRUE(parse_saved_state(to_json(composed_state()), 2, "file").ok()) << "no run of its own";
}

TEST(SavedState, BehindKvThereIsALastToken) {
  EXPECT_FALSE(parse_saved_state(with("tail", json::array()), 3, "file").ok());
  EXPECT_FALSE(parse_saved_state(to_json({}), 1, "file").ok());
  EXPECT_TRUE(parse_saved_state(to_json({.tail = {7}}), 0, "file").ok()) << "alone it has no KV";
}

// It cannot be sealed: only the own run loses blocks.
TEST(SavedState, ForeignKvThatHasLostBlocksStaysTheOwnRun) {
  kv_store::SavedRun run = run_of(40, 0);
  run.lost_blocks = 1;
  SavedState state{.tail = {7}, .kernels = "others"};
  seal_foreign({&run, 1}, state, "avx2");
  EXPECT_THAT(state.ranks, IsEmpty());
  EXPECT_EQ(state.grade, ReuseGrade::kEqualMath);
}

TEST(SavedState, WhatAStrangerWroteIsRefusedByName) {
  const json::value nested = json::parse("[[[[[0]]]], {\"a\": [1]}]");
  const std::vector<std::string> hostile = {
      "",
      "{",
      "[]",
      "7",
      std::string(1000, '['),
      "{\"kind\": \"sequence\"}",
      with("kind", "checkpoint"),
      with("kind", 7),
      with("stored_from", {-1, 0}),
      with("stored_from", {0, kMost + 1}),
      with("stored_from", {0, std::int64_t{1} << 40}),
      with("stored_from", {0, 0.5}),
      with("stored_from", {0, "0"}),
      with("stored_from", {0}),
      with("stored_from", {0, 0, 0}),
      with("stored_from", nested),
      with("stored_from", nullptr),
      with("stored_from", "0, 17"),
      with("ranks", {1, 2}),
      with("ranks", {json::array{1}, json::array{2}}),
      with("ranks", {json::array{1, -2}, json::array{2, 0}}),
      with("ranks", {json::array{-1, 0}, json::array{2, 0}}),
      with("ranks", {json::array{1, 0, 0}, json::array{2, 0, 0}}),
      with("ranks", nested),
      with("ranks", json::object{{"0", 1}}),
      with("tail", {1, 2}),
      with("tail", {"1"}),
      with("tail", {std::int64_t{1} << 40}),
      with("tail", 7),
      with("own_position", -1),
      with("own_position", kMost + 1),
      with("own_position", "40"),
      with("own_position", nullptr),
      with("sampled", -1),
      with("sampled", kMost + 1),
      with("sampled", nested),
      with("grade", 1),
      with("kernels", json::array{"avx2"}),
  };
  for (const std::string& text : hostile) {
    const auto read = parse_saved_state(text, 3, "the file x");
    ASSERT_FALSE(read.ok()) << text;
    EXPECT_EQ(read.error().code, ErrorCode::kCorrupt) << text;
    EXPECT_THAT(read.error().message, HasSubstr("the file x"));
  }
}

TEST(SavedState, RunsAndRanksMustFitEachOther) {
  for (const std::size_t runs : {0, 1, 4, 100}) {
    const auto read = parse_saved_state(to_json(composed_state()), runs, "file");
    ASSERT_FALSE(read.ok()) << runs;
    EXPECT_EQ(read.error().code, ErrorCode::kCorrupt);
    EXPECT_THAT(read.error().message, HasSubstr("2 ranks"));
  }
}

TEST(SealForeign, WhatThisMachineWouldComputeStaysTheSequencesOwn) {
  SavedState state{.own_position = 0, .tail = {1}, .kernels = tiers::kernels_here()};
  seal_foreign(std::vector{run_of(5, 0)}, state, tiers::kernels_here());
  EXPECT_THAT(state.ranks, IsEmpty());
  EXPECT_EQ(state.grade, ReuseGrade::kExact);
  EXPECT_EQ(state.own_position, 0);
}

TEST(SealForeign, AnotherKernelSetsKvStandsBeforeTheSequence) {
  SavedState state{.own_position = 3, .tail = {1}, .kernels = "no such set"};
  seal_foreign(std::vector{run_of(5, 3)}, state, tiers::kernels_here());
  EXPECT_EQ(state.ranks.size(), 1U);
  EXPECT_THAT(state.stored_from, ElementsAre(0));
  EXPECT_EQ(state.own_position, 8);
  EXPECT_EQ(state.grade, ReuseGrade::kEqualMath);
}

TEST(SealForeign, SoDoesKvThatDoesNotFollowFromItsTokens) {
  for (const ReuseGrade grade : {ReuseGrade::kEqualMath, ReuseGrade::kApproximate}) {
    SavedState state{.grade = grade, .kernels = tiers::kernels_here()};
    seal_foreign(std::vector{run_of(5, 0)}, state, tiers::kernels_here());
    EXPECT_EQ(state.ranks.size(), 1U);
    EXPECT_EQ(state.grade, grade) << "a grade never gets better";
  }
}

TEST(SealForeign, ACompositionIsNeverExactAndKeepsItsRuns) {
  SavedState state = composed_state();
  state.grade = ReuseGrade::kExact;
  state.kernels = tiers::kernels_here();
  seal_foreign(std::vector{run_of(5, 0), run_of(6, 5), run_of(7, 40)}, state,
               tiers::kernels_here());
  EXPECT_EQ(state.grade, ReuseGrade::kEqualMath);
  EXPECT_EQ(state.ranks.size(), 2U);
  EXPECT_EQ(state.own_position, 40);
}

TEST(SealForeign, NothingIsSealedWhereThereIsNoKvAndPositionsStayInRange) {
  SavedState empty{.tail = {1}, .kernels = "no such set"};
  seal_foreign({}, empty, tiers::kernels_here());
  EXPECT_THAT(empty.ranks, IsEmpty());
  SavedState far{.kernels = "no such set"};
  seal_foreign(std::vector{run_of(5, 2'147'483'647)}, far, tiers::kernels_here());
  EXPECT_EQ(far.own_position, kMost);
}

}  // namespace
}  // namespace quire::sequences
