// Blend by layers against the dense oracle: all context tokens run through a band of layers again,
// from the hidden states that their chunks have kept. KV of other layers is what was stored.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "desk.h"
#include "quire/base/json.h"
#include "quire/chunks.h"
#include "quire/llm.h"
#include "quire/output.h"
#include "quire/result.h"
#include "quire/sampling.h"
#include "scene.h"
#include "tiny_checkpoint.h"

namespace quire::chunks {
namespace {

using testing::HasSubstr;

constexpr std::int32_t kBlock = 16;
constexpr std::int32_t kLayers = 5;

std::filesystem::path five_layers() { return write_checkpoint("five", {.layers = kLayers}); }

CompositionSpec by_layers(CompositionSpec spec, ReuseMode base, LayerRange layers) {
  spec.mode = ReuseMode::kBlend;
  spec.blend = {.base = base, .layers = layers};
  return spec;
}

class BlendByLayers : public testing::TestWithParam<ReuseMode> {
 protected:
  BlendByLayers() {
    scene.mode = GetParam();
    scene.place(Positions::kConcat);
    spec = desk.compose(scene, Positions::kConcat);
  }

  // Has the contexts keep hidden states of a layer.
  void keep(std::int32_t layer) {
    for (std::size_t i = 0; i < scene.contexts.size(); ++i) {
      ChunkContent content{.content = scene.contexts[i].ids};
      content.options.anchor = GetParam() == ReuseMode::kAnchored ? spec.system_chunk_id : "";
      content.options.keep_hidden = layer;
      ASSERT_EQ(must(desk.llm.register_chunk(content)), spec.context_chunk_ids[i]);
    }
  }

  [[nodiscard]] Matrix wanted(LayerRange layers) const {
    Scene with = scene;
    with.layers = layers;
    for (std::int32_t i = 0; i < scene.num_context_tokens(); ++i) {
      with.recomputed.push_back(scene.first_context() + i);
    }
    return with.logits(desk.oracle);
  }

  [[nodiscard]] ForwardOutput blended(LayerRange layers) {
    return must(desk.llm.logits_from_chunks(by_layers(spec, GetParam(), layers)));
  }

