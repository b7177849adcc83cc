// Copies of blocks that the device refuses: whoever needs them is told, and nothing that is cached
// may be found any more, for some of it was to be moved. The linker puts a refusal before the copy.
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "quire/api/test_support.h"
#include "quire/chunks.h"
#include "quire/kv/types.h"
#include "quire/kv_store/paged_pool.h"
#include "quire/llm.h"
#include "quire/output.h"
#include "quire/result.h"
#include "quire/sampling.h"
#include "quire/sequence.h"

namespace quire {
namespace {

bool refuses = false;  // written while the engine has nothing to do
int refused = 0;

}  // namespace

// A member function as the linker sees it: `this` is its first argument.
#define QUIRE_COPY "_ZN5quire8kv_store9PagedPool4copyERKNS_2kv9BlockCopyE"
Status copy(kv_store::PagedPool* self, const kv::BlockCopy& copy) __asm__("__real_" QUIRE_COPY);
Status copy_or_refuse(kv_store::PagedPool* self,
                      const kv::BlockCopy& copy) __asm__("__wrap_" QUIRE_COPY);

Status copy_or_refuse(kv_store::PagedPool* self, const kv::BlockCopy& what) {
  if (refuses) {
    ++refused;
    return {ErrorCode::kDevice, "refused"};
  }
  return copy(self, what);
}

namespace {

constexpr std::int64_t kBlockBytes = std::int64_t{32} * 4096;
const SamplingParams kGreedy{.temperature = 0, .max_tokens = 8, .ignore_eos = true};

class FailedCopies : public testing::Test {
 protected:
  // Asks for an answer; 7 blocks hold the prompt and it.
  GenerationOutput ask(std::uint32_t number) {
    return llm_.generate(some_ids(7 * 32 - 4, 100 + number), kGreedy).value();
  }
  // Returns the error of the call while no block can be copied.
  template <class Call>
  ErrorCode without_copies(Call call) {
    refuses = true;
    refused = 0;
    const auto done = call();
    refuses = false;
    EXPECT_GT(refused, 0);
    return done.ok() ? ErrorCode::kInternal : done.error().code;
  }
  void expect_forgotten(const GenerationOutput& before, std::uint32_t number) {
    const GenerationOutput again = ask(number);
    EXPECT_EQ(again.usage.cached_tokens, 0);
    EXPECT_EQ(again.token_ids, before.token_ids);
    EXPECT_GT(ask(number).usage.cached_tokens, 0) << "what is cached since is found";
  }

  LLM llm_ = LLM::open(kModel, here({.kv_budget_bytes = 100 * kBlockBytes, .threads = 2})).value();
};

// Writing behind a partly filled block that others have copies it.
TEST_F(FailedCopies, OfAStepEndItsRequestsAndForgetTheCache) {
  const GenerationOutput before = ask(0);
  Sequence sequence = llm_.sequence(some_ids(45, 1)).value();
  const Ids more = some_ids(3, 2);
  EXPECT_EQ(without_copies([&] { return sequence.append(more); }), ErrorCode::kDevice);
  EXPECT_EQ(sequence.tokens(), some_ids(45, 1));
  ASSERT_TRUE(llm_.sequence(Ids()).ok());  // the step that has failed has come to its end
  EXPECT_EQ(stat(llm_, "blocks_cached"), 0);
  expect_forgotten(before, 0);
  ASSERT_TRUE(sequence.append(more).ok());
  EXPECT_EQ(sequence.logits().value(),
            llm_.sequence(joined(some_ids(45, 1), more)).value().logits().value());
}

// The pool is full of cached prompts with holes between them, which make way for a saved sequence.
TEST_F(FailedCopies, OfWhatMakesWayForALoadFailItAndForgetTheCache) {
  constexpr std::uint32_t kPrompts = 14;
  const TemporaryFolder folder;
  const std::string file = folder.path() / "sequence.qkv";
  const Ids ids = some_ids(32 * 32, 1);
  ASSERT_TRUE(llm_.sequence(ids).value().save(file).ok());
  std::vector<GenerationOutput> before;
  for (std::uint32_t prompt = 0; prompt < kPrompts; ++prompt) {
    before.push_back(ask(prompt));
  }
  for (std::uint32_t prompt = 1; prompt < kPrompts; prompt += 2) {
    ask(prompt);  // those between them go first
  }
  EXPECT_EQ(without_copies([&] { return llm_.load_sequence(file); }), ErrorCode::kDevice);
  EXPECT_EQ(stat(llm_, "blocks_in_use"), 0);
  EXPECT_LE(stat(llm_, "blocks_cached"), 1) << "what the load had found of it was in use";
  expect_forgotten(before[3], 3);
  EXPECT_EQ(llm_.load_sequence(file).value().tokens(), ids);
}

class FailedMoves : public testing::Test {
 protected:
  static constexpr std::int64_t kChunks = 6;

