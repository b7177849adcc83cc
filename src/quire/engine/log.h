// Log: where LLMOptions::log hears of what no call returns.
#pragma once

#include <functional>
#include <string_view>
#include <utility>

#include "quire/options.h"

namespace quire::engine {

// Thread rule: any thread. Never waits: the user's function returns at once.
class Log {
 public:
  Log() = default;
  explicit Log(std::function<void(LogLevel, std::string_view)> to) : to_(std::move(to)) {}

  // Tells the user's function, if there is one.
  void tell(LogLevel level, std::string_view text) const {
    if (to_) {
      to_(level, text);
    }
  }

 private:
  std::function<void(LogLevel, std::string_view)> to_;
};

}  // namespace quire::engine
