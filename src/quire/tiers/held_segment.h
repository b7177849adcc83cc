// KV that callers hold: in blocks of the pool, or in host memory.
#pragma once

#include <memory>
#include <vector>

#include "quire/base/ids.h"
#include "quire/device/host_buffer.h"
#include "quire/engine/tasks.h"
#include "quire/kv/format.h"
#include "quire/kv/types.h"
#include "quire/types.h"

namespace quire::engine {
class Engine;
}  // namespace quire::engine

namespace quire::tiers {

// A run of tokens whose KV lies in blocks of the pool until the last owner goes.
struct HeldSegment {
  HeldSegment() = default;
  ~HeldSegment();
  HeldSegment(const HeldSegment&) = delete;
  HeldSegment& operator=(const HeldSegment&) = delete;

  kv::SegmentId id;
  std::vector<TokenId> tokens;
  std::vector<BlockId> blocks;
  kv::FormatId format;  // format of these blocks
  std::weak_ptr<engine::Engine> engine;
  engine::Tasks task{1};  // task that gives the segment up
};
using HeldRef = std::shared_ptr<const HeldSegment>;

// A held segment in host memory: [layer][kv_head][block] of head blocks.
struct HostSegment {
  std::vector<TokenId> tokens;
  device::HostBuffer bytes;
};
using HostRef = std::shared_ptr<const HostSegment>;

}  // namespace quire::tiers
