// Plain structs of the ledger's surface.
#pragma once

#include <chrono>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "quire/base/ids.h"
#include "quire/result.h"
#include "quire/types.h"

namespace quire::kv {

struct LedgerConfig {
  std::int32_t num_blocks = 0;
  std::int32_t block_tokens = 32;  // 1..256
  std::int32_t window_tokens = 0;  // > 0: blocks wholly older than this many tokens are freed
  std::int32_t extent_blocks = 1;  // so many side by side are read fast: what is acquired together
                                   // lies in such extents, for which cached blocks make way
  bool prefix_cache = true;        // full blocks of closed and running sequences are found again
  [[nodiscard]] Status validate() const;
};

// The ledger's clock. It reads none: its caller says what time it is.
using Clock = std::chrono::steady_clock;
using TimePoint = Clock::time_point;

// Somebody who comes back to what he had computed: handle of a slot, stale once the slot serves
// another session. The default one is nobody.
struct SessionRef {
  std::int32_t slot = -1;
  std::uint32_t generation = 0;
  friend bool operator==(SessionRef, SessionRef) = default;
};

// What a session says about the KV that it has left in the cache.
struct Retention {
  std::int32_t priority = 0;                 // lower goes first
  std::optional<Clock::duration> ttl;        // given up so long after the session's last request
  std::optional<TimePoint> expected_return;  // of its next request, which ends the expectation
};

// Where something stands in the order of eviction: the smaller one goes first.
struct Standing {
  TimePoint ended = TimePoint::min();  // its last user was closed, or the TTL ended; else max()
  std::int32_t priority = 0;
  double nearness = 0;  // less than 0: so many seconds from now it is due
  friend auto operator<=>(const Standing&, const Standing&) = default;
};

// Identity of a segment in one ledger, never reused.
struct SegmentId {
  std::uint64_t value = 0;
  friend auto operator<=>(SegmentId, SegmentId) = default;
};

// Attention merges the sealed runs of a row by ascending rank, so that requests may share a read
// whatever their order of segments, and no bit depends on where blocks lie.
struct MergeRank {
  std::uint64_t chunk = 0;
  std::uint32_t variant = 0;  // of runs of one chunk
  friend auto operator<=>(MergeRank, MergeRank) = default;
};

// A segment at a place: its token 0 is used at `position`.
struct SegmentUse {
  SegmentId segment;
  std::int32_t position = 0;
  MergeRank rank;                      // carried to RunView
  std::optional<std::int32_t> tokens;  // the first so many of it; not given: all
};

// What a composed sequence has of its own.
struct ComposeTail {
  std::span<const TokenId> tokens;       // known already, without KV
  std::optional<std::int32_t> position;  // of the first one; not given: behind the last segment
};

// Bytes that the shelves must copy before the next write: the first `tokens` slots of `from`.
struct BlockCopy {
  BlockId from;
  BlockId to;
  std::int32_t tokens = 0;
};

// A run of tokens at consecutive positions as attention sees it. `blocks[i]` holds run tokens
// [i * block_tokens, ...); freed window blocks have value -1. Valid until the sequence changes.
struct RunView {
  std::span<const BlockId> blocks;  // room made by extend included
  std::int32_t num_tokens = 0;      // with KV
  std::int32_t start_position = 0;  // use position of run token 0
  std::int32_t stored_from = 0;     // position that the key of run token 0 is rotated to
  MergeRank rank;                   // of a sealed run
};

// What attaching the longest cached prefix of some tokens would bring.
struct PrefixMatch {
  std::int32_t tokens = 0;
  std::int32_t blocks = 0;            // that the sequence would hold
  std::int32_t evictable_blocks = 0;  // of those, used by nobody now: attaching takes them from
                                      // blocks_available
};

// Why the KV of a prompt's first token that is not cached is not there.
struct PrefixMiss {
  enum class Why : std::uint8_t {
    kCacheOff,
    kNeverSeen,     // or forgotten: only so many evictions are remembered
    kDiffers,       // a cached prompt goes on with another token
    kEvicted,       // to make room: least recently used
    kClosed,        // to make room: its session was closed
    kExpired,       // to make room: its session's TTL was over
    kReturnsLater,  // to make room: its session was expected back later than others
    kCleared,
    kTail,  // less than a block is left, or the last token alone, which is always computed
  };
  static constexpr std::size_t kNumWhys = static_cast<std::size_t>(Why::kTail) + 1;
  Why why = Why::kNeverSeen;
  std::int64_t token = 0;  // kDiffers: the first other one; else the first without KV
  double seconds = 0;      // since it went
};

// For people: "evicted to make room 12 s ago".
[[nodiscard]] std::string to_text(const PrefixMiss& miss);

struct LedgerCounts {
  std::int32_t blocks_total = 0;
  std::int32_t blocks_free = 0;
  std::int32_t blocks_cached = 0;      // known to the prefix index and used by nobody: evictable
  std::int32_t blocks_in_use = 0;      // free + cached + in_use == total, always
  std::int64_t evictions = 0;          // cached blocks that were freed to make room; of these:
  std::int64_t evictions_closed = 0;   // of a closed session
  std::int64_t evictions_expired = 0;  // of a session whose TTL was over
  std::int64_t evictions_later = 0;    // of a session that was expected back later than others
  std::int64_t blocks_moved = 0;       // cached blocks that made way for others
  std::int32_t sessions = 0;           // open
  std::int64_t tokens_reused = 0;      // tokens attached from the prefix index since birth
};

}  // namespace quire::kv
