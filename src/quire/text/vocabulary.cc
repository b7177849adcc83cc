#include "quire/text/vocabulary.h"

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

#include "quire/types.h"

namespace quire::text {
namespace {

int hex_digit(char c) {
  if (c >= '0' && c <= '9') {
    return c - '0';
  }
  if (c >= 'A' && c <= 'F') {
    return c - 'A' + 10;
  }
  return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

}  // namespace

void Vocabulary::mark_special(TokenId id) { insert(special_, id); }

void Vocabulary::mark_added(TokenId id) { insert(added_, id); }

void Vocabulary::insert(Set& set, TokenId id) {
  if (static_cast<std::size_t>(id) >= set.size()) {
    set.resize(static_cast<std::size_t>(id) + 1);
  }
  set[static_cast<std::size_t>(id)] = true;
}

std::optional<TokenId> Vocabulary::find(std::string_view token) const {
  const TokenId id = tokens_.find(token);
  return id >= 0 ? std::optional(id) : std::nullopt;
}

ByteTokens byte_tokens_of(const Vocabulary& vocabulary) {
  constexpr std::string_view kHex = "0123456789ABCDEF";
  ByteTokens ids{};
  for (std::size_t byte = 0; byte < ids.size(); ++byte) {
    const std::string token = {'<', '0', 'x', kHex[byte >> 4], kHex[byte & 15], '>'};
    ids[byte] = vocabulary.find(token).value_or(-1);
  }
  return ids;
}

std::optional<unsigned char> byte_of_token(std::string_view token) {
  if (token.size() != 6 || !token.starts_with("<0x") || token[5] != '>') {
    return std::nullopt;
  }
  const int high = hex_digit(token[3]);
  const int low = hex_digit(token[4]);
  if (high < 0 || low < 0) {
    return std::nullopt;
  }
  return static_cast<unsigned char>(high << 4 | low);
}

}  // namespace quire::text
