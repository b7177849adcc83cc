// Rendering: usage, `quire`, timings, log probabilities and the frames of streams.
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

// Returns usage as in OpenAI's bodies (rule F6).
[[nodiscard]] json::object usage_json(const RunReport& report);
// Returns the member `quire` of answers (rule F7).
[[nodiscard]] json::object quire_json(const RunReport& report);
// Returns llama-server's `timings`.
[[nodiscard]] json::object timings_json(const RunReport& report);
// Returns a part as in rule F7.
[[nodiscard]] json::array parts_json(const std::vector<ReusePart>& parts);
// Returns `finish_reason` of OpenAI's choices.
[[nodiscard]] const char* finish_word(FinishReason reason);
// Returns `stop_reason` of a choice: the text or id that ended it, else null.
[[nodiscard]] json::value stop_reason(const GenerationOutput& output);
[[nodiscard]] json::array ids_json(const std::vector<TokenId>& ids);

// Appends an event "data: JSON".
void append_event(std::string& out, const json::value& body);
inline constexpr std::string_view kDone = "data: [DONE]\n\n";

// Shows a token in log probabilities.
struct TokenPiece {
  // Well-formed UTF-8; the name of a special token.
  std::string token;
  // Bytes inside a text; none for a special token.
  std::string bytes;
  bool special = false;
};

// Pieces of tokens, made once each. Threads: the loop's thread.
class TokenPieces {
 public:
  explicit TokenPieces(Tokenizer tokenizer) : tokenizer_(std::move(tokenizer)) {}
  [[nodiscard]] const TokenPiece& piece(TokenId id);

 private:
  Tokenizer tokenizer_;
  std::unordered_map<TokenId, TokenPiece> pieces_;
};

// Returns the entries `content` of chat's logprobs for these tokens (rule O7), with `top` likeliest
// tokens each.
[[nodiscard]] json::array chat_logprobs(TokenPieces& pieces, const std::vector<TokenId>& ids,
                                        const std::vector<TokenLogprobs>& logprobs,
                                        std::int64_t top);
// Returns the log probability of `id` in an entry.
[[nodiscard]] double logprob_of(const TokenLogprobs& entry, TokenId id);

// Log probabilities of completions: `{tokens, token_logprobs, top_logprobs, text_offset}`.
class CompletionLogprobs {
 public:
  // Appends tokens behind those so far. A token with an empty entry has no log probability.
  void add(TokenPieces& pieces, const std::vector<TokenId>& ids,
           const std::vector<TokenLogprobs>& logprobs, std::int64_t top);
  // Returns what was added since the last call.
  [[nodiscard]] json::object take();
  void skip(std::int64_t characters) { offset_ += characters; }

 private:
  json::array tokens_, token_logprobs_, top_logprobs_, text_offset_;
  std::int64_t offset_ = 0;
};

// Returns the number of characters that begin in `text`.
[[nodiscard]] std::int64_t count_characters(std::string_view text);

}  // namespace quire::server
