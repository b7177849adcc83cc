// A preview is what the run then does, and what the run reports adds up with what it did. The
// oracle is the engine's own counters, before and after.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <map>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "dense_oracle.h"
#include "desk.h"
#include "quire/api/test_support.h"
#include "quire/base/test_length.h"
#include "quire/chunks.h"
#include "quire/llm.h"
#include "quire/output.h"
#include "quire/sampling.h"
#include "quire/tokenizer.h"

namespace quire::chunks {
namespace {

constexpr std::int32_t kBlock = 8;
constexpr int kLayers = 8;  // of the demo model
const int kRuns = base::test_length(400, 60);

bool looks_at_kv(const CompositionSpec& spec) {
  const Selector selector = spec.blend.selector;
  return spec.mode == ReuseMode::kBlend &&
         (selector == Selector::kQueryAttention || selector == Selector::kValueDeviation);
}

bool starts_with(const std::string& text, const char* start) { return text.rfind(start, 0) == 0; }

double blocks_for(double tokens) { return std::ceil(tokens / kBlock); }

std::string described(const CompositionSpec& spec) {
  std::ostringstream out;
  out << reuse_mode_name(spec.mode) << " of " << spec.context_chunk_ids.size() << " contexts";
  for (const std::string& id : spec.context_chunk_ids) {
    out << ' ' << id.substr(0, 4);
  }
  if (spec.mode == ReuseMode::kBlend) {
    out << ", base " << reuse_mode_name(spec.blend.base) << ", selector "
        << selector_name(spec.blend.selector) << ' ' << spec.blend.share;
  }
  out << (spec.bos_sink ? ", BOS sink" : "") << (spec.computed_in_place ? ", in place" : "");
  return out.str();
}

// Effects of a run, up to the moment at which it was looked at.
struct Outcome {
  std::map<std::string, double> did;  // growth of each statistic
  double generated = 0;               // tokens
  Usage usage;
  ReuseReport reuse;
  // Returns the tokens computed, but for those that the tokens behind the first one took.
  [[nodiscard]] double computed() const { return did.at("tokens_computed") - (generated - 1); }
};

class Office {
 public:
  explicit Office(const LLMOptions& options = {}, const std::string& store = "")
      : llm_(must(ChunkedLLM::open(kModel, options, {.store = store}))) {}

  [[nodiscard]] ChunkedLLM& llm() { return llm_; }

  [[nodiscard]] std::map<std::string, double> stats() {
    const Stats stats = must(llm_.llm().stats());
    return {stats.begin(), stats.end()};
  }

  std::string add(const Ids& ids, ChunkType type, const std::string& anchor = "") {
    ChunkContent chunk{.content = ids, .type = type};
    if (type == ChunkType::kContext) {
      chunk.options.anchor = anchor;
    }
    return must(llm_.register_chunk(chunk));
  }

  Outcome run(const CompositionSpec& spec) {
    const auto before = stats();
    Stream stream = must(
        llm_.stream_from_chunks(spec, {.temperature = 0, .max_tokens = 1000, .ignore_eos = true}));
    must(stream.next());
    Outcome run{.did = stats()};
    EXPECT_EQ(run.did.at("requests_running"), 1);
    for (auto& [name, value] : run.did) {
      value -= before.at(name);
    }
    run.generated = run.did.at("tokens_generated");
    EXPECT_TRUE(must(llm_.llm().abort(stream.request_id())));
    while (must(stream.next())) {
    }
    run.usage = stream.output().usage;
    run.reuse = stream.output().reuse;
    return run;
  }

  // Foresees, runs and compares.
  void expect_foreseen(const CompositionSpec& spec) {
    SCOPED_TRACE(described(spec));
    const auto untouched = stats();
    const CompositionInfo info = must(llm_.preview_composition(spec));
    EXPECT_EQ(stats(), untouched);
    const Outcome run = this->run(spec);
    expect_tokens(info, run);
    expect_blocks(spec, info, run);
    expect_sources(info, run);
  }

 private:
  static void expect_tokens(const CompositionInfo& info, const Outcome& run) {
    EXPECT_EQ(info.tokens_computed, run.computed());
    EXPECT_EQ(info.tokens_reused, run.did.at("tokens_reused"));
    EXPECT_EQ(info.tokens_reused, run.usage.cached_tokens);
    EXPECT_EQ(info.total_tokens, run.usage.prompt_tokens);
    EXPECT_EQ(info.grade, run.reuse.grade);
    if (std::ranges::all_of(info.segments.begin(), info.segments.end() - 1,
                            &CompositionInfo::Segment::cached)) {
      EXPECT_EQ(run.did.at("attention_entries"),
                kLayers * static_cast<double>(info.num_levels) * run.did.at("steps"));
    }
  }

