// Helpers that the benchmarks of the public library share.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <utility>

#include "quire/quire.h"

namespace quire {

// The value; ends the program with the message when there is none.
template <class T>
T must(Result<T> result) {
  if (!result.ok()) {
    std::fprintf(stderr, "error: %s\n", result.error().message.c_str());
    std::exit(1);
  }
  return std::move(result).value();
}

}  // namespace quire
