#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "testing/tenant_fixture.h"

namespace quire::server {
namespace {

using testing::HasSubstr;

class SequenceApi : public TenantTest {
 protected:
  json::value begin_with(const std::string& prompt) {
    return made("/v1/sequences", {{"prompt", prompt}});
  }
  std::string target(const json::value& sequence, const std::string& verb = "") {
    return "/v1/sequences/" + text(sequence.at("id")) + (verb.empty() ? "" : "/" + verb);
  }
  json::value tokens(const json::value& sequence) {
    return expect(client_.get(target(sequence) + "?include=tokens"), 200).at("tokens");
  }
  static json::value greedy(int max_tokens) {
    return {{"sampling", {{"temperature", 0}, {"max_tokens", max_tokens}, {"ignore_eos", true}}}};
  }
};

TEST_F(SequenceApi, GrowsByWhatItGenerates) {
  const json::value sequence = begin_with("Ada lives in");
  EXPECT_THAT(text(sequence.at("id")), testing::StartsWith("seq_"));
  EXPECT_EQ(sequence.at("grade"), "exact");
  const auto before = sequence.at("num_tokens").to_number<int>();
  EXPECT_EQ(sequence.at("tokens_computed").to_number<int>(), before - 1);
  const json::value output = made(target(sequence, "generate"), greedy(5), 200);
  EXPECT_EQ(output.at("token_ids").as_array().size(), 5U);
  const json::value grown = expect(client_.get(target(sequence)), 200);
  EXPECT_EQ(grown.at("num_tokens").to_number<int>(), before + 5);
  const json::value whole =
      made("/v1/generate",
           {{"prompt", "Ada lives in"},
            {"sampling", {{"temperature", 0}, {"max_tokens", 5}, {"ignore_eos", true}}}},
           200);
  EXPECT_EQ(output.at("token_ids"), whole.at("token_ids"));
}

TEST_F(SequenceApi, AStreamThatIsCutLeavesItAsItWas) {
  const json::value sequence = begin_with("Ada lives in");
  json::value request = greedy(200);
  request.as_object()["stream"] = true;
  const auto answer = client_.begin("POST", target(sequence, "generate"), json::serialize(request));
  loop_.run_until([&] { return answer->writes > 1; });
  EXPECT_EQ(code_of(*client_.post(target(sequence, "append"), {{"text", " x"}})), "sequence_busy");
  answer->leave();
  loop_.run();
  EXPECT_EQ(expect(client_.get(target(sequence)), 200).at("num_tokens"), sequence.at("num_tokens"));
  made(target(sequence, "append"), {{"text", " Foxley."}}, 200);
}

TEST_F(SequenceApi, AHeaderOrAFieldEndsItsAnswerAtADeadline) {
  const json::value sequence = begin_with("Ada lives in");
  const std::string generate = target(sequence, "generate");
  json::value request = greedy(200);
  request.as_object()["priority"] = 3;
  client_.headers = {{"x-request-timeout-ms", "20"}};
  const auto answer = client_.begin("POST", generate, json::serialize(request));
  loop_.advance(std::chrono::milliseconds(30));
  EXPECT_EQ(answer->status(), 504);
  EXPECT_EQ(code_of(*answer), "deadline_exceeded");
  loop_.run();
  client_.headers = {{"x-request-timeout-ms", "soon"}};
  EXPECT_EQ(param_of(*client_.post(generate, greedy(2))), "x-request-timeout-ms");
  client_.headers.clear();
  request = greedy(2);
  request.as_object()["priority"] = 2000;
  EXPECT_EQ(param_of(*client_.post(generate, request)), "priority");
  request.as_object()["priority"] = -5;
  EXPECT_EQ(made(generate, request, 200).at("token_ids").as_array().size(), 2U);
}

TEST_F(SequenceApi, AStreamGivesWhatTheWholeOutputHas) {
  const json::value first = begin_with("Ada lives in");
  const json::value second = begin_with("Ada lives in");
  json::value request = greedy(6);
  const json::value whole = made(target(first, "generate"), request, 200);
  request.as_object()["stream"] = true;
  const auto events = events_of(*client_.post(target(second, "generate"), request));
  ASSERT_GE(events.size(), 3U);
  std::string joined;
  for (std::size_t i = 0; i + 1 < events.size(); ++i) {
    joined += text(events[i].at("text"));
  }
  EXPECT_EQ(joined, text(whole.at("text")));
  EXPECT_EQ(events[events.size() - 2].at("output").at("token_ids"), whole.at("token_ids"));
  EXPECT_EQ(tokens(first), tokens(second));
}

TEST_F(SequenceApi, CheckpointsAreComeBackTo) {
  const json::value sequence = begin_with("Ada lives in");
  const json::value mark = made(target(sequence, "checkpoints"), json::object());
  EXPECT_EQ(mark.at("num_tokens"), sequence.at("num_tokens"));
  made(target(sequence, "append"), {{"text", " a town"}}, 200);
  const json::value later = made(target(sequence, "checkpoints"), json::object());
  const json::value back = made(target(sequence, "rollback"), {{"checkpoint", mark.at("id")}}, 200);
  EXPECT_EQ(back.at("num_tokens"), sequence.at("num_tokens"));
  EXPECT_EQ(code_of(*client_.post(target(sequence, "rollback"), {{"checkpoint", later.at("id")}})),
            "checkpoint_not_found");
  made(target(sequence, "rollback"), {{"checkpoint", mark.at("id")}}, 200);  // it stays
  made(target(sequence, "commit"), json::object(), 200);
  EXPECT_EQ(code_of(*client_.post(target(sequence, "rollback"), {{"checkpoint", mark.at("id")}})),
            "checkpoint_not_found");
  EXPECT_EQ(
      made(target(sequence, "rollback"), {{"drop", 1}}, 200).at("num_tokens").to_number<int>(),
      sequence.at("num_tokens").to_number<int>() - 1);
  EXPECT_EQ(param_of(*client_.post(target(sequence, "rollback"), {{"length", 1000}})), "length");
  EXPECT_EQ(param_of(*client_.post(target(sequence, "rollback"), {{"length", 1}, {"drop", 1}})),
            "checkpoint");
}

TEST_F(SequenceApi, ForksGoTheirOwnWay) {
  const json::value sequence = begin_with("Ada lives in a small town by the sea");
  const json::value fork = made(target(sequence, "fork"), json::object());
  EXPECT_NE(fork.at("id"), sequence.at("id"));
  made(target(fork, "append"), {{"text", " and sings"}}, 200);
  const json::value diff = made(target(sequence, "diff"), {{"other", fork.at("id")}}, 200);
  EXPECT_EQ(diff.at("common_tokens"), sequence.at("num_tokens"));
  EXPECT_TRUE(diff.at("left").as_array().empty());
  EXPECT_FALSE(diff.at("right").as_array().empty());
  EXPECT_EQ(param_of(*client_.post(target(sequence, "diff"), {{"other", "seq_x"}})), "other");
}

TEST_F(SequenceApi, TextOfASpecialTokenStaysText) {
  const json::value sequence = made("/v1/sequences", {{"prompt", {5, 6}}});
  made(target(sequence, "append"), {{"text", "<|im_start|>"}}, 200);
  EXPECT_GT(tokens(sequence).as_array().size(), 3U);
  made(target(sequence, "append"), {{"token_ids", {7, 8}}}, 200);
  made(target(sequence, "append"), {{"messages", {{{"role", "user"}, {"content", "Hi"}}}}}, 200);
  EXPECT_EQ(param_of(*client_.post(target(sequence, "append"), json::object())), "text");
}

TEST_F(SequenceApi, EditsReplaceTokens) {
  const json::value sequence = made("/v1/sequences", {{"prompt", {5, 6, 7, 8}}});
  made(target(sequence, "replace"), {{"start", 1}, {"stop", 3}, {"token_ids", {9}}}, 200);
  EXPECT_EQ(tokens(sequence), (json::array{5, 9, 8}));
  EXPECT_EQ(client_.post(target(sequence, "replace"), {{"start", 3}, {"stop", 1}})->status(), 400);
}

TEST_F(SequenceApi, LogitsAreTheLargestFirst) {
  const json::value sequence = begin_with("Ada lives in");
  const json::value logits =
      expect(client_.get(target(sequence, "logits") + "?top=3"), 200).at("logits");
  ASSERT_EQ(logits.as_array().size(), 3U);
  const json::value next = made(target(sequence, "generate"), greedy(1), 200);
  EXPECT_EQ(logits.at(0).at("token_id"), next.at("token_ids").at(0));
  EXPECT_GE(logits.at(0).at("logit").to_number<double>(),
            logits.at(1).at("logit").to_number<double>());
  EXPECT_EQ(param_of(*client_.get(target(sequence, "logits") + "?top=0")), "top");
}

TEST_F(SequenceApi, LifetimesEndAndUsesRenewThem) {
  const json::value sequence = made("/v1/sequences", {{"prompt", {5, 6}}, {"ttl_seconds", 10}});
  loop_.advance(std::chrono::seconds(8));
  made(target(sequence, "append"), {{"token_ids", {7}}}, 200);
  loop_.advance(std::chrono::seconds(8));
  EXPECT_EQ(client_.get(target(sequence))->status(), 200);
  loop_.advance(std::chrono::seconds(3));
  const auto gone = client_.get(target(sequence));
  EXPECT_EQ(gone->status(), 404);
  EXPECT_EQ(code_of(*gone), "sequence_not_found");
}

TEST_F(SequenceApi, SequencesAreATenantsOwnAndCounted) {
  become(name_, Role::kUser, {.max_sequences = 1});
  const json::value sequence = begin_with("Ada");
  const auto over = client_.post("/v1/sequences", {{"prompt", "Lars"}});
  EXPECT_EQ(code_of(*over), "quota_exceeded");
  EXPECT_THAT(over->response->body, HasSubstr("max_sequences: 1 are used"));
  EXPECT_EQ(expect(client_.get("/v1/sequences"), 200).at("data").as_array().size(), 1U);
  become(name_ + " other");
  for (const std::string verb : {"", "generate", "append", "save"}) {
    const auto theirs = client_.ask(verb.empty() ? "GET" : "POST", target(sequence, verb),
                                    verb == "append" ? R"({"text": "a"})"
                                    : verb == "save" ? ""
                                                     : "");
    if (verb != "save") {
      EXPECT_EQ(code_of(*theirs), "sequence_not_found") << verb;
    }
  }
  EXPECT_EQ(expect(client_.get("/v1/sequences"), 200).at("data").as_array().size(), 0U);
  become(name_);
  EXPECT_EQ(expect(client_.ask("DELETE", target(sequence)), 200).at("deleted"), true);
  EXPECT_EQ(client_.ask("DELETE", target(sequence))->status(), 404);
}

TEST_F(SequenceApi, SavedSequencesAreLoadedByNameAndNeverByPath) {
  EXPECT_EQ(param_of(*client_.post(target(begin_with("Ada"), "save"), {{"name", "a"}})), "name");
  const auto folder =
      std::filesystem::temp_directory_path() / ("quire_sequences_" + std::to_string(::getpid()));
  config_->state_dir = folder.string();
  const json::value sequence = begin_with("Ada lives in");
  made(target(sequence, "save"), {{"name", "ada.1"}}, 200);
  const json::value loaded = made("/v1/sequences/load", {{"name", "ada.1"}});
  EXPECT_EQ(tokens(loaded), tokens(sequence));
  EXPECT_EQ(made(target(loaded, "generate"), greedy(4), 200).at("token_ids"),
            made(target(sequence, "generate"), greedy(4), 200).at("token_ids"));
  for (const char* const name : {"../ada.1", "a/b", "a b", ""}) {
    EXPECT_EQ(param_of(*client_.post(target(sequence, "save"), {{"name", name}})), "name") << name;
    EXPECT_EQ(param_of(*client_.post("/v1/sequences/load", {{"name", name}})), "name") << name;
  }
  made(target(sequence, "save"), {{"name", ".."}}, 200);  // a file like any other
  become("../" + name_);
  EXPECT_EQ(code_of(*client_.post("/v1/sequences/load", {{"name", "ada.1"}})),
            "sequence_not_found");
  made(target(begin_with("Lars"), "save"), {{"name", "lars"}}, 200);
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    EXPECT_THAT(entry.path().string(), testing::StartsWith(folder.string() + "/"));
  }
  std::filesystem::remove_all(folder);
}

TEST_F(SequenceApi, ASequenceOfAChatOrACompositionGoesOn) {
  const std::string system = add_chunk("Answer from the cards.", "system_prompt");
  const std::string query = add_chunk("Who?", "query");
  const json::value composed = made(
      "/v1/sequences", {{"composition", {{"system_chunk_id", system}, {"query_chunk_id", query}}}});
  made(target(composed, "generate"), greedy(2), 200);
  const json::value chat =
      made("/v1/sequences", {{"messages", {{{"role", "user"}, {"content", "Hi"}}}}});
  made(target(chat, "generate"), greedy(2), 200);
  EXPECT_EQ(client_.post("/v1/sequences", json::object())->status(), 400);
  EXPECT_EQ(param_of(*client_.post("/v1/sequences", {{"prompt", "a"}, {"ttl_seconds", 90000}})),
            "ttl_seconds");
}

using SessionApi = TenantTest;

TEST_F(SessionApi, AreOpenedPausedAndClosed) {
  EXPECT_EQ(client_.ask("POST", "/v1/sessions/a/pause", "{}")->status(), 404);
  expect(client_.ask("PUT", "/v1/sessions/a", R"({"priority": 2, "ttl_seconds": 60})"), 200);
  expect(client_.ask("POST", "/v1/sessions/a/pause", R"({"expected_return_seconds": 5})"), 200);
  become(name_ + " other");
  EXPECT_EQ(client_.ask("DELETE", "/v1/sessions/a")->status(), 404);
  become(name_);
  expect(client_.ask("DELETE", "/v1/sessions/a"), 200);
  EXPECT_EQ(client_.ask("DELETE", "/v1/sessions/a")->status(), 404);
}

using RequestApi = TenantTest;

TEST_F(RequestApi, AreListedAndAborted) {
  const auto answer = client_.begin(
      "POST", "/v1/completions",
      R"({"prompt": "Ada", "max_tokens": 500, "stream": true, "logit_bias": {"2": -100}})");
  loop_.run_until([&] { return answer->writes > 0; });
  const json::value running = expect(client_.get("/v1/requests"), 200).at("data").at(0);
  EXPECT_EQ(running.at("state"), "decode");
  const std::string target = "/v1/requests/" + text(running.at("id"));
  become(name_ + " other");
  EXPECT_EQ(client_.ask("DELETE", target)->status(), 404);
  EXPECT_EQ(expect(client_.get("/v1/requests"), 200).at("data").as_array().size(), 0U);
  become(name_ + " admin", Role::kAdmin);
  EXPECT_EQ(text(expect(client_.get(target), 200).at("tenant")), name_);
  become(name_);
  expect(client_.ask("DELETE", target), 200);
  EXPECT_TRUE(answer->failed);
  EXPECT_THAT(answer->stream, HasSubstr("request_cancelled"));
  EXPECT_EQ(code_of(*client_.ask("DELETE", target)), "request_not_found");
  const json::value done = expect(client_.get(target), 200);
  EXPECT_EQ(done.at("state"), "done");
  EXPECT_EQ(done.at("error"), "request_cancelled");
  made("/v1/completions", {{"prompt", "Ada"}, {"max_tokens", 2}}, 200);
  const json::value last = expect(client_.get("/v1/requests"), 200).at("data").at(0);
  EXPECT_TRUE(last.at("finish_reason").is_string());
  EXPECT_TRUE(last.at("error").is_null());
  // Parts are there, whether the request asked for them or not.
  const json::value whole = expect(client_.get("/v1/requests/" + text(last.at("id"))), 200);
  EXPECT_FALSE(whole.at("parts").as_array().empty());
}

using RequestStates = NullApiTest;

TEST_F(RequestStates, GoFromQueuedOverPrefillToDecode) {
  const auto newest = [&] {
    return body_of(*client_.get("/v1/requests")).at("data").at(0).as_object();
  };
  client_.moves_time = false;
  engine_.stuck = true;
  const std::string body = R"({"prompt": "Ada", "max_tokens": 9})";
  const auto answer = client_.begin("POST", "/v1/completions", body);
  loop_.advance(std::chrono::milliseconds(1));
  EXPECT_EQ(newest().at("state"), "queued");
  EXPECT_NE(client_.get("/metrics")
                ->response->body.find("num_requests_waiting{engine=\"0\",model_"
                                      "name=\"cardfile\"} 1"),
            std::string::npos);
  engine_.computed = 1;
  EXPECT_EQ(newest().at("state"), "prefill");
  EXPECT_TRUE(newest().at("cached_tokens").is_null());
  EXPECT_GT(newest().at("prompt_tokens").to_number<int>(), 0);
  engine_.stuck = false;
  const auto second = client_.begin("POST", "/v1/completions", body);
  loop_.run();
  loop_.advance(std::chrono::milliseconds(3));
  const json::object row = newest();
  EXPECT_EQ(row.at("state"), "decode");
  EXPECT_EQ(row.at("completion_tokens"), 3);
  EXPECT_EQ(body_of(*client_.get("/v1/requests")).at("data").at(1).at("state"), "prefill")
      << "the newest stands first";
  loop_.advance(std::chrono::milliseconds(20));
  EXPECT_TRUE(second->over);
  const json::value data = body_of(*client_.get("/v1/requests")).at("data");
  EXPECT_EQ(data.at(0).at("state"), "prefill") << "what runs stands first";
  EXPECT_EQ(data.at(1).at("state"), "done");
  answer->leave();
}

using OperatorApi = TenantTest;

TEST_F(OperatorApi, IsForAdminsAlone) {
  for (const char* const path : {"/v1/store", "/v1/store/abcd"}) {
    EXPECT_EQ(code_of(*client_.get(path)), "permission_denied");
  }
  EXPECT_EQ(code_of(*client_.ask("POST", "/v1/cache/clear")), "permission_denied");
  const json::value stats = expect(client_.get("/v1/stats"), 200);
  EXPECT_TRUE(stats.at("requests_running").is_int64());
  EXPECT_TRUE(stats.as_object().contains("requests_waiting"));
  become("root", Role::kAdmin);
  EXPECT_TRUE(expect(client_.get("/v1/store"), 200).at("data").as_array().empty());
  EXPECT_EQ(client_.get("/v1/store/abcd")->status(), 404);
  EXPECT_GE(expect(client_.ask("POST", "/v1/cache/clear"), 200).at("freed_blocks").to_number<int>(),
            0);
}

}  // namespace
}  // namespace quire::server
