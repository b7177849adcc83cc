// tokenizer_config.json: what transformers keeps beside the tokenizer proper.
#pragma once

#include <boost/json/fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "quire/result.h"
#include "quire/text/added_tokens.h"

namespace quire::text {

struct TokenizerConfig {
  std::optional<std::string> bos_token;
  std::optional<std::string> eos_token;
  std::optional<std::string> pad_token;
  std::optional<std::string> unk_token;
  std::optional<bool> add_bos_token;
  std::optional<bool> add_eos_token;
  std::vector<AddedToken> added_tokens;  // added_tokens_decoder, by id
};

// Empty text gives an empty config. Other keys (chat_template, model_max_length, legacy,
// clean_up_tokenization_spaces ...) do not change ids or decoding here and are left alone.
[[nodiscard]] Result<TokenizerConfig> parse_tokenizer_config(std::string_view json);

// {"content": ..., "lstrip": ..., ...}; the id is not read.
[[nodiscard]] Result<AddedToken> added_token_from_json(const boost::json::object& object);

}  // namespace quire::text
