// The precompiled character map of sentencepiece: a double-array trie of replacements.
// Format: sentencepiece src/normalizer.cc and Darts (Yata et al., 2007).
//
// Thread rule: immutable.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "quire/result.h"

namespace quire::text {

class Charsmap {
 public:
  // Parses a table. `blob`: u32 little-endian size of the trie, the trie's 32-bit units,
  // NUL-terminated replacements. kInvalidArgument when the sizes disagree.
  [[nodiscard]] static Result<Charsmap> parse(std::string_view blob);

  struct Match {
    std::size_t length;            // bytes of the text that it replaces: whole characters
    std::string_view replacement;  // well-formed; borrowed from this object
  };
  [[nodiscard]] std::optional<Match> shortest_prefix(std::string_view text) const;
  [[nodiscard]] std::optional<Match> longest_prefix(std::string_view text) const;

 private:
  // Calls `found(length, value)` for each entry that is a prefix of `text`, shortest first, until
  // it returns false.
  template <class Found>
  void walk(std::string_view text, Found&& found) const;
  [[nodiscard]] std::optional<Match> match(std::string_view text, std::size_t length,
                                           std::uint32_t value) const;

  std::vector<std::uint32_t> units_;
  std::string replacements_;  // ends with NUL
};

}  // namespace quire::text
