#include "quire/sampling/stop_checker.h"

#include <algorithm>
#include <utility>

namespace quire::sampling {

StopChecker::StopChecker(std::vector<std::string> stops) : stops_(std::move(stops)) {}

// Where the longest end of held_ starts that is the beginning of a stop string.
std::size_t StopChecker::possible_start() const {
  const std::string_view held = held_;
  std::size_t start = held.size();
  for (const std::string& stop : stops_) {
    const std::size_t longest = std::min(stop.size() - 1, held.size());
    for (std::size_t length = longest; length > held.size() - start; --length) {
      if (held.substr(held.size() - length) == std::string_view(stop).substr(0, length)) {
        start = held.size() - length;
      }
    }
  }
  return start;
}

StopChecker::Piece StopChecker::push(std::string_view text) {
  held_ += text;
  std::size_t found = std::string::npos;
  for (const std::string& stop : stops_) {
    found = std::min(found, held_.find(stop));
  }
  const bool stopped = found != std::string::npos;
  const std::size_t certain = stopped ? found : possible_start();
  Piece piece{.text = held_.substr(0, certain), .stopped = stopped};
  held_.erase(0, stopped ? std::string::npos : certain);
  return piece;
}

std::string StopChecker::flush() { return std::exchange(held_, std::string()); }

}  // namespace quire::sampling
