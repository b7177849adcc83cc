// ChunkRegistry: named chunks, the segments that hold their KV, and the order in which chunks are
// evicted. It computes nothing: the engine prefills and attaches.
//
// A chunk is registered under an id that covers everything about it (chunk_id.h). Its KV exists in
// variants, one for each thing that stood before the chunk when it was computed: nothing, a BOS
// token or a system chunk. Variants belong to the chunk and go with it.
//
// A salt is a tenant, also the empty salt: chunks of two salts never meet. A call with an id that a
// user has given takes the salt too, and finds no chunk of another salt. `max_chunks` holds for
// each tenant and evicts that tenant's chunks alone. `max_blocks` holds for all tenants together:
// beyond it the tenant that holds most gives way. A tenant with at most an equal share never gives
// way.
//
// Order of eviction: lower priority first, then by the hints of the sessions that composed the
// chunk (eviction_order.h). Without sessions the least recently used chunk goes first. Registering
// and composing are uses, reading is not. A chunk that is held, pinned or being computed is never
// evicted.
//
// Thread rule: one thread, the engine's, owns it, with its ledger.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "quire/chunk_types.h"
#include "quire/kv/ledger.h"
#include "quire/kv/types.h"
#include "quire/result.h"
#include "quire/types.h"

namespace quire::kv {

using WallClock = std::chrono::system_clock;

// Limits of a registry.
struct RegistryConfig {
  std::int32_t max_chunks = 1000;  // of each tenant
  std::int32_t max_blocks = 0;     // that chunks of all tenants may hold together
  std::int64_t block_bytes = 0;    // for errors in bytes
  std::function<WallClock::time_point()> now = [] { return WallClock::now(); };
  // Returns what a store knows of a chunk that was never here, or "", for fate().
  std::function<std::string(std::string_view id, std::string_view salt)> known_elsewhere;
};

// Names the KV of a chunk: the thing that stood before it when it was computed, and the positions
// between the end of that thing and the chunk's first token.
struct VariantKey {
  std::string before;  // "" nothing, "bos" a BOS token, else the id of a system chunk
  std::int32_t gap = 0;
  friend auto operator<=>(const VariantKey&, const VariantKey&) = default;
};
inline constexpr std::string_view kBosVariant = "bos";
using VariantName = std::pair<std::string, VariantKey>;  // with the id of its chunk

// A chunk to register.
struct NewChunk {
  std::string id;    // chunk_id(...), of which the salt is a part
  std::string salt;  // its tenant
  ChunkType type = ChunkType::kContext;
  std::string content;
  std::shared_ptr<const std::vector<TokenId>> tokens;  // requests that use it share them
  std::string metadata_json = "{}";                    // an object
  std::optional<double> ttl_seconds;
  bool pinned = false;
  std::int32_t priority = 0;
  std::string anchor;                     // id of a system chunk, or ""
  bool temporary = false;                 // goes with its last hold, unless it is registered to
                                          // stay, composed or changed meanwhile
  std::string text_id;                    // chunk_text_id of a chunk given as text; else ""
  std::optional<bool> retokenizes_alike;  // encoding its text gives its ids; nullopt: not known
  std::optional<WallClock::time_point> created_before;  // by another process; nothing: now
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
  TimePoint used_at;                           // of its last use, by the ledger's clock
  std::vector<SessionRef> users;               // open sessions that have composed it
  bool others = false;                         // a request without a session has composed it too
  bool closed = false;                         // every session that composed it was closed
  std::int32_t holders = 0;                    // requests that use it
  std::map<VariantKey, SegmentId> variants;    // with KV
  std::map<VariantKey, std::int32_t> pending;  // being computed: blocks set aside
  bool listed = false;                         // registration has ended well
  std::uint64_t rank = 0;                      // of its id: MergeRank::chunk
};

// Why a chunk is no longer there.
enum class Removal : std::uint8_t {
  kDeleted,
  kCleared,
  kEvictedForCount,   // max_chunks
  kEvictedForBlocks,  // max_blocks
  kExpired,
  kUnused,
};

struct RegistryCounts {  // of one tenant
  std::int64_t hits = 0, misses = 0, evictions = 0;
  std::int32_t blocks = 0;  // held and set aside
};

class ChunkRegistry {
 public:
  // Borrows `ledger`, which outlives the registry.
  ChunkRegistry(RegistryConfig config, Ledger& ledger);
  ~ChunkRegistry();
  ChunkRegistry(const ChunkRegistry&) = delete;
  ChunkRegistry& operator=(const ChunkRegistry&) = delete;