  void expect_blocks(const CompositionSpec& spec, const CompositionInfo& info, const Outcome& run) {
    EXPECT_EQ(info.memory_bytes, info.num_blocks * stats().at("block_bytes"));
    EXPECT_LE(info.new_blocks, info.num_blocks);
    const double taken = -run.did.at("blocks_free") - blocks_behind(info, run);
    if (looks_at_kv(spec) || may_be_exchanged(spec, info)) {
      EXPECT_LE(taken, info.new_blocks);
    } else {
      EXPECT_EQ(taken, info.new_blocks);
    }
  }

  // Returns the blocks of the tokens behind the first one.
  static double blocks_behind(const CompositionInfo& info, const Outcome& run) {
    const auto own = static_cast<double>(
        info.mode == ReuseMode::kExact ? info.total_tokens : info.segments.back().num_tokens);
    return blocks_for(own + run.generated - 1) - blocks_for(own);
  }

  // A plain prompt's block is given back once it is full, if the cache has an equal one by then.
  static bool may_be_exchanged(const CompositionSpec& spec, const CompositionInfo& info) {
    const ReuseMode base = spec.mode == ReuseMode::kBlend ? spec.blend.base : spec.mode;
    const bool alone = base == ReuseMode::kIndependent && !spec.bos_sink;
    return info.mode == ReuseMode::kExact ||
           ((alone || spec.without_system) &&
            std::ranges::any_of(info.segments, [](const CompositionInfo::Segment& segment) {
              return segment.type == ChunkType::kContext && !segment.cached;
            }));
  }

  static void expect_sources(const CompositionInfo& info, const Outcome& run) {
    std::int64_t reused = 0;
    auto computed = info.mode == ReuseMode::kExact ? info.total_tokens - info.tokens_reused
                                                   : info.segments.back().num_tokens;
    for (const auto& [what, tokens] : run.reuse.sources) {
      EXPECT_GT(tokens, 0) << what;
      (starts_with(what, "computed ") ? computed : reused) += tokens;
    }
    EXPECT_EQ(reused, run.usage.cached_tokens);
    EXPECT_EQ(computed, run.computed());
  }

  ChunkedLLM llm_;
};

LLMOptions small_blocks(bool prefix_cache = true) {
  return here({.block_tokens = kBlock, .threads = 2, .prefix_cache = prefix_cache});
}

// Two system chunks, contexts of which some go on where others end, two queries.
class Desktop {
 public:
  Desktop(Office& office, std::uint32_t seed) : office_(office), dice_(seed) {
    for (std::int32_t i = 0; i < 2; ++i) {
      systems_.push_back(office.add(dice_.ids(5 + 9 * i), ChunkType::kSystemPrompt));
      queries_.push_back(office.add(dice_.ids(3 + 8 * i), ChunkType::kQuery));
    }
    const Ids longest = dice_.ids(43);
    for (const std::int32_t length : {1, 8, 16, 27, 43}) {
      contexts_.push_back({longest.begin(), longest.begin() + length});
    }
    contexts_.push_back(dice_.ids(20));
  }

  CompositionSpec any_spec() {
    CompositionSpec spec{.system_chunk_id = any(systems_), .query_chunk_id = any(queries_)};
    if (dice_.below(5) == 0) {
      spec.system_chunk_id.clear();
      spec.without_system = true;
    }
    for (std::int32_t i = dice_.below(5); i > 0; --i) {
      const std::string anchor = dice_.below(3) == 0 ? "" : any(systems_);
      spec.context_chunk_ids.push_back(office_.add(any(contexts_), ChunkType::kContext, anchor));
    }
    spec.mode = any(std::vector{ReuseMode::kExact, ReuseMode::kAnchored, ReuseMode::kIndependent,
                                ReuseMode::kBlend, ReuseMode::kBlend});
    spec.bos_sink = spec.mode == ReuseMode::kIndependent && dice_.below(2) == 0;
    spec.computed_in_place = spec.mode == ReuseMode::kAnchored && dice_.below(3) == 0;
    if (spec.mode == ReuseMode::kAnchored || spec.mode == ReuseMode::kIndependent) {
      spec.positions = any(std::vector{Positions::kConcat, Positions::kParallel});
    }
    spec.blend = {.selector = any(std::vector{Selector::kQueryAttention, Selector::kValueDeviation,
                                              Selector::kFirst, Selector::kRandom, Selector::kAll,
                                              Selector::kNone, Selector::kExplicit}),
                  .share = dice_.below(5) / 4.0,
                  .tokens = {0, 3, 1, 3},
                  .base = any(std::vector{ReuseMode::kAnchored, ReuseMode::kIndependent}),
                  .seed = 3};
    return spec;
  }

