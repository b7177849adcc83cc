// Chunks and items whose KV is read from disk while requests compute over the layers that are
// there. Oracle: the process that registered them.
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <future>
#include <ios>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "quire/api/test_support.h"
#include "quire/chunks.h"
#include "quire/context.h"
#include "quire/llm.h"
#include "quire/output.h"
#include "quire/result.h"
#include "quire/sampling.h"

namespace quire {
namespace {

constexpr std::size_t kSystem = 20, kCard = 700, kOther = 300, kQuery = 7;
constexpr int kAnswer = 8;
const SamplingParams kGreedy{.temperature = 0, .max_tokens = kAnswer, .ignore_eos = true};
// Tokens that a process computes when it finds all KV: the query, and its answer but for the last
// token.
constexpr double kOwnTokens = kQuery + kAnswer - 1;

// A byte of KV of the last layer, in the objects whose names begin so.
void damage(const std::filesystem::path& folder, const std::string& beginning) {
  for (const auto& file : std::filesystem::recursive_directory_iterator(folder)) {
    const std::string name = file.path().filename();
    if (file.path().extension() == ".qkv" && name.starts_with(beginning)) {
      std::fstream damaged(file.path(), std::ios::in | std::ios::out | std::ios::binary);
      damaged.seekp(static_cast<std::streamoff>(file.file_size()) - 900);
      damaged.put('x').put('y').put('z');
    }
  }
}

class BackgroundChunks : public testing::Test {
 protected:
  BackgroundChunks() {
    ChunkedLLM llm = open();
    const auto add = [&](std::size_t tokens, ChunkType type) {
      return llm.register_chunk({.content = some_ids(tokens, 3), .type = type}).value();
    };
    spec_.system_chunk_id = add(kSystem, ChunkType::kSystemPrompt);
    spec_.context_chunk_ids = {add(kCard, ChunkType::kContext), add(kOther, ChunkType::kContext)};
    spec_.query_chunk_id = add(kQuery, ChunkType::kQuery);
    expected_ = answer(llm, spec_);
    blended_ = answer(llm, blend());
    EXPECT_TRUE(llm.flush_store().ok());
  }

  [[nodiscard]] ChunkedLLM open() const {
    return ChunkedLLM::open(kModel, here({.threads = 2}), {.store = folder_.path() / "store"})
        .value();
  }

  [[nodiscard]] CompositionSpec blend() const {
    CompositionSpec spec = spec_;
    spec.mode = ReuseMode::kBlend;
    return spec;
  }

  static Ids answer(ChunkedLLM& llm, const CompositionSpec& spec) {
    const auto output = llm.generate_from_chunks(spec, kGreedy);
    EXPECT_TRUE(output.ok()) << output.error().message;
    return output.ok() ? output->token_ids : Ids();
  }

