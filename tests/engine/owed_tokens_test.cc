// Owed tokens: a rollback on layers that carry a state computes nothing, and the next call that
// needs the state replays what stands behind its restore point, once. Oracle: the same tokens
// computed from the first one, without any reuse. For KV: its rows and blocks before the rollback.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <random>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "kv_rows.h"
#include "quire/api/test_support.h"
#include "quire/checkpoints.h"
#include "quire/llm.h"
#include "quire/sequence.h"

namespace quire {
namespace {

class OwedTokens : public testing::TestWithParam<std::string> {
 protected:
  [[nodiscard]] static LLM open(LLMOptions options = {}) {
    options.threads = 2;
    options.dtype = "float32";
    return must(LLM::open(source_path("tests/golden/model/") + GetParam(), options));
  }
  // The oracle has an engine of its own, so that its prompts leave no restore points.
  [[nodiscard]] std::vector<float> cold(const Ids& ids) {
    return must(oracle_.forward(ids, ForwardReuse::kNone, ForwardRows::kLast)).logits;
  }
  [[nodiscard]] Ids cold_ids(const Ids& ids, std::int32_t count) {
    return must(oracle_.generate(ids, greedy_to_length(count))).token_ids;
  }
  [[nodiscard]] static double computed(const LLM& llm) { return stat(llm, "tokens_computed"); }
  [[nodiscard]] static double replayed(const LLM& llm) { return stat(llm, "tokens_replayed"); }

