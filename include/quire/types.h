// Ids that cross the public surface. Standard library only.
#pragma once

#include <compare>
#include <cstdint>

namespace quire {

// Index into a model's vocabulary. Plain integer, because callers hold lists of them; everything
// else that is an id is a strong type.
using TokenId = std::int32_t;

// Identity of a request inside one engine, never reused.
struct RequestId {
  std::uint64_t value = 0;
  friend auto operator<=>(RequestId, RequestId) = default;
};

}  // namespace quire
