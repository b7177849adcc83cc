// Memory that is refused is an answer. Every allocation of every call is refused once, the first,
// the second and so on until none is left to refuse: the call succeeds all the same or gives a
// typed error, nothing it had begun stays, and the engine answers as before. SQLite tests its own
// allocations so (sqlite.org/malloc.html).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <functional>
#include <memory>
#include <new>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "counted.h"
#include "quire/api/test_support.h"
#include "quire/base/test_length.h"
#include "quire/chunks.h"
#include "quire/context.h"
#include "quire/fields.h"
#include "quire/llm.h"
#include "quire/output.h"
#include "quire/result.h"
#include "quire/sampling.h"
#include "quire/sequence.h"
#include "quire/store.h"
#include "quire/tools.h"
#include "quire/types.h"

namespace quire {
namespace {

const SamplingParams kFew = {.temperature = 0, .max_tokens = 3, .logprobs = 2};

ChunkedLLM open_model(const ChunkCacheOptions& chunks = {}) {
  return ChunkedLLM::open(
             kModel, here({.block_tokens = 8, .kv_budget_bytes = 1 << 20, .threads = 2}), chunks)
      .value();
}

template <class T>
Status outcome(const Result<T>& result) {
  return result.ok() ? Status() : result.error();
}

class RefusedMemory : public ::testing::Test {
 protected:
  explicit RefusedMemory(std::optional<ChunkedLLM> model = {})
      : llm_(model ? std::move(*model) : open_model({.store = folder_.path() / "store"})) {
    std::signal(SIGABRT, [](int) { quire::testing::print_refusal(); });
    EXPECT_TRUE(answer().ok());
  }

  using Call = std::function<Status()>;

  // Returns the engine's answer to a prompt of its own, computed from nothing.
  Result<std::vector<TokenId>> answer() {
    QUIRE_TRY(const GenerationOutput output, llm_.llm().generate(probe_, kFew));
    return output.token_ids;
  }

  std::int64_t stat(const std::string& name) {
    const Stats stats = llm_.llm().stats().value();
    return static_cast<std::int64_t>(
        std::ranges::find(stats, name, &Stats::value_type::first)->second);
  }

  // Returns whether so many blocks are in use, at once or when reads and writes under way have
  // ended.
  bool comes_back_to(std::int64_t in_use) {
    constexpr int kTries = 1000;
    for (int i = 0; i < kTries && stat("blocks_in_use") != in_use; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    return stat("blocks_in_use") == in_use;
  }

  // Returns the blocks in use once they have not changed for a while.
  std::int64_t settled_blocks() {
    std::int64_t in_use = stat("blocks_in_use");
    for (int same = 0; same < 5; ++same) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
      if (const std::int64_t now = stat("blocks_in_use"); now != in_use) {
        in_use = now;
        same = -1;
      }
    }
    return in_use;
  }

  // Refuses each allocation of `call` once. `undo` takes back what a call that succeeded has made.
  void refuse_each(const Call& call, const std::function<void()>& undo = [] {}) {
    ASSERT_TRUE(call().ok()) << "with all the memory it wants";
    undo();
    const auto chunks = llm_.chunk_stats().value().total_chunks;
    const std::vector<TokenId> expected = answer().value();
    // Read last: a thread that reads in the background holds its blocks a moment longer.
    const std::int64_t in_use = settled_blocks();
    const double growth = base::test_length(1.0, 1.05);
    std::int64_t refusals = 0;
    for (double n = 1;; n = std::max(n + 1, n * growth)) {
      SCOPED_TRACE("allocation " + std::to_string(static_cast<std::int64_t>(n)));
      Status status;
      quire::testing::refuse_allocation(static_cast<std::int64_t>(n));
      ASSERT_NO_THROW(status = call());
      const bool refused = quire::testing::allocation_was_refused();
      quire::testing::refuse_allocation(0);
      if (status.ok()) {
        undo();
      } else {
        ASSERT_TRUE(refused) << status.error().message;
        ASSERT_EQ(status.error().code, ErrorCode::kOutOfBlocks) << status.error().message;
      }
      ASSERT_TRUE(comes_back_to(in_use)) << stat("blocks_in_use") << " blocks, before " << in_use;
      ASSERT_EQ(stat("requests_running") + stat("requests_waiting"), 0);
      ASSERT_EQ(llm_.chunk_stats().value().total_chunks, chunks);
      const auto answered = answer();
      ASSERT_TRUE(answered.ok()) << answered.error().message;
      ASSERT_EQ(*answered, expected);
      if (!refused) {
        break;
      }
      ++refusals;
    }
    EXPECT_GT(refusals, 0);
  }

