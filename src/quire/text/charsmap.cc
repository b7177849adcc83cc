#include "quire/text/charsmap.h"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include "quire/base/str.h"
#include "quire/result.h"
#include "quire/text/utf8.h"

namespace quire::text {
namespace {

std::uint32_t read_u32(std::string_view bytes, std::size_t at) {
  const auto byte = [&](std::size_t i) {
    return static_cast<std::uint32_t>(static_cast<unsigned char>(bytes[at + i]));
  };
  return byte(0) | byte(1) << 8 | byte(2) << 16 | byte(3) << 24;
}

// Tells whether a unit has a leaf. This and the next functions read the fields of a unit, as Darts
// packs them.
bool has_leaf(std::uint32_t unit) { return (unit >> 8 & 1) != 0; }
std::uint32_t value_of(std::uint32_t unit) { return unit & 0x7FFFFFFF; }
std::uint32_t label_of(std::uint32_t unit) { return unit & 0x800000FF; }
std::uint32_t offset_of(std::uint32_t unit) { return unit >> 10 << ((unit & 1U << 9) >> 6); }

}  // namespace

Result<Charsmap> Charsmap::parse(std::string_view blob) {
  const std::size_t trie_bytes = blob.size() >= 4 ? read_u32(blob, 0) : 0;
  if (trie_bytes == 0 || trie_bytes % 4 != 0 || trie_bytes > blob.size() - 4) {
    return {ErrorCode::kInvalidArgument,
            base::str_cat("precompiled_charsmap of ", blob.size(), " bytes states a trie of ",
                          trie_bytes, " bytes")};
  }
  Charsmap map;
  map.units_.reserve(trie_bytes / 4);
  for (std::size_t at = 4; at < 4 + trie_bytes; at += 4) {
    map.units_.push_back(read_u32(blob, at));
  }
  map.replacements_ = blob.substr(4 + trie_bytes);
  map.replacements_.push_back('\0');
  return map;
}

template <class Found>
void Charsmap::walk(std::string_view text, Found&& found) const {
  std::size_t node = offset_of(units_[0]);
  for (std::size_t i = 0; i < text.size() && text[i] != '\0'; ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    node ^= byte;
    if (node >= units_.size() || label_of(units_[node]) != byte) {
      return;
    }
    const std::uint32_t unit = units_[node];
    node ^= offset_of(unit);
    if (has_leaf(unit) && node < units_.size() && !found(i + 1, value_of(units_[node]))) {
      return;
    }
  }
}

// Returns the replacement. A table that would cut a character or put in a part of one has no entry
// there: text stays well-formed.
std::optional<Charsmap::Match> Charsmap::match(std::string_view text, std::size_t length,
                                               std::uint32_t value) const {
  if (length == 0 || value >= replacements_.size() ||
      (length < text.size() && is_utf8_continuation(text[length]))) {
    return std::nullopt;
  }
  const std::string_view replacement(replacements_.c_str() + value);
  if (valid_utf8_prefix(replacement) != replacement.size()) {
    return std::nullopt;
  }
  return Match{.length = length, .replacement = replacement};
}

std::optional<Charsmap::Match> Charsmap::shortest_prefix(std::string_view text) const {
  std::size_t best = 0;
  std::uint32_t best_value = 0;
  walk(text, [&](std::size_t length, std::uint32_t value) {
    best = length;
    best_value = value;
    return false;
  });
  return match(text, best, best_value);
}

std::optional<Charsmap::Match> Charsmap::longest_prefix(std::string_view text) const {
  std::size_t best = 0;
  std::uint32_t best_value = 0;
  walk(text, [&](std::size_t length, std::uint32_t value) {
    best = length;
    best_value = value;
    return true;
  });
  return match(text, best, best_value);
}

}  // namespace quire::text
