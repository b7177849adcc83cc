// Text of users that is kept beside its token ids: in chunks and items, and with them in stores.
#pragma once

#include <string>
#include <variant>

#include "quire/llm.h"
#include "quire/text/utf8.h"

namespace quire {

// `content` with ill-formed UTF-8 replaced by U+FFFD, as which the tokenizer reads it anyway: what
// is kept becomes JSON.
[[nodiscard]] inline Prompt well_formed(Prompt content) {
  if (auto* text = std::get_if<std::string>(&content)) {
    *text = text::repair_utf8(*text);
  }
  return content;
}

}  // namespace quire
