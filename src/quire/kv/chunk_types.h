// Plain structs that the chunk registry takes and returns.
#pragma once

#include <chrono>
#include <compare>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "quire/chunk_types.h"
#include "quire/kv/format.h"
#include "quire/kv/types.h"
#include "quire/types.h"

namespace quire::kv {

using WallClock = std::chrono::system_clock;

// Limits of a registry.
struct RegistryConfig {
  std::int32_t max_chunks = 1000;  // most chunks of each tenant
  std::int32_t max_blocks = 0;     // blocks of the pool's own format whose bytes chunks of all
                                   // tenants may hold together
  std::function<WallClock::time_point()> now = [] { return WallClock::now(); };
  // Returns what a store knows of a chunk that was never here, or "", for fate().
  std::function<std::string(std::string_view id, std::string_view salt)> known_elsewhere;
  // Returns the most blocks of the pool's own format that a chunk of so many tokens has beside its
  // KV; null: none.
  std::function<std::int32_t(std::int64_t tokens)> blocks_beside = {};
};

// Names the KV of a chunk by the chunk or token before it when it was computed. `gap` counts the
// positions between the end of that and the chunk's first token.
struct VariantKey {
  std::string before;  // "" nothing, "bos" a BOS token, a chain, else an anchor
  std::int32_t gap = 0;
  friend auto operator<=>(const VariantKey&, const VariantKey&) = default;
};
inline constexpr std::string_view kBosVariant = "bos";
// Begins the name of all chunks of a composition before this one, in mode kExact (composition.h).
inline constexpr std::string_view kChainVariant = "chain ";
using VariantName = std::pair<std::string, VariantKey>;  // with the id of its chunk

// A chunk to register.
struct NewChunk {
  std::string id;    // chunk_id(...), of which the salt is a part
  std::string salt;  // tenant of the chunk
  ChunkType type = ChunkType::kContext;
  FormatId format;         // of its KV, whatever it is computed behind
  bool converted = false;  // its KV was stored in another format before: no prefill computes it so
  std::string content;
  std::shared_ptr<const std::vector<TokenId>> tokens;  // requests that use it share them
  std::string metadata_json = "{}";                    // a JSON object
  std::optional<double> ttl_seconds;
  bool pinned = false;
  std::int32_t priority = 0;
  std::string anchor;                     // id of a system chunk, several (anchor_of()), or ""
  bool temporary = false;                 // goes with its last hold, unless it is registered to
                                          // stay, composed or changed meanwhile
  std::string text_id;                    // chunk_text_id of a chunk given as text; else ""
  std::optional<bool> retokenizes_alike;  // encoding its text gives its ids; nullopt: not known
  std::optional<KVError> kv_error;        // error of its KV, where it was measured
  // Layer whose input rows are kept beside its KV, whatever that is computed behind.
  std::optional<std::int32_t> keep_hidden = {};
  std::optional<WallClock::time_point>
      created_before;  // time of creation by another process; nothing: now
};
// Returns the key of the KV that a chunk is registered with.
[[nodiscard]] inline VariantKey registered_key(const NewChunk& chunk) {
  return {.before = chunk.anchor};
}

// A chunk of the registry.
struct Chunk : NewChunk {
  WallClock::time_point created, accessed;
  std::int64_t accesses = 0;
  std::uint64_t registration = 0;              // grows with every registration of any chunk
  std::uint64_t use = 0;                       // grows with every use of any chunk
  TimePoint used_at;                           // time of its last use, by the ledger's clock
  std::vector<SessionRef> users;               // open sessions that have composed it
  bool others = false;                         // a request without a session has composed it too
  bool closed = false;                         // every session that composed it was closed
  std::int32_t holders = 0;                    // requests that use it
  std::map<VariantKey, SegmentId> variants;    // with KV
  std::map<VariantKey, std::int64_t> pending;  // being computed: bytes set aside
  bool listed = false;                         // registration has ended well
  std::uint64_t rank = 0;                      // rank of its id: MergeRank::chunk
};

// Reasons why a chunk is no longer there.
enum class Removal : std::uint8_t {
  kDeleted,
  kCleared,
  kEvictedForCount,   // max_chunks
  kEvictedForBlocks,  // max_blocks
  kExpired,
  kUnused,
};

struct RegistryCounts {  // counts of one tenant
  std::int64_t hits = 0, misses = 0, evictions = 0;
  std::int64_t bytes = 0;  // held and set aside
};

// Ids of chunks that must stay.
using SparedChunks = std::span<const std::string_view>;

// Room that a tenant wants, and the chunks that must stay.
struct WantedRoom {
  std::string_view salt;
  std::int32_t chunks = 0;
  std::int64_t bytes = 0;
  SparedChunks spared = {};
  std::int64_t lacking = 0;  // bytes that the pool must have more than it has
};

// Keeps a chunk from eviction until it is released, once.
struct ChunkHold {
  std::string id;
  std::uint64_t registration = 0;
};

}  // namespace quire::kv
