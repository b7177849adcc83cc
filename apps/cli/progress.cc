#include "progress.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>
#include <utility>

#include "output.h"
#include "quire/interrupt.h"
#include "quire/llm.h"

namespace quire::cli {
namespace {

constexpr std::chrono::milliseconds kQuiet{1000};  // shorter waits show nothing
constexpr std::chrono::milliseconds kBetween{200};

bool is_dumb() {
  const char* const terminal = std::getenv("TERM");
  return terminal == nullptr || std::string_view(terminal) == "dumb";
}

// Returns what takes a line of `width` characters away and goes to its beginning. A terminal that
// knows no escape sequences gets blanks.
std::string clear_line(std::size_t width) {
  return is_dumb() ? "\r" + std::string(width, ' ') + "\r" : "\r\x1b[K";
}

// Returns as much of the line as the terminal shows without a second row.
std::string fitting(const std::string& text) {
  const std::size_t columns = terminal_columns(STDERR_FILENO);
  return columns == 0 ? text : text.substr(0, columns - 1);
}

}  // namespace

bool watched() { return isatty(STDERR_FILENO) == 1; }

ProgressLine::ProgressLine() : terminal_(watched()), next_(start_ + kQuiet) {}

bool ProgressLine::due() const { return terminal_ && Clock::now() >= next_; }

void ProgressLine::show(const std::string& text) {
  if (due()) {
    next_ = Clock::now() + kBetween;
    const std::string line = fitting(text);
    std::fputs((clear_line(shown_) + line).c_str(), stderr);
    shown_ = line.size();
  }
}

void ProgressLine::clear() {
  if (const std::size_t width = std::exchange(shown_, 0); width > 0) {
    std::fputs(clear_line(width).c_str(), stderr);
  }
}

double ProgressLine::seconds() const {
  return std::chrono::duration<double>(Clock::now() - start_).count();
}

ComputeProgress::ComputeProgress(const LLM& llm, std::int64_t tokens)
    : llm_(llm), tokens_(tokens), before_(watched() ? computed() : 0) {}

std::int64_t ComputeProgress::computed() const {
  const auto tokens = llm_.tokens_computed();
  return tokens.ok() ? *tokens : 0;
}

void ComputeProgress::look() {
  if (ended_ || !line_.due()) {
    return;
  }
  const std::int64_t done = std::max<std::int64_t>(computed() - before_, 0);
  const std::string of = tokens_ > 0 ? " of " + std::to_string(std::max(tokens_, done)) : "";
  line_.show("computing " + std::to_string(done) + of + " tokens, " +
             std::to_string(static_cast<std::int64_t>(line_.seconds())) + " s");
}

void ComputeProgress::end() {
  ended_ = true;
  line_.clear();
}

Interrupt ComputeProgress::beside(Interrupt interrupted) {
  return [this, interrupted = std::move(interrupted)] {
    look();
    return interrupted && interrupted();
  };
}

}  // namespace quire::cli