  // So that what was warm is cold, or what was cold is in the prefix cache.
  void disturb(const CompositionSpec& used) {
    const std::int32_t what = dice_.below(6);
    if (what == 0 && !used.context_chunk_ids.empty()) {
      must(office_.llm().delete_chunk(any(used.context_chunk_ids)));
    } else if (what == 1) {
      must(office_.llm().llm().generate(any(contexts_), {.temperature = 0, .max_tokens = 1}));
    } else if (what == 2) {
      must(office_.llm().llm().clear_prefix_cache());
    }
  }

 private:
  template <class T>
  const T& any(const std::vector<T>& list) {
    return list[static_cast<std::size_t>(dice_.below(static_cast<std::int32_t>(list.size())))];
  }

  Office& office_;
  Dice dice_;
  std::vector<std::string> systems_, queries_;
  std::vector<Ids> contexts_;
};

TEST(AnyPreview, IsWhatTheRunThenDoesWhateverIsComposedAndWhateverIsThere) {
  for (const bool prefix_cache : {true, false}) {
    Office office(small_blocks(prefix_cache));
    Desktop desktop(office, prefix_cache ? 1 : 2);
    for (int i = 0; i < kRuns; ++i) {
      SCOPED_TRACE(i);
      const CompositionSpec spec = desktop.any_spec();
      office.expect_foreseen(spec);
      desktop.disturb(spec);
    }
  }
}

TEST(AnyPreview, IsWhatTheRunThenDoesInASecondProcessOnTheSameStore) {
  const TemporaryFolder folder;
  for (std::uint32_t life = 0; life < 2; ++life) {
    Office office(small_blocks(), folder.path());
    Desktop desktop(office, 3 + life);
    for (int i = 0; i < kRuns / 5; ++i) {
      SCOPED_TRACE(i);
      office.expect_foreseen(desktop.any_spec());
    }
    must(office.llm().llm().clear_prefix_cache());
  }
}

// A system chunk of 9 tokens, two contexts of 20 and 5 tokens under it, a query of 3.
class Preview : public testing::Test {
 protected:
  CompositionSpec composed(std::vector<std::string> contexts, ReuseMode mode) {
    return {.system_chunk_id = system,
            .context_chunk_ids = std::move(contexts),
            .query_chunk_id = query,
            .mode = mode};
  }
  CompositionSpec blended(std::vector<std::string> contexts, double share) {
    CompositionSpec spec = composed(std::move(contexts), ReuseMode::kBlend);
    spec.blend = {.selector = Selector::kFirst, .share = share};
    return spec;
  }