  const TemporaryFolder folder_;
  CompositionSpec spec_;
  Ids expected_, blended_;
};

TEST_F(BackgroundChunks, EveryWayToUseThemGivesWhatTheProcessBeforeGave) {
  {
    ChunkedLLM llm = open();
    EXPECT_EQ(answer(llm, spec_), expected_);
    EXPECT_EQ(stat(llm, "tokens_computed"), kOwnTokens);
    EXPECT_EQ(answer(llm, blend()), blended_);
  }
  {
    ChunkedLLM llm = open();
    EXPECT_EQ(answer(llm, blend()), blended_);
  }
  ChunkedLLM llm = open();
  Stream stream = llm.stream_from_chunks(spec_, kGreedy).value();
  Ids streamed;
  while (const auto delta = stream.next().value()) {
    streamed.insert(streamed.end(), delta->token_ids.begin(), delta->token_ids.end());
  }
  EXPECT_EQ(streamed, expected_);
}

TEST_F(BackgroundChunks, WhatIsDamagedIsAMissAndSavedAgain) {
  damage(folder_.path(), spec_.context_chunk_ids[0]);
  {
    ChunkedLLM llm = open();
    const auto output = llm.generate_from_chunks(spec_, kGreedy);
    ASSERT_TRUE(output.ok()) << output.error().message;
    EXPECT_EQ(output->token_ids, expected_);
    EXPECT_EQ(output->usage.cached_tokens, kSystem + kOther) << "the other card was read";
    EXPECT_EQ(llm.chunk_stats()->cache_hits, 2) << "a run that begins anew is one use";
    EXPECT_EQ(stat(llm, "tokens_reused"), kSystem + kOther) << "what nobody got is no reuse";
    EXPECT_EQ(answer(llm, spec_), expected_);
    ASSERT_TRUE(llm.flush_store().ok());
  }
  ChunkedLLM later = open();
  EXPECT_EQ(answer(later, spec_), expected_);
  EXPECT_EQ(stat(later, "tokens_computed"), kOwnTokens);
}

// The damage is in the last layer. Where the query was computed twice, its first run had begun
// before that layer was read; a machine that is busy may have read it by then, so several try.
TEST_F(BackgroundChunks, ARunComputesBeforeTheLastLayerIsRead) {
  bool seen = false;
  for (int tries = 0; tries < 20 && !seen; ++tries) {
    damage(folder_.path(), spec_.context_chunk_ids[0]);
    ChunkedLLM llm = open();
    EXPECT_EQ(answer(llm, spec_), expected_);
    seen = stat(llm, "tokens_computed") == kQuery + kCard + kOwnTokens;
    ASSERT_TRUE(llm.flush_store().ok());
  }
  EXPECT_TRUE(seen);
}

TEST_F(BackgroundChunks, WhatIsBlendedIsReadBeforeAndComputedIfItIsDamaged) {
  damage(folder_.path(), spec_.context_chunk_ids[0]);
  ChunkedLLM llm = open();
  EXPECT_EQ(answer(llm, blend()), blended_);
}

TEST_F(BackgroundChunks, AllWhoMeetAtAChunkThatArrivesGetItsKvOrComputeIt) {
  for (const bool damaged : {false, true}) {
    if (damaged) {
      damage(folder_.path(), "");
    }
    ChunkedLLM llm = open();
    if (damaged) {  // a system chunk is there with its KV or not at all
      (void)llm.register_chunk({.content = some_ids(kSystem, 3), .type = ChunkType::kSystemPrompt});
    }
    std::vector<std::future<Ids>> answers;
    for (int i = 0; i < 8; ++i) {
      answers.push_back(std::async(std::launch::async,
                                   [&, i] { return answer(llm, i % 4 == 3 ? blend() : spec_); }));
    }
    for (std::size_t i = 0; i < answers.size(); ++i) {
      EXPECT_EQ(answers[i].get(), i % 4 == 3 ? blended_ : expected_) << i << damaged;
    }
  }
}

TEST_F(BackgroundChunks, WhatIsDeletedOrAbandonedWhileItArrivesLeavesNoBlock) {
  ChunkedLLM llm = open();
  llm.stream_from_chunks(spec_, kGreedy).value().close();
  ASSERT_TRUE(llm.clear_chunks().ok());
  for (int tries = 0; tries < 500 && stat(llm, "blocks_in_use") > 0; ++tries) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  EXPECT_EQ(stat(llm, "blocks_in_use"), 0);
  EXPECT_EQ(llm.chunk_stats()->memory_used_bytes, 0);
}

// The pool is full of cached prompts; what makes way for the chunks is copied before they arrive.
TEST_F(BackgroundChunks, CachedBlocksThatMakeWayForThemKeepTheirKv) {
  constexpr std::int64_t kBlockBytes = std::int64_t{32} * 4096;
  constexpr std::uint32_t kPrompts = 14;
  ChunkedLLM llm =
      ChunkedLLM::open(kModel, here({.kv_budget_bytes = 100 * kBlockBytes, .threads = 2}),
                       {.store = folder_.path() / "store"})
          .value();
  const auto ask = [&](std::uint32_t prompt) {
    return llm.llm().generate(some_ids(7 * 32 - 4, 100 + prompt), kGreedy).value();
  };
  std::vector<Ids> before;
  for (std::uint32_t prompt = 0; prompt < kPrompts; ++prompt) {
    before.push_back(ask(prompt).token_ids);
  }
  for (std::uint32_t prompt = 1; prompt < kPrompts; prompt += 2) {
    ask(prompt);  // those between them go first, and leave holes
  }
  EXPECT_EQ(answer(llm, spec_), expected_);
  double found = 0;
  for (std::uint32_t prompt = 1; prompt < kPrompts; prompt += 2) {
    const GenerationOutput again = ask(prompt);
    EXPECT_EQ(again.token_ids, before[prompt]) << prompt;
    found += static_cast<double>(again.usage.cached_tokens);
  }
  EXPECT_GT(found, 0);
  EXPECT_GT(stat(llm, "blocks_moved"), 0);
}

class BackgroundItems : public testing::Test {
 protected:
  BackgroundItems() {
    ContextManager context = open(llm_);
    first_ = context.add(some_ids(kCard, 5), {.name = "first"}).value();
    second_ = context.add(some_ids(kOther, 6), {.name = "second"}).value();
    EXPECT_TRUE(context.save("first").ok() && context.save("second").ok());
    expected_ = ask(context);
  }

