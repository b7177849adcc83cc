// tokenizer_config.json and special_tokens_map.json: what transformers keeps beside the tokenizer
// proper.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "quire/base/json.h"
#include "quire/result.h"
#include "quire/text/added_tokens.h"

namespace quire::text {

struct NamedSpecial {
  std::string name;  // "bos_token"
  AddedToken token;
};

struct TokenizerConfig {
  std::vector<NamedSpecial> named;  // in the order in which transformers adds them
  std::vector<AddedToken> extra;    // special tokens without a name
  std::optional<bool> add_bos_token;
  std::optional<bool> add_eos_token;
  bool split_special_tokens = false;     // special tokens written in a text are text
  std::vector<AddedToken> added_tokens;  // added_tokens_decoder, by id

  // Returns the spelling of a named token, or nullptr.
  [[nodiscard]] const std::string* find(std::string_view name) const;
};

// Parses a configuration. Empty text gives an empty config. A value of special_tokens_map.json
// counts more, and nothing of it where there is an added_tokens_decoder, as in transformers. Other
// keys (chat_template, model_max_length, legacy, clean_up_tokenization_spaces ...) do not change
// ids or decoding here and are left alone.
[[nodiscard]] Result<TokenizerConfig> parse_tokenizer_config(
    std::string_view json, std::string_view special_tokens_map_json = {});

// Fills in `added_tokens` from added_tokens.json ({token: id}), where transformers up to version 4
// kept them; nothing where there is an added_tokens_decoder.
[[nodiscard]] Status add_tokens_of_file(std::string_view added_tokens_json,
                                        TokenizerConfig& config);

// Reads {"content": ..., "lstrip": ..., ...}. The id is not read.
[[nodiscard]] Result<AddedToken> added_token_from_json(base::JsonView object);

}  // namespace quire::text
