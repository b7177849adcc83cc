// KV that callers hold: in blocks of the pool, or in host memory.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "quire/base/ids.h"
#include "quire/device/host_buffer.h"
#include "quire/engine/tasks.h"
#include "quire/kv/block_parts.h"
#include "quire/kv/format.h"
#include "quire/kv/types.h"
#include "quire/types.h"

namespace quire::engine {
class Engine;
}  // namespace quire::engine

namespace quire::tiers {

// The tokens and formats of a segment, wherever its KV lies.
struct SegmentShape {
  std::vector<TokenId> tokens;
  kv::FormatId format;              // format that was asked for
  kv::FormatId last_format;         // format of the last block: another one where it is not full
  std::int32_t num_map_blocks = 0;  // of the pool's own format, with its maps on states
};

// A run of tokens whose KV lies in blocks of the pool until the last owner goes.
struct HeldSegment : SegmentShape {
  HeldSegment() = default;
  ~HeldSegment();
  HeldSegment(const HeldSegment&) = delete;
  HeldSegment& operator=(const HeldSegment&) = delete;

  // Returns its blocks by their formats, those with its maps last.
  [[nodiscard]] kv::BlockParts parts() const {
    kv::BlockParts parts = kv::parts_of(blocks, format, last_format);
    if (!map_blocks.empty()) {
      parts.push_back({.blocks = map_blocks, .format = kv::kOwnFormat});
    }
    return parts;
  }

  kv::SegmentId id;
  std::vector<BlockId> blocks;
  std::vector<BlockId> map_blocks;
  std::weak_ptr<engine::Engine> engine;
  engine::Tasks task{1};  // task that gives the segment up
};
using HeldRef = std::shared_ptr<const HeldSegment>;

// A held segment in host memory: [layer][kv_head][block] of the head blocks of each format.
struct HostSegment : SegmentShape {
  device::HostBuffer bytes;
};
using HostRef = std::shared_ptr<const HostSegment>;

}  // namespace quire::tiers
