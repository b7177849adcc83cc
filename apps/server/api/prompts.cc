#include "api/prompts.h"

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "api/errors.h"
#include "engine.h"
#include "quire/interrupt.h"
#include "quire/result.h"
#include "quire/tokenizer.h"
#include "quire/types.h"

namespace quire::server {

Check check_bytes(const Engine& engine, std::size_t bytes, std::string path) {
  const ModelFacts& facts = engine.facts();
  const std::int64_t most = facts.context_tokens * facts.longest_token_bytes;
  if (facts.longest_token_bytes == 0 || static_cast<std::int64_t>(bytes) <= most) {
    return passed();
  }
  // So many tokens at least.
  const std::int64_t tokens = (static_cast<std::int64_t>(bytes) + facts.longest_token_bytes - 1) /
                              facts.longest_token_bytes;
  ApiError error = invalid(std::move(path), "the text has " + std::to_string(bytes) +
                                                " bytes, and the maximum context length is " +
                                                std::to_string(facts.context_tokens) + " tokens");
  error.code = "context_length_exceeded";
  error.cause = ErrorCode::kOverflow;
  error.prompt_tokens = tokens;
  error.context_tokens = facts.context_tokens;
  return error;
}

Checked<std::vector<TokenId>> encode_text(const Engine& engine, std::string_view text,
                                          bool add_special_tokens, std::string path,
                                          const Interrupt& interrupted) {
  QUIRE_TRY_STATUS(check_bytes(engine, text.size(), path));
  QUIRE_TRY(const Tokenizer tokenizer, engine.tokenizer());
  auto ids = tokenizer.encode(text, add_special_tokens, interrupted);
  if (!ids.ok()) {
    return api_error(ids.error(), std::move(path));
  }
  if (ids->empty()) {
    return invalid(std::move(path), "the prompt has no token");
  }
  return std::move(ids).value();
}

}  // namespace quire::server
