// Rules of anchors: which chunks a context may be computed behind (quire::anchor_of), and where
// that KV is used.
#pragma once

#include <span>
#include <string_view>

#include "quire/kv/chunk_types.h"
#include "quire/result.h"

namespace quire::kv {

// Returns whether the chunks of `anchor` are among `before`, in their order, and begin as it does.
[[nodiscard]] bool stands_within(std::string_view anchor, std::span<const std::string_view> before);

// Checks that a chunk may be part of an anchor behind its chunks `before`. A system chunk stands
// first. A context was registered behind chunks that stand before it, so its KV is there. Fails
// with kInvalidComposition.
[[nodiscard]] Status check_in_anchor(const NewChunk& chunk,
                                     std::span<const std::string_view> before);

}  // namespace quire::kv
