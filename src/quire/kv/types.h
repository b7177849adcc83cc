// Plain structs that the ledger takes and returns.
#pragma once

#include <chrono>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "quire/base/ids.h"
#include "quire/kv/format.h"
#include "quire/result.h"
#include "quire/types.h"

namespace quire::kv {

// Layers with a window, where others have none. Their part of a block may go before the block.
struct WindowGroup {
  std::int32_t tokens = 0;       // the widest window; 0: blocks have no such part
  std::int64_t block_bytes = 0;  // bytes of the part, of a block of the pool's own format
};

// Says whether a sequence keeps KV that no later row of it sees. That is whole blocks where all
// layers have a window, else parts of them. KV that is kept can be sealed, and read anywhere.
enum class BehindWindow : std::uint8_t { kKeeps, kFrees };

// Sizes of a ledger.
struct LedgerConfig {
  std::int32_t num_blocks = 0;     // blocks with all their parts that the budget holds
  std::int32_t block_tokens = 32;  // 1..256
  // > 0: a sequence that frees KV gives up a block when all its tokens are older than this.
  std::int32_t window_tokens = 0;
  WindowGroup window_group = {};
  std::int32_t extent_blocks = 1;  // blocks acquired together lie in extents of this many, for
                                   // which cached blocks make way (ADR 0024)
  bool prefix_cache = true;        // full blocks are found again by later sequences
  // The formats of blocks, the pool's own first. All live in the bytes of `num_blocks` blocks of
  // the first one.
  std::vector<BlockFormat> formats = std::vector<BlockFormat>(1);
  std::int32_t slab_blocks = 32;  // blocks of the pool's own format in a slab, which is what
                                  // formats lend each other (ADR 0032)
  std::int32_t num_states = 0;  // of models with layers that carry a state; kept beside the blocks
  // Number of open blocks that are never lacking for want of a slab. Slabs for so many stay with
  // their format. Above 0 only where the pool's own format is written block by block.
  std::int32_t standing_open_blocks = 0;
  // Returns kInvalidArgument that names the first bad field.
  [[nodiscard]] Status validate() const;

