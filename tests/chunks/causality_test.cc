// Causality by perturbation: a changed token changes the rows that have seen it and no bit of any
// other row, in every mode.
//
// Queries look at all tokens, so they would see any change themselves. The checkpoint of these
// tests has secret tokens, which asking tokens cannot look at and all others can
// (tiny_checkpoint.h): with a query of asking tokens, a changed secret shows in the logits exactly
// when an ordinary token of a chunk has seen it.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "dense_oracle.h"
#include "desk.h"
#include "quire/chunks.h"
#include "quire/types.h"
#include "scene.h"
#include "selection.h"
#include "tiny_checkpoint.h"

namespace quire::chunks {
namespace {

struct How {
  ReuseMode mode;  // or base of the blend
  bool in_place = false;
  Positions positions = Positions::kConcat;
  Blend blend = {.selector = Selector::kNone};
  Tokens recomputed;  // that `blend` chooses
};

constexpr std::pair<ReuseMode, bool> kCausalBases[] = {
    {ReuseMode::kAnchored, false}, {ReuseMode::kAnchored, true}, {ReuseMode::kIndependent, false}};

class Causality : public testing::Test {
 protected:
  static constexpr std::int32_t kBlock = 4;

  Causality()
      : desk(write_checkpoint("secrets", {.with_secrets = true, .seed = 3}), most_exact(kBlock)) {
    const auto chunk = [&](std::string_view layout) {  // o: ordinary, s: secret
      const auto number = static_cast<std::int32_t>(chunks_++);
      Ids ids;
      for (const char kind : layout) {
        const bool secret = kind == 's';
        ids.push_back(secret ? dice.ids(1, kFirstSecret, kFirstAsking)[0]
                             : dice.ids(1, 3, kFirstSecret)[0]);
        chunk_of.push_back(number);
        (secret ? secrets : ordinary)
            .push_back(static_cast<std::int32_t>(std::ssize(chunk_of)) - 1);
      }
      return Scene::Segment{.ids = ids};
    };
    scene.system = chunk("oos");
    for (const std::string_view layout : {"ooosss", "sooos", "oosos", "os", "oooos"}) {
      scene.contexts.push_back(chunk(layout));
    }
    scene.query.ids = dice.ids(3, kFirstAsking, 200);
  }

  [[nodiscard]] Scene as(const How& how) const {
    Scene placed = scene;
    placed.mode = how.mode;
    placed.computed_in_place = how.in_place;
    placed.recomputed = how.recomputed;
    placed.place(how.positions);
    return placed;
  }

  [[nodiscard]] CompositionSpec spec_of(const Scene& placed, const How& how) {
    CompositionSpec spec = desk.compose(placed, how.positions);
    if (how.blend.selector != Selector::kNone) {
      spec.mode = ReuseMode::kBlend;
      spec.blend = how.blend;
      spec.blend.base = how.mode;
    }
    return spec;
  }

  static TokenId& at(Scene& scene, std::int32_t token) {
    Ids* ids = &scene.system->ids;
    for (auto context = scene.contexts.begin(); token >= std::ssize(*ids); ++context) {
      token -= static_cast<std::int32_t>(std::ssize(*ids));
      ids = &context->ids;
    }
    return (*ids)[static_cast<std::size_t>(token)];
  }

  // The segments of `placed` by ascending id: what their states are merged in.
  [[nodiscard]] std::vector<std::size_t> merge_order(const Scene& placed) {
    const CompositionSpec spec = desk.compose(placed, Positions::kConcat);
    std::vector<std::string> ids = spec.context_chunk_ids;
    ids.push_back(spec.system_chunk_id);
    std::vector<std::size_t> order;
    for (std::size_t i = 0; i < ids.size(); ++i) {
      order.push_back(i);
    }
    std::ranges::sort(order, {}, [&](std::size_t i) { return ids[i]; });
    return order;
  }

