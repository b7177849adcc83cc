// Restore points that the pool gives up and host memory keeps: requests go on from them as from
// those of the pool. Oracle: an engine with room for all points, and each request computed from its
// first token without any reuse. Models: the tiny random checkpoints of tests/golden/model.
#include "quire/kv_store/host_points.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "quire/api/llm_impl.h"
#include "quire/api/test_support.h"
#include "quire/base/test_length.h"
#include "quire/chunks.h"
#include "quire/engine/engine.h"
#include "quire/engine/engine_core.h"
#include "quire/llm.h"
#include "quire/sequence.h"

namespace quire {
namespace {

using testing::HasSubstr;

constexpr std::int64_t kMiB = std::int64_t{1} << 20;

class HostPoints : public testing::TestWithParam<std::string> {
 protected:
  static LLM open(LLMOptions options = {}) {
    options.threads = 2;
    options.dtype = "float32";
    return must(LLM::open(source_path("tests/golden/model/") + GetParam(), options));
  }

  // Bytes of a pool of so many states and blocks, and the share of the former.
  struct Room {
    std::int64_t states = 0;
    std::int64_t blocks = 0;
  };
  static LLMOptions options_of(const Room& room, std::int64_t host_bytes,
                               const std::string& kv_dtype = "auto",
                               std::int32_t block_tokens = 8) {
    LLM any = open({.kv_dtype = kv_dtype, .block_tokens = block_tokens});
    const auto block = static_cast<std::int64_t>(stat(any, "block_bytes"));
    const auto runtime = any.impl().open().value();
    std::int64_t state = 0;
    EXPECT_TRUE(runtime->engine()
                    .thread()
                    .call([&] { state = runtime->engine().core().states.view().stride; })
                    .ok());
    const std::int64_t budget = room.states * state + room.blocks * block;
    return {.kv_dtype = kv_dtype,
            .block_tokens = block_tokens,
            .kv_budget_bytes = budget,
            .state_share = (static_cast<double>(room.states) + 0.5) * static_cast<double>(state) /
                           static_cast<double>(budget),
            .host_kv_budget_bytes = host_bytes};
  }

  // Room for few states, or for few blocks.
  static LLMOptions few_states(std::int64_t host_bytes) {
    return options_of({.states = 3, .blocks = 300}, host_bytes);
  }
  static LLMOptions few_blocks(std::int64_t host_bytes) {
    return options_of({.states = 24, .blocks = 24}, host_bytes);
  }

