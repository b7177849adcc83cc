// How runs of generations begin and end: admission, deadlines, clients that go or read slowly.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <memory>
#include <string>

#include "api/admission.h"
#include "api/rounds.h"
#include "testing/api_fixture.h"

namespace quire::server {
namespace {

using std::chrono::milliseconds;

class Runs : public NullApiTest {
 protected:
  AnswerPtr begin_run(const json::object& more = {}) {
    json::object body{{"prompt", "Ada lives in Foxley"}, {"max_tokens", 100}};
    for (const auto& member : more) {
      body[member.key()] = member.value();
    }
    auto answer = client_.begin("POST", "/v1/completions", json::serialize(body));
    loop_.run();
    return answer;
  }
  void set_stream_interval(int milliseconds) {
    api_.services().rounds =
        std::make_unique<Rounds>(loop_, std::chrono::milliseconds(milliseconds));
  }
  void limit(TenantLimits limits) {
    client_.caller = std::make_shared<const Caller>(
        Caller{.tenant = "ada", .role = Role::kUser, .limits = limits});
  }
};

TEST_F(Runs, AClientThatGoesEndsItsRequest) {
  const auto answer = begin_run({{"stream", true}});
  loop_.advance(milliseconds(3));
  EXPECT_EQ(engine_.running, 1);
  answer->leave();
  EXPECT_EQ(engine_.running, 0);
  EXPECT_EQ(api_.services().admission->inflight(), 0);
  EXPECT_TRUE(api_.services().runs.empty());
}

// Returns how many events with text came.
std::size_t texts_of(const RecordedAnswer& answer) {
  return std::ranges::count_if(events_of(answer), [](const json::value& event) {
    return event.is_object() && !event.at("choices").as_array().empty() &&
           !event.at("choices").at(0).at("text").as_string().empty();
  });
}

TEST_F(Runs, TheFirstTokenIsSentAtOnceAndLaterOnesOnceAnInterval) {
  set_stream_interval(20);
  const auto answer = begin_run({{"stream", true}});
  loop_.advance(milliseconds(1));
  EXPECT_EQ(texts_of(*answer), 1U);
  loop_.advance(milliseconds(19));
  EXPECT_EQ(texts_of(*answer), 1U);
  loop_.advance(milliseconds(1));
  EXPECT_EQ(texts_of(*answer), 2U);
  client_.finish(*answer);
  EXPECT_EQ(texts_of(*answer), 6U);  // 100 tokens, one a millisecond
  EXPECT_EQ(answer->its_facts.completion_tokens, 100);
}

TEST_F(Runs, StreamsThatGiveTokensAreServedInOneRound) {
  set_stream_interval(20);
  const auto early = begin_run({{"stream", true}});
  loop_.advance(milliseconds(15));
  const auto late = begin_run({{"stream", true}});
  loop_.advance(milliseconds(6));
  EXPECT_EQ(texts_of(*early), 2U);
  EXPECT_EQ(texts_of(*late), 2U);
}

TEST_F(Runs, AStreamSlowerThanTheIntervalSendsEachTokenAtOnce) {
  set_stream_interval(20);
  engine_.step_time = milliseconds(50);
  const auto answer = begin_run({{"stream", true}});
  for (std::size_t tokens = 1; tokens < 10; ++tokens) {
    loop_.advance(milliseconds(50));
    EXPECT_EQ(texts_of(*answer), tokens);
  }
}

TEST_F(Runs, AClientThatGoesBetweenTwoRoundsEndsItsRequest) {
  set_stream_interval(20);
  const auto answer = begin_run({{"stream", true}});
  loop_.advance(milliseconds(3));
  answer->leave();
  EXPECT_EQ(engine_.running, 0);
  loop_.advance(milliseconds(40));
  EXPECT_TRUE(api_.services().runs.empty());
}

TEST_F(Runs, AClientThatGoesBeforeTheStartStartsNothing) {
  loop_.hold_work(true);
  const auto answer = begin_run();
  answer->leave();
  loop_.hold_work(false);
  loop_.advance(milliseconds(5));
  EXPECT_EQ(engine_.started, 0);
}

TEST_F(Runs, DeadlinesEndRequestsWith504) {
  const auto answer = begin_run({{"quire", {{"deadline_ms", 20}}}});
  loop_.advance(milliseconds(30));
  EXPECT_EQ(answer->status(), 504);
  EXPECT_EQ(code_of(*answer), "deadline_exceeded");
  EXPECT_EQ(answer->header("x-should-retry"), "false");
  EXPECT_EQ(engine_.running, 0);
}

TEST_F(Runs, RequestsOfABatchHaveTheirOwnPriorities) {
  const json::object second{{"prompt", "Ada"}, {"priority", -7}};
  json::object body{{"requests", json::array{json::object{{"prompt", "Ada"}}, second}}};
  body["quire"] = {{"priority", 2}};
  client_.begin("POST", "/v1/generate", json::serialize(body));
  loop_.run();
  ASSERT_EQ(engine_.requests.size(), 2U);
  EXPECT_EQ(engine_.requests[0].options.priority, 2);
  EXPECT_EQ(engine_.requests[1].options.priority, -7);
}

TEST_F(Runs, DeadlinesAreCountedAsExpiredRequests) {
  const auto shows = [this](const std::string& line) {
    return client_.get("/metrics")->response->body.find("\n" + line + "\n") != std::string::npos;
  };
  EXPECT_TRUE(shows("quire_requests_expired_total 0"));
  begin_run({{"quire", {{"deadline_ms", 20}}}});
  loop_.advance(milliseconds(30));
  for (const char* line : {"quire_requests_expired_total 1", "quire_tokens_drafted_total 0",
                           "quire_tokens_accepted_total 0"}) {
    EXPECT_TRUE(shows(line)) << line;
  }
}

TEST_F(Runs, DeadlinesInAStreamAreAnEventWithoutDone) {
  client_.headers = {{"x-request-timeout-ms", "20"}};
  const auto answer = begin_run({{"stream", true}});
  loop_.advance(milliseconds(30));
  EXPECT_TRUE(answer->failed);
  const auto events = events_of(*answer);
  EXPECT_EQ(events.back().at("error").at("code"), "deadline_exceeded");
  EXPECT_EQ(answer->stream.find("[DONE]"), std::string::npos);
}

TEST_F(Runs, ErrorsOfTheEngineKeepTheirStatusBeforeTheFirstEvent) {
  engine_.failure = Error{
      .code = ErrorCode::kOutOfBlocks, .message = "no room", .needed_bytes = 100, .free_bytes = 10};
  const auto answer = begin_run({{"stream", true}});
  loop_.advance(milliseconds(3));
  EXPECT_EQ(answer->status(), 503);
  EXPECT_EQ(code_of(*answer), "out_of_blocks");
  EXPECT_EQ(body_of(*answer).at("quire").at("needed_bytes"), 100);
  EXPECT_FALSE(answer->header("retry-after").empty());
}

TEST_F(Runs, ErrorsInAStreamEndItWithAnEvent) {
  engine_.failure = Error{.code = ErrorCode::kDevice, .message = "gone"};
  engine_.fail_after = 2;
  const auto answer = begin_run({{"stream", true}});
  loop_.advance(milliseconds(5));
  EXPECT_TRUE(answer->failed);
  EXPECT_EQ(events_of(*answer).back().at("error").at("code"), "device");
}

TEST_F(Runs, SlowReadersGetMergedDeltasAndLoseNothing) {
  const auto answer = begin_run({{"stream", true}, {"max_tokens", 20}});
  loop_.advance(milliseconds(2));
  answer->set_writable(false);
  const int writes = answer->writes;
  loop_.advance(milliseconds(30));
  EXPECT_EQ(answer->writes, writes);
  answer->set_writable(true);
  loop_.run();
  EXPECT_TRUE(answer->ended);
  std::string text;
  for (const json::value& event : events_of(*answer)) {
    text += event.is_object() ? event.at("choices").at(0).at("text").as_string().c_str() : "";
  }
  std::string expected;
  for (int i = 0; i < 20; ++i) {
    expected += " " + std::to_string(i);
  }
  EXPECT_EQ(text, expected);
  EXPECT_LE(answer->writes, writes + 2);
}

TEST_F(Runs, FullQueuesAreRefusedAndValidationErrorsWin) {
  config_->max_inflight = 2;
  const auto first = begin_run();
  const auto second = begin_run();
  const auto third = begin_run();
  EXPECT_EQ(third->status(), 429);
  EXPECT_EQ(code_of(*third), "queue_full");
  EXPECT_GE(std::stoi(third->header("retry-after")), 1);
  EXPECT_FALSE(third->header("retry-after-ms").empty());
  EXPECT_EQ(begin_run({{"temperature", 9}})->status(), 400);
  client_.finish(*first);
  client_.finish(*second);
  EXPECT_EQ(api_.services().admission->inflight(), 0);
  const auto fourth = begin_run();
  EXPECT_FALSE(fourth->over);
}

TEST_F(Runs, ChoicesAndPromptsCountEach) {
  config_->max_inflight = 4;
  EXPECT_EQ(begin_run({{"n", 5}})->status(), 429);
  EXPECT_EQ(begin_run({{"prompt", json::array{"a", "b", "c"}}, {"n", 2}})->status(), 429);
  EXPECT_FALSE(begin_run({{"n", 4}})->over);
}

TEST_F(Runs, QueuedTokensAreLimited) {
  config_->max_queued_tokens = 8;
  engine_.stuck = true;
  EXPECT_FALSE(begin_run()->over);
  EXPECT_EQ(begin_run()->status(), 429);
}

TEST_F(Runs, ATenantsInflightLimitIsAQuota) {
  limit({.max_inflight = 1});
  EXPECT_FALSE(begin_run()->over);
  const auto second = begin_run();
  EXPECT_EQ(second->status(), 429);
  EXPECT_EQ(code_of(*second), "quota_exceeded");
  client_.caller = std::make_shared<const Caller>();
  EXPECT_FALSE(begin_run()->over);
}

TEST_F(Runs, RatesOfATenantFillAgainWithTime) {
  limit({.rpm = 2});
  EXPECT_FALSE(begin_run()->over);
  EXPECT_FALSE(begin_run()->over);
  const auto third = begin_run();
  EXPECT_EQ(code_of(*third), "rate_limited");
  EXPECT_EQ(third->header("retry-after"), "30");
  loop_.advance(std::chrono::seconds(31));
  EXPECT_FALSE(begin_run()->over);
}

TEST_F(Runs, TokensPerMinuteAreReservedAndCorrected) {
  limit({.tpm = 120});
  const auto first = begin_run({{"max_tokens", 60}});
  EXPECT_EQ(code_of(*begin_run({{"max_tokens", 60}})), "rate_limited");
  client_.finish(*first);
  // 60 tokens and the prompt were used, so less is left than another 60 with the prompt need.
  EXPECT_EQ(code_of(*begin_run({{"max_tokens", 60}})), "rate_limited");
  EXPECT_FALSE(begin_run({{"max_tokens", 10}})->over);
}

TEST_F(Runs, PromptsBeyondTheContextSayBothNumbers) {
  const auto answer = begin_run({{"prompt", json::array(3000, 5)}});
  EXPECT_EQ(answer->status(), 400);
  const json::value error = body_of(*answer).at("error");
  EXPECT_EQ(error.at("code"), "context_length_exceeded");
  EXPECT_EQ(error.at("n_prompt_tokens"), 3000);
  EXPECT_EQ(error.at("n_ctx"), 2048);
  EXPECT_NE(std::string(error.at("message").as_string().c_str())
                .find("maximum context length is 2048 tokens"),
            std::string::npos);
  limit({.max_prompt_tokens = 2});
  EXPECT_EQ(code_of(*begin_run()), "context_length_exceeded");
  EXPECT_EQ(engine_.started, 0);
}

TEST_F(Runs, TextsThatCannotFitAreRefusedUnread) {
  const auto answer = begin_run({{"prompt", std::string(2048 * 32 + 1, 'a')}});
  EXPECT_EQ(code_of(*answer), "context_length_exceeded");
}

TEST_F(Runs, OutputsAreCutToTheRoomAndTheTenantsLimit) {
  (void)begin_run({{"max_tokens", 100000}});
  ASSERT_EQ(engine_.requests.size(), 1U);
  const auto prompt = std::get<std::vector<TokenId>>(engine_.requests[0].prompt).size();
  EXPECT_EQ(engine_.requests[0].sampling.max_tokens, 2048 - static_cast<int>(prompt));
  limit({.max_completion_tokens = 7});
  (void)begin_run();
  EXPECT_EQ(engine_.requests[1].sampling.max_tokens, 7);
}

TEST_F(Runs, SaltsKeepTenantsApartAndCacheSaltNarrows) {
  limit({});
  (void)begin_run({{"cache_salt", "x"}});
  client_.caller = std::make_shared<const Caller>();
  (void)begin_run();
  EXPECT_EQ(engine_.requests[0].options.salt, "3:ada1:x");
  EXPECT_EQ(engine_.requests[1].options.salt, "7:default0:");
}

TEST_F(Runs, ShuttingDownEndsThemWithAnError) {
  const auto plain = begin_run();
  const auto stream = begin_run({{"stream", true}});
  loop_.advance(milliseconds(2));
  api_.abort_all();
  EXPECT_EQ(plain->status(), 503);
  EXPECT_EQ(events_of(*stream).back().at("error").at("code"), "draining");
  EXPECT_EQ(engine_.running, 0);
}

TEST_F(Runs, TheFactsOfAnAnswerAreThoseOfItsUsage) {
  const auto answer = begin_run({{"max_tokens", 3}});
  client_.finish(*answer);
  const AnswerFacts& facts = answer->its_facts;
  EXPECT_EQ(facts.route, "/v1/completions");
  EXPECT_EQ(facts.model, "cardfile");
  EXPECT_EQ(facts.completion_tokens, 3);
  EXPECT_EQ(facts.prompt_tokens, body_of(*answer).at("usage").at("prompt_tokens").to_number<int>());
  EXPECT_EQ(facts.finish_reason, "length");
}

}  // namespace
}  // namespace quire::server
