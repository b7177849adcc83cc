// Chunks: text registered once, whose KV is computed once and composed in any order afterwards.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "quire/export.h"
#include "quire/llm.h"
#include "quire/output.h"
#include "quire/result.h"
#include "quire/sampling.h"
#include "quire/sequence.h"
#include "quire/types.h"

namespace quire {

enum class ChunkType : std::uint8_t { kSystemPrompt, kContext, kQuery };
[[nodiscard]] constexpr const char* chunk_type_name(ChunkType type) {
  constexpr const char* kNames[] = {"system_prompt", "context", "query"};
  return kNames[static_cast<std::uint8_t>(type)];
}

// How the KV of context chunks relates to what stands before them in a composition. Each mode
// equals a reference that can be written down (docs/chunks.md, What a composition means).
enum class ReuseMode : std::uint8_t {
  kExact,        // a causal prefill of the joined ids; whole cached blocks of its prefix are reused
  kAnchored,     // a context has seen the system chunk and itself; the default
  kIndependent,  // a context has seen only itself
  kBlend,        // anchored or independent, and a share of the context tokens is computed again
};
[[nodiscard]] constexpr const char* reuse_mode_name(ReuseMode mode) {
  constexpr const char* kNames[] = {"exact", "anchored", "independent", "blend"};
  return kNames[static_cast<std::uint8_t>(mode)];
}

// Which context tokens `blend` computes again.
enum class Selector : std::uint8_t {
  kQueryAttention,  // those that the query looks at (ProphetKV 2602.02579)
  kValueDeviation,  // those whose values at layer 1 move most (CacheBlend 2405.16444)
  kFirst,           // the first ones of every context (EPIC 2410.15332)
  kRandom,          // the control
  kAll,
  kNone,
  kExplicit,  // `Blend::tokens`
};
[[nodiscard]] constexpr const char* selector_name(Selector selector) {
  constexpr const char* kNames[] = {"query_attn", "value_dev", "first_k", "random",
                                    "all",        "none",      "explicit"};
  return kNames[static_cast<std::uint8_t>(selector)];
}

// What stands before and behind a chunk's text. Special tokens written in it count.
struct ChunkAffixes {
  std::string prefix = {}, suffix = {};
};
struct ChunkFormat {
  ChunkAffixes system = {}, context = {}, query = {};
};

// A salt is a tenant, also the empty one. Chunks, ids, anchors, counts and limits are a tenant's
// own: the id of another one's chunk is kNotFound, word for word as one that never was.
struct ChunkCacheOptions {
  std::int32_t max_chunks = 1000;    // of each tenant
  double chunk_memory_ratio = 0.5;   // of the KV blocks that chunks may hold, in (0, 1]. Beyond it
                                     // the tenant that holds most gives way; nobody does for others
                                     // who holds no more than an equal share
  bool enable_deduplication = true;  // equal chunks are one chunk
  std::string salt = {};             // the tenant of calls and requests that name none
  std::string store = {};  // a directory: registered chunks are written there, and those of
                           // earlier processes are found there, without a prefill
                           // (docs/store-format.md). Where it may not be written to, new chunks
                           // stay in memory: see LLM::remarks
  std::int64_t max_store_bytes = 0;  // of the store; 0: no limit. Registering then evicts what was
                                     // used least recently
  bool compress_store = false;       // smaller, slower (docs/store-format.md)
  bool write_through = true;  // a call that registers returns when what it registered is on the
                              // disk; false: before that, see ChunkedLLM::flush_store. The machine
                              // has the same work: the call is shorter, a whole run is not
  std::optional<ChunkFormat> chunk_format = {};  // instead of the model's chat template

