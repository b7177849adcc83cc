// Shows the progress of a wait as one line on a terminal, which goes when the wait is over; shows
// nothing elsewhere.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>

#include "quire/llm.h"

namespace quire::cli {

// A line on stderr, if that is a terminal, shown after the first second of the wait.
class ProgressLine {
 public:
  ProgressLine();
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;
  ~ProgressLine() { clear(); }

  // Returns whether show() would show something now. It is due a few times a second.
  [[nodiscard]] bool due() const;
  // Shows `text` in place of the line there, if it is due.
  void show(const std::string& text);
  void clear();
  [[nodiscard]] double seconds() const;

 private:
  using Clock = std::chrono::steady_clock;

  const bool terminal_;
  const Clock::time_point start_ = Clock::now();
  Clock::time_point next_;
  std::size_t shown_ = 0;  // characters that stand on the line
};

// Shows the tokens that `llm` computes while somebody waits for its answer.
class ComputeProgress {
 public:
  // Begins to count; make it before the work begins. `tokens` will have to be computed, 0: not
  // known yet. `llm` must outlive this.
  ComputeProgress(const LLM& llm, std::int64_t tokens);
  // Sets how many tokens will have to be computed.
  void expect(std::int64_t tokens) { tokens_ = tokens; }

  // Shows the progress. The thread that waits calls it at each look.
  void look();
  // Removes the line for good: the answer has begun.
  void end();
  // Returns an interrupt that looks, then asks `interrupted`.
  [[nodiscard]] Interrupt beside(Interrupt interrupted);

 private:
  [[nodiscard]] std::int64_t computed() const;

  const LLM& llm_;
  std::int64_t tokens_;
  const std::int64_t before_;
  ProgressLine line_;
  bool ended_ = false;
};

// Returns whether stderr is a terminal, so that somebody may watch.
[[nodiscard]] bool watched();

}  // namespace quire::cli
