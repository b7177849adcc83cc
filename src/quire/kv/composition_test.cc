#include "quire/kv/composition.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "quire/chunk_types.h"
#include "quire/kv/chunk_registry.h"
#include "quire/kv/chunk_types.h"
#include "quire/kv/format.h"
#include "quire/kv/ledger.h"
#include "quire/kv/types.h"
#include "quire/result.h"
#include "quire/types.h"

namespace quire::kv {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::string id_of(char name) { return std::string(64, name); }

// Has a system chunk 'a' of 5 tokens, contexts 'b' of 3, 'c' of 8 and 'd' of 1, and a query 'e' of
// 2. Each token is its chunk's letter. The system chunk and the contexts' own KV behind it are
// there.
class CompositionTest : public testing::Test {
 protected:
  CompositionTest() {
    add('a', 5, ChunkType::kSystemPrompt, VariantKey{});
    const VariantKey behind{.before = id_of('a')};
    add('b', 3, ChunkType::kContext, behind);
    add('c', 8, ChunkType::kContext, behind);
    add('d', 1, ChunkType::kContext, behind);
    add('e', 2, ChunkType::kQuery, std::nullopt);
  }

  void add(char name, std::size_t size, ChunkType type, const std::optional<VariantKey>& key) {
    const std::vector<TokenId> tokens(size, name);
    NewChunk chunk{.id = id_of(name),
                   .type = type,
                   .tokens = std::make_shared<const std::vector<TokenId>>(tokens)};
    ASSERT_TRUE(registry.begin(std::move(chunk), key).ok());
    if (key) {
      const SeqId sequence = ledger.sequences().open(tokens, false);
      ASSERT_TRUE(ledger.sequences().extend(sequence, static_cast<std::int32_t>(size)).ok());
      ledger.sequences().advance(sequence, static_cast<std::int32_t>(size));
      ASSERT_TRUE(registry.variants()
                      .end(id_of(name), *key, ledger.segments().seal(sequence).value())
                      .ok());
      ledger.sequences().close(sequence);
    }
    registry.finish(id_of(name));
  }

  [[nodiscard]] static CompositionSpec spec(const std::string& contexts) {
    CompositionSpec spec{.system_chunk_id = id_of('a'), .query_chunk_id = id_of('e')};
    for (const char name : contexts) {
      spec.context_chunk_ids.emplace_back(64, name);
    }
    return spec;
  }
  ResolvedComposition resolved(const CompositionSpec& what) {
    auto composition = resolve(registry, "", what, {});
    EXPECT_TRUE(composition.ok()) << composition.error().message;
    return std::move(composition).value();
  }
  ErrorCode refused(const CompositionSpec& what) {
    const auto composition = resolve(registry, "", what, {});
    EXPECT_FALSE(composition.ok());
    return composition.ok() ? ErrorCode::kInternal : composition.error().code;
  }
  // Returns the positions of all parts and the query.
  std::vector<std::int32_t> positions(const CompositionSpec& what) {
    const ResolvedComposition composition = resolved(what);
    std::vector<std::int32_t> positions;
    for (const Part& part : composition.parts) {
      positions.push_back(part.position);
    }
    positions.push_back(composition.query.position);
    return positions;
  }
  std::vector<std::int32_t> gaps(const CompositionSpec& what) {
    std::vector<std::int32_t> gaps;
    for (const Part& part : resolved(what).parts) {
      gaps.push_back(part.key.gap);
    }
    return gaps;
  }

