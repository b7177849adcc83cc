// ChunkedLLM: texts registered once, whose KV is computed once and then composed in any order.
//
// A chunk is a text, or a list of token ids, with its KV. A composition is an ordered list of
// chunks at positions: a system chunk, contexts, a query. Guide: docs/chunks.md.
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

// Says which part of a composition a chunk may be. A query has no KV of its own: each use computes
// it.
enum class ChunkType : std::uint8_t { kSystemPrompt, kContext, kQuery };
// Returns "system_prompt", "context" or "query". Static memory.
[[nodiscard]] constexpr const char* chunk_type_name(ChunkType type) {
  constexpr const char* kNames[] = {"system_prompt", "context", "query"};
  return kNames[static_cast<std::uint8_t>(type)];
}

// Says which tokens a context has seen when its KV is computed. Each mode equals a reference that
// can be written down (docs/chunks.md, What a composition means).
enum class ReuseMode : std::uint8_t {
  // A causal prefill of the joined ids. It reuses whole cached blocks of their beginning.
  kExact,
  // A context has seen the system chunk and itself. The default.
  kAnchored,
  // A context has seen only itself.
  kIndependent,
  // Anchored or independent (Blend::base); then a share of the context tokens is computed again.
  kBlend,
};
// Returns "exact", "anchored", "independent" or "blend". Static memory.
[[nodiscard]] constexpr const char* reuse_mode_name(ReuseMode mode) {
  constexpr const char* kNames[] = {"exact", "anchored", "independent", "blend"};
  return kNames[static_cast<std::uint8_t>(mode)];
}

// Says which context tokens mode kBlend computes again.
enum class Selector : std::uint8_t {
  // Tokens that the query looks at most (ProphetKV, arXiv 2602.02579).
  kQueryAttention,
  // Tokens whose values at layer 1 move most (CacheBlend, arXiv 2405.16444).
  kValueDeviation,
  // The first tokens of every context (EPIC, arXiv 2410.15332).
  kFirst,
  // Random tokens, to compare with.
  kRandom,
  // All context tokens.
  kAll,
  // No token.
  kNone,
  // The tokens that Blend::tokens lists.
  kExplicit,
};
// Returns "query_attn", "value_dev", "first_k", "random", "all", "none" or "explicit". Static
// memory.
[[nodiscard]] constexpr const char* selector_name(Selector selector) {
  constexpr const char* kNames[] = {"query_attn", "value_dev", "first_k", "random",
                                    "all",        "none",      "explicit"};
  return kNames[static_cast<std::uint8_t>(selector)];
}

// Text that is put before and behind the text of a chunk. Special tokens written in it count.
struct ChunkAffixes {
  std::string prefix = {}, suffix = {};
};
// Affixes for each type of chunk.
struct ChunkFormat {
  ChunkAffixes system = {}, context = {}, query = {};
};

// Options of a registry of chunks. Plain data; the registry keeps a copy.
//
// A salt names a tenant, and the empty salt names one, too. Chunks, ids, anchors, counts and limits
// belong to one tenant. Another tenant's chunk is kNotFound, word for word like a chunk that never
// was.
struct ChunkCacheOptions {
  // Most chunks of each tenant, at least 1.
  std::int32_t max_chunks = 1000;
  // Share of the KV blocks that the chunks of all tenants may hold together, in (0, 1].
  // Beyond it the tenant that holds most gives way. A tenant that holds no more than an equal share
  // loses nothing to others.
  double chunk_memory_ratio = 0.5;
  // True: equal chunks are one chunk. False: each registration makes a chunk with an id of its own.
  bool enable_deduplication = true;
  // Salt of calls and requests that name none, at most 1,024 bytes.
  std::string salt = {};
  // Directory for registered chunks (docs/store-format.md). A later process finds them there and
  // reads their KV instead of computing it. Empty: no store.
  // In a directory that may not be written to, new chunks stay in memory: see LLM::remarks.
  std::string store = {};
  // Most bytes of the store; 0: no limit. Beyond it registering evicts the chunks from the store
  // that were used least recently, by the rule for several tenants of StoreOptions::max_bytes.
  std::int64_t max_store_bytes = 0;
  // True: the store compresses KV, which is smaller and slower (docs/store-format.md).
  bool compress_store = false;
  // True: a call that registers returns when the chunks are on the disk.
  // False: the call returns before, and a thread writes (see ChunkedLLM::flush_store). The work is
  // equal: the call is shorter, a whole run is not. Unless more than a quarter of the KV blocks is
  // free, the call waits for the disk all the same.
  bool write_through = true;
  // Format of chunks that come as text. Not given: the model's chat template.
  std::optional<ChunkFormat> chunk_format = {};

