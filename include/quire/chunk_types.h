// Chunks and compositions as values: their types, options, descriptions and counts. ChunkedLLM of
// chunks.h works on them. Plain data. Guide: docs/chunks.md.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "quire/export.h"
#include "quire/result.h"
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
  // A causal prefill of the joined ids. It reuses whole cached blocks of their beginning. Chunks in
  // another format than the pool's keep it: all parts are computed anew then. The grade is
  // kEqualMath for floats of more bits than the pool's, else kApproximate.
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
  // Maximum number of chunks of each tenant, at least 1.
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
  // Maximum number of bytes in the store; 0: no limit. Beyond it registering evicts the chunks from
  // the store that were used least recently, by the rule for several tenants of
  // StoreOptions::max_bytes.
  std::int64_t max_store_bytes = 0;
  // Compression of KV in the store, which is then smaller and slower (docs/store-format.md).
  Compression compress_store = {};
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

// Returns the anchor of a context that is computed behind several chunks, in this order: a system
// chunk and contexts, or contexts alone. Each was registered behind chunks that stand before it.
// In mode anchored the context is used so where all of them stand before it in this order, behind
// the same system chunk. Elsewhere it is computed behind the system chunk alone, as any other.
[[nodiscard]] inline std::string anchor_of(std::span<const std::string> chunk_ids) {
  std::string anchor;
  for (const std::string& id : chunk_ids) {
    anchor += (anchor.empty() ? "" : "+") + id;
  }
  return anchor;
}
// Returns the chunks of an anchor, in order. Valid while `anchor` is.
[[nodiscard]] inline std::vector<std::string_view> anchor_ids(std::string_view anchor) {
  std::vector<std::string_view> ids;
  while (!anchor.empty()) {
    ids.push_back(anchor.substr(0, anchor.find('+')));
    anchor.remove_prefix(std::min(ids.back().size() + 1, anchor.size()));
  }
  return ids;
}

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
  // Id of the system chunk under which a context is computed, or anchor_of() several chunks. "":
  // none. Not given: the tenant's system chunk that was registered last, by this call or an earlier
  // one.
  std::optional<std::string> anchor = {};
  // Salt of the chunk's tenant. Empty: ChunkCacheOptions::salt.
  std::string salt = {};
  // Format of the chunk's KV. Empty: LLMOptions::kv_dtype. "float32", "bfloat16", "int8", "fp8" and
  // "int4" go into a pool of any format, on a GPU codes alone into a pool of floats. A format that
  // the pool cannot have is kUnsupported, and another name kInvalidArgument.
  // While requests hold blocks that the chunk needs, registering waits.
  std::string kv_dtype = {};
  // Layer at which the chunk keeps its hidden states, for Blend::layers that begin there. They take
  // hidden_size numbers of the compute type per token, in host memory beside kv_budget, and a
  // prefill of the layers below. 1 to the number of layers - 1. Empty: none, or those that an equal
  // chunk keeps.
  std::optional<std::int32_t> keep_hidden = {};
};

// A chunk to be registered.
struct ChunkContent {
  // A text goes through the chunk format. Token ids are taken as they are.
  Prompt content = {};
  ChunkType type = ChunkType::kContext;
  ChunkOptions options = {};
};

// Relative errors (root of mean squares) that storing KV in fewer bits has made, over all layers.
struct KVError {
  double key = 0, value = 0;
  // Bits that a value takes, scales included.
  double bits_per_value = 0;
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
  // Id of the system chunk under which the chunk was registered, or several ids as of anchor_of().
  // "": none.
  std::string anchor;
  // Number of variants of the chunk's KV in memory. Each anchor makes a variant of its own; so do
  // no anchor, a BOS sink and another distance from the anchor.
  std::int64_t num_variants = 0;
  // Bytes of the KV blocks that the chunk holds, and of its hidden states.
  std::int64_t memory_bytes = 0;
  // Layer at which the chunk keeps hidden states (ChunkOptions::keep_hidden).
  std::optional<std::int32_t> keep_hidden;
  // True when the chunk is in the store, where other processes find it.
  bool saved = false;
  // Format of its KV: "float32", "bfloat16", "float16", "int8", "fp8" or "int4".
  std::string kv_dtype;
  // Error of the last three, measured when the KV was computed, of the tokens that were. Not given:
  // for the other formats, and where no block or token was stored: a cached prefix held the KV.
  std::optional<KVError> kv_error;
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
  // Format of the chunk's KV. One that holds less than what is stored converts the KV that is
  // there. The chunk has a new id then, and the old id is kNotFound. Running requests and KV
  // computed under the chunk keep what they have. One that holds more is kInvalidArgument, since
  // what was rounded is lost. One that the pool has not is kUnsupported.
  std::optional<std::string> kv_dtype = {};
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

// Layers of a model, from `first` to the one before `last`.
struct LayerRange {
  std::int32_t first = 0;
  std::int32_t last = 0;
  friend bool operator==(const LayerRange&, const LayerRange&) = default;
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
  // Given: all context tokens run through these layers again, behind everything before them.
  // `selector`, `share`, `tokens` and `seed` are not read then. The tokens start from the
  // embeddings where `first` is 0. Else they start from the hidden states that their chunks have
  // kept at that layer (ChunkOptions::keep_hidden). That gives K and V of layers first + 1 to
  // `last`, and of layer 0 where `first` is 0. All others are as stored. From 0 to the number of
  // layers the result equals kExact. On the CPU.
  // Source: docs/adr/0046-layers-of-contexts-are-computed-again.md.
  std::optional<LayerRange> layers = {};
  // Given, for finding such layers: K and V of this layer alone are those of kExact. Costs as much
  // as `layers` from 0 to all.
  std::optional<std::int32_t> only_layer = {};
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
    // Format of its KV.
    std::string kv_dtype;
    // How layers of each kind use it, as ReusePart::layers.
    std::string layers = {};
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
  // For kExact: tokens of the longest history that is known, which may be more where no state is
  // kept behind its end. For other modes: tokens_reused.
  std::int64_t tokens_known = 0;
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

}  // namespace quire
