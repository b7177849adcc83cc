// Mutated requests: bodies that are nearly right, for fuzzing what reads them.
#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "message.h"

namespace quire::server {

// Makes requests out of a seed. Each is one of a list, changed at some places.
class MutatedRequests {
 public:
  explicit MutatedRequests(std::uint64_t seed) : random_(seed) {}

  [[nodiscard]] Request next();

 private:
  [[nodiscard]] std::size_t below(std::size_t count) { return random_() % count; }
  [[nodiscard]] std::string mutated(std::string body);

  std::mt19937_64 random_;
};

// Returns the request that bytes of a fuzzer stand for: a line with method and target, then a body.
[[nodiscard]] Request request_of_bytes(std::string_view bytes);

}  // namespace quire::server
