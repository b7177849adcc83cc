// Connections over a fake wire: grammar, limits, order, times, ends. Nothing here sleeps.
#include <gtest/gtest.h>

#include <chrono>
#include <cstddef>
#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "config.h"
#include "http/request_id.h"
#include "message.h"
#include "testing/connection_fixture.h"
#include "testing/test_length.h"

namespace quire::server {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

TEST_F(ConnectionTest, AnswersARequestAndKeepsTheConnection) {
  const auto wire = connect();
  push(*wire, get("/a"));
  EXPECT_EQ(status_of(wire->to_client), 200);
  EXPECT_TRUE(contains(wire->to_client, "content-length: 2\r\n"));
  EXPECT_TRUE(contains(wire->to_client, "cache-control: no-store\r\n"));
  EXPECT_TRUE(contains(wire->to_client, "\r\ndate: "));
  EXPECT_TRUE(wire->to_client.ends_with("\r\n\r\n/a"));
  wire->to_client.clear();
  push(*wire, get("/b"));
  EXPECT_TRUE(wire->to_client.ends_with("\r\n\r\n/b"));
  EXPECT_FALSE(wire->closed);
  ASSERT_EQ(records_.size(), 2U);
  EXPECT_EQ(records_[1].path, "/b");
  EXPECT_EQ(records_[1].status, 200);
  EXPECT_EQ(records_[1].bytes_out, static_cast<std::int64_t>(wire->to_client.size()));
}

TEST_F(ConnectionTest, ReadsARequestThatComesByteByByte) {
  const auto wire = connect();
  for (const char c : post("Content-Length: 5\r\n", "hello")) {
    push(*wire, {&c, 1});
  }
  EXPECT_TRUE(wire->to_client.ends_with("\r\n\r\n/xhello"));
}

TEST_F(ConnectionTest, ReadsChunkedBodiesAndDropsTrailers) {
  const std::string body = "3\r\nabc\r\n2;x=\"y\"\r\nde\r\n0\r\nhost: evil\r\n\r\n";
  const std::string request = post("Transfer-Encoding: chunked\r\n", body);
  EXPECT_TRUE(ask(request + get("/next")).ends_with("\r\n\r\n/next"));
  const auto wire = connect();
  for (const char c : request) {
    push(*wire, {&c, 1});
  }
  EXPECT_TRUE(wire->to_client.ends_with("\r\n\r\n/xabcde"));
}

TEST_F(ConnectionTest, RefusesWhatTwoServersCouldReadInTwoWays) {
  const std::string h = std::string(kHost);
  for (const std::string& bytes : std::vector<std::string>{
           "GET / HTTP/1.1\n" + h + "\r\n",
           "GET / HTTP/1.1\r\nHost: localhost\n\r\n",
           "GET / HTTP/1.1\r\nHost: loc\ralhost\r\n\r\n",
           "GET / HTTP/1.1\r\nHost : localhost\r\n\r\n",
           "GET / HTTP/1.1\r\n" + h + "A: b\r\n c\r\n\r\n",
           "GET / HTTP/1.1\r\n" + h + "\tA: b\r\n\r\n",
           "GET / HTTP/1.1\r\n" + h + "nocolon\r\n\r\n",
           "GET / HTTP/1.1\r\n" + h + ": novalue\r\n\r\n",
           "GET / HTTP/1.1\r\n" + h + "A(b): c\r\n\r\n",
           "GET / HTTP/1.1\r\n" + h + std::string("A: b\0c\r\n\r\n", 10),
           "GET / HTTP/1.1\r\n" + h + "A: b\x01\r\n\r\n",
           "GET /\xff HTTP/1.1\r\n" + h + "\r\n",
           "GET  / HTTP/1.1\r\n" + h + "\r\n",
           "GET / HTTP/1.1 \r\n" + h + "\r\n",
           "GET /\r\n",
           "GET nopath HTTP/1.1\r\n" + h + "\r\n",
           "CONNECT a:1 HTTP/1.1\r\n" + h + "\r\n",
           "GET / HTTP/1.1\r\n\r\n",
           "GET / HTTP/1.1\r\n" + h + h + "\r\n",
           "\r\n\r\n" + get(),
           "\x16\x03\x01\x02",
           post("Content-Length: 5\r\nTransfer-Encoding: chunked\r\n", "0\r\n\r\n"),
           post("Transfer-Encoding: chunked\r\nContent-Length: 5\r\n", "0\r\n\r\n"),
           post("Content-Length: 5\r\nContent-Length: 5\r\n", "hello"),
           post("Content-Length: 5, 5\r\n", "hello"),
           post("Content-Length: +5\r\n", "hello"),
           post("Content-Length: -5\r\n", "hello"),
           post("Content-Length: 5x\r\n", "hello"),
           post("Content-Length: \r\n", "hello"),
           post("Content-Length: 99999999999999999999\r\n", "hello"),
           post("Transfer-Encoding: gzip, chunked\r\n", "0\r\n\r\n"),
           post("Transfer-Encoding: gzip\r\n", "0\r\n\r\n"),
           post("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n", "0\r\n\r\n"),
           post("Transfer-Encoding: chunked\r\n", "x\r\n\r\n"),
           post("Transfer-Encoding: chunked\r\n", "3\r\nabcd\r\n0\r\n\r\n"),
           post("Transfer-Encoding: chunked\r\n", "3\nabc\r\n0\r\n\r\n"),
           post("Transfer-Encoding: chunked\r\n", "-3\r\nabc\r\n0\r\n\r\n"),
           post("Transfer-Encoding: chunked\r\n", "0x3\r\nabc\r\n0\r\n\r\n"),
           post("Transfer-Encoding: chunked\r\n", "3;" + std::string(20'000, 'x'))}) {
    expect_refused(bytes, 400);
  }
  expect_refused("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505);
  expect_refused("GET / HTTP/3.0\r\n" + h + "\r\n", 505);
  EXPECT_TRUE(asked_.empty());
}

TEST_F(ConnectionTest, BytesBehindARefusedRequestAreNoRequest) {
  const std::string answer = ask("GET / HTTP/1.1\nHost: localhost\r\n\r\n" + get("/smuggled"));
  EXPECT_FALSE(contains(answer, "/smuggled"));
  const std::string large = ask(post("Content-Length: 99999999999\r\n", get("/smuggled")));
  EXPECT_EQ(status_of(large), 413);
  EXPECT_FALSE(contains(large, "/smuggled"));
}

TEST_F(ConnectionTest, RefusesWhatIsTooLarge) {
  const std::string h = std::string(kHost);
  expect_refused("GET /" + std::string(8192, 'a') + " HTTP/1.1\r\n" + h + "\r\n", 414);
  expect_refused("GET /" + std::string(9000, 'a'), 414);
  EXPECT_EQ(status_of(ask("GET /" + std::string(8191, 'a') + " HTTP/1.1\r\n" + h + "\r\n")), 200);
  expect_refused("GET / HTTP/1.1\r\n" + h + "A: " + std::string(17'000, 'a') + "\r\n\r\n", 431);
  expect_refused("GET / HTTP/1.1\r\n" + h + "A: " + std::string(17'000, 'a'), 431);
  std::string many = "GET / HTTP/1.1\r\n" + h;
  for (int i = 0; i < 99; ++i) {
    many += "A" + std::to_string(i) + ": b\r\n";
  }
  EXPECT_EQ(status_of(ask(many + "\r\n")), 200);
  expect_refused(many + "One: more\r\n\r\n", 431);
  expect_refused(post("Content-Length: 33554433\r\n", ""), 413);
  expect_refused(post("Transfer-Encoding: chunked\r\n", "2000001\r\nabc"), 413);
  expect_refused(post("Content-Length: 2\r\nContent-Encoding: gzip\r\n", "{}"), 415);
}

TEST_F(ConnectionTest, AnswersHttp10WithoutKeepAlive) {
  EXPECT_EQ(status_of(ask("GET /x HTTP/1.0\r\n\r\n")), 200);
  EXPECT_TRUE(closed_);
  EXPECT_EQ(status_of(ask("GET /x HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")), 200);
  EXPECT_TRUE(closed_);
}

TEST_F(ConnectionTest, HeadHasTheLengthAndNoBody) {
  const std::string answer = ask("HEAD /abc HTTP/1.1\r\n" + std::string(kHost) + "\r\n");
  EXPECT_TRUE(contains(answer, "content-length: 4\r\n"));
  EXPECT_TRUE(answer.ends_with("\r\n\r\n"));
}

TEST_F(ConnectionTest, SaysContinueAfterTheHeadWasChecked) {
  const auto wire = connect();
  push(*wire, post("Content-Length: 2\r\nExpect: 100-continue\r\n", ""));
  EXPECT_EQ(wire->to_client, "HTTP/1.1 100 Continue\r\n\r\n");
  push(*wire, "ok");
  EXPECT_TRUE(wire->to_client.ends_with("/xok"));
  const std::string refused =
      ask("POST /x HTTP/1.1\r\nHost: evil\r\nContent-Length: 2\r\n"
          "Expect: 100-continue\r\n\r\n");
  EXPECT_EQ(status_of(refused), 403);
  EXPECT_TRUE(closed_);
}

TEST_F(ConnectionTest, TakesIdsOfClientsThatAreWellFormed) {
  const std::string h = std::string(kHost);
  EXPECT_TRUE(contains(ask("GET / HTTP/1.1\r\n" + h + "X-Request-Id: a.b_c:d-1\r\n\r\n"),
                       "\r\nrequest-id: a.b_c:d-1\r\n"));
  EXPECT_TRUE(contains(ask("GET / HTTP/1.1\r\n" + h + "X-Request-Id: a b\r\n\r\n"),
                       "\r\nrequest-id: req_"));
  EXPECT_EQ(new_request_id().size(), 30U);
  EXPECT_NE(new_request_id(), new_request_id());
}

TEST_F(ConnectionTest, AnswersPipelinedRequestsInOrder) {
  echo_ = false;
  const auto wire = connect();
  push(*wire, get("/1") + get("/2") + get("/3"));
  ASSERT_EQ(asked_.size(), 1U);
  for (std::size_t i = 0; i < 3; ++i) {
    ASSERT_EQ(asked_.size(), i + 1);
    EXPECT_EQ(asked_[i].request->path, "/" + std::to_string(i + 1));
    asked_[i].answer->send({.body = asked_[i].request->path});
    loop_.run();
  }
  EXPECT_LT(wire->to_client.find("\r\n\r\n/1"), wire->to_client.find("\r\n\r\n/2"));
  EXPECT_LT(wire->to_client.find("\r\n\r\n/2"), wire->to_client.find("\r\n\r\n/3"));
}

TEST_F(ConnectionTest, GivesUpHeadsBodiesAndIdleConnectionsInTime) {
  const auto idle = connect();
  const auto head = connect();
  push(*head, "GET / HTT");
  loop_.advance(milliseconds(9'999));
  EXPECT_EQ(head->to_client, "");
  loop_.advance(milliseconds(1));
  EXPECT_EQ(status_of(head->to_client), 408);
  EXPECT_TRUE(head->server_ended);
  loop_.advance(seconds(2));
  EXPECT_TRUE(head->closed);
  loop_.advance(milliseconds(62'999));
  EXPECT_FALSE(idle->closed);
  loop_.advance(milliseconds(1));
  EXPECT_TRUE(idle->closed);
  EXPECT_EQ(idle->to_client, "");
}

TEST_F(ConnectionTest, GivesUpBodiesThatAreTooSlow) {
  const auto slow = connect();
  push(*slow, post("Content-Length: 100000\r\n", ""));
  const auto steady = connect();
  push(*steady, post("Content-Length: 100000\r\n", ""));
  for (int i = 0; i < 9; ++i) {
    loop_.advance(seconds(1));
    push(*slow, std::string(1000, 'x'));
    push(*steady, std::string(1200, 'x'));
  }
  loop_.advance(seconds(1));
  EXPECT_EQ(status_of(slow->to_client), 408);
  EXPECT_EQ(steady->to_client, "");
  for (int i = 0; i < 20; ++i) {
    push(*steady, std::string(1200, 'x'));
    loop_.advance(seconds(1));
  }
  EXPECT_EQ(status_of(steady->to_client), 408);
}

TEST_F(ConnectionTest, ClosesWhatIsBeyondTheLimitOfConnections) {
  config_->limits.max_connections = 2;
  make_server();
  const auto first = connect();
  const auto second = connect();
  const auto third = connect();
  EXPECT_FALSE(first->closed || second->closed);
  EXPECT_TRUE(third->closed);
  EXPECT_EQ(server_->stats().idle, 2);
  EXPECT_EQ(server_->stats().refused, 1);
  end(*first);
  EXPECT_EQ(server_->stats().idle, 1);
  EXPECT_FALSE(connect()->closed);
}

TEST_F(ConnectionTest, DrainsWhenTheLastAnswerHasEnded) {
  echo_ = false;
  const auto idle = connect();
  const auto busy = connect();
  push(*busy, get());
  bool rested = false;
  server_->close_when_rested([&] { rested = true; });
  loop_.run();
  EXPECT_FALSE(rested || idle->closed);
  asked_[0].answer->send({.body = "done"});
  loop_.run();
  EXPECT_TRUE(rested);
  EXPECT_TRUE(idle->closed);
  EXPECT_TRUE(busy->to_client.ends_with("done"));
}

TEST_F(ConnectionTest, NoBytesHangOrEndIt) {
  const std::vector<std::string> seeds = {
      get(), post("Content-Length: 5\r\n", "hello"),
      post("Transfer-Encoding: chunked\r\n", "3\r\nabc\r\n0\r\n\r\n"),
      "GET http://localhost/x?y HTTP/1.1\r\nHost: localhost\r\nOrigin: null\r\n\r\n"};
  std::mt19937 random(7);
  const auto below = [&](std::size_t n) { return static_cast<std::size_t>(random() % n); };
  for (int i = 0; i < test_length(30'000, 3000); ++i) {
    std::string bytes = seeds[below(seeds.size())] + seeds[below(seeds.size())];
    for (std::size_t n = below(6); n > 0; --n) {
      const std::size_t at = below(bytes.size());
      switch (below(3)) {
        case 0:
          bytes[at] = static_cast<char>(random());
          break;
        case 1:
          bytes.erase(at, 1 + below(8));
          break;
        default:
          bytes.insert(at, bytes.substr(below(bytes.size()), below(20)));
      }
      bytes += 'x';
    }
    const auto wire = connect();
    while (!bytes.empty()) {
      const std::size_t size = 1 + below(bytes.size());
      push(*wire, bytes.substr(0, size));
      bytes.erase(0, size);
    }
    end(*wire);
    loop_.run();
    EXPECT_TRUE(wire->closed);
    EXPECT_FALSE(contains(wire->to_client, "HTTP/1.1 500"));
  }
  EXPECT_EQ(server_->stats().idle + server_->stats().active, 0);
}

}  // namespace
}  // namespace quire::server
