// Ids to text as they arrive: joined pieces equal the decode of all ids, and no piece ever ends in
// the middle of a character.
//
// Thread rule: one thread per object; the tokenizer is borrowed and must outlive it.
#pragma once

#include <memory>
#include <string_view>

#include "quire/result.h"
#include "quire/text/tokenizer.h"
#include "quire/types.h"

namespace quire::text {

class Detokenizer {
 public:
  explicit Detokenizer(const Tokenizer& tokenizer, bool skip_special_tokens = true);
  ~Detokenizer();
  Detokenizer(Detokenizer&&) noexcept;
  Detokenizer& operator=(Detokenizer&&) noexcept;

  // Returns text that became certain with `id` (may be empty; it is for ids of no token). Amortised
  // O(bytes of the token). Valid until the next call, as for flush.
  [[nodiscard]] std::string_view push(TokenId id);
  // Returns the text that was held back; incomplete bytes become U+FFFD. The object starts afresh
  // afterwards.
  [[nodiscard]] std::string_view flush();
  // Returns kInvalidArgument naming what ran out when the tokens became more text than
  // work_limits.h allows. Text is missing then.
  [[nodiscard]] Status status() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace quire::text