  // Finds a listed chunk of any tenant, for ids that come from the registry itself. Removes expired
  // chunks first. Returns nullptr if unknown.
  [[nodiscard]] const Chunk* find(std::string_view id);
  // Finds a chunk among those of a tenant; nullptr when it has none of this id.
  [[nodiscard]] const Chunk* find(std::string_view id, std::string_view salt);
  // Returns a tenant's chunk; kNotFound says how and when it went, if it was the tenant's.
  [[nodiscard]] Result<const Chunk*> get(std::string_view id, std::string_view salt);
  // Lists a tenant's chunks in the order of registration.
  [[nodiscard]] std::vector<const Chunk*> list(std::string_view salt);
  // Returns the tenant's system chunk that was registered last, to stay, and is still there; ""
  // without one.
  [[nodiscard]] std::string last_system(std::string_view salt);

  // Registers an equal chunk again, which is a use and a hit. Its metadata gets the keys of
  // `chunk`; a pin, a TTL or a priority other than 0 replaces the old one. Returns true if any of
  // these changed. Precondition: find(chunk.id).
  bool merge(const NewChunk& chunk);
  // Returns the chunk that this text was last registered as, or nullptr. `text_id` (chunk_id.h)
  // names text, type and everything else but the token ids.
  [[nodiscard]] const Chunk* find_text(const std::string& text_id, std::string_view content);
  // Returns kOverflow if so many chunks, or chunks with so many blocks, can never fit.
  [[nodiscard]] Status check_size(std::int64_t chunks, std::int64_t blocks) const;
  // States how much room a tenant wants, and which chunks must stay.
  using Spared = std::span<const std::string_view>;  // ids of chunks that must stay
  struct Wanted {
    std::string_view salt;
    std::int32_t chunks = 0;
    std::int32_t blocks = 0;
    Spared spared = {};
    std::int64_t lacking = 0;  // blocks that the pool must have more than it has
  };
  // Evicts chunks until the wanted room exists. Fails as begin() does.
  [[nodiscard]] Status make_room(const Wanted& wanted);
  // Returns kOutOfBlocks: the pool lacks so many blocks, and no chunk can go for them.
  [[nodiscard]] Error pool_has_no_room(std::int64_t lacking) const;
  // Returns what make_room() would return, and evicts nothing.
  [[nodiscard]] Status check_room(const Wanted& wanted);
  // Begins a chunk: evicts others for it, and sets room aside for `key` (nullopt: it needs no KV).
  // Never evicts the chunk that `key` stands behind. Fails with kOverflow if it can never fit, and
  // with kOutOfBlocks if evictable chunks do not suffice; evicts nothing then. find() does not find
  // the chunk before publish(). Precondition (QUIRE_CHECK): no chunk has this id.
  [[nodiscard]] Result<const Chunk*> begin(NewChunk chunk, const std::optional<VariantKey>& key);
  // Begins other variants of one tenant's known chunks, each named once: all of them or none.
  // `lacking` is that of Wanted.
  [[nodiscard]] Status begin_variants(std::span<const VariantName> variants,
                                      std::int64_t lacking = 0);
  // Ends a computation. The registry owns `segment` from now on; nullopt: it gave no KV. Drops the
  // segment and fails with kNotFound if the chunk was deleted meanwhile, with kOutOfBlocks without
  // memory.
  Status end(std::string_view id, const VariantKey& key, std::optional<SegmentId> segment) noexcept;
  // Returns true if the segment is the KV of a chunk.
  [[nodiscard]] bool owns(SegmentId segment) const;
  // Forgets a chunk that was begun, is not listed and computes nothing. No effect on other chunks.
  void give_up(std::string_view id);
  // Drops the KV of one variant; the chunk stays. No effect without such KV.
  void drop_variant(const VariantName& variant);
  // Lists a chunk, whose registration has ended well. No effect if it is listed.
  void publish(std::string_view id);

