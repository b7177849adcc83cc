// ChunkRegistry: named chunks, the segments that hold their KV, and which of them go when room is
// needed. Host only; computes nothing: the engine prefills and attaches.
//
// A chunk is registered under an id that says everything about it (chunk_id). Its KV exists in
// variants, one for each thing that stood before it when it was computed: nothing, a BOS token, or
// a system chunk. Variants belong to the chunk and go with it.
//
// A salt is a tenant, also the empty one: chunks of two salts never meet. A call that takes an id
// which somebody has typed takes the salt with it, and knows no chunk of another one. `max_chunks`
// holds for each tenant and evicts its own chunks alone. `max_blocks` holds for all together:
// beyond it the tenant that holds most gives way, and nobody does for others who holds no more than
// an equal share.
//
// Order of eviction: lower priority first, then by what the sessions that composed the chunk say,
// by the rules of eviction_order.h; without sessions that is least recently used first. Registering
// (again) and composing are uses, reading is not. What a request uses (`hold`), what is being
// computed and what is pinned is never evicted.
//
// Thread rule: one thread (the engine's) owns it, with its ledger.
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

#include "quire/chunks.h"
#include "quire/kv/ledger.h"
#include "quire/kv/types.h"
#include "quire/result.h"
#include "quire/types.h"

namespace quire::kv {

using WallClock = std::chrono::system_clock;

struct RegistryConfig {
  std::int32_t max_chunks = 1000;  // of each tenant
  std::int32_t max_blocks = 0;     // that chunks of all tenants may hold together
  std::int64_t block_bytes = 0;    // for errors in bytes
  std::function<WallClock::time_point()> now = [] { return WallClock::now(); };
  // Says what others know of a chunk that was never here, "" for nothing: for fate().
  std::function<std::string(std::string_view id, std::string_view salt)> known_elsewhere;
};

// What stood before a chunk when its KV was computed, and how many positions behind the end of that
// its first token came.
struct VariantKey {
  std::string before;  // "" nothing, "bos" a BOS token, else the id of a system chunk
  std::int32_t gap = 0;
  friend auto operator<=>(const VariantKey&, const VariantKey&) = default;
};
inline constexpr std::string_view kBosVariant = "bos";
using VariantName = std::pair<std::string, VariantKey>;  // with the id of its chunk

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
  bool temporary = false;                 // goes with the calls that hold it, unless it is
                                          // registered to stay, composed or changed meanwhile
  std::string text_id;                    // of what was registered as text; "" otherwise
  std::optional<bool> retokenizes_alike;  // encoding its text gives its ids; nullopt: not known
  std::optional<WallClock::time_point> created_before;  // by another process; nothing: now
};
// Of the KV that it is registered with.
[[nodiscard]] inline VariantKey registered_key(const NewChunk& chunk) {
  return {.before = chunk.anchor};
}

struct Chunk : NewChunk {
  WallClock::time_point created, accessed;
  std::int64_t accesses = 0;
  std::uint64_t registration = 0;              // grows with every registration of any chunk
  std::uint64_t use = 0;                       // grows with every use of any chunk
  TimePoint used_at;                           // the ledger's time of it
  std::vector<SessionRef> users;               // open sessions that have composed it
  bool others = false;                         // somebody without a session has composed it too
  bool closed = false;                         // all who have composed it since were closed
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
  // `ledger` is borrowed and outlives the registry.
  ChunkRegistry(RegistryConfig config, Ledger& ledger);
  ~ChunkRegistry();
  ChunkRegistry(const ChunkRegistry&) = delete;
  ChunkRegistry& operator=(const ChunkRegistry&) = delete;

  // Finds a chunk whose registration has ended; nullptr when unknown. Expired ones are gone by
  // then. Of any tenant: for ids that come from the registry itself.
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