  Office office{small_blocks(false)};
  Dice dice{7};
  std::string system = office.add(dice.ids(9), ChunkType::kSystemPrompt);
  std::string first = office.add(dice.ids(20), ChunkType::kContext, system);
  std::string second = office.add(dice.ids(5), ChunkType::kContext, system);
  std::string query = office.add(dice.ids(3), ChunkType::kQuery);
};

TEST_F(Preview, CountsWhatIsMissingOnceAndWhatBlendComputesTwiceTwice) {
  const auto expect = [&](const CompositionSpec& spec, std::int64_t computed, std::int64_t reused) {
    const CompositionInfo info = must(office.llm().preview_composition(spec));
    EXPECT_EQ(info.tokens_computed, computed) << described(spec);
    EXPECT_EQ(info.tokens_reused, reused) << described(spec);
    office.expect_foreseen(spec);
  };
  CompositionSpec twice = composed({first, first}, ReuseMode::kIndependent);
  expect(twice, 20 + 3, 9 + 20);
  expect(twice, 3, 9 + 20 + 20);
  twice.bos_sink = true;
  expect(twice, 1 + 20 + 3, 9 + 20);
  CompositionSpec mixed = blended({first, second}, 0.4);
  mixed.blend.base = ReuseMode::kIndependent;  // there for the first, not for the second
  expect(mixed, 5 + 10 + 3, 9 + 20 - 10);
  expect(mixed, 10 + 3, 9 + 20 + 5 - 10);
  expect(blended({first, first}, 1), 40 + 3, 9);
}

TEST_F(Preview, NamesAllBlocksThatAreHeldWhileItRuns) {
  const auto held = [&](const CompositionSpec& spec) {
    const CompositionInfo info = must(office.llm().preview_composition(spec));
    const double before = office.stats().at("blocks_in_use");
    const Outcome run = office.run(spec);
    EXPECT_EQ(info.memory_bytes, info.num_blocks * office.stats().at("block_bytes"));
    // All that is in use is of the composition, but for other variants of its contexts.
    return std::pair(static_cast<double>(info.num_blocks),
                     before + run.did.at("blocks_in_use") - blocks_for(3 + run.generated - 1) + 1);
  };
  const auto expect = [&](const CompositionSpec& spec, double others) {
    const auto [foreseen, in_use] = held(spec);
    EXPECT_EQ(foreseen, in_use - others) << described(spec);
  };
  expect(composed({first, second, first}, ReuseMode::kAnchored), 0);
  expect(blended({first, second}, 0.5), 0);
  expect(blended({first, first, second}, 1), 0);
  expect(composed({first, second}, ReuseMode::kIndependent), 3 + 1);
  CompositionSpec sink = composed({first, second}, ReuseMode::kIndependent);
  sink.bos_sink = true;
  expect(sink, 2 * (3 + 1));
  expect(sink, 2 * (3 + 1) + 1);  // the token has been computed
}

TEST_F(Preview, WhatABatchComputesOnceCountsOnce) {
  const std::vector<CompositionSpec> specs(3, composed({first, first}, ReuseMode::kIndependent));
  const SamplingParams params{.temperature = 0, .max_tokens = 1};
  const auto before = office.stats();
  const auto outputs = must(office.llm().batch_generate_from_chunks(specs, {&params, 1}));
  std::int64_t computed = 0;
  std::int64_t cached = 0;
  for (const GenerationOutput& output : outputs) {
    computed += 3;
    cached += output.usage.cached_tokens;
    for (const auto& [what, tokens] : output.reuse.sources) {
      computed += starts_with(what, "computed ") ? tokens : 0;
    }
  }
  auto after = office.stats();
  EXPECT_EQ(computed, after["tokens_computed"] - before.at("tokens_computed"));
  EXPECT_EQ(computed, 20 + 3 * 3);
  EXPECT_EQ(cached, after["tokens_reused"] - before.at("tokens_reused"));
}

// The oracle is the tokenizer itself, for all ids at once.
TEST(Retokenizing, IsAlikeExactlyIfTheJoinedTextIsEncodedToTheJoinedIds) {
  ChunkedLLM llm = must(ChunkedLLM::open(kModel, small_blocks()));
  const Tokenizer tokenizer = must(llm.llm().tokenizer());
  const auto encoded = [&](const std::string& text) {
    return tokenizer.encode(text, false).value();
  };
  const auto add = [&](const Prompt& content, ChunkType type) {
    return must(llm.register_chunk({.content = content, .type = type}));
  };
  Ids spelled = encoded("<doc>");  // byte by byte
  for (const char letter : std::string("apples")) {
    spelled.push_back(encoded(std::string(1, letter)).front());
  }
  const std::string system = add("Answer from the cards.", ChunkType::kSystemPrompt);
  const std::string query = add("Who?", ChunkType::kQuery);
  const std::string bare_query = add(encoded("s who?"), ChunkType::kQuery);  // may grow together
  const std::vector<std::pair<std::string, bool>> contexts = {
      {add("Card 7. Ada trades in apples.", ChunkType::kContext), true},
      {add("see <doc> tag", ChunkType::kContext), false},
      {add(spelled, ChunkType::kContext), false},
      {add(encoded("<doc> The apple"), ChunkType::kContext), true}};
  for (const auto& [context, alike] : contexts) {
    for (const std::string& last : {query, bare_query}) {
      const CompositionInfo info = must(llm.preview_composition(
          {.system_chunk_id = system, .context_chunk_ids = {context}, .query_chunk_id = last}));
      const Ids ids = info.token_ids();
      const std::string text = must(tokenizer.decode(ids, false));
      EXPECT_EQ(info.retokenizes_alike, encoded(text) == ids) << text;
      if (last == query) {
        EXPECT_EQ(info.retokenizes_alike, alike) << text;
      }
    }
  }
}

}  // namespace
}  // namespace quire::chunks