  Desk desk{five_layers(), most_exact(kBlock)};
  Dice dice{7};
  Scene scene = make_scene(dice, 4, kBlock);
  CompositionSpec spec;
};

TEST_P(BlendByLayers, EveryBandEqualsTheOracle) {
  for (std::int32_t first = 0; first < kLayers; ++first) {
    if (first > 0) {
      keep(first);
    }
    for (std::int32_t last = first + 1; last <= kLayers; ++last) {
      SCOPED_TRACE(std::to_string(first) + " to " + std::to_string(last));
      const LayerRange layers{.first = first, .last = last};
      EXPECT_LE(distance(blended(layers), wanted(layers)), tolerance());
    }
  }
}

TEST_P(BlendByLayers, AllLayersEqualModeExactAndTheBitsOfAllTokens) {
  const ForwardOutput all = blended({.first = 0, .last = kLayers});
  EXPECT_LE(distance(all, scene.exact_logits(desk.oracle)), tolerance());
  CompositionSpec tokens = spec;
  tokens.mode = ReuseMode::kBlend;
  tokens.blend = {.selector = Selector::kAll, .base = GetParam()};
  EXPECT_EQ(all.logits, desk.logits(tokens));
  const CompositionInfo info = must(
      desk.llm.preview_composition(by_layers(spec, GetParam(), {.first = 0, .last = kLayers})));
  EXPECT_EQ(info.grade, must(desk.llm.preview_composition(tokens)).grade);
}

TEST_P(BlendByLayers, RowsInAPassChangeNoBit) {
  keep(2);
  const std::vector<float> at_once = blended({.first = 2, .last = 4}).logits;
  LLMOptions narrow = most_exact(kBlock);
  narrow.max_batch_tokens = 5;
  Desk other(five_layers(), narrow);
  CompositionSpec there = other.compose(scene, Positions::kConcat);
  for (const Scene::Segment& context : scene.contexts) {
    ChunkContent content{.content = context.ids};
    content.options.anchor = GetParam() == ReuseMode::kAnchored ? there.system_chunk_id : "";
    content.options.keep_hidden = 2;
    must(other.llm.register_chunk(content));
  }
  EXPECT_EQ(other.logits(by_layers(there, GetParam(), {.first = 2, .last = 4})), at_once);
}

// A chunk that is registered with them at once has the hidden states of one that got them later.
TEST_P(BlendByLayers, WhenStatesAreKeptChangesNoBit) {
  keep(3);
  const std::vector<float> later = blended({.first = 3, .last = 5}).logits;
  for (const std::string& id : spec.context_chunk_ids) {
    must(desk.llm.delete_chunk(id));
  }
  keep(3);
  EXPECT_EQ(blended({.first = 3, .last = 5}).logits, later);
}

TEST_P(BlendByLayers, TheShareCountsLayersTimesRows) {
  keep(1);
  const CompositionSpec band = by_layers(spec, GetParam(), {.first = 1, .last = 3});
  const CompositionInfo info = must(desk.llm.preview_composition(band));
  const double in_use = desk.stat("blocks_in_use");
  const GenerationOutput out =
      must(desk.llm.generate_from_chunks(band, {.temperature = 0, .max_tokens = 3}));
  EXPECT_DOUBLE_EQ(out.reuse.recompute_share, 2.0 / kLayers);
  EXPECT_EQ(out.usage.cached_tokens, info.tokens_reused);
  EXPECT_EQ(out.reuse.grade, ReuseGrade::kApproximate);
  EXPECT_EQ(desk.stat("blocks_in_use"), in_use);
}

TEST_P(BlendByLayers, ABandWithoutHiddenStatesIsRefusedByName) {
  const auto refused =
      desk.llm.logits_from_chunks(by_layers(spec, GetParam(), {.first = 2, .last = 3}));
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, ErrorCode::kIncompatible);
  EXPECT_THAT(refused.error().message, HasSubstr("keep_hidden=2"));
  EXPECT_THAT(refused.error().message, HasSubstr(spec.context_chunk_ids.front()));
}

TEST_P(BlendByLayers, WrongBandsAreRefusedAndChangeNothing) {
  const std::vector<float> stored = desk.logits(spec);
  const LayerRange wrong[] = {{.first = -1, .last = 2},
                              {.first = 2, .last = 2},
                              {.first = 3, .last = 1},
                              {.first = 0, .last = kLayers + 1}};
  for (const LayerRange& layers : wrong) {
    const auto refused = desk.llm.logits_from_chunks(by_layers(spec, GetParam(), layers));
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.error().code, ErrorCode::kInvalidArgument) << refused.error().message;
  }
  EXPECT_EQ(desk.logits(spec), stored);
}

INSTANTIATE_TEST_SUITE_P(Bases, BlendByLayers,
                         testing::Values(ReuseMode::kAnchored, ReuseMode::kIndependent),
                         [](const auto& info) { return reuse_mode_name(info.param); });

TEST(KeptHiddenStates, CountAsTheChunksMemoryUntilItIsDeleted) {
  Desk desk(five_layers(), most_exact(kBlock));
  Dice dice(3);
  ChunkContent content{.content = dice.ids(21)};
  const std::string id = must(desk.llm.register_chunk(content));
  const std::int64_t without = must(desk.llm.get_chunk(id)).memory_bytes;
  content.options.keep_hidden = 2;
  ASSERT_EQ(must(desk.llm.register_chunk(content)), id);
  const ChunkInfo with = must(desk.llm.get_chunk(id));
  EXPECT_EQ(with.keep_hidden, 2);
  EXPECT_EQ(with.memory_bytes - without, std::int64_t{21} * 64 * 4);
  EXPECT_TRUE(must(desk.llm.delete_chunk(id)));
  content.options.keep_hidden.reset();
  ASSERT_EQ(must(desk.llm.register_chunk(content)), id);
  EXPECT_EQ(must(desk.llm.get_chunk(id)).memory_bytes, without);
}

