#include <gtest/gtest.h>

#include <string>

#include "testing/api_fixture.h"

namespace quire::server {
namespace {

using Routing = NullApiTest;

TEST_F(Routing, UnknownPathsAreNotFoundWithTheWholeErrorShape) {
  for (const char* const path :
       {"/v2", "/v1/models/", "//v1/models", "/v1//models", "/v1/chat", "/"}) {
    const auto answer = client_.get(path);
    EXPECT_EQ(answer->status(), 404) << path;
    const json::value error = body_of(*answer).at("error");
    EXPECT_EQ(error.at("code"), "not_found");
    EXPECT_EQ(error.at("type"), "invalid_request_error");
    EXPECT_TRUE(error.at("param").is_null());
    EXPECT_TRUE(error.at("message").is_string());
  }
}

TEST_F(Routing, OtherMethodsAreRefusedWithAllow) {
  const auto answer = client_.ask("DELETE", "/v1/models");
  EXPECT_EQ(answer->status(), 405);
  EXPECT_EQ(answer->header("allow"), "GET, HEAD");
  EXPECT_EQ(client_.get("/v1/chat/completions")->header("allow"), "POST");
  EXPECT_EQ(client_.ask("HEAD", "/v1/models")->status(), 200);
  const auto options = client_.ask("OPTIONS", "/v1/completions");
  EXPECT_EQ(options->status(), 204);
  EXPECT_EQ(options->header("allow"), "POST, OPTIONS");
}

TEST_F(Routing, PathsAreDecodedOnce) {
  EXPECT_EQ(client_.get("/v1/models/card%66ile")->status(), 200);
  EXPECT_EQ(client_.get("/v1/mod%65ls")->status(), 200);
  EXPECT_EQ(client_.get("/v1/models/card%2566ile")->status(), 404);
  EXPECT_EQ(client_.get("/v1%2Fmodels")->status(), 404);
}

TEST_F(Routing, PathsThatAreNotUtf8AreRefused) {
  for (const char* const target : {"/v1/sessions/a%B4", "/v1/sequences/%C0%80", "/%ff"}) {
    const auto answer = client_.begin("PUT", target, "{}");
    client_.finish(*answer);
    EXPECT_EQ(answer->status(), 400) << target;
    EXPECT_EQ(code_of(*answer), "invalid_value");
  }
}

TEST_F(Routing, ContentTypeMustBeJson) {
  Request request{.method = "POST", .path = "/tokenize", .body = R"({"prompt":"a"})"};
  EXPECT_EQ(client_.begin(request)->status(), 415);
  request.headers = {{"content-type", "text/plain"}};
  EXPECT_EQ(client_.begin(request)->status(), 415);
  request.headers = {{"content-type", "application/json; charset=latin-1"}};
  EXPECT_EQ(client_.begin(request)->status(), 415);
  request.headers = {{"content-type", "Application/JSON ; charset=\"UTF-8\""}};
  auto answer = client_.begin(request);
  client_.finish(*answer);
  EXPECT_EQ(answer->status(), 200);
}

TEST_F(Routing, IllFormedBodiesAreNamed) {
  const auto code = [&](const std::string& body) {
    const auto answer = client_.ask("POST", "/tokenize", body);
    EXPECT_EQ(answer->status(), 400) << body;
    return code_of(*answer) + " " + param_of(*answer);
  };
  EXPECT_EQ(code("{"), "invalid_json null");
  EXPECT_EQ(code("[]"), "invalid_json null");
  EXPECT_EQ(code("{} x"), "invalid_json null");
  EXPECT_EQ(code("{\"prompt\":\"\xff\"}"), "invalid_json null");
  EXPECT_EQ(code(R"({"prompt":"a","prompt":"b"})"), "invalid_json prompt");
  EXPECT_EQ(code(R"({"messages":[{"role":"user"},{"a":{"b":1,"b":2}}]})"),
            "invalid_json messages[1].a.b");
  EXPECT_EQ(code(R"({"a":1e999})"), "invalid_json a");
  EXPECT_EQ(code(R"({"a":9223372036854775808})"), "invalid_json a");
  EXPECT_EQ(code(R"({"a":123456789012345678901234567890})"), "invalid_json a");
  EXPECT_EQ(code("{\"a\":" + std::string(70, '[') + std::string(70, ']') + "}"),
            "invalid_json null");
  EXPECT_EQ(code(R"({"promt":"a"})"), "unknown_parameter promt");
  EXPECT_EQ(code(R"({"prompt":5})"), "invalid_value prompt");
  EXPECT_EQ(code(R"({"prompt":null})"), "missing_required_parameter prompt");
}

TEST_F(Routing, LargeBodiesAreReadByAWorker) {
  loop_.hold_work(true);
  const json::value body = {{"prompt", std::string(100'000, 'a')}};
  const auto answer = client_.begin("POST", "/tokenize", json::serialize(body));
  loop_.run();
  EXPECT_FALSE(answer->over);
  loop_.hold_work(false);
  client_.finish(*answer);
  EXPECT_EQ(answer->status(), 200);
}

TEST_F(Routing, NothingButHealthIsThereUntilTheModelIs) {
  Api loading(config_, loop_);
  ApiDriver client(loop_, loading);
  for (const char* const path : {"/v1/models", "/v1/completions", "/nothing"}) {
    const auto answer = client.get(path);
    EXPECT_EQ(answer->status(), 503) << path;
    EXPECT_EQ(code_of(*answer), "loading");
    EXPECT_FALSE(answer->header("retry-after").empty());
  }
  EXPECT_EQ(client.get("/live")->status(), 200);
  const auto health = client.get("/health");
  EXPECT_EQ(health->status(), 503);
  EXPECT_EQ(body_of(*health).at("status"), "loading");
  loading.set_engine(engine_);
  EXPECT_EQ(body_of(*client.get("/ready")), json::value({{"status", "ok"}}));
}

TEST_F(Routing, DrainingRefusesWorkAndAnswersTheRest) {
  api_.services().draining = true;
  const auto answer = client_.post("/v1/completions", {{"prompt", "a"}});
  EXPECT_EQ(answer->status(), 503);
  EXPECT_EQ(code_of(*answer), "draining");
  EXPECT_EQ(answer->header("retry-after"), "1");
  EXPECT_TRUE(answer->response->close);
  EXPECT_EQ(client_.get("/v1/models")->status(), 200);
  EXPECT_EQ(body_of(*client_.get("/health")).at("status"), "draining");
}

TEST_F(Routing, AdminPathsNeedTheRole) {
  client_.caller = std::make_shared<const Caller>(Caller{.tenant = "ada", .role = Role::kUser});
  for (const char* const path : {"/metrics", "/get_server_info", "/kv_event_sources"}) {
    const auto answer = client_.get(path);
    EXPECT_EQ(answer->status(), 403) << path;
    EXPECT_EQ(code_of(*answer), "permission_denied");
  }
}

TEST_F(Routing, AbsentEndpointsAreNotImplemented) {
  for (const char* const path :
       {"/v1/embeddings", "/v1/files", "/v1/files/f-1", "/v1/audio/speech"}) {
    const auto answer = client_.post(path, {{"input", "a"}});
    EXPECT_EQ(answer->status(), 501) << path;
    EXPECT_EQ(answer->header("x-should-retry"), "false");
    EXPECT_EQ(code_of(*answer), "not_implemented");
  }
}

TEST_F(Routing, ModelsAreOneBodyForThreeVendors) {
  const json::value body = body_of(*client_.get("/v1/models"));
  EXPECT_EQ(body.at("object"), "list");
  EXPECT_EQ(body.at("data").at(0).at("id"), "cardfile");
  EXPECT_EQ(body.at("data").at(0).at("max_model_len"), 2048);
  EXPECT_EQ(body.at("first_id"), "cardfile");
  EXPECT_EQ(body.at("models").at(0).at("name"), "models/cardfile");
  const auto other = client_.get("/v1/models/other/name");
  EXPECT_EQ(other->status(), 404);
  EXPECT_EQ(code_of(*other), "model_not_found");
}

TEST_F(Routing, StalledEnginesAreUnhealthy) {
  const auto answer =
      client_.begin("POST", "/v1/completions", R"({"prompt":"a","max_tokens":4,"stream":true})");
  loop_.run();  // time stands still, so no token comes
  EXPECT_EQ(client_.get("/health")->status(), 200);
  engine_.stuck = true;
  loop_.advance(std::chrono::seconds(61));
  const auto health = client_.begin("GET", "/health");
  EXPECT_EQ(health->status(), 503);
  EXPECT_EQ(body_of(*health).at("status"), "stalled");
}

}  // namespace
}  // namespace quire::server
