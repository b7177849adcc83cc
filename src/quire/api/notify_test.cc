// Streams that tell when they have something, for callers who wait for many at once.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "quire/api/test_support.h"
#include "quire/chunks.h"
#include "quire/llm.h"
#include "quire/output.h"
#include "quire/result.h"
#include "quire/sampling.h"
#include "quire/tokenizer.h"
#include "quire/types.h"

namespace quire {
namespace {

constexpr std::chrono::seconds kPatience{30};

// Counts what it is told, and waits for it. The engine may ring once more when the last of a stream
// has been taken, so what rings is shared with it.
class Bell {
 public:
  [[nodiscard]] RequestOptions options(bool deltas = true) const {
    return {.notify =
                [shared = shared_] {
                  const std::lock_guard lock(shared->mutex);
                  ++shared->rings;
                  shared->rung.notify_all();
                },
            .deltas = deltas};
  }
  [[nodiscard]] int rings() const {
    const std::lock_guard lock(shared_->mutex);
    return shared_->rings;
  }
  // Waits for more than `seen` rings.
  [[nodiscard]] bool wait(int seen) const {
    std::unique_lock lock(shared_->mutex);
    return shared_->rung.wait_for(lock, kPatience, [&] { return shared_->rings > seen; });
  }

 private:
  struct Shared {
    std::mutex mutex;
    std::condition_variable rung;
    int rings = 0;
  };
  std::shared_ptr<Shared> shared_ = std::make_shared<Shared>();
};

LLM open_llm(LLMOptions options = {}) {
  options.threads = 1;
  return LLM::open(kModel, here(options)).value();
}

const SamplingParams kGreedy = {.temperature = 0, .max_tokens = 12, .ignore_eos = true};
const SamplingParams kEndless = {.temperature = 0, .max_tokens = 2000, .ignore_eos = true};

// Reads a stream by its bell alone: never waits in next().
std::vector<TokenId> read(Stream& stream, Bell& bell) {
  std::vector<TokenId> ids;
  for (int seen = 0;;) {
    while (stream.wait(0)) {
      auto delta = stream.next();
      EXPECT_TRUE(delta.ok()) << (delta.ok() ? "" : delta.error().message);
      if (!delta.ok() || !delta->has_value()) {
        return ids;
      }
      const Delta& given = **delta;
      ids.insert(ids.end(), given.token_ids.begin(), given.token_ids.end());
    }
    if (!bell.wait(seen)) {
      ADD_FAILURE() << "the stream fell silent";
      return ids;
    }
    seen = bell.rings();
  }
}

TEST(Notify, RingsForEveryDeltaAndTheEnd) {
  LLM llm = open_llm();
  const Ids prompt = some_ids(20, 1);
  Bell bell;
  Stream stream = llm.stream(prompt, kGreedy, bell.options()).value();
  EXPECT_EQ(read(stream, bell), llm.generate(prompt, kGreedy).value().token_ids);
  EXPECT_EQ(bell.rings(), kGreedy.max_tokens + 1);
  EXPECT_EQ(stream.output().usage.completion_tokens, kGreedy.max_tokens);
}

TEST(Notify, AStreamSaysHowManyOfItsTokensHaveKv) {
  LLM llm = open_llm();
  const Ids prompt = some_ids(20, 1);
  Bell bell;
  Stream stream = llm.stream(prompt, kGreedy, bell.options()).value();
  EXPECT_GE(stream.computed_tokens(), 0);
  EXPECT_FALSE(read(stream, bell).empty());
  // The last token was chosen, but not computed.
  EXPECT_EQ(stream.computed_tokens(), std::ssize(prompt) + kGreedy.max_tokens - 1);
  llm.close();
  EXPECT_EQ(stream.computed_tokens(), std::ssize(prompt) + kGreedy.max_tokens - 1);
}

TEST(Notify, RingsOnceForAStreamWithoutDeltas) {
  LLM llm = open_llm();
  const Ids prompt = some_ids(20, 1);
  Bell bell;
  Stream stream = llm.stream(prompt, kGreedy, bell.options(false)).value();
  EXPECT_TRUE(read(stream, bell).empty());
  EXPECT_EQ(bell.rings(), 1);
  EXPECT_EQ(stream.output().token_ids, llm.generate(prompt, kGreedy).value().token_ids);
}

TEST(Notify, RingsForWhatTheEngineRefuses) {
  LLM llm = open_llm({.kv_budget_bytes = std::int64_t{1} << 20});
  Bell bell;
  Stream stream = llm.stream(some_ids(40, 1), {.max_tokens = 1000}, bell.options()).value();
  ASSERT_TRUE(bell.wait(0));
  EXPECT_TRUE(stream.wait(0));
  EXPECT_EQ(stream.request_id().value, RequestId{}.value);
  EXPECT_EQ(stream.computed_tokens(), 0);
  EXPECT_EQ(stream.next().error().code, ErrorCode::kOverflow);
  EXPECT_FALSE(stream.next().value().has_value());
  EXPECT_EQ(stat(llm, "blocks_in_use"), 0);
  // An error of the request itself needs no engine.
  EXPECT_EQ(llm.stream(Ids{1 << 20}, {}, bell.options()).error().code, ErrorCode::kInvalidArgument);
  llm.close();
  EXPECT_EQ(llm.stream(Ids{5}, {}, bell.options()).error().code, ErrorCode::kClosed);
}

TEST(Notify, AStreamThatIsClosedAtAnyMomentLeavesNothing) {
  LLM llm = open_llm({.prefix_cache = false});
  for (int round = 0; round < 200; ++round) {
    Bell bell;
    Stream stream = llm.stream(some_ids(20, 1), kEndless, bell.options()).value();
    if (round % 4 == 1) {
      ASSERT_TRUE(bell.wait(0));
    }
    if (round % 4 == 2) {
      ASSERT_GT(stream.request_id().value, 0U);
    }
    stream.close();
    if (round % 4 == 3) {
      ASSERT_EQ(stat(llm, "blocks_in_use"), 0);
    }
  }
  EXPECT_EQ(stat(llm, "blocks_in_use"), 0);
  EXPECT_EQ(stat(llm, "requests_running") + stat(llm, "requests_waiting"), 0);
}

TEST(Notify, ClosingTheLlmRingsForAllThatRun) {
  LLM llm = open_llm();
  Bell bell;
  std::vector<Stream> streams;
  for (std::uint32_t i = 0; i < 4; ++i) {
    streams.push_back(llm.stream(some_ids(20, i), kEndless, bell.options(false)).value());
  }
  llm.close();
  EXPECT_EQ(bell.rings(), 4);
  for (Stream& stream : streams) {
    EXPECT_TRUE(stream.wait(0));
    EXPECT_EQ(stream.next().error().code, ErrorCode::kClosed);
  }
}

TEST(Notify, StreamsOfChunksAndBlocksRingToo) {
  ChunkedLLM llm = ChunkedLLM::open(kModel, here({.threads = 1})).value();
  const std::string system =
      llm.register_chunk({.content = some_ids(20, 1), .type = ChunkType::kSystemPrompt}).value();
  const std::string query =
      llm.register_chunk({.content = some_ids(9, 2), .type = ChunkType::kQuery}).value();
  const CompositionSpec spec{.system_chunk_id = system, .query_chunk_id = query};
  Bell bell;
  Stream composed = llm.stream_from_chunks(spec, kGreedy, {}, bell.options()).value();
  EXPECT_EQ(read(composed, bell), llm.generate_from_chunks(spec, kGreedy).value().token_ids);
  Bell other;
  const BlockList blocks = llm.chunk_blocks(system).value();
  Stream behind =
      llm.llm().infer_from_blocks_stream(blocks, Ids{5}, kGreedy, {}, other.options()).value();
  EXPECT_EQ(read(behind, other).size(), static_cast<std::size_t>(kGreedy.max_tokens));
}

TEST(Registering, SaysWhatItDidForEachChunk) {
  ChunkedLLM llm = ChunkedLLM::open(kModel, here({.threads = 1})).value();
  const std::vector<ChunkContent> chunks = {
      {.content = some_ids(40, 1), .type = ChunkType::kSystemPrompt},
      {.content = some_ids(50, 2)},
      {.content = some_ids(7, 3), .type = ChunkType::kQuery}};
  std::vector<std::pair<std::int64_t, std::int64_t>> heard;
  const auto first = llm.register_with_details(chunks, {},
                                               [&heard](std::int64_t tokens, std::int64_t wanted) {
                                                 heard.emplace_back(tokens, wanted);
                                               })
                         .value();
  const auto again = llm.register_with_details(chunks).value();
  const std::vector<std::int64_t> computed = {40, 50, 0};
  for (std::size_t i = 0; i < chunks.size(); ++i) {
    EXPECT_TRUE(first[i].created);
    EXPECT_EQ(first[i].tokens_computed, computed[i]);
    EXPECT_FALSE(again[i].created);
    EXPECT_EQ(again[i].tokens_computed, 0);
    EXPECT_EQ(again[i].chunk_id, first[i].chunk_id);
  }
  ASSERT_FALSE(heard.empty());
  EXPECT_EQ(heard.back(), (std::pair<std::int64_t, std::int64_t>{97, 97}));
  for (std::size_t i = 1; i < heard.size(); ++i) {
    EXPECT_GE(heard[i].first, heard[i - 1].first);
    EXPECT_EQ(heard[i].second, 97);
  }
}

TEST(Registering, OverAnOpenLlmLeavesItOpen) {
  LLM llm = open_llm();
  std::string id;
  {
    ChunkedLLM chunks = ChunkedLLM::over(llm);
    id = chunks.register_chunk({.content = some_ids(40, 1)}).value();
  }
  EXPECT_TRUE(llm.generate(Ids{5}, kGreedy).ok());
  ChunkedLLM again = ChunkedLLM::over(llm);
  EXPECT_EQ(again.get_chunk(id).value().token_ids, some_ids(40, 1));
  llm.close();
  EXPECT_EQ(again.get_chunk(id).error().code, ErrorCode::kClosed);
}

// The oracle: bytes of the text that the ids come from, cut in the middle of characters.
TEST(TokenBytes, JoinedAreTheTextWhateverTheTokensAre) {
  const Tokenizer tokenizer = Tokenizer::open(kModel).value();
  const std::string text =
      "Ada lives in Thornby, caf\xC3\xA9 \xF0\x9F\xA6\x86\n\t\x01 Z\xC3\xBCrich";
  std::string joined;
  for (const TokenId id : tokenizer.encode(text, false).value()) {
    joined += tokenizer.token_bytes(id).value();
  }
  EXPECT_EQ(joined, text);
  EXPECT_EQ(tokenizer.token_bytes(tokenizer.eos_token_id().value()).value(), "<eos>");
  EXPECT_EQ(tokenizer.token_bytes(1 << 20).error().code, ErrorCode::kInvalidArgument);
}

}  // namespace
}  // namespace quire