  [[nodiscard]] QUIRE_API Status validate() const;
};

struct ChunkOptions {
  std::string metadata_json = "{}";        // an object
  std::optional<double> ttl_seconds = {};  // since its last use; a pinned chunk does not expire
  bool pinned = false;                     // never evicted
  std::int32_t priority = 0;  // lower ones are evicted first, then the least recently used
  std::optional<std::string> anchor = {};  // the system chunk under which a context is computed;
                                           // "": none; not given: the tenant's system chunk that
                                           // this call, or an earlier one, has registered last
  std::string salt = {};                   // tenant; empty: ChunkCacheOptions::salt
};

// Text goes through the chunk format; ids are taken as they are.
struct ChunkContent {
  Prompt content = {};
  ChunkType type = ChunkType::kContext;
  ChunkOptions options = {};
};

struct ChunkInfo {
  std::string chunk_id;  // 64 hexadecimal digits, the same in every process
  ChunkType type = ChunkType::kContext;
  std::string content;  // as registered, ill-formed UTF-8 as U+FFFD; of ids their decoded text
  std::vector<TokenId> token_ids;
  std::string metadata_json;
  std::string created_at, last_accessed;  // UTC, ISO 8601: "2024-01-01T00:00:00Z"
  std::int64_t access_count = 0;          // registrations and compositions after the first
  std::optional<double> ttl_seconds;
  bool pinned = false;
  std::int32_t priority = 0;
  std::string anchor;             // "" : none
  std::int64_t num_variants = 0;  // anchors under which KV is there
  std::int64_t memory_bytes = 0;  // of the blocks that it holds
  bool saved = false;             // in the store: other processes find it
};

// What registering has done for one chunk.
struct RegisteredChunk {
  std::string chunk_id;
  bool created = false;              // it was not there: neither registered nor in the store
  std::int64_t tokens_computed = 0;  // by this call
};

// Called in the thread that registers, every kInterruptPollMs while it waits and once at the end,
// with the tokens of the call's chunks that have KV by now, and all of them.
using ChunkProgress = std::function<void(std::int64_t tokens, std::int64_t wanted_tokens)>;

struct ChunkUpdate {
  std::optional<std::string> metadata_json = {};          // replaces the keys that it names
  std::optional<std::optional<double>> ttl_seconds = {};  // nullopt inside: none
  std::optional<bool> pinned = {};
  std::optional<std::int32_t> priority = {};
};

struct ChunkStats {
  std::int64_t total_chunks = 0, system_chunks = 0, context_chunks = 0, query_chunks = 0;
  std::int64_t memory_used_bytes = 0, memory_limit_bytes = 0;
  std::int64_t cache_hits = 0, cache_misses = 0;  // prefills avoided and done
  std::int64_t evictions = 0;
};

struct Blend {
  Selector selector = Selector::kQueryAttention;
  double share = 0;                       // of the context tokens, [0, 1]
  std::vector<std::int32_t> tokens = {};  // kExplicit: indices into the composition's token_ids
  ReuseMode base = ReuseMode::kAnchored;  // or kIndependent
  std::uint64_t seed = 0;                 // of kRandom: the tokens with the largest numbers when
                                          // splitmix64 gives each one its upper 53 bits in turn
};

enum class Positions : std::uint8_t {
  kConcat,    // one after the other
  kParallel,  // all contexts start where the system chunk ends, the query behind the longest
  kFixed,     // as given
};

struct CompositionSpec {
  std::string salt =
      {};  // whose chunks they are; empty: the request's, else ChunkCacheOptions::salt
  std::string system_chunk_id = {};
  bool without_system = false;  // allows an empty system_chunk_id
  std::vector<std::string> context_chunk_ids = {};
  std::string query_chunk_id = {};
  ReuseMode mode = ReuseMode::kAnchored;
  Positions positions = Positions::kConcat;
  std::vector<std::int32_t> fixed = {};  // kFixed: start of each segment, system and query included
  // kAnchored, or blend on that: contexts are computed as far behind the system chunk as they are
  // used, so that the result equals one forward pass with the mode's mask and these positions.
  // Otherwise they are computed right behind it, once, and serve at every place without another
  // prefill; only their distance to the system chunk differs (docs/adr/0008).
  bool computed_in_place = false;
  bool bos_sink = false;  // kIndependent: contexts have seen a BOS token too
  Blend blend = {};       // kBlend
};

// What a composition consists of and what running it would cost now.
struct CompositionInfo {
  struct Segment {
    std::string chunk_id;
    ChunkType type = ChunkType::kContext;
    std::int64_t num_tokens = 0;
    std::shared_ptr<const std::vector<TokenId>> token_ids;  // the chunk's, shared with it
    std::int64_t position = 0;
    bool cached = false;  // its KV is there, or comes without a prefill of its own: from the store,
                          // or from one for an earlier segment or another run
    std::string why_not;  // else: never seen, evicted, other anchor, ...
  };
  std::vector<Segment> segments;
  // Those of all segments, joined. O(tokens).
  [[nodiscard]] std::vector<TokenId> token_ids() const {
    std::vector<TokenId> joined;
    joined.reserve(static_cast<std::size_t>(total_tokens));
    for (const Segment& segment : segments) {
      joined.insert(joined.end(), segment.token_ids->begin(), segment.token_ids->end());
    }
    return joined;
  }
  ReuseMode mode = ReuseMode::kAnchored;
  ReuseGrade grade = ReuseGrade::kExact;  // that the output will have
  std::int64_t total_tokens = 0;
  std::int64_t tokens_reused = 0;  // Usage::cached_tokens of the output
  // Up to its first token. KV that is missing counts once, however often it is used; what blend
  // then computes again counts again.
  std::int64_t tokens_computed = 0;
  std::int64_t num_levels = 0;    // runs of KV that attention merges
  std::int64_t num_blocks = 0;    // held while it runs, up to its first token
  std::int64_t memory_bytes = 0;  // of them
  // Of them, to be allocated. Both are the most that there can be for blend with kQueryAttention or
  // kValueDeviation, and where KV that is missing turns out to share blocks with what begins alike.
  std::int64_t new_blocks = 0;
  // Encoding the joined text gives the same ids; true where it is compose() that made this.
  bool retokenizes_alike = true;
};

// Immutable; names chunks, holds no KV. Running it after a chunk has gone is kNotFound.
class QUIRE_API Composition {
 public:
  [[nodiscard]] const CompositionSpec& spec() const;
  [[nodiscard]] const CompositionInfo& info() const;  // as when it was made