  // Checks the options by themselves, before any file is opened.
  // Errors: kInvalidArgument names the option, its value or size, and the values that are allowed.
  [[nodiscard]] QUIRE_API Status validate() const;
};

// Options of one chunk. Plain data.
struct ChunkOptions {
  // A JSON object.
  std::string metadata_json = "{}";
  // Seconds after the last use until the chunk expires, above 0. Not given: never. A pinned chunk
  // does not expire.
  std::optional<double> ttl_seconds = {};
  // True: the chunk is never evicted.
  bool pinned = false;
  // Chunks of a lower priority are evicted first; among equals the least recently used one.
  std::int32_t priority = 0;
  // Id of the system chunk under which a context is computed. "": none.
  // Not given: the tenant's system chunk that was registered last, by this call or an earlier one.
  std::optional<std::string> anchor = {};
  // Salt of the chunk's tenant. Empty: ChunkCacheOptions::salt.
  std::string salt = {};
};

// A chunk to be registered.
struct ChunkContent {
  // A text goes through the chunk format. Token ids are taken as they are.
  Prompt content = {};
  ChunkType type = ChunkType::kContext;
  ChunkOptions options = {};
};

// Describes a chunk at the moment of the call. Plain data that the caller owns.
struct ChunkInfo {
  // 64 hexadecimal digits. An equal chunk has an equal id in every process.
  std::string chunk_id;
  ChunkType type = ChunkType::kContext;
  // The text as registered, with ill-formed UTF-8 as U+FFFD. For token ids: their decoded text.
  std::string content;
  // Ids of the whole chunk, affixes included.
  std::vector<TokenId> token_ids;
  std::string metadata_json;
  // Times of the first registration and of the last use. UTC, ISO 8601: "2024-01-01T00:00:00Z".
  std::string created_at, last_accessed;
  // Number of uses after the first registration: registrations again, and runs of compositions.
  std::int64_t access_count = 0;
  std::optional<double> ttl_seconds;
  bool pinned = false;
  std::int32_t priority = 0;
  // Id of the system chunk under which the chunk was registered. "": none.
  std::string anchor;
  // Number of variants of the chunk's KV in memory. Each anchor makes a variant of its own; so do
  // no anchor, a BOS sink and another distance from the anchor.
  std::int64_t num_variants = 0;
  // Bytes of the KV blocks that the chunk holds.
  std::int64_t memory_bytes = 0;
  // True when the chunk is in the store, where other processes find it.
  bool saved = false;
};

// Says what registering has done for one chunk.
struct RegisteredChunk {
  std::string chunk_id;
  // True when the chunk was neither registered nor in the store before.
  bool created = false;
  // Tokens that this call has computed for the chunk.
  std::int64_t tokens_computed = 0;
};

// Function that hears how far a registration is. `wanted_tokens` counts the tokens of all chunks of
// the call, `tokens` those that have KV by now. A chunk found by its text may count as no token.
// The thread that registers calls it: every kInterruptPollMs while it waits for KV, and once at the
// end.
using ChunkProgress = std::function<void(std::int64_t tokens, std::int64_t wanted_tokens)>;

// Changes to a chunk. A field that is not given leaves the chunk as it is.
struct ChunkUpdate {
  // A JSON object. Its pairs replace those of equal keys; other keys stay.
  std::optional<std::string> metadata_json = {};
  // Seconds above 0. An empty value inside: the chunk has no TTL from now on.
  std::optional<std::optional<double>> ttl_seconds = {};
  std::optional<bool> pinned = {};
  std::optional<std::int32_t> priority = {};
};

// Counts the chunks of one tenant that are in memory. memory_limit_bytes alone is a number for all
// tenants.
struct ChunkStats {
  std::int64_t total_chunks = 0, system_chunks = 0, context_chunks = 0, query_chunks = 0;
  // Bytes of the tenant's KV blocks, and the most that the chunks of all tenants may hold.
  std::int64_t memory_used_bytes = 0, memory_limit_bytes = 0;
  // Prefills that were avoided (hits) and done (misses).
  std::int64_t cache_hits = 0, cache_misses = 0;
  // Chunks that have made room for others.
  std::int64_t evictions = 0;
};