// Another process finds the KV of the chunks in the store, and computes their hidden states of it.
TEST(KeptHiddenStates, OfChunksFromAStoreHaveTheSameBits) {
  const ChunkCacheOptions stored{.store = testing::TempDir() + "hidden_store"};
  std::filesystem::remove_all(stored.store);
  Dice dice(11);
  Scene scene = make_scene(dice, 3, kBlock);
  scene.place(Positions::kConcat);
  std::vector<std::vector<float>> logits;
  for (int process = 0; process < 2; ++process) {
    Desk desk(five_layers(), most_exact(kBlock), stored);
    CompositionSpec spec = desk.compose(scene, Positions::kConcat);
    for (const Scene::Segment& context : scene.contexts) {
      ChunkContent content{.content = context.ids};
      content.options.anchor = spec.system_chunk_id;
      content.options.keep_hidden = 2;
      must(desk.llm.register_chunk(content));
    }
    logits.push_back(desk.logits(by_layers(spec, ReuseMode::kAnchored, {.first = 2, .last = 4})));
  }
  EXPECT_EQ(logits[0], logits[1]);
}

TEST(KeptHiddenStates, AreRefusedOfLayersThatAreNotThereAndOfOtherKinds) {
  Desk desk(five_layers(), most_exact(kBlock));
  Dice dice(3);
  for (const std::int32_t layer : {-1, 0, kLayers}) {
    ChunkContent content{.content = dice.ids(5)};
    content.options.keep_hidden = layer;
    EXPECT_EQ(desk.llm.register_chunk(content).error().code, ErrorCode::kInvalidArgument) << layer;
  }
  ChunkContent system{.content = dice.ids(5), .type = ChunkType::kSystemPrompt};
  system.options.keep_hidden = 1;
  EXPECT_EQ(desk.llm.register_chunk(system).error().code, ErrorCode::kInvalidArgument);
}

// One layer alone is exact: the query sees its KV, and the rows of no other layer change.
TEST(OnlyLayer, EqualsTheOracleWithExactRowsThere) {
  Desk desk(five_layers(), most_exact(kBlock));
  Dice dice(9);
  Scene scene = make_scene(dice, 3, kBlock);
  scene.place(Positions::kConcat);
  const CompositionSpec spec = desk.compose(scene, Positions::kConcat);
  CompositionSpec only = spec;
  only.mode = ReuseMode::kBlend;
  for (std::int32_t i = 0; i < scene.num_context_tokens(); ++i) {
    scene.recomputed.push_back(scene.first_context() + i);
  }
  for (std::int32_t layer = 0; layer < kLayers; ++layer) {
    only.blend.only_layer = layer;
    scene.only_layer = layer;
    const auto got = must(desk.llm.logits_from_chunks(only));
    EXPECT_LE(distance(got, scene.logits(desk.oracle)), tolerance()) << layer;
  }
  only.blend.only_layer = kLayers;
  EXPECT_EQ(desk.llm.logits_from_chunks(only).error().code, ErrorCode::kInvalidArgument);
}

// Models with a window in some of their layers.
class BandsBehindWindows : public testing::TestWithParam<std::string> {
 protected:
  [[nodiscard]] static std::filesystem::path folder() { return kGoldens / GetParam(); }
  [[nodiscard]] static std::int32_t layers() {
    std::ifstream file(folder() / "config.json");
    const std::string text{std::istreambuf_iterator<char>(file), {}};
    const base::Json config = base::parse_json(text, "config.json").value();
    return static_cast<std::int32_t>(config.view().find("num_hidden_layers").as_int());
  }
  // Registers a context with the hidden states of a layer; 0: none.
  [[nodiscard]] static std::string keep(ChunkedLLM& llm, const Ids& ids, const std::string& anchor,
                                        std::int32_t layer) {
    ChunkContent content{.content = ids};
    content.options.anchor = anchor;
    if (layer > 0) {
      content.options.keep_hidden = layer;
    }
    return must(llm.register_chunk(content));
  }
};

class BandsOfDenseModelsBehindWindows : public BandsBehindWindows {};