  void TearDown() override {
    if (HasFailure()) {
      quire::testing::print_refusal();
    }
  }

  TemporaryFolder folder_;
  ChunkedLLM llm_;
  const Prompt prompt_ = some_ids(50, 3);
  const Ids probe_ = some_ids(20, 4);
};

TEST_F(RefusedMemory, InGenerate) {
  refuse_each([&] { return outcome(llm_.llm().generate(prompt_, kFew)); });
}

TEST_F(RefusedMemory, InGenerateOfANewPrompt) {
  refuse_each([&] {
    const auto cleared = llm_.llm().clear_prefix_cache();
    return cleared.ok() ? outcome(llm_.llm().generate(prompt_, kFew)) : cleared.error();
  });
}

TEST_F(RefusedMemory, InABatch) {
  const std::vector<Prompt> prompts = {some_ids(40, 5), some_ids(9, 6), some_ids(33, 7)};
  refuse_each([&] { return outcome(llm_.llm().generate_batch(prompts, {&kFew, 1})); });
}

TEST_F(RefusedMemory, InAStream) {
  refuse_each([&]() -> Status {
    QUIRE_TRY(Stream stream, llm_.llm().stream(prompt_, kFew));
    for (;;) {
      QUIRE_TRY(const auto delta, stream.next());
      if (!delta) {
        return {};
      }
    }
  });
}

TEST_F(RefusedMemory, InAStreamThatIsDroppedBeforeItsEnd) {
  const SamplingParams many = {.temperature = 0, .max_tokens = 150, .ignore_eos = true};
  for (const bool waits : {true, false}) {
    RequestOptions options;
    if (!waits) {
      options.notify = [] {};
    }
    refuse_each([&]() -> Status {
      QUIRE_TRY(Stream stream, llm_.llm().stream(prompt_, many, options));
      return outcome(stream.next());
    });
  }
}

TEST_F(RefusedMemory, InACallThatIsInterrupted) {
  const SamplingParams many = {.temperature = 0, .max_tokens = 150, .ignore_eos = true};
  const std::vector<Prompt> prompts = {some_ids(40, 5), some_ids(9, 6)};
  refuse_each([&]() -> Status {
    const auto cancelled = llm_.llm().generate_batch(prompts, {&many, 1}, [] { return true; });
    return !cancelled.ok() && cancelled.error().code == ErrorCode::kCancelled ? Status()
                                                                              : outcome(cancelled);
  });
}

TEST_F(RefusedMemory, InContexts) {
  const Prompt card = "Ada trades in apples.";
  for (const ReuseMode mode : {ReuseMode::kAnchored, ReuseMode::kExact}) {
    SCOPED_TRACE(reuse_mode_name(mode));
    refuse_each([&]() -> Status {
      QUIRE_TRY(ContextManager context, ContextManager::open(llm_.llm(), {.mode = mode}));
      QUIRE_TRY(const std::string id, context.add(card));
      QUIRE_TRY_STATUS(outcome(context.populate()));
      QUIRE_TRY(const BlockList blocks, context.active_blocks());
      QUIRE_TRY_STATUS(outcome(context.infer("Who?", kFew)));
      QUIRE_TRY_STATUS(outcome(context.items()));
      QUIRE_TRY_STATUS(outcome(context.stats()));
      QUIRE_TRY_STATUS(outcome(context.explain()));
      QUIRE_TRY_STATUS(context.deactivate(id));
      return context.clear() == 3 ? Status() : Status(ErrorCode::kInternal, "items are lost");
    });
  }
}

TEST_F(RefusedMemory, InJoiningBlocks) {
  const Sequence kept = llm_.llm().sequence(some_ids(30, 15)).value();
  const BlockList blocks = kept.blocks().value();
  const std::vector<BlockList> lists = {blocks, blocks};
  refuse_each([&]() -> Status {
    QUIRE_TRY(const BlockList joined, BlockList::join(lists));
    return outcome(joined.first(40));
  });
}

TEST_F(RefusedMemory, InLookingAtAStore) {
  ASSERT_TRUE(llm_.register_chunk({.content = some_ids(40, 8)}).ok());
  const std::string path = folder_.path() / "store";
  refuse_each([&]() -> Status {
    QUIRE_TRY(const Store store, Store::open(path));
    QUIRE_TRY_STATUS(outcome(store.list()));
    QUIRE_TRY_STATUS(outcome(store.weights(true)));
    return outcome(store.verify());
  });
}

TEST_F(RefusedMemory, InForward) {
  refuse_each([&] { return outcome(llm_.llm().forward(std::get<Ids>(prompt_))); });
}

TEST_F(RefusedMemory, InGenerateOfAText) {
  const Prompt text = "What does Ada trade in, and where?";
  refuse_each([&] { return outcome(llm_.llm().generate(text, kFew)); });
}

TEST_F(RefusedMemory, InRegisteringAChunk) {
  std::string id;
  const ChunkContent content{.content = some_ids(40, 8)};
  refuse_each(
      [&]() -> Status {
        QUIRE_TRY(id, llm_.register_chunk(content));
        return {};
      },
      [&] { EXPECT_TRUE(llm_.delete_chunk(id).value()); });
}

TEST_F(RefusedMemory, InRegisteringSeveralAsText) {
  const std::vector<ChunkContent> chunks = {
      {.content = "You answer.", .type = ChunkType::kSystemPrompt},
      {.content = "Ada trades in apples."},
      {.content = "Who?", .type = ChunkType::kQuery}};
  refuse_each([&] { return outcome(llm_.register_chunks(chunks)); },
              [&] { EXPECT_EQ(llm_.clear_chunks().value(), 3); });
}

TEST_F(RefusedMemory, InComposing) {
  const std::string system =
      llm_.register_chunk({.content = some_ids(20, 9), .type = ChunkType::kSystemPrompt}).value();
  const std::string context = llm_.register_chunk({.content = some_ids(30, 10)}).value();
  const std::string query =
      llm_.register_chunk({.content = some_ids(7, 11), .type = ChunkType::kQuery}).value();
  CompositionSpec spec{
      .system_chunk_id = system, .context_chunk_ids = {context, context}, .query_chunk_id = query};
  for (const ReuseMode mode : {ReuseMode::kAnchored, ReuseMode::kExact, ReuseMode::kBlend}) {
    SCOPED_TRACE(reuse_mode_name(mode));
    spec.mode = mode;
    spec.blend.share = 0.3;
    refuse_each([&] { return outcome(llm_.generate_from_chunks(spec, kFew)); });
  }
}

TEST_F(RefusedMemory, InGeneratingFromTexts) {
  const ChunkedPrompt prompt = {
      .system = some_ids(18, 12), .contexts = {some_ids(25, 13)}, .query = some_ids(6, 14)};
  refuse_each([&] { return outcome(llm_.generate(prompt, {}, kFew, false)); });
}

TEST_F(RefusedMemory, InSequences) {
  const Sequence kept = llm_.llm().sequence(some_ids(30, 15)).value();
  const Ids more = some_ids(9, 16);
  refuse_each([&]() -> Status {
    QUIRE_TRY(Sequence sequence, kept.fork());
    QUIRE_TRY_STATUS(sequence.append(more));
    QUIRE_TRY_STATUS(outcome(sequence.generate(kFew)));
    QUIRE_TRY_STATUS(sequence.rollback_to(12));
    return outcome(sequence.logits());
  });
}

TEST_F(RefusedMemory, InSavingAndLoadingASequence) {
  const Sequence kept = llm_.llm().sequence(some_ids(30, 17)).value();
  const std::string path = folder_.path() / "a.qkv";
  ASSERT_TRUE(kept.save(path).ok());
  for (const bool wait : {true, false}) {
    refuse_each([&]() -> Status {
      QUIRE_TRY_STATUS(kept.save(path));
      QUIRE_TRY(Sequence loaded, llm_.llm().load_sequence(path, {.wait = wait}));
      return outcome(loaded.logits());
    });
  }
}

// Refuses allocations of a call that needs no engine, the first and then ever fewer.
template <class Call>
void refuse_some(Call call, double growth) {
  std::int64_t refusals = 0;
  for (double n = 1;; n = std::max(n + 1, n * growth)) {
    SCOPED_TRACE("allocation " + std::to_string(static_cast<std::int64_t>(n)));
    Status status;
    quire::testing::refuse_allocation(static_cast<std::int64_t>(n));
    ASSERT_NO_THROW(status = outcome(call()));
    const bool refused = quire::testing::allocation_was_refused();
    quire::testing::refuse_allocation(0);
    if (!status.ok()) {
      ASSERT_TRUE(refused) << status.error().message;
      ASSERT_EQ(status.error().code, ErrorCode::kOutOfBlocks) << status.error().message;
    }
    if (!refused) {
      ASSERT_TRUE(status.ok());
      break;
    }
    ++refusals;
  }
  EXPECT_GT(refusals, 0);
}

TEST(RefusedMemoryWithoutAnEngine, InWritingJson) {
  const GenerationOutput output{.text = std::string(40, 'x'),
                                .token_ids = {1, 2, 3},
                                .reuse = {.sources = {{"prefix_cache", 64}}},
                                .logprobs = {{{1, -0.5f}, {2, -1.5f}}}};
  const ContextManager::Answer answer{.output = output};
  const Delta delta{.text = output.text, .token_ids = {5}};
  const std::vector<ReusePart> parts = {{.tokens = 3, .reason = std::string(40, 'y')}};
  const SamplingParams params{.stop = {std::string(40, 'z')}, .logit_bias = {{400, -1.0f}}};
  refuse_some([&] { return to_json(output); }, 1);
  refuse_some([&] { return to_json(answer); }, 1);
  refuse_some([&] { return to_json(output.usage); }, 1);
  refuse_some([&] { return to_json(output.reuse); }, 1);
  refuse_some([&] { return to_json(output.timing); }, 1);
  refuse_some([&] { return to_json(delta); }, 1);
  refuse_some([&] { return to_json(std::span(parts)); }, 1);
  refuse_some([&] { return to_json(params); }, 1);
}

TEST(RefusedMemoryWithoutAnEngine, InInspectingAModel) {
  refuse_some([] { return inspect_json(kModel); }, base::test_length(1.005, 1.1));
}

TEST(RefusedMemoryWithoutAnEngine, InLookingAtTheMachine) {
  refuse_some([] { return doctor_json(); }, base::test_length(1.05, 2.0));
}

TEST(RefusedMemoryWithoutAnEngine, InMeasuring) {
  const BenchOptions options{
      .prompt = {8}, .generate = 1, .batch = {1}, .llm = here({.threads = 2})};
  refuse_some([&] { return run_bench(kModel, options, {}); }, base::test_length(1.3, 10.0));
}

TEST(RefusedMemoryAtTheEnds, InOpeningAndClosing) {
  const double growth = base::test_length(1.01, 1.4);
  for (double n = 1;; n = std::max(n + 1, n * growth)) {
    SCOPED_TRACE("allocation " + std::to_string(static_cast<std::int64_t>(n)));
    quire::testing::refuse_allocation(static_cast<std::int64_t>(n));
    std::optional<Error> error;
    ASSERT_NO_THROW({
      auto opened = ChunkedLLM::open(kModel, here({.threads = 2}));
      if (opened.ok()) {
        opened->llm().close();
      } else {
        error = opened.error();
      }
    });
    const bool refused = quire::testing::allocation_was_refused();
    quire::testing::refuse_allocation(0);
    if (error) {
      ASSERT_TRUE(refused) << error->message;
    }
    if (!refused) {
      break;
    }
  }
  EXPECT_TRUE(open_model().llm().generate(some_ids(10, 1), kFew).ok());
}

// KV that is stored block by block takes open blocks beside the others.
class RefusedMemoryOverInt4 : public RefusedMemory {
 protected:
  RefusedMemoryOverInt4()
      : RefusedMemory(
            ChunkedLLM::open(kModel, {.kv_dtype = "int4", .kv_budget_bytes = 2 << 20, .threads = 2})
                .value()) {}
};

TEST_F(RefusedMemoryOverInt4, InABatchOfNewPrompts) {
  const std::vector<Prompt> prompts = {some_ids(40, 5), some_ids(9, 6), some_ids(64, 7)};
  refuse_each([&]() -> Status {
    QUIRE_TRY_STATUS(outcome(llm_.llm().clear_prefix_cache()));
    return outcome(llm_.llm().generate_batch(prompts, {&kFew, 1}));
  });
}

TEST_F(RefusedMemoryOverInt4, InAForkThatIsCutAndGoesOn) {
  const Ids ids = some_ids(70, 3), more = some_ids(3, 9);
  refuse_each([&]() -> Status {
    QUIRE_TRY(Sequence sequence, llm_.llm().sequence(ids));
    QUIRE_TRY(Sequence fork, sequence.fork());
    QUIRE_TRY_STATUS(fork.rollback_to(40));
    QUIRE_TRY_STATUS(fork.append(more));
    return outcome(fork.generate(kFew));
  });
}

}  // namespace
}  // namespace quire
