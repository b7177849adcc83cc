// KV that is stored block by block (kv_dtype "fp8" and "int4"), from the outside: the bits of a row
// depend on its tokens and on block_tokens alone. They do not depend on how a prompt was cut into
// calls and steps, on the other requests, or on what was reused, forked, cut or preempted. The
// oracle is a cold run of the same engine without the prefix cache.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "quire/api/test_support.h"
#include "quire/llm.h"
#include "quire/options.h"
#include "quire/sampling.h"
#include "quire/sequence.h"
#include "quire/types.h"

namespace quire {
namespace {

constexpr std::size_t kTokens = 150;

struct Kind {
  std::string kv_dtype;
  std::string dtype;
  std::int32_t block_tokens;
};

class SealedKV : public testing::TestWithParam<Kind> {
 protected:
  [[nodiscard]] static LLM open(LLMOptions options = {}) {
    // A GPU computes in no float32.
    const bool half = on_gpu() && GetParam().dtype == "float32";
    options.device = test_device();
    options.dtype = half ? "float16" : GetParam().dtype;
    options.kv_dtype = GetParam().kv_dtype;
    options.block_tokens = GetParam().block_tokens;
    options.threads = 2;
    if (options.kv_budget_bytes == kAutoBudget) {
      options.kv_budget_bytes = std::int64_t{64} << 20;
    }
    auto llm = LLM::open(kModel, options);
    EXPECT_TRUE(llm.ok()) << (llm.ok() ? "" : llm.error().message);
    return std::move(llm).value();
  }

  // The logits of all rows, computed in one step without anything known.
  [[nodiscard]] std::vector<float> cold(const Ids& ids) {
    return cold_.forward(ids, ForwardReuse::kNone).value().logits;
  }

  static SamplingParams greedy(std::int32_t tokens) {
    return {.temperature = 0, .max_tokens = tokens, .ignore_eos = true};
  }

  static Ids generate(LLM& llm, const Ids& prompt, std::int32_t tokens) {
    return llm.generate(prompt, greedy(tokens)).value().token_ids;
  }

