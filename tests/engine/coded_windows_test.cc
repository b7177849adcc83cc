// KV in codes ("int8", "fp8", "int4") of models with sliding windows and with caps of their scores,
// from the outside: warm equals cold, bit for bit, however a prompt was cut, kept, saved or taken
// back. The oracle is a cold run of the same engine without the prefix cache.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "quire/api/test_support.h"
#include "quire/base/temporary_folder.h"
#include "quire/llm.h"
#include "quire/options.h"
#include "quire/sampling.h"
#include "quire/sequence.h"
#include "quire/types.h"

namespace quire {
namespace {

constexpr std::size_t kTokens = 170;

using Kind = std::tuple<std::string, std::string>;  // model, kv_dtype

class CodedWindows : public testing::TestWithParam<Kind> {
 protected:
  [[nodiscard]] static LLM open(LLMOptions options = {}, const std::string& kv_dtype = "") {
    options.device = test_device();
    options.kv_dtype = kv_dtype.empty() ? std::get<1>(GetParam()) : kv_dtype;
    options.threads = 2;
    if (options.kv_budget_bytes == kAutoBudget) {
      options.kv_budget_bytes = std::int64_t{16} << 20;
    }
    return must(LLM::open(source_path("tests/golden/model/" + std::get<0>(GetParam())), options));
  }
  [[nodiscard]] static bool by_block() { return std::get<1>(GetParam()) != "int8"; }
  // The models have 200 ids.
  [[nodiscard]] static Ids ids_of(std::size_t count, std::uint32_t seed) {
    Ids ids = some_ids(count, seed);
    for (TokenId& id : ids) {
      id = 20 + id % 100;
    }
    return ids;
  }
  [[nodiscard]] std::vector<float> cold(const Ids& ids) {
    return must(cold_.forward(ids, ForwardReuse::kNone)).logits;
  }
  static std::vector<float> tail_of(const std::vector<float>& all, std::size_t size) {
    return {all.end() - static_cast<std::ptrdiff_t>(size), all.end()};
  }
  static SamplingParams greedy(std::int32_t tokens) { return greedy_to_length(tokens); }

