// Connections over a fake wire: grammar, limits, order, streams, times, ends. Nothing here sleeps.
#include <gtest/gtest.h>

#include <chrono>
#include <cstddef>
#include <memory>
#include <random>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "config.h"
#include "http/gate.h"
#include "http/http_server.h"
#include "http/request_id.h"
#include "keys.h"
#include "message.h"
#include "service.h"
#include "testing/fake_channel.h"
#include "testing/manual_loop.h"

namespace quire::server {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr std::string_view kHost = "Host: localhost\r\n";

// A server whose handler keeps requests and answers, or echoes at once.
class ConnectionTest : public ::testing::Test {
 protected:
  struct Asked {
    std::shared_ptr<const Request> request;
    std::shared_ptr<Answer> answer;
  };

  void SetUp() override { make_server(); }
  void make_server() {
    server_ = std::make_unique<HttpServer>(
        loop_, config_, [this](const AccessRecord& record) { records_.push_back(record); });
    handler_ = [this](auto request, auto answer) {
      if (echo_) {
        answer->send({.content_type = "text/plain", .body = request->path + request->body});
      } else {
        asked_.push_back({std::move(request), std::move(answer)});
      }
    };
  }
  std::shared_ptr<FakeWire> connect(ListenerFacts facts = {.port = 8000}) {
    auto wire = std::make_shared<FakeWire>();
    server_->accept(facts, handler_, std::make_unique<FakeChannel>(loop_, wire), "127.0.0.1:5");
    return wire;
  }
  void push(FakeWire& wire, std::string_view bytes) {
    wire.to_server += bytes;
    FakeChannel::wake(loop_, wire);
    loop_.run();
  }
  void end(FakeWire& wire) {
    wire.client_ended = true;
    FakeChannel::wake(loop_, wire);
    loop_.run();
  }
  // Lets the client take `bytes` more.
  void take(FakeWire& wire, std::size_t bytes) {
    wire.room = bytes;
    FakeChannel::wake(loop_, wire);
    loop_.run();
  }
  // Returns what a fresh connection answers to `bytes`.
  std::string ask(std::string_view bytes) {
    const auto wire = connect();
    push(*wire, bytes);
    closed_ = wire->server_ended || wire->closed;
    return wire->to_client;
  }
  static std::string get(std::string_view path = "/x") {
    return "GET " + std::string(path) + " HTTP/1.1\r\n" + std::string(kHost) + "\r\n";
  }
  static std::string post(std::string_view fields, std::string_view body) {
    return "POST /x HTTP/1.1\r\n" + std::string(kHost) + std::string(fields) + "\r\n" +
           std::string(body);
  }
  static int status_of(std::string_view answer) {
    return answer.starts_with("HTTP/1.1 ") ? std::stoi(std::string(answer.substr(9, 3))) : 0;
  }
  void expect_refused(std::string_view bytes, int status) {
    const std::string answer = ask(bytes);
    EXPECT_EQ(status_of(answer), status) << bytes.substr(0, 200) << "\n->\n" << answer;
    EXPECT_NE(answer.find("x-request-id: req_"), std::string::npos) << answer;
    EXPECT_NE(answer.find(R"("error":{)"), std::string::npos) << answer;
    EXPECT_NE(answer.find("connection: close"), std::string::npos) << answer;
    EXPECT_TRUE(closed_) << bytes.substr(0, 200);
  }
  std::shared_ptr<Config> config_ = std::make_shared<Config>();
  ManualLoop loop_;
  Handler handler_;
  std::vector<Asked> asked_;
  std::vector<AccessRecord> records_;
  bool echo_ = true;
  bool closed_ = false;
  std::unique_ptr<HttpServer> server_;  // ends before what it tells
};

bool contains(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

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

TEST_F(ConnectionTest, ReadsAtMost16KiBAheadOfAStream) {
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

TEST_F(ConnectionTest, StreamsChunksAndEndsThem) {
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

TEST_F(ConnectionTest, HeadOfAStreamGoesOutAfterASecond) {
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

TEST_F(ConnectionTest, FailureBeforeTheFirstEventKeepsItsStatus) {
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

TEST_F(ConnectionTest, PingsASilentStreamEvery15Seconds) {
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

TEST_F(ConnectionTest, HalfCloseEndsARequestThatRuns) {
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

TEST_F(ConnectionTest, SlowReaderIsHeldAt1MiBAndEndedAfterAMinute) {
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

TEST_F(ConnectionTest, AnswerThatIsDroppedFails) {
  echo_ = false;
  const auto wire = connect();
  push(*wire, get());
  asked_.clear();
  loop_.run();
  EXPECT_EQ(status_of(wire->to_client), 500);
}

TEST_F(ConnectionTest, HandlerThatThrowsFailsItsRequestAlone) {
  handler_ = [](auto, auto) { throw std::runtime_error("a fault"); };
  const auto wire = connect();
  push(*wire, get() + get());
  EXPECT_EQ(status_of(wire->to_client), 500);
  EXPECT_EQ(records_.size(), 2U);
  EXPECT_FALSE(wire->closed);
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
  for (int i = 0; i < 3000; ++i) {
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

// --- What stands in front of routing ---

TEST_F(ConnectionTest, HostOnALoopbackAddressMustBeALocalName) {
  for (const char* host : {"localhost", "LocalHost:1", "127.0.0.1:8000", "[::1]", "[::1]:80"}) {
    EXPECT_EQ(status_of(ask("GET / HTTP/1.1\r\nHost: " + std::string(host) + "\r\n\r\n")), 200)
        << host;
  }
  for (const char* host : {"evil.example", "localhost.evil", "127.0.0.1.evil", "", "127.0.0.2"}) {
    EXPECT_EQ(status_of(ask("GET / HTTP/1.1\r\nHost: " + std::string(host) + "\r\n\r\n")), 403)
        << host;
  }
  EXPECT_EQ(status_of(ask("GET http://evil/ HTTP/1.1\r\nHost: localhost\r\n\r\n")), 403);
  config_->allow_host = {"evil.example"};
  EXPECT_EQ(status_of(ask("GET / HTTP/1.1\r\nHost: evil.example:1\r\n\r\n")), 200);
}

TEST_F(ConnectionTest, KeysStandInFrontOfEveryPathButHealth) {
  auto keys = std::make_shared<KeyTable>();
  ASSERT_TRUE(keys->add_key("sk-1").ok());
  ASSERT_TRUE(keys->add_key("sk-2").ok());
  config_->keys = keys;
  const auto with = [&](std::string_view path, std::string_view fields) {
    return status_of(ask("GET " + std::string(path) + " HTTP/1.1\r\n" + std::string(kHost) +
                         std::string(fields) + "\r\n"));
  };
  for (const char* path : {"/live", "/health", "/ready", "/ping"}) {
    EXPECT_EQ(with(path, ""), 200) << path;
  }
  for (const char* path :
       {"/", "/health/", "//health", "/%68ealth", "/Health", "/health/../v1/models", "/v1/models",
        "/v1/models?key=sk-1", "/metrics"}) {
    EXPECT_EQ(with(path, ""), 401) << path;
    EXPECT_EQ(with(path, "Authorization: Bearer sk-1\r\n"), 200) << path;
  }
  EXPECT_EQ(with("/x", "X-Api-Key: sk-1\r\n"), 200);
  EXPECT_EQ(with("/x", "x-goog-api-key: sk-2\r\n"), 200);
  EXPECT_EQ(with("/v1beta/models?key=sk-1", ""), 200);
  EXPECT_EQ(with("/x", "Authorization: Bearer sk-3\r\n"), 401);
  EXPECT_EQ(with("/x", "Authorization: Basic sk-1\r\n"), 401);
  EXPECT_EQ(with("/x", "Authorization: Bearer sk-1\r\nX-Api-Key: sk-2\r\n"), 401);
  EXPECT_EQ(with("/x", "Authorization: Bearer sk-1\r\nX-Api-Key: sk-1\r\n"), 200);
  EXPECT_TRUE(contains(ask(get()), "\r\nwww-authenticate: Bearer\r\n"));
}

TEST_F(ConnectionTest, PagesOfOtherOriginsChangeNothing) {
  const auto with = [&](std::string_view method, std::string_view origin) {
    return status_of(ask(std::string(method) + " / HTTP/1.1\r\n" + std::string(kHost) +
                         "Origin: " + std::string(origin) + "\r\n\r\n"));
  };
  EXPECT_EQ(with("POST", "http://evil.example"), 403);
  EXPECT_EQ(with("DELETE", "null"), 403);
  EXPECT_EQ(with("GET", "http://evil.example"), 200);
  EXPECT_EQ(with("POST", "http://localhost:8000"), 200);
  EXPECT_EQ(with("POST", "http://localhost:9000"), 403);
  config_->cors = {"http://app.example"};
  EXPECT_EQ(with("POST", "http://app.example"), 200);
}

TEST_F(ConnectionTest, PreflightOfAnAllowedOriginNeedsNoKey) {
  const std::string preflight = "OPTIONS /v1/x HTTP/1.1\r\n" + std::string(kHost) +
                                "Origin: http://app.example\r\n"
                                "Access-Control-Request-Method: POST\r\n\r\n";
  EXPECT_FALSE(contains(ask(preflight), "access-control"));
  auto keys = std::make_shared<KeyTable>();
  ASSERT_TRUE(keys->add_key("sk-1").ok());
  config_->keys = keys;
  EXPECT_EQ(status_of(ask(preflight)), 401);
  config_->cors = {"http://app.example"};
  const std::string answer = ask(preflight);
  EXPECT_EQ(status_of(answer), 204);
  EXPECT_TRUE(contains(answer, "access-control-allow-origin: http://app.example\r\n"));
  EXPECT_TRUE(contains(answer, "access-control-max-age: 600\r\n"));
  EXPECT_FALSE(contains(answer, "allow-credentials"));
  EXPECT_FALSE(contains(answer, "content-length"));
  const std::string request = ask("GET / HTTP/1.1\r\n" + std::string(kHost) +
                                  "Origin: http://app.example\r\nX-Api-Key: sk-1\r\n\r\n");
  EXPECT_TRUE(contains(request, "access-control-expose-headers: x-request-id"));
}

TEST(Keys, FilesOfKeysSayWhoAsks) {
  KeyTable keys;
  const std::string digest = hash_key("k");
  EXPECT_EQ(digest, "8254c329a92850f6d539dd376f4816ee2764517da5e0235514af433164480d7a");
  ASSERT_TRUE(keys.add_json(R"({"keys":[{"sha256":")" + digest +
                                R"(","tenant":"ada","role":"user","limits":{"rpm":5}}]})",
                            "f")
                  .ok());
  ASSERT_NE(keys.find("k"), nullptr);
  EXPECT_EQ(keys.find("k")->tenant, "ada");
  EXPECT_EQ(keys.find("k")->role, Role::kUser);
  EXPECT_EQ(keys.find("k")->limits.rpm, 5);
  EXPECT_EQ(keys.find("other"), nullptr);
  EXPECT_FALSE(keys.add_key("k").ok());  // tenant default, too
  for (const char* bad : {"", "[]", "{}", R"({"keys":[]})", R"({"keys":[{}]})",
                          R"({"keys":[{"sha256":"12","tenant":"a"}]})",
                          R"({"keys":[{"tenant":"a"}]})", R"({"keys":1})"}) {
    KeyTable table;
    EXPECT_FALSE(table.add_json(bad, "f").ok()) << bad;
  }
  KeyTable lines;
  EXPECT_TRUE(lines.add_lines("a\r\n\n b \n", "f").ok());
  EXPECT_NE(lines.find("b"), nullptr);
  EXPECT_FALSE(KeyTable().add_lines("\n", "f").ok());
  EXPECT_FALSE(KeyTable().add_lines("two words\n", "f").ok());
}

}  // namespace
}  // namespace quire::server