// Parameters of mode kBlend.
struct Blend {
  Selector selector = Selector::kQueryAttention;
  // Share of the context tokens to compute again, in [0, 1], rounded up to whole tokens.
  // kAll, kNone and kExplicit do not read it.
  double share = 0;
  // For kExplicit: indices into the composition's token_ids. Tokens outside of contexts are left
  // as they are.
  std::vector<std::int32_t> tokens = {};
  // Mode in which the contexts are computed first: kAnchored or kIndependent.
  ReuseMode base = ReuseMode::kAnchored;
  // For kRandom. splitmix64 from this seed gives each context token in turn the upper 53 bits of a
  // number. The tokens with the largest numbers are computed again.
  std::uint64_t seed = 0;
};

// Says at which positions the segments of a composition stand.
enum class Positions : std::uint8_t {
  // One behind the other.
  kConcat,
  // All contexts start where the system chunk ends. The query follows the longest of them.
  kParallel,
  // At the starts that CompositionSpec::fixed lists.
  kFixed,
};

// Describes a composition: which chunks, in which order, in which mode. Plain data.
struct CompositionSpec {
  // Salt of the tenant whose chunks these are. Empty: the request's, else ChunkCacheOptions::salt.
  std::string salt = {};
  std::string system_chunk_id = {};
  // True allows an empty system_chunk_id.
  bool without_system = false;
  // Any number of contexts, in this order.
  std::vector<std::string> context_chunk_ids = {};
  std::string query_chunk_id = {};
  ReuseMode mode = ReuseMode::kAnchored;
  // Modes kExact and kBlend take kConcat alone.
  Positions positions = Positions::kConcat;
  // For kFixed: the start of each segment, system and query included, 0 or more.
  std::vector<std::int32_t> fixed = {};
  // For kAnchored, and for kBlend on that base.
  // True: contexts are computed as far behind the system chunk as they are used. The result then
  // equals one forward pass with the mode's mask and these positions.
  // False: contexts are computed right behind the system chunk, once, and serve at every place
  // without another prefill. Only their distance to the system chunk differs (docs/adr/0008).
  bool computed_in_place = false;
  // For kIndependent. True: contexts have seen a BOS token, too.
  bool bos_sink = false;
  // For kBlend.
  Blend blend = {};
};

// Describes a composition, and the cost of running it now. Plain data.
struct CompositionInfo {
  // One chunk of the composition, in its place.
  struct Segment {
    std::string chunk_id;
    ChunkType type = ChunkType::kContext;
    std::int64_t num_tokens = 0;
    // Ids of the chunk, shared with it. Never null.
    std::shared_ptr<const std::vector<TokenId>> token_ids;
    // Position of the first token.
    std::int64_t position = 0;
    // True when the KV is there, or comes without a prefill of its own. The store may have the KV,
    // or a prefill for an earlier segment or another run may bring it.
    bool cached = false;
    // Cause, for people, where `cached` is false: never seen, evicted, other anchor, and so on.
    std::string why_not;
  };
  // System chunk, contexts and query, in order.
  std::vector<Segment> segments;
  // Returns the ids of all segments, joined. O(tokens).
  [[nodiscard]] std::vector<TokenId> token_ids() const {
    std::vector<TokenId> joined;
    joined.reserve(static_cast<std::size_t>(total_tokens));
    for (const Segment& segment : segments) {
      joined.insert(joined.end(), segment.token_ids->begin(), segment.token_ids->end());
    }
    return joined;
  }
  ReuseMode mode = ReuseMode::kAnchored;
  // Grade that the output will have.
  ReuseGrade grade = ReuseGrade::kExact;
  // Tokens of all segments.
  std::int64_t total_tokens = 0;
  // Usage::cached_tokens of the output.
  std::int64_t tokens_reused = 0;
  // Tokens that are computed until the first token of the output is chosen. Missing KV counts once,
  // however often it is used. Tokens that blend then computes again count again.
  std::int64_t tokens_computed = 0;
  // Runs of KV that attention merges.
  std::int64_t num_levels = 0;
  // KV blocks that the run holds until the first token of the output is chosen, and their bytes.
  std::int64_t num_blocks = 0;
  std::int64_t memory_bytes = 0;
  // Blocks among num_blocks that the run has to allocate.
  // num_blocks and new_blocks are upper bounds for blend with kQueryAttention or kValueDeviation.
  // They are also upper bounds where missing KV may come to share blocks with KV that begins alike.
  std::int64_t new_blocks = 0;
  // True when encoding the joined text gives the joined ids. ChunkedLLM::compose does not check
  // that, and leaves true.
  bool retokenizes_alike = true;
};

