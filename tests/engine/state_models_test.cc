// Models with layers that carry a state: where their requests go on from, and that nothing of it
// changes a bit. Oracle: the same request computed from its first token, without any reuse. Models:
// the tiny random checkpoints of tests/golden/model, which transformers agrees with.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "forked_branches.h"
#include "quire/api/test_support.h"
#include "quire/chunks.h"
#include "quire/drafter.h"
#include "quire/llm.h"
#include "quire/sequence.h"

namespace quire {
namespace {

using testing::HasSubstr;

class StateModels : public testing::TestWithParam<std::string> {
 protected:
  [[nodiscard]] static std::string path() {
    return source_path("tests/golden/model/") + GetParam();
  }
  [[nodiscard]] static LLM open(LLMOptions options = {}) {
    options.threads = 2;
    options.dtype = "float32";
    return must(LLM::open(path(), options));
  }
};

Ids cold_ids(LLM& llm, const Ids& prompt, std::int32_t count) {
  Ids all = prompt;
  for (std::int32_t i = 0; i < count; ++i) {
    const auto logits = must(llm.forward(all, ForwardReuse::kNone, ForwardRows::kLast)).logits;
    all.push_back(static_cast<TokenId>(std::ranges::max_element(logits) - logits.begin()));
  }
  return {all.begin() + std::ssize(prompt), all.end()};
}

std::vector<float> cold_logits(LLM& llm, const Ids& ids) {
  return must(llm.forward(ids, ForwardReuse::kNone, ForwardRows::kLast)).logits;
}

TEST_P(StateModels, GenerateWhatComputingEachTokenFromTheBeginningGives) {
  LLM llm = open();
  for (const std::size_t length : {1, 2, 31, 32, 33, 70}) {
    const Ids prompt = small_ids(length, 3);
    EXPECT_EQ(must(llm.generate(prompt, greedy_to_length(12))).token_ids, cold_ids(llm, prompt, 12))
        << length;
  }
}

TEST_P(StateModels, ComputeOnlyTheLastTokenOfAPromptThatWasThere) {
  for (const std::int32_t block_tokens : {1, 16, 32}) {
    LLM llm = open({.block_tokens = block_tokens});
    for (std::size_t length = 2; length <= 70; length += length < 36 ? 1 : 7) {
      const Ids prompt = small_ids(length, static_cast<std::uint32_t>(length));
      const GenerationOutput first = must(llm.generate(prompt, greedy_to_length(5)));
      const GenerationOutput again = must(llm.generate(prompt, greedy_to_length(5)));
      EXPECT_EQ(again.usage.cached_tokens, std::ssize(prompt) - 1) << length;
      EXPECT_EQ(again.token_ids, first.token_ids) << length;
      const ForwardOutput warm = must(llm.forward(prompt));
      EXPECT_EQ(warm.cached_tokens, std::ssize(prompt) - 1) << length;
      EXPECT_EQ(warm.logits, cold_logits(llm, prompt)) << length;
    }
  }
}

TEST_P(StateModels, TakePointsOfPromptsThatThemselvesUseNothingCached) {
  for (const std::size_t length : {40, 70, 200}) {
    LLM llm = open();
    const Ids prompt = small_ids(length, 17);
    const auto cold = cold_logits(llm, prompt);
    const ForwardOutput warm = must(llm.forward(prompt, ForwardReuse::kExact, ForwardRows::kLast));
    EXPECT_EQ(warm.cached_tokens, std::ssize(prompt) - 1);
    EXPECT_EQ(warm.logits, cold);
    EXPECT_EQ(must(llm.forward(prompt, ForwardReuse::kNone, ForwardRows::kLast)).cached_tokens, 0);
  }
}

TEST_P(StateModels, GoOnFromTheEndOfARegisteredSystemChunk) {
  for (const std::size_t length : {20, 64, 100}) {
    LLMOptions options;
    options.threads = 2;
    options.dtype = "float32";
    ChunkedLLM llm = must(ChunkedLLM::open(path(), options));
    const Ids text = small_ids(length, 1);
    const std::string system =
        must(llm.register_chunk({.content = text, .type = ChunkType::kSystemPrompt}));
    const std::string context =
        must(llm.register_chunk({.content = small_ids(70, 2), .type = ChunkType::kContext}));
    const Ids prompt = joined(text, small_ids(9, 8));
    const ForwardOutput plain =
        must(llm.llm().forward(prompt, ForwardReuse::kExact, ForwardRows::kLast));
    EXPECT_EQ(plain.cached_tokens, std::ssize(text));
    EXPECT_EQ(plain.logits, cold_logits(llm.llm(), prompt));
    const std::string query =
        must(llm.register_chunk({.content = small_ids(5, 4), .type = ChunkType::kQuery}));
    const GenerationOutput composed = must(llm.generate_from_chunks({.system_chunk_id = system,
                                                                     .context_chunk_ids = {context},
                                                                     .query_chunk_id = query,
                                                                     .mode = ReuseMode::kExact},
                                                                    greedy_to_length(4)));
    EXPECT_EQ(composed.usage.cached_tokens, std::ssize(text));
    EXPECT_EQ(composed.token_ids,
              cold_ids(llm.llm(), joined(joined(text, small_ids(70, 2)), small_ids(5, 4)), 4));
  }
}

TEST_P(StateModels, GoOnFromTheEndOfAnAnswer) {
  LLM llm = open();
  Ids history = small_ids(19, 5);
  for (int turn = 0; turn < 6; ++turn) {
    const GenerationOutput answer = must(llm.generate(history, greedy_to_length(9)));
    const std::int64_t known = std::ssize(history) + 8;  // the last token was never fed
    history = joined(joined(history, answer.token_ids), small_ids(7, 100 + turn));
    const ForwardOutput next = must(llm.forward(history, ForwardReuse::kExact, ForwardRows::kLast));
    EXPECT_EQ(next.cached_tokens, known);
    EXPECT_EQ(next.logits, cold_logits(llm, history));
  }
}

TEST_P(StateModels, LearnWhereTextsBranch) {
  LLM llm = open();
  const Ids shared = small_ids(100, 8);
  for (std::uint32_t i = 0; i < 4; ++i) {
    const Ids prompt = joined(shared, small_ids(30, 50 + i));
    const ForwardOutput output =
        must(llm.forward(prompt, ForwardReuse::kExact, ForwardRows::kLast));
    EXPECT_EQ(output.cached_tokens, i < 2 ? 0 : 96) << i;
    EXPECT_EQ(output.logits, cold_logits(llm, prompt)) << i;
  }
}

TEST_P(StateModels, GoTheirOwnWaysInForks) {
  LLM llm = open();
  expect_branches_equal_cold_runs(llm, 7, 60, cold_logits);
}

// Guesses what a model says next, in a branch beside a stem that is wrong from some token on.
class RightBranches final : public Drafter {
 public:
  explicit RightBranches(LLM model) : model_(std::move(model)) {}
  std::vector<TokenId> propose(std::span<const TokenId> /*tokens*/,
                               std::int32_t /*most*/) override {
    return {};
  }
  DraftTree propose_tree(std::span<const TokenId> tokens, std::int32_t most,
                         std::int32_t /*most_in_tree*/) override {
    const Ids right =
        must(model_.generate(Ids(tokens.begin(), tokens.end()), greedy_to_length(most))).token_ids;
    const std::size_t same = draws_() % right.size();
    DraftTree tree;
    for (std::size_t i = 0; i < right.size(); ++i) {
      tree.tokens.push_back(i < same ? right[i] : std::abs(right[i] - 1));
      tree.parents.push_back(static_cast<std::int32_t>(i) - 1);
    }
    for (std::size_t i = same; i < right.size(); ++i) {
      tree.parents.push_back(static_cast<std::int32_t>(i == same ? i : tree.tokens.size()) - 1);
      tree.tokens.push_back(right[i]);
    }
    return tree;
  }

