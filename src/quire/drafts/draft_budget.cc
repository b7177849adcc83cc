#include "quire/drafts/draft_budget.h"

#include <algorithm>
#include <cstdint>

#include "quire/drafts/draft_length.h"

namespace quire::drafts {

DraftLength DraftBudget::length(double rate, const PlainStep& step, std::int32_t most) const {
  const std::int32_t sharers = std::max(step.may_guess, 1);
  return draft_length(rate, rows_,
                      {.rows = step.rows,
                       .tokens = step.tokens,
                       .most = most,
                       .width = step.width,
                       .level_seconds = levels_.seconds(sharers) / sharers});
}

bool DraftBudget::is_worth(const DraftLength& length, const PlainStep& step, double tokens,
                           double seconds) const {
  const double token_seconds = step.tokens > 0 ? rows_.seconds(step.rows) / step.tokens : 0;
  const double steps = tokens / std::max(length.expected, 1.0);
  return seconds <= steps * length.gain * token_seconds;
}

bool DraftBudget::pays(const StepGuesses& guesses, const PlainStep& step) const {
  const double plain = rows_.seconds(step.rows);
  const double seconds =
      rows_.seconds(step.rows + guesses.rows) + levels_.seconds(guesses.requests) * guesses.levels;
  const double lost = plain == 0 ? 0 : step.tokens * (seconds / plain - 1);
  return guesses.expected > lost + kLeastGain * static_cast<double>(guesses.rows);
}

}  // namespace quire::drafts