// A composition that was checked. Immutable: it names chunks and holds no KV. Running its spec()
// after one of the chunks has gone is kNotFound.
// Threads: any number at once. Copies share one object.
class QUIRE_API Composition {
 public:
  // Returns the description that it was made of, to be given to the calls of ChunkedLLM.
  [[nodiscard]] const CompositionSpec& spec() const;
  // Returns what a run would have cost when the composition was made.
  [[nodiscard]] const CompositionInfo& info() const;

  // For the library itself.
  struct Impl;
  explicit Composition(std::shared_ptr<const Impl> impl);
  [[nodiscard]] const Impl& impl() const { return *impl_; }

 private:
  std::shared_ptr<const Impl> impl_;
};

// Texts or token ids that ChunkedLLM::generate registers and composes.
struct ChunkedPrompt {
  // Not given: needs CompositionSpec::without_system.
  std::optional<Prompt> system = {};
  std::vector<Prompt> contexts = {};
  Prompt query = {};
};

// Output of ChunkedLLM::generate, with the ids of its chunks.
struct RegisteredGeneration {
  GenerationOutput output;
  // system_id is "" without a system chunk.
  std::string system_id, query_id;
  // One id per context, in order.
  std::vector<std::string> context_ids;
};

// An LLM with a registry of chunks.
//
// Ownership: move only. Destroying or replacing a ChunkedLLM that open() has made closes its LLM. A
// moved-from one may only be destroyed or assigned to.
// Threads: any number of threads may call at once. Only moving and destroying need the object for
// themselves.
// Errors of every call: kClosed, kOutOfBlocks (see LLM), and kInvalidArgument for a salt of more
// than 1,024 bytes.
//
// Salts. Each call that takes a chunk id or a CompositionSpec looks among the chunks of one tenant
// alone. An empty salt stands for ChunkCacheOptions::salt.
//
// Eviction. When room is needed, chunks of the lowest priority go first, among equals the least
// recently used, unless sessions say otherwise. Pinned chunks and chunks in use stay.
// Registering and running are uses. Looking up, listing and previewing are not, and so move no
// chunk in the order of eviction.
//
// Compositions. Calls that take a CompositionSpec return these errors, too:
// * kNotFound: a chunk is unknown, was deleted or evicted, or has expired.
// * kInvalidComposition: a system chunk or a query is missing, or a chunk has another type. A field
//   of the spec that the mode does not allow is this error, too.
// * kIncompatible: another mode than kExact for a model with a sliding window. Chunks of such a
//   model have no KV of their own.
// * kInvalidArgument: Blend::share or an index of Blend::tokens is out of range.
// * kOverflow: the composition has more positions than the model's context.
//
// Runs. Calls that run a composition first compute the KV that is missing, and keep it with the
// chunks. They return the errors of a request (see LLM, Requests) and these:
// * kOverflow: the composition and its output can never fit into the pool of blocks.
// * kInvalidArgument: the salts of spec and request differ.
// * kUnsupported: bos_sink for a model without a BOS token.
class QUIRE_API ChunkedLLM {
 public:
  // Opens a model with a registry of chunks. Blocks as LLM::open does.
  // Errors: those of LLM::open and of `chunks.validate()`, and those of opening the store
  // (Store::open).
  [[nodiscard]] static Result<ChunkedLLM> open(const std::string& model,
                                               const LLMOptions& options = {},
                                               const ChunkCacheOptions& chunks = {});
  // Returns the registry that an open LLM has, with the options that the LLM was opened with.
  // Destroying the result leaves the LLM open. `llm` may be destroyed before the result, and closes
  // the LLM then.
  [[nodiscard]] static ChunkedLLM over(const LLM& llm);
  ChunkedLLM(ChunkedLLM&&) noexcept;
  ChunkedLLM& operator=(ChunkedLLM&&) noexcept;
  ~ChunkedLLM();

  // Returns the LLM, for plain prompts, statistics, the tokenizer and close(). The ChunkedLLM owns
  // it.
  [[nodiscard]] LLM& llm();