  // Returns the format of the pool's own blocks that are not full; absent: the same.
  [[nodiscard]] std::optional<FormatId> open_format() const { return formats.front().open; }
  // Returns the format of open blocks that are not of the pool's own. It is open_format(), or else
  // what another format opens as. Absent where no format opens so.
  [[nodiscard]] std::optional<FormatId> lent_open_format() const;
  [[nodiscard]] std::uint8_t num_formats() const {
    return static_cast<std::uint8_t>(formats.size());
  }
  // Return sizes. Precondition: the format exists.
  [[nodiscard]] std::int64_t budget_bytes() const;
  // Returns how many blocks of the pool's own format there may be at once: more than num_blocks
  // where some have lost their window part.
  [[nodiscard]] std::int32_t num_ids() const;
  // Returns whether sequences may free KV behind a window: whole blocks, or parts of them.
  [[nodiscard]] bool has_window() const { return window_tokens > 0 || window_group.tokens > 0; }
  // Returns the bytes of a block of the pool's own format without its window part.
  [[nodiscard]] std::int64_t full_bytes() const {
    return block_bytes(FormatId{}) - window_group.block_bytes;
  }
  [[nodiscard]] std::int64_t block_bytes(FormatId format) const;
  [[nodiscard]] std::int64_t bytes_of(const BlockCounts& blocks) const;
  // Return the blocks of a segment of `tokens` tokens in this format, and the format of its last
  // one.
  [[nodiscard]] BlockCounts blocks_for(std::int64_t tokens, FormatId format) const;
  [[nodiscard]] FormatId last_format(std::int64_t tokens, FormatId format) const;
};

// The ledger's clock. The ledger reads no clock; its caller sets the time.
using Clock = std::chrono::steady_clock;
using TimePoint = Clock::time_point;

// Names a session, which comes back to KV that it has computed. The handle is stale once its slot
// serves another session. The default handle names no session.
struct SessionRef {
  std::int32_t index = -1;
  std::uint32_t generation = 0;
  friend bool operator==(SessionRef, SessionRef) = default;
};

// The hints of a session about its cached KV.
struct Retention {
  std::int32_t priority = 0;           // lower goes first
  std::optional<Clock::duration> ttl;  // counts from the session's last request
  std::optional<TimePoint>
      expected_return;  // time at which its next request comes; that request clears it
};

// A place in the order of eviction. The smaller standing goes first.
struct Standing {
  // Time at which its last user was closed or the TTL ended; else max().
  TimePoint ended = TimePoint::min();
  std::int32_t priority = 0;
  double nearness = 0;  // minus the seconds until it is due
  friend auto operator<=>(const Standing&, const Standing&) = default;
};

// Names a segment of one ledger. A ledger never uses an id twice.
struct SegmentId {
  std::uint64_t value = 0;
  friend auto operator<=>(SegmentId, SegmentId) = default;
};

// A moment of a ledger, for a caller that gives up half-way. Sequences and segments made since then
// are closed and dropped again (Sequences::close_since, Segments::drop_since).
struct LedgerMark {
  std::uint64_t last_id = 0;
};

// The order in which attention merges the sealed runs of a row: ascending. So requests share a read
// whatever their order of segments, and no bit depends on where blocks lie.
struct MergeRank {
  std::uint64_t chunk = 0;
  std::uint32_t variant = 0;  // orders the runs of one chunk
  friend auto operator<=>(MergeRank, MergeRank) = default;
};

// Room for the KV of the next `count` tokens of a sequence.
struct Growth {
  SeqId sequence;
  std::int32_t count = 0;
};

// A segment at a place: its token 0 is used at `position`.
struct SegmentUse {
  SegmentId segment;
  std::int32_t position = 0;
  MergeRank rank;                      // carried to RunView
  std::optional<std::int32_t> tokens;  // uses only the first of this many tokens; absent: all
};

// The tokens that a composed sequence has of its own.
struct ComposeTail {
  std::span<const TokenId> tokens;  // known, without KV
  std::optional<std::int32_t>
      position;  // position of the first token; absent: behind the last segment
};

// New blocks: of the pool's own format, and open ones of LedgerConfig::lent_open_format().
struct BlockNeeds {
  std::int32_t own = 0;
  std::int32_t open = 0;
};

// A copy that the paged pool makes before the next write: `tokens` slots. Both blocks have one
// format. Slots other than the first are of that of the pool alone, not written block by block.
struct BlockCopy {
  enum class Parts : std::uint8_t { kAll, kFull, kWindow };
  BlockId from;
  BlockId to;
  std::int32_t tokens = 0;
  FormatId format;
  std::int32_t from_slot = 0;
  std::int32_t to_slot = 0;
  Parts parts = Parts::kAll;
};

struct OpenBlock;

// A run of tokens at consecutive positions, as attention sees it. `blocks[i]` holds run tokens
// [i * block_tokens, (i + 1) * block_tokens). Blocks freed behind a window have value -1. Valid
// until the sequence changes.
struct RunView {
  std::span<const BlockId> blocks;  // blocks, with the room made by extend
  std::int32_t num_tokens = 0;      // tokens with KV
  std::int32_t kept_tokens = 0;     // tokens with KV, if more: no step writes those (ADR 0061)
  std::int32_t start_position = 0;  // use position of run token 0
  std::int32_t stored_from = 0;     // position that the key of run token 0 is rotated to
  FormatId format;                  // format of the blocks but the last
  FormatId last_format;             // format of the last block
  // Blocks of the open run whose rows are not stored in `format` yet, in the format that this one
  // opens as. `blocks` has the full blocks alone then.
  std::span<const OpenBlock> open_blocks;
  MergeRank rank;  // rank of a sealed run
  // Slot of the last block in which its tokens begin. Not 0 only where that block was coalesced;
  // attention reads such a run after Sequences::extend.
  std::int32_t tail_slot = 0;
  std::int32_t without_part = 0;  // leading blocks whose window part the run has let go
};

// The effect of attaching the longest cached prefix of some tokens.
struct PrefixMatch {
  std::int32_t tokens = 0;
  std::int32_t blocks = 0;            // blocks that the sequence would hold
  std::int32_t evictable_blocks = 0;  // what attaching takes from blocks_available: those of them
                                      // that no sequence uses now, and idle window parts
  std::int32_t idle_states = 0;       // points that no sequence uses now; taken up likewise
  std::int32_t known_tokens = 0;      // of the longest history known, usable or not
};

// The reason why a prompt's cached prefix ends where it does.
struct PrefixMiss {
  enum class Why : std::uint8_t {
    kCacheOff,
    kNeverSeen,     // also evicted so long ago that it is forgotten
    kDiffers,       // a cached prompt goes on with another token
    kEvicted,       // evicted as the least recently used
    kClosed,        // evicted, since its session was closed
    kExpired,       // evicted, since its session's TTL was over
    kReturnsLater,  // evicted, since its session was expected back later than others
    kCleared,
    kNoPoint,       // KV is there, and no restore point behind it
    kPointEvicted,  // the restore point gave way to another state
    kOtherForm,     // known with a state of other arithmetic, whose bits this one's has not
    kWindowFreed,   // KV is there, but in layers with a window that of the last tokens has gone
    kTail,          // less than a block is left, or only the last token, which is always computed
  };
  static constexpr std::size_t kNumWhys = static_cast<std::size_t>(Why::kTail) + 1;
  Why why = Why::kNeverSeen;
  std::int64_t token = 0;  // index: of the first other token (kDiffers), else the first without KV
  double seconds = 0;      // seconds since the eviction
};

// Returns a phrase for people: "evicted to make room 12 s ago".
[[nodiscard]] std::string to_text(const PrefixMiss& miss);

// Counters of a ledger.
struct LedgerCounts {
  // In blocks of the pool's own format, those in use rounded up.
  std::int32_t blocks_total = 0;
  std::int32_t blocks_free = 0;    // those set aside for sequences too
  std::int32_t blocks_cached = 0;  // held by the prefix index alone: evictable
  std::int32_t blocks_in_use = 0;  // free + cached + in_use == total, always
  // Exactly, of blocks in all formats.
  std::int64_t bytes_total = 0;
  std::int64_t bytes_free = 0;
  std::int64_t bytes_cached = 0;
  std::int64_t bytes_in_use = 0;         // free + cached + in_use == total, always
  std::int64_t bytes_window_in_use = 0;  // of bytes_in_use, in window parts
  std::int64_t window_block_bytes = 0;   // of the window part of a block; 0: blocks have none
  std::int64_t bytes_lent = 0;           // of the slabs that other formats than the pool's own have
  std::int64_t evictions = 0;            // cached blocks freed to make room, with the next three
  std::int64_t evictions_closed = 0;     // evictions of blocks of a closed session
  std::int64_t evictions_expired = 0;    // evictions of blocks of a session whose TTL was over
  // Evictions of blocks of a session that was expected back later than others.
  std::int64_t evictions_later = 0;
  std::int64_t blocks_moved = 0;      // cached blocks that made way for others
  std::int64_t blocks_coalesced = 0;  // freed since partly filled ones share a block
  std::int32_t blocks_reserved = 0;   // free ones that are set aside for sequences
  std::int64_t blocks_taken = 0;      // from the free ones, since the ledger was made
  std::int32_t sessions = 0;          // open
  std::int32_t states_total = 0;      // of models with layers that carry a state
  std::int32_t states_in_use = 0;     // held by sequences
  std::int32_t restore_points = 0;
  std::int64_t tokens_replayed = 0;  // known, and computed again: no point behind them was there
  std::int64_t tokens_reused = 0;    // attached from the prefix index since the ledger was made
};

}  // namespace quire::kv
