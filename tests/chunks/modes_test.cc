// Composed requests against the dense oracle, on a tiny random checkpoint of every family: each
// mode equals one forward pass with its own mask and positions, whatever the lengths, the number
// and the order of chunks, and the block size.
#include <gtest/gtest.h>

#include <algorithm>
#include <boost/json.hpp>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "dense_oracle.h"
#include "desk.h"
#include "quire/chunks.h"
#include "quire/llm.h"
#include "quire/output.h"
#include "quire/result.h"
#include "quire/sampling.h"
#include "scene.h"
#include "selection.h"
#include "tiny_checkpoint.h"

namespace quire::chunks {
namespace {

// Anywhere: overlaps, gaps and queries in the middle. In place a context must lie behind the
// system chunk's start.
void scatter(Dice& dice, Scene& scene) {
  if (scene.system) {
    scene.system->position = dice.below(30);
  }
  for (Scene::Segment& context : scene.contexts) {
    const auto first = scene.system && scene.computed_in_place ? scene.system->position : 0;
    context.position = first + dice.below(80);
  }
  scene.query.position = dice.below(120);
}

void expect_equal(Desk& desk, Dice& dice, Scene scene, Positions positions) {
  if (positions == Positions::kFixed) {
    scatter(dice, scene);
  } else {
    scene.place(positions);
  }
  const CompositionSpec spec = desk.compose(scene, positions);
  const auto got = desk.llm.logits_from_chunks(spec);
  ASSERT_TRUE(got.ok()) << got.error().message;
  EXPECT_LE(distance(*got, scene.logits(desk.oracle)), tolerance())
      << reuse_mode_name(scene.mode) << (scene.computed_in_place ? " in place" : "")
      << ", positions " << static_cast<int>(positions) << ", " << scene.contexts.size()
      << " contexts" << (scene.system ? "" : ", without system");
}

constexpr Positions kAllPositions[] = {Positions::kConcat, Positions::kParallel, Positions::kFixed};

void expect_all_modes(Desk& desk, Dice& dice, const Scene& scene) {
  for (const Positions positions : kAllPositions) {
    Scene one = scene;
    one.mode = ReuseMode::kIndependent;
    expect_equal(desk, dice, one, positions);
    one.mode = ReuseMode::kAnchored;
    expect_equal(desk, dice, one, positions);
    one.computed_in_place = true;
    expect_equal(desk, dice, one, positions);
  }
}

class EveryFamily : public testing::TestWithParam<std::string> {};

TEST_P(EveryFamily, OracleEqualsTransformersOnAPlainPrompt) {
  const auto folder = kGoldens / GetParam();
  const DenseModel oracle(folder);
  std::ifstream in(folder / "golden.json");
  std::stringstream text;
  text << in.rdbuf();
  const auto golden = boost::json::parse(text.str());
  for (const auto& prompt : golden.at("prompts").as_array()) {
    const Ids ids = boost::json::value_to<Ids>(prompt.at("ids"));
    if (ids.size() > 100) {
      continue;
    }
    const Matrix logits = oracle.forward(ids, causal());
    const auto rows = boost::json::value_to<std::vector<std::size_t>>(prompt.at("rows"));
    for (std::size_t i = 0; i < rows.size(); ++i) {
      const auto want = boost::json::value_to<std::vector<double>>(prompt.at("logits").at(i));
      for (std::size_t v = 0; v < want.size(); ++v) {
        ASSERT_NEAR(logits.row(rows[i])[v], want[v], 5e-5);
      }
    }
  }
}

TEST_P(EveryFamily, EveryModeEqualsItsReference) {
  Desk desk(kGoldens / GetParam(), most_exact(16));
  Dice dice(7);
  for (const std::int32_t contexts : {0, 2, 4}) {
    expect_all_modes(desk, dice, make_scene(dice, contexts, 16));
  }
}

TEST_P(EveryFamily, GreedyContinuationIsTheReferencesArgmax) {
  Desk desk(kGoldens / GetParam(), most_exact(16));
  Dice dice(8);
  for (const ReuseMode mode : {ReuseMode::kIndependent, ReuseMode::kAnchored}) {
    for (const Positions positions : {Positions::kConcat, Positions::kParallel}) {
      Scene scene = make_scene(dice, 3, 16);
      scene.mode = mode;
      scene.place(positions);
      const GenerationOutput out = must(desk.llm.generate_from_chunks(
          desk.compose(scene, positions), {.temperature = 0, .max_tokens = 8, .ignore_eos = true}));
      ASSERT_EQ(out.token_ids.size(), 8u);
      expect_greedy(out.token_ids, scene, desk.oracle);
    }
  }
}

TEST_P(EveryFamily, BlendOfHalfTheTokensEqualsItsReference) {
  Desk desk(kGoldens / GetParam(), most_exact(16));
  Dice dice(9);
  Scene scene = make_scene(dice, 3, 16);
  // Logits that a GPU computes in bf16 rank close tokens in another order than the oracle.
  const std::vector<Selector> selectors =
      on_gpu() ? std::vector{Selector::kFirst, Selector::kRandom}
               : std::vector{Selector::kValueDeviation, Selector::kQueryAttention};
  for (const ReuseMode base : {ReuseMode::kIndependent, ReuseMode::kAnchored}) {
    scene.mode = base;
    scene.place(Positions::kConcat);
    CompositionSpec spec = desk.compose(scene, Positions::kConcat);
    spec.mode = ReuseMode::kBlend;
    for (const Selector selector : selectors) {
      const Choice choice = choose(scene, scores_of(selector, scene, desk.oracle, 0), 50);
      EXPECT_GT(choice.gap, 1e-4) << "rounding decides: draw another scene";
      scene.recomputed = choice.tokens;
      spec.blend = {.selector = selector, .share = 0.5, .base = base};
      EXPECT_LE(distance(must(desk.llm.logits_from_chunks(spec)), scene.logits(desk.oracle)),
                tolerance())
          << selector_name(selector) << " on " << reuse_mode_name(base);
    }
    scene.recomputed.clear();
  }
}

std::vector<std::string> families() {
  std::vector<std::string> names = {"llama_mha",
                                    "llama_gqa",
                                    "llama_mqa",
                                    "llama_tied",
                                    "llama_bias",
                                    "llama_rope_linear",
                                    "llama_rope_llama3",
                                    "llama_rope_yarn",
                                    "llama_head_dim",
                                    "llama_head_80",
                                    "llama_sharded",
                                    "llama_f16",
                                    "mistral_window",
                                    "qwen2",
                                    "qwen2_tied",
                                    "qwen3",
                                    "phi3",
                                    "phi3_partial",
                                    "phi3_longrope",
                                    "gemma2",
                                    "gemma3",
                                    "gemma3_wide",
                                    "granite",
                                    "granite_bias",
                                    "olmo2",
                                    "olmo3",
                                    "qwen2_window",
                                    "smollm3",
                                    "smollm3_window"};
  std::erase_if(names, [](const std::string& name) { return !computes_here(name); });
  return names;
}

INSTANTIATE_TEST_SUITE_P(Checkpoints, EveryFamily, testing::ValuesIn(families()),
                         [](const auto& info) { return info.param; });

class EveryBlockSize : public testing::TestWithParam<std::int32_t> {};

TEST_P(EveryBlockSize, EveryNumberOfContextsEqualsItsReference) {
  Desk desk(kGoldens / "llama_gqa", most_exact(GetParam()));
  Dice dice(static_cast<std::uint32_t>(GetParam()));
  for (std::int32_t contexts = 0; contexts <= 6; ++contexts) {
    Scene scene = make_scene(dice, contexts, GetParam());
    expect_all_modes(desk, dice, scene);
  }
}

TEST_P(EveryBlockSize, AnyOrderAndNoSystemChunkEqualTheirReferences) {
  Desk desk(kGoldens / "qwen3", most_exact(GetParam()));
  Dice dice(static_cast<std::uint32_t>(GetParam()) + 100);
  Scene scene = make_scene(dice, 4, GetParam());
  for (int i = 0; i < 4; ++i) {
    std::swap(scene.contexts[0], scene.contexts[static_cast<std::size_t>(1 + dice.below(3))]);
    for (const Positions positions : kAllPositions) {
      scene.mode = i % 2 == 0 ? ReuseMode::kAnchored : ReuseMode::kIndependent;
      expect_equal(desk, dice, scene, positions);
    }
  }
  scene.system.reset();
  expect_all_modes(desk, dice, scene);
}

INSTANTIATE_TEST_SUITE_P(Blocks, EveryBlockSize, testing::Values(1, 4, 16, 32),
                         [](const auto& info) { return std::to_string(info.param); });

// Angles are those of the positions, not of their rounding. At 131072 an angle computed in
// float32 is off by up to 7e-3.
TEST(Modes, DistancesUpTo131072EqualTheirReferences) {
  Desk desk(write_checkpoint("long", {.max_positions = 262144}), most_exact(16));
  Dice dice(33);
  Scene scene = make_scene(dice, 4, 16);
  const std::int64_t positions[][4] = {
      {131072, 65537, 100, 131071}, {4096, 131072, 77777, 131072}, {200000, 31, 131072, 99999}};
  for (const auto& at : positions) {
    for (const bool in_place : {false, true}) {
      for (const ReuseMode mode : {ReuseMode::kAnchored, ReuseMode::kIndependent}) {
        if (in_place && mode == ReuseMode::kIndependent) {
          continue;
        }
        scene.mode = mode;
        scene.computed_in_place = in_place;
        for (std::size_t i = 0; i < scene.contexts.size(); ++i) {
          scene.contexts[i].position = at[i];
        }
        scene.query.position = 131200;
        const CompositionSpec spec = desk.compose(scene, Positions::kFixed);
        EXPECT_LE(distance(must(desk.llm.logits_from_chunks(spec)), scene.logits(desk.oracle)),
                  tolerance())
            << reuse_mode_name(mode) << (in_place ? " in place" : "") << ", first at " << at[0];
      }
    }
  }
}

// Only distances count, to the bit, because keys are stored at positions of their own.
TEST(Modes, AShiftOfAllPositionsChangesNoBit) {
  Desk desk(write_checkpoint("long", {.max_positions = 262144}), most_exact(16));
  Dice dice(34);
  Scene scene = make_scene(dice, 4, 16);
  for (const ReuseMode mode : {ReuseMode::kAnchored, ReuseMode::kIndependent}) {
    scene.mode = mode;
    scene.place(Positions::kConcat);
    CompositionSpec spec = desk.compose(scene, Positions::kConcat);
    const std::vector<float> want = desk.logits(spec);
    const std::vector<std::int32_t> starts = spec.fixed;
    spec.positions = Positions::kFixed;
    for (const std::int32_t shift : {0, 1, 31, 4096, 65537, 131072}) {
      std::ranges::transform(starts, spec.fixed.begin(),
                             [&](std::int32_t start) { return start + shift; });
      EXPECT_EQ(desk.logits(spec), want) << reuse_mode_name(mode) << " + " << shift;
    }
  }
}

// One context behind the system chunk has seen all that stands before it.
TEST(Modes, AnchoredWithOneContextIsThePlainPrompt) {
  Desk desk(kGoldens / "llama_gqa", most_exact(16));
  Dice dice(5);
  for (const std::int32_t length : {1, 15, 16, 17, 50}) {
    Scene scene{.system = Scene::Segment{.ids = dice.ids(9)},
                .contexts = {{.ids = dice.ids(length)}},
                .query = {.ids = dice.ids(4)}};
    scene.place(Positions::kConcat);
    const CompositionSpec spec = desk.compose(scene, Positions::kConcat);
    const CompositionInfo info = must(desk.llm.preview_composition(spec));
    EXPECT_EQ(info.grade, ReuseGrade::kEqualMath);
    const Matrix all = desk.oracle.forward(info.token_ids(), causal());
    const Matrix want{.rows = 4,
                      .columns = all.columns,
                      .values = {all.values.end() - static_cast<std::ptrdiff_t>(4 * all.columns),
                                 all.values.end()}};
    EXPECT_LE(distance(must(desk.llm.logits_from_chunks(spec)), want), tolerance());
    CompositionSpec exact = spec;
    exact.mode = ReuseMode::kExact;
    EXPECT_LE(distance(must(desk.llm.logits_from_chunks(exact)), want), tolerance());
  }
}

// Parallel contexts stand side by side and have no order.
TEST(Modes, OrderOfParallelSiblingsChangesNoBit) {
  Desk desk(kGoldens / "llama_gqa", most_exact(16));
  Dice dice(11);
  Scene scene = make_scene(dice, 5, 16);
  scene.mode = ReuseMode::kIndependent;
  scene.place(Positions::kParallel);
  CompositionSpec spec = desk.compose(scene, Positions::kParallel);
  const std::vector<float> first = must(desk.llm.logits_from_chunks(spec)).logits;
  for (int i = 0; i < 6; ++i) {
    std::swap(spec.context_chunk_ids[static_cast<std::size_t>(dice.below(5))],
              spec.context_chunk_ids[static_cast<std::size_t>(dice.below(5))]);
    EXPECT_EQ(must(desk.llm.logits_from_chunks(spec)).logits, first);
  }
}

// One stored copy serves three requests at three offsets in one batch.
TEST(Modes, OneCopyAtThreeOffsetsInOneBatchEqualsThreeRunsOfTheirOwn) {
  LLMOptions options = most_exact(16);
  options.prefix_cache = false;
  Desk desk(kGoldens / "qwen2", options);
  const auto in_use = [&] {
    const Stats stats = must(desk.llm.llm().stats());
    return std::ranges::find(stats, "blocks_in_use", &Stats::value_type::first)->second;
  };
  Dice dice(12);
  const Scene scene = make_scene(dice, 4, 16);
  const CompositionSpec all = desk.compose(scene, Positions::kConcat);
  const auto& ids = all.context_chunk_ids;
  std::vector<CompositionSpec> specs(3, all);
  specs[0].context_chunk_ids = {ids[2]};
  specs[1].context_chunk_ids = {ids[0], ids[2], ids[3]};
  specs[2].context_chunk_ids = {ids[3], ids[1], ids[0], ids[2]};
  const SamplingParams params{.temperature = 0, .max_tokens = 6, .ignore_eos = true, .logprobs = 5};
  const double registered = in_use();
  double blocks = 0;
  for (const auto& chunk : must(desk.llm.list_chunks())) {
    blocks += chunk.type == ChunkType::kQuery
                  ? 0
                  : static_cast<double>((chunk.token_ids.size() + 15) / 16);
  }
  EXPECT_EQ(registered, blocks) << "one copy of each chunk";
  std::vector<GenerationOutput> alone;
  for (const CompositionSpec& spec : specs) {
    alone.push_back(must(desk.llm.generate_from_chunks(spec, params)));
  }
  const auto together = must(desk.llm.batch_generate_from_chunks(specs, {&params, 1}));
  for (std::size_t i = 0; i < specs.size(); ++i) {
    EXPECT_EQ(together[i].token_ids, alone[i].token_ids);
    EXPECT_EQ(together[i].logprobs, alone[i].logprobs) << "to the bit";
  }
  EXPECT_EQ(in_use(), registered) << "no use made a copy";
}

// The demo model has a tokenizer that knows the BOS token, the other folder a config.
TEST(Modes, ABosSinkEqualsItsReference) {
  for (const std::filesystem::path& model :
       {std::filesystem::path(source_path("models/cardfile/model")), kGoldens / "llama_gqa"}) {
    Desk desk(model, most_exact(16));
    Dice dice(13);
    Scene scene = make_scene(dice, 3, 16);
    scene.mode = ReuseMode::kIndependent;
    scene.bos_sink = 1;
    for (const Positions positions : {Positions::kConcat, Positions::kFixed}) {
      expect_equal(desk, dice, scene, positions);
    }
  }
}

// Chunks keep all their KV, and prompts free theirs behind the window.
TEST(Modes, AModelWhoseLayersAllHaveAWindowComposesAndStillFreesKVOfPrompts) {
  for (const std::string name : {"mistral_window", "phi3"}) {
    Desk desk(kGoldens / name, most_exact(16));
    Dice dice(14);
    Scene scene = make_scene(dice, 3, 16);
    scene.place(Positions::kConcat);
    CompositionSpec spec = desk.compose(scene, Positions::kConcat);
    spec.mode = ReuseMode::kExact;
    const std::vector<float> composed = must(desk.llm.logits_from_chunks(spec)).logits;
    const auto plain = must(desk.llm.llm().forward(
        must(desk.llm.preview_composition(spec)).token_ids(), ForwardReuse::kNone));
    EXPECT_TRUE(
        std::equal(composed.begin(), composed.end(), plain.logits.end() - std::ssize(composed)));
    Sequence prompt = must(desk.llm.llm().sequence(dice.ids(200)));
    EXPECT_GE(std::ranges::count(must(prompt.blocks()).block_ids(), -1), 8) << "of 12 blocks";
  }
}

}  // namespace
}  // namespace quire::chunks