  // Registers a chunk and returns its id. Blocks until its KV is computed, and on the disk where
  // there is a store (see ChunkCacheOptions::write_through).
  // An equal chunk that is there needs no prefill: the call is a use of it and returns its id.
  // The metadata is merged, and new keys win. A pin, a TTL and a priority other than 0 hold from
  // then on. Cost of a known chunk: O(text).
  // Errors: kOverflow for a chunk that can never fit, kOutOfBlocks for one that does not fit now.
  // kInvalidArgument for options out of range, an anchor of a chunk that is no context, an empty
  // chunk, and ids outside of the vocabulary.
  // kNotFound for an unknown anchor, kInvalidComposition for an anchor that is no system chunk.
  // kUnsupported for a text where the model has no chunk format. kCancelled when `interrupted`
  // returned true. kIo where the disk fails.
  [[nodiscard]] Result<std::string> register_chunk(const ChunkContent& chunk,
                                                   const Interrupt& interrupted = {});
  // Registers many chunks in one batch, all or none, with the errors of register_chunk(). Returns
  // their ids in the order of `chunks`.
  [[nodiscard]] Result<std::vector<std::string>> register_chunks(
      std::span<const ChunkContent> chunks, const Interrupt& interrupted = {});
  // Registers like register_chunks(), tells `progress` how far it is, and returns what was done for
  // each chunk.
  [[nodiscard]] Result<std::vector<RegisteredChunk>> register_with_details(
      std::span<const ChunkContent> chunks, const Interrupt& interrupted = {},
      const ChunkProgress& progress = {});

  // Returns a description of the chunk, also of one that is only in the store. Waits for the
  // running step. O(text).
  // Errors: kNotFound, with what became of the chunk.
  [[nodiscard]] Result<ChunkInfo> get_chunk(const std::string& chunk_id,
                                            const std::string& salt = {}) const;
  // Returns descriptions of the tenant's chunks in the order of their creation, of one type if it
  // is given. Chunks that are only in the store are listed, too.
  // `metadata_filter_json` is an object: a chunk is listed if its metadata has all these pairs.
  // Waits for the running step. O(text of all chunks).
  // Errors: kInvalidArgument for another filter than a JSON object.
  [[nodiscard]] Result<std::vector<ChunkInfo>> list_chunks(
      std::optional<ChunkType> type = {}, std::string_view metadata_filter_json = "{}",
      const std::string& salt = {}) const;
  // Changes a chunk and returns its new description. Reads a chunk that is only in the store into
  // memory. Waits for the running step, and for chunks that are being written to the disk.
  // Errors: kNotFound. kInvalidArgument for metadata that is no object, or a TTL that is not above
  // 0. kIo where the chunk is saved and the store cannot be written: the chunk stays as it was.
  // kOverflow and kOutOfBlocks where a chunk from the store finds no room.
  [[nodiscard]] Result<ChunkInfo> update_chunk(const std::string& chunk_id,
                                               const ChunkUpdate& update,
                                               const std::string& salt = {});
  // Deletes a chunk, from the store, too. Returns false when it was not there.
  // The chunk is unknown from now on. Its blocks return with its last user; blocks in the prefix
  // cache go, too, unless prompts have put them there.
  // With `wipe` the chunk's bytes in the store become zeros first.
  // Waits for the running step, and for chunks that are being written to the disk.
  // Errors: kIo where the store cannot be written: the chunk stays. kIo for a wipe that others hold
  // up, after the chunk has left the store; a second call ends the wipe.
  [[nodiscard]] Result<bool> delete_chunk(const std::string& chunk_id, bool wipe = false,
                                          const std::string& salt = {});
  // Deletes all chunks that no request uses, of one type if it is given; pinned ones, too. Chunks
  // that are only in the store go as well. Returns how many chunks were deleted.
  // Waits for the running step, and for chunks that are being written to the disk.
  // Errors: kIo where some are saved in a store that is read-only: nothing is deleted.
  [[nodiscard]] Result<std::int64_t> clear_chunks(std::optional<ChunkType> type = {},
                                                  const std::string& salt = {});
  // Evicts from memory the chunks without a use for so many seconds, but no pinned ones and none in
  // use. The store keeps them. Returns how many chunks were evicted.
  // Waits for the running step.
  // Errors: kInvalidArgument for negative seconds.
  [[nodiscard]] Result<std::int64_t> evict_unused_chunks(double max_age_seconds = 3600,
                                                         const std::string& salt = {});
  // Returns counts of the tenant's chunks in memory. Waits for the running step. O(chunks).
  [[nodiscard]] Result<ChunkStats> chunk_stats(const std::string& salt = {}) const;
  // Blocks until the store has all that was registered, or computed for a composition.
  // Returns the first failure of a write in the background since the last flush_store(). kIo also
  // where something since then was not written because the store is read-only.
  // A chunk that could not be written belongs to this process alone until it is registered again.
  // LLM::close() waits for these writes, too, and reports no failure.
  [[nodiscard]] Status flush_store();

