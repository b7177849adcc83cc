// How far a wait is, as one line on a terminal that goes when it is over; nothing elsewhere.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "quire/llm.h"

namespace quire::cli {

// A line on stderr, where that is a terminal, from the second second of the wait on.
class ProgressLine {
 public:
  ProgressLine();
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;
  ~ProgressLine() { clear(); }

  // Returns whether show() would show something now; it is due a few times in a second.
  [[nodiscard]] bool due() const;
  // Shows `text` in place of what stands there, if it is due.
  void show(const std::string& text);
  void clear();
  [[nodiscard]] double seconds() const;

 private:
  using Clock = std::chrono::steady_clock;

  const bool terminal_;
  const Clock::time_point start_ = Clock::now();
  Clock::time_point next_;
  bool shown_ = false;
};

// The tokens that `llm` computes while somebody waits for its answer.
class ComputeProgress {
 public:
  // Made before the work begins. `tokens` will have to be computed; 0 where nobody knows yet. `llm`
  // must outlive this.
  ComputeProgress(const LLM& llm, std::int64_t tokens);
  // So many tokens will have to be computed.
  void expect(std::int64_t tokens) { tokens_ = tokens; }

  // Shows how far it is. From the thread that waits, at each look.
  void look();
  // The answer has begun: the line goes and does not come back.
  void end();
  // Looks, then asks `interrupted`.
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
