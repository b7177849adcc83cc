// A forked child has the memory of its parent and none of its threads. There every call is refused
// at once, and what the parent had opened goes without waiting for anybody.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <utility>

#include "quire/api/test_support.h"
#include "quire/checkpoints.h"
#include "quire/chunks.h"
#include "quire/context.h"
#include "quire/llm.h"
#include "quire/result.h"
#include "quire/sampling.h"
#include "quire/sequence.h"
#include "quire/store.h"

namespace quire {
namespace {

constexpr unsigned kSeconds = 60;  // a limit for a child that hangs
constexpr int kFailed = 1;

// Returns the end of a child that does `work`: 0, kFailed, or the signal that ended it.
int in_child(const std::function<void()>& work) {
  const pid_t child = fork();
  if (child == 0) {
    alarm(kSeconds);
    work();
    _exit(testing::Test::HasFailure() ? kFailed : 0);
  }
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  return WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status);
}

template <class Outcome>
void expect_refused(const Outcome& outcome, pid_t parent) {
  ASSERT_FALSE(outcome.ok());
  EXPECT_EQ(outcome.error().code, ErrorCode::kClosed);
  EXPECT_THAT(outcome.error().message,
              testing::HasSubstr("process " + std::to_string(parent) + "; a forked child"));
}

// Everything that has threads, or waits for them, in use.
class Fork : public testing::Test {
 protected:
  void SetUp() override {
#if defined(__SANITIZE_THREAD__)
    GTEST_SKIP() << "ThreadSanitizer does not follow a fork of several threads";
#endif
    const std::string store = folder_.path() / "store";
    llm_.emplace(ChunkedLLM::open(kModel, here({.threads = 2}), {.store = store}).value());
    ASSERT_TRUE(
        llm_->register_chunk({.content = some_ids(40, 1), .type = ChunkType::kSystemPrompt}).ok());
    sequence_.emplace(llm_->llm().sequence(some_ids(40, 2)).value());
    mark_ = sequence_->checkpoint().value();
    context_.emplace(ContextManager::open(llm_->llm(), {.store = store}).value());
    ASSERT_TRUE(context_->add("a goose", {.name = "goose"}).ok());
    ASSERT_TRUE(context_->save("goose").ok());
    ASSERT_TRUE(context_->restore("goose").ok());
    checkpoints_.emplace(CheckpointManager::open(llm_->llm(), store).value());
    store_.emplace(Store::open(store).value());
    stream_.emplace(llm_->llm().stream(some_ids(8, 3), endless_).value());
    ASSERT_TRUE(stream_->next().ok());
  }

  const SamplingParams endless_ = {.max_tokens = 1500, .ignore_eos = true};
  const pid_t parent_ = getpid();
  const TemporaryFolder folder_;
  std::optional<ChunkedLLM> llm_;
  std::optional<Sequence> sequence_;
  Mark mark_;
  std::optional<ContextManager> context_;
  std::optional<CheckpointManager> checkpoints_;
  std::optional<Store> store_;
  std::optional<Stream> stream_;
};

TEST_F(Fork, AChildIsRefusedAtOnceAndToldWhere) {
  const auto ask = [this] {
    LLM& llm = llm_->llm();
    expect_refused(llm.generate(some_ids(8, 4)), parent_);
    expect_refused(llm.stats(), parent_);
    expect_refused(llm.tokenizer(), parent_);
    expect_refused(llm_->list_chunks(), parent_);
    expect_refused(llm_->flush_store(), parent_);
    expect_refused(sequence_->append(some_ids(4, 5)), parent_);
    expect_refused(sequence_->generate(endless_), parent_);
    expect_refused(sequence_->rollback(mark_), parent_);
    expect_refused(sequence_->check_open(), parent_);
    expect_refused(context_->add("a finch"), parent_);
    expect_refused(context_->check_open(), parent_);
    expect_refused(checkpoints_->list(), parent_);
    EXPECT_TRUE(stream_->wait(-1));
    expect_refused(stream_->next(), parent_);
    EXPECT_EQ(sequence_->num_tokens(), 0);
    expect_refused(context_->items(), parent_);
    expect_refused(context_->stats(), parent_);
    EXPECT_EQ(context_->clear(), 0);
  };
  EXPECT_EQ(in_child(ask), 0);
  EXPECT_EQ(sequence_->num_tokens(), 40);
  EXPECT_TRUE(llm_->llm().generate(some_ids(8, 4), {.max_tokens = 2}).ok());
}

TEST_F(Fork, AStoreOfTheParentIsRefusedInAChildWhichOpensItAgain) {
  const std::string path = folder_.path() / "store";
  const std::size_t entries = store_->list().value().size();
  const auto ask = [&] {
    expect_refused(store_->list(), parent_);
    expect_refused(store_->find("goose"), parent_);
    expect_refused(store_->pin("goose", true), parent_);
    expect_refused(store_->set_ttl("goose", 1.0), parent_);
    expect_refused(store_->remove("goose", true), parent_);
    expect_refused(store_->gc(), parent_);
    expect_refused(store_->verify(), parent_);
    expect_refused(store_->weights(), parent_);
    expect_refused(store_->export_entry("goose", folder_.path() / "goose.qke"), parent_);
    expect_refused(store_->import_entry(folder_.path() / "goose.qke"), parent_);
    EXPECT_EQ(Store::open(path).value().list().value().size(), entries);
  };
  EXPECT_GT(entries, 0U);
  EXPECT_EQ(in_child(ask), 0);
  EXPECT_EQ(store_->list().value().size(), entries);
  EXPECT_TRUE(store_->pin("goose", true).ok());
}

TEST_F(Fork, InAChildAllThatWasOpenGoesWithoutWaiting) {
  const auto close = [this] {
    stream_->close();
    sequence_->close();
    llm_->llm().close();
  };
  const auto drop = [this] {
    stream_.reset();
    store_.reset();
    checkpoints_.reset();
    context_.reset();
    sequence_.reset();
    mark_ = {};
    llm_.reset();
  };
  EXPECT_EQ(in_child(close), 0);
  EXPECT_EQ(in_child(drop), 0);
  EXPECT_TRUE(stream_->next().ok());
  EXPECT_EQ(context_->items().value().size(), 1U);
}

}  // namespace
}  // namespace quire