  // Counts a use by composing, of `session` or of none. Precondition: the chunk is known.
  void use(std::string_view id, SessionRef session = {});
  // End a session: closed, chunks that it alone has composed go first. Forgotten, it counts as
  // requests without a session.
  void close_session(SessionRef session);
  void forget_session(SessionRef session);
  // Returns true if KV of some chunk of the tenant is computed, or being computed, behind `before`
  // (VariantKey::before).
  [[nodiscard]] bool stands_behind(std::string_view before, std::string_view salt) const;
  // Keeps a chunk from eviction until the hold is given to release(), once.
  struct Hold {
    std::string id;
    std::uint64_t registration = 0;
  };
  // Precondition: the chunk is known or begun.
  [[nodiscard]] Hold hold(std::string_view id);
  void release(const Hold& hold);
  // Counts a tenant's prefills avoided and done. merge() counts those that it avoids itself.
  void count(std::string_view salt, std::int64_t hits, std::int64_t misses);

  // Returns the chunk as update() would leave it. Changes nothing.
  [[nodiscard]] Result<NewChunk> updated(std::string_view id, std::string_view salt,
                                         const ChunkUpdate& update);
  [[nodiscard]] Result<const Chunk*> update(std::string_view id, std::string_view salt,
                                            const ChunkUpdate& update);
  // Forgets the chunk. Its blocks return when no sequence uses them. Blocks of an evicted chunk
  // that are in the prefix cache stay there. Returns false if unknown.
  bool remove(std::string_view id, Removal reason);
  // Removes the tenant's listed chunks that no request uses, pinned ones too. Returns how many.
  std::int64_t clear(std::string_view salt, std::optional<ChunkType> type);
  // Removes the tenant's evictable chunks without access for `max_age_seconds`. Returns how many.
  std::int64_t evict_unused(std::string_view salt, double max_age_seconds);

  // Returns what became of a tenant's chunk that is not there: "never registered" if nothing is
  // known, also for chunks of other tenants.
  [[nodiscard]] std::string fate(std::string_view id, std::string_view salt) const;
  [[nodiscard]] RegistryCounts counts(std::string_view salt) const;
  [[nodiscard]] std::int32_t max_blocks() const { return config_.max_blocks; }
  [[nodiscard]] std::int32_t blocks_for(std::size_t tokens) const;
  // Returns the blocks of a chunk's variants and those set aside for it.
  [[nodiscard]] std::int32_t blocks_of(const Chunk& chunk) const;
  // Returns kInternal that names the first broken invariant. For tests.
  [[nodiscard]] Status check() const;

 private:
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

  [[nodiscard]] Chunk* lookup(std::string_view id);
  [[nodiscard]] bool may_go(const Chunk& chunk) const;
  [[nodiscard]] bool expired(const Chunk& chunk, WallClock::time_point now) const;
  std::int64_t remove_all(Removal reason, const std::function<bool(const Chunk&)>& goes);
  // Removes expired chunks.
  void expire(Spared spared = {});
  void touch(Chunk& chunk);
  void forget(const Chunk& chunk);
  void remember_gone(const Chunk& chunk, Removal reason);
  [[nodiscard]] Tenant& tenant(std::string_view salt);
  // Adds to the blocks of a tenant and of all.
  void add_blocks(std::string_view salt, std::int32_t blocks);
  using Order = std::vector<const Chunk*>;
  [[nodiscard]] std::map<std::string_view, Order> eviction_orders(Spared spared) const;
  using Victims = std::vector<std::pair<std::string, Removal>>;
  [[nodiscard]] Result<Victims> victims_for(const Wanted& wanted);
  // `for_chunks`: the number of chunks is too large, not that of their blocks.
  [[nodiscard]] Error no_room(const Wanted& wanted, bool for_chunks) const;

  RegistryConfig config_;
  Ledger& ledger_;
  Chunks chunks_;
  std::unordered_map<std::string, std::string> by_text_;  // text_id -> id
  std::uint64_t last_use_ = 0;
  std::map<std::string, Tenant, std::less<>> tenants_;  // by salt
  std::int32_t blocks_ = 0;                             // of all tenants
};

}  // namespace quire::kv
