// Runs of cached tokens that callers name, hold and build on.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "quire/base/ids.h"
#include "quire/kv/types.h"
#include "quire/tiers/held_segment.h"
#include "quire/types.h"

namespace quire::engine {
class Engine;
}  // namespace quire::engine

namespace quire::sequences {

struct SequenceState;

// The first `tokens` tokens of a chunk, a held segment or a sequence's state. A handle: it holds no
// KV, and what it names may go.
struct BlockRun {
  std::weak_ptr<engine::Engine> engine;  // engine whose blocks they are
  std::optional<std::string>
      salt;              // salt of the chunk or state; a held segment belongs to any holder
  std::string chunk_id;  // id of a chunk, else empty
  std::uint64_t registration = 0;  // registration of the chunk
  kv::SegmentId segment;           // segment of the chunk's variant
  std::weak_ptr<const tiers::HeldSegment> held;
  std::weak_ptr<const SequenceState> state;
  std::vector<std::int32_t> blocks;  // ids, in order
  std::int64_t tokens = 0;
};

}  // namespace quire::sequences
