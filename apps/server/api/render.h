// Renders usage, `quire`, timings, log probabilities and the frames of streams.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "api/generation.h"
#include "api/json.h"
#include "quire/output.h"
#include "quire/tokenizer.h"
#include "quire/types.h"

namespace quire::server {

// Returns `usage` in the form of OpenAI's bodies. `reasoning_tokens` of the generated ones are
// thinking.
[[nodiscard]] json::object usage_json(const RunReport& report, std::int64_t reasoning_tokens);
// Returns the member `quire` of answers.
[[nodiscard]] json::object quire_json(const RunReport& report);
// Returns llama-server's `timings`.
[[nodiscard]] json::object timings_json(const RunReport& report);
// Returns the parts of a prompt as JSON.
[[nodiscard]] json::array parts_json(const std::vector<ReusePart>& parts);
// Returns the `finish_reason` of OpenAI's choices.
[[nodiscard]] const char* finish_word(FinishReason reason);
// Returns the `stop_reason` of a choice: the text or id that ended it, else null.
[[nodiscard]] json::value stop_reason(const GenerationOutput& output);
[[nodiscard]] json::array ids_json(const std::vector<TokenId>& ids);

// Appends an event "data: JSON".
void append_event(std::string& out, const json::value& body);
inline constexpr std::string_view kDone = "data: [DONE]\n\n";

// A token as log probabilities show it.
struct TokenPiece {
  // Well-formed UTF-8; for a special token, its name.
  std::string token;
  // Bytes of the token inside a text; none for a special token.
  std::string bytes;
  bool special = false;
};

// Makes the piece of each token once. Threads: the loop's thread.
class TokenPieces {
 public:
  explicit TokenPieces(Tokenizer tokenizer) : tokenizer_(std::move(tokenizer)) {}
  [[nodiscard]] const TokenPiece& piece(TokenId id);

 private:
  Tokenizer tokenizer_;
  std::unordered_map<TokenId, TokenPiece> pieces_;
};

// Returns the entries `content` of chat's logprobs for these tokens, with `top` likeliest tokens
// each.
[[nodiscard]] json::array chat_logprobs(TokenPieces& pieces, const std::vector<TokenId>& ids,
                                        const std::vector<TokenLogprobs>& logprobs,
                                        std::int64_t top);
// Returns the log probability of `id` in an entry.
[[nodiscard]] double logprob_of(const TokenLogprobs& entry, TokenId id);

// Log probabilities of completions: `{tokens, token_logprobs, top_logprobs, text_offset}`.
class CompletionLogprobs {
 public:
  // Appends tokens. A token with an empty entry has no log probability.
  void add(TokenPieces& pieces, const std::vector<TokenId>& ids,
           const std::vector<TokenLogprobs>& logprobs, std::int64_t top);
  // Returns the tokens added since the last call.
  [[nodiscard]] json::object take();
  void skip(std::int64_t characters) { offset_ += characters; }

 private:
  json::array tokens_, token_logprobs_, top_logprobs_, text_offset_;
  std::int64_t offset_ = 0;
};

// Returns the number of characters that begin in `text`.
[[nodiscard]] std::int64_t count_characters(std::string_view text);

}  // namespace quire::server
