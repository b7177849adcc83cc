// Mode blend against the dense oracle: the rows that a selector chooses by its definition are
// computed again, with everything before them in sight and nothing behind them. All other rows keep
// the KV that the base mode has stored.
#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <map>
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

// Two layers do not tell whom recomputed rows see: what they attend to in the last layer reaches
// no key or value. These have four.
std::filesystem::path deep_model() { return write_checkpoint("deep", {}); }

struct Base {
  ReuseMode mode;
  bool in_place = false;
};
constexpr Base kBases[] = {
    {ReuseMode::kAnchored}, {ReuseMode::kAnchored, true}, {ReuseMode::kIndependent}};

constexpr std::int32_t kPercents[] = {0, 15, 50, 100};

CompositionSpec blended(CompositionSpec spec, const Scene& scene, Blend how) {
  how.base = scene.mode;
  spec.mode = ReuseMode::kBlend;
  spec.blend = std::move(how);
  return spec;
}

// Each set of rows once.
class References {
 public:
  References(const DenseModel& oracle, const Scene& scene) : oracle_(oracle), scene_(scene) {}
  const Matrix& with(const Tokens& tokens) {
    const auto [found, is_new] = known_.try_emplace(tokens);
    if (is_new) {
      scene_.recomputed = tokens;
      found->second = scene_.logits(oracle_);
    }
    return found->second;
  }

 private:
  const DenseModel& oracle_;
  Scene scene_;
  std::map<Tokens, Matrix> known_;
};

Scene placed(Scene scene, const Base& base) {
  scene.mode = base.mode;
  scene.computed_in_place = base.in_place;
  scene.place(Positions::kConcat);
  return scene;
}

Tokens all_contexts(const Scene& scene) {
  Tokens tokens;
  for (std::int32_t i = 0; i < scene.num_context_tokens(); ++i) {
    tokens.push_back(scene.first_context() + i);
  }
  return tokens;
}

Tokens some_contexts(Dice& dice, const Scene& scene, std::int32_t percent) {
  Tokens tokens = all_contexts(scene);
  while (std::ssize(tokens) > wanted(percent, scene.num_context_tokens())) {
    tokens.erase(tokens.begin() + dice.below(static_cast<std::int32_t>(std::ssize(tokens))));
  }
  return tokens;
}

struct Case {
  std::string name;
  std::string checkpoint;  // "": the deep one
  std::int32_t block = 16;
  std::int32_t contexts = 4;
  std::uint32_t seed = 1;
};

class BlendOf : public testing::TestWithParam<Case> {
 protected:
  [[nodiscard]] static std::filesystem::path folder() {
    return GetParam().checkpoint.empty() ? deep_model() : kGoldens / GetParam().checkpoint;
  }
};

// One selector at every share: the reference's logits, and the bits of the rows that the test
// itself has chosen.
void expect_choices(Desk& desk, const Scene& scene, Selector selector, std::uint64_t seed,
                    References& references) {
  const CompositionSpec spec = desk.compose(scene, Positions::kConcat);
  const std::vector<float> stored = desk.logits(spec);
  const std::vector<double> scores = scores_of(selector, scene, desk.oracle, seed);
  for (const std::int32_t percent : kPercents) {
    SCOPED_TRACE(std::string(selector_name(selector)) + " of " + std::to_string(percent) +
                 " % on " + reuse_mode_name(scene.mode) +
                 (scene.computed_in_place ? " in place" : ""));
    const Choice choice = choose(scene, scores, percent);
    EXPECT_GT(choice.gap, 1e-4) << "rounding decides: draw another scene";
    const Blend how{.selector = selector, .share = percent / 100.0, .seed = seed};
    const auto got = must(desk.llm.logits_from_chunks(blended(spec, scene, how)));
    EXPECT_LE(distance(got, references.with(choice.tokens)), tolerance());
    const Blend named{.selector = Selector::kExplicit, .tokens = choice.tokens};
    EXPECT_EQ(got.logits, desk.logits(blended(spec, scene, named))) << "not the oracle's rows";
    EXPECT_TRUE(percent > 0 || got.logits == stored) << "not the base mode";
  }
  EXPECT_EQ(desk.logits(spec), stored) << "blending has touched the chunks";
}

