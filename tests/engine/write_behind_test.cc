// Chunks that are written behind the call that registers them: a disk that refuses, and blocks that
// get short meanwhile. Oracle: what was written through, or another process finds.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <future>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "quire/api/llm_impl.h"
#include "quire/api/test_support.h"
#include "quire/chunks.h"
#include "quire/device/host_buffer.h"
#include "quire/engine/engine.h"
#include "quire/kv_store/sqlite.h"
#include "quire/kv_store/store_index.h"
#include "quire/kv_store/store_layout.h"
#include "quire/llm.h"
#include "quire/result.h"
#include "quire/tiers/tier_service.h"

namespace quire {
namespace {

using testing::IsEmpty;
using testing::SizeIs;

// Time that a test waits to see that something does not come.
constexpr std::chrono::milliseconds kMoment(300);
constexpr std::size_t kBlock = 32;  // tokens

// While it lives no file of this process grows beyond a kilobyte.
class FullDisk {
 public:
  FullDisk() {
    EXPECT_EQ(::getrlimit(RLIMIT_FSIZE, &before_), 0);
    const rlimit small{.rlim_cur = 1024, .rlim_max = before_.rlim_max};
    EXPECT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  }
  FullDisk(const FullDisk&) = delete;
  FullDisk& operator=(const FullDisk&) = delete;
  ~FullDisk() {
    EXPECT_EQ(::setrlimit(RLIMIT_FSIZE, &before_), 0);
    ::signal(SIGXFSZ, action_);
  }

 private:
  rlimit before_{};
  void (*action_)(int) = ::signal(SIGXFSZ, SIG_IGN);
};

class WriteBehind : public testing::Test {
 protected:
  [[nodiscard]] ChunkedLLM open(bool write_through = true,
                                std::int64_t kv_bytes = std::int64_t{1} << 30) const {
    return ChunkedLLM::open(kModel, here({.kv_budget_bytes = kv_bytes, .threads = 2}),
                            {.chunk_memory_ratio = 1,
                             .store = temporary_.path() / "store",
                             .write_through = write_through})
        .value();
  }

  static std::string add(ChunkedLLM& llm, Ids ids, ChunkType type = ChunkType::kContext) {
    return llm.register_chunk({.content = std::move(ids), .type = type, .options = {.anchor = ""}})
        .value();
  }

  // A system prompt, two cards and a query.
  static CompositionSpec register_all(ChunkedLLM& llm) {
    return {.system_chunk_id =
                llm.register_chunk({.content = some_ids(20, 1), .type = ChunkType::kSystemPrompt})
                    .value(),
            .context_chunk_ids = {llm.register_chunk({.content = some_ids(45, 2)}).value(),
                                  llm.register_chunk({.content = some_ids(33, 3)}).value()},
            .query_chunk_id =
                llm.register_chunk({.content = some_ids(7, 4), .type = ChunkType::kQuery}).value()};
  }

  static Ids answer(ChunkedLLM& llm, const CompositionSpec& spec) {
    return llm.generate_from_chunks(spec, {.temperature = 0, .max_tokens = 12, .ignore_eos = true})
        .value()
        .token_ids;
  }

  // Returns the chunks that another process finds.
  [[nodiscard]] std::vector<ChunkInfo> saved() const {
    ChunkedLLM other = open();
    return other.list_chunks().value();
  }