 private:
  LLM model_;
  std::mt19937 draws_{4};
};

TEST_P(StateModels, GoTheirOwnWaysInForksByBranchesOfGuesses) {
  LLM llm =
      open({.block_tokens = 4,
            .speculate = R"({"method": "custom", "max_tokens": 4, "width": 2, "adapt": false})",
            .drafter = std::make_shared<RightBranches>(open())});
  expect_branches_equal_cold_runs(llm, 7, 60, cold_logits);
  EXPECT_GT(stat(llm, "branches_linked"), 5);
}

TEST_P(StateModels, EqualTheColdRunRolledBackToEveryLength) {
  LLM llm = open();
  Sequence sequence = must(llm.sequence(small_ids(20, 4)));
  (void)must(sequence.generate(greedy_to_length(30)));
  const Ids all = sequence.tokens();
  for (std::int64_t length = std::ssize(all) - 1; length > 0; --length) {
    Sequence cut = must(sequence.fork());
    ASSERT_TRUE(cut.rollback_to(length).ok());
    ASSERT_EQ(must(cut.logits()), cold_logits(llm, {all.begin(), all.begin() + length})) << length;
  }
}

TEST_P(StateModels, GiveTheSameIdsWhenTheyArePreempted) {
  LLM llm = open({.block_tokens = 8, .kv_budget_bytes = std::int64_t{400} << 10});
  std::vector<Ids> prompts;
  for (std::uint32_t i = 0; i < 6; ++i) {
    prompts.push_back(small_ids(20 + 3 * i, 70 + i));
  }
  const std::vector<Prompt> batch(prompts.begin(), prompts.end());
  const SamplingParams params = greedy_to_length(250);
  const auto outputs = must(llm.generate_batch(batch, {&params, 1}));
  EXPECT_GT(stat(llm, "preemptions"), 0);
  LLM large = open();
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    EXPECT_EQ(outputs[i].token_ids, must(large.generate(prompts[i], params)).token_ids) << i;
  }
}

// Oracle: the same prompts alone. Host memory takes as many bytes as the pool has, so some are
// computed again.
TEST_P(StateModels, GiveTheSameIdsWhenTheirStatesAreSwapped) {
  std::vector<Prompt> prompts;
  for (std::uint32_t i = 0; i < 6; ++i) {
    prompts.emplace_back(small_ids(20 + 3 * i, 40 + i));
  }
  const SamplingParams params = greedy_to_length(250);
  const auto run = [&](const std::string& preemption, bool prefix_cache) {
    LLM llm = open({.block_tokens = 8,
                    .kv_budget_bytes = std::int64_t{400} << 10,
                    .prefix_cache = prefix_cache,
                    .preemption = preemption});
    std::vector<Ids> ids;
    for (const GenerationOutput& output : must(llm.generate_batch(prompts, {&params, 1}))) {
      ids.push_back(output.token_ids);
    }
    EXPECT_EQ(stat(llm, "swaps_restored") > 0, preemption == "swap");
    EXPECT_EQ(stat(llm, "states_in_use"), 0);
    return std::pair(ids, stat(llm, "tokens_computed"));
  };
  LLM large = open();
  std::vector<Ids> alone;
  for (const Prompt& prompt : prompts) {
    alone.push_back(must(large.generate(prompt, params)).token_ids);
  }
  const auto [swapped, computed] = run("swap", false);
  EXPECT_EQ(swapped, alone);
  EXPECT_EQ(run("swap", true).first, alone) << "some go on from a restore point";
  EXPECT_LT(computed, run("recompute", false).second);
}

TEST_P(StateModels, HoldNoStateWhenNothingRuns) {
  LLM llm = open();
  for (std::uint32_t i = 0; i < 40; ++i) {
    (void)must(llm.generate(small_ids(10 + i, i), greedy_to_length(3)));
  }
  EXPECT_EQ(stat(llm, "states_in_use"), 0);
  EXPECT_GT(stat(llm, "restore_points"), 0);
  ASSERT_TRUE(llm.clear_prefix_cache().ok());
  EXPECT_EQ(stat(llm, "restore_points"), 0);
  EXPECT_EQ(must(llm.forward(small_ids(20, 10))).cached_tokens, 0);
}

TEST_P(StateModels, FindNothingOfAnotherSalt) {
  LLM llm = open();
  const Ids prompt = small_ids(40, 3);
  (void)must(llm.generate(prompt, greedy_to_length(3), {.salt = "one"}));
  EXPECT_EQ(must(llm.generate(prompt, greedy_to_length(3), {.salt = "two"})).usage.cached_tokens,
            0);
  EXPECT_EQ(must(llm.generate(prompt, greedy_to_length(3), {.salt = "one"})).usage.cached_tokens,
            39);
}

TEST_P(StateModels, ReplayAtMostHalfOfWhatStandsBehindAnEdit) {
  LLM llm = open();
  const Ids prompt = small_ids(480, 6);
  (void)must(llm.generate(prompt, greedy_to_length(1)));
  for (const std::size_t share : {9, 5, 1}) {
    Ids edited = prompt;
    const std::size_t place = prompt.size() * share / 10;
    edited[place] = edited[place] == 5 ? 6 : 5;
    const ForwardOutput output =
        must(llm.forward(edited, ForwardReuse::kExact, ForwardRows::kLast));
    const auto replayed = static_cast<std::int64_t>(place) - output.cached_tokens;
    EXPECT_LE(replayed, static_cast<std::int64_t>(prompt.size() - place) / 2 + 256) << share;
    EXPECT_EQ(output.logits, cold_logits(llm, edited)) << share;
  }
}

TEST_P(StateModels, KeepFewPointsOfALongConversation) {
  LLM llm = open({.kv_budget_bytes = std::int64_t{64} << 20});
  Ids history = small_ids(8, 2);
  while (history.size() < 480) {
    history = joined(history, must(llm.generate(history, greedy_to_length(4))).token_ids);
    history = joined(history, small_ids(20, static_cast<std::uint32_t>(history.size())));
  }
  EXPECT_LE(stat(llm, "restore_points"), std::log2(history.size()));
  EXPECT_EQ(must(llm.forward(history, ForwardReuse::kExact, ForwardRows::kLast)).logits,
            cold_logits(llm, history));
}

TEST_P(StateModels, SayWhyAKnownHistoryIsComputedAgain) {
  LLM llm = open({.block_tokens = 16});
  const Ids shared = small_ids(64, 1);
  (void)must(llm.generate(joined(shared, small_ids(9, 2)), greedy_to_length(1)));
  const Ids other = joined(shared, small_ids(9, 3));
  const std::vector<ReusePart> parts = must(llm.explain(other));
  ASSERT_EQ(parts.size(), 1);
  EXPECT_EQ(parts[0].matched_tokens, 64);
  EXPECT_EQ(parts[0].usable_tokens, 0);
  EXPECT_EQ(parts[0].replayed_tokens, 64);
  EXPECT_THAT(parts[0].reason, HasSubstr("no restore point"));
  EXPECT_EQ(stat(llm, "tokens_replayed"), 0) << "explaining counts nothing";
  (void)must(llm.generate(other, greedy_to_length(1)));
  EXPECT_EQ(stat(llm, "tokens_replayed"), 64);
  const std::vector<ReusePart> learned = must(llm.explain(joined(shared, small_ids(9, 4))));
  ASSERT_EQ(learned.size(), 2);
  EXPECT_TRUE(learned[0].hit);
  EXPECT_EQ(learned[0].tokens, 64);
  EXPECT_EQ(learned[1].replayed_tokens, 0);
}

// The model's own logits say what the perplexity is. Slices of 128 tokens carry the state on.
TEST_P(StateModels, MeasureTheAccuracyOfKVInTheirLayersOfAttention) {
  LLM llm = open();
  const Ids ids = small_ids(150, 1);
  const ForwardOutput all = must(llm.forward(ids, ForwardReuse::kNone, ForwardRows::kAll));
  const std::size_t vocab = all.logits.size() / ids.size();
  double nll = 0;
  for (std::size_t i = 0; i + 1 < ids.size(); ++i) {
    const std::span row = std::span(all.logits).subspan(i * vocab, vocab);
    double sum = 0;
    for (const float logit : row) {
      sum += std::exp(double{logit});
    }
    nll += std::log(sum) - row[static_cast<std::size_t>(ids[i + 1])];
  }
  const KVAccuracy exact = must(llm.kv_accuracy(ids, "float32"));
  EXPECT_EQ(exact.logit_kl_mean, 0);
  EXPECT_EQ(exact.key_error.max, 0);
  EXPECT_NEAR(exact.perplexity, std::exp(nll / static_cast<double>(ids.size() - 1)), 1e-3);
  const KVAccuracy coded = must(llm.kv_accuracy(ids, "int8"));
  EXPECT_GT(coded.key_error.mean, 0);
  EXPECT_LT(coded.key_error.max, 0.02);
  EXPECT_LT(coded.logit_kl_mean, 1e-3);
}

TEST_P(StateModels, RefuseByNameWhatStatesCannotFollow) {
  LLMOptions small;
  small.kv_budget_bytes = 4096;
  EXPECT_THAT(LLM::open(path(), small).error().message, HasSubstr("states"));
  LLMOptions share;
  share.state_share = 0.95;
  EXPECT_THAT(LLM::open(path(), share).error().message, HasSubstr("state_share"));
}

TEST_P(StateModels, ComposeChunksInModeExact) {
  LLMOptions options;
  options.threads = 2;
  ChunkedLLM llm = must(ChunkedLLM::open(path(), options));
  const auto chunk = [&](ChunkType type, std::uint32_t seed) {
    return must(llm.register_chunk({.content = small_ids(23, seed), .type = type}));
  };
  const CompositionSpec spec{
      .system_chunk_id = chunk(ChunkType::kSystemPrompt, 1),
      .context_chunk_ids = {chunk(ChunkType::kContext, 2), chunk(ChunkType::kContext, 3)},
      .query_chunk_id = chunk(ChunkType::kQuery, 4),
      .mode = ReuseMode::kExact};
  const Ids all = joined(joined(small_ids(23, 1), small_ids(23, 2)),
                         joined(small_ids(23, 3), small_ids(23, 4)));
  EXPECT_EQ(must(llm.generate_from_chunks(spec, greedy_to_length(8))).token_ids,
            must(llm.llm().generate(all, greedy_to_length(8))).token_ids);
}

// KV in other formats. Oracle: the same format without any reuse.
TEST_P(StateModels, EqualTheColdRunInEachFormatOfKv) {
  for (const std::string kv_dtype : {"bfloat16", "int8", "fp8", "int4"}) {
    LLM llm = open({.kv_dtype = kv_dtype});
    const bool by_block = kv_dtype == "fp8" || kv_dtype == "int4";
    const Ids prompt = small_ids(150, 3);
    const Ids answer = must(llm.generate(prompt, greedy_to_length(40))).token_ids;
    EXPECT_EQ(answer, cold_ids(llm, prompt, 40)) << kv_dtype;
    const GenerationOutput again = must(llm.generate(prompt, greedy_to_length(40)));
    EXPECT_EQ(again.token_ids, answer) << kv_dtype;
    EXPECT_EQ(again.usage.cached_tokens, by_block ? 128 : 149) << kv_dtype;
    const Ids next = joined(joined(prompt, answer), small_ids(25, 4));
    const ForwardOutput turn = must(llm.forward(next, ForwardReuse::kExact, ForwardRows::kLast));
    EXPECT_EQ(turn.cached_tokens, by_block ? 160 : 189) << kv_dtype << " (160: a cold run's point)";
    EXPECT_EQ(turn.logits, cold_logits(llm, next)) << kv_dtype;
    Sequence sequence = must(llm.sequence(next));
    const base::TemporaryFolder folder;
    const std::string file = (folder.path() / "sequence").string();
    ASSERT_TRUE(sequence.save(file).ok());
    LLM other = open({.kv_dtype = kv_dtype});
    Sequence loaded = must(other.load_sequence(file));
    EXPECT_EQ(must(loaded.logits()), cold_logits(llm, next)) << kv_dtype;
    for (const std::int64_t length : {std::ssize(next) - 1, std::int64_t{170}, std::int64_t{40}}) {
      for (Sequence* each : {&sequence, &loaded}) {
        Sequence cut = must(each->fork());
        ASSERT_TRUE(cut.rollback_to(length).ok());
        EXPECT_EQ(must(cut.logits()), cold_logits(llm, {next.begin(), next.begin() + length}))
            << kv_dtype << " " << length;
        (void)must(cut.generate(greedy_to_length(3)));
        EXPECT_EQ(must(cut.logits()), cold_logits(llm, cut.tokens())) << kv_dtype << " " << length;
      }
    }
    LLM plain = open();
    EXPECT_NE(loaded.logits().value(), cold_logits(plain, next)) << "the format has an effect";
    EXPECT_EQ(plain.load_sequence(file).error().code, ErrorCode::kIncompatible) << kv_dtype;
  }
}

TEST_P(StateModels, TakePointsOfLongAnswersWhereKvIsStoredBlockByBlock) {
  LLM llm = open({.kv_dtype = "int4"});
  const Ids prompt = small_ids(70, 3);
  Ids history = joined(prompt, must(llm.generate(prompt, greedy_to_length(300))).token_ids);
  const ForwardOutput turn = must(llm.forward(history, ForwardReuse::kExact, ForwardRows::kLast));
  EXPECT_EQ(turn.cached_tokens, 256);
  EXPECT_EQ(turn.logits, cold_logits(llm, history));
}

// Chunks of one request after the other, and what the second of two with a common beginning
// computes.
TEST_P(StateModels, GoOnFromTheEndOfTheLastChunkThatACompositionShares) {
  LLMOptions options;
  options.threads = 2;
  options.dtype = "float32";
  options.block_tokens = 16;
  ChunkedLLM llm = must(ChunkedLLM::open(path(), options));
  std::vector<Ids> texts;
  const auto chunk = [&](ChunkType type, std::size_t length) {
    texts.push_back(small_ids(length, 40 + static_cast<std::uint32_t>(texts.size())));
    return must(llm.register_chunk({.content = texts.back(), .type = type}));
  };
  const std::string system = chunk(ChunkType::kSystemPrompt, 37);
  const std::vector<std::string> contexts = {chunk(ChunkType::kContext, 50),
                                             chunk(ChunkType::kContext, 2),
                                             chunk(ChunkType::kContext, 45)};
  const std::vector<std::string> queries = {chunk(ChunkType::kQuery, 9),
                                            chunk(ChunkType::kQuery, 11)};
  const auto spec = [&](std::vector<std::size_t> order, std::size_t query) {
    CompositionSpec made{
        .system_chunk_id = system, .query_chunk_id = queries[query], .mode = ReuseMode::kExact};
    for (const std::size_t context : order) {
      made.context_chunk_ids.push_back(contexts[context]);
    }
    return made;
  };
  const auto ids = [&](std::vector<std::size_t> order, std::size_t query) {
    Ids joined_ids = texts[0];
    for (const std::size_t context : order) {
      joined_ids = joined(joined_ids, texts[1 + context]);
    }
    return joined(joined_ids, texts[4 + query]);
  };
  struct Case {
    std::vector<std::size_t> order;
    std::size_t query;
    std::int64_t cached;
  };
  const std::vector<Case> cases = {
      {{0, 1, 2}, 0, 37},       {{0, 1, 2}, 1, 37 + 50 + 2 + 45},  // another query
      {{0, 1}, 1, 37 + 50 + 2}, {{0, 2, 1}, 0, 37 + 50},          {{2, 0}, 0, 37}, {{}, 1, 37}};
  LLM plain = open();
  for (const Case& each : cases) {
    const std::string what = testing::PrintToString(each.order);
    const Ids all = ids(each.order, each.query);
    const auto parts = must(llm.llm().explain(all));
    EXPECT_EQ(parts.front().usable_tokens, each.cached) << what;
    EXPECT_GE(parts.front().matched_tokens, each.cached) << what;
    EXPECT_LE(parts.front().replayed_tokens, 16) << what;
    const double before = stat(llm, "tokens_computed");
    const GenerationOutput output =
        must(llm.generate_from_chunks(spec(each.order, each.query), greedy_to_length(6)));
    EXPECT_EQ(output.usage.cached_tokens, each.cached) << what;
    EXPECT_EQ(stat(llm, "tokens_computed") - before, std::ssize(all) - each.cached + 5) << what;
    EXPECT_EQ(output.token_ids, cold_ids(plain, all, 6)) << what;
  }
  // A sequence of a composition takes the same points.
  ASSERT_TRUE(llm.llm().clear_prefix_cache().ok());
  (void)must(llm.sequence(spec({0, 1}, 0)));
  EXPECT_EQ(
      must(llm.generate_from_chunks(spec({0, 2}, 1), greedy_to_length(1))).usage.cached_tokens,
      37 + 50);
}

INSTANTIATE_TEST_SUITE_P(Models, StateModels,
                         testing::Values("lfm2", "lfm2_bias", "lfm2_moe", "granitemoehybrid",
                                         "nemotron_h", "qwen3_5", "qwen3_5_image", "qwen3_5_moe",
                                         "qwen3_next"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace quire