  struct Impl;
  explicit Composition(std::shared_ptr<const Impl> impl);  // for the library itself
  [[nodiscard]] const Impl& impl() const { return *impl_; }

 private:
  std::shared_ptr<const Impl> impl_;
};

// What `ChunkedLLM::generate` registers and composes.
struct ChunkedPrompt {
  std::optional<Prompt> system = {};  // none needs CompositionSpec::without_system
  std::vector<Prompt> contexts = {};
  Prompt query = {};
};

struct RegisteredGeneration {
  GenerationOutput output;
  std::string system_id, query_id;
  std::vector<std::string> context_ids;
};

// An LLM with a registry of chunks. Move only; all calls may come from any thread.
class QUIRE_API ChunkedLLM {
 public:
  [[nodiscard]] static Result<ChunkedLLM> open(const std::string& model,
                                               const LLMOptions& options = {},
                                               const ChunkCacheOptions& chunks = {});
  // The registry of an open LLM, with the options that it was opened with. Destroying it leaves the
  // LLM open; `llm` may go before it, and closes it then.
  [[nodiscard]] static ChunkedLLM over(const LLM& llm);
  ChunkedLLM(ChunkedLLM&&) noexcept;
  ChunkedLLM& operator=(ChunkedLLM&&) noexcept;
  ~ChunkedLLM();

  // Plain prompts, statistics, tokenizer, close.
  [[nodiscard]] LLM& llm();

  // Computes the chunk's KV, unless an equal chunk is there: then no prefill happens, its metadata
  // is merged (the new keys win), a pin, a TTL and a priority other than 0 hold from then on, and
  // its id comes back. kOverflow when it can never fit, kOutOfBlocks when it does not fit now. Cost
  // of a known chunk: O(text).
  [[nodiscard]] Result<std::string> register_chunk(const ChunkContent& chunk,
                                                   const Interrupt& interrupted = {});
  // The same for many, in one batch; ids in order. All or none.
  [[nodiscard]] Result<std::vector<std::string>> register_chunks(
      std::span<const ChunkContent> chunks, const Interrupt& interrupted = {});
  // The same, with what was done for each.
  [[nodiscard]] Result<std::vector<RegisteredChunk>> register_with_details(
      std::span<const ChunkContent> chunks, const Interrupt& interrupted = {},
      const ChunkProgress& progress = {});

