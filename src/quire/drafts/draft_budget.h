// DraftBudget: what guessing costs beside steps without it, so that it stays out of the way.
//
// Time of three kinds is measured apart: that of rows, that of a drafter, and that of trials. A
// draft model takes a pass for one query as well as for many. So its time is no part of the line of
// rows.
#pragma once

#include <cstdint>

#include "quire/drafts/draft_length.h"

namespace quire::drafts {

// A step without guesses.
struct PlainStep {
  std::int64_t rows = 0;
  double tokens = 0;           // that it gives
  std::int32_t may_guess = 0;  // requests of it that may have guesses
  std::int32_t width = 1;      // rows of each token of a guess
};

// The guesses of a step, all requests together.
struct StepGuesses {
  std::int32_t requests = 0;
  std::int64_t rows = 0;
  std::int32_t levels = 0;  // of the longest one
  double expected = 0;      // tokens that they bring
};

class DraftBudget {
 public:
  // Notes a step of so many rows that took `seconds` without its drafter.
  void note_step(std::int64_t rows, double seconds) { rows_.add(rows, seconds); }
  // Notes that a drafter has answered queries, of up to `levels` tokens.
  void note_answer(std::int64_t queries, std::int32_t levels, double seconds) {
    levels_.add(queries, seconds / levels);
  }
  // Notes that time has passed, of which trials may take a small share.
  void earn(double seconds) { trial_seconds_ += kTrialShare * seconds; }
  void spend(double seconds) { trial_seconds_ -= seconds; }
  // Returns whether a trial may take so long.
  [[nodiscard]] bool may_spend(double seconds) const { return trial_seconds_ >= seconds; }

  // Returns the length of the guess of one request.
  [[nodiscard]] DraftLength length(double rate, const PlainStep& step, std::int32_t most) const;
  // Returns whether a gain, tokens a step, for `tokens` more tokens is worth `seconds`.
  [[nodiscard]] bool is_worth(const DraftLength& length, const PlainStep& step, double tokens,
                              double seconds) const;
  // Returns whether the guesses of a step pay together. Each alone may pay if its drafter's time is
  // shared among more than there are.
  [[nodiscard]] bool pays(const StepGuesses& guesses, const PlainStep& step) const;
  // Returns the time of more rows in a step.
  [[nodiscard]] double seconds_of(const PlainStep& step, std::int64_t more_rows) const {
    return rows_.seconds(step.rows + more_rows) - rows_.seconds(step.rows);
  }

 private:
  static constexpr double kTrialShare = 0.01;

  RowCosts rows_;
  RowCosts levels_;  // seconds of one level of all guesses, by queries
  double trial_seconds_ = 0;
};

}  // namespace quire::drafts
