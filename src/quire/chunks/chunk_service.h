// ChunkService: registering and composing chunks. Callers' threads turn text into tokens and wait;
// the registry and everything that changes it live on the engine thread.
//
// A registration is a request without logits whose KV is sealed into a segment when it ends. A
// composition is a request whose sequence stands behind the segments of its chunks. Both run in the
// same continuous batch as plain prompts.
//
// A salt that is asked for is the tenant's; an empty one is ChunkCacheOptions::salt. What one
// tenant has registered is for another as if it never was.
//
// Thread rule: every public method may be called from any thread but the engine's.
#pragma once

#include <cstdint>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "quire/chunks.h"
#include "quire/chunks/background_writes.h"
#include "quire/chunks/chunk_setup.h"
#include "quire/chunks/part_origins.h"
#include "quire/engine/active_request.h"
#include "quire/engine/channel.h"
#include "quire/engine/hooks.h"
#include "quire/kv/chunk_id.h"
#include "quire/kv/chunk_registry.h"
#include "quire/kv/composition.h"
#include "quire/kv_store/store_uses.h"
#include "quire/output.h"
#include "quire/result.h"
#include "quire/sampling.h"
#include "quire/text/chunk_format.h"
#include "quire/tiers/background_loads.h"
#include "quire/tiers/held_segment.h"
#include "quire/tiers/tier_service.h"
#include "quire/types.h"

namespace quire::engine {
class Engine;
}  // namespace quire::engine

namespace quire::chunks {

class ChunkStore;

// Why the KV of a chunk that is there is not.
inline constexpr const char* kQueryIsComputed = "a query is always computed";
inline constexpr const char* kNotComputedYet = "not computed yet";

class ChunkService final : public engine::BlockHolders {
 public:
  // `engine` and `tiers` are borrowed, and must outlive the service.
  ChunkService(engine::Engine& engine, tiers::TierService& tiers, const ChunkCacheOptions& options);
  ~ChunkService() override;

  struct Registered {
    std::string id;
    bool created = false;  // by this call, to stay
    bool used = false;     // counted as a use of one that was there
    bool changed = false;  // what is said of that one
    std::int64_t tokens_computed = 0;
    std::optional<kv::ChunkRegistry::Hold> hold;
  };
  struct Registration {
    bool counted = true;  // uses, hits and misses; else what it creates is temporary
    bool held = false;    // nothing is evicted until release() or withdraw()
    ChunkProgress progress = {};
  };
  // What a call has registered, and the KV that was computed for it.
  struct Taken {
    std::vector<Registered> registered;
    std::vector<kv::VariantName> computed;
  };
  // Made at first use. A template that cannot be cut is no error yet: registering text is, with the
  // reason.
  [[nodiscard]] const ChunkSetup& setup() const;
  // Ids of a text as a chunk. kUnsupported without a format.
  [[nodiscard]] Result<std::vector<TokenId>> encode(ChunkType type, std::string_view text) const;

  // As ChunkedLLM::register_chunks.
  [[nodiscard]] Result<std::vector<Registered>> register_chunks(
      std::span<const ChunkContent> chunks, const Interrupt& interrupted, Registration how);
  // Gives up what these registrations hold.
  void release(std::vector<Registered> registered);
  // The same, and deletes what the call created and computed, unless somebody else has use for it.
  void withdraw(Taken taken);

  [[nodiscard]] Result<ChunkInfo> get(const std::string& id, const std::string& salt);
  [[nodiscard]] Result<std::vector<ChunkInfo>> list(std::optional<ChunkType> type,
                                                    std::string_view metadata_filter_json,
                                                    const std::string& salt);
  [[nodiscard]] Result<ChunkInfo> update(const std::string& id, const ChunkUpdate& update,
                                         const std::string& salt);
  [[nodiscard]] Result<bool> remove(const std::string& id, bool wipe, const std::string& salt);
  [[nodiscard]] Result<std::int64_t> clear(std::optional<ChunkType> type, const std::string& salt);
  [[nodiscard]] Result<std::int64_t> evict_unused(double max_age_seconds, const std::string& salt);
  [[nodiscard]] Result<ChunkStats> stats(const std::string& salt);

