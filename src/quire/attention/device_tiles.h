// First stage of a device plan: entries to tiles of the two families, and which of them are pairs.
// Pure; no device.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "quire/attention/attention_plan.h"
#include "quire/attention/device_lengths.h"
#include "quire/attention/device_plan.h"
#include "quire/attention/entry.h"
#include "quire/attention/tile.h"

namespace quire::attention {

// Rows [first, first + count) of an entry, and the tokens that they see together.
struct DeviceTile {
  const Entry* entry = nullptr;
  std::int32_t first_block = 0, first_query = 0;  // first block and query of the entry
  std::int32_t first = 0, count = 0;
  bool few = false;  // true: a tile of few columns
  TokenRange seen;   // not empty
};

struct DeviceTiles {
  std::vector<DeviceTile> tiles;  // entry after entry
  Lengths few, many;              // lengths of the two families, for all KV heads
  std::int32_t width = 1;         // 2: tiles of many columns are pairs
  std::vector<std::int64_t>
      many_token_tiles;  // token tiles of each tile of many columns, or pair of them
};

// Returns true if one kernel computes both families to the same bits.
[[nodiscard]] bool few_are_like_many(const DevicePlanOptions& options);

// Returns the tokens that a kernel takes at once: items begin at a multiple of it.
[[nodiscard]] std::int64_t token_tile(const DevicePlanOptions& options, bool few);

// Returns the tiles of all entries. Tiles that see nothing are left out.
[[nodiscard]] DeviceTiles cut_device_tiles(const AttentionShape& shape,
                                           std::span<const Entry> entries,
                                           const DevicePlanOptions& options);

}  // namespace quire::attention