// The chosen rows equal the per-layer oracle at every share, also at shares of 0 and 1.
TEST_P(BlendOf, EverySelectorAtEveryShareEqualsItsReference) {
  Desk desk(folder(), most_exact(GetParam().block));
  Dice dice(GetParam().seed);
  const Scene drawn = make_scene(dice, GetParam().contexts, GetParam().block);
  for (const Base& base : kBases) {
    const Scene scene = placed(drawn, base);
    References references(desk.oracle, scene);
    for (const Selector selector : kByShare) {
      expect_choices(desk, scene, selector, 7 + GetParam().seed, references);
    }
  }
}

TEST_P(BlendOf, AnyExplicitRowsEqualTheirReference) {
  Desk desk(folder(), most_exact(GetParam().block));
  Dice dice(GetParam().seed + 50);
  const Scene drawn = make_scene(dice, GetParam().contexts, GetParam().block);
  for (const Base& base : kBases) {
    const Scene scene = placed(drawn, base);
    const CompositionSpec spec = desk.compose(scene, Positions::kConcat);
    References references(desk.oracle, scene);
    const Tokens every = all_contexts(scene);
    std::vector<Tokens> sets = {{}, {every.front()}, {every.back()}, every};
    for (const std::int32_t percent : {15, 50}) {
      sets.push_back(some_contexts(dice, scene, percent));
    }
    for (const Tokens& tokens : sets) {
      const Blend how{.selector = Selector::kExplicit, .tokens = tokens};
      const auto got = must(desk.llm.logits_from_chunks(blended(spec, scene, how)));
      EXPECT_LE(distance(got, references.with(tokens)), tolerance())
          << reuse_mode_name(base.mode) << ", " << tokens.size() << " rows";
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Models, BlendOf,
    testing::Values(Case{"deep_blocks_of_1", "", 1, 6, 1}, Case{"deep_blocks_of_4", "", 4, 6, 2},
                    Case{"deep_blocks_of_16", "", 16, 6, 3},
                    Case{"deep_blocks_of_32", "", 32, 3, 4},
                    Case{"llama_gqa", "llama_gqa", 16, 4, 5}, Case{"qwen3", "qwen3", 16, 4, 6},
                    Case{"qwen2", "qwen2", 8, 4, 7}, Case{"llama_mqa", "llama_mqa", 8, 4, 8}),
    [](const auto& info) { return info.param.name; });

// A desk of the deep model and one composition of four contexts.
class Blends : public testing::TestWithParam<Base> {
 protected:
  Blends() : desk(deep_model(), most_exact(kBlock)), dice(21) {
    scene = placed(make_scene(dice, 4, kBlock), GetParam());
    spec = desk.compose(scene, Positions::kConcat);
  }
  [[nodiscard]] CompositionSpec with(const Blend& how) const { return blended(spec, scene, how); }

  static constexpr std::int32_t kBlock = 8;
  Desk desk;
  Dice dice;
  Scene scene;
  CompositionSpec spec;
};

// A share of 1 computes every row without a short cut.
TEST_P(Blends, ShareOfOneComputesEveryRowAndEqualsExact) {
  const Matrix want = scene.exact_logits(desk.oracle);
  CompositionSpec exact = spec;
  exact.mode = ReuseMode::kExact;
  exact.computed_in_place = false;
  EXPECT_LE(distance(must(desk.llm.logits_from_chunks(exact)), want), tolerance());
  EXPECT_GT(distance(must(desk.llm.logits_from_chunks(spec)), want), 1e-3) << "proves nothing";
  const auto rows = static_cast<double>(scene.num_context_tokens() + std::ssize(scene.query.ids));
  for (const Selector selector : {Selector::kFirst, Selector::kRandom, Selector::kValueDeviation,
                                  Selector::kQueryAttention, Selector::kAll}) {
    const double before = desk.stat("tokens_computed");
    const auto got =
        must(desk.llm.logits_from_chunks(with({.selector = selector, .share = 1, .seed = 3})));
    EXPECT_LE(distance(got, want), tolerance()) << selector_name(selector);
    EXPECT_EQ(desk.stat("tokens_computed") - before, rows) << selector_name(selector);
  }
}

TEST_P(Blends, SelectorsAllAndNoneDoNotLookAtTheShare) {
  const std::vector<float> stored = desk.logits(spec);
  const std::vector<float> all =
      desk.logits(with({.selector = Selector::kExplicit, .tokens = all_contexts(scene)}));
  for (const double share : {0.0, 0.15, 1.0}) {
    EXPECT_EQ(desk.logits(with({.selector = Selector::kAll, .share = share})), all);
    EXPECT_EQ(desk.logits(with({.selector = Selector::kNone, .share = share})), stored);
  }
}

TEST_P(Blends, ExplicitRowsAreASetOfContextTokens) {
  const Tokens chosen = some_contexts(dice, scene, 30);
  const std::vector<float> want =
      desk.logits(with({.selector = Selector::kExplicit, .tokens = chosen}));
  Tokens mixed(chosen.rbegin(), chosen.rend());  // any order
  mixed.insert(mixed.end(), chosen.begin(), chosen.end());
  const auto total =
      static_cast<std::int32_t>(must(desk.llm.preview_composition(spec)).total_tokens);
  mixed.push_back(0);          // of the system chunk
  mixed.push_back(total - 1);  // of the query, which is always computed
  EXPECT_EQ(desk.logits(with({.selector = Selector::kExplicit, .tokens = mixed})), want);
}

// The comparisons above would see one wrong row, unless it is one of the first context under its
// anchor, where computing again changes nothing.
TEST_P(Blends, OneRowMoreOrAnotherRowIsToldApart) {
  const auto second_context =
      scene.first_context() + static_cast<std::int32_t>(std::ssize(scene.contexts[0].ids));
  for (const Selector selector : kByShare) {
    const std::vector<double> scores = scores_of(selector, scene, desk.oracle, 5);
    std::int32_t percent = 30;
    while (choose(scene, scores, percent).next_best < second_context) {
      ++percent;
    }
    const Choice choice = choose(scene, scores, percent);
    const auto run = [&](const Tokens& tokens) {
      return must(
          desk.llm.logits_from_chunks(with({.selector = Selector::kExplicit, .tokens = tokens})));
    };
    scene.recomputed = choice.tokens;
    const Matrix want = scene.logits(desk.oracle);
    EXPECT_LE(distance(run(choice.tokens), want), tolerance()) << selector_name(selector);
    Tokens other = choice.tokens;
    other.push_back(choice.next_best);
    EXPECT_GT(distance(run(other), want), 10 * tolerance()) << selector_name(selector);
    std::erase(other, choice.tokens.back());
    EXPECT_GT(distance(run(other), want), 10 * tolerance()) << selector_name(selector);
  }
}

// A selector chooses the same rows every time, in every process: only the seed moves them.
TEST_P(Blends, EverySelectorIsDeterministicAndItsShareExact) {
  const std::int32_t tokens = scene.num_context_tokens();
  Desk other(deep_model(), most_exact(kBlock));
  const CompositionSpec there = other.compose(scene, Positions::kConcat);
  for (const Selector selector : kByShare) {
    for (const std::int32_t percent : {1, 15, 30, 50, 99}) {
      const Blend how{.selector = selector, .share = percent / 100.0, .seed = 9};
      const std::vector<float> first = desk.logits(with(how));
      EXPECT_EQ(desk.logits(with(how)), first);
      EXPECT_EQ(other.logits(blended(there, scene, how)), first);
      const GenerationOutput out =
          must(desk.llm.generate_from_chunks(with(how), {.temperature = 0, .max_tokens = 1}));
      EXPECT_EQ(out.reuse.recompute_share, wanted(percent, tokens) / double(tokens));
      EXPECT_EQ(out.reuse.grade, ReuseGrade::kApproximate);
      EXPECT_EQ(must(desk.llm.preview_composition(with(how))).tokens_computed,
                wanted(percent, tokens) + std::ssize(scene.query.ids));
    }
  }
  const auto random = [&](std::uint64_t seed) {
    return desk.logits(with({.selector = Selector::kRandom, .share = 0.3, .seed = seed}));
  };
  EXPECT_NE(random(1), random(2));
}

TEST_P(Blends, NumberOfRowsInAPassChangesNoChoice) {
  LLMOptions narrow = most_exact(kBlock);
  narrow.max_batch_tokens = 5;
  Desk other(deep_model(), narrow);
  const CompositionSpec there = other.compose(scene, Positions::kConcat);
  for (const Selector selector : kByShare) {
    const Blend how{.selector = selector, .share = 0.5, .seed = 4};
    const Choice choice = choose(scene, scores_of(selector, scene, desk.oracle, 4), 50);
    scene.recomputed = choice.tokens;
    const auto got = must(other.llm.logits_from_chunks(blended(there, scene, how)));
    EXPECT_LE(distance(got, scene.logits(desk.oracle)), tolerance()) << selector_name(selector);
    const Blend named{.selector = Selector::kExplicit, .tokens = choice.tokens};
    EXPECT_EQ(got.logits, other.logits(blended(there, scene, named))) << selector_name(selector);
  }
}

TEST_P(Blends, GreedyContinuationIsTheReferencesArgmax) {
  const Choice choice =
      choose(scene, scores_of(Selector::kQueryAttention, scene, desk.oracle, 0), 30);
  const GenerationOutput out = must(
      desk.llm.generate_from_chunks(with({.selector = Selector::kQueryAttention, .share = 0.3}),
                                    {.temperature = 0, .max_tokens = 6, .ignore_eos = true}));
  ASSERT_EQ(out.token_ids.size(), 6u);
  scene.recomputed = choice.tokens;
  expect_greedy(out.token_ids, scene, desk.oracle);
}

// Requests of one batch share the chunks and not what they computed again.
TEST_P(Blends, BlendsOfTheSameChunksInOneBatchEqualTheirOwnRuns) {
  std::vector<CompositionSpec> specs = {spec};
  for (const Selector selector : kByShare) {
    specs.push_back(with({.selector = selector, .share = 0.4}));
  }
  const SamplingParams params{.temperature = 0, .max_tokens = 5, .ignore_eos = true, .logprobs = 4};
  std::vector<GenerationOutput> alone;
  for (const CompositionSpec& one : specs) {
    alone.push_back(must(desk.llm.generate_from_chunks(one, params)));
  }
  const double in_use = desk.stat("blocks_in_use");
  const auto together = must(desk.llm.batch_generate_from_chunks(specs, {&params, 1}));
  for (std::size_t i = 0; i < specs.size(); ++i) {
    EXPECT_EQ(together[i].token_ids, alone[i].token_ids) << i;
    EXPECT_EQ(together[i].logprobs, alone[i].logprobs) << i << ", to the bit";
  }
  EXPECT_EQ(desk.stat("blocks_in_use"), in_use) << "copies outlive their requests";
}

TEST_P(Blends, WrongSharesAndRowsAreRefusedAndChangeNothing) {
  const std::vector<float> stored = desk.logits(spec);
  const double in_use = desk.stat("blocks_in_use");
  const auto total =
      static_cast<std::int32_t>(must(desk.llm.preview_composition(spec)).total_tokens);
  std::vector<Blend> wrong;
  for (const double share : {-0.01, 1.01, std::nan(""), HUGE_VAL}) {
    for (const Selector selector : kByShare) {
      wrong.push_back({.selector = selector, .share = share});
    }
  }
  for (const std::int32_t token : {-1, total, std::numeric_limits<std::int32_t>::max()}) {
    wrong.push_back({.selector = Selector::kExplicit, .tokens = {token}});
  }
  for (const Blend& how : wrong) {
    const auto refused = desk.llm.logits_from_chunks(with(how));
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.error().code, ErrorCode::kInvalidArgument) << refused.error().message;
  }
  EXPECT_EQ(desk.stat("blocks_in_use"), in_use);
  EXPECT_EQ(desk.logits(spec), stored);
}

INSTANTIATE_TEST_SUITE_P(Bases, Blends, testing::ValuesIn(kBases), [](const auto& info) {
  return std::string(reuse_mode_name(info.param.mode)) + (info.param.in_place ? "_in_place" : "");
});

// Keys and values of the only layer depend on their token alone.
TEST(Blend, WithOneLayerEveryBlendIsExact) {
  Desk desk(write_checkpoint("one_layer", {.layers = 1}), most_exact(8));
  Dice dice(32);
  for (const Base& base : kBases) {
    const Scene scene = placed(make_scene(dice, 3, 8), base);
    const CompositionSpec spec = desk.compose(scene, Positions::kConcat);
    const Matrix want = scene.exact_logits(desk.oracle);
    for (const Selector selector : kByShare) {
      for (const double share : {0.0, 0.15, 1.0}) {
        const auto got = must(desk.llm.logits_from_chunks(
            blended(spec, scene, {.selector = selector, .share = share})));
        EXPECT_LE(distance(got, want), tolerance()) << selector_name(selector) << " " << share;
      }
    }
  }
}

// Where copies lie is no part of a result: the same chunk at three places, with recomputed rows of
// its own at some, while other chunks take one free block after the other.
TEST(Blend, PlacesOfBlocksChangeNoBit) {
  LLMOptions small = most_exact(8);
  small.kv_budget_bytes = std::int64_t{1} << 20;  // 64 blocks
  Desk desk(deep_model(), small, {.chunk_memory_ratio = 1});
  Dice dice(35);
  Scene scene = make_scene(dice, 3, 8);
  scene.contexts.push_back(scene.contexts[2]);
  scene.contexts.push_back(scene.contexts[2]);
  scene = placed(scene, {ReuseMode::kAnchored});
  const CompositionSpec stored = desk.compose(scene, Positions::kConcat);
  const auto run = [&] {
    std::vector<std::vector<float>> logits;
    for (std::uint64_t seed = 0; seed < 4; ++seed) {
      const Blend how{.selector = Selector::kRandom, .share = 0.1, .seed = seed};
      logits.push_back(desk.logits(blended(stored, scene, how)));
    }
    return logits;
  };
  const auto alone = run();
  for (int others = 1; others <= 20; ++others) {
    static_cast<void>(
        must(desk.llm.register_chunk({.content = dice.ids(9), .type = ChunkType::kContext})));
    EXPECT_EQ(run() == alone, true) << "beside " << others << " others";
  }
}

// The variants of one chunk at two distances from its anchor, computed in this order or in that.
TEST(Blend, OrderInWhichVariantsWereComputedChangesNoBit) {
  Dice dice(36);
  Scene scene = make_scene(dice, 3, 8);
  scene.contexts.push_back(scene.contexts[2]);
  scene.contexts.push_back(scene.contexts[2]);
  scene = placed(scene, {ReuseMode::kAnchored, true});
  std::vector<std::vector<float>> runs;
  for (const bool last_first : {false, true}) {
    Desk desk(deep_model(), most_exact(8));
    CompositionSpec spec = desk.compose(scene, Positions::kFixed);
    if (last_first) {
      CompositionSpec only_last = spec;
      only_last.context_chunk_ids = {spec.context_chunk_ids.back()};
      only_last.fixed = {spec.fixed[0], spec.fixed[5], spec.fixed[6]};
      static_cast<void>(desk.logits(only_last));
    }
    runs.push_back(desk.logits(spec));
  }
  EXPECT_EQ(runs[0] == runs[1], true);
}

}  // namespace
}  // namespace quire::chunks
