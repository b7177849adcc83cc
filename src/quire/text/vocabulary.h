// Vocabulary: all tokens of a tokenizer by id and by spelling, and which of them are special.
//
// Thread rule: immutable after loading.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "quire/text/string_table.h"
#include "quire/types.h"

namespace quire::text {

// Limit of a vocabulary; files that speak of more are refused.
inline constexpr std::size_t kMaxVocabulary = std::size_t{1} << 24;  // tokens

class Vocabulary {
 public:
  // Adds a token. Precondition: neither the spelling nor the id is taken.
  void add(std::string_view token, TokenId id) { tokens_.insert(token, id); }
  void mark_special(TokenId id);
  void mark_added(TokenId id);  // beside the model's own table

  [[nodiscard]] std::optional<TokenId> find(std::string_view token) const;
  [[nodiscard]] bool has(TokenId id) const { return tokens_.has(id); }
  // Returns a token's spelling. Precondition: has(id).
  [[nodiscard]] std::string_view token(TokenId id) const { return tokens_.text(id); }
  [[nodiscard]] bool is_special(TokenId id) const { return contains(special_, id); }
  // Returns whether a model may find it in text: special tokens are found before it runs, and added
  // ones are not in its table.
  [[nodiscard]] bool is_ordinary(TokenId id) const {
    return has(id) && !is_special(id) && !contains(added_, id);
  }
  [[nodiscard]] TokenId end_id() const { return tokens_.end_id(); }  // highest id + 1
  [[nodiscard]] std::size_t size() const { return tokens_.size(); }

 private:
  using Set = std::vector<bool>;  // by id; may end before the ids do
  static bool contains(const Set& set, TokenId id) {
    return id >= 0 && static_cast<std::size_t>(id) < set.size() &&
           set[static_cast<std::size_t>(id)];
  }
  static void insert(Set& set, TokenId id);

  StringTable tokens_;
  Set special_;
  Set added_;
};

// Ids of the tokens <0x00> ... <0xFF>; -1 where there is none.
using ByteTokens = std::array<TokenId, 256>;
[[nodiscard]] ByteTokens byte_tokens_of(const Vocabulary& vocabulary);

// Returns the byte that a token spelled "<0xAB>" stands for.
[[nodiscard]] std::optional<unsigned char> byte_of_token(std::string_view token);

}  // namespace quire::text