  static void expect_right(LLM& llm) {
    const auto runtime = llm.impl().open().value();
    const Status right = runtime->engine().thread().call([&] {
      const engine::EngineCore& core = runtime->engine().core();
      const Status ledger = core.ledger.check();
      EXPECT_TRUE(ledger.ok()) << ledger.error().message;
      if (core.host_points != nullptr) {
        const Status host = core.host_points->check();
        EXPECT_TRUE(host.ok()) << host.error().message;
      }
    });
    ASSERT_TRUE(right.ok());
  }
};

std::vector<float> cold_logits(LLM& llm, const Ids& ids) {
  return must(llm.forward(ids, ForwardReuse::kNone, ForwardRows::kLast)).logits;
}

std::vector<Ids> prompts(std::size_t count) {
  std::vector<Ids> all;
  for (std::size_t i = 0; i < count; ++i) {
    all.push_back(small_ids(30 + 7 * (i % 6), 40 + static_cast<std::uint32_t>(i)));
  }
  return all;
}

TEST_P(HostPoints, GiveTheBitsAndTheTokensOfAnEngineWithRoomForAll) {
  const std::vector<Ids> all = prompts(10);
  LLM large = open({.block_tokens = 8, .kv_budget_bytes = 256 * kMiB, .state_share = 0.5});
  LLM cold = open({.block_tokens = 8});
  for (const bool of_states : {true, false}) {
    LLM tiered = open(of_states ? few_states(64 * kMiB) : few_blocks(64 * kMiB));
    LLM alone = open(of_states ? few_states(0) : few_blocks(0));
    ASSERT_TRUE(large.clear_prefix_cache().ok());
    std::vector<Ids> histories;
    for (const Ids& prompt : all) {
      const Ids answer = must(large.generate(prompt, greedy_to_length(5))).token_ids;
      EXPECT_EQ(must(tiered.generate(prompt, greedy_to_length(5))).token_ids, answer);
      (void)must(alone.generate(prompt, greedy_to_length(5)));
      histories.push_back(joined(joined(prompt, answer), {3, 4}));
    }
    EXPECT_GT(stat(tiered, "host_restore_points"), 0);
    std::int64_t lost = 0;
    for (const Ids& history : histories) {
      const std::int64_t kept = must(large.explain(history)).front().usable_tokens.value_or(0);
      EXPECT_EQ(must(tiered.explain(history)).front().usable_tokens, kept);
      lost += kept - must(alone.explain(history)).front().usable_tokens.value_or(0);
      const ForwardOutput output =
          must(tiered.forward(history, ForwardReuse::kExact, ForwardRows::kLast));
      EXPECT_EQ(output.cached_tokens, kept);
      EXPECT_EQ(output.logits, cold_logits(cold, history));
      EXPECT_EQ(must(large.forward(history)).cached_tokens, kept);
      expect_right(tiered);
    }
    EXPECT_GT(lost, 0) << "without host memory some are computed again";
    EXPECT_GT(stat(tiered, "points_from_host"), 0);
    EXPECT_GT(stat(tiered, "points_to_host"), 0);
    EXPECT_EQ(stat(tiered, "tokens_replayed"), stat(large, "tokens_replayed"));
    EXPECT_EQ(stat(alone, "host_restore_points") + stat(alone, "host_kv_bytes"), 0);
  }
}

TEST_P(HostPoints, SayWhereTheReusedTokensOfAPromptWere) {
  LLM llm = open(few_states(64 * kMiB));
  const Ids first = small_ids(50, 1);
  (void)must(llm.generate(first, greedy_to_length(1)));
  for (const Ids& prompt : prompts(8)) {
    (void)must(llm.generate(prompt, greedy_to_length(4)));
  }
  const auto expect_parts = [&](const std::vector<ReusePart>& parts) {
    ASSERT_EQ(parts.size(), 2U);
    EXPECT_TRUE(parts[0].hit);
    EXPECT_EQ(parts[0].reason, "hit in host memory");
    EXPECT_EQ(parts[0].tokens, 49);
    EXPECT_FALSE(parts[1].hit);
    EXPECT_THAT(parts[1].reason, HasSubstr("last token is always computed"));
    for (const ReusePart& part : parts) {
      EXPECT_EQ(part.usable_tokens, 49);
      EXPECT_EQ(part.matched_tokens, 49);
      EXPECT_EQ(part.replayed_tokens, 0);
    }
  };
  expect_parts(must(llm.explain(first)));
  const GenerationOutput output = must(llm.generate(first, greedy_to_length(1), {.explain = true}));
  expect_parts(output.parts);
  EXPECT_EQ(output.usage.cached_tokens, 49);
  EXPECT_EQ(output.reuse.sources,
            (std::vector<std::pair<std::string, std::int64_t>>{{"host_memory", 49}}));
  EXPECT_EQ(output.reuse.grade, ReuseGrade::kExact);
}

TEST_P(HostPoints, OfOneSaltAreNotFoundByAnother) {
  LLM llm = open(few_states(64 * kMiB));
  const Ids prompt = small_ids(50, 1);
  (void)must(llm.generate(prompt, greedy_to_length(3), {.salt = "one"}));
  for (const Ids& other : prompts(8)) {
    (void)must(llm.generate(other, greedy_to_length(4), {.salt = "one"}));
  }
  EXPECT_GT(stat(llm, "host_restore_points"), 0);
  EXPECT_EQ(must(llm.explain(prompt, {.salt = "two"})).front().usable_tokens, 0);
  EXPECT_EQ(must(llm.generate(prompt, greedy_to_length(3), {.salt = "two"})).usage.cached_tokens,
            0);
  EXPECT_EQ(must(llm.generate(prompt, greedy_to_length(3))).usage.cached_tokens, 0);
  EXPECT_EQ(must(llm.generate(prompt, greedy_to_length(3), {.salt = "one"})).usage.cached_tokens,
            49);
}

TEST_P(HostPoints, StayWithinTheBytesThatTheyMayTake) {
  LLM measured = open(few_states(64 * kMiB));
  for (const Ids& prompt : prompts(6)) {
    (void)must(measured.generate(prompt, greedy_to_length(4)));
  }
  const auto all = static_cast<std::int64_t>(stat(measured, "host_kv_bytes"));
  ASSERT_GT(all, 0);
  for (const std::int64_t budget : {std::int64_t{1}, all / 5, all / 2, all}) {
    LLM llm = open(few_states(budget));
    double most = 0;
    for (int round = 0; round < 2; ++round) {
      for (const Ids& prompt : prompts(8)) {
        const Ids answer = must(llm.generate(prompt, greedy_to_length(4))).token_ids;
        EXPECT_EQ(answer, must(measured.generate(prompt, greedy_to_length(4))).token_ids);
        EXPECT_LE(stat(llm, "host_kv_bytes"), budget);
        most = std::max(most, stat(llm, "host_kv_bytes"));
        expect_right(llm);
      }
    }
    EXPECT_EQ(most > 0, budget >= all / 5) << budget;
    EXPECT_EQ(stat(llm, "host_restore_points") > 0, most > 0);
  }
}

// A rollback and an edit find the points of the history again.
TEST_P(HostPoints, ServeSequencesThatGoBack) {
  const auto computed = [](LLM& llm, std::vector<std::vector<float>>& logits) {
    Sequence sequence = must(llm.sequence(small_ids(60, 4)));
    std::vector<std::int64_t> ends;
    for (std::uint32_t i = 0; i < 5; ++i) {
      ASSERT_TRUE(sequence.append(small_ids(11, 60 + i)).ok());
      ends.push_back(std::ssize(sequence.tokens()));
    }
    for (const Ids& prompt : prompts(10)) {
      (void)must(llm.generate(prompt, greedy_to_length(4)));
    }
    for (auto end = ends.rbegin(); end != ends.rend(); ++end) {
      ASSERT_TRUE(sequence.rollback_to(*end).ok());
      logits.push_back(must(sequence.logits()));
      EXPECT_EQ(logits.back(), cold_logits(llm, sequence.tokens()));
      ASSERT_TRUE(sequence.append(Ids{7}).ok());
      logits.push_back(must(sequence.logits()));
    }
  };
  std::vector<std::vector<float>> kept, tiered;
  LLM large = open({.block_tokens = 8, .kv_budget_bytes = 256 * kMiB, .state_share = 0.5});
  computed(large, kept);
  LLM llm = open(options_of({.states = 4, .blocks = 300}, 64 * kMiB));
  computed(llm, tiered);
  EXPECT_EQ(tiered, kept);
  EXPECT_GT(stat(llm, "points_from_host"), 0);
  // In the pool points of a long history are thinned, which host memory has by then.
  EXPECT_LE(stat(llm, "tokens_computed"), stat(large, "tokens_computed"));
  EXPECT_LE(stat(llm, "tokens_replayed"), stat(large, "tokens_replayed"));
  expect_right(llm);
}

TEST_P(HostPoints, GoWithTheCacheAndLeaveNothingInUse) {
  LLM llm = open(few_blocks(64 * kMiB));
  for (const Ids& prompt : prompts(8)) {
    (void)must(llm.generate(prompt, greedy_to_length(4)));
  }
  EXPECT_GT(stat(llm, "host_kv_bytes"), 0);
  EXPECT_EQ(stat(llm, "states_in_use"), 0);
  EXPECT_EQ(stat(llm, "blocks_in_use"), 0);
  ASSERT_TRUE(llm.clear_prefix_cache().ok());
  EXPECT_EQ(stat(llm, "host_restore_points"), 0);
  EXPECT_EQ(stat(llm, "host_kv_bytes"), 0);
  EXPECT_EQ(stat(llm, "restore_points"), 0);
  for (const Ids& prompt : prompts(8)) {
    EXPECT_EQ(must(llm.explain(prompt)).front().usable_tokens, 0);
  }
  expect_right(llm);
  llm.close();
  EXPECT_EQ(llm.stats().error().code, ErrorCode::kClosed);
}

TEST_P(HostPoints, ServeRequestsThatRunTogetherAndArePreempted) {
  const std::vector<Ids> all = prompts(9);
  const std::vector<Prompt> batch(all.begin(), all.end());
  const SamplingParams params = greedy_to_length(60);
  LLM large = open({.block_tokens = 8, .kv_budget_bytes = 256 * kMiB, .state_share = 0.5});
  for (const std::string policy : {"fcfs", "priority", "shortest", "adaptive"}) {
    LLMOptions options = options_of({.states = 5, .blocks = 40}, 64 * kMiB);
    options.scheduler = policy;
    options.preemption = policy == "fcfs" ? "recompute" : "swap";
    options.max_batch_tokens = 32;
    LLM llm = open(options);
    for (int round = 0; round < 3; ++round) {
      const auto outputs = must(llm.generate_batch(batch, {&params, 1}));
      for (std::size_t i = 0; i < all.size(); ++i) {
        EXPECT_EQ(outputs[i].token_ids, must(large.generate(all[i], params)).token_ids) << i;
      }
      expect_right(llm);
    }
    EXPECT_GT(stat(llm, "points_from_host"), 0) << policy;
    EXPECT_EQ(stat(llm, "states_in_use"), 0);
  }
}

// KV that is stored block by block has points at the ends of blocks alone.
TEST_P(HostPoints, KeepEachFormatOfKv) {
  for (const std::string kv_dtype : {"bfloat16", "int8", "fp8", "int4"}) {
    const bool by_block = kv_dtype == "fp8" || kv_dtype == "int4";
    LLM llm = open(options_of({.states = 3, .blocks = 60}, 64 * kMiB, kv_dtype, 32));
    const Ids first = small_ids(150, 3);
    const Ids answer = must(llm.generate(first, greedy_to_length(9))).token_ids;
    for (std::uint32_t i = 0; i < 8; ++i) {
      (void)must(llm.generate(small_ids(70, 20 + i), greedy_to_length(4)));
    }
    const double before = stat(llm, "points_from_host");
    const GenerationOutput again = must(llm.generate(first, greedy_to_length(9)));
    EXPECT_EQ(again.token_ids, answer) << kv_dtype;
    EXPECT_EQ(again.usage.cached_tokens, by_block ? 128 : 149) << kv_dtype;
    EXPECT_EQ(stat(llm, "points_from_host"), before + 1) << kv_dtype;
    const Ids next = joined(joined(first, answer), small_ids(25, 4));
    EXPECT_EQ(must(llm.forward(next, ForwardReuse::kExact, ForwardRows::kLast)).logits,
              cold_logits(llm, next))
        << kv_dtype;
    expect_right(llm);
  }
}

// Requests and sequences at random, in a pool that holds a few of them. Oracle: cold runs.
TEST_P(HostPoints, GiveColdBitsInRandomOperations) {
  std::mt19937 random(11);
  const auto below = [&](std::size_t n) { return static_cast<std::size_t>(random() % n); };
  double from_host = 0;
  for (const std::int64_t host_bytes : {std::int64_t{40} << 10, 4 * kMiB}) {
    LLM llm = open(options_of({.states = 7, .blocks = 40}, host_bytes));
    const std::vector<std::string> salts = {"", "one"};
    std::vector<std::pair<Ids, std::string>> texts;
    std::vector<Sequence> sequences;
    for (int i = 0; i < base::test_length(1'500, 150); ++i) {
      Ids text = small_ids(1 + below(30), static_cast<std::uint32_t>(below(5)));
      std::string salt = salts[below(2)];
      if (!texts.empty() && below(3) > 0) {
        const auto& [known, its] = texts[below(texts.size())];
        text = joined(
            {known.begin(), known.begin() + 1 + static_cast<std::ptrdiff_t>(below(known.size()))},
            text);
        salt = below(4) == 0 ? salt : its;
      }
      text.resize(std::min<std::size_t>(text.size(), 100));
      switch (below(6)) {
        case 0: {
          const ForwardOutput output =
              must(llm.forward(text, ForwardReuse::kExact, ForwardRows::kLast, {}, {.salt = salt}));
          EXPECT_EQ(output.logits, cold_logits(llm, text));
          break;
        }
        case 1: {
          if (sequences.size() > 1) {
            sequences.erase(sequences.begin());
          }
          sequences.push_back(must(llm.sequence(text)));
          EXPECT_EQ(must(sequences.back().logits()), cold_logits(llm, text));
          break;
        }
        case 2:
          if (!sequences.empty()) {
            Sequence& sequence = sequences[below(sequences.size())];
            const auto length = static_cast<std::int64_t>(1 + below(sequence.tokens().size()));
            ASSERT_TRUE(sequence.rollback_to(length).ok());
            ASSERT_TRUE(sequence.append(small_ids(1 + below(9), 3)).ok());
            EXPECT_EQ(must(sequence.logits()), cold_logits(llm, sequence.tokens()));
          }
          break;
        default: {
          const auto told = must(llm.explain(text, {.salt = salt})).front().usable_tokens;
          const GenerationOutput output = must(llm.generate(
              text, greedy_to_length(1 + static_cast<std::int32_t>(below(6))), {.salt = salt}));
          EXPECT_EQ(output.usage.cached_tokens, told);
          texts.emplace_back(joined(text, output.token_ids), salt);
        }
      }
      if (below(60) == 0) {
        ASSERT_TRUE(llm.clear_prefix_cache().ok());
      }
      EXPECT_LE(stat(llm, "host_kv_bytes"), host_bytes);
      expect_right(llm);
      ASSERT_FALSE(HasFailure()) << i;
    }
    from_host += stat(llm, "points_from_host");
    sequences.clear();
    EXPECT_EQ(settled_stat(llm, "states_in_use", 0), 0);
    EXPECT_EQ(settled_stat(llm, "blocks_in_use", 0), 0);
  }
  EXPECT_GT(from_host, 0);
}

TEST_P(HostPoints, AreRefusedByNameWhereTheyMeanNothing) {
  LLMOptions options{.host_kv_budget_bytes = kMiB};
  const auto dense = LLM::open(source_path("tests/golden/model/llama_gqa"), options);
  EXPECT_EQ(dense.error().code, ErrorCode::kUnsupported);
  EXPECT_THAT(dense.error().message, HasSubstr("host_kv_budget"));
  options.host_kv_budget_bytes = -5;
  const auto negative = LLM::open(source_path("tests/golden/model/") + GetParam(), options);
  EXPECT_EQ(negative.error().code, ErrorCode::kInvalidArgument);
  EXPECT_THAT(negative.error().message, HasSubstr("host_kv_budget"));
}

INSTANTIATE_TEST_SUITE_P(Models, HostPoints,
                         testing::Values("lfm2", "granitemoehybrid", "nemotron_h", "qwen3_5"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace quire
