// Models of which some layers have a window: their KV behind the window is freed while other layers
// keep theirs. Warm equals cold, bit for bit, whatever has gone. Oracle: a cold run of an engine
// with room for everything. Models: the tiny random checkpoints of tests/golden/model, with windows
// of 24 tokens.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "forked_branches.h"
#include "quire/api/test_support.h"
#include "quire/base/temporary_folder.h"
#include "quire/llm.h"
#include "quire/options.h"
#include "quire/sampling.h"
#include "quire/sequence.h"
#include "quire/types.h"

namespace quire {
namespace {

std::vector<std::string> models() {
  std::vector<std::string> names = {"gemma2", "gemma3", "gemma4", "gpt_oss", "qwen2_window"};
  std::erase_if(names, [](const std::string& name) { return !computes_here(name) || on_gpu(); });
  return names;
}

class WindowGroups : public testing::TestWithParam<std::string> {
 protected:
  [[nodiscard]] static std::string path() {
    return source_path("tests/golden/model/") + GetParam();
  }
  // Opens the model with so many blocks of eight tokens in all layers.
  [[nodiscard]] LLM open(std::int64_t blocks, LLMOptions options = {}) const {
    options.block_tokens = 8;
    options.threads = 2;
    options.dtype = "float32";
    options.kv_budget_bytes = blocks * block_bytes_;
    return must(LLM::open(path(), options));
  }
  [[nodiscard]] std::vector<float> cold(const Ids& ids) {
    return must(cold_.forward(ids, ForwardReuse::kNone, ForwardRows::kLast)).logits;
  }
  [[nodiscard]] static std::vector<float> last(LLM& llm, const Ids& ids) {
    return must(llm.forward(ids, ForwardReuse::kExact, ForwardRows::kLast)).logits;
  }