  // With another token of its kind at `token`. Attention merges chunks in the order of their ids,
  // so that one is taken with which the changed chunk keeps its place among the others; but not for
  // a changed system chunk that contexts are anchored to: it changes all their ids.
  [[nodiscard]] Scene changed(const How& how, std::int32_t token) {
    Scene other = as(how);
    const auto [known, is_new] = changes_.try_emplace({how.mode, token});
    if (is_new) {
      const TokenId was = at(other, token);
      const TokenId first = was < kFirstSecret ? 3 : kFirstSecret;
      const TokenId end = was < kFirstSecret ? kFirstSecret : kFirstAsking;
      const bool any =
          chunk_of[static_cast<std::size_t>(token)] == 0 && how.mode == ReuseMode::kAnchored;
      const std::vector<std::size_t> order = merge_order(other);
      TokenId& now = at(other, token);
      do {
        now = now + 1 == end ? first : now + 1;
      } while (now != was && !any && merge_order(other) != order);
      EXPECT_NE(now, was) << "no token keeps the order: draw another scene";
      known->second = now;
    }
    at(other, token) = known->second;
    return other;
  }

  // Returns whether `logits` differ from `before` by more than another order of rounding.
  static bool differ(const std::vector<float>& logits, const std::vector<float>& before) {
    double most = 0;
    double off = 0;
    for (std::size_t i = 0; i < logits.size(); ++i) {
      most = std::max<double>(most, std::abs(before[i]));
      off = std::max<double>(off, std::abs(logits[i] - before[i]));
    }
    EXPECT_TRUE(off == 0 || off > tolerance() * most) << off / most << " is neither";
    return off != 0;
  }

  // Does the ordinary token `row` know anything of `token`?
  [[nodiscard]] bool sees(std::int32_t row, std::int32_t token, const How& how) const {
    const std::int32_t own = chunk_of[static_cast<std::size_t>(row)];
    const std::int32_t other = chunk_of[static_cast<std::size_t>(token)];
    const bool anchor = other == 0 && how.mode == ReuseMode::kAnchored;
    const bool all = how.mode == ReuseMode::kExact || std::ranges::count(how.recomputed, row) > 0;
    return token < row && (own == other || anchor || all);
  }

  // Changes a secret and compares logits. Returns whether the change must show.
  bool expect_what_is_seen_of(std::int32_t secret, const How& how,
                              const std::vector<float>& before) {
    SCOPED_TRACE("the secret at " + std::to_string(secret));
    const bool seen =
        std::ranges::any_of(ordinary, [&](std::int32_t row) { return sees(row, secret, how); });
    EXPECT_EQ(differ(desk.logits(spec_of(changed(how, secret), how)), before), seen);
    return seen;
  }

  // Changes one secret after the other, as above. Returns how many changes must show.
  int expect_what_is_seen(const How& how, const std::string& what) {
    SCOPED_TRACE(what);
    const std::vector<float> before = desk.logits(spec_of(as(how), how));
    int shown = 0;
    for (const std::int32_t secret : secrets) {
      shown += expect_what_is_seen_of(secret, how, before) ? 1 : 0;
    }
    return shown;
  }

  // About one in `one_in` of those that belong to contexts.
  [[nodiscard]] Tokens some(const Tokens& of, std::int32_t one_in) {
    Tokens rows;
    for (const std::int32_t row : of) {
      if (chunk_of[static_cast<std::size_t>(row)] > 0 && dice.below(one_in) == 0) {
        rows.push_back(row);
      }
    }
    return rows;
  }

  Desk desk;
  Dice dice{17};
  Scene scene;
  std::vector<std::int32_t> chunk_of;  // of each index in the joined ids; 0 is the system chunk
  Tokens ordinary, secrets;

