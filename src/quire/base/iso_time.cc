#include "quire/base/iso_time.h"

#include <array>
#include <chrono>
#include <cstddef>
#include <ctime>
#include <string>

namespace quire::base {

std::string iso_utc(std::chrono::system_clock::time_point time) {
  const std::time_t seconds = std::chrono::system_clock::to_time_t(time);
  std::tm parts{};
  gmtime_r(&seconds, &parts);
  std::array<char, 32> text{};
  const std::size_t size = std::strftime(text.data(), text.size(), "%Y-%m-%dT%H:%M:%SZ", &parts);
  return {text.data(), size};
}

}  // namespace quire::base