  LLM cold_ = open({.prefix_cache = false});
};

TEST_P(CodedWindows, EveryCutIntoCallsAndStepsGivesTheBitsOfOneColdCall) {
  const Ids ids = ids_of(kTokens, 7);
  const std::vector<float> want = cold(ids);
  LLM llm = open();
  for (std::size_t cut = 1; cut < kTokens; cut += 1 + cut % 7) {
    ASSERT_TRUE(llm.clear_prefix_cache().ok());
    ASSERT_TRUE(llm.forward({ids.data(), cut}).ok());
    const ForwardOutput warm = must(llm.forward(ids));
    ASSERT_EQ(warm.cached_tokens, static_cast<std::int64_t>(cut) / 32 * 32);
    ASSERT_EQ(warm.logits, tail_of(want, warm.logits.size())) << "cut " << cut;
  }
  for (const std::int32_t step : {1, 31, 33, 100}) {
    LLM steps = open({.max_batch_tokens = step, .prefix_cache = false});
    ASSERT_EQ(must(steps.forward(ids, ForwardReuse::kNone)).logits, want) << step << " rows";
  }
}

TEST_P(CodedWindows, CodesChangeTheLogitsALittle) {
  const Ids ids = ids_of(kTokens, 7);
  LLM plain = open({}, exact_dtype());
  const double distance_of =
      distance(must(plain.forward(ids, ForwardReuse::kNone)).logits, cold(ids));
  EXPECT_GT(distance_of, 0);
  EXPECT_LT(distance_of, 0.3);
}

TEST_P(CodedWindows, ForksRollbacksAndAppendsGoOnAsIfNothingElseHadBeen) {
  const Ids ids = ids_of(kTokens, 11), tail = ids_of(9, 12);
  LLM llm = open();
  Sequence sequence = must(llm.sequence(ids));
  for (std::int64_t length = 1; length < std::ssize(ids); length += 1 + length % 11) {
    Sequence fork = must(sequence.fork());
    ASSERT_TRUE(fork.rollback_to(length).ok());
    ASSERT_TRUE(fork.append(tail).ok());
    Ids want(ids.begin(), ids.begin() + length);
    want.insert(want.end(), tail.begin(), tail.end());
    const std::vector<float> logits = must(fork.logits());
    ASSERT_EQ(logits, tail_of(cold(want), logits.size())) << "length " << length;
  }
}

TEST_P(CodedWindows, OneTokenAfterTheOtherGivesTheBitsOfOneCallAndTheWindowFreesBlocks) {
  const Ids prompt = ids_of(20, 9);
  LLM llm = open({.prefix_cache = false});
  Sequence sequence = must(llm.sequence(prompt));
  Ids all = prompt;
  for (int i = 0; i < 4; ++i) {
    const Ids answer = must(sequence.generate(greedy(32))).token_ids;
    all.insert(all.end(), answer.begin(), answer.end());
    const std::vector<float> logits = must(sequence.logits());
    ASSERT_EQ(logits, tail_of(cold(all), logits.size()));
  }
  if (std::get<0>(GetParam()) == "mistral_window") {  // it has a window in every layer
    const auto ids = must(sequence.blocks()).block_ids();
    EXPECT_GE(std::ranges::count(ids, -1), by_block() ? 2 : 3);
  }
}

TEST_P(CodedWindows, ASequenceOfAnyLengthIsSavedAndGoesOn) {
  const TemporaryFolder folder;
  const std::string file = folder.path() / "sequence.qkv";
  LLM llm = open();
  for (const std::size_t length : {3U, 32U, 33U, 64U, 65U, 95U, 97U, 130U}) {
    Sequence sequence = must(llm.sequence(ids_of(length, 3)));
    ASSERT_TRUE(sequence.save(file).ok());
    LLM other = open();
    Sequence loaded = must(other.load_sequence(file));
    for (const std::size_t more : {1U, 31U, 40U}) {
      ASSERT_EQ(must(loaded.logits()), must(sequence.logits())) << length;
      ASSERT_TRUE(loaded.append(ids_of(more, 4)).ok());
      ASSERT_TRUE(sequence.append(ids_of(more, 4)).ok());
    }
    ASSERT_EQ(must(loaded.generate(greedy(20))).token_ids,
              must(sequence.generate(greedy(20))).token_ids);
    loaded.close();
    EXPECT_EQ(stat(other, "bytes_in_use"), 0);
  }
}

// Oracle: a cold run. Layers without a window keep all of it, others what their window sees.
TEST_P(CodedWindows, LongSequencesHoldTheirLastWindowsAndRollBackToEveryLength) {
  const Ids prompt = ids_of(400, 5);  // 13 blocks
  LLM llm = open({.max_batch_tokens = 70});
  Sequence sequence = must(llm.sequence(prompt));
  const auto logits_of = [&] { return must(sequence.logits()); };
  const std::vector<float> first = logits_of();
  EXPECT_EQ(first, tail_of(cold(prompt), first.size()));
  const bool has_parts = std::get<0>(GetParam()) != "mistral_window" && !on_gpu();
  ASSERT_EQ(stat(llm, "window_block_bytes") > 0, has_parts);
  if (has_parts) {
    // The window of 24 tokens touches two blocks, and where blocks are written whole one more
    // stays.
    EXPECT_LE(stat(llm, "window_bytes_in_use") / stat(llm, "window_block_bytes"), 3);
  }
  for (std::int64_t length = 399; length > 0; length -= 1 + length % 47) {
    if (length % 2 == 0) {  // others take idle windows
      (void)must(llm.forward(ids_of(380, static_cast<std::uint32_t>(length))));
    }
    Sequence fork = must(sequence.fork());
    const Status back = fork.rollback_to(length);
    ASSERT_TRUE(back.ok()) << back.error().message;
    ASSERT_TRUE(fork.append(ids_of(1 + static_cast<std::size_t>(length) % 40, 9)).ok());
    const std::vector<float> logits = must(fork.logits());
    ASSERT_EQ(logits, tail_of(cold(fork.tokens()), logits.size())) << length;
  }
}

TEST_P(CodedWindows, PromptsThatTakeEachOthersWindowsGiveTheBitsOfAColdCall) {
  const auto block_bytes = static_cast<std::int64_t>(stat(cold_, "block_bytes"));
  LLM llm = open({.kv_budget_bytes = block_bytes * (by_block() ? 44 : 16), .max_batch_tokens = 50});
  const Ids first = ids_of(300, 4), second = ids_of(190, 5);
  std::int64_t known = 0;
  for (std::size_t cut = 20; cut <= first.size(); cut += 20 + cut % 13) {
    for (const Ids& ids : {first, second}) {
      const ForwardOutput warm = must(llm.forward(ids, ForwardReuse::kExact, ForwardRows::kLast));
      ASSERT_EQ(warm.logits, tail_of(cold(ids), warm.logits.size())) << cut;
    }
    Ids begins(first.begin(), first.begin() + static_cast<std::ptrdiff_t>(cut));
    const Ids more = ids_of(9, 60 + static_cast<std::uint32_t>(cut));
    begins.insert(begins.end(), more.begin(), more.end());
    const ForwardOutput warm = must(llm.forward(begins, ForwardReuse::kExact, ForwardRows::kLast));
    ASSERT_EQ(warm.logits, tail_of(cold(begins), warm.logits.size())) << cut;
    known += warm.cached_tokens;
  }
  EXPECT_GT(known, 0);
}

TEST_P(CodedWindows, ASmallPoolPreemptsAndChangesNoToken) {
  LLM large = open();
  std::vector<Ids> prompts, want;
  for (unsigned i = 0; i < 8; ++i) {
    prompts.push_back(ids_of(40 + 9 * i, i));
    want.push_back(must(large.generate(prompts.back(), greedy(60))).token_ids);
  }
  const auto block_bytes = static_cast<std::int64_t>(stat(large, "block_bytes"));
  LLM small = open({.kv_budget_bytes = block_bytes * (by_block() ? 64 : 20)});
  const std::vector<Prompt> inputs(prompts.begin(), prompts.end());
  const SamplingParams params = greedy(60);
  const auto outputs = must(small.generate_batch(inputs, {&params, 1}));
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    EXPECT_EQ(outputs[i].token_ids, want[i]) << "prompt " << i;
  }
  EXPECT_EQ(stat(small, "blocks_in_use"), 0);
}

// Returns those of the models that the device of the tests computes.
std::vector<std::string> models() {
  std::vector<std::string> all = {"gemma2", "gemma3", "mistral_window"};
  std::erase_if(all, [](const std::string& model) { return !computes_here(model); });
  return all;
}

INSTANTIATE_TEST_SUITE_P(Models, CodedWindows,
                         testing::Combine(testing::ValuesIn(models()),
                                          testing::Values("int8", "fp8", "int4")),
                         [](const testing::TestParamInfo<Kind>& info) {
                           return std::get<0>(info.param) + "_" + std::get<1>(info.param);
                         });

}  // namespace
}  // namespace quire
