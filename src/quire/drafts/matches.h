// Places where the last tokens of a text stand a second time.
#pragma once

#include <cstddef>
#include <span>

#include "quire/types.h"

namespace quire::drafts {

// Tokens beyond which a match does not become better.
inline constexpr std::size_t kLongMatch = 32;

// Returns how many tokens before `end` are the last ones of `own`, at most kLongMatch.
[[nodiscard]] std::size_t match_length(std::span<const TokenId> own, std::span<const TokenId> text,
                                       std::size_t end);

// Calls visit(end, length) for each place of `text`, the last first, before which the last token of
// `own` stands, and behind which a token does. `visit` returns false to end the search. `own` is
// not empty.
template <class Visit>
void visit_matches(std::span<const TokenId> own, std::span<const TokenId> text,
                   const Visit& visit) {
  const TokenId last = own.back();
  for (std::size_t end = text.empty() ? 0 : text.size() - 1; end > 0; --end) {
    if (text[end - 1] == last && !visit(end, match_length(own, text, end))) {
      return;
    }
  }
}

}  // namespace quire::drafts
