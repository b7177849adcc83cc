// Saved KV that is not read for as long as the test wants: who waits for it and interrupts is let
// go at once, and what arrives later is right. The linker puts a gate before preadv.
#include <gtest/gtest.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <filesystem>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "quire/api/test_support.h"
#include "quire/chunks.h"
#include "quire/context.h"
#include "quire/llm.h"
#include "quire/output.h"
#include "quire/result.h"
#include "quire/sampling.h"
#include "quire/sequence.h"

namespace quire {
namespace {

// Who reads on a thread that began after it was closed waits until it is open again.
class Gate {
 public:
  void close() {
    const std::lock_guard lock(mutex_);
    closed_ = true;
    gave_way_ = false;
    before_.clear();
    for (const auto& thread : std::filesystem::directory_iterator("/proc/self/task")) {
      before_.insert(std::stoi(thread.path().filename()));
    }
  }
  // Lets the reads pass. Returns whether one waited until now.
  bool open() {
    const std::lock_guard lock(mutex_);
    closed_ = false;
    changed_.notify_all();
    return waiting_ > 0 && !gave_way_;
  }
  bool holds() {
    const std::lock_guard lock(mutex_);
    return waiting_ > 0;
  }
  void pass() {
    std::unique_lock lock(mutex_);
    if (!closed_ || before_.contains(::gettid())) {
      return;
    }
    ++waiting_;
    // A test that would wait for ever fails instead.
    gave_way_ = !changed_.wait_for(lock, std::chrono::seconds(10), [&] { return !closed_; });
    closed_ = false;
    --waiting_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool closed_ = false, gave_way_ = false;
  int waiting_ = 0;
  std::set<pid_t> before_;  // threads
};

Gate gate;

}  // namespace

// NOLINTBEGIN: the linker's names
extern "C" {
ssize_t __real_preadv(int file, const iovec* pieces, int count, off_t at);
ssize_t __wrap_preadv(int file, const iovec* pieces, int count, off_t at) {
  gate.pass();
  return __real_preadv(file, pieces, count, at);
}
}
// NOLINTEND

namespace {

const SamplingParams kGreedy{.temperature = 0, .max_tokens = 8, .ignore_eos = true};

// Interrupts once a reading thread waits.
bool interrupted() { return gate.holds(); }

template <class T>
ErrorCode code_of(const Result<T>& result) {
  return result.ok() ? ErrorCode::kInternal : result.error().code;
}

class HeldChunks : public testing::Test {
 protected:
  HeldChunks() {
    ChunkedLLM llm = open();
    spec_.system_chunk_id = add_system(llm);
    spec_.context_chunk_ids = {llm.register_chunk({.content = some_ids(300, 2)}).value()};
    spec_.query_chunk_id =
        llm.register_chunk({.content = some_ids(7, 3), .type = ChunkType::kQuery}).value();
    expected_ = answer(llm, spec_);
    blended_ = answer(llm, blend());
  }

  [[nodiscard]] ChunkedLLM open() const {
    return ChunkedLLM::open(kModel, here({.threads = 2}), {.store = folder_.path() / "store"})
        .value();
  }
  // Its KV is there when the call returns.
  static std::string add_system(ChunkedLLM& llm) {
    return llm.register_chunk({.content = some_ids(20, 1), .type = ChunkType::kSystemPrompt})
        .value();
  }
  [[nodiscard]] CompositionSpec blend() const {
    CompositionSpec spec = spec_;
    spec.mode = ReuseMode::kBlend;
    return spec;
  }
  static Ids answer(ChunkedLLM& llm, const CompositionSpec& spec) {
    return llm.generate_from_chunks(spec, kGreedy).value().token_ids;
  }

  // A run is interrupted while its card is on the way; then it is run to its end.
  void expect_let_go(const CompositionSpec& spec, const Ids& expected) const {
    ChunkedLLM llm = open();
    add_system(llm);
    const std::int64_t hits = llm.chunk_stats()->cache_hits;
    gate.close();
    EXPECT_EQ(code_of(llm.generate_from_chunks(spec, kGreedy, interrupted)), ErrorCode::kCancelled);
    EXPECT_TRUE(gate.open()) << "the call has waited for the file";
    EXPECT_EQ(stat(llm, "requests_running"), 0);
    EXPECT_EQ(llm.chunk_stats()->cache_hits, hits) << "it was no use";
    EXPECT_EQ(answer(llm, spec), expected);
    ASSERT_TRUE(llm.clear_chunks().ok());
    EXPECT_EQ(stat(llm, "blocks_in_use"), 0);
  }

