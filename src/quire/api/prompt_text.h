// Text of users that is kept beside its token ids: in chunks and items, and with them in stores.
#pragma once

#include <string>
#include <variant>
#include <vector>

#include "quire/llm.h"
#include "quire/text/utf8.h"
#include "quire/types.h"

namespace quire {

[[nodiscard]] inline bool is_well_formed(const Prompt& content) {
  const auto* text = std::get_if<std::string>(&content);
  return text == nullptr || text::valid_utf8_prefix(*text) == text->size();
}

// Returns `content` with ill-formed UTF-8 replaced by U+FFFD, as the tokenizer reads it anyway. The
// kept text becomes JSON.
[[nodiscard]] inline Prompt well_formed(const Prompt& content) {
  if (const auto* text = std::get_if<std::string>(&content)) {
    return text::repair_utf8(*text);
  }
  // Not a copy of the variant: libstdc++ 12 destroys one whose copy was refused memory.
  return std::vector<TokenId>(std::get<std::vector<TokenId>>(content));
}

}  // namespace quire
