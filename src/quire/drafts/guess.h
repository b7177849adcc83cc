// Guess: tokens that may come next, as a tree. A chain is a tree without branches.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "quire/drafter.h"

namespace quire::drafts {

// Every beginning of a guess is one, too.
using Guess = DraftTree;

// Drops all tokens.
void clear(Guess& guess);
// Drops all but the first `count` tokens, and all from the first one on that is not in depth-first
// order or whose parent is none.
void cut(Guess& guess, std::size_t count);

// Tokens of a guess that stand one behind the other, as far as the list has them in a row.
struct Branch {
  std::int32_t parent = -1;  // token that the first one stands behind; -1: the last certain one
  std::int32_t first = 0;    // index in the guess
  std::int32_t count = 0;
  std::int32_t depth = 0;  // tokens of the guess on the way to the first one
};

// Returns the branches of a guess. Every token is in one, and branch 0 is behind the last certain
// token. Empty for a guess without tokens.
[[nodiscard]] std::vector<Branch> branches_of(const Guess& guess);

// Returns the indices of the tokens up to `last`, from the first one of its path on.
[[nodiscard]] std::vector<std::int32_t> path_to(const Guess& guess, std::int32_t last);

}  // namespace quire::drafts
