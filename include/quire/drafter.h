// Drafter: a program's own guesses at what a model will say (docs/python.md,
// Guess ahead).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "quire/types.h"

namespace quire {

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
};

}  // namespace quire