  // What running the composition would do. Changes nothing, needs no block, and reads no KV: what
  // is damaged on disk counts as there.
  [[nodiscard]] Result<CompositionInfo> preview(const CompositionSpec& spec);
  // Whether encoding the joined text gives the joined ids. Where every segment begins with a token
  // that stands apart, and was registered by this process, nothing is encoded for it.
  [[nodiscard]] bool retokenizes_alike(const CompositionInfo& info);

  struct Run {
    const CompositionSpec* spec = nullptr;
    engine::RequestKind kind = engine::RequestKind::kGenerate;
    const SamplingParams* params = nullptr;  // of kGenerate
    bool streaming = false;
    bool counted = true;  // as uses and hits of its chunks
    RequestOptions options = {};
    std::shared_ptr<engine::RequestObserver> observer = nullptr;
  };
  // Whose chunks a run composes. kInvalidArgument where its composition and its request name two.
  [[nodiscard]] Result<std::string> salt_of(const Run& run) const;
  // What register_chunks() of `chunks`, system and query included, and then submit() of `run` would
  // refuse now. The spec's ids are not read.
  [[nodiscard]] Status check(std::span<const ChunkContent> chunks, const Run& run);
  // Computes the KV that is missing, waiting for it, then starts all runs together or none.
  // `computed`, where given: names of that KV.
  [[nodiscard]] Result<std::vector<std::shared_ptr<engine::Channel>>> submit(
      std::span<const Run> runs, const Interrupt& interrupted,
      std::vector<kv::VariantName>* computed = nullptr);

  // Before anything else; no effect without ChunkCacheOptions::store.
  [[nodiscard]] Status open_store();
  // As ChunkedLLM::flush_store.
  [[nodiscard]] Status flush_store() { return writes_.flush(); }
  // Blocks until a chunk that is written behind gives its blocks back. False when none is written.
  [[nodiscard]] bool await_blocks() override { return writes_.wait_one(); }
  // The engine is closing, its thread has ended: writes what is left.
  void stop_writing();

  // Engine thread.
  [[nodiscard]] kv::ChunkRegistry& registry() { return registry_; }
  // Whether the segment is the KV of a chunk, or of a BOS token.
  [[nodiscard]] bool owns(kv::SegmentId segment) const override;
  void session_closed(kv::SessionRef session) override { registry_.close_session(session); }
  void session_forgotten(kv::SessionRef session) override { registry_.forget_session(session); }
  // Brings a tenant's saved chunk into the registry. Its KV has been read when it returns.
  [[nodiscard]] Status adopt(const std::string& id, const std::string& salt) {
    return adopt(id, salt, nullptr);
  }

  // Whether some layer of the model forgets what is far away. Any thread.
  [[nodiscard]] bool windowed() const;

 private:
  class Prefill;
  class Use;
  // A prefill in flight: how it ends, and its request, to abort when nobody wants it.
  struct Pending {
    std::shared_future<Status> done;
    std::shared_ptr<engine::Channel> channel;
    std::shared_ptr<int> waiters;  // calls that want it; engine thread
  };
  struct Draft {  // a chunk on its way into the registry
    const ChunkContent* content = nullptr;
    kv::NewChunk chunk;
    std::string serial;  // kv::ChunkIdentity::serial
    Registration how;
    bool waits = false;                             // for a prefill that was begun for an equal one
    std::optional<kv::ChunkRegistry::Hold> anchor;  // on the anchor, until it is registered
    std::shared_ptr<engine::Channel> prefill;       // that this call has begun for it
    Registered result;                              // its id once it is known to the registry
    [[nodiscard]] const std::string* text() const {  // null of what came as ids
      return std::get_if<std::string>(&content->content);
    }
  };
  using Name = kv::VariantName;             // of a prefill
  using Started = std::map<Name, Pending>;  // prefills of one call
  // Under which contexts of one call go that name no anchor, by salt; "": none.
  using Anchors = std::map<std::string, std::string>;
  // Names the KV of a BOS token, of which each tenant has its own; no chunk has this name.
  [[nodiscard]] static Name bos_name(const std::string& salt);

