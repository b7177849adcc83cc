// Drafter: a program's own guesses at what a model will say (docs/python.md,
// Guess ahead).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "quire/types.h"

namespace quire {

// Guessed tokens as a tree, in depth-first order. Each stands behind its parent, which comes before
// it. The first one of several behind one parent should be the likeliest.
struct DraftTree {
  std::vector<TokenId> tokens;
  // [tokens] or empty: index of the token that each stands behind; -1: the last token so far.
  // Empty: each stands behind the one before it.
  std::vector<std::int32_t> parents;
};

// Proposes tokens for speculative decoding (LLMOptions::drafter). A guess changes no id: the model
// checks it, and what it would not have said is dropped.
//
// Threads: the engine's thread alone calls it, while no step runs. So it must return soon and must
// not call back into Quire.
class Drafter {
 public:
  Drafter() = default;
  virtual ~Drafter() = default;
  Drafter(const Drafter&) = delete;
  Drafter& operator=(const Drafter&) = delete;

  // Returns up to `max_tokens` ids that may follow. `token_ids` are all tokens of prompt and output
  // so far, valid during the call. Further ids, and all from one outside of the vocabulary on, are
  // left out. An exception counts as no guess.
  [[nodiscard]] virtual std::vector<TokenId> propose(std::span<const TokenId> token_ids,
                                                     std::int32_t max_tokens) = 0;
  // Returns a tree with up to `max_tokens` tokens one behind the other, and `max_in_tree` in all.
  // That is more where the key "width" of LLMOptions::speculate is above 1. From the first token on
  // that is out of order, all are left out. The default is the chain of propose().
  [[nodiscard]] virtual DraftTree propose_tree(std::span<const TokenId> token_ids,
                                               std::int32_t max_tokens,
                                               std::int32_t /*max_in_tree*/) {
    return {.tokens = propose(token_ids, max_tokens), .parents = {}};
  }
};

}  // namespace quire
