// An API over the demo model with a tenant for each test, so that tests do not see each other.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "testing/api_fixture.h"

namespace quire::server {

class TenantTest : public DemoApiTest {
 protected:
  TenantTest() { become(name_); }

  // Asks as another tenant from now on.
  void become(const std::string& tenant, Role role = Role::kUser, TenantLimits limits = {}) {
    client_.caller =
        std::make_shared<const Caller>(Caller{.tenant = tenant, .role = role, .limits = limits});
  }
  // Returns the body of an answer with that status.
  json::value expect(const AnswerPtr& answer, int status) {
    EXPECT_EQ(answer->status(), status) << (answer->response ? answer->response->body : "");
    return body_of(*answer);
  }
  json::value made(const std::string& target, const json::value& body, int status = 201) {
    return expect(client_.post(target, body), status);
  }
  static std::string text(const json::value& value) {
    return std::string(value.as_string().c_str());
  }
  // Registers a chunk and returns its id.
  std::string add_chunk(const std::string& content, const std::string& type = "context") {
    const auto answer = client_.post("/v1/chunks", {{"content", content}, {"type", type}});
    EXPECT_LT(answer->status(), 300) << answer->response->body;
    return text(body_of(*answer).at("chunk_id"));
  }

  const std::string name_ = ::testing::UnitTest::GetInstance()->current_test_info()->name();
};

}  // namespace quire::server