  [[nodiscard]] kv::Ledger& ledger() const;  // the engine's; engine thread

  // Callers' threads.
  [[nodiscard]] Status check_text(std::string_view text) const;
  [[nodiscard]] Result<Draft> draft(const ChunkContent& content) const;
  [[nodiscard]] Status tokenize(Draft& draft, const Interrupt& interrupted = {}) const;
  [[nodiscard]] Status register_all(std::vector<Draft>& drafts, const Registration& how,
                                    const Interrupt& interrupted);
  static void report(std::span<const Draft> drafts, const ChunkProgress& progress);
  [[nodiscard]] Status register_drafts(std::span<Draft> drafts, Anchors& anchors,
                                       const Interrupt& interrupted);
  [[nodiscard]] Status visit(std::span<Draft> drafts, const std::function<Status(Draft&)>& visit);
  [[nodiscard]] Status visit_with_room(std::span<Draft> drafts,
                                       const std::function<Status(Draft&)>& visit_one);
  [[nodiscard]] Status begin_all_with_room(std::span<Draft> drafts, std::vector<Pending>& pending);
  [[nodiscard]] const text::Affixes& affixes_of(ChunkType type) const;
  [[nodiscard]] kv::ChunkIdentity identity_of(const Draft& draft) const;
  // Until all have ended or the call is interrupted; the first failure.
  [[nodiscard]] Status wait(std::span<const Pending> pending, const Interrupt& interrupted);

  // Engine thread: registering.
  [[nodiscard]] Status place_anchor(Draft& draft, Anchors& anchors);
  [[nodiscard]] Result<std::string> anchor_of(const Draft& draft, Anchors& anchors);
  void release_anchors(std::span<Draft> drafts);
  bool merge(Draft& draft, const kv::Chunk* known);
  void release_now(std::span<Registered> registered);
  void drop_unused_bos(const std::string& salt);
  // A prefill that is at work already, for one more call to wait for.
  [[nodiscard]] std::optional<Pending> join(const Name& name);
  // One call less waits for each; those that none waits for any more are aborted.
  void leave(std::span<const Pending> pending);
  [[nodiscard]] Result<std::optional<Pending>> begin(Draft& draft);
  [[nodiscard]] Status begin_all(std::span<Draft> drafts, std::vector<Pending>& pending);
  // What those take that are neither there nor on their way; none of `spared` may make room for it.
  struct Room {
    std::int32_t chunks = 0;
    std::int64_t blocks = 0;
  };
  using Rooms = std::map<std::string_view, Room>;  // by salt
  [[nodiscard]] static std::vector<std::string_view> ids_and_anchors(std::span<const Draft> drafts);
  // Blocks that the pool lacks for so many, where nothing runs that could give some back.
  [[nodiscard]] std::int64_t lacking(std::int64_t blocks) const;
  [[nodiscard]] Rooms rooms_for(std::span<const Draft> drafts,
                                const std::function<bool(const Draft&)>& is_there);
  [[nodiscard]] bool needs_kv(const kv::NewChunk& chunk) const;  // else ids alone
  [[nodiscard]] Result<Pending> start(engine::NewRequest request, Name name,
                                      std::function<Status(std::optional<kv::SegmentId>)> store);
  // `counted`: as a miss, once it is done.
  [[nodiscard]] Result<Pending> start_prefill(const kv::Chunk& chunk, const kv::VariantKey& key,
                                              bool counted);
  [[nodiscard]] std::optional<TokenId> bos_token() const;
  [[nodiscard]] Result<SeqId> compose_behind(const kv::Chunk& chunk, const kv::VariantKey& key);
  [[nodiscard]] ChunkInfo info_of(const kv::Chunk& chunk) const;
  [[nodiscard]] Result<ChunkInfo> update_known(const std::string& id, const std::string& salt,
                                               const ChunkUpdate& update);