  Ledger ledger{{.num_blocks = 64, .block_tokens = 4, .prefix_cache = false}};
  ChunkRegistry registry{{.max_blocks = 64}, ledger};
};

TEST_F(CompositionTest, PositionsFollowEachOtherOrStandSideBySideOrWhereTheyAreGiven) {
  CompositionSpec one = spec("bcb");
  EXPECT_THAT(positions(one), ElementsAre(0, 5, 8, 16, 19));
  one.positions = Positions::kParallel;
  EXPECT_THAT(positions(one), ElementsAre(0, 5, 5, 5, 13)) << "the query behind the longest";
  one.positions = Positions::kFixed;
  one.fixed = {7, 0, 100, 3, 50};
  EXPECT_THAT(positions(one), ElementsAre(7, 0, 100, 3, 50));
  CompositionSpec none = spec("");
  none.positions = Positions::kParallel;
  EXPECT_THAT(positions(none), ElementsAre(0, 5));
  CompositionSpec alone = spec("cb");
  alone.system_chunk_id.clear();
  alone.without_system = true;
  EXPECT_THAT(positions(alone), ElementsAre(0, 8, 11));
  alone.positions = Positions::kParallel;
  EXPECT_THAT(positions(alone), ElementsAre(0, 0, 8));
}

TEST_F(CompositionTest, WhatIsThereIsUsedAndWhatIsNotIsMissingOnce) {
  const ResolvedComposition anchored = resolved(spec("bcb"));
  EXPECT_TRUE(anchored.missing().empty());
  const auto uses = anchored.uses();
  ASSERT_EQ(uses.size(), 4U);
  EXPECT_EQ(uses[1].segment, uses[3].segment) << "one copy, used twice";
  EXPECT_EQ(uses[1].position, 5);
  EXPECT_EQ(uses[3].position, 16);
  EXPECT_EQ(uses[1].rank.chunk, 0xbbbbbbbbbbbbbbbbU);
  CompositionSpec one = spec("bcb");
  one.mode = ReuseMode::kIndependent;
  const auto missing = resolved(one).missing();
  ASSERT_EQ(missing.size(), 2U) << "b once; the system chunk is there in every mode";
  EXPECT_EQ(missing[0].chunk->id, id_of('b'));
  EXPECT_EQ(missing[0].key, VariantKey{});
  one.bos_sink = true;
  EXPECT_EQ(resolved(one).missing()[0].key, VariantKey{.before = "bos"});
  one = spec("b");
  one.mode = ReuseMode::kExact;
  EXPECT_TRUE(resolved(one).missing().empty()) << "a plain prompt needs no KV of chunks";
}

TEST_F(CompositionTest, ComputedInPlaceIsOtherKVAtEveryDistanceFromTheSystemChunk) {
  CompositionSpec one = spec("bcb");
  one.computed_in_place = true;
  EXPECT_THAT(gaps(one), ElementsAre(0, 0, 3, 11));
  EXPECT_EQ(resolved(one).missing().size(), 2U) << "the first stands where it was computed";
  one.positions = Positions::kFixed;
  one.fixed = {10, 15, 12, 40, 60};
  EXPECT_THAT(gaps(one), ElementsAre(0, 0, -3, 25)) << "the system chunk stands at 10";
  one.fixed = {10, 9, 12, 40, 60};
  EXPECT_EQ(refused(one), ErrorCode::kInvalidComposition) << "before what it should see";
  one = spec("cb");
  one.computed_in_place = true;
  one.system_chunk_id.clear();
  one.without_system = true;
  EXPECT_THAT(gaps(one), ElementsAre(0, 0)) << "nothing to be distant from";
}

TEST_F(CompositionTest, TheGradeIsNoBetterThanTheResult) {
  const auto grade = [&](const CompositionSpec& what) { return resolved(what).grade; };
  CompositionSpec one = spec("b");
  EXPECT_EQ(grade(one), ReuseGrade::kEqualMath) << "it has seen all that stands before it";
  EXPECT_EQ(grade(spec("")), ReuseGrade::kEqualMath);
  EXPECT_EQ(grade(spec("bc")), ReuseGrade::kApproximate);
  one.positions = Positions::kParallel;
  EXPECT_EQ(grade(one), ReuseGrade::kEqualMath);
  one.positions = Positions::kFixed;
  one.fixed = {0, 9, 12};
  EXPECT_EQ(grade(one), ReuseGrade::kApproximate);
  for (const std::int32_t start : {0, 100}) {
    one.fixed = {start, start + 5, start + 8};
    EXPECT_EQ(grade(one), ReuseGrade::kEqualMath) << "distances are those of a plain prompt";
  }
  one = spec("b");
  one.mode = ReuseMode::kIndependent;
  EXPECT_EQ(grade(one), ReuseGrade::kApproximate) << "it has not seen the system chunk";
  one.system_chunk_id.clear();
  one.without_system = true;
  EXPECT_EQ(grade(one), ReuseGrade::kEqualMath);
  one.bos_sink = true;
  EXPECT_EQ(grade(one), ReuseGrade::kApproximate);
  one = spec("bcd");
  one.mode = ReuseMode::kExact;
  EXPECT_EQ(grade(one), ReuseGrade::kExact);
  one.mode = ReuseMode::kBlend;
  EXPECT_EQ(grade(one), ReuseGrade::kApproximate);
  one.blend.selector = Selector::kAll;
  EXPECT_EQ(grade(one), ReuseGrade::kEqualMath);
  one.blend = {.selector = Selector::kFirst, .share = 1};
  EXPECT_EQ(grade(one), ReuseGrade::kEqualMath);
  one.blend.selector = Selector::kNone;
  EXPECT_EQ(grade(one), ReuseGrade::kApproximate) << "the share of none is none";
  one.blend.selector = Selector::kExplicit;
  EXPECT_EQ(grade(one), ReuseGrade::kApproximate) << "nor does it count beside a list";
  one.blend.tokens = {17, 16, 15, 14, 13, 12, 11, 10, 9, 8, 7, 7, 6};
  EXPECT_EQ(grade(one), ReuseGrade::kApproximate) << "token 5 is the first of the contexts";
  one.blend.tokens.push_back(5);
  EXPECT_EQ(grade(one), ReuseGrade::kEqualMath) << "all of them, in any order";
}

TEST_F(CompositionTest, TheJoinedIdsAreThoseOfAllPartsInOrder) {
  const ResolvedComposition composition = resolved(spec("db"));
  EXPECT_THAT(composition.joined(),
              ElementsAre('a', 'a', 'a', 'a', 'a', 'd', 'b', 'b', 'b', 'e', 'e'));
  EXPECT_EQ(composition.num_tokens(), 11);
}

TEST_F(CompositionTest, WrongKindsAndNumbersAreRefused) {
  CompositionSpec bad = spec("b");
  bad.system_chunk_id.clear();
  EXPECT_EQ(refused(bad), ErrorCode::kInvalidComposition);
  bad = spec("b");
  bad.query_chunk_id.clear();
  EXPECT_EQ(refused(bad), ErrorCode::kInvalidComposition);
  bad.query_chunk_id = id_of('b');
  EXPECT_EQ(refused(bad), ErrorCode::kInvalidComposition);
  EXPECT_EQ(refused(spec("ba")), ErrorCode::kInvalidComposition);
  EXPECT_EQ(refused(spec("bz")), ErrorCode::kNotFound);
  bad = spec("b");
  bad.positions = Positions::kFixed;
  bad.fixed = {0, 5};
  EXPECT_EQ(refused(bad), ErrorCode::kInvalidComposition);
  bad.fixed = {0, -1, 8};
  EXPECT_EQ(refused(bad), ErrorCode::kInvalidComposition);
}

TEST_F(CompositionTest, ModesThatHaveNoMeaningAreRefused) {
  CompositionSpec one = spec("b");
  one.mode = ReuseMode::kExact;
  one.positions = Positions::kParallel;
  EXPECT_EQ(refused(one), ErrorCode::kInvalidComposition);
  one.mode = ReuseMode::kBlend;
  EXPECT_EQ(refused(one), ErrorCode::kInvalidComposition);
  for (const ReuseMode base : {ReuseMode::kExact, ReuseMode::kBlend}) {
    one = spec("b");
    one.mode = ReuseMode::kBlend;
    one.blend.base = base;
    EXPECT_EQ(refused(one), ErrorCode::kInvalidComposition);
  }
  one = spec("b");
  one.bos_sink = true;
  EXPECT_EQ(refused(one), ErrorCode::kInvalidComposition) << "of mode independent only";
  one = spec("b");
  one.mode = ReuseMode::kIndependent;
  one.computed_in_place = true;
  EXPECT_EQ(refused(one), ErrorCode::kInvalidComposition) << "of mode anchored only";
}

// Context 'c' has another format than the pool's. The first context is computed as in mode
// anchored.
TEST_F(CompositionTest, InModeExactCodedChunksMakeAChainAndOthersAPlainPrompt) {
  Chunk coded = *registry.find(id_of('c'));
  coded.format = FormatId{1};
  coded.variants.clear();
  const auto find = [&](const std::string& id) -> Result<const Chunk*> {
    return id == coded.id ? &coded : registry.find(id);
  };
  CompositionSpec exact = spec("bcd");
  exact.mode = ReuseMode::kExact;
  EXPECT_TRUE(resolved(exact).plain());
  const ResolvedComposition chain = resolve(find, exact, {}).value();
  EXPECT_FALSE(chain.plain());
  EXPECT_EQ(chain.grade, ReuseGrade::kEqualMath);
  EXPECT_EQ(chain.parts[0].key, VariantKey{});
  EXPECT_EQ(chain.parts[1].key, VariantKey{.before = id_of('a')});
  EXPECT_TRUE(chain.parts[1].segment.has_value());
  EXPECT_TRUE(is_chained(chain.parts[2].key));
  EXPECT_TRUE(is_chained(chain.parts[3].key));
  EXPECT_NE(chain.parts[2].key, chain.parts[3].key);
  ASSERT_EQ(chain.missing().size(), 1U) << "the last one stands behind it";
  const Part missing = chain.missing().front();
  EXPECT_EQ(missing.chunk, &coded);
  EXPECT_EQ(chain.chain_before(missing).size(), 2U);
  EXPECT_EQ(missing.position, 8);
  exact = spec("bdc");
  exact.mode = ReuseMode::kExact;
  const ResolvedComposition other = resolve(find, exact, {}).value();
  EXPECT_NE(other.parts[3].key, missing.key) << "what it has seen is its name";
  coded.converted = true;
  EXPECT_EQ(resolve(find, spec("c"), {})->grade, ReuseGrade::kApproximate);
  exact = spec("c");
  exact.mode = ReuseMode::kExact;
  const ResolvedComposition anew = resolve(find, exact, {}).value();
  EXPECT_EQ(anew.grade, ReuseGrade::kEqualMath);
  EXPECT_TRUE(is_chained(anew.parts[1].key)) << "what was converted is no part of it";
}

// The definition of the grades is the oracle: a plain prompt has the pool's own format.
TEST_F(CompositionTest, KVThatAFormatChangesIsApproximateUnlessItIsComputedAgain) {
  Chunk coded = *registry.find(id_of('c'));
  coded.format = FormatId{1};
  coded.variants.clear();
  const auto find = [&](const std::string& id) -> Result<const Chunk*> {
    return id == coded.id ? &coded : registry.find(id);
  };
  const ModelShape finer{}, coarser{.changes_kv = {false, true}};
  CompositionSpec all = spec("c");
  for (const ReuseMode mode : {ReuseMode::kAnchored, ReuseMode::kExact}) {
    all.mode = mode;
    EXPECT_EQ(resolve(find, all, finer)->grade, ReuseGrade::kEqualMath) << reuse_mode_name(mode);
    EXPECT_EQ(resolve(find, all, coarser)->grade, ReuseGrade::kApproximate)
        << reuse_mode_name(mode);
  }
  all.mode = ReuseMode::kBlend;
  all.blend = {.selector = Selector::kAll, .share = 1};
  EXPECT_EQ(resolve(find, all, coarser)->grade, ReuseGrade::kEqualMath) << "in the pool's format";
  all.blend = {.selector = Selector::kNone};
  EXPECT_EQ(resolve(find, all, coarser)->grade, ReuseGrade::kApproximate);
  CompositionSpec others = spec("b");
  others.mode = ReuseMode::kExact;
  EXPECT_EQ(resolve(find, others, coarser)->grade, ReuseGrade::kExact) << "no part has the format";
}

}  // namespace
}  // namespace quire::kv
