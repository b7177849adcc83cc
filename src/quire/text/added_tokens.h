// Added tokens: strings that become one id before anything else looks at the text. Matching is
// leftmost-longest, with the flags of Hugging Face `tokenizers` (added_vocabulary.rs).
//
// Thread rule: immutable after building.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "quire/base/work_meter.h"
#include "quire/text/byte_trie.h"
#include "quire/text/normal_text.h"
#include "quire/types.h"

namespace quire::text {

struct AddedToken {
  std::string content;
  TokenId id = -1;
  bool single_word = false;  // only where no word character is next to it
  bool lstrip = false;       // swallows white space on its left
  bool rstrip = false;       // swallows white space on its right
  bool normalized = false;   // matched in, and as, normalized text
  bool special = false;      // skipped by decode; only matched where the caller allows it
};

class AddedTokenMatcher {
 public:
  AddedTokenMatcher() = default;
  // Matches `tokens[i].content`. Empty contents are left out.
  explicit AddedTokenMatcher(std::vector<AddedToken> tokens);

  struct TextRange {
    std::size_t begin;
    std::size_t end;
    TokenId id;  // -1: text
  };
  // Cuts well-formed `text` into text and token ranges, none empty but tokens without a width. A
  // special token counts only where `authors` allow it. Cut short when `meter` has failed.
  [[nodiscard]] std::vector<TextRange> split(std::string_view text, const Authors& authors,
                                             base::WorkMeter& meter) const;
  // Returns whether this token matches wherever it is written, and leaves the text on its left as
  // it is.
  [[nodiscard]] bool always_cuts(TokenId id) const;

 private:
  [[nodiscard]] const AddedToken* match_at(std::string_view text, std::size_t at,
                                           const Authors& authors, base::WorkMeter& meter) const;

  std::vector<AddedToken> tokens_;
  ByteTrie trie_;
  std::vector<bool> starts_token_;  // by first byte
};

}  // namespace quire::text
