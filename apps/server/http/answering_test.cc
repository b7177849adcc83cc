// Answers over a fake wire: streams, readers that are slow, clients that go, handlers that fail.
#include <gtest/gtest.h>

#include <chrono>
#include <cstddef>
#include <stdexcept>
#include <string>
#include <vector>

#include "message.h"
#include "testing/connection_fixture.h"

namespace quire::server {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

using Answering = ConnectionTest;

TEST_F(Answering, ReadsAtMost16KiBAheadOfAStream) {
  echo_ = false;
  const auto wire = connect();
  push(*wire, get());
  asked_[0].answer->begin({.head = {.content_type = "text/event-stream"}});
  push(*wire, std::string(100'000, 'x'));
  EXPECT_EQ(wire->to_server.size(), 100'000U - (16U << 10));
  std::vector<Gone> gone;
  asked_[0].answer->on_gone([&](Gone why) { gone.push_back(why); });
  wire->client_ended = true;  // behind bytes that nobody reads
  loop_.advance(milliseconds(100));
  EXPECT_EQ(gone, std::vector{Gone::kClient});
}

TEST_F(Answering, StreamsChunksAndEndsThem) {
  echo_ = false;
  const auto wire = connect();
  push(*wire, get());
  Answer& answer = *asked_[0].answer;
  answer.begin({.head = {.content_type = "text/event-stream"}});
  loop_.run();
  EXPECT_EQ(wire->to_client, "");
  answer.write("data: 1\n\n");
  answer.write("data: 2\n\n");
  answer.end();
  loop_.run();
  EXPECT_TRUE(contains(wire->to_client, "transfer-encoding: chunked\r\n"));
  EXPECT_TRUE(contains(wire->to_client, "x-accel-buffering: no\r\n"));
  EXPECT_TRUE(wire->to_client.ends_with("9\r\ndata: 1\n\n\r\n9\r\ndata: 2\n\n\r\n0\r\n\r\n"));
  push(*wire, get("/again"));
  EXPECT_EQ(asked_.size(), 2U);
}

TEST_F(Answering, HeadOfAStreamGoesOutAfterASecond) {
  echo_ = false;
  const auto wire = connect();
  push(*wire, get());
  asked_[0].answer->begin({.head = {.content_type = "text/event-stream"}});
  loop_.advance(milliseconds(999));
  EXPECT_EQ(wire->to_client, "");
  loop_.advance(milliseconds(1));
  EXPECT_EQ(status_of(wire->to_client), 200);
  asked_[0].answer->fail({.status = 400}, "data: error\n\n");
  loop_.run();
  EXPECT_TRUE(contains(wire->to_client, "data: error\n\n"));
  EXPECT_TRUE(wire->server_ended);
}

TEST_F(Answering, FailureBeforeTheFirstEventKeepsItsStatus) {
  echo_ = false;
  const auto wire = connect();
  push(*wire, get());
  asked_[0].answer->begin({.head = {.content_type = "text/event-stream"}});
  asked_[0].answer->fail({.status = 429, .body = "{}"}, "data: error\n\n");
  loop_.run();
  EXPECT_EQ(status_of(wire->to_client), 429);
  EXPECT_FALSE(contains(wire->to_client, "data: error"));
  EXPECT_FALSE(wire->server_ended);
}

TEST_F(Answering, PingsASilentStreamEvery15Seconds) {
  echo_ = false;
  const auto wire = connect();
  push(*wire, get());
  Answer& answer = *asked_[0].answer;
  answer.begin({.head = {.content_type = "text/event-stream"}, .ping = ": ping\n\n"});
  answer.write("data: 1\n\n");
  loop_.advance(seconds(14));
  answer.write("data: 2\n\n");
  loop_.advance(milliseconds(14'999));
  EXPECT_FALSE(contains(wire->to_client, ": ping"));
  loop_.advance(milliseconds(1));
  EXPECT_TRUE(contains(wire->to_client, ": ping\n\n"));
  wire->to_client.clear();
  loop_.advance(seconds(15));
  EXPECT_TRUE(contains(wire->to_client, ": ping\n\n"));
}

TEST_F(Answering, HalfCloseEndsARequestThatRuns) {
  echo_ = false;
  const auto wire = connect();
  push(*wire, get());
  std::vector<Gone> gone;
  asked_[0].answer->on_gone([&](Gone why) { gone.push_back(why); });
  end(*wire);
  EXPECT_EQ(gone, std::vector{Gone::kClient});
  EXPECT_TRUE(wire->closed);
  ASSERT_EQ(records_.size(), 1U);
  EXPECT_EQ(records_[0].status, 499);
  asked_[0].answer->send({.body = "late"});
  loop_.run();
  EXPECT_EQ(wire->to_client, "");
  bool told = false;
  asked_[0].answer->on_gone([&](Gone) { told = true; });
  EXPECT_TRUE(told);
}

TEST_F(Answering, SlowReaderIsHeldAt1MiBAndEndedAfterAMinute) {
  echo_ = false;
  const auto wire = connect();
  wire->room = 0;
  push(*wire, get());
  Answer& answer = *asked_[0].answer;
  int again = 0;
  std::vector<Gone> gone;
  answer.on_writable([&] { ++again; });
  answer.on_gone([&](Gone why) { gone.push_back(why); });
  answer.begin({.head = {.content_type = "text/event-stream"}});
  answer.write(std::string(1 << 20, 'x'));
  loop_.run();
  EXPECT_FALSE(answer.writable());
  take(*wire, 4096);
  EXPECT_TRUE(answer.writable());
  EXPECT_EQ(again, 1);
  loop_.advance(seconds(59));
  EXPECT_TRUE(gone.empty());
  take(*wire, 1);
  loop_.advance(seconds(59));
  EXPECT_TRUE(gone.empty());
  loop_.advance(seconds(1));
  EXPECT_EQ(gone, std::vector{Gone::kSlowReader});
  EXPECT_TRUE(wire->closed);
}

TEST_F(Answering, AnswerThatIsDroppedFails) {
  echo_ = false;
  const auto wire = connect();
  push(*wire, get());
  asked_.clear();
  loop_.run();
  EXPECT_EQ(status_of(wire->to_client), 500);
}

TEST_F(Answering, HandlerThatThrowsFailsItsRequestAlone) {
  handler_ = [](auto, auto) { throw std::runtime_error("a fault"); };
  const auto wire = connect();
  push(*wire, get() + get());
  EXPECT_EQ(status_of(wire->to_client), 500);
  EXPECT_EQ(records_.size(), 2U);
  EXPECT_FALSE(wire->closed);
}

}  // namespace
}  // namespace quire::server
