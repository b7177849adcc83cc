// /v1/generate, /v1/compositions, /v1/explain and the endpoints about tokens, over the demo model.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "api/call.h"
#include "quire/chunks.h"
#include "testing/api_fixture.h"

namespace quire::server {
namespace {

class Native : public DemoApiTest {
 protected:
  // Registers chunks of a tenant, and returns a composition of them.
  json::object composition(const std::string& tenant, const std::string& word) {
    ChunkedLLM& chunks = *demo_engine().chunks();
    const std::string salt = engine_salt(tenant);
    std::vector<ChunkContent> contents = {
        {"You keep " + word + ".", ChunkType::kSystemPrompt, {.salt = salt}},
        {"Ada lives in " + word + ".", ChunkType::kContext, {.salt = salt}},
        {"Where does Ada live?", ChunkType::kQuery, {.salt = salt}}};
    const auto ids = chunks.register_chunks(contents).value();
    return {{"system_chunk_id", ids[0]},
            {"context_chunk_ids", json::array{json::value(ids[1])}},
            {"query_chunk_id", ids[2]}};
  }
};

TEST_F(Native, OutputsHaveTheNamesOfGenerationOutput) {
  const json::value body = body_of(*client_.post(
      "/v1/generate", {{"prompt", "Ada"}, {"sampling", {{"max_tokens", 4}, {"temperature", 0}}}}));
  for (const char* const name : {"text", "token_ids", "prompt_token_ids", "finish_reason", "usage",
                                 "reuse", "timing", "request_id"}) {
    EXPECT_TRUE(body.as_object().contains(name)) << name;
  }
  EXPECT_EQ(body.at("prompt_token_ids").as_array().size(),
            body.at("usage").at("prompt_tokens").to_number<std::size_t>());
}

TEST_F(Native, StreamsEndWithTheOutput) {
  json::object request{{"prompt", "Ada"}, {"sampling", {{"max_tokens", 4}, {"temperature", 0}}}};
  const json::value whole = body_of(*client_.post("/v1/generate", request));
  request["stream"] = true;
  const auto events = events_of(*client_.post("/v1/generate", request));
  ASSERT_GE(events.size(), 3U);
  EXPECT_EQ(events.back(), "[DONE]");
  const json::value& last = events[events.size() - 2];
  EXPECT_EQ(last.at("finished"), true);
  EXPECT_EQ(last.at("text"), "");
  EXPECT_EQ(last.at("output").at("text"), whole.at("text"));
  json::array ids;
  for (std::size_t i = 0; i + 2 < events.size(); ++i) {
    for (const json::value& id : events[i].at("token_ids").as_array()) {
      ids.push_back(id);
    }
  }
  EXPECT_EQ(json::value(ids), whole.at("token_ids"));
}

TEST_F(Native, BatchesAnswerInOrderAllOrNone) {
  json::array requests;
  for (const char* const text : {"Ada", "Bob", "Cleo"}) {
    requests.push_back({{"prompt", text}, {"sampling", {{"max_tokens", 3}, {"temperature", 0}}}});
  }
  const json::value body = body_of(*client_.post("/v1/generate", {{"requests", requests}}));
  ASSERT_EQ(body.at("outputs").as_array().size(), 3U);
  const json::value alone = body_of(*client_.post("/v1/generate", requests[1]));
  EXPECT_EQ(body.at("outputs").at(1).at("token_ids"), alone.at("token_ids"));
  requests[2].as_object()["prompt"] = json::array{99999};
  const auto refused = client_.post("/v1/generate", {{"requests", requests}});
  EXPECT_EQ(refused->status(), 400);
  EXPECT_EQ(param_of(*refused), "requests[2].prompt[0]");
}

TEST_F(Native, ExactlyOnePromptIsAllowed) {
  EXPECT_EQ(code_of(*client_.post("/v1/generate", json::object())), "missing_required_parameter");
  const auto both =
      client_.post("/v1/generate",
                   {{"prompt", "a"},
                    {"messages", json::array{json::object{{"role", "user"}, {"content", "a"}}}}});
  EXPECT_EQ(code_of(*both), "invalid_value");
}

TEST_F(Native, ThePreviewOfACompositionIsWhatTheRunReports) {
  const json::object spec = composition("default", "Foxley");
  const json::value preview = body_of(*client_.post("/v1/compositions", spec));
  json::object request;
  request["composition"] = spec;
  request["sampling"] = {{"max_tokens", 3}, {"temperature", 0}};
  request["explain"] = true;
  const json::value run = body_of(*client_.post("/v1/generate", request));
  EXPECT_EQ(run.at("usage").at("cached_tokens"), preview.at("tokens_reused"));
  EXPECT_EQ(run.at("usage").at("prompt_tokens"), preview.at("total_tokens"));
  EXPECT_EQ(run.at("quire").at("computed_tokens"), preview.at("tokens_computed"));
  EXPECT_EQ(run.at("quire").at("grade"), preview.at("grade"));
  EXPECT_FALSE(run.at("parts").as_array().empty());
  std::int64_t reused = 0;
  for (const json::value& source : run.at("quire").at("sources").as_array()) {
    reused += source.at("tokens").to_number<std::int64_t>();
  }
  EXPECT_EQ(reused, run.at("quire").at("cached_tokens").to_number<std::int64_t>());
}

TEST_F(Native, AnotherTenantsChunksAreNotThere) {
  const json::object spec = composition("ada", "Cobham");
  const auto answer = client_.post("/v1/compositions", spec);
  EXPECT_EQ(answer->status(), 404);
  EXPECT_EQ(code_of(*answer), "chunk_not_found");
  json::object never = spec;
  never["system_chunk_id"] = std::string(64, '0');
  const auto unknown = client_.post("/v1/compositions", never);
  EXPECT_EQ(unknown->status(), 404);
  EXPECT_EQ(param_of(*unknown), "system_chunk_id");
  client_.caller = std::make_shared<const Caller>(Caller{.tenant = "ada", .role = Role::kUser});
  EXPECT_EQ(client_.post("/v1/compositions", spec)->status(), 200);
}

TEST_F(Native, ExplainSaysWhatIsCachedAndChangesNothing) {
  const std::string text(500, 'c');
  const auto ask = [&] { return body_of(*client_.post("/v1/explain", {{"prompt", text}})); };
  EXPECT_EQ(ask().at("cached_tokens"), 0);
  EXPECT_EQ(ask().at("cached_tokens"), 0);
  const json::value run =
      body_of(*client_.post("/v1/generate", {{"prompt", text}, {"sampling", {{"max_tokens", 1}}}}));
  const json::value after = ask();
  EXPECT_GT(after.at("cached_tokens").to_number<int>(), 0);
  EXPECT_EQ(after.at("tokens"), run.at("usage").at("prompt_tokens"));
  client_.caller = std::make_shared<const Caller>(Caller{.tenant = "ada", .role = Role::kUser});
  const json::value other = ask();
  EXPECT_EQ(other.at("cached_tokens"), 0);
  EXPECT_EQ(other.at("parts").at(0).at("reason"), "never seen");
}

TEST_F(Native, CountsOfTokensAgreeEverywhere) {
  const json::array messages{json::object{{"role", "user"}, {"content", "Where does Ada live?"}}};
  const json::value tokenized = body_of(*client_.post("/tokenize", {{"messages", messages}}));
  const json::value rendered =
      body_of(*client_.post("/v1/chat/completions/render", {{"messages", messages}}));
  EXPECT_EQ(tokenized.at("tokens"), rendered.at("token_ids"));
  const json::value answer =
      body_of(*client_.post("/v1/chat/completions", {{"messages", messages}, {"max_tokens", 1}}));
  EXPECT_EQ(answer.at("usage").at("prompt_tokens"), tokenized.at("count"));
  const json::value native = body_of(
      *client_.post("/v1/generate", {{"messages", messages}, {"sampling", {{"max_tokens", 1}}}}));
  EXPECT_EQ(native.at("prompt_token_ids"), tokenized.at("tokens"));
}

TEST_F(Native, TokenizeTakesTheNamesOfTwoServers) {
  const json::value plain = body_of(*client_.post("/tokenize", {{"content", "Ada lives"}}));
  EXPECT_FALSE(plain.as_object().contains("count"));
  const json::value full =
      body_of(*client_.post("/tokenize", {{"prompt", "Ada lives"}, {"return_token_strs", true}}));
  EXPECT_EQ(full.at("count").to_number<std::size_t>(), full.at("token_strs").as_array().size());
  EXPECT_EQ(full.at("max_model_len"), 2048);
  const json::value pieces =
      body_of(*client_.post("/tokenize", {{"content", "Ada"}, {"with_pieces", true}}));
  EXPECT_TRUE(pieces.at("tokens").at(0).as_object().contains("piece"));
  const json::value text = body_of(*client_.post("/detokenize", {{"tokens", plain.at("tokens")}}));
  EXPECT_EQ(text.at("content"), text.at("prompt"));
  EXPECT_NE(std::string(text.at("content").as_string().c_str()).find("Ada lives"),
            std::string::npos);
  const auto outside = client_.post("/detokenize", {{"tokens", json::array{5, 99999}}});
  EXPECT_EQ(param_of(*outside), "tokens[1]");
}

TEST_F(Native, TokenizeCanTakeSpecialTokensAsText) {
  const auto ids = [&](json::object body) {
    body["content"] = "<bos>Ada";
    return body_of(*client_.post("/tokenize", body)).at("tokens").as_array();
  };
  const json::array parsed = ids({{"parse_special", true}});
  const json::array literal = ids({{"parse_special", false}});
  EXPECT_EQ(parsed, ids({}));
  EXPECT_GT(literal.size(), parsed.size());
  const json::value text = body_of(*client_.post("/detokenize", {{"tokens", literal}}));
  EXPECT_NE(std::string(text.at("content").as_string().c_str()).find("<bos>Ada"),
            std::string::npos);
  const auto frame_of = [&](bool special) {
    const json::object body = {{"content", "Ada"}, {"add_special", special}};
    return body_of(*client_.post("/tokenize", body)).at("tokens").as_array().size();
  };
  const json::array framed = ids({{"parse_special", false}, {"add_special", true}});
  ASSERT_EQ(framed.size(), literal.size() + frame_of(true) - frame_of(false));
  EXPECT_FALSE(std::ranges::search(framed, literal).empty());
  const auto chat = client_.post("/tokenize", {{"messages", {{{"role", "user"}, {"content", "a"}}}},
                                               {"parse_special", false}});
  EXPECT_EQ(param_of(*chat), "parse_special");
}

TEST_F(Native, TemplatesAreRenderedAsText) {
  const json::array messages{json::object{{"role", "user"}, {"content", "Where?"}}};
  const json::value body = body_of(*client_.post("/apply-template", {{"messages", messages}}));
  const std::string prompt = body.at("prompt").as_string().c_str();
  EXPECT_TRUE(prompt.starts_with("<bos><sys>")) << prompt;
  EXPECT_TRUE(prompt.ends_with("<q> Where?<a>")) << prompt;
}

TEST_F(Native, CompletionsTakeBatchesIdsAndEcho) {
  const json::value body =
      body_of(*client_.post("/v1/completions", {{"prompt", json::array{"Ada", "Bob"}},
                                                {"n", 2},
                                                {"max_tokens", 2},
                                                {"temperature", 0},
                                                {"echo", true}}));
  const json::array& choices = body.at("choices").as_array();
  ASSERT_EQ(choices.size(), 4U);
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(choices[i].at("index").to_number<std::size_t>(), i);
    EXPECT_TRUE(choices[i].at("text").as_string().starts_with(i < 2 ? "Ada" : "Bob"));
  }
  const json::value ids = body_of(*client_.post(
      "/v1/completions",
      {{"prompt", json::array{json::array{5, 6}, json::array{7}}}, {"max_tokens", 0}}));
  EXPECT_EQ(ids.at("usage").at("prompt_tokens"), 3);
  EXPECT_EQ(ids.at("usage").at("completion_tokens"), 0);
  const auto logprobs = body_of(
      *client_.post("/v1/completions", {{"prompt", "Ada"}, {"max_tokens", 3}, {"logprobs", 2}}));
  const json::value& lists = logprobs.at("choices").at(0).at("logprobs");
  EXPECT_EQ(lists.at("tokens").as_array().size(), lists.at("text_offset").as_array().size());
  EXPECT_EQ(lists.at("text_offset").at(0), 0);
}

TEST_F(Native, TokensPlusOfAnOutputAreCountedByMetrics) {
  const auto number = [&](const std::string& name) {
    const std::string text = client_.get("/metrics")->response->body;
    const std::size_t at = text.find("\n" + name + "{");
    return at == std::string::npos ? -1.0 : std::stod(text.substr(text.find("} ", at) + 2));
  };
  const double prompt = number("vllm:prompt_tokens_total");
  const double cached = number("vllm:prompt_tokens_cached_total");
  const double generated = number("vllm:generation_tokens_total");
  std::int64_t prompts = 0, hits = 0, outputs = 0;
  for (int i = 0; i < 3; ++i) {
    const json::value body = body_of(*client_.post(
        "/v1/completions", {{"prompt", std::string(200, 'd')}, {"max_tokens", 2 + i}, {"n", 2}}));
    const json::value& usage = body.at("usage");
    prompts += usage.at("prompt_tokens").to_number<std::int64_t>();
    hits += usage.at("prompt_tokens_details").at("cached_tokens").to_number<std::int64_t>();
    outputs += usage.at("completion_tokens").to_number<std::int64_t>();
  }
  EXPECT_EQ(number("vllm:prompt_tokens_total"), prompt + static_cast<double>(prompts));
  EXPECT_EQ(number("vllm:prompt_tokens_cached_total"), cached + static_cast<double>(hits));
  EXPECT_EQ(number("vllm:generation_tokens_total"), generated + static_cast<double>(outputs));
  EXPECT_GT(hits, 0);
}

TEST_F(Native, MetricsHaveTheNamesOfBothLists) {
  (void)client_.post("/v1/completions", {{"prompt", "a"}, {"max_tokens", 2}, {"user", "x"}});
  const auto answer = client_.get("/metrics");
  EXPECT_EQ(answer->response->content_type, "text/plain; version=0.0.4; charset=utf-8");
  const std::string& text = answer->response->body;
  for (const char* const name :
       {"vllm:num_requests_waiting", "vllm:num_requests_running", "vllm:kv_cache_usage_perc",
        "vllm:cache_config_info", "vllm:lora_requests_info", "vllm:request_success_total",
        "vllm:time_to_first_token_seconds_bucket", "vllm:e2e_request_latency_seconds_sum",
        "vllm:request_prompt_tokens_count", "vllm:num_preemptions_total", "quire_tokens_total",
        "quire_requests_total", "quire_blocks", "quire_ignored_parameters_total",
        "quire_build_info", "quire_restore_points"}) {
    EXPECT_NE(text.find(std::string("\n") + name + "{"), std::string::npos) << name;
  }
  for (const char* const name :
       {"quire_engine_last_step_age_seconds", "quire_sequences", "quire_host_kv_bytes"}) {
    EXPECT_NE(text.find(std::string("\n") + name + " "), std::string::npos) << name;
  }
}

}  // namespace
}  // namespace quire::server
