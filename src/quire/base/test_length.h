// Says how long tests run that walk at random or inject faults: short in every check, at their full
// length with QUIRE_TEST_LENGTH=full. CTest sets that for tests with the label `long`.
#pragma once

#include <cstdlib>
#include <string_view>

namespace quire::base {

// Returns `full` where the full length is asked for, else `brief`.
template <class Number>
[[nodiscard]] Number test_length(Number full, Number brief) {
  const char* const length = std::getenv("QUIRE_TEST_LENGTH");
  return length != nullptr && std::string_view(length) == "full" ? full : brief;
}

}  // namespace quire::base
