// RegistryState: all that a chunk registry consists of. ChunkRegistry owns it, and the views of the
// registry share it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "quire/kv/chunk_types.h"
#include "quire/kv/ledger.h"

namespace quire::kv {

struct RegistryState {
  // Borrows `ledger`, which outlives the state.
  RegistryState(RegistryConfig config, Ledger& ledger);
  // Drops the segments of all chunks.
  ~RegistryState();
  RegistryState(const RegistryState&) = delete;
  RegistryState& operator=(const RegistryState&) = delete;

  struct Gone {
    std::string id;
    Removal reason = Removal::kDeleted;
    WallClock::time_point when;
  };
  struct Tenant {
    RegistryCounts counts;
    std::int32_t chunks = 0;            // listed or not
    std::vector<const Chunk*> systems;  // to stay, by registration
    std::deque<Gone> gone;              // the last ones
  };
  // Looks up a string_view without making a string.
  struct Hash {
    using is_transparent = void;
    std::size_t operator()(std::string_view id) const { return std::hash<std::string_view>()(id); }
  };
  using Chunks = std::unordered_map<std::string, Chunk, Hash, std::equal_to<>>;

  // Returns a chunk, listed or not; nullptr if unknown.
  [[nodiscard]] Chunk* lookup(std::string_view id);
  [[nodiscard]] Tenant& tenant(std::string_view salt);
  // Adds to the bytes of a tenant and of all.
  void add_bytes(std::string_view salt, std::int64_t count);
  [[nodiscard]] std::int64_t max_bytes() const;
  // Returns the bytes of the blocks of one variant of a chunk, at most.
  [[nodiscard]] std::int64_t bytes_for(const NewChunk& chunk) const;
  [[nodiscard]] std::int64_t bytes_of(const Chunk& chunk) const;
  // Returns the bytes that come back where this chunk goes alone: others may have tails in its last
  // blocks (coalescing.h).
  [[nodiscard]] std::int64_t freed_by(const Chunk& chunk) const;

  // Counts a use of the chunk.
  void touch(Chunk& chunk);
  // Returns true if the chunk is expired and may go.
  [[nodiscard]] bool expired(const Chunk& chunk, WallClock::time_point now) const;
  // Removes expired chunks.
  void expire(SparedChunks spared = {});
  // Removes a listed chunk. Returns false if unknown.
  bool remove(std::string_view id, Removal reason);
  // Removes listed chunks in the order of registration. Returns how many.
  std::int64_t remove_all(Removal reason, const std::function<bool(const Chunk&)>& goes);
  // Forgets a chunk whose bytes are not counted any more.
  void forget(const Chunk& chunk);
  void remember_gone(const Chunk& chunk, Removal reason);

  RegistryConfig config;
  Ledger& ledger;
  Chunks chunks;
  std::unordered_map<std::string, std::string> by_text;  // text_id -> id
  std::uint64_t last_use = 0;
  std::map<std::string, Tenant, std::less<>> tenants;  // by salt
  std::int64_t bytes = 0;                              // bytes of all tenants
};

// Returns true if the chunk may be evicted.
[[nodiscard]] bool may_go(const Chunk& chunk);
[[nodiscard]] double seconds_between(WallClock::time_point from, WallClock::time_point to);

}  // namespace quire::kv
