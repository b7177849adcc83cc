// Tests the gate in front of routing: Host, keys, origins.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <string_view>

#include "keys.h"
#include "testing/connection_fixture.h"

namespace quire::server {
namespace {

using Gate = ConnectionTest;

TEST_F(Gate, HostOnALoopbackAddressMustBeALocalName) {
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

TEST_F(Gate, KeysStandInFrontOfEveryPathButHealth) {
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

TEST_F(Gate, PagesOfOtherOriginsChangeNothing) {
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

TEST_F(Gate, PreflightOfAnAllowedOriginNeedsNoKey) {
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

}  // namespace
}  // namespace quire::server