  LLM cold_ = must(LLM::open(path(), {.dtype = "float32", .block_tokens = 8, .threads = 2}));
  std::int64_t block_bytes_ = static_cast<std::int64_t>(stat(cold_, "block_bytes"));
};

Ids first_of(const Ids& ids, std::size_t count) {
  return {ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(count)};
}

TEST_P(WindowGroups, HoldLongerPromptsThanAllLayersTogetherWould) {
  LLM llm = open(16, {.max_batch_tokens = 9});
  const Ids prompt = small_ids(150, 3);  // 19 blocks
  EXPECT_EQ(last(llm, prompt), cold(prompt));
  EXPECT_EQ(must(llm.generate(prompt, greedy_to_length(20))).token_ids,
            must(cold_.generate(prompt, greedy_to_length(20))).token_ids);
}

TEST_P(WindowGroups, GiveTheBitsOfTheColdRunWhereTheirWindowsHaveGone) {
  LLM llm = open(16, {.max_batch_tokens = 20});
  const Ids first = small_ids(110, 4), second = small_ids(70, 5);
  std::int64_t known = 0;
  for (std::size_t cut = 1; cut <= first.size(); cut += 1 + cut % 13) {
    EXPECT_EQ(last(llm, first), cold(first)) << cut;
    EXPECT_EQ(last(llm, second), cold(second)) << cut;
    const Ids begins = joined(first_of(first, cut), small_ids(9, 60 + static_cast<int>(cut)));
    const ForwardOutput warm = must(llm.forward(begins, ForwardReuse::kExact, ForwardRows::kLast));
    EXPECT_EQ(warm.logits, cold(begins)) << cut;
    known += warm.cached_tokens;
  }
  EXPECT_GT(known, 0);
}

TEST_P(WindowGroups, GoOnBehindAnswersWithTheSameBits) {
  LLM llm = open(20, {.max_batch_tokens = 11});
  Ids history = small_ids(60, 6);
  for (int turn = 0; turn < 4; ++turn) {
    history = joined(history, must(llm.generate(history, greedy_to_length(9))).token_ids);
    history = joined(history, small_ids(5, 70 + turn));
    const ForwardOutput warm = must(llm.forward(history, ForwardReuse::kExact, ForwardRows::kLast));
    EXPECT_GT(warm.cached_tokens, 0) << turn;
    EXPECT_EQ(warm.logits, cold(history)) << turn;
  }
}

TEST_P(WindowGroups, GiveTheSameAnswersToRequestsThatTakeEachOthersBlocks) {
  LLM llm = open(17, {.max_batch_tokens = 24});
  std::vector<Prompt> prompts;
  std::vector<Ids> ids;
  for (int i = 0; i < 5; ++i) {
    ids.push_back(
        joined(small_ids(20, 7), small_ids(20 + 9 * static_cast<std::size_t>(i), 80 + i)));
    prompts.emplace_back(ids.back());
  }
  const std::vector<SamplingParams> params = {greedy_to_length(40)};
  const auto warm = must(llm.generate_batch(prompts, params));
  ASSERT_EQ(warm.size(), ids.size());
  for (std::size_t i = 0; i < ids.size(); ++i) {
    EXPECT_EQ(warm[i].token_ids, must(cold_.generate(ids[i], greedy_to_length(40))).token_ids) << i;
  }
  EXPECT_GT(stat(llm, "preemptions"), 0);
}

// Oracle: the same prompts alone. Without the cache nothing else brings KV back.
TEST_P(WindowGroups, GiveTheSameAnswersWhenTheirKVIsSwapped) {
  std::vector<Prompt> prompts;
  std::vector<Ids> alone;
  for (std::uint32_t i = 0; i < 5; ++i) {
    const Ids ids = small_ids(50 + 13 * i, 90 + i);
    prompts.emplace_back(ids);
    alone.push_back(must(cold_.generate(ids, greedy_to_length(60))).token_ids);
  }
  const std::vector<SamplingParams> params = {greedy_to_length(60)};
  const auto run = [&](const std::string& preemption, bool prefix_cache) {
    LLM llm =
        open(17, {.max_batch_tokens = 24, .prefix_cache = prefix_cache, .preemption = preemption});
    std::vector<Ids> ids;
    for (const GenerationOutput& output : must(llm.generate_batch(prompts, params))) {
      ids.push_back(output.token_ids);
    }
    EXPECT_GT(stat(llm, "preemptions"), 0);
    EXPECT_EQ(stat(llm, "swaps_restored") > 0, preemption == "swap");
    EXPECT_EQ(stat(llm, "blocks_in_use"), 0);
    return std::pair(ids, stat(llm, "tokens_computed"));
  };
  const auto [swapped, computed] = run("swap", false);
  EXPECT_EQ(swapped, alone);
  EXPECT_EQ(run("swap", true).first, alone) << "some go on from cached blocks";
  EXPECT_LT(computed, run("recompute", false).second);
}

TEST_P(WindowGroups, LetSequencesForkRollBackAndGoOn) {
  LLM llm = open(60);
  expect_branches_equal_cold_runs(llm, 4, 25, [&](LLM&, const Ids& ids) { return cold(ids); });
  const Ids prompt = small_ids(90, 8);
  EXPECT_EQ(last(llm, prompt), cold(prompt));  // its windows have gone on
  Sequence sequence = must(llm.sequence(prompt));
  for (std::int64_t length = 90; length > 0; length -= 7) {
    Sequence branch = must(sequence.fork());
    ASSERT_TRUE(branch.rollback_to(length).ok());
    ASSERT_TRUE(branch.append(small_ids(3, 9)).ok());
    EXPECT_EQ(must(branch.logits()), cold(branch.tokens())) << length;
  }
}

TEST_P(WindowGroups, HoldLongSequencesOfAUserAndRollThemBackToEveryLength) {
  LLM llm = open(36, {.max_batch_tokens = 16});
  const Ids prompt = small_ids(150, 3);  // 19 blocks
  Sequence sequence = must(llm.sequence(prompt));
  EXPECT_EQ(must(sequence.logits()), cold(prompt));
  const double parts = stat(llm, "window_bytes_in_use") / stat(llm, "window_block_bytes");
  EXPECT_LE(parts, 5);  // a window of 24 tokens
  for (std::int64_t length = 149; length > 0; length -= 1 + length % 11) {
    (void)last(llm, small_ids(90, static_cast<std::uint32_t>(length)));  // takes idle windows
    const Status back = sequence.rollback_to(length);
    ASSERT_TRUE(back.ok()) << back.error().message;
    ASSERT_TRUE(sequence.append(small_ids(1 + static_cast<std::size_t>(length) % 5, 9)).ok());
    EXPECT_EQ(must(sequence.logits()), cold(sequence.tokens())) << length;
  }
  EXPECT_GT(stat(llm, "tokens_replayed"), 0);
}

TEST_P(WindowGroups, SaveSequencesWhoseWindowsHaveGone) {
  const TemporaryFolder folder;
  const std::string file = folder.path() / "saved.qkv";
  LLM llm = open(36, {.max_batch_tokens = 30});
  Sequence sequence = must(llm.sequence(small_ids(150, 3)));
  for (int i = 0; i < 4; ++i) {  // they take what the window has freed
    (void)last(llm, small_ids(120, 20 + static_cast<std::uint32_t>(i)));
  }
  const double computed = stat(llm, "tokens_computed");
  const Status saved = sequence.save(file);
  ASSERT_TRUE(saved.ok()) << saved.error().message;
  EXPECT_EQ(stat(llm, "tokens_computed"), computed) << "what has gone is not computed again";
  ASSERT_TRUE(sequence.append(small_ids(4, 8)).ok());
  const Ids tokens = sequence.tokens();
  EXPECT_EQ(must(sequence.logits()), cold(tokens));
  for (const std::int64_t blocks : {16, 36}) {  // the file has 19
    LLM other = open(blocks);
    Sequence loaded = must(other.load_sequence(file));
    EXPECT_EQ(stat(other, "tokens_computed"), 0);
    ASSERT_TRUE(loaded.append(small_ids(4, 8)).ok());
    EXPECT_EQ(must(loaded.logits()), cold(tokens));
  }
  LLM other = open(36);
  Sequence loaded = must(other.load_sequence(file));
  ASSERT_TRUE(loaded.rollback_to(60).ok());
  EXPECT_EQ(must(loaded.logits()), cold(first_of(tokens, 60)));
}

INSTANTIATE_TEST_SUITE_P(Models, WindowGroups, testing::ValuesIn(models()),
                         [](const auto& info) { return info.param; });
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(WindowGroups);

}  // namespace
}  // namespace quire