  // `salt`, here and below: whose chunk is meant; empty: ChunkCacheOptions::salt. Reading is no
  // use: it moves no chunk in the order of eviction.
  [[nodiscard]] Result<ChunkInfo> get_chunk(const std::string& chunk_id,
                                            const std::string& salt = {}) const;
  // `metadata_filter_json`: an object whose pairs must all be there.
  [[nodiscard]] Result<std::vector<ChunkInfo>> list_chunks(
      std::optional<ChunkType> type = {}, std::string_view metadata_filter_json = "{}",
      const std::string& salt = {}) const;
  // kIo, and it stays as it was, where it is saved and the store cannot be written.
  [[nodiscard]] Result<ChunkInfo> update_chunk(const std::string& chunk_id,
                                               const ChunkUpdate& update,
                                               const std::string& salt = {});
  // Unknown from now on; its blocks return with its last user, those in the prefix cache too but
  // for what prompts have put there. False when it was not there. `wipe`:
  // its bytes in the store become zeros first. kIo, and it stays, where the store cannot be
  // written.
  [[nodiscard]] Result<bool> delete_chunk(const std::string& chunk_id, bool wipe = false,
                                          const std::string& salt = {});
  // Deletes all (of a type) that no request uses, those that are only in the store too; returns
  // how many. kIo, and nothing is deleted, where some are saved in a store that is read-only.
  [[nodiscard]] Result<std::int64_t> clear_chunks(std::optional<ChunkType> type = {},
                                                  const std::string& salt = {});
  // Deletes those without use for so long, pinned ones and those in use apart.
  [[nodiscard]] Result<std::int64_t> evict_unused_chunks(double max_age_seconds = 3600,
                                                         const std::string& salt = {});
  [[nodiscard]] Result<ChunkStats> chunk_stats(const std::string& salt = {}) const;
  // Waits until all that was registered, or computed for a composition, is in the store; the first
  // failure to write behind a call's back since the last flush; kIo too where something since then
  // was not written because the store is read-only. A chunk that could not be written
  // is one of this process alone until it is registered again. Closing waits too, and tells of no
  // failure.
  [[nodiscard]] Status flush_store();

  // Checks kinds, number and mode, and computes nothing. O(number of chunks); tokens of mode
  // kExact, and of KV that is missing and stands behind nothing, are looked up in the prefix cache.
  [[nodiscard]] Result<Composition> compose(const CompositionSpec& spec) const;
  // What running it would do now. Changes nothing. Cost: as compose(); O(tokens) for
  // `retokenizes_alike` unless segments begin with special tokens and this process registered them.
  [[nodiscard]] Result<CompositionInfo> preview_composition(const CompositionSpec& spec) const;

  [[nodiscard]] Result<GenerationOutput> generate_from_chunks(const CompositionSpec& spec,
                                                              const SamplingParams& params = {},
                                                              const Interrupt& interrupted = {},
                                                              const RequestOptions& options = {});
  // One continuous batch. `params`: one, or one per request, and so `options` if it holds any.
  // Nothing starts if any is refused.
  [[nodiscard]] Result<std::vector<GenerationOutput>> batch_generate_from_chunks(
      std::span<const CompositionSpec> specs, std::span<const SamplingParams> params,
      const Interrupt& interrupted = {}, std::span<const RequestOptions> options = {});
  [[nodiscard]] Result<Stream> stream_from_chunks(const CompositionSpec& spec,
                                                  const SamplingParams& params = {},
                                                  const Interrupt& interrupted = {},
                                                  const RequestOptions& options = {});
  // Registers the chunks of `prompt` and runs their composition, made as `how` says, whose ids are
  // not looked at. Without `persist_chunks` the call leaves nothing: what it created and computed
  // is deleted, unless somebody else has registered, used or changed it meanwhile, and it counts as
  // no use, hit or miss.
  [[nodiscard]] Result<RegisteredGeneration> generate(const ChunkedPrompt& prompt,
                                                      const CompositionSpec& how = {},
                                                      const SamplingParams& params = {},
                                                      bool persist_chunks = true,
                                                      const Interrupt& interrupted = {},
                                                      const RequestOptions& options = {});
  // fp32 [query tokens, vocab_size]. Mode exact computes the whole prompt: nothing is reused.
  [[nodiscard]] Result<ForwardOutput> logits_from_chunks(const CompositionSpec& spec,
                                                         const Interrupt& interrupted = {});

  // The KV that the chunk was registered with. kNotFound; kInvalidComposition for a query.
  [[nodiscard]] Result<BlockList> chunk_blocks(const std::string& chunk_id,
                                               const std::string& salt = {}) const;
  // A sequence behind the composition: its query is the first of the sequence's own tokens.
  [[nodiscard]] Result<Sequence> sequence(const CompositionSpec& spec,
                                          const Interrupt& interrupted = {},
                                          const RequestOptions& options = {});

  // For each part of the composition whether its KV is there, and why not. Chunks that have gone
  // are parts too, of unknown length. Changes nothing. Of a plain prompt: llm().explain.
  [[nodiscard]] Result<std::vector<ReusePart>> explain(const CompositionSpec& spec) const;

  struct Impl;

 private:
  explicit ChunkedLLM(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace quire