  [[nodiscard]] ContextManager open(const LLM& llm) const {
    return ContextManager::open(llm, {.store = folder_.path() / "store"}).value();
  }
  // Both items on disk alone.
  [[nodiscard]] ContextManager restarted(const LLM& llm) const {
    ContextManager context = open(llm);
    for (const std::string& id : {first_, second_}) {
      EXPECT_TRUE(context.restore(id).ok());
      EXPECT_TRUE(context.activate(id).ok());
      EXPECT_TRUE(context.unload(id, true).ok());
      EXPECT_EQ(context.show(id)->tier, Tier::kDisk);
    }
    return context;
  }
  static Ids ask(ContextManager& context) {
    const auto answer = context.infer("Who?", kGreedy);
    EXPECT_TRUE(answer.ok()) << answer.error().message;
    return answer.ok() ? answer->output.token_ids : Ids();
  }

  mutable LLM llm_ = LLM::open(kModel, here({.threads = 2, .prefix_cache = false})).value();
  const TemporaryFolder folder_;
  std::string first_, second_;
  Ids expected_;
};

TEST_F(BackgroundItems, AnAnswerOverItemsOnDiskIsThatOverItemsInMemory) {
  ContextManager context = restarted(llm_);
  const double before = stat(llm_, "tokens_computed");
  EXPECT_EQ(ask(context), expected_);
  EXPECT_LT(stat(llm_, "tokens_computed") - before, kOther);
  EXPECT_EQ(context.show(first_)->tier, Tier::kDevice);
}

TEST_F(BackgroundItems, ADamagedItemIsComputedAndTheAnswerIsTheSame) {
  ContextManager context = restarted(llm_);
  damage(folder_.path(), first_);
  const double before = stat(llm_, "tokens_computed");
  EXPECT_EQ(ask(context), expected_);
  const double computed = stat(llm_, "tokens_computed") - before;
  EXPECT_GE(computed, kCard);
  EXPECT_LT(computed, kCard + kOther) << "the other one was read";
  EXPECT_FALSE(context.show(first_)->saved) << "it is to be saved again";
}

// The pool has room for one of them beside a third, which goes when the other one is needed.
TEST_F(BackgroundItems, AnItemForWhichThereIsNoRoomYetIsReadWhenItIsNeeded) {
  const auto bytes = static_cast<std::int64_t>(40 * stat(llm_, "block_bytes"));
  const LLM small =
      LLM::open(kModel, here({.kv_budget_bytes = bytes, .threads = 2, .prefix_cache = false}))
          .value();
  ContextManager context = restarted(small);
  const std::string third = context.add(some_ids(std::size_t{12} * 32, 7)).value();
  ASSERT_TRUE(context.deactivate(third).ok());
  const double before = stat(small, "tokens_computed");
  EXPECT_EQ(ask(context), expected_);
  EXPECT_LT(stat(small, "tokens_computed") - before, kOther) << "both were read";
  EXPECT_EQ(context.show(third)->tier, Tier::kHost);
  for (const std::string& id : {first_, second_}) {
    EXPECT_EQ(context.show(id)->tier, Tier::kDevice);
    EXPECT_TRUE(context.show(id)->saved);
  }
}

}  // namespace
}  // namespace quire
