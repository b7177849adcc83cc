#include "quire/sampling/stop_checker.h"

#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "quire/base/check.h"

namespace quire::sampling {

StopChecker::StopChecker(std::vector<std::string> stops) {
  for (auto& stop : stops) {
    QUIRE_CHECK(!stop.empty(), "a stop string is empty");
    Pattern pattern{.text = std::move(stop), .borders = {}, .matched = 0};
    // The borders of a string are what the matching itself finds in it, one byte late.
    for (const char next : std::string_view(pattern.text).substr(1)) {
      pattern.borders.push_back(pattern.matched);
      advance(pattern, next);
    }
    pattern.borders.push_back(pattern.matched);
    pattern.matched = 0;
    patterns_.push_back(std::move(pattern));
  }
}

void StopChecker::advance(Pattern& pattern, char next) {
  while (pattern.matched > 0 && pattern.text[pattern.matched] != next) {
    pattern.matched = pattern.borders[pattern.matched - 1];
  }
  pattern.matched += pattern.text[pattern.matched] == next ? 1 : 0;
}

// Returns where the earliest stop string that may still be completed begins in held_.
std::size_t StopChecker::live_begin() const {
  std::size_t longest = 0;
  for (const auto& pattern : patterns_) {
    longest = std::max(longest, pattern.matched);
  }
  return held_.size() - longest;
}

StopChecker::TextDelta StopChecker::push(std::string_view delta, bool counts) {
  if (patterns_.empty()) {
    return {.text = delta};
  }
  for (const char next : delta) {
    if (stopped_) {
      break;
    }
    held_.push_back(next);
    for (std::size_t i = 0; i < patterns_.size(); ++i) {
      Pattern& pattern = patterns_[i];
      advance(pattern, next);
      if (pattern.matched == pattern.text.size()) {
        const std::size_t begin = held_.size() - pattern.matched;
        if (counts && begin < found_) {
          found_ = begin;
          which_ = i;
        }
        pattern.matched = pattern.borders.back();
      }
    }
    stopped_ = found_ <= live_begin();
  }
  if (stopped_) {
    released_.assign(held_, 0, found_);
    held_.clear();
    found_ = 0;
    return {.text = released_, .stopped = true, .stop = which_};
  }
  return {.text = release(live_begin()), .stopped = false};
}

// Takes the first `count` bytes out of what is held back.
std::string_view StopChecker::release(std::size_t count) {
  released_.assign(held_, 0, count);
  held_.erase(0, count);
  found_ -= found_ == kNotFound ? 0 : count;
  return released_;
}

std::string_view StopChecker::flush() {
  released_.assign(held_, 0, found_);
  held_.clear();
  found_ = kNotFound;
  stopped_ = false;
  for (auto& pattern : patterns_) {
    pattern.matched = 0;
  }
  return released_;
}

}  // namespace quire::sampling
