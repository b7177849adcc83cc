#include "progress.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <string>
#include <utility>

#include "quire/interrupt.h"
#include "quire/llm.h"

namespace quire::cli {
namespace {

constexpr std::chrono::milliseconds kQuiet{1000};  // shorter waits show nothing
constexpr std::chrono::milliseconds kBetween{200};
constexpr const char* kClearLine = "\r\x1b[K";

}  // namespace

bool watched() { return isatty(STDERR_FILENO) == 1; }

ProgressLine::ProgressLine() : terminal_(watched()), next_(start_ + kQuiet) {}

bool ProgressLine::due() const { return terminal_ && Clock::now() >= next_; }

void ProgressLine::show(const std::string& text) {
  if (due()) {
    next_ = Clock::now() + kBetween;
    shown_ = true;
    std::fprintf(stderr, "%s%s", kClearLine, text.c_str());
  }
}

void ProgressLine::clear() {
  if (std::exchange(shown_, false)) {
    std::fputs(kClearLine, stderr);
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
