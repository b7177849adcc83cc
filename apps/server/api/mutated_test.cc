// Requests that are nearly right: none ends the process, and none is answered with a 5xx but 501,
// 503 and 504.
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <string>
#include <string_view>

#include "testing/api_fixture.h"
#include "testing/mutated_requests.h"
#include "testing/test_length.h"

namespace quire::server {
namespace {

using Mutated = NullApiTest;
using DemoMutated = DemoApiTest;

void expect_answered(const Request& request, const RecordedAnswer& answer) {
  const std::string what = request.method + " " + request.path + "\n" + request.body;
  ASSERT_TRUE(answer.over) << what;
  const int status = answer.status();
  EXPECT_TRUE(status < 500 || status == 501 || status == 503 || status == 504)
      << status << " for " << what;
  EXPECT_GE(status, 200) << what;
  if (status >= 400 && request.path != "/health") {
    const json::value body = body_of(answer);
    EXPECT_TRUE(body.at("error").at("message").is_string()) << what;
    EXPECT_TRUE(body.at("error").as_object().contains("param")) << what;
  }
}

TEST_F(Mutated, NoneIsAnErrorOfTheServer) {
  MutatedRequests requests(1);
  for (int i = 0; i < test_length(50'000, 5000); ++i) {
    const Request request = requests.next();
    const auto answer = client_.begin(request);
    client_.finish(*answer);
    expect_answered(request, *answer);
  }
  EXPECT_EQ(engine_.running, 0);
  EXPECT_TRUE(api_.services().runs.empty());
}

TEST_F(DemoMutated, TheModelsServerAnswersThem) {
  MutatedRequests requests(2);
  for (int i = 0; i < test_length(3000, 300); ++i) {
    Request request = requests.next();
    const auto answer = client_.begin(request);
    // Some would generate thousands of tokens: their clients leave.
    loop_.run_until([&] { return answer->over; }, std::chrono::seconds(1));
    if (!answer->over) {
      answer->leave();
      continue;
    }
    expect_answered(request, *answer);
  }
  loop_.run();
  EXPECT_TRUE(api_.services().runs.empty());
}

}  // namespace
}  // namespace quire::server