  // Checks kinds, number and mode of the chunks and returns the composition. Computes nothing.
  // Waits for the running step. O(number of chunks), and O(tokens) for what the prefix cache is
  // asked: the ids in mode kExact, and missing KV that stands behind nothing.
  [[nodiscard]] Result<Composition> compose(const CompositionSpec& spec) const;
  // Returns what running the composition would do now. Changes nothing and computes nothing.
  // Costs as much as compose(), and O(tokens) for `retokenizes_alike`. The latter takes O(segments)
  // where segments begin with special tokens and were registered by this process.
  [[nodiscard]] Result<CompositionInfo> preview_composition(const CompositionSpec& spec) const;

  // Runs a composition: generates tokens behind it. Blocks until the last token, and returns the
  // output.
  [[nodiscard]] Result<GenerationOutput> generate_from_chunks(const CompositionSpec& spec,
                                                              const SamplingParams& params = {},
                                                              const Interrupt& interrupted = {},
                                                              const RequestOptions& options = {});
  // Runs all compositions in one continuous batch. Blocks until the last token of all, and returns
  // the outputs in the order of `specs`.
  // `params` holds one element, or one per request. `options` holds none, one, or one per request.
  // Errors: kInvalidArgument for another count. Nothing starts if any request is refused.
  [[nodiscard]] Result<std::vector<GenerationOutput>> batch_generate_from_chunks(
      std::span<const CompositionSpec> specs, std::span<const SamplingParams> params,
      const Interrupt& interrupted = {}, std::span<const RequestOptions> options = {});
  // Runs a composition and returns its stream, which gives the tokens as they come.
  // Blocks until the chunks' KV is there, also with options.notify. `interrupted` is asked until
  // then.
  [[nodiscard]] Result<Stream> stream_from_chunks(const CompositionSpec& spec,
                                                  const SamplingParams& params = {},
                                                  const Interrupt& interrupted = {},
                                                  const RequestOptions& options = {});
  // Registers the chunks of `prompt`, runs their composition, and returns output and ids. `how`
  // says how they are composed; its ids are not read. Blocks until the last token.
  // Without `persist_chunks` the call leaves nothing: it deletes the chunks and the KV that it
  // made. Chunks that somebody else has registered, used or changed meanwhile stay. The call then
  // counts as no use, hit or miss.
  // Errors: those of register_chunk() and of a run. The call returns kOutOfBlocks, not kNotFound,
  // where the chunks did not stay until the request began.
  [[nodiscard]] Result<RegisteredGeneration> generate(const ChunkedPrompt& prompt,
                                                      const CompositionSpec& how = {},
                                                      const SamplingParams& params = {},
                                                      bool persist_chunks = true,
                                                      const Interrupt& interrupted = {},
                                                      const RequestOptions& options = {});
  // Runs a composition and returns the logits of its query, fp32 [query tokens, vocab_size]. Blocks
  // until they are computed. Mode kExact computes the whole prompt and reuses nothing.
  [[nodiscard]] Result<ForwardOutput> logits_from_chunks(const CompositionSpec& spec,
                                                         const Interrupt& interrupted = {});

  // Returns a handle on the KV that the chunk was registered with. The handle holds no block.
  // Reads a chunk that is only in the store into memory. Waits for the running step.
  // Errors: kNotFound. kInvalidComposition for a chunk without such KV, as every query is.
  // kOverflow and kOutOfBlocks where a chunk from the store finds no room.
  [[nodiscard]] Result<BlockList> chunk_blocks(const std::string& chunk_id,
                                               const std::string& salt = {}) const;
  // Runs a composition without generating, and returns a sequence behind it, which the caller owns.
  // The query is the first of the sequence's own tokens. Blocks until the query is computed.
  [[nodiscard]] Result<Sequence> sequence(const CompositionSpec& spec,
                                          const Interrupt& interrupted = {},
                                          const RequestOptions& options = {});

  // Returns for each part of the composition whether its KV is there, and why not. Chunks that have
  // gone are parts, too, of unknown length. LLM::explain does this for a plain prompt.
  // Changes nothing and computes nothing. Costs as much as compose().
  // Errors: those of a composition without kNotFound.
  [[nodiscard]] Result<std::vector<ReusePart>> explain(const CompositionSpec& spec) const;

  // For the library itself.
  struct Impl;

 private:
  explicit ChunkedLLM(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace quire
