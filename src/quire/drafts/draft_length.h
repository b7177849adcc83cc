// How many tokens to guess: by what guesses have brought, what a row costs, and who else runs.
#pragma once

#include <cstdint>

namespace quire::drafts {

// Counts what became of the guesses of one request. Old ones count less.
class Acceptance {
 public:
  // Begins with what other requests have shown, if nothing is known of this one.
  void begin(const Acceptance& others);
  // Notes a guess of `drafted` tokens, of which the first `accepted` were right.
  void note(std::int32_t drafted, std::int32_t accepted);
  // Notes a step without a guess, though one was allowed by the request.
  void note_silence() { ++silent_; }
  // Returns the probability that a guessed token is right if those before it are.
  [[nodiscard]] double rate() const { return right_ / (right_ + wrong_); }
  // Returns whether it is time to try again what did not pay. Waits twice as long each time.
  [[nodiscard]] bool may_probe() const { return silent_ >= wait_; }

 private:
  double right_ = 1;
  double wrong_ = 1;
  bool begun_ = false;
  std::int32_t silent_ = 0;
  std::int32_t wait_ = 32;
};

// Seconds of steps by their rows, where every request generates: a line through what was measured.
// Old steps count less, and so do slow ones, since errors are relative.
class RowCosts {
 public:
  static constexpr std::int32_t kMostRows = 256;

  void add(std::int64_t rows, double seconds);
  // Returns the time of a step of so many rows; 0: none was measured. Where all had one size, a row
  // is taken to cost a quarter of its share.
  [[nodiscard]] double seconds(std::int64_t rows) const;

 private:
  double weight_ = 0;  // sums over steps, each divided by its seconds squared
  double rows_ = 0;
  double squares_ = 0;
  double seconds_ = 0;
  double products_ = 0;
};

// A step without guesses, and how guesses for it would be.
struct DraftChoice {
  std::int64_t rows = 0;
  double tokens = 0;         // that it gives
  std::int32_t most = 0;     // tokens one behind the other
  std::int32_t width = 1;    // rows that each of them takes
  double level_seconds = 0;  // that its drafter needs for each of them
};

// Tokens that each guessed one shall bring beside those of its time.
inline constexpr double kLeastGain = 0.03;

struct DraftLength {
  std::int32_t tokens = 0;  // to guess one behind the other
  double expected = 1;      // tokens that a step gives with them
  double gain = 0;          // tokens of a step, beside those of its time and the least gain
};

// Returns the length with which a step gives the most tokens a second. 0 where none pays.
[[nodiscard]] DraftLength draft_length(double rate, const RowCosts& costs,
                                       const DraftChoice& choice);

// Returns how many of `drafted` tokens, and the one behind them, a step gives at this rate.
[[nodiscard]] double expected_tokens(double rate, std::int32_t drafted);

}  // namespace quire::drafts
