// ConnectionTest: a server whose clients are the test. All tests of connections share it.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "config.h"
#include "http/gate.h"
#include "http/http_server.h"
#include "message.h"
#include "service.h"
#include "testing/fake_channel.h"
#include "testing/manual_loop.h"

namespace quire::server {

inline constexpr std::string_view kHost = "Host: localhost\r\n";

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

inline bool contains(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

}  // namespace quire::server