  // Registers a chunk with a tail of four tokens, of which eight fit into a block.
  std::string add(std::uint32_t seed) {
    return must(
        llm_.register_chunk({.content = some_ids(36, 10 + seed), .type = ChunkType::kContext}));
  }
  CompositionSpec spec_of(const std::string& id) {
    CompositionSpec spec{.context_chunk_ids = {id}};
    spec.query_chunk_id = query_;
    spec.without_system = true;
    return spec;
  }
  std::vector<float> logits(const std::string& id) {
    return must(llm_.logits_from_chunks(spec_of(id))).logits;
  }
  std::int64_t num_contexts() { return llm_.chunk_stats()->total_chunks - 1; }

  ChunkedLLM llm_ =
      ChunkedLLM::open(kModel, here({.kv_budget_bytes = 100 * kBlockBytes, .threads = 2})).value();
  std::string query_ =  // without a tail
      must(llm_.register_chunk({.content = some_ids(32, 3), .type = ChunkType::kQuery}));
};

// The oracle of each answer is the same engine before.
TEST_F(FailedMoves, OfCoalescingLoseTheChunksThatMovedAndNoOther) {
  std::vector<std::string> ids;
  std::vector<std::vector<float>> before;
  for (std::uint32_t i = 0; i < kChunks; ++i) {
    ids.push_back(add(i));
    before.push_back(logits(ids.back()));
  }
  refuses = true;
  refused = 0;
  const auto freed = llm_.coalesce();
  refuses = false;
  EXPECT_EQ(freed.ok() ? ErrorCode::kInternal : freed.error().code, ErrorCode::kDevice);
  EXPECT_GT(refused, 0);
  EXPECT_EQ(num_contexts(), 1) << "five tails moved into the block of the sixth";
  for (std::uint32_t i = 0; i < kChunks; ++i) {
    EXPECT_EQ(add(i), ids[i]);
    EXPECT_EQ(logits(ids[i]), before[i]);
  }
  EXPECT_EQ(llm_.coalesce().value(), kChunks - 1) << "it works again";
  EXPECT_EQ(logits(ids[0]), before[0]);
}

TEST_F(FailedMoves, OfTakingATailOutLoseThatChunkAndTheNextCallRegistersItAgain) {
  const std::vector<std::string> ids = {add(0), add(1)};
  const std::vector<std::vector<float>> before = {logits(ids[0]), logits(ids[1])};
  ASSERT_EQ(llm_.coalesce().value(), 1);
  refuses = true;
  const bool answers[] = {llm_.logits_from_chunks(spec_of(ids[0])).ok(),
                          llm_.logits_from_chunks(spec_of(ids[1])).ok()};
  refuses = false;
  EXPECT_NE(answers[0], answers[1]) << "one of them begins its block";
  EXPECT_EQ(num_contexts(), 1);
  for (std::uint32_t i = 0; i < 2; ++i) {
    EXPECT_EQ(add(i), ids[i]);
    EXPECT_EQ(logits(ids[i]), before[i]);
  }
}

}  // namespace
}  // namespace quire
