// Contexts of models whose layers carry a state. Oracles: the same composition through
// generate_from_chunks, and a context whose KV never moves.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "quire/api/test_support.h"
#include "quire/chunks.h"
#include "quire/context.h"
#include "quire/llm.h"
#include "quire/sampling.h"

namespace quire {
namespace {

class StateContexts : public testing::TestWithParam<std::string> {
 protected:
  [[nodiscard]] static ChunkedLLM open(LLMOptions options = {}) {
    options.threads = 2;
    options.dtype = "float32";
    return must(ChunkedLLM::open(source_path("tests/golden/model/") + GetParam(), options));
  }
  [[nodiscard]] static ContextManager context(ChunkedLLM& llm, const ContextOptions& options = {}) {
    return must(ContextManager::open(llm.llm(), options));
  }
  static std::string add(ContextManager& context, const Ids& ids,
                         ItemKind kind = ItemKind::kContext) {
    return must(context.add(ids, {.kind = kind}));
  }
  // Returns the answer of the active items, none of which it becomes.
  static GenerationOutput ask(ContextManager& context) {
    ContextAnswer answer = must(context.infer(std::nullopt, params()));
    EXPECT_TRUE(context.erase(answer.output_id).ok());
    return std::move(answer.output);
  }
  static SamplingParams params() {
    SamplingParams params = greedy_to_length(6);
    params.logprobs = 2;
    return params;
  }