 private:
  std::int32_t chunks_ = 0;
  std::map<std::pair<ReuseMode, std::int32_t>, TokenId> changes_;
};

// The instrument itself: the model computes what it should, and only secrets are not looked at.
TEST_F(Causality, AskingTokensLookAtEverythingButSecrets) {
  const How how{.mode = ReuseMode::kIndependent};
  const Scene placed = as(how);
  EXPECT_LE(
      distance(must(desk.llm.logits_from_chunks(spec_of(placed, how))), placed.logits(desk.oracle)),
      tolerance());
  const std::vector<double> looked = placed.query_attention(desk.oracle);
  for (const std::int32_t secret : secrets) {
    if (secret >= placed.first_context()) {
      EXPECT_EQ(looked[static_cast<std::size_t>(secret - placed.first_context())], 0);
    }
  }
  const std::vector<float> before = desk.logits(spec_of(placed, how));
  for (const std::int32_t token : ordinary) {
    EXPECT_TRUE(differ(desk.logits(spec_of(changed(how, token), how)), before)) << token;
  }
}

TEST_F(Causality, ExactRowsSeeEverythingBeforeThem) {
  EXPECT_EQ(expect_what_is_seen({.mode = ReuseMode::kExact}, "exact"), 9);
}

TEST_F(Causality, AnchoredContextsSeeTheSystemChunkAndThemselves) {
  for (const Positions positions : {Positions::kConcat, Positions::kParallel}) {
    for (const bool in_place : {false, true}) {
      const How how{.mode = ReuseMode::kAnchored, .in_place = in_place, .positions = positions};
      EXPECT_EQ(expect_what_is_seen(how, in_place ? "in place" : "anchored"), 3);
    }
  }
}

TEST_F(Causality, IndependentContextsSeeThemselves) {
  for (const Positions positions : {Positions::kConcat, Positions::kParallel}) {
    EXPECT_EQ(expect_what_is_seen({.mode = ReuseMode::kIndependent, .positions = positions},
                                  "independent"),
              2);
  }
}

// A recomputed row sees all before it and none behind it, and every other row keeps its bits.
TEST_F(Causality, ARecomputedRowSeesWhatIsBeforeItAndNothingBehindIt) {
  for (const auto& [base, in_place] : kCausalBases) {
    for (const std::int32_t row : ordinary) {
      if (chunk_of[static_cast<std::size_t>(row)] > 0) {
        expect_what_is_seen({.mode = base,
                             .in_place = in_place,
                             .blend = {.selector = Selector::kExplicit, .tokens = {row}},
                             .recomputed = {row}},
                            std::string(reuse_mode_name(base)) + " + row " + std::to_string(row));
      }
    }
  }
}

// Scattered rows, as a selector would choose them: a mask aligned to the bottom right lets early
// ones see the future.
TEST_F(Causality, ScatteredRowsSeeByPosition) {
  for (const auto& [base, in_place] : kCausalBases) {
    for (int trial = 0; trial < 10; ++trial) {
      Tokens rows = some(ordinary, 5);
      const Tokens told = some(secrets, 3);  // recomputed secrets tell the query nothing themselves
      rows.insert(rows.end(), told.begin(), told.end());
      std::string what = reuse_mode_name(base);
      for (const std::int32_t row : rows) {
        what += " " + std::to_string(row);
      }
      expect_what_is_seen({.mode = base,
                           .in_place = in_place,
                           .blend = {.selector = Selector::kExplicit, .tokens = rows},
                           .recomputed = rows},
                          what);
    }
  }
}

// Rows that the selectors choose see by position, too; the changed secret does not move their
// choice.
TEST_F(Causality, RowsOfEverySelectorSeeByPosition) {
  std::map<Selector, int> kept, shown;
  const auto compare = [&](How how, Selector selector, std::int32_t percent) {
    how.blend = {.selector = selector, .share = percent / 100.0, .seed = 5};
    const auto choice = [&](const Scene& of) {
      return choose(of, scores_of(selector, of, desk.oracle, 5), percent).tokens;
    };
    how.recomputed = choice(as(how));
    const std::vector<float> before = desk.logits(spec_of(as(how), how));
    for (const std::int32_t secret : secrets) {
      if (choice(changed(how, secret)) == how.recomputed) {
        ++(expect_what_is_seen_of(secret, how, before) ? shown : kept)[selector];
      }
    }
  };
  for (const auto& [base, in_place] : kCausalBases) {
    for (const Selector selector : kByShare) {
      SCOPED_TRACE(std::string(selector_name(selector)) + " on " + reuse_mode_name(base));
      compare({.mode = base, .in_place = in_place}, selector, 15);
      compare({.mode = base, .in_place = in_place}, selector, 50);
    }
  }
  for (const Selector selector : kByShare) {
    EXPECT_GT(shown[selector], 10) << selector_name(selector);
    EXPECT_GE(kept[selector], 5) << selector_name(selector);
  }
}

// Selectors choose the first of equal scores, here of the tokens that the query looks at with
// probability 0. Which of them are computed again shows in what later rows have seen.
TEST_F(Causality, OfTokensThatNobodyLooksAtTheFirstOnesAreRecomputed) {
  const How how{.mode = ReuseMode::kIndependent};
  const Scene placed = as(how);
  Tokens first, last;
  for (const std::int32_t token : ordinary) {
    if (token >= placed.first_context()) {
      first.push_back(token);
    }
  }
  last = first;
  Tokens unseen = secrets;
  std::erase_if(unseen, [&](std::int32_t token) { return token < placed.first_context(); });
  first.insert(first.end(), unseen.begin(), unseen.begin() + 4);
  last.insert(last.end(), unseen.end() - 4, unseen.end());
  std::ranges::sort(first);
  constexpr std::int32_t kPercent = 78;
  const Choice choice = choose(placed, placed.query_attention(desk.oracle), kPercent);
  ASSERT_EQ(choice.tokens, first);
  const auto run = [&](const Blend& blend) {
    return desk.logits(spec_of(placed, {.mode = how.mode, .blend = blend}));
  };
  const std::vector<float> got =
      run({.selector = Selector::kQueryAttention, .share = kPercent / 100.0});
  EXPECT_EQ(got, run({.selector = Selector::kExplicit, .tokens = first}));
  EXPECT_TRUE(differ(got, run({.selector = Selector::kExplicit, .tokens = last})));
}

// All rows computed again: what exact sees, whatever the base has seen.
TEST_F(Causality, ABlendOfAllRowsSeesWhatExactSees) {
  for (const auto& [base, in_place] : kCausalBases) {
    Tokens all;
    for (std::int32_t i = scene.first_context(); i < std::ssize(chunk_of); ++i) {
      all.push_back(i);
    }
    EXPECT_EQ(expect_what_is_seen({.mode = base,
                                   .in_place = in_place,
                                   .blend = {.selector = Selector::kAll},
                                   .recomputed = all},
                                  "all"),
              9);
  }
}

TEST_F(Causality, AQueryTokenChangesNoRowBeforeItself) {
  const Tokens some = {5, 9, 14, 20};
  std::vector<How> hows = {{.mode = ReuseMode::kExact},
                           {.mode = ReuseMode::kIndependent, .positions = Positions::kParallel}};
  for (const auto& [base, in_place] : kCausalBases) {
    hows.push_back({.mode = base, .in_place = in_place});
    hows.push_back({.mode = base,
                    .in_place = in_place,
                    .blend = {.selector = Selector::kExplicit, .tokens = some}});
  }
  for (const How& how : hows) {
    const std::vector<float> before = desk.logits(spec_of(as(how), how));
    const std::size_t vocab = before.size() / scene.query.ids.size();
    for (std::size_t token = 0; token < scene.query.ids.size(); ++token) {
      Scene other = as(how);
      TokenId& id = other.query.ids[token];
      id = id == 199 ? id - 1 : id + 1;
      const std::vector<float> after = desk.logits(spec_of(other, how));
      for (std::size_t row = 0; row < scene.query.ids.size(); ++row) {
        const auto first = static_cast<std::ptrdiff_t>(row * vocab);
        const auto end = first + static_cast<std::ptrdiff_t>(vocab);
        EXPECT_EQ(std::equal(before.begin() + first, before.begin() + end, after.begin() + first),
                  row < token)
            << reuse_mode_name(how.mode) << ", query token " << token << ", row " << row;
      }
    }
  }
}

// A context that a composition does not use leaves no trace in it, whatever was registered and
// blended with.
TEST_F(Causality, AContextLeavesNoTraceInCompositionsWithoutIt) {
  for (const auto& [base, in_place] : kCausalBases) {
    How how{.mode = base, .in_place = in_place};
    std::vector<std::vector<float>> runs;
    for (const bool changed : {false, true}) {
      Desk fresh(write_checkpoint("secrets", {.with_secrets = true, .seed = 3}),
                 most_exact(kBlock));
      Scene whole = as(how);
      if (changed) {
        whole.contexts[0].ids = {50, 51, 52, 53, 54, 55, 56};
        whole.place(Positions::kConcat);
      }
      CompositionSpec spec = fresh.compose(whole, Positions::kConcat);
      const std::vector<float> stored = fresh.logits(spec);
      spec.mode = ReuseMode::kBlend;
      spec.blend = {.selector = Selector::kValueDeviation, .share = 0.5, .base = base};
      EXPECT_NE(fresh.logits(spec), stored);
      Scene rest = as(how);
      rest.contexts.erase(rest.contexts.begin());
      rest.place(Positions::kConcat);
      runs.push_back(fresh.logits(fresh.compose(rest, Positions::kConcat)));
    }
    EXPECT_EQ(runs[0], runs[1]) << reuse_mode_name(base);
  }
}

}  // namespace
}  // namespace quire::chunks
