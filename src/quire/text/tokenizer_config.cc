#include "quire/text/tokenizer_config.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <limits>
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
#include "quire/types.h"

namespace quire::text {
namespace {

constexpr std::array<std::string_view, 7> kSpecialNames = {
    "bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"};

// Reads a special token, which is written as a string or as a JSON object with "content". One that
// has a name is special whatever it says.
Result<AddedToken> special_token(base::JsonView value, std::string_view key, bool is_named) {
  base::Json token = value.is_object() ? base::Json::copy(value) : base::Json::object();
  if (value.is_string()) {
    token.set("content", value.as_string());
  } else if (!value.is_object()) {
    return {ErrorCode::kInvalidArgument,
            base::str_cat("key ", base::quoted(key), " must be a string or an object")};
  }
  if (is_named) {
    token.set("special", true);
  }
  token.add("special", true);
  return added_token_from_json(token);
}

// Returns the seven names, then the model's own: other keys of this form, then those of a JSON
// object.
std::vector<base::JsonMember> named_values(base::JsonView object) {
  std::vector<base::JsonMember> values;
  for (const std::string_view name : kSpecialNames) {
    if (const base::JsonView value = object.find(name); !value.is_null()) {
      values.push_back({.key = name, .value = value});
    }
  }
  for (const base::JsonMember member : object.members()) {
    const bool is_token = member.value.is_string() || member.value.contains("content");
    if (is_token && member.key.ends_with("_token") &&
        std::ranges::find(kSpecialNames, member.key) == kSpecialNames.end()) {
      values.push_back(member);
    }
  }
  for (const char* holder : {"model_specific_special_tokens", "extra_special_tokens"}) {
    for (const base::JsonMember member : object.find(holder).members()) {
      values.push_back(member);
    }
  }
  return values;
}

Status add_named(base::JsonView object, TokenizerConfig& config) {
  for (const auto& [name, value] : named_values(object)) {
    QUIRE_TRY(AddedToken token, special_token(value, name, true));
    config.named.push_back({.name = std::string(name), .token = std::move(token)});
  }
  return {};
}

Status add_extra(base::JsonView object, TokenizerConfig& config) {
  std::string_view key = "extra_special_tokens";  // "additional_" up to transformers 4
  base::JsonView list = object.find(key);
  if (list.is_null()) {
    key = "additional_special_tokens";
    list = object.find(key);
  }
  if (list.is_null() || list.is_object()) {
    return {};
  }
  if (!list.is_array()) {
    return {ErrorCode::kInvalidArgument,
            base::str_cat("key ", base::quoted(key), " must be a list of tokens")};
  }
  for (const base::JsonView value : list.elements()) {
    QUIRE_TRY(AddedToken token, special_token(value, key, false));
    config.extra.push_back(std::move(token));
  }
  return {};
}

Result<base::Json> parse_object(std::string_view json, std::string_view what) {
  if (json.empty()) {
    return base::Json::object();
  }
  QUIRE_TRY(base::Json root, base::parse_model_json(json, what));
  if (!root.view().is_object()) {
    return {ErrorCode::kInvalidArgument, base::str_cat(what, " must be an object")};
  }
  return root;
}

Result<std::optional<bool>> get_flag(base::JsonView object, std::string_view key) {
  if (object.find(key).is_null()) {
    return std::optional<bool>();
  }
  QUIRE_TRY(const bool flag, base::get_bool(object, key, false));
  return std::optional(flag);
}

Result<std::vector<AddedToken>> added_tokens_decoder(base::JsonView config) {
  std::vector<AddedToken> tokens;
  const base::JsonView section = config.find("added_tokens_decoder");
  if (section.is_null()) {
    return tokens;
  }
  if (!section.is_object()) {
    return {ErrorCode::kInvalidArgument, "added_tokens_decoder must be an object"};
  }
  for (const auto [key, value] : section.members()) {
    if (!value.is_object()) {
      return {ErrorCode::kInvalidArgument, base::str_cat("added_tokens_decoder: token ",
                                                         base::quoted(key), " must be an object")};
    }
    QUIRE_TRY(AddedToken token, added_token_from_json(value));
    const auto parsed = std::from_chars(key.data(), key.data() + key.size(), token.id);
    if (parsed.ec != std::errc() || parsed.ptr != key.data() + key.size() || token.id < 0) {
      return {ErrorCode::kInvalidArgument,
              base::str_cat("added_tokens_decoder: ", base::quoted(key), " is not a token id")};
    }
    tokens.push_back(std::move(token));
  }
  std::stable_sort(tokens.begin(), tokens.end(),
                   [](const AddedToken& a, const AddedToken& b) { return a.id < b.id; });
  return tokens;
}

}  // namespace

Result<AddedToken> added_token_from_json(base::JsonView object) {
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

const std::string* TokenizerConfig::find(std::string_view name) const {
  const auto found = std::ranges::find(named, name, &NamedSpecial::name);
  return found == named.end() ? nullptr : &found->token.content;
}

Result<TokenizerConfig> parse_tokenizer_config(std::string_view json,
                                               std::string_view special_tokens_map_json) {
  TokenizerConfig config;
  QUIRE_TRY(base::Json object, parse_object(json, "tokenizer_config.json"));
  if (object.view().find("added_tokens_decoder").is_null()) {
    QUIRE_TRY(const base::Json map,
              parse_object(special_tokens_map_json, "special_tokens_map.json"));
    for (const auto [key, value] : map.view().members()) {
      object.set(key, base::Json::copy(value));
    }
  }
  QUIRE_TRY_STATUS(add_named(object, config));
  QUIRE_TRY_STATUS(add_extra(object, config));
  QUIRE_TRY(config.add_bos_token, get_flag(object, "add_bos_token"));
  QUIRE_TRY(config.add_eos_token, get_flag(object, "add_eos_token"));
  QUIRE_TRY(config.split_special_tokens, base::get_bool(object, "split_special_tokens", false));
  QUIRE_TRY(config.added_tokens, added_tokens_decoder(object));
  return config;
}

Status add_tokens_of_file(std::string_view added_tokens_json, TokenizerConfig& config) {
  if (!config.added_tokens.empty()) {
    return {};
  }
  QUIRE_TRY(const base::Json file, parse_object(added_tokens_json, "added_tokens.json"));
  for (const auto [content, value] : file.view().members()) {
    const std::int64_t id = value.exact<std::int64_t>().value_or(-1);
    if (id < 0 || id > std::numeric_limits<TokenId>::max()) {
      return {ErrorCode::kInvalidArgument,
              base::str_cat("added_tokens.json: id ", base::write_json(value), " of token ",
                            base::quoted(content), " is no token id")};
    }
    QUIRE_TRY(AddedToken token, added_token_from_json(base::Json::object({{"content", content}})));
    const auto is_it = [&](std::string_view special) { return special == content; };
    token.special =
        std::ranges::any_of(config.named, is_it, [](const auto& n) { return n.token.content; }) ||
        std::ranges::any_of(config.extra, is_it, &AddedToken::content);
    token.id = static_cast<TokenId>(id);
    config.added_tokens.push_back(std::move(token));
  }
  std::ranges::stable_sort(config.added_tokens, {}, &AddedToken::id);
  return {};
}

}  // namespace quire::text