  // Before anything changes: chunk_check.cc. Callers' threads. Drafts get their tokens, and the
  // anchors and ids that they will have; then whether they can be registered, all of them.
  [[nodiscard]] Status name_drafts(std::span<Draft> drafts);
  [[nodiscard]] Status name_anchor(Draft& draft, Anchors& anchors);
  [[nodiscard]] Status check_room(std::span<const Draft> drafts);
  // Engine thread.
  void take_known_tokens(std::span<Draft> drafts);
  [[nodiscard]] Status check_anchor(std::span<const Draft> drafts);
  [[nodiscard]] Status check_room_now(std::span<const Draft> drafts);
  [[nodiscard]] static Status check_is_system(const kv::NewChunk& anchor);

  // On disk: chunk_durable.cc. Engine thread but for those that save.
  using Compositions = std::vector<kv::ResolvedComposition>;
  // Saved KV on its way into the registry, in the background. Where `behind` is null, and for
  // system chunks, KV is read before the call returns.
  struct Arriving {
    Name name;
    kv::SegmentId segment;
    tiers::HeldRef kv;
  };
  struct Behind {
    tiers::TierService::JointRead read;
    std::vector<Arriving> arriving;
  };
  [[nodiscard]] Status adopt(const std::string& id, const std::string& salt, Behind* behind);
  [[nodiscard]] std::optional<kv::Chunk> saved_chunk(const std::string& id,
                                                     const std::string& salt);
  [[nodiscard]] Result<bool> adopt_anchor(const std::string& id, const std::string& salt);
  [[nodiscard]] Status adopt_saved(const kv::Chunk& saved, Behind* behind);
  [[nodiscard]] bool reads_next(const Name& name);
  [[nodiscard]] Result<bool> read_kv(const kv::NewChunk& chunk, const kv::VariantKey& key,
                                     Behind* behind);
  [[nodiscard]] Result<bool> read_variants(const Compositions& compositions, Behind* behind);
  [[nodiscard]] Result<bool> read_variant(const kv::Part& part, Behind* behind);
  void start_reading(Behind behind);
  void drop_damaged(tiers::BackgroundLoads::Load& load, std::span<const Arriving> arriving);
  [[nodiscard]] std::string object_of(const kv::NewChunk& chunk, const kv::VariantKey& key) const;
  [[nodiscard]] Result<std::string> last_system(const std::string& salt);
  [[nodiscard]] Result<kv::SegmentId> load(const kv::NewChunk& chunk, const kv::VariantKey& key,
                                           Behind* behind);
  [[nodiscard]] Result<tiers::HeldRef> hold_kv(const kv::Chunk& chunk, const kv::VariantKey& key);
  [[nodiscard]] bool saves();
  [[nodiscard]] Status save(const std::string& id, const std::string& salt);
  [[nodiscard]] bool is_lost(const std::string& id, const std::string& salt);
  [[nodiscard]] Status save_registered(const Draft& draft);
  void save_variants(const Started& computed);
  [[nodiscard]] std::vector<kv::Chunk> saved_chunks(
      const std::string& salt) const;  // of any process
  void note_saved(ChunkInfo& info, const std::string& salt);
  [[nodiscard]] std::string why_not_found(std::string_view id, std::string_view salt) const;
  // In memory, for the store to know.
  void note_use(const std::string& id, const std::string& salt) const;