  LLM oracle_ = open({.prefix_cache = false});
};

Ids first(const Ids& ids, std::int64_t length) { return {ids.begin(), ids.begin() + length}; }

TEST_P(OwedTokens, OfSeveralRollbacksAreReplayedOnceByWhatNeedsTheState) {
  LLM llm = open({.block_tokens = 16});
  const Ids ids = small_ids(120, 4);
  Sequence sequence = must(llm.sequence(first(ids, 40)));
  ASSERT_TRUE(sequence.append({ids.begin() + 40, ids.end()}).ok());
  const double before = computed(llm);
  for (const std::int64_t length : {110, 90, 71}) {
    ASSERT_TRUE(sequence.rollback_to(length).ok());
    EXPECT_EQ(sequence.owed_tokens(), length - 1 - 39) << "a point is behind 39 tokens";
  }
  EXPECT_EQ(computed(llm), before) << "a rollback computes nothing";
  EXPECT_EQ(replayed(llm), 0);
  EXPECT_EQ(must(sequence.logits()), cold(first(ids, 71)));
  EXPECT_EQ(computed(llm) - before, 31 + 1);
  EXPECT_EQ(replayed(llm), 31);
  EXPECT_EQ(must(sequence.logits()), cold(first(ids, 71)));
  EXPECT_EQ(computed(llm) - before, 31 + 2) << "the second time a point is there";
  EXPECT_EQ(replayed(llm), 31);
}

TEST_P(OwedTokens, CountAsComputedInTheUsageOfTheAnswerThatReplaysThem) {
  LLM llm = open();
  const Ids ids = small_ids(90, 5);
  Sequence sequence = must(llm.sequence(first(ids, 30)));
  ASSERT_TRUE(sequence.append({ids.begin() + 30, ids.end()}).ok());
  ASSERT_TRUE(sequence.rollback_to(60).ok());
  EXPECT_EQ(sequence.owed_tokens(), 30);
  const GenerationOutput output = must(sequence.generate(greedy_to_length(5)));
  EXPECT_EQ(output.usage.prompt_tokens, 60);
  EXPECT_EQ(output.usage.cached_tokens, 29);
  EXPECT_EQ(output.token_ids, cold_ids(first(ids, 60), 5));
  EXPECT_EQ(sequence.owed_tokens(), 0);
  EXPECT_EQ(replayed(llm), 30);
}

TEST_P(OwedTokens, KeepTheirBlocksAndTheirKv) {
  for (const std::string dtype : {"auto", "int8"}) {
    LLM llm = open({.kv_dtype = dtype, .block_tokens = 8});
    const Ids ids = small_ids(100, 6);
    Sequence sequence = must(llm.sequence(first(ids, 20)));
    ASSERT_TRUE(sequence.append({ids.begin() + 20, ids.end()}).ok());
    const auto rows = kv_rows(sequence, 0, 76);
    const auto blocks = must(sequence.blocks()).block_ids();
    const double in_use = stat(llm, "blocks_in_use");
    ASSERT_TRUE(sequence.rollback_to(77).ok());
    EXPECT_EQ(sequence.owed_tokens(), 57);
    const auto kept = must(sequence.blocks()).block_ids();
    EXPECT_TRUE(std::ranges::equal(kept, std::span(blocks).first(kept.size())));
    EXPECT_EQ(kept.size(), 10U);
    EXPECT_LE(stat(llm, "blocks_in_use"), in_use);
    ASSERT_TRUE(sequence.append(std::array<TokenId, 1>{ids[77]}).ok());
    const auto after = must(sequence.blocks()).block_ids();
    EXPECT_TRUE(std::ranges::equal(std::span(after).first(9), std::span(kept).first(9)))
        << "full blocks are the same ones";
    EXPECT_EQ(kv_rows(sequence, 0, 76), rows);
    EXPECT_EQ(replayed(llm), 57);
  }
}

TEST_P(OwedTokens, OfAForkAreOwedByBoth) {
  LLM llm = open({.block_tokens = 8});
  const Ids ids = small_ids(60, 7);
  Sequence sequence = must(llm.sequence(ids));
  ASSERT_TRUE(sequence.rollback_to(43).ok());
  const std::int64_t owed = sequence.owed_tokens();
  EXPECT_EQ(owed, 42) << "no point is before it";
  std::vector<Sequence> forks;
  for (int i = 0; i < 8; ++i) {
    forks.push_back(must(sequence.fork()));
    EXPECT_EQ(forks.back().owed_tokens(), owed);
  }
  for (std::size_t i = 0; i < forks.size(); ++i) {
    const Ids more = small_ids(3, static_cast<std::uint32_t>(i));
    ASSERT_TRUE(forks[i].append(more).ok());
    EXPECT_EQ(must(forks[i].logits()), cold(joined(first(ids, 43), more))) << i;
  }
  EXPECT_EQ(replayed(llm), owed) << "the first one leaves a point for the others";
  EXPECT_EQ(must(sequence.logits()), cold(first(ids, 43)));
}

TEST_P(OwedTokens, OfAnEditAreReplayedWithIt) {
  LLM llm = open();
  const Ids ids = small_ids(80, 8);
  Sequence sequence = must(llm.sequence(ids));
  const double before = computed(llm);
  ASSERT_TRUE(sequence.rollback_to(70).ok());
  ASSERT_TRUE(sequence.replace(50, 52, small_ids(4, 9)).ok());
  const Ids edited =
      joined(joined(first(ids, 50), small_ids(4, 9)), Ids(ids.begin() + 52, ids.begin() + 70));
  EXPECT_EQ(sequence.tokens(), edited);
  EXPECT_EQ(computed(llm) - before, std::ssize(edited) - 1) << "once, and the last token later";
  EXPECT_EQ(must(sequence.logits()), cold(edited));
}

TEST_P(OwedTokens, AreReplayedBeforeASequenceIsSaved) {
  const auto folder = std::filesystem::path(testing::TempDir()) / ("owed_" + GetParam());
  std::filesystem::create_directories(folder);
  const Ids ids = small_ids(70, 10);
  {
    LLM llm = open();
    Sequence sequence = must(llm.sequence(ids));
    ASSERT_TRUE(sequence.rollback_to(51).ok());
    EXPECT_GT(sequence.owed_tokens(), 0);
    ASSERT_TRUE(sequence.save(folder / "sequence.qkv").ok());
  }
  LLM other = open();
  Sequence loaded = must(other.load_sequence(folder / "sequence.qkv"));
  EXPECT_EQ(loaded.owed_tokens(), 0);
  EXPECT_EQ(loaded.tokens(), first(ids, 51));
  EXPECT_EQ(must(loaded.logits()), cold(first(ids, 51)));
  EXPECT_EQ(computed(other), 1);
  std::filesystem::remove_all(folder);
}

TEST_P(OwedTokens, AreOwedAgainByTheMarkThatWasMadeOfThem) {
  LLM llm = open();
  const Ids ids = small_ids(64, 11);
  Sequence sequence = must(llm.sequence(ids));
  ASSERT_TRUE(sequence.rollback_to(40).ok());
  const std::int64_t owed = sequence.owed_tokens();
  const Mark mark = must(sequence.checkpoint());
  ASSERT_TRUE(sequence.append(small_ids(5, 12)).ok());
  ASSERT_TRUE(sequence.rollback(mark).ok());
  EXPECT_EQ(sequence.owed_tokens(), owed);
  EXPECT_EQ(must(sequence.generate(greedy_to_length(6))).token_ids, cold_ids(first(ids, 40), 6));
}

TEST_P(OwedTokens, AreReplayedRightWhenEverythingCachedHasGone) {
  LLM llm = open({.block_tokens = 8, .kv_budget_bytes = std::int64_t{700} << 10});
  const Ids ids = small_ids(90, 13);
  Sequence sequence = must(llm.sequence(first(ids, 33)));
  ASSERT_TRUE(sequence.append({ids.begin() + 33, ids.end()}).ok());
  ASSERT_TRUE(sequence.rollback_to(62).ok());
  Sequence fork = must(sequence.fork());
  ASSERT_TRUE(llm.clear_prefix_cache().ok());
  for (std::uint32_t seed = 0; seed < 12; ++seed) {  // other histories take what is free
    (void)must(llm.generate(small_ids(60, 100 + seed), greedy_to_length(3)));
  }
  ASSERT_TRUE(sequence.rollback_to(48).ok());
  EXPECT_EQ(must(sequence.logits()), cold(first(ids, 48)));
  ASSERT_TRUE(fork.rollback_to(20).ok()) << "the point behind 32 tokens is not before it";
  EXPECT_EQ(must(fork.generate(greedy_to_length(9))).token_ids, cold_ids(first(ids, 20), 9));
}

TEST_P(OwedTokens, OfManySequencesAreReplayedInOneBatchUnderPreemption) {
  constexpr std::size_t kThreads = 6;
  LLM llm = open({.block_tokens = 8, .kv_budget_bytes = std::int64_t{400} << 10});
  const SamplingParams params = greedy_to_length(90);
  std::vector<Ids> wanted, got(kThreads);
  for (std::uint32_t i = 0; i < kThreads; ++i) {
    wanted.push_back(cold_ids(first(small_ids(60, 20 + i), 31 + 2 * i), 90));
  }
  std::vector<std::thread> threads;
  for (std::uint32_t i = 0; i < kThreads; ++i) {
    threads.emplace_back([&, i] {
      for (;;) {  // the pool is small, and a sequence holds its KV
        auto sequence = llm.sequence(small_ids(60, 20 + i));
        const bool cut = sequence.ok() && sequence->rollback_to(31 + 2 * i).ok();
        auto output = cut ? sequence->generate(params) : Result<GenerationOutput>(Error{});
        if (output.ok()) {
          got[i] = output->token_ids;
          return;
        }
      }
    });
  }
  std::ranges::for_each(threads, &std::thread::join);
  EXPECT_EQ(got, wanted);
  EXPECT_EQ(stat(llm, "states_in_use"), 0);
}

TEST_P(OwedTokens, OfAnyWayOfUsingASequenceAreThoseOfItsTokens) {
  std::mt19937 random(17);
  const auto below = [&](std::uint64_t n) { return static_cast<std::int64_t>(random() % n); };
  LLM llm = open({.block_tokens = 8});
  std::vector<Sequence> live;
  std::vector<Ids> ids;
  live.push_back(must(llm.sequence(small_ids(30, 1))));
  ids.push_back(small_ids(30, 1));
  std::int64_t owing = 0;
  for (std::uint32_t operation = 0; operation < 250; ++operation) {
    const std::size_t at = random() % live.size();
    switch (below(6)) {
      case 0:
        if (live.size() < 6) {
          live.push_back(must(live[at].fork()));
          ids.push_back(Ids(ids[at]));
        }
        break;
      case 1:
      case 2: {
        const std::int64_t length = 1 + below(ids[at].size());
        ASSERT_TRUE(live[at].rollback_to(length).ok());
        ids[at].resize(static_cast<std::size_t>(length));
        owing += live[at].owed_tokens() > 0 ? 1 : 0;
        break;
      }
      case 3: {
        const Ids more = small_ids(1 + random() % 20, operation);
        ASSERT_TRUE(live[at].append(more).ok());
        ids[at] = joined(ids[at], more);
        break;
      }
      case 4: {
        const auto output = must(live[at].generate(greedy_to_length(3)));
        ASSERT_EQ(output.token_ids, cold_ids(ids[at], 3)) << operation;
        ids[at] = joined(ids[at], output.token_ids);
        break;
      }
      default:
        ASSERT_EQ(must(live[at].logits()), cold(ids[at])) << operation;
    }
    ASSERT_EQ(live[at].tokens(), ids[at]);
  }
  EXPECT_GT(owing, 20);
}

INSTANTIATE_TEST_SUITE_P(Models, OwedTokens,
                         testing::Values("lfm2", "granitemoehybrid", "nemotron_h", "qwen3_5",
                                         "qwen3_next"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace quire
