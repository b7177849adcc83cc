#include "quire/engine/gguf_vocab.h"

#include <algorithm>
#include <cctype>
#include <cstddef>
#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "quire/base/str.h"
#include "quire/result.h"
#include "quire/text/vocab_spec.h"
#include "quire/types.h"
#include "quire/weights/gguf.h"

namespace quire::engine {
namespace {

using text::VocabSpec;
using weights::GgufFile;

std::string full_key(const char* name) { return std::string("tokenizer.ggml.") + name; }

template <class T>
Result<std::vector<T>> list_of(const GgufFile& file, const char* name, std::size_t expected) {
  QUIRE_TRY(const auto* found, file.find_as<std::vector<T>>(full_key(name)));
  if (found == nullptr) {
    return std::vector<T>();
  }
  if (expected != 0 && found->size() != expected) {
    return {ErrorCode::kCorrupt, base::str_cat(full_key(name), " has ", found->size(),
                                               " entries for ", expected, " tokens")};
  }
  return *found;
}

Status read_ids(const GgufFile& file, VocabSpec& spec) {
  constexpr struct {
    const char* name;
    TokenId VocabSpec::* field;
    bool decides;  // true: it decides where a text begins or ends, and must be right
  } kIds[] = {
      {"bos_token_id", &VocabSpec::bos, true},        {"eos_token_id", &VocabSpec::eos, true},
      {"eot_token_id", &VocabSpec::eot, true},        {"unknown_token_id", &VocabSpec::unk, false},
      {"seperator_token_id", &VocabSpec::sep, false},  // spelled so in the format
      {"padding_token_id", &VocabSpec::pad, false},   {"mask_token_id", &VocabSpec::mask, false},
      {"cls_token_id", &VocabSpec::cls, false}};
  for (const auto& [name, field, decides] : kIds) {
    QUIRE_TRY(const std::int64_t id, file.get_token_id(full_key(name)));
    const bool is_there = id >= -1 && id < std::ssize(spec.tokens);
    if (!is_there && decides) {
      return {ErrorCode::kCorrupt, base::str_cat(full_key(name), " is ", id, ", but there are ",
                                                 spec.tokens.size(), " tokens")};
    }
    spec.*field = is_there ? static_cast<TokenId>(id) : TokenId{-1};  // -1: absent
  }
  return {};
}

// Reads the scores. Most files hold floats, old ones whole numbers.
Result<std::vector<float>> read_scores(const GgufFile& file, std::size_t num_tokens) {
  const weights::GgufValue* value = file.find(full_key("scores"));
  if (value != nullptr && std::holds_alternative<std::vector<std::int64_t>>(*value)) {
    QUIRE_TRY(const auto whole, list_of<std::int64_t>(file, "scores", num_tokens));
    return std::vector<float>(whole.begin(), whole.end());
  }
  QUIRE_TRY(const auto scores, list_of<double>(file, "scores", num_tokens));
  return std::vector<float>(scores.begin(), scores.end());
}

// Tells whether the model is Phi-3, whose special tokens swallow the white space behind them.
// llama.cpp, too, goes by the name.
bool is_phi3(const GgufFile& file) {
  const weights::GgufValue* value = file.find("general.name");
  const auto* text = value == nullptr ? nullptr : std::get_if<std::string>(value);
  std::string name = text == nullptr ? "" : *text;
  std::transform(name.begin(), name.end(), name.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return name.find("phi-3") != std::string::npos || name.find("phi3") != std::string::npos;
}

Result<int> tristate(const GgufFile& file, const char* name) {
  QUIRE_TRY(const bool* value, file.find_as<bool>(full_key(name)));
  return value == nullptr ? -1 : static_cast<int>(*value);
}

}  // namespace

Result<text::VocabSpec> vocab_from_gguf(const GgufFile& file) {
  VocabSpec spec;
  QUIRE_TRY(spec.model, file.get_string(full_key("model"), ""));
  QUIRE_TRY(spec.pre, file.get_string(full_key("pre"), ""));
  QUIRE_TRY(spec.tokens, list_of<std::string>(file, "tokens", 0));
  if (spec.model.empty() || spec.tokens.empty()) {
    return {ErrorCode::kUnsupported, "the GGUF file holds no vocabulary (tokenizer.ggml.tokens)"};
  }
  QUIRE_TRY(spec.scores, read_scores(file, spec.tokens.size()));
  QUIRE_TRY(const auto types, list_of<std::int64_t>(file, "token_type", spec.tokens.size()));
  spec.token_types.assign(types.begin(), types.end());
  QUIRE_TRY(spec.merges, list_of<std::string>(file, "merges", 0));
  QUIRE_TRY_STATUS(read_ids(file, spec));
  QUIRE_TRY(spec.add_bos, tristate(file, "add_bos_token"));
  QUIRE_TRY(spec.add_eos, tristate(file, "add_eos_token"));
  QUIRE_TRY(spec.add_space_prefix, tristate(file, "add_space_prefix"));
  QUIRE_TRY(spec.remove_extra_whitespaces,
            file.get_bool(full_key("remove_extra_whitespaces"), spec.remove_extra_whitespaces));
  QUIRE_TRY(spec.normalizer_lowercase, tristate(file, "normalizer.lowercase"));
  QUIRE_TRY(spec.normalizer_strip_accents, tristate(file, "normalizer.strip_accents"));
  spec.specials_strip_right = is_phi3(file);
  QUIRE_TRY(const auto charsmap, list_of<std::int64_t>(file, "precompiled_charsmap", 0));
  for (const std::int64_t byte : charsmap) {
    spec.precompiled_charsmap += static_cast<char>(byte);
  }
  return spec;
}

}  // namespace quire::engine
