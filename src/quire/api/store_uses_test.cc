// A use in memory counts as a use in the store too: the entry does not expire there, nor go as
// least recently used.
#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <thread>
#include <utility>

#include "quire/api/test_support.h"
#include "quire/checkpoints.h"
#include "quire/chunks.h"
#include "quire/context.h"
#include "quire/llm.h"
#include "quire/sampling.h"
#include "quire/sequence.h"
#include "quire/store.h"

namespace quire {
namespace {

class UsesInMemory : public testing::Test {
 protected:
  [[nodiscard]] std::string store() const { return folder_.path() / "store"; }
  [[nodiscard]] StoreEntry least_recently_used() const {
    return Store::open(store())->list()->front();
  }

  // For the clock of the store, which counts milliseconds.
  static void let_time_pass() { std::this_thread::sleep_for(std::chrono::milliseconds(20)); }

  const SamplingParams greedy_ = {.temperature = 0, .max_tokens = 2, .ignore_eos = true};
  const TemporaryFolder folder_;
};

TEST_F(UsesInMemory, OfChunksCountInTheStore) {
  std::string unused;
  {
    auto llm = ChunkedLLM::open(kModel, here({.threads = 2}), {.store = store()}).value();
    const auto add = [&](Ids ids, ChunkType type) {
      return llm.register_chunk({.content = std::move(ids), .type = type}).value();
    };
    const CompositionSpec spec{.system_chunk_id = add(some_ids(20, 1), ChunkType::kSystemPrompt),
                               .context_chunk_ids = {add(some_ids(20, 2), ChunkType::kContext)},
                               .query_chunk_id = add(some_ids(5, 3), ChunkType::kQuery)};
    unused = add(some_ids(20, 4), ChunkType::kContext);
    EXPECT_EQ(least_recently_used().key, spec.system_chunk_id);
    let_time_pass();
    ASSERT_TRUE(llm.generate_from_chunks(spec, greedy_).ok());
  }
  EXPECT_EQ(least_recently_used().key, unused);
}

TEST_F(UsesInMemory, OfItemsCountInTheStore) {
  LLM llm = LLM::open(kModel, here({.threads = 2})).value();
  {
    ContextManager context = ContextManager::open(llm, {.store = store()}).value();
    for (const std::string name : {"used", "unused"}) {
      ASSERT_TRUE(context.add(name + " goose", {.name = name}).ok());
      ASSERT_TRUE(context.save(name).ok());
      let_time_pass();
    }
    EXPECT_EQ(least_recently_used().name, "used");
    ASSERT_TRUE(context.deactivate("unused").ok());
    ASSERT_TRUE(context.infer("Who?", greedy_).ok());
  }
  EXPECT_EQ(least_recently_used().name, "unused");
}

TEST_F(UsesInMemory, LoadingACheckpointIsAUseOfIt) {
  LLM llm = LLM::open(kModel, here({.threads = 2})).value();
  CheckpointManager checkpoints = CheckpointManager::open(llm, store()).value();
  Sequence sequence = llm.sequence(some_ids(9, 1)).value();
  const NamedSequence named{.name = "a", .sequence = &sequence};
  for (const char* name : {"used", "unused"}) {
    ASSERT_TRUE(checkpoints.save({&named, 1}, name).ok());
    let_time_pass();
  }
  EXPECT_EQ(least_recently_used().name, "used");
  ASSERT_TRUE(checkpoints.load("used").ok());
  EXPECT_EQ(least_recently_used().name, "unused");
}

}  // namespace
}  // namespace quire