  const Ids system_ = small_ids(20, 60), first_ = small_ids(33, 61), second_ = small_ids(5, 62);
};

// Returns what chunks give. The last token of the last piece is the query.
GenerationOutput composed(ChunkedLLM& llm, std::vector<Ids> pieces, const SamplingParams& params) {
  const Ids query = {pieces.back().back()};
  pieces.back().pop_back();
  CompositionSpec spec{.mode = ReuseMode::kAnchored};
  const auto chunk = [&](const Ids& ids, ChunkType type) {
    return must(llm.register_chunk({.content = ids, .type = type}));
  };
  spec.system_chunk_id = chunk(pieces.front(), ChunkType::kSystemPrompt);
  for (std::size_t i = 1; i < pieces.size(); ++i) {
    spec.context_chunk_ids.push_back(chunk(pieces[i], ChunkType::kContext));
  }
  spec.query_chunk_id = chunk(query, ChunkType::kQuery);
  return must(llm.generate_from_chunks(spec, params));
}

// Chunks merge in the order of their ids, items in their own. So sums differ in their last bits.
void expect_alike(const GenerationOutput& got, const GenerationOutput& wanted) {
  EXPECT_EQ(got.token_ids, wanted.token_ids);
  ASSERT_EQ(got.logprobs.size(), wanted.logprobs.size());
  for (std::size_t i = 0; i < got.logprobs.size(); ++i) {
    EXPECT_NEAR(got.logprobs[i].at(0).second, wanted.logprobs[i].at(0).second, 5e-5);
  }
}

TEST_P(StateContexts, AnswerAsTheSameCompositionOfChunks) {
  ChunkedLLM llm = open();
  ContextManager items = context(llm);
  add(items, system_, ItemKind::kSystem);
  const std::string first = add(items, first_);
  const std::string second = add(items, second_);
  const GenerationOutput all = ask(items);
  EXPECT_EQ(all.reuse.grade, ReuseGrade::kApproximate);
  expect_alike(all, composed(llm, {system_, first_, second_}, params()));
  ASSERT_TRUE(items.deactivate(first).ok());
  expect_alike(ask(items), composed(llm, {system_, second_}, params()));
  ASSERT_TRUE(items.activate(first).ok());
  ASSERT_TRUE(items.deactivate(second).ok());
  expect_alike(ask(items), composed(llm, {system_, first_}, params()));
}

TEST_P(StateContexts, AnswerWithTheSameBitsWhereverTheirItemsWere) {
  const TemporaryFolder folder;
  const ContextOptions options{.store = folder.path().string()};
  ChunkedLLM llm = open();
  ContextManager items = context(llm, options);
  add(items, system_, ItemKind::kSystem);
  const std::string first = add(items, first_);
  add(items, second_);
  const GenerationOutput wanted = ask(items);
  const std::int64_t bytes = must(items.show(first)).memory_bytes;
  ASSERT_TRUE(items.unload(first).ok());
  EXPECT_EQ(must(items.show(first)).tier, Tier::kHost);
  EXPECT_EQ(must(items.show(first)).memory_bytes, bytes) << "maps go with keys and values";
  EXPECT_EQ(ask(items).logprobs, wanted.logprobs);
  ASSERT_TRUE(items.unload(first, true).ok());
  EXPECT_EQ(must(items.show(first)).tier, Tier::kNone);
  EXPECT_EQ(ask(items).logprobs, wanted.logprobs) << "computed again";
  for (const ContextItem& item : must(items.items())) {
    ASSERT_TRUE(items.save(item.id).ok());
  }
  ChunkedLLM other = open();
  ContextManager restored = context(other, options);
  for (const ContextItem& item : must(items.items())) {
    ASSERT_TRUE(restored.restore(item.id).ok());
  }
  EXPECT_EQ(stat(other, "tokens_computed"), 0) << "all is read";
  EXPECT_EQ(ask(restored).logprobs, wanted.logprobs);
}

TEST_P(StateContexts, GiveEverythingBack) {
  ChunkedLLM llm = open();
  {
    ContextManager items = context(llm);
    add(items, system_, ItemKind::kSystem);
    add(items, first_);
    ASSERT_TRUE(items.infer(std::nullopt, params()).ok());
    ASSERT_EQ(items.clear(), 3);
  }
  EXPECT_EQ(stat(llm, "blocks_in_use"), 0);
  EXPECT_EQ(stat(llm, "states_in_use"), 0);
}

// The mirror never unloads anything. Answers stay, and later ones stand behind them.
TEST_P(StateContexts, EqualThoseWhoseItemsNeverMoveAfterRandomOperations) {
  const TemporaryFolder folder;
  ChunkedLLM llm = open({.block_tokens = 8}), oracle = open({.block_tokens = 16});
  ContextManager items = context(llm, {.store = folder.path().string()});
  ContextManager mirror = context(oracle);
  std::mt19937 random(17);
  const auto below = [&](std::size_t n) { return random() % n; };
  std::vector<std::string> ids;
  const auto both = [&](auto change) {
    EXPECT_TRUE(change(items).ok());
    EXPECT_TRUE(change(mirror).ok());
  };
  for (int step = 0; step < 60; ++step) {
    const std::string id = ids.empty() ? "" : ids[below(ids.size())];
    const std::size_t what = ids.size() < 2 ? 0 : below(6);
    if (what == 0 && ids.size() < 8) {
      const auto which = static_cast<std::uint32_t>(below(6));
      const ItemOptions options{.kind = ids.empty() ? ItemKind::kSystem : ItemKind::kContext};
      const Ids content = small_ids(2 + 5 * which, 90 + which);
      const std::string added = must(items.add(content, options));
      EXPECT_EQ(added, must(mirror.add(content, options)));
      if (std::ranges::find(ids, added) == ids.end()) {
        ids.push_back(added);
      }
    } else if (what == 1 && ids.size() < 8) {
      const auto answer = items.infer(std::nullopt, params());
      const auto right = mirror.infer(std::nullopt, params());
      ASSERT_EQ(answer.ok(), right.ok());
      if (answer.ok()) {
        EXPECT_EQ(answer->output.logprobs, right->output.logprobs) << "step " << step;
        ids.push_back(answer->output_id);
      }
    } else if (what == 2) {
      both([&](ContextManager& each) { return each.activate(id); });
    } else if (what == 3 && id != ids.front()) {
      both([&](ContextManager& each) { return each.deactivate(id); });
    } else if (what == 4 && !id.empty()) {
      EXPECT_TRUE(items.unload(id, below(2) == 0).ok());
    } else if (what == 5) {
      EXPECT_TRUE(below(2) == 0 ? items.save(id).ok() : items.restore(id).ok());
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Models, StateContexts, testing::Values("lfm2", "nemotron_h", "qwen3_5"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace quire