  const TemporaryFolder temporary_;
};

TEST_F(WriteBehind, WrittenThroughWhatTheDiskRefusesIsNotRegistered) {
  ChunkedLLM llm = open();
  const ChunkContent card{.content = some_ids(45, 2), .options = {.anchor = ""}};
  {
    const FullDisk full;
    EXPECT_EQ(llm.register_chunk(card).error().code, ErrorCode::kIo);
    const std::vector<ChunkContent> twice = {card, card};
    EXPECT_EQ(llm.register_chunks(twice).error().code, ErrorCode::kIo);
  }
  EXPECT_THAT(llm.list_chunks().value(), IsEmpty());
  EXPECT_TRUE(llm.register_chunk(card).ok());
  EXPECT_THAT(saved(), SizeIs(1));
}

TEST_F(WriteBehind, WhatTheDiskRefusesIsToldOnceAndWrittenWhenRegisteredAgain) {
  ChunkedLLM llm = open(false);
  CompositionSpec spec;
  {
    const FullDisk full;
    spec = register_all(llm);
    EXPECT_EQ(llm.flush_store().error().code, ErrorCode::kIo);
    EXPECT_TRUE(llm.flush_store().ok()) << "nothing has failed since";
  }
  EXPECT_THAT(saved(), IsEmpty());
  const double registered = stat(llm, "tokens_computed");
  const Ids before = answer(llm, spec);
  EXPECT_EQ(stat(llm, "tokens_computed"), registered + 7 + 11) << "in memory it is there";
  const ChunkStats stats = llm.chunk_stats().value();
  EXPECT_EQ(stats.total_chunks, 4);
  EXPECT_EQ(stats.cache_misses, 3);
  EXPECT_EQ(stats.evictions, 0);

  EXPECT_EQ(register_all(llm).context_chunk_ids, spec.context_chunk_ids);
  EXPECT_TRUE(llm.flush_store().ok());
  ChunkedLLM later = open();
  EXPECT_THAT(later.list_chunks().value(), SizeIs(4));
  EXPECT_EQ(answer(later, spec), before);
  EXPECT_EQ(stat(later, "tokens_computed"), 7 + 11);
}

// 16 blocks, all of them for chunks if need be, and a disk that can be held up.
class WriteBehindOfFewBlocks : public WriteBehind {
 protected:
  [[nodiscard]] std::int64_t block_bytes() const {
    ChunkedLLM llm = open();
    return static_cast<std::int64_t>(stat(llm, "block_bytes"));
  }

  void hold_up() { held_up_.emplace(kv_store::Transaction::begin(index_).value()); }
  void let_go() { held_up_.reset(); }

  ChunkedLLM llm_ = open(false, 16 * block_bytes());