  const TemporaryFolder folder_;
  CompositionSpec spec_;
  Ids expected_, blended_;
};

TEST_F(HeldChunks, ARunThatComputesOverThemIsInterrupted) { expect_let_go(spec_, expected_); }

TEST_F(HeldChunks, ARunThatWaitsBeforeItBlendsThemIsInterrupted) {
  expect_let_go(blend(), blended_);
}

TEST_F(HeldChunks, AStreamIsInterruptedBeforeItBegins) {
  ChunkedLLM llm = open();
  add_system(llm);
  gate.close();
  EXPECT_EQ(code_of(llm.stream_from_chunks(spec_, kGreedy, interrupted)), ErrorCode::kCancelled);
  EXPECT_TRUE(gate.open()) << "the call has waited for the file";
  EXPECT_EQ(answer(llm, spec_), expected_);
}

TEST_F(HeldChunks, AnEngineThatClosesAfterARunWasInterruptedCloses) {
  ChunkedLLM llm = open();
  add_system(llm);
  gate.close();
  EXPECT_EQ(code_of(llm.generate_from_chunks(spec_, kGreedy, interrupted)), ErrorCode::kCancelled);
  EXPECT_TRUE(gate.open()) << "the call has waited for the file";
  llm.llm().close();
  EXPECT_EQ(code_of(llm.generate_from_chunks(spec_, kGreedy)), ErrorCode::kClosed);
}

TEST(HeldItems, AnAnswerOverThemIsInterruptedAndTheyAreReadAgain) {
  const TemporaryFolder folder;
  LLM llm = LLM::open(kModel, here({.threads = 2, .prefix_cache = false})).value();
  ContextManager context = ContextManager::open(llm, {.store = folder.path() / "store"}).value();
  const std::string id = context.add(some_ids(300, 5)).value();
  const auto ask = [&](const Interrupt& interrupt) {
    return context.infer("Who?", kGreedy, interrupt);
  };
  const auto first = ask({});
  ASSERT_TRUE(first.ok()) << first.error().message;
  for (const std::string& said : {first->user_id, first->output_id}) {
    ASSERT_TRUE(context.erase(said).ok());
  }
  ASSERT_TRUE(context.save(id).ok());
  ASSERT_TRUE(context.unload(id, true).ok());
  gate.close();
  EXPECT_EQ(code_of(ask(interrupted)), ErrorCode::kCancelled);
  EXPECT_TRUE(gate.open()) << "the call has waited for the file";
  EXPECT_EQ(context.show(id)->tier, Tier::kDisk);
  const double computed = stat(llm, "tokens_computed");
  const auto again = ask({});
  ASSERT_TRUE(again.ok()) << again.error().message;
  EXPECT_EQ(again->output.token_ids, first->output.token_ids);
  EXPECT_EQ(context.show(id)->tier, Tier::kDevice);
  EXPECT_LT(stat(llm, "tokens_computed") - computed, 300) << "it was read";
}

// Interrupted, the sequence is free for other calls although the engine is still at its request.
TEST(HeldSequence, WhatIsAskedOfItIsInterruptedAndItStaysAsItWas) {
  const TemporaryFolder folder;
  const std::string file = folder.path() / "sequence.qkv";
  LLM llm = LLM::open(kModel, here({.threads = 2, .prefix_cache = false})).value();
  const Ids ids = some_ids(301, 6);
  Sequence saved = llm.sequence(ids).value();
  ASSERT_TRUE(saved.save(file).ok());
  const std::vector<float> logits = saved.logits().value();
  const Ids next = saved.generate(kGreedy).value().token_ids;
  gate.close();
  Sequence loaded = llm.load_sequence(file, {.wait = false}).value();
  EXPECT_EQ(code_of(loaded.generate(kGreedy, interrupted)), ErrorCode::kCancelled);
  EXPECT_EQ(loaded.tokens(), ids);
  EXPECT_TRUE(gate.open()) << "the call has waited for the file";
  EXPECT_EQ(loaded.logits().value(), logits);
  EXPECT_EQ(loaded.generate(kGreedy).value().token_ids, next);
}

}  // namespace
}  // namespace quire
