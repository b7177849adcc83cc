// Sessions of the public LLM on the demo model: what users say decides what stays in the cache, and
// never what is computed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <limits>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "quire/api/test_support.h"
#include "quire/chunks.h"
#include "quire/context.h"
#include "quire/llm.h"
#include "quire/result.h"
#include "quire/sampling.h"
#include "quire/sequence.h"
#include "quire/types.h"

namespace quire {
namespace {

using testing::HasSubstr;

constexpr std::int64_t kBlockBytes = std::int64_t{8} * 4096;  // of 8 tokens of the demo model

SamplingParams one_token() { return {.temperature = 0, .max_tokens = 1}; }

// Opens it with 41 blocks of 8 tokens: four prompts of below and the open block of one.
LLM open_small() {
  auto llm = LLM::open(
      kModel, here({.block_tokens = 8, .kv_budget_bytes = 41 * kBlockBytes, .threads = 2}));
  EXPECT_TRUE(llm.ok()) << (llm.ok() ? "" : llm.error().message);
  return std::move(llm).value();
}

// Returns 80 tokens and one more: ten blocks stay in the cache.
std::vector<TokenId> prompt_of(int who) {
  std::vector<TokenId> ids;
  ids.reserve(81);
  for (int i = 0; i < 81; ++i) {
    ids.push_back(10 + (who * 131 + i * 17) % 1500);
  }
  return ids;
}

void serve(LLM& llm, int who, const std::string& session) {
  const auto output = llm.generate(prompt_of(who), one_token(), {.session = session});
  ASSERT_TRUE(output.ok()) << output.error().message;
}

std::int64_t cached(const LLM& llm, int who) {
  const auto parts = llm.explain(prompt_of(who)).value();
  return parts.front().hit ? parts.front().tokens : 0;
}

TEST(Sessions, TheClosedOneMakesRoomForTheOthers) {
  LLM llm = open_small();
  for (const int who : {1, 2, 3}) {
    serve(llm, who, "session " + std::to_string(who));
  }
  EXPECT_EQ(stat(llm, "sessions"), 3);
  ASSERT_TRUE(llm.close_session("session 2").ok());
  EXPECT_EQ(stat(llm, "sessions"), 2);
  serve(llm, 4, "");
  serve(llm, 5, "");
  EXPECT_EQ(cached(llm, 1), 80) << "the oldest";
  EXPECT_EQ(cached(llm, 3), 80);
  EXPECT_EQ(cached(llm, 2), 0);
  EXPECT_GT(stat(llm, "evictions_closed"), 8);
  EXPECT_THAT(llm.explain(prompt_of(2)).value().back().reason, HasSubstr("its session was closed"));
}

TEST(Sessions, TheOneThatReturnsLaterGoesFirst) {
  LLM llm = open_small();
  for (const int who : {1, 2, 3}) {
    serve(llm, who, "session " + std::to_string(who));
  }
  ASSERT_TRUE(llm.pause_session("session 1", 20).ok());
  ASSERT_TRUE(llm.pause_session("session 2", 10).ok());
  ASSERT_TRUE(llm.pause_session("session 3", 5000).ok());
  serve(llm, 4, "");
  serve(llm, 5, "");
  EXPECT_EQ(cached(llm, 1), 80);
  EXPECT_EQ(cached(llm, 2), 80);
  EXPECT_EQ(cached(llm, 3), 0);
  EXPECT_GT(stat(llm, "evictions_later"), 8);
}

TEST(Sessions, PriorityAndTtlAreKept) {
  LLM llm = open_small();
  ASSERT_TRUE(llm.set_retention("important", {.priority = 1}).ok());
  ASSERT_TRUE(llm.set_retention("fleeting", {.priority = 2, .ttl_seconds = 0}).ok());
  serve(llm, 1, "important");
  serve(llm, 2, "");
  serve(llm, 3, "fleeting");
  serve(llm, 4, "");
  serve(llm, 5, "");
  EXPECT_EQ(cached(llm, 3), 0);
  EXPECT_GT(stat(llm, "evictions_expired"), 8);
  for (int who = 6; who < 12; ++who) {
    serve(llm, who, "");
  }
  EXPECT_EQ(cached(llm, 1), 80);
  EXPECT_EQ(cached(llm, 2), 0);
}

TEST(Sessions, HintsNeverChangeWhatIsComputed) {
  LLM llm = open_small();
  LLM plain = open_small();
  const SamplingParams params{.temperature = 0, .max_tokens = 8, .ignore_eos = true};
  for (int turn = 0; turn < 12; ++turn) {
    const int who = turn % 5;
    const std::string session = "s" + std::to_string(who);
    const auto hinted = llm.generate(prompt_of(who), params, {.session = session});
    const auto expected = plain.generate(prompt_of(who), params);
    ASSERT_EQ(hinted->token_ids, expected->token_ids);
    ASSERT_TRUE(
        (turn % 3 == 0 ? llm.close_session(session) : llm.pause_session(session, turn)).ok());
  }
}

// Serves one prompt by each kind of request that may name a session.
void serve_as(LLM& llm, int way, int who, const std::string& session) {
  const Ids ids = prompt_of(who);
  const RequestOptions options{.session = session};
  if (way == 0) {
    ASSERT_TRUE(llm.sequence(ids, {}, options).ok());
  } else if (way == 1) {
    Sequence sequence = llm.sequence(Ids()).value();
    ASSERT_TRUE(sequence.append(ids, {}, options).ok());
  } else if (way == 2) {
    Sequence sequence = llm.sequence(ids).value();
    ASSERT_TRUE(sequence.generate(one_token(), {}, options).ok());
  } else if (way == 3) {
    ASSERT_TRUE(llm.infer_from_blocks({}, ids, one_token(), {}, options).ok());
  } else {
    ContextManager context = ContextManager::open(llm, {.mode = ReuseMode::kExact}).value();
    ASSERT_TRUE(context.add(ids).ok());
    ASSERT_TRUE(context.infer(std::nullopt, one_token(), {}, {}, options).ok());
  }
}

TEST(Sessions, SpeakForWhatSequencesBlocksAndContextsLeaveInTheCache) {
  for (int way = 0; way < 5; ++way) {
    LLM llm = open_small();
    for (const int who : {1, 2, 3}) {
      serve_as(llm, way, who, std::to_string(who));
    }
    EXPECT_EQ(stat(llm, "sessions"), 3) << way;
    EXPECT_EQ(stat(llm, "blocks_in_use"), 0) << way;
    ASSERT_TRUE(llm.close_session("2").ok());
    serve(llm, 4, "");
    serve(llm, 5, "");
    EXPECT_EQ(cached(llm, 1), 80) << way;
    EXPECT_EQ(cached(llm, 2), 0) << way;
    EXPECT_EQ(cached(llm, 3), 80) << way;
    EXPECT_GT(stat(llm, "evictions_closed"), 8) << way;
  }
}

TEST(Sessions, ARequestOfASequenceEndsTheExpectation) {
  LLM llm = open_small();
  for (const int who : {1, 2, 3}) {
    serve(llm, who, std::to_string(who));
    ASSERT_TRUE(llm.pause_session(std::to_string(who), who == 2 ? 5000 : 10).ok());
  }
  {
    Sequence sequence = llm.sequence(prompt_of(2)).value();
    ASSERT_TRUE(sequence.generate(one_token(), {}, {.session = "2"}).ok());
  }
  ASSERT_TRUE(llm.pause_session("2", 10).ok());
  ASSERT_TRUE(llm.pause_session("1", 9000).ok());
  serve(llm, 4, "");
  serve(llm, 5, "");
  EXPECT_EQ(cached(llm, 1), 0);
  EXPECT_EQ(cached(llm, 2), 80);
}

// Room for three chunks: two contexts and the query.
TEST(Sessions, SpeakForTheChunksThatTheyAloneCompose) {
  ChunkedLLM llm = ChunkedLLM::open(kModel, {.threads = 2}, {.max_chunks = 3}).value();
  const auto add = [&](std::uint32_t seed, ChunkType type) {
    return llm.register_chunk({.content = some_ids(40, seed), .type = type}).value();
  };
  const std::string stays = add(1, ChunkType::kContext);
  const std::string goes = add(2, ChunkType::kContext);
  const std::string query = add(3, ChunkType::kQuery);
  const auto ask = [&](const std::string& context, const RequestOptions& options) {
    const CompositionSpec spec{
        .without_system = true, .context_chunk_ids = {context}, .query_chunk_id = query};
    return llm.generate_from_chunks(spec, one_token(), {}, options).value().token_ids;
  };
  const Ids unsaid = ask(stays, {});
  EXPECT_EQ(ask(stays, {.session = "stays"}), unsaid);
  ask(goes, {.session = "goes"});
  ASSERT_TRUE(llm.llm().close_session("goes").ok());
  add(4, ChunkType::kContext);
  EXPECT_TRUE(llm.get_chunk(stays).ok()) << "used less recently";
  EXPECT_EQ(llm.get_chunk(goes).error().code, ErrorCode::kNotFound);
}

TEST(Sessions, BadNamesAreRefusedWhereverTheyStand) {
  ChunkedLLM chunked = ChunkedLLM::open(kModel, {.threads = 2}).value();
  LLM& llm = chunked.llm();
  const RequestOptions bad{.session = std::string(257, 'x')};
  const Ids ids = prompt_of(1);
  Sequence sequence = llm.sequence(ids).value();
  ContextManager context = ContextManager::open(llm).value();
  ASSERT_TRUE(context.add(ids).ok());
  const CompositionSpec spec{
      .without_system = true,
      .query_chunk_id =
          chunked.register_chunk({.content = ids, .type = ChunkType::kQuery}).value()};
  const double computed = stat(llm, "tokens_computed");
  const std::vector<Error> errors = {
      llm.sequence(ids, {}, bad).error(),
      sequence.append(ids, {}, bad).error(),
      sequence.generate(one_token(), {}, bad).error(),
      sequence.stream(one_token(), bad).error(),
      llm.infer_from_blocks({}, ids, one_token(), {}, bad).error(),
      llm.infer_from_blocks_stream({}, ids, one_token(), {}, bad).error(),
      context.infer("Who?", one_token(), {}, {}, bad).error(),
      chunked.generate_from_chunks(spec, one_token(), {}, bad).error(),
      chunked.stream_from_chunks(spec, one_token(), {}, bad).error(),
      chunked.sequence(spec, {}, bad).error(),
      chunked.generate({.query = ids}, {.without_system = true}, one_token(), true, {}, bad)
          .error()};
  for (std::size_t i = 0; i < errors.size(); ++i) {
    EXPECT_EQ(errors[i].code, ErrorCode::kInvalidArgument) << i;
    EXPECT_THAT(errors[i].message, HasSubstr("session")) << i;
  }
  EXPECT_EQ(stat(llm, "tokens_computed"), computed);
  EXPECT_EQ(stat(llm, "sessions"), 0);
  EXPECT_EQ(sequence.num_tokens(), std::ssize(ids));
}

TEST(Sessions, UnknownAndClosedSessionsAreNotFound) {
  LLM llm = open_small();
  serve(llm, 1, "known");
  for (const Status& status : {llm.pause_session("unknown", 1), llm.close_session("unknown")}) {
    ASSERT_FALSE(status.ok());
    EXPECT_EQ(status.error().code, ErrorCode::kNotFound);
    EXPECT_THAT(status.error().message, HasSubstr("\"unknown\""));
  }
  EXPECT_TRUE(llm.close_session("known").ok());
  EXPECT_EQ(llm.close_session("known").error().code, ErrorCode::kNotFound);
  serve(llm, 1, "known");  // a new one
  EXPECT_TRUE(llm.pause_session("known").ok());
}

TEST(Sessions, BadArgumentsAreNamed) {
  LLM llm = open_small();
  serve(llm, 1, "known");
  const auto refused = [](const Status& status, const char* what) {
    ASSERT_FALSE(status.ok());
    EXPECT_EQ(status.error().code, ErrorCode::kInvalidArgument);
    EXPECT_THAT(status.error().message, HasSubstr(what));
  };
  for (const double bad : {-1.0, -1e-300, 1e10, std::numeric_limits<double>::quiet_NaN(),
                           std::numeric_limits<double>::infinity()}) {
    refused(llm.pause_session("known", bad), "expected_return");
    refused(llm.set_retention("known", {.ttl_seconds = bad}), "ttl");
  }
  for (const std::string& bad : {std::string(), std::string(257, 'x')}) {
    refused(llm.pause_session(bad, 1), "session");
    refused(llm.close_session(bad), "session");
    refused(llm.set_retention(bad, {}), "session");
  }
  const auto output = llm.generate(prompt_of(1), one_token(), {.session = std::string(257, 'x')});
  EXPECT_EQ(output.error().code, ErrorCode::kInvalidArgument);
  const std::vector<Prompt> prompts = {prompt_of(1), prompt_of(2), prompt_of(3)};
  const std::vector<RequestOptions> options(2);
  const SamplingParams params = one_token();
  EXPECT_EQ(llm.generate_batch(prompts, {&params, 1}, {}, options).error().code,
            ErrorCode::kInvalidArgument);
}

TEST(Sessions, TheLeastRecentlyNamedIsForgottenBeyondTheLimit) {
  LLM llm = open_small();
  constexpr int kMost = 16384;
  for (int i = 0; i < kMost; ++i) {
    ASSERT_TRUE(llm.set_retention(std::to_string(i), {}).ok());
  }
  ASSERT_TRUE(llm.set_retention("0", {}).ok());
  ASSERT_TRUE(llm.set_retention("one more", {}).ok());
  EXPECT_EQ(stat(llm, "sessions"), kMost);
  EXPECT_TRUE(llm.pause_session("0").ok());
  EXPECT_EQ(llm.pause_session("1").error().code, ErrorCode::kNotFound);
}

TEST(Sessions, AClosedLlmSaysSo) {
  LLM llm = open_small();
  llm.close();
  EXPECT_EQ(llm.pause_session("any").error().code, ErrorCode::kClosed);
  EXPECT_EQ(llm.close_session("any").error().code, ErrorCode::kClosed);
  EXPECT_EQ(llm.set_retention("any", {}).error().code, ErrorCode::kClosed);
}

// Does one thread's share; another one may close a session between two calls.
void hint_and_serve(LLM& llm, int thread) {
  for (int turn = 0; turn < 8; ++turn) {
    const std::string session = "s" + std::to_string((thread + turn) % 4);
    serve(llm, (thread + turn) % 4, session);
    EXPECT_TRUE(llm.set_retention(session, {.priority = turn % 2}).ok());
    const Status said =
        turn % 4 == 3 ? llm.close_session(session) : llm.pause_session(session, thread);
    EXPECT_TRUE(said.ok() || said.error().code == ErrorCode::kNotFound);
  }
}

TEST(SessionThreads, ManyMayHintWhileOthersCompute) {
  LLM llm = open_small();
  std::vector<std::thread> threads;
  threads.reserve(6);
  for (int thread = 0; thread < 6; ++thread) {
    threads.emplace_back([&llm, thread] { hint_and_serve(llm, thread); });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  EXPECT_EQ(stat(llm, "blocks_in_use"), 0);
  EXPECT_LE(stat(llm, "sessions"), 4);
}

}  // namespace
}  // namespace quire