  // Registering an equal chunk: a use and a hit; its metadata gets the keys of `chunk`, and a pin,
  // a TTL or a priority other than 0 holds from then on. Whether that changed what is said of it.
  // Precondition: find(chunk.id).
  bool merge(const NewChunk& chunk);
  // The chunk that this text was last registered as; `text_id` (chunk_id.h) names text, type and
  // all else but the token ids. nullptr when unknown.
  [[nodiscard]] const Chunk* find_text(const std::string& text_id, std::string_view content);
  // kOverflow when there may never be so many chunks, or all together not hold so many blocks.
  [[nodiscard]] Status check_size(std::int64_t chunks, std::int64_t blocks) const;
  // States how much room a tenant wants, and which chunks must stay.
  using Spared = std::span<const std::string_view>;  // ids of chunks that must not make it
  struct Wanted {
    std::string_view salt;
    std::int32_t chunks = 0;
    std::int32_t blocks = 0;
    Spared spared = {};
    std::int64_t lacking = 0;  // blocks that the pool must have more than it has
  };
  // Evicts until what is wanted fits. kOverflow and kOutOfBlocks as begin().
  [[nodiscard]] Status make_room(const Wanted& wanted);
  // kOutOfBlocks: the pool lacks so many, and no chunk can go for them.
  [[nodiscard]] Error pool_has_no_room(std::int64_t lacking) const;
  // Whether that would succeed; evicts nothing.
  [[nodiscard]] Status check_room(const Wanted& wanted);
  // A chunk to be computed: room for it is made by evicting others, and set aside for `key`
  // (nullopt: it needs no KV). kOverflow, evicting nothing, when it can never fit; kOutOfBlocks,
  // evicting nothing, when those that may go do not suffice; what `key` stands behind is none of
  // them. A chunk being registered is not found yet; registering it a second time meanwhile counts
  // as the same.
  [[nodiscard]] Result<const Chunk*> begin(NewChunk chunk, const std::optional<VariantKey>& key);
  // Begins other variants of one tenant's known chunks, each named once: all of them or none.
  // `lacking` as in Wanted.
  [[nodiscard]] Status begin_variants(std::span<const VariantName> variants,
                                      std::int64_t lacking = 0);
  // Ends a computation: with KV, whose segment is the registry's from now on, or without. Drops the
  // segment with kNotFound when the chunk was deleted meanwhile, kOutOfBlocks without memory.
  Status end(std::string_view id, const VariantKey& key, std::optional<SegmentId> segment) noexcept;
  // Whether the segment is the KV of a chunk.
  [[nodiscard]] bool owns(SegmentId segment) const;
  // Forgets a chunk that was begun, is not listed and computes nothing. No effect on any other.
  void give_up(std::string_view id);
  // Takes the KV of a variant back from a chunk that goes on without. No effect where none is.
  void drop_variant(const VariantName& variant);
  // Registration has ended well: the chunk is listed. No effect on one that is.
  void publish(std::string_view id);

  // Composing is a use, by a session or by nobody in particular. Precondition: known.
  void use(std::string_view id, SessionRef session = {});
  // The session was closed: what it alone has composed goes first. Or it is forgotten, and counts
  // as somebody without a session.
  void close_session(SessionRef session);
  void forget_session(SessionRef session);
  // Says whether KV of some chunk of the tenant is, or is being, computed behind this, a
  // VariantKey::before.
  [[nodiscard]] bool stands_behind(std::string_view before, std::string_view salt) const;
  // No eviction until the hold is given to release, once. Precondition: known, or begun.
  struct Hold {
    std::string id;
    std::uint64_t registration = 0;
  };
  [[nodiscard]] Hold hold(std::string_view id);
  void release(const Hold& hold);
  // Counts a tenant's prefills avoided and done. merge() counts those that it avoids itself.
  void count(std::string_view salt, std::int64_t hits, std::int64_t misses);

  // The chunk as update() would leave it. Changes nothing.
  [[nodiscard]] Result<NewChunk> updated(std::string_view id, std::string_view salt,
                                         const ChunkUpdate& update);
  [[nodiscard]] Result<const Chunk*> update(std::string_view id, std::string_view salt,
                                            const ChunkUpdate& update);
  // Forgets the chunk; blocks return when no sequence uses them. What was evicted for others stays
  // in the prefix cache as far as it was there. False when unknown.
  bool remove(std::string_view id, Removal reason);
  // Removes what nobody uses of a tenant's; returns how many.
  std::int64_t clear(std::string_view salt, std::optional<ChunkType> type);
  std::int64_t evict_unused(std::string_view salt, double max_age_seconds);

  // Says what became of a tenant's chunk that is not there; "never registered" when nothing is
  // known, and so of those of others.
  [[nodiscard]] std::string fate(std::string_view id, std::string_view salt) const;
  [[nodiscard]] RegistryCounts counts(std::string_view salt) const;
  [[nodiscard]] std::int32_t max_blocks() const { return config_.max_blocks; }
  [[nodiscard]] std::int32_t blocks_for(std::size_t tokens) const;
  // Blocks of a chunk's variants and of what is set aside for it.
  [[nodiscard]] std::int32_t blocks_of(const Chunk& chunk) const;
  // kInternal naming the first broken invariant; for tests.
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
  // Looks up what is a view of a string without making one.
  struct Hash {
    using is_transparent = void;
    std::size_t operator()(std::string_view id) const { return std::hash<std::string_view>()(id); }
  };
  using Chunks = std::unordered_map<std::string, Chunk, Hash, std::equal_to<>>;

  [[nodiscard]] Chunk* lookup(std::string_view id);
  [[nodiscard]] bool may_go(const Chunk& chunk) const;
  [[nodiscard]] bool expired(const Chunk& chunk, WallClock::time_point now) const;
  std::int64_t remove_all(Removal reason, const std::function<bool(const Chunk&)>& goes);
  // Removes what has expired.
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
  // `for_chunks`: it is their number that is too large, not that of their blocks.
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