TEST_P(BandsOfDenseModelsBehindWindows, EqualTheOracle) {
  Desk desk(folder(), most_exact(kBlock));
  Dice dice(5);
  Scene scene = make_scene(dice, 3, kBlock);
  scene.place(Positions::kConcat);
  const CompositionSpec spec = desk.compose(scene, Positions::kConcat);
  for (std::int32_t i = 0; i < scene.num_context_tokens(); ++i) {
    scene.recomputed.push_back(scene.first_context() + i);
  }
  for (std::int32_t first = 0; first < layers(); ++first) {
    for (const Scene::Segment& context : scene.contexts) {
      (void)keep(desk.llm, context.ids, spec.system_chunk_id, first);
    }
    for (std::int32_t last = first + 1; last <= layers(); ++last) {
      scene.layers = LayerRange{.first = first, .last = last};
      const auto got =
          must(desk.llm.logits_from_chunks(by_layers(spec, ReuseMode::kAnchored, *scene.layers)));
      EXPECT_LE(distance(got, scene.logits(desk.oracle)), tolerance()) << first << " to " << last;
    }
  }
  scene.layers.reset();
  CompositionSpec all = by_layers(spec, ReuseMode::kAnchored, {.first = 0, .last = layers()});
  EXPECT_LE(distance(must(desk.llm.logits_from_chunks(all)), scene.exact_logits(desk.oracle)),
            tolerance());
}

INSTANTIATE_TEST_SUITE_P(Goldens, BandsOfDenseModelsBehindWindows,
                         testing::Values("gemma2", "gemma3", "olmo3", "qwen2_window",
                                         "smollm3_window"),
                         [](const auto& info) { return info.param; });

// Oracle: the same prompt in one pass. One context has seen everything before it, so what any band
// computes again is what was there.
TEST_P(BandsBehindWindows, StayThePlainPromptForOneContextAndEqualItWithAllLayers) {
  const std::vector<std::int32_t> lengths = {20, 50, 37, 9};
  Dice dice(6);
  std::vector<Ids> texts;
  for (const std::int32_t length : lengths) {
    texts.push_back(dice.ids(length));
  }
  LLMOptions options = most_exact(kBlock);
  ChunkedLLM llm = must(ChunkedLLM::open(folder().string(), options));
  const auto exact = [&](std::vector<std::size_t> order) {
    Ids ids;
    for (const std::size_t i : order) {
      ids.insert(ids.end(), texts[i].begin(), texts[i].end());
    }
    return must(llm.llm().forward(ids, ForwardReuse::kNone, ForwardRows::kLast)).logits;
  };
  const auto apart = [](const std::vector<float>& rows, const std::vector<float>& last) {
    float most = 0;
    for (std::size_t i = 0; i < last.size(); ++i) {
      most = std::max(most, std::abs(rows[rows.size() - last.size() + i] - last[i]));
    }
    return most;
  };
  CompositionSpec spec{
      .system_chunk_id =
          must(llm.register_chunk({.content = texts[0], .type = ChunkType::kSystemPrompt})),
      .query_chunk_id = must(llm.register_chunk({.content = texts[3], .type = ChunkType::kQuery}))};
  const std::vector<float> one = exact({0, 1, 3});
  for (std::int32_t first = 0; first < layers(); ++first) {
    spec.context_chunk_ids = {keep(llm, texts[1], spec.system_chunk_id, first)};
    for (std::int32_t last = first + 1; last <= layers(); ++last) {
      const auto got = must(llm.logits_from_chunks(
          by_layers(spec, ReuseMode::kAnchored, {.first = first, .last = last})));
      EXPECT_LT(apart(got.logits, one), 1e-4) << first << " to " << last;
    }
    CompositionSpec only = spec;
    only.mode = ReuseMode::kBlend;
    only.blend.only_layer = first;
    EXPECT_LT(apart(must(llm.logits_from_chunks(only)).logits, one), 1e-4) << "layer " << first;
  }
  spec.context_chunk_ids.push_back(keep(llm, texts[2], spec.system_chunk_id, 0));
  const std::vector<float> both = exact({0, 1, 2, 3});
  const auto all = must(llm.logits_from_chunks(
      by_layers(spec, ReuseMode::kAnchored, {.first = 0, .last = layers()})));
  EXPECT_LT(apart(all.logits, both), 1e-4);
  EXPECT_GT(apart(must(llm.logits_from_chunks(spec)).logits, both), 1e-3)
      << "there was something to bring back";
}

INSTANTIATE_TEST_SUITE_P(Goldens, BandsBehindWindows,
                         testing::Values("gemma2", "gemma3", "gemma4", "gemma4_moe", "gpt_oss",
                                         "olmo3", "phi3", "qwen2_window", "smollm3_window"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace quire::chunks