 private:
  const kv_store::Database index_ =
      kv_store::Database::open(temporary_.path() / "store" / kv_store::kIndexName,
                               kv_store::Database::Mode::kWrite)
          .value();
  std::optional<kv_store::Transaction> held_up_;
};

TEST_F(WriteBehindOfFewBlocks, WhileTheyAreShortAChunkIsWrittenAtOnceBehindThoseThatWait) {
  hold_up();
  const std::string first = add(llm_, some_ids(5 * kBlock, 1));
  auto second = std::async(std::launch::async, [&] { return add(llm_, some_ids(8 * kBlock, 2)); });
  EXPECT_EQ(second.wait_for(kMoment), std::future_status::timeout);
  let_go();
  EXPECT_NE(second.get(), first);
  EXPECT_THAT(saved(), SizeIs(2)) << "without flushing";
}

TEST_F(WriteBehindOfFewBlocks, ARequestThatNeedsTheBlocksOfAWriteWaitsForIt) {
  hold_up();
  const std::string id = add(llm_, some_ids(10 * kBlock, 1));
  EXPECT_EQ(llm_.evict_unused_chunks(0).value(), 1);
  auto output = std::async(std::launch::async, [&] {
    return llm_.llm().generate(some_ids(10 * kBlock, 2), {.temperature = 0, .max_tokens = 2});
  });
  EXPECT_EQ(output.wait_for(kMoment), std::future_status::timeout);
  let_go();
  const auto generated = output.get();
  EXPECT_TRUE(generated.ok()) << generated.error().message;
  EXPECT_TRUE(llm_.flush_store().ok());
  EXPECT_THAT(saved(), SizeIs(1)) << "evicted from memory alone";
}

TEST_F(WriteBehindOfFewBlocks, AChunkThatNeedsTheBlocksOfAWriteWaitsForIt) {
  hold_up();
  const std::string first = add(llm_, some_ids(10 * kBlock, 1));
  auto second = std::async(std::launch::async, [&] { return add(llm_, some_ids(10 * kBlock, 2)); });
  EXPECT_EQ(second.wait_for(kMoment), std::future_status::timeout);
  let_go();
  EXPECT_NE(second.get(), first);
  EXPECT_TRUE(llm_.flush_store().ok());
  EXPECT_THAT(saved(), SizeIs(2));
  EXPECT_EQ(llm_.chunk_stats().value().evictions, 1);
}

TEST_F(WriteBehindOfFewBlocks, LoadingASequenceThatNeedsTheBlocksOfAWriteWaitsForIt) {
  const Ids ids = some_ids(10 * kBlock, 5);
  const std::string file = temporary_.path() / "sequence.qkv";
  ASSERT_TRUE(open().llm().sequence(ids).value().save(file).ok());
  hold_up();
  add(llm_, some_ids(10 * kBlock, 1));
  EXPECT_EQ(llm_.evict_unused_chunks(0).value(), 1);
  auto loading = std::async(std::launch::async, [&] { return llm_.llm().load_sequence(file, {}); });
  EXPECT_EQ(loading.wait_for(kMoment), std::future_status::timeout);
  let_go();
  const auto loaded = loading.get();
  ASSERT_TRUE(loaded.ok()) << loaded.error().message;
  EXPECT_EQ(loaded->tokens(), ids);
}

TEST_F(WriteBehindOfFewBlocks, ReservingASegmentThatNeedsTheBlocksOfAWriteWaitsForIt) {
  const auto runtime = llm_.llm().impl().open().value();
  const auto bytes =
      static_cast<std::size_t>(10 * runtime->tiers().paged_pool().geometry().block_bytes());
  tiers::HostSegment segment{{.tokens = some_ids(10 * kBlock, 5)}, device::HostBuffer(bytes)};
  std::ranges::fill(segment.bytes.span(), std::byte{0});
  hold_up();
  add(llm_, some_ids(10 * kBlock, 1));
  EXPECT_EQ(llm_.evict_unused_chunks(0).value(), 1);
  auto reserving =
      std::async(std::launch::async, [&] { return runtime->tiers().from_host(segment); });
  EXPECT_EQ(reserving.wait_for(kMoment), std::future_status::timeout);
  let_go();
  const auto held = reserving.get();
  ASSERT_TRUE(held.ok()) << held.error().message;
  EXPECT_EQ((*held)->blocks.size(), 10);
  EXPECT_EQ(runtime->tiers().from_host(segment).error().code, ErrorCode::kOutOfBlocks)
      << "nothing is left to write";
}

TEST_F(WriteBehindOfFewBlocks, BlendingThatNeedsTheBlocksOfAWriteWaitsForIt) {
  const auto pinned = [&](std::size_t tokens, std::uint32_t seed, ChunkType type) {
    return llm_
        .register_chunk(
            {.content = some_ids(tokens, seed), .type = type, .options = {.pinned = true}})
        .value();
  };
  const CompositionSpec spec{.system_chunk_id = pinned(20, 1, ChunkType::kSystemPrompt),
                             .context_chunk_ids = {pinned(2 * kBlock, 2, ChunkType::kContext)},
                             .query_chunk_id = pinned(7, 4, ChunkType::kQuery),
                             .mode = ReuseMode::kBlend,
                             .blend = {.selector = Selector::kAll}};
  const Ids before = answer(llm_, spec);
  EXPECT_TRUE(llm_.llm().clear_prefix_cache().ok());
  hold_up();
  add(llm_, some_ids(8 * kBlock, 1));
  EXPECT_EQ(llm_.evict_unused_chunks(0).value(), 1);
  const auto beside = llm_.llm().sequence(some_ids(4 * kBlock, 5));
  ASSERT_TRUE(beside.ok()) << beside.error().message;
  auto blended = std::async(std::launch::async, [&] { return answer(llm_, spec); });
  EXPECT_EQ(blended.wait_for(kMoment), std::future_status::timeout);
  let_go();
  EXPECT_EQ(blended.get(), before);
}

TEST_F(WriteBehindOfFewBlocks, ARequestThatFitsNowhereIsRefusedWhenNothingIsLeftToWrite) {
  const std::string id = add(llm_, some_ids(10 * kBlock, 1));
  EXPECT_TRUE(llm_.update_chunk(id, {.pinned = true}).ok());
  const auto refused =
      llm_.llm().generate(some_ids(10 * kBlock, 2), {.temperature = 0, .max_tokens = 2});
  EXPECT_EQ(refused.error().code, ErrorCode::kOutOfBlocks);
}

}  // namespace
}  // namespace quire
