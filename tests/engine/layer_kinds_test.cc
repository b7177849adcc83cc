// Models whose layers cache latents, differ in size or share KV: forks, rollbacks, saved sequences
// and chunks change no bit, or no more than rounding. Oracle: the same request computed from its
// first token, without any reuse. Models: the tiny random checkpoints of tests/golden/model, which
// transformers agrees with.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "forked_branches.h"
#include "quire/api/test_support.h"
#include "quire/chunks.h"
#include "quire/llm.h"
#include "quire/sequence.h"

namespace quire {
namespace {

using testing::HasSubstr;

std::string golden(const std::string& name) { return source_path("tests/golden/model/") + name; }

std::vector<float> last_logits(LLM& llm, const Ids& ids) {
  return must(llm.forward(ids, ForwardReuse::kNone, ForwardRows::kLast)).logits;
}

// Returns the models that the device computes.
std::vector<std::string> models() {
  std::vector<std::string> names = {"deepseek_v2", "deepseek_v3",  "glm4_moe_lite",
                                    "gemma4",      "gemma4_image", "gemma4_moe"};
  std::erase_if(names, [](const std::string& name) { return !computes_here(name); });
  return names;
}

class LayerKinds : public testing::TestWithParam<std::string> {
 protected:
  [[nodiscard]] static LLM open(LLMOptions options = {}) {
    options.threads = 2;
    options.dtype = "float32";
    return must(LLM::open(golden(GetParam()), options));
  }
};

TEST_P(LayerKinds, ForksThatGoTheirOwnWaysEqualTheColdRun) {
  LLM llm = open({.block_tokens = 8});
  expect_branches_equal_cold_runs(llm, 5, 30, last_logits);
}

TEST_P(LayerKinds, AnswersEqualThoseOfPromptsComputedWhole) {
  LLM llm = open({.max_batch_tokens = 7});
  Ids history = small_ids(40, 3);
  for (int turn = 0; turn < 3; ++turn) {
    history = joined(history, must(llm.generate(history, greedy_to_length(9))).token_ids);
    history = joined(history, small_ids(5, 40 + turn));
    const ForwardOutput warm = must(llm.forward(history, ForwardReuse::kExact, ForwardRows::kLast));
    EXPECT_GT(warm.cached_tokens, 0);
    EXPECT_EQ(warm.logits, last_logits(llm, history)) << turn;
  }
}

TEST_P(LayerKinds, SavedSequencesGoOnWithTheSameBits) {
  const TemporaryFolder folder;
  const std::string path = folder.path() / "saved.qkv";
  const Ids prompt = small_ids(45, 6);
  {
    LLM llm = open({.block_tokens = 16});
    ASSERT_TRUE(must(llm.sequence(prompt)).save(path).ok());
  }
  LLM llm = open({.block_tokens = 16});
  Sequence loaded = must(llm.load_sequence(path));
  EXPECT_EQ(loaded.tokens(), prompt);
  ASSERT_TRUE(loaded.append(small_ids(4, 8)).ok());
  EXPECT_EQ(must(loaded.logits()), last_logits(llm, loaded.tokens()));
}

INSTANTIATE_TEST_SUITE_P(Models, LayerKinds, testing::ValuesIn(models()),
                         [](const auto& info) { return info.param; });

// Returns the largest difference of the last row, as a share of the largest logit.
float distance(const std::vector<float>& rows, const std::vector<float>& want) {
  const auto got = rows.end() - std::ssize(want);
  float most = 0, off = 0;
  for (std::ptrdiff_t i = 0; i < std::ssize(want); ++i) {
    most = std::max(most, std::fabs(want[static_cast<std::size_t>(i)]));
    off = std::max(off, std::fabs(want[static_cast<std::size_t>(i)] - got[i]));
  }
  return off / most;
}

// Chunks behind each other are what their prompt is, where each context sees all before it.
TEST(ChunksOfUnevenLayers, GiveTheLogitsOfTheirPromptAndComeBackFromAStore) {
  for (const std::string model : {"gemma4", "gemma4_moe"}) {
    if (!computes_here(model)) {
      continue;
    }
    const TemporaryFolder folder;
    const Ids system = small_ids(19, 3), context = small_ids(37, 4), query = small_ids(6, 5);
    for (const int life : {0, 1}) {
      ChunkedLLM llm = must(ChunkedLLM::open(golden(model), {.dtype = "float32", .threads = 2},
                                             {.store = folder.path()}));
      CompositionSpec spec;
      spec.system_chunk_id =
          must(llm.register_chunk({.content = system, .type = ChunkType::kSystemPrompt}));
      spec.context_chunk_ids = {
          must(llm.register_chunk({.content = context, .type = ChunkType::kContext}))};
      spec.query_chunk_id = must(llm.register_chunk({.content = query, .type = ChunkType::kQuery}));
      const ForwardOutput out = must(llm.logits_from_chunks(spec));
      EXPECT_EQ(out.cached_tokens, 56) << "life " << life;
      EXPECT_LT(
          distance(out.logits, last_logits(llm.llm(), joined(joined(system, context), query))),
          1e-4f)
          << model;
      ASSERT_TRUE(llm.flush_store().ok());
    }
  }
}

std::vector<std::string> models_with_latents() {
  return computes_here("deepseek_v2") ? std::vector<std::string>{"deepseek_v2", "deepseek_v3"}
                                      : std::vector<std::string>();
}

// A chunk that is used elsewhere, and a query behind it: their distances are those of a prompt, so
// logits are those of that prompt but for rounding.
TEST(LatentChunks, GiveTheLogitsOfTheirPromptWhereverTheyStand) {
  for (const std::string& model : models_with_latents()) {
    ChunkedLLM llm = must(ChunkedLLM::open(golden(model), {.dtype = "float32", .threads = 2}, {}));
    const Ids context = small_ids(37, 4), query = small_ids(6, 5);
    CompositionSpec spec{
        .without_system = true, .mode = ReuseMode::kIndependent, .positions = Positions::kFixed};
    spec.context_chunk_ids.push_back(
        must(llm.register_chunk({.content = context, .type = ChunkType::kContext})));
    spec.query_chunk_id = must(llm.register_chunk({.content = query, .type = ChunkType::kQuery}));
    const std::vector<float> want = last_logits(llm.llm(), joined(context, query));
    for (const std::int32_t place : {0, 1, 57, 300}) {
      spec.fixed = {place, place + 37};
      EXPECT_LT(distance(must(llm.logits_from_chunks(spec)).logits, want), 1e-4f)
          << model << " at " << place;
    }
  }
}

// Every token is computed again, whichever way it was chosen.
TEST(ChunksOfAllLayerKinds, BlendedWholeGiveTheLogitsOfTheirPrompt) {
  for (const std::string model : {"deepseek_v2", "deepseek_v3", "gemma4", "gemma4_moe"}) {
    if (!computes_here(model)) {
      continue;
    }
    ChunkedLLM llm = must(ChunkedLLM::open(golden(model), {.dtype = "float32", .threads = 2}, {}));
    const Ids first = small_ids(37, 4), second = small_ids(21, 7), query = small_ids(6, 5);
    CompositionSpec spec{.without_system = true, .mode = ReuseMode::kBlend};
    for (const Ids& context : {first, second}) {
      spec.context_chunk_ids.push_back(
          must(llm.register_chunk({.content = context, .type = ChunkType::kContext})));
    }
    spec.query_chunk_id = must(llm.register_chunk({.content = query, .type = ChunkType::kQuery}));
    const std::vector<float> want = last_logits(llm.llm(), joined(joined(first, second), query));
    for (const Selector selector : {Selector::kValueDeviation, Selector::kQueryAttention}) {
      spec.blend = {.selector = selector, .share = 1.0, .base = ReuseMode::kIndependent};
      EXPECT_LT(distance(must(llm.logits_from_chunks(spec)).logits, want), 1e-4f) << model;
    }
  }
}

// Oracle: a composition whose chunks were registered in the format.
TEST(ChunksOfUnevenLayers, AreNarrowedToWhatRegisteringThemGives) {
  for (const std::string from : {"float32", "int8", "fp8"}) {
    for (const std::string to : {"int8", "fp8", "int4"}) {
      if (!computes_here("gemma4") || (from != "float32" && to != "int4")) {
        continue;
      }
      std::vector<float> found[2];
      for (const bool narrows : {false, true}) {
        ChunkedLLM llm =
            must(ChunkedLLM::open(golden("gemma4"), {.dtype = "float32", .threads = 2}, {}));
        CompositionSpec spec{.without_system = true};
        ChunkContent content{.content = small_ids(64, 4), .type = ChunkType::kContext};
        content.options.kv_dtype = narrows ? from : to;
        std::string id = must(llm.register_chunk(content));
        if (narrows) {
          id = must(llm.update_chunk(id, {.kv_dtype = to})).chunk_id;
        }
        spec.context_chunk_ids = {id};
        spec.query_chunk_id =
            must(llm.register_chunk({.content = small_ids(6, 5), .type = ChunkType::kQuery}));
        found[narrows ? 1 : 0] = must(llm.logits_from_chunks(spec)).logits;
      }
      EXPECT_LT(distance(found[1], found[0]), to == "int4" ? 0.5f : 0.05f) << from << " to " << to;
    }
  }
}

// Oracle: a cold run. Blocks of layers of each size are stored as they fill, in every batch.
TEST(LayersOfSeveralSizes, StoreKVByBlocksAndGiveTheBitsOfAColdRun) {
  for (const std::string model : {"gemma4", "gemma4_moe"}) {
    if (!computes_here(model)) {
      continue;
    }
    for (const std::string kv_dtype : {"int8", "fp8", "int4"}) {
      const LLMOptions options{.dtype = "float32", .kv_dtype = kv_dtype, .threads = 2};
      LLMOptions small = options;
      small.max_batch_tokens = 37;
      LLM llm = must(LLM::open(golden(model), options));
      LLM other = must(LLM::open(golden(model), small));
      const Ids ids = small_ids(150, 8);
      const auto cold = must(llm.forward(ids, ForwardReuse::kNone)).logits;
      EXPECT_EQ(must(other.forward(ids, ForwardReuse::kNone)).logits, cold) << kv_dtype;
      (void)must(llm.forward({ids.begin(), ids.begin() + 100}));
      const auto warm = must(llm.forward(ids)).logits;
      EXPECT_TRUE(std::equal(warm.begin(), warm.end(), cold.end() - std::ssize(warm)));
      const KVAccuracy accuracy = must(llm.kv_accuracy(ids, kv_dtype));
      EXPECT_LT(accuracy.logit_kl_mean, kv_dtype == "int4" ? 5e-2 : 5e-3) << kv_dtype;
      EXPECT_GT(accuracy.key_error.mean, 0);
    }
  }
}

}  // namespace
}  // namespace quire
