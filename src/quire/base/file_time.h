// When a file was last written to.
#pragma once

#include <sys/stat.h>

#include <cstdint>

namespace quire::base {

// Returns the nanoseconds since 1970.
[[nodiscard]] inline std::int64_t modified_ns(const struct stat& info) {
  return info.st_mtim.tv_sec * std::int64_t{1'000'000'000} + info.st_mtim.tv_nsec;
}

// Returns the milliseconds since 1970, rounded down.
[[nodiscard]] inline std::int64_t modified_ms(const struct stat& info) {
  return modified_ns(info) / 1'000'000;
}

}  // namespace quire::base
