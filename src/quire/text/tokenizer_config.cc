#include "quire/text/tokenizer_config.h"

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "quire/base/json.h"
#include "quire/base/str.h"
#include "quire/result.h"
#include "quire/text/added_tokens.h"
#include "quire/text/json_section.h"

namespace quire::text {
namespace {

// A token is written as a string or as an object with "content".
Result<std::optional<std::string>> get_token(const base::json::object& object,
                                             std::string_view key) {
  const base::json::value* value = base::find(object, key);
  if (value == nullptr) {
    return std::optional<std::string>();
  }
  if (const base::json::object* token = value->if_object()) {
    QUIRE_TRY(std::string content, require_string(*token, "content"));
    return std::optional(std::move(content));
  }
  QUIRE_TRY(std::string content, require_string(object, key));
  return std::optional(std::move(content));
}

Result<std::optional<bool>> get_flag(const base::json::object& object, std::string_view key) {
  if (base::find(object, key) == nullptr) {
    return std::optional<bool>();
  }
  QUIRE_TRY(const bool flag, base::get_bool(object, key, false));
  return std::optional(flag);
}

Result<std::vector<AddedToken>> added_tokens_decoder(const base::json::object& config) {
  std::vector<AddedToken> tokens;
  const base::json::value* section = base::find(config, "added_tokens_decoder");
  if (section == nullptr) {
    return tokens;
  }
  if (!section->is_object()) {
    return {ErrorCode::kInvalidArgument, "added_tokens_decoder must be an object"};
  }
  for (const auto& [key, value] : section->get_object()) {
    if (!value.is_object()) {
      return {ErrorCode::kInvalidArgument,
              base::str_cat("added_tokens_decoder: token ", base::quoted(std::string_view(key)),
                            " must be an object")};
    }
    QUIRE_TRY(AddedToken token, added_token_from_json(value.get_object()));
    const auto parsed = std::from_chars(key.data(), key.data() + key.size(), token.id);
    if (parsed.ec != std::errc() || parsed.ptr != key.data() + key.size() || token.id < 0) {
      return {ErrorCode::kInvalidArgument,
              base::str_cat("added_tokens_decoder: ", base::quoted(std::string_view(key)),
                            " is not a token id")};
    }
    tokens.push_back(std::move(token));
  }
  std::stable_sort(tokens.begin(), tokens.end(),
                   [](const AddedToken& a, const AddedToken& b) { return a.id < b.id; });
  return tokens;
}

}  // namespace

Result<AddedToken> added_token_from_json(const boost::json::object& object) {
  AddedToken token;
  QUIRE_TRY(token.content, require_string(object, "content"));
  QUIRE_TRY(token.special, base::get_bool(object, "special", false));
  QUIRE_TRY(token.single_word, base::get_bool(object, "single_word", false));
  QUIRE_TRY(token.lstrip, base::get_bool(object, "lstrip", false));
  QUIRE_TRY(token.rstrip, base::get_bool(object, "rstrip", false));
  QUIRE_TRY(token.normalized, base::get_bool(object, "normalized", !token.special));
  constexpr std::size_t kMaxBytes = 4096;  // bounds the work of matching at each place of a text
  if (token.content.size() > kMaxBytes) {
    return {ErrorCode::kInvalidArgument,
            base::str_cat("added token ", base::quoted(token.content, 20), " has ",
                          token.content.size(), " bytes; at most ", kMaxBytes)};
  }
  return token;
}

Result<TokenizerConfig> parse_tokenizer_config(std::string_view json) {
  TokenizerConfig config;
  if (json.empty()) {
    return config;
  }
  QUIRE_TRY(const base::json::value root, base::parse_json(json, "tokenizer_config.json"));
  if (!root.is_object()) {
    return {ErrorCode::kInvalidArgument, "tokenizer_config.json must be an object"};
  }
  const base::json::object& object = root.get_object();
  QUIRE_TRY(config.bos_token, get_token(object, "bos_token"));
  QUIRE_TRY(config.eos_token, get_token(object, "eos_token"));
  QUIRE_TRY(config.pad_token, get_token(object, "pad_token"));
  QUIRE_TRY(config.unk_token, get_token(object, "unk_token"));
  QUIRE_TRY(config.add_bos_token, get_flag(object, "add_bos_token"));
  QUIRE_TRY(config.add_eos_token, get_flag(object, "add_eos_token"));
  QUIRE_TRY(config.added_tokens, added_tokens_decoder(object));
  return config;
}

}  // namespace quire::text
