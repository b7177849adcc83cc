// Length of tests that walk at random. They are short in every check, and run at full length with
// QUIRE_TEST_LENGTH=full. CTest sets that for tests with the label `long`.
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
