// How long tests that walk at random run: short in every check, at their full length with
// QUIRE_TEST_LENGTH=full, which CTest sets for tests with the label `long`.
#pragma once

#include <cstdlib>
#include <string_view>

namespace quire::server {

// Returns `full` where the full length is asked for, else `brief`.
inline int test_length(int full, int brief) {
  const char* const length = std::getenv("QUIRE_TEST_LENGTH");
  return length != nullptr && std::string_view(length) == "full" ? full : brief;
}

}  // namespace quire::server
