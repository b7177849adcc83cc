// Accepting guessed tokens: those that are what would have been chosen without the guess.
#pragma once

#include <cstddef>
#include <span>
#include <utility>
#include <vector>

#include "quire/result.h"
#include "quire/sampling/sampler.h"
#include "quire/types.h"

namespace quire::sampling {

// Chooses tokens along guessed ones, from guessed[first] on, and adds them to `chosen`. `choose(i)`
// returns the token where guessed[i] was guessed, or the one behind the last. Goes on while the
// guess is right, so the last token added is no guessed one. Each is chosen by the rule of a run
// without guesses, so neither a token nor its probability depends on what was guessed.
// Returns how many guessed tokens are right, those before `first` included, or the first error.
template <class Choose>
[[nodiscard]] Result<std::size_t> accept_guessed(std::span<const TokenId> guessed,
                                                 std::size_t first, const Choose& choose,
                                                 std::vector<SampledToken>& chosen) {
  for (std::size_t right = first;; ++right) {
    QUIRE_TRY(SampledToken token, choose(right));
    chosen.push_back(std::move(token));
    if (right >= guessed.size() || chosen.back().id != guessed[right]) {
      return right;
    }
  }
}

}  // namespace quire::sampling
