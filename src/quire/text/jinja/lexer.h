// Template text to tokens, with the white space control of jinja2 (trim_blocks, lstrip_blocks).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "quire/result.h"

namespace quire::text::jinja {

enum class TokenKind : std::uint8_t {
  kData,           // literal text
  kBlockBegin,     // {%
  kBlockEnd,       // %}
  kVariableBegin,  // {{
  kVariableEnd,    // }}
  kName,
  kString,  // text is the value, escapes resolved
  kInteger,
  kFloat,
  kOperator,
  kEnd,
};

struct Token {
  TokenKind kind = TokenKind::kEnd;
  std::string text;
  int line = 1;
};

// All tokens, ended by one kEnd. Comments and raw tags are gone. kInvalidArgument with the line for
// malformed tokens and tags that are not closed.
[[nodiscard]] Result<std::vector<Token>> tokenize(std::string_view source);

}  // namespace quire::text::jinja
