// /metrics: counters agree with answers, and gauges with what is there.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <string>
#include <string_view>

#include "api/call.h"
#include "http/reactor.h"
#include "http/turn_watch.h"
#include "loop.h"
#include "quire/chunks.h"
#include "testing/tenant_fixture.h"

namespace quire::server {
namespace {

using std::chrono::milliseconds;

// Returns the value of a line of /metrics, or -1.
double value_of(const std::string& text, std::string_view series) {
  const std::string line = "\n" + std::string(series) + " ";
  const std::size_t at = text.find(line);
  return at == std::string::npos ? -1 : std::strtod(text.c_str() + at + line.size(), nullptr);
}

constexpr const char* kModelLabels = "{engine=\"0\",model_name=\"cardfile\"}";

class NullMetrics : public NullApiTest {
 protected:
  double value(const std::string& series) {
    return value_of(client_.get("/metrics")->response->body, series);
  }
};

TEST_F(NullMetrics, StepsCountWithTheirMeanAndTheirSum) {
  const std::string name = "vllm:iteration_tokens_total";
  loop_.advance(milliseconds(1000));
  engine_.counters.engine.steps = 4;
  engine_.counters.engine.tokens_computed = 400;
  loop_.advance(milliseconds(1000));
  engine_.counters.engine.steps = 5004;
  engine_.counters.engine.tokens_computed = 5400;
  loop_.advance(milliseconds(1000));
  EXPECT_EQ(value(name + "_count" + kModelLabels), 5004);
  EXPECT_EQ(value(name + "_sum" + kModelLabels), 5400);
  EXPECT_EQ(value(name + "_bucket{engine=\"0\",model_name=\"cardfile\",le=\"1\"}"), 5000);
  EXPECT_EQ(value(name + "_bucket{engine=\"0\",model_name=\"cardfile\",le=\"64\"}"), 5000);
  EXPECT_EQ(value(name + "_bucket{engine=\"0\",model_name=\"cardfile\",le=\"128\"}"), 5004);
}

TEST_F(NullMetrics, TasksThatHeldTheThreadAreCounted) {
  EXPECT_EQ(value("quire_io_blocked_total"), 0);
  loop_.counted_turns = {.blocked = 3, .blocked_seconds = 0.5};
  EXPECT_EQ(value("quire_io_blocked_total"), 3);
  EXPECT_EQ(value("quire_io_blocked_seconds_total"), 0.5);
}

TEST(TurnWatch, CountsTasksOfMoreThanAMillisecond) {
  TurnWatch watch;
  watch.note(milliseconds(1));
  EXPECT_EQ(watch.turns().blocked, 0);
  watch.note(milliseconds(3));
  watch.note(std::chrono::microseconds(1500));
  EXPECT_EQ(watch.turns().blocked, 2);
  EXPECT_NEAR(watch.turns().blocked_seconds, 0.0045, 1e-9);
}

// Holds the thread that calls.
void hold_for(Loop::Clock::duration time) {
  const auto end = Loop::Clock::now() + time;
  while (Loop::Clock::now() < end) {
  }
}

TEST(TurnWatch, SeesWhatRunsOnTheThreadOfAReactor) {
  Reactor reactor(1);
  Loop& loop = reactor.loop();
  LoopTurns posted;
  loop.post([&] {
    hold_for(milliseconds(2));
    loop.post([&] {
      posted = loop.turns();
      loop.after(milliseconds(0), [&] {
        hold_for(milliseconds(2));
        loop.post([&] { reactor.stop(); });
      });
    });
  });
  reactor.run();
  EXPECT_GE(posted.blocked, 1);
  EXPECT_GE(loop.turns().blocked, posted.blocked + 1);
  EXPECT_GE(loop.turns().blocked_seconds, 0.004);
}

class DemoMetrics : public TenantTest {
 protected:
  std::string text() {
    become("root", Role::kAdmin);
    return client_.get("/metrics")->response->body;
  }
};

TEST_F(DemoMetrics, ChunksOfAllTenantsCountHoweverTheyWent) {
  const auto contexts = [&] { return value_of(text(), "quire_chunks{type=\"context\"}"); };
  const double before = contexts();
  ASSERT_GE(before, 0);
  become(name_ + " a");
  add_chunk("Card 1. Ada keeps a goose.");
  add_chunk("Card 2. Lars keeps a lantern.");
  become(name_ + " b");
  add_chunk("Card 1. Ada keeps a goose.");
  EXPECT_EQ(contexts(), before + 3);
  // Without a call of the tenant's own.
  ChunkedLLM& llm = *demo_engine().chunks();
  ASSERT_TRUE(llm.clear_chunks({}, engine_salt(name_ + " a")).ok());
  EXPECT_EQ(contexts(), before + 1);
}

TEST_F(DemoMetrics, MissesCountForEachAnswer) {
  const std::string series = "quire_misses_total{reason=\"never_seen\"}";
  const double before = value_of(text(), series);
  ASSERT_GE(before, 0);
  become(name_);
  const json::value request{{"prompt", std::string(200, 'q')}, {"max_tokens", 1}};
  const json::value body = body_of(*client_.post("/v1/completions", request));
  EXPECT_FALSE(body.at("quire").as_object().contains("parts"));
  EXPECT_EQ(value_of(text(), series), before + 1);
  for (const char* const reason : {"differs", "evicted", "cleared", "last_block", "query",
                                   "other_anchor", "computing_is_faster", "cache_off"}) {
    EXPECT_GE(value_of(text(), "quire_misses_total{reason=\"" + std::string(reason) + "\"}"), 0)
        << reason;
  }
}

}  // namespace
}  // namespace quire::server