  LLM cold_ = open({.prefix_cache = false});
};

std::vector<float> tail_of(const std::vector<float>& all, std::size_t size) {
  return {all.end() - static_cast<std::ptrdiff_t>(size), all.end()};
}

TEST_P(SealedKV, EveryCutIntoCallsGivesTheBitsOfOneColdCall) {
  const Ids ids = some_ids(kTokens, 7);
  const std::vector<float> want = cold(ids);
  LLM llm = open();
  for (std::size_t cut = 1; cut < kTokens; cut += 1 + cut % 5) {
    ASSERT_TRUE(llm.clear_prefix_cache().ok());
    ASSERT_TRUE(llm.forward({ids.data(), cut}).ok());
    const ForwardOutput warm = llm.forward(ids).value();
    ASSERT_EQ(warm.cached_tokens,
              static_cast<std::int64_t>(cut) / GetParam().block_tokens * GetParam().block_tokens);
    ASSERT_EQ(warm.logits, tail_of(want, warm.logits.size())) << "cut " << cut;
  }
}

TEST_P(SealedKV, StepsOfAnySizeGiveTheBitsOfOne) {
  const Ids ids = some_ids(kTokens, 8);
  const std::vector<float> want = cold(ids);
  for (const std::int32_t step : {1, 7, 31, 32, 33, 64, 100}) {
    LLM llm = open({.max_batch_tokens = step, .prefix_cache = false});
    ASSERT_EQ(llm.forward(ids, ForwardReuse::kNone).value().logits, want) << step << " rows a step";
  }
}

TEST_P(SealedKV, OneTokenAfterTheOtherGivesTheBitsOfOneCall) {
  const Ids prompt = some_ids(20, 9);
  LLM llm = open();
  const Ids answer = generate(llm, prompt, 120);
  Ids all = prompt;
  all.insert(all.end(), answer.begin(), answer.end());
  const std::vector<float> want = cold(all);
  const auto vocab = want.size() / all.size();
  for (std::size_t i = prompt.size(); i < all.size(); ++i) {
    const float* row = &want[(i - 1) * vocab];
    ASSERT_EQ(all[i], std::max_element(row, row + vocab) - row) << "token " << i;
  }
  ASSERT_TRUE(llm.clear_prefix_cache().ok());
  Sequence sequence = llm.sequence(prompt).value();
  for (const TokenId id : answer) {
    ASSERT_TRUE(sequence.append({&id, 1}).ok());
  }
  EXPECT_EQ(sequence.logits().value(), tail_of(want, vocab));
}

TEST_P(SealedKV, OtherRequestsInTheBatchChangeNoToken) {
  LLM llm = open({.prefix_cache = false});
  std::vector<Ids> prompts, alone;
  for (std::size_t i = 0; i < 6; ++i) {
    prompts.push_back(some_ids(5 + 29 * i, static_cast<unsigned>(i)));
    alone.push_back(generate(llm, prompts.back(), 40));
  }
  const std::vector<Prompt> inputs(prompts.begin(), prompts.end());
  const SamplingParams params = greedy(40);
  const auto outputs = llm.generate_batch(inputs, {&params, 1}).value();
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    EXPECT_EQ(outputs[i].token_ids, alone[i]) << "prompt " << i;
  }
}

TEST_P(SealedKV, ForksAndRollbacksToEveryLengthGoOnAsIfNothingElseHadBeen) {
  const Ids ids = some_ids(kTokens, 11);
  LLM llm = open();
  Sequence sequence = llm.sequence(ids).value();
  const Ids tail = some_ids(9, 12);
  for (std::int64_t length = 1; length < std::ssize(ids); length += 1 + length % 9) {
    Sequence fork = sequence.fork().value();
    ASSERT_TRUE(fork.rollback_to(length).ok());
    ASSERT_TRUE(fork.append(tail).ok());
    Ids want(ids.begin(), ids.begin() + length);
    want.insert(want.end(), tail.begin(), tail.end());
    const std::vector<float> logits = fork.logits().value();
    ASSERT_EQ(logits, tail_of(cold(want), logits.size())) << "length " << length;
  }
  EXPECT_EQ(sequence.tokens(), ids);
}

TEST_P(SealedKV, APoolThatIsTooSmallForAllPreemptsAndChangesNoToken) {
  LLM large = open();
  std::vector<Ids> prompts;
  std::vector<Ids> want;
  for (unsigned i = 0; i < 8; ++i) {
    prompts.push_back(some_ids(40 + 9 * i, i));
    want.push_back(generate(large, prompts.back(), 60));
  }
  const auto block_bytes = static_cast<std::int64_t>(stat(large, "block_bytes"));
  LLM small = open({.kv_budget_bytes = block_bytes * (64 * 32 / GetParam().block_tokens)});
  const std::vector<Prompt> inputs(prompts.begin(), prompts.end());
  const SamplingParams params = greedy(60);
  const auto outputs = small.generate_batch(inputs, {&params, 1}).value();
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    EXPECT_EQ(outputs[i].token_ids, want[i]) << "prompt " << i;
  }
  EXPECT_EQ(stat(small, "blocks_in_use"), 0);
}

INSTANTIATE_TEST_SUITE_P(Formats, SealedKV,
                         testing::Values(Kind{"int4", "float32", 32}, Kind{"int4", "bfloat16", 32},
                                         Kind{"int4", "bfloat16", 64}, Kind{"fp8", "float32", 32},
                                         Kind{"fp8", "bfloat16", 16}, Kind{"fp8", "bfloat16", 7}),
                         [](const testing::TestParamInfo<Kind>& info) {
                           return info.param.kv_dtype + "_" + info.param.dtype + "_" +
                                  std::to_string(info.param.block_tokens);
                         });

}  // namespace
}  // namespace quire
