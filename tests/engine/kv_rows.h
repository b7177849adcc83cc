// The KV of a sequence as plain numbers.
#pragma once

#include <cstdint>
#include <vector>

#include "quire/sequence.h"

namespace quire {

// Keys, rotated as they are stored, and values of its tokens [first, last): the bits of fp32
// [tokens, layers, kv_heads, 2, head_dim]. The last token has none, nor have those whose blocks a
// window has freed. Waits for what is read in the background. On the CPU alone.
[[nodiscard]] std::vector<std::uint32_t> kv_rows(const Sequence& sequence, std::int64_t first,
                                                 std::int64_t last);

}  // namespace quire
