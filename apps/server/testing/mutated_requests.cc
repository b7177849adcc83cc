#include "testing/mutated_requests.h"

#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>

#include "message.h"

namespace quire::server {
namespace {

struct Seed {
  const char* method;
  const char* target;
  const char* body;
};

constexpr Seed kSeeds[] = {
    {"POST", "/v1/chat/completions",
     R"({"model":"cardfile","messages":[{"role":"system","content":"a"},{"role":"user","content":[{"type":"text","text":"b"}]}],"max_tokens":2,"temperature":0.5,"top_p":0.9,"n":2,"stream":true,"stream_options":{"include_usage":true},"stop":["x"],"seed":1,"logit_bias":{"5":1.5}})"},
    {"POST", "/v1/chat/completions",
     R"({"messages":[{"role":"user","content":"a"},{"role":"assistant","content":"b","tool_calls":[{"id":"c","type":"function","function":{"name":"f","arguments":"{}"}}]},{"role":"tool","content":"d","tool_call_id":"c"}],"logprobs":true,"top_logprobs":3,"max_completion_tokens":1,"quire":{"explain":true,"session":"s","deadline_ms":100,"mode":"exact"}})"},
    {"POST", "/v1/completions",
     R"({"prompt":["a","b"],"max_tokens":2,"echo":true,"logprobs":null,"n":1,"return_token_ids":true})"},
    {"POST", "/v1/completions", R"({"prompt":[[5,6],[7]],"max_tokens":0,"cache_salt":"z"})"},
    {"POST", "/v1/generate",
     R"({"prompt":"a","sampling":{"max_tokens":2,"logprobs":1,"stop_token_ids":[4]},"explain":true})"},
    {"POST", "/v1/generate",
     R"({"requests":[{"prompt":[5]},{"messages":[{"role":"user","content":"a"}],"sampling":{"max_tokens":1}}]})"},
    {"POST", "/v1/generate",
     R"({"composition":{"system_chunk_id":"00","context_chunk_ids":["11"],"query_chunk_id":"22","mode":"blend","blend":{"share":0.5}},"stream":true})"},
    {"POST", "/v1/compositions",
     R"({"query_chunk_id":"22","without_system":true,"positions":"fixed","fixed":[0,5]})"},
    {"POST", "/v1/explain", R"({"prompt":"abc","cache_salt":"s"})"},
    {"POST", "/tokenize", R"({"prompt":"abc","return_token_strs":true})"},
    {"POST", "/tokenize", R"({"content":"abc","with_pieces":true})"},
    {"POST", "/detokenize", R"({"tokens":[1,2,3]})"},
    {"POST", "/apply-template", R"({"messages":[{"role":"user","content":"a"}]})"},
    {"POST", "/v1/completions/render", R"({"prompt":"a"})"},
    {"POST", "/tokenize", R"({"content":"<bos>abc","add_special":true,"parse_special":false})"},
    {"POST", "/v1/chunks",
     R"({"content":"abc","type":"context","metadata":{"a":1},"pinned":false,"priority":1,"anchor":null})"},
    {"POST", "/v1/chunks/batch",
     R"({"chunks":[{"content":"a"},{"content":[5,6],"type":"query"}]})"},
    {"GET", "/v1/chunks?type=context&limit=3&metadata={\"a\":1}", ""},
    {"POST", "/v1/sequences", R"({"prompt":"abc","ttl_seconds":60,"cache_salt":"s"})"},
    {"POST", "/v1/sequences/seq_1/append", R"({"text":"abc"})"},
    {"POST", "/v1/sequences/load", R"({"name":"a","wait":true})"},
    {"PUT", "/v1/sessions/a", R"({"priority":1,"ttl_seconds":60})"},
    {"GET", "/v1/requests/gen_1", ""},
    {"GET", "/v1/models", ""},
    {"GET", "/v1/models/cardfile", ""},
    {"GET", "/metrics", ""},
    {"GET", "/health", ""},
    {"GET", "/openapi.json", ""},
    {"POST", "/v1/embeddings", R"({"input":"a"})"},
};

constexpr const char* kValues[] = {"null",
                                   "true",
                                   "0",
                                   "-1",
                                   "3.0",
                                   "3.5",
                                   "1e308",
                                   "1e999",
                                   "9223372036854775807",
                                   "99999999999999999999",
                                   "\"\"",
                                   "\"a\"",
                                   "[]",
                                   "{}",
                                   "[[]]",
                                   "[null]",
                                   "\"\\ud800\"",
                                   "\"\\u0000\"",
                                   "{\"a\":1,\"a\":2}",
                                   "[1,\"a\"]",
                                   "-0.0",
                                   "2147483648",
                                   "\"<eos>\"",
                                   "\"\xc3\x28\"",
                                   "[{\"role\":\"user\"}]",
                                   "false",
                                   "1",
                                   "0.5",
                                   "[0]",
                                   "[\"x\"]"};

// Returns where the value begins that stands behind the colon or comma number `which`.
std::size_t value_after(const std::string& body, std::size_t which) {
  for (std::size_t i = 0; i < body.size(); ++i) {
    if ((body[i] == ':' || body[i] == ',' || body[i] == '[') && which-- == 0) {
      return i + 1;
    }
  }
  return body.size();
}

// Returns the end of the JSON value at `begin`, by brackets and quotes.
std::size_t end_of_value(const std::string& body, std::size_t begin) {
  int depth = 0;
  bool quoted = false;
  for (std::size_t i = begin; i < body.size(); ++i) {
    const char c = body[i];
    if (quoted) {
      i += c == '\\' ? 1 : 0;
      quoted = c != '"';
      continue;
    }
    if (c == '"') {
      quoted = true;
    } else if (c == '[' || c == '{') {
      ++depth;
    } else if (c == ']' || c == '}') {
      if (depth-- == 0) {
        return i;
      }
    } else if (c == ',' && depth == 0) {
      return i;
    }
  }
  return body.size();
}

// Moves what stands behind a question mark from the path into the query.
void split_query(Request& request) {
  if (const std::size_t at = request.path.find('?'); at != std::string::npos) {
    request.query = request.path.substr(at + 1);
    request.path.resize(at);
  }
}

}  // namespace

std::string MutatedRequests::mutated(std::string body) {
  const std::size_t changes = below(4);
  for (std::size_t i = 0; i < changes && !body.empty(); ++i) {
    const std::size_t at = below(body.size());
    switch (below(6)) {
      case 0:
        body[at] = static_cast<char>(random_());
        break;
      case 1:
        body.erase(at, 1 + below(8));
        break;
      case 2:
        body.insert(at, body.substr(below(body.size()), below(20)));
        break;
      default: {
        const auto places = static_cast<std::size_t>(
            std::ranges::count_if(body, [](char c) { return c == ':' || c == ',' || c == '['; }));
        const std::size_t begin = value_after(body, below(places + 1));
        const std::size_t end = end_of_value(body, begin);
        body.replace(begin, end - begin, kValues[below(std::size(kValues))]);
      }
    }
  }
  return body;
}

Request MutatedRequests::next() {
  const Seed& seed = kSeeds[below(std::size(kSeeds))];
  Request request{.method = seed.method, .path = seed.target, .body = mutated(seed.body)};
  if (below(8) == 0) {
    request.path = mutated(request.path);
    if (!request.path.starts_with('/')) {
      request.path.insert(0, "/");
    }
  }
  if (below(16) == 0) {
    constexpr const char* kMethods[] = {"GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "X"};
    request.method = kMethods[below(std::size(kMethods))];
  }
  if (below(16) != 0) {
    request.headers.push_back({"content-type", "application/json"});
  }
  split_query(request);
  request.id = "req_fuzz";
  return request;
}

Request request_of_bytes(std::string_view bytes) {
  const std::size_t line = std::min(bytes.find('\n'), bytes.size());
  const std::string_view head = bytes.substr(0, line);
  const std::size_t blank = std::min(head.find(' '), head.size());
  Request request{.method = std::string(head.substr(0, blank)),
                  .path = std::string(head.substr(std::min(head.size(), blank + 1))),
                  .body = std::string(bytes.substr(std::min(bytes.size(), line + 1)))};
  split_query(request);
  request.headers.push_back({"content-type", "application/json"});
  request.id = "req_fuzz";
  return request;
}

}  // namespace quire::server
