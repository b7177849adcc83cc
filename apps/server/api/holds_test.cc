// Prompts that are held, over the demo model.
#include "api/holds.h"

#include <gtest/gtest.h>

#include <chrono>
#include <string>

#include "testing/api_fixture.h"

namespace quire::server {
namespace {

class HeldPrompts : public DemoApiTest {
 protected:
  Holds& holds() { return *api_.services().holds; }
  json::value ask(const std::string& text, const json::object& more = {}) {
    json::object body{{"prompt", text}, {"max_tokens", 1}};
    for (const auto& member : more) {
      body[member.key()] = member.value();
    }
    const json::value answer = body_of(*client_.post("/v1/completions", body));
    loop_.run();
    return answer;
  }
  static std::int64_t details(const json::value& answer, const char* name) {
    return answer.at("usage").at("prompt_tokens_details").at(name).to_number<std::int64_t>();
  }
};

TEST_F(HeldPrompts, HoldSecondsKeepWholeBlocksThroughAClearedCache) {
  const std::string text(400, 'e');
  const json::value first = ask(text, {{"quire", {{"hold_seconds", 60}}}});
  const std::int64_t written = details(first, "cache_write_tokens");
  EXPECT_GT(written, 0);
  EXPECT_EQ(written % 32, 0);
  EXPECT_EQ(holds().tokens(), written);
  ASSERT_TRUE(demo_engine().chunks()->llm().clear_prefix_cache().ok());
  const json::value second = ask(text);
  EXPECT_GE(details(second, "cached_tokens"), written);
  EXPECT_EQ(details(second, "cache_write_tokens"), 0);
}

TEST_F(HeldPrompts, HoldsEndWithTheirTimeUnlessTheyAreRead) {
  const std::string text(300, 'f');
  (void)ask(text, {{"quire", {{"hold_seconds", 60}}}});
  EXPECT_EQ(holds().count(), 1);
  loop_.advance(std::chrono::seconds(40));
  (void)ask(text);
  loop_.advance(std::chrono::seconds(40));
  EXPECT_EQ(holds().count(), 1);
  loop_.advance(std::chrono::seconds(30));
  EXPECT_EQ(holds().count(), 0);
  EXPECT_EQ(holds().tokens(), 0);
}

TEST_F(HeldPrompts, ATenantsQuotaDropsItsOldestHold) {
  client_.caller =
      std::make_shared<const Caller>(Caller{.tenant = "ada", .limits = {.hold_tokens = 200}});
  (void)ask(std::string(300, 'g'), {{"quire", {{"hold_seconds", 60}}}});
  const std::int64_t one = holds().tokens();
  ASSERT_GT(one, 90);
  (void)ask(std::string(300, 'h'), {{"quire", {{"hold_seconds", 60}}}});
  EXPECT_EQ(holds().count(), 1);
  EXPECT_TRUE(holds().drop_one());
  EXPECT_FALSE(holds().drop_one());
}

TEST_F(HeldPrompts, BreakpointsHoldThePromptUpToTheirPart) {
  const json::value body = {
      {"max_tokens", 1},
      {"messages",
       json::array{json::object{
           {"role", "user"},
           {"content",
            json::array{json::object{{"type", "text"},
                                     {"text", std::string(200, 'i')},
                                     {"prompt_cache_breakpoint", {{"mode", "explicit"}}}},
                        json::object{{"type", "text"}, {"text", std::string(200, 'k')}}}}}}}};
  const json::value answer = body_of(*client_.post("/v1/chat/completions", body));
  loop_.run();
  const std::int64_t written = details(answer, "cache_write_tokens");
  EXPECT_GT(written, 0);
  EXPECT_LT(written, answer.at("usage").at("prompt_tokens").to_number<std::int64_t>() / 2 + 32);
  EXPECT_EQ(holds().tokens(), written);
}

TEST_F(HeldPrompts, TimesOfOpenAIAreRead) {
  json::object body{{"max_tokens", 1},
                    {"messages", json::array{json::object{{"role", "user"},
                                                          {"content", std::string(200, 'l')}}}}};
  body["prompt_cache_options"] = {{"ttl", "5x"}};
  EXPECT_EQ(param_of(*client_.post("/v1/chat/completions", body)), "prompt_cache_options.ttl");
  body["prompt_cache_options"] = {{"ttl", "5m"}};
  body["prompt_cache_retention"] = "in_memory";
  const auto answer = client_.post("/v1/chat/completions", body);
  EXPECT_EQ(answer->header("x-quire-ignored"), "prompt_cache_retention");
  loop_.run();
  EXPECT_EQ(holds().count(), 1);
}

}  // namespace
}  // namespace quire::server
