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
  std::weak_ptr<engine::Engine> engine;  // whose blocks they are
  std::optional<std::string> salt;  // of the chunk or state; a held segment is whoever holds it
  std::string chunk_id;             // of a chunk, with
  std::uint64_t registration = 0;   // its registration
  kv::SegmentId segment;            // and variant
  std::weak_ptr<const tiers::HeldSegment> held;
  std::weak_ptr<const SequenceState> state;
  std::vector<std::int32_t> blocks;  // ids, in order
  std::int64_t tokens = 0;
};

}  // namespace quire::sequences
