// Times for people and machines: UTC, ISO 8601.
#pragma once

#include <chrono>
#include <string>

namespace quire::base {

// Formats a time as "2024-01-01T00:00:00Z".
[[nodiscard]] std::string iso_utc(std::chrono::system_clock::time_point time);

}  // namespace quire::base
