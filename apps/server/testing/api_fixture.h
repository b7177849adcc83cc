// Shares an API over a NullEngine or the demo model, and one-line requests, between tests of the
// API.
#pragma once

#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "api/api.h"
#include "api/llm_engine.h"
#include "config.h"
#include "keys.h"
#include "message.h"
#include "testing/manual_loop.h"
#include "testing/null_engine.h"
#include "testing/recorded_answer.h"

namespace quire::server {

namespace json = boost::json;

// Returns the path of the demo model: below the working folder of the test, or else in the source
// tree.
inline std::string model_path() {
  const std::string path = "models/cardfile/model";
  return std::filesystem::exists(path) ? path : QUIRE_SOURCE_DIR "/" + path;
}

inline std::shared_ptr<Config> test_config() {
  auto config = std::make_shared<Config>();
  config->model = model_path();
  config->alias = {"cardfile"};
  config->engine.threads = 2;
  return config;
}

using AnswerPtr = std::shared_ptr<RecordedAnswer>;

// Sends requests to an API whose loop is the test's thread.
class ApiDriver {
 public:
  ApiDriver(ManualLoop& loop, Api& api) : loop_(loop), api_(api) {}

  // Begins a request, and runs what can run without the engine.
  AnswerPtr begin(Request request) {
    auto answer = std::make_shared<RecordedAnswer>();
    if (request.caller == nullptr) {
      request.caller = caller;
    }
    if (request.id.empty()) {
      request.id = "req_test";
    }
    api_.handle(std::make_shared<const Request>(std::move(request)), answer);
    return answer;
  }
  AnswerPtr begin(std::string method, std::string target, std::string body = {}) {
    Request request{
        .method = std::move(method), .path = std::move(target), .body = std::move(body)};
    if (const auto at = request.path.find('?'); at != std::string::npos) {
      request.query = request.path.substr(at + 1);
      request.path.resize(at);
    }
    if (!request.body.empty()) {
      request.headers.push_back({"content-type", "application/json"});
    }
    for (const HeaderField& field : headers) {
      request.headers.push_back(field);
    }
    return begin(std::move(request));
  }
  // Runs until the answer is over.
  AnswerPtr ask(std::string method, std::string target, std::string body = {}) {
    AnswerPtr answer = begin(std::move(method), std::move(target), std::move(body));
    finish(*answer);
    return answer;
  }
  AnswerPtr post(std::string target, const json::value& body) {
    return ask("POST", std::move(target), json::serialize(body));
  }
  AnswerPtr get(std::string target) { return ask("GET", std::move(target)); }
  // Waits for the end of an answer. With a NullEngine: moves time on.
  void finish(RecordedAnswer& answer) {
    if (moves_time) {
      for (int i = 0; i < 100'000 && !answer.over; ++i) {
        loop_.advance(std::chrono::milliseconds(1));
      }
    } else {
      loop_.run_until([&] { return answer.over; });
    }
    loop_.run_posted();  // as a socket does, on which the next request comes later
    ASSERT_TRUE(answer.over);
  }

  std::shared_ptr<const Caller> caller = std::make_shared<const Caller>();
  std::vector<HeaderField> headers;
  bool moves_time = false;

 private:
  ManualLoop& loop_;
  Api& api_;
};

// Returns the JSON of a response; fails the test where there is none.
inline json::value body_of(const RecordedAnswer& answer) {
  if (!answer.response) {
    ADD_FAILURE() << "no response, but a stream: " << answer.stream;
    return nullptr;
  }
  json::error_code ec;
  json::value value = json::parse(answer.response->body, ec);
  EXPECT_FALSE(ec) << ec.message() << ": " << answer.response->body;
  return value;
}

// Returns `error.code` of a response.
inline std::string code_of(const RecordedAnswer& answer) {
  const json::value body = body_of(answer);
  const json::value* const code =
      body.is_object() && body.as_object().if_contains("error") != nullptr
          ? body.at("error").as_object().if_contains("code")
          : nullptr;
  return code != nullptr && code->is_string() ? std::string(code->as_string().c_str())
                                              : std::string();
}
inline std::string param_of(const RecordedAnswer& answer) {
  const json::value body = body_of(answer);
  const json::value& param = body.at("error").at("param");
  return param.is_string() ? std::string(param.as_string().c_str()) : std::string("null");
}

// Returns the JSON of each event of a stream. "[DONE]" is the string of that name.
inline std::vector<json::value> events_of(const RecordedAnswer& answer) {
  std::vector<json::value> events;
  std::string_view rest = answer.stream;
  while (!rest.empty()) {
    const std::size_t end = rest.find("\n\n");
    if (end == std::string_view::npos) {
      ADD_FAILURE() << "an event without end: " << rest;
      break;
    }
    const std::string_view event = rest.substr(0, end);
    rest.remove_prefix(end + 2);
    if (event.starts_with(":")) {
      continue;
    }
    EXPECT_TRUE(event.starts_with("data: ")) << event;
    const std::string_view data = event.substr(6);
    events.push_back(data == "[DONE]" ? json::value("[DONE]")
                                      : json::parse({data.data(), data.size()}));
  }
  return events;
}

// An API over an engine that computes nothing; time is the test's.
class NullApiTest : public ::testing::Test {
 protected:
  NullApiTest()
      : config_(test_config()),
        engine_(loop_, Tokenizer::open(model_path()).value()),
        api_(config_, loop_),
        client_(loop_, api_) {
    client_.moves_time = true;
    api_.set_engine(engine_);
  }

  std::shared_ptr<Config> config_;
  ManualLoop loop_;
  NullEngine engine_;
  Api api_;
  ApiDriver client_;
};

// The engine may ring until it is closed, so the loop outlives it.
inline ManualLoop& demo_loop() {
  static ManualLoop loop;
  return loop;
}
// An API over the demo model. The engine is opened once for all tests of a program.
inline LlmEngine& demo_engine() {
  demo_loop();
  static const std::unique_ptr<LlmEngine> engine = LlmEngine::open(*test_config()).value();
  return *engine;
}
class DemoApiTest : public ::testing::Test {
 protected:
  DemoApiTest() : config_(test_config()), api_(config_, loop_), client_(loop_, api_) {
    api_.set_engine(demo_engine());
  }

  std::shared_ptr<Config> config_;
  ManualLoop& loop_ = demo_loop();
  Api api_;
  ApiDriver client_;
};

}  // namespace quire::server