  // Engine thread: composing.
  using Uses = std::vector<std::shared_ptr<Use>>;
  // `uses` keep their chunks from being evicted.
  [[nodiscard]] Result<Compositions> resolve(std::span<const Run> runs, Uses& uses, Behind* behind);
  [[nodiscard]] Status adopt_all(const Run& run, Behind* behind);
  [[nodiscard]] Result<Compositions> resolve_known(std::span<const Run> runs);
  // Returns the salt that a run composes for. Precondition: salt_of() accepts the run.
  [[nodiscard]] const std::string& whose(const Run& run) const;
  [[nodiscard]] Status check_positions(const kv::ResolvedComposition& composition) const;
  [[nodiscard]] std::int32_t max_new_tokens(const Run& run,
                                            const kv::ResolvedComposition& composition) const;
  [[nodiscard]] Status check_fits(const Run& run, const kv::ResolvedComposition& composition) const;
  struct Attempt;
  // Whether the runs have started; else there is KV to wait for.
  [[nodiscard]] Result<bool> advance(std::span<const Run> runs, Attempt& attempt);
  [[nodiscard]] Status await_missing(Attempt& attempt, const Interrupt& interrupted);
  // Whether what the started runs read was right.
  [[nodiscard]] Result<bool> await_read(std::span<const Run> runs, Attempt& attempt,
                                        const Interrupt& interrupted);
  void withdraw_runs(Attempt& attempt);
  void give_up(Attempt attempt);  // the caller's thread
  void take_back(Attempt& attempt);
  [[nodiscard]] Result<std::vector<std::shared_ptr<engine::Channel>>> submit(
      std::span<const Run> runs, const Interrupt& interrupted,
      std::vector<kv::VariantName>* computed, Attempt& attempt);
  // Whether nothing was missing.
  [[nodiscard]] Result<bool> start_missing(const Compositions& compositions, Attempt& attempt);
  [[nodiscard]] Status start_bos(const std::string& salt, Attempt& attempt);
  [[nodiscard]] Status start_variants(std::span<const Name> variants, Attempt& attempt);
  [[nodiscard]] Status start_runs(std::span<const Run> runs, Attempt& attempt);
  // Of KV that the compositions stand on.
  [[nodiscard]] std::vector<tiers::BackgroundLoads::LoadRef> loads_of(
      const Compositions& compositions) const;
  using Origins = std::vector<PartOrigin>;
  [[nodiscard]] static Origins origins_of(const kv::ResolvedComposition& composition,
                                          Started& fresh);
  [[nodiscard]] Result<engine::NewRequest> request_for(const Run& run,
                                                       const kv::ResolvedComposition& composition,
                                                       Origins origins);
  [[nodiscard]] Result<SeqId> compose(const CompositionSpec& spec,
                                      const kv::ResolvedComposition& composition, Origins& origins,
                                      ReuseReport& reuse);
  void count_use(const Run& run, std::span<const PartOrigin> origins);
  void count_uses(std::span<const Run> runs, Attempt& attempt);
  [[nodiscard]] static std::vector<std::string> chunk_ids(const CompositionSpec& spec);

  // Previewing: chunk_preview.cc. Engine thread.
  class Foresight;
  [[nodiscard]] std::optional<bool> each_retokenizes_alike(const CompositionInfo& info);
  void describe_exact(const kv::ResolvedComposition& composition, CompositionInfo& info) const;
  void describe_composed(const kv::ResolvedComposition& composition, const Foresight& foresight,
                         CompositionInfo& info) const;

  engine::Engine& engine_;
  tiers::TierService& tiers_;
  const ChunkCacheOptions options_;
  mutable std::once_flag setup_once_;
  mutable ChunkSetup setup_;

  std::unique_ptr<ChunkStore> store_;    // null without one
  std::unique_ptr<ChunkStore> written_;  // the same store for writes_, so that nobody waits for it
  std::unique_ptr<kv_store::StoreUses> uses_;  // of the same store
  BackgroundWrites writes_;
  std::string nonce_;  // of this engine among those that share the store; "" without one

  // Engine thread only.
  kv::ChunkRegistry registry_;
  std::map<Name, Pending> pending_;
  std::set<Name> not_read_;  // on disk, but computing is faster
  using BosSegments = std::map<std::string, kv::SegmentId>;
  BosSegments bos_;           // KV of a BOS token alone, by salt, once wanted
  std::uint64_t serial_ = 0;  // of chunks that are not shared
};

}  // namespace quire::chunks
