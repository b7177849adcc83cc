#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

#include "testing/tenant_fixture.h"

namespace quire::server {
namespace {

using testing::HasSubstr;
using ChunkApi = TenantTest;

constexpr std::size_t kShownDigits = 12;  // of an id in a message

TEST_F(ChunkApi, RegisteringTwiceIsOneChunkAndOnePrefill) {
  const json::value request = {
      {"content", "Ada lives in Foxley."}, {"metadata", {{"a", 1}}}, {"pinned", true}};
  const json::value first = made("/v1/chunks", request, 201);
  EXPECT_EQ(first.at("object"), "chunk");
  EXPECT_EQ(first.at("type"), "context");
  EXPECT_EQ(first.at("created"), true);
  EXPECT_GT(first.at("tokens_computed").to_number<int>(), 0);
  EXPECT_EQ(first.at("pinned"), true);
  EXPECT_EQ(first.at("kv_dtype"), "bfloat16");
  EXPECT_TRUE(first.at("kv_error").is_null());
  EXPECT_FALSE(first.as_object().contains("content"));
  const json::value again =
      made("/v1/chunks?include=content,token_ids",
           {{"content", "Ada lives in Foxley."}, {"metadata", {{"b", "x"}}}}, 200);
  EXPECT_EQ(again.at("chunk_id"), first.at("chunk_id"));
  EXPECT_EQ(again.at("created"), false);
  EXPECT_EQ(again.at("tokens_computed"), 0);
  EXPECT_EQ(again.at("metadata"), (json::value{{"a", 1}, {"b", "x"}}));
  EXPECT_EQ(again.at("content"), "Ada lives in Foxley.");
  EXPECT_EQ(again.at("token_ids").as_array().size(), again.at("num_tokens").to_number<unsigned>());
}

TEST_F(ChunkApi, ABatchIsAllOrNone) {
  const json::value batch = {{"chunks", {{{"content", "One."}}, {{"content", {5, 6, 7}}}}}};
  const json::value answer = made("/v1/chunks/batch", batch, 201);
  EXPECT_EQ(answer.at("data").as_array().size(), 2U);
  made("/v1/chunks/batch", batch, 200);
  const json::value wrong = {
      {"chunks",
       {{{"content", "Two."}}, {{"content", "Three."}, {"anchor", std::string(64, 'a')}}}}};
  EXPECT_EQ(code_of(*client_.post("/v1/chunks/batch", wrong)), "chunk_not_found");
  EXPECT_EQ(body_of(*client_.get("/v1/chunks")).at("data").as_array().size(), 2U);
}

TEST_F(ChunkApi, FieldsThatAreWrongAreNamed) {
  const auto named = [&](const json::value& body) {
    return param_of(*client_.post("/v1/chunks", body));
  };
  EXPECT_EQ(named({{"type", "context"}}), "content");
  EXPECT_EQ(named({{"content", ""}}), "content");
  EXPECT_EQ(named({{"content", "a"}, {"type", "other"}}), "type");
  EXPECT_EQ(named({{"content", "a"}, {"ttl_seconds", 0}}), "ttl_seconds");
  EXPECT_EQ(named({{"content", {1, 1000000}}}), "content[1]");
  EXPECT_EQ(named({{"content", "a"}, {"colour", "red"}}), "colour");
  EXPECT_EQ(param_of(*client_.post("/v1/chunks/batch", {{"chunks", {{{"content", 5}}}}})),
            "chunks[0].content");
}

TEST_F(ChunkApi, AChunkHasAFormatOfItsOwnAndIsNarrowed) {
  const json::value coded =
      made("/v1/chunks", {{"content", "Ada lives in Foxley."}, {"kv_dtype", "int8"}}, 201);
  EXPECT_EQ(coded.at("kv_dtype"), "int8");
  EXPECT_GT(coded.at("kv_error").at("key").to_number<double>(), 0);
  const json::value wide = made("/v1/chunks", {{"content", "Ada lives in Foxley."}}, 201);
  EXPECT_NE(wide.at("chunk_id"), coded.at("chunk_id"));
  EXPECT_LT(coded.at("memory_bytes").to_number<int>(), wide.at("memory_bytes").to_number<int>());
  const std::string target = "/v1/chunks/" + text(wide.at("chunk_id"));
  const json::value narrowed = expect(client_.ask("PATCH", target, R"({"kv_dtype": "int8"})"), 200);
  EXPECT_EQ(narrowed.at("kv_dtype"), "int8");
  EXPECT_NE(narrowed.at("chunk_id"), wide.at("chunk_id"));
  EXPECT_EQ(code_of(*client_.get(target)), "chunk_not_found");
  const json::value refused =
      expect(client_.post("/v1/chunks", {{"content", "a"}, {"kv_dtype", "int3"}}), 400);
  EXPECT_THAT(text(refused.at("error").at("message")), HasSubstr("int3"));
}

TEST_F(ChunkApi, AContextKeepsHiddenStatesForABandOfLayers) {
  const json::value kept =
      made("/v1/chunks", {{"content", "Ada lives in Foxley."}, {"keep_hidden", 4}}, 201);
  EXPECT_EQ(kept.at("keep_hidden"), 4);
  const json::value plain = made("/v1/chunks", {{"content", "Lars lives in Mere."}}, 201);
  EXPECT_TRUE(plain.at("keep_hidden").is_null());
  EXPECT_EQ(param_of(*client_.post("/v1/chunks", {{"content", "a"}, {"keep_hidden", 0}})),
            "keep_hidden");
  const json::value refused =
      expect(client_.post("/v1/chunks", {{"content", "a"}, {"keep_hidden", 99}}), 400);
  EXPECT_THAT(text(refused.at("error").at("message")), HasSubstr("keep_hidden is 99"));
}

TEST_F(ChunkApi, PagesFollowOneAnotherWithoutGapsOrRepeats) {
  std::set<std::string> all;
  for (int i = 0; i < 5; ++i) {
    all.insert(add_chunk("Card " + std::to_string(i)));
  }
  std::set<std::string> seen;
  std::string target = "/v1/chunks?limit=2";
  for (int page = 0; page < 3; ++page) {
    const json::value body = expect(client_.get(target), 200);
    for (const json::value& chunk : body.at("data").as_array()) {
      EXPECT_TRUE(seen.insert(text(chunk.at("chunk_id"))).second);
    }
    EXPECT_EQ(body.at("has_more"), page < 2);
    target = "/v1/chunks?limit=2&after=" + text(body.at("last_id"));
  }
  EXPECT_EQ(seen, all);
  EXPECT_EQ(param_of(*client_.get("/v1/chunks?after=nobody")), "after");
  EXPECT_EQ(param_of(*client_.get("/v1/chunks?limit=0")), "limit");
  EXPECT_EQ(param_of(*client_.get("/v1/chunks?type=story")), "type");
  const json::value none = expect(client_.get("/v1/chunks?type=query"), 200);
  EXPECT_TRUE(none.at("first_id").is_null());
}

TEST_F(ChunkApi, AnAnchorMayBeAListOfChunks) {
  const json::value system =
      made("/v1/chunks", {{"content", "You keep cards."}, {"type", "system_prompt"}}, 201);
  const json::value part = made(
      "/v1/chunks", {{"content", "Ada lives in Foxley."}, {"anchor", system.at("chunk_id")}}, 201);
  const json::array anchor{system.at("chunk_id"), part.at("chunk_id")};
  const json::value next =
      made("/v1/chunks", {{"content", "She trades in apples."}, {"anchor", anchor}}, 201);
  EXPECT_EQ(next.at("anchor"), anchor);
  EXPECT_EQ(part.at("anchor"), system.at("chunk_id"));
  const auto wrong = client_.post("/v1/chunks", {{"content", "a"}, {"anchor", json::array{5}}});
  EXPECT_THAT(param_of(*wrong), HasSubstr("anchor"));
}

TEST_F(ChunkApi, AListIsNarrowedByMetadata) {
  made("/v1/chunks", {{"content", "Red."}, {"metadata", {{"colour", "red"}}}});
  made("/v1/chunks", {{"content", "Blue."}, {"metadata", {{"colour", "blue"}}}});
  const json::value body = expect(
      client_.get("/v1/chunks?include=content&metadata=%7B%22colour%22%3A%22red%22%7D"), 200);
  ASSERT_EQ(body.at("data").as_array().size(), 1U);
  EXPECT_EQ(body.at("data").at(0).at("content"), "Red.");
  EXPECT_EQ(param_of(*client_.get("/v1/chunks?metadata=red")), "metadata");
}

TEST_F(ChunkApi, PatchChangesAndANullRemovesTheLifetime) {
  const json::value chunk = made("/v1/chunks", {{"content", "A."}, {"ttl_seconds", 60}});
  const std::string target = "/v1/chunks/" + text(chunk.at("chunk_id"));
  json::value changed = expect(
      client_.ask("PATCH", target, R"({"priority": 3, "metadata": {"k": "v"}, "pinned": true})"),
      200);
  EXPECT_EQ(changed.at("priority"), 3);
  EXPECT_EQ(changed.at("ttl_seconds").to_number<double>(), 60);
  changed = expect(client_.ask("PATCH", target, R"({"ttl_seconds": null})"), 200);
  EXPECT_TRUE(changed.at("ttl_seconds").is_null());
  EXPECT_EQ(changed.at("metadata"), (json::value{{"k", "v"}}));
  const auto before = changed.at("access_count");
  EXPECT_EQ(expect(client_.get(target), 200).at("access_count"), before) << "reading is no use";
}

TEST_F(ChunkApi, ADeletedChunkIsGoneAndDeletedOnce) {
  const std::string target = "/v1/chunks/" + add_chunk("Gone soon.");
  EXPECT_EQ(expect(client_.ask("DELETE", target + "?wipe=true"), 200).at("deleted"), true);
  const auto again = client_.ask("DELETE", target);
  EXPECT_EQ(again->status(), 404);
  EXPECT_EQ(code_of(*again), "chunk_not_found");
  EXPECT_EQ(client_.get(target)->status(), 404);
  add_chunk("A.");
  add_chunk("B.", "query");
  EXPECT_EQ(expect(client_.ask("DELETE", "/v1/chunks?type=query"), 200).at("deleted"), 1);
  EXPECT_EQ(expect(client_.ask("DELETE", "/v1/chunks"), 200).at("deleted"), 1);
}

TEST_F(ChunkApi, StatsCountTheTenantsChunksAlone) {
  add_chunk("Mine.");
  become(name_ + " other");
  add_chunk("Theirs.", "query");
  const json::value stats = expect(client_.get("/v1/chunks/stats"), 200);
  EXPECT_EQ(stats.at("total_chunks"), 1);
  EXPECT_EQ(stats.at("query_chunks"), 1);
  EXPECT_EQ(expect(client_.post("/v1/chunks/evict", {{"max_age_seconds", 0}}), 200).at("evicted"),
            1);
  EXPECT_EQ(expect(client_.ask("POST", "/v1/chunks/flush"), 200).at("flushed"), true);
}

TEST_F(ChunkApi, ARegistrationWhoseClientWentRegistersNothing) {
  loop_.hold_work(true);
  const auto answer = client_.begin("POST", "/v1/chunks", R"({"content": "Never there."})");
  answer->leave();
  loop_.hold_work(false);
  loop_.run();
  EXPECT_EQ(body_of(*client_.get("/v1/chunks")).at("data").as_array().size(), 0U);
}

TEST_F(ChunkApi, AnotherTenantsChunkIsUnknownWordForWord) {
  const std::string id = add_chunk("Secret.");
  become(name_ + " other");
  const std::string never(64, 'b');
  for (const char* const method : {"GET", "DELETE"}) {
    const auto theirs = client_.ask(method, "/v1/chunks/" + id);
    const auto none = client_.ask(method, "/v1/chunks/" + never);
    EXPECT_EQ(theirs->status(), 404);
    std::string expected = none->response->body;
    for (const std::size_t digits : {never.size(), kShownDigits}) {
      for (std::size_t at = 0;
           (at = expected.find(never.substr(0, digits))) != std::string::npos;) {
        expected.replace(at, digits, id.substr(0, digits));
      }
    }
    EXPECT_EQ(theirs->response->body, expected) << method;
  }
}

TEST_F(ChunkApi, QuotasAreNamedWithUsedAndAllowed) {
  become(name_, Role::kUser, {.max_chunks = 2});
  add_chunk("One.");
  add_chunk("Two.");
  const auto over = client_.post("/v1/chunks", {{"content", "Three."}});
  EXPECT_EQ(over->status(), 429);
  EXPECT_EQ(code_of(*over), "quota_exceeded");
  EXPECT_THAT(over->response->body, HasSubstr("max_chunks: 2 are used"));
  EXPECT_EQ(over->header("retry-after"), "60");
  EXPECT_EQ(over->header("x-should-retry"), "false");
  made("/v1/chunks", {{"content", "Two."}}, 200);  // which is there
  become(name_, Role::kUser, {.chunk_bytes = 1});
  EXPECT_EQ(code_of(*client_.post("/v1/chunks", {{"content", "Three."}})), "quota_exceeded");
  made("/v1/chunks", {{"content", "Who?"}, {"type", "query"}});  // has no KV
}

json::value chunk_part(const std::string& id) { return {{"type", "chunk"}, {"chunk_id", id}}; }

json::value chat_of(const std::string& system, const std::vector<std::string>& contexts) {
  json::array parts;
  for (const std::string& id : contexts) {
    parts.push_back(chunk_part(id));
  }
  parts.push_back({{"type", "text"}, {"text", "Where does Ada live?"}});
  json::array messages;
  messages.push_back({{"role", "system"}, {"content", json::array{chunk_part(system)}}});
  messages.push_back({{"role", "user"}, {"content", parts}});
  return {{"messages", messages}, {"max_completion_tokens", 8}, {"temperature", 0}};
}

TEST_F(ChunkApi, ABlendNamesItsLayers) {
  json::value spec = {
      {"system_chunk_id", add_chunk("Answer from the cards.", "system_prompt")},
      {"context_chunk_ids", {add_chunk("Card 1. Ada lives in Foxley."), add_chunk("Card 2.")}},
      {"query_chunk_id", add_chunk("Where does Ada live?", "query")},
      {"mode", "blend"}};
  const auto answer = [&](const json::value& layers) {
    spec.as_object()["blend"] = {{"layers", layers}};
    return client_.post("/v1/compositions", spec);
  };
  const json::value all = expect(answer({0, 8}), 200);
  const json::value half = expect(answer({0, 4}), 200);
  EXPECT_LT(half.at("tokens_computed").to_number<int>(),
            all.at("tokens_computed").to_number<int>());
  EXPECT_THAT(text(expect(answer({0, 9}), 400).at("error").at("message")),
              HasSubstr("recompute_layers is (0, 9)"));
  EXPECT_EQ(param_of(*answer({4})), "blend.layers");
  expect(answer({4, 6}), 409);  // no hidden states
}

TEST_F(ChunkApi, AChatWithChunksIsTheCompositionThatThePreviewPromised) {
  const std::string system = add_chunk("Answer from the cards.", "system_prompt");
  const std::vector<std::string> contexts = {add_chunk("Card 1. Ada lives in Foxley."),
                                             add_chunk("Card 2. Lars keeps a goose.")};
  const std::string query = add_chunk("Where does Ada live?", "query");
  const json::value spec = {{"system_chunk_id", system},
                            {"context_chunk_ids", json::value_from(contexts)},
                            {"query_chunk_id", query}};
  const json::value preview = made("/v1/compositions", spec, 200);
  json::value request = chat_of(system, contexts);
  request.as_object()["quire"] = {{"explain", true}};
  const json::value chat = made("/v1/chat/completions", request, 200);
  EXPECT_EQ(chat.at("quire").at("cached_tokens"), preview.at("tokens_reused"));
  EXPECT_EQ(chat.at("quire").at("computed_tokens"), preview.at("tokens_computed"));
  EXPECT_EQ(chat.at("quire").at("grade"), preview.at("grade"));
  EXPECT_EQ(chat.at("quire").at("parts").as_array().size(), 4U);
  EXPECT_EQ(chat.at("usage").at("prompt_tokens"), preview.at("total_tokens"));
  const json::value whole =
      made("/v1/generate",
           {{"composition", spec}, {"sampling", {{"temperature", 0}, {"max_tokens", 8}}}}, 200);
  EXPECT_EQ(chat.at("choices").at(0).at("message").at("content"), whole.at("text"));
  const json::value named = made(
      "/v1/chat/completions",
      {{"messages", {{{"role", "user"}, {"content", "Where does Ada live?"}}}},
       {"max_completion_tokens", 8},
       {"temperature", 0},
       {"quire", {{"chunks", {{"system", system}, {"contexts", json::value_from(contexts)}}}}}},
      200);
  EXPECT_EQ(named.at("choices").at(0).at("message").at("content"), whole.at("text"));
}

TEST_F(ChunkApi, AChatThatPersistsNothingLeavesNothing) {
  const std::string context = add_chunk("Card 1. Ada lives in Foxley.");
  json::value request = {
      {"messages",
       {{{"role", "system"}, {"content", "Answer."}},
        {{"role", "user"},
         {"content", json::array{chunk_part(context), {{"type", "text"}, {"text", "Where?"}}}}}}},
      {"max_completion_tokens", 2},
      {"quire", {{"persist_chunks", false}}}};
  made("/v1/chat/completions", request, 200);
  loop_.run();
  EXPECT_EQ(body_of(*client_.get("/v1/chunks")).at("data").as_array().size(), 1U);
  request.as_object().erase("quire");
  made("/v1/chat/completions", request, 200);
  EXPECT_EQ(body_of(*client_.get("/v1/chunks")).at("data").as_array().size(), 3U);
}

TEST_F(ChunkApi, OtherShapesOfChatsWithChunksAreRefusedByPath) {
  const std::string id = add_chunk("Card 1.");
  const auto refused = [&](const json::array& messages) {
    const auto answer = client_.post("/v1/chat/completions", {{"messages", messages}});
    EXPECT_EQ(code_of(*answer), "invalid_composition") << answer->response->body;
    return param_of(*answer);
  };
  const json::value user = {{"role", "user"}, {"content", json::array{chunk_part(id)}}};
  const json::value text_user = {{"role", "user"}, {"content", "Where?"}};
  EXPECT_EQ(refused({user, {{"role", "assistant"}, {"content", "x"}}, text_user}), "messages[1]");
  EXPECT_EQ(
      refused({{{"role", "user"},
                {"content", json::array{{{"type", "text"}, {"text", "a"}}, chunk_part(id)}}}}),
      "messages[0].content[0]");
  json::value unknown = chat_of(std::string(64, 'c'), {id});
  const auto answer = client_.post("/v1/chat/completions", unknown);
  EXPECT_EQ(answer->status(), 404);
  EXPECT_EQ(code_of(*answer), "chunk_not_found");
  EXPECT_EQ(param_of(*answer), "messages[0].content[0].chunk_id");
}

}  // namespace
}  // namespace quire::server
