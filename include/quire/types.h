// Ids that cross the public surface. All are plain values that own nothing.
// Needs the standard library only.
#pragma once

#include <compare>
#include <cstdint>

namespace quire {

// Index into a model's vocabulary, from 0 on.
// A plain integer, because callers hold lists of tokens. Every other id is a type of its own.
using TokenId = std::int32_t;

// Identity of a request inside one engine. An id is never used twice.
// Ids compare by their numbers.
struct RequestId {
  // 0 stands for no request.
  std::uint64_t value = 0;
  friend auto operator<=>(RequestId, RequestId) = default;
};

}  // namespace quire
