// ChunkedLLM: texts registered once, whose KV is computed once and then composed in any order.
//
// A chunk is a text, or a list of token ids, with its KV. A composition is an ordered list of
// chunks at positions: a system chunk, contexts, a query. Guide: docs/chunks.md.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "quire/chunk_types.h"  // IWYU pragma: export
#include "quire/export.h"
#include "quire/interrupt.h"
#include "quire/llm.h"
#include "quire/options.h"
#include "quire/output.h"
#include "quire/result.h"
#include "quire/sampling.h"
#include "quire/sequence.h"
#include "quire/types.h"

namespace quire {

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
// * kIncompatible: mode kBlend, but for whole layers, for a model whose layers carry a state.
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
  // kNotFound for an unknown anchor, kInvalidComposition for an anchor that anchor_of() refuses or
  // a context chunk that needs others before it.
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
  // Lets the last tokens of chunks that no request uses share blocks. Returns how many blocks
  // became free. The engine does so itself where blocks are short. Nothing that is found or
  // computed changes. Waits for the running step. O(chunks).
  [[nodiscard]] Result<std::int64_t> coalesce();
  // Returns counts of the tenant's chunks in memory. Waits for the running step. O(chunks).
  [[nodiscard]] Result<ChunkStats> chunk_stats(const std::string& salt = {}) const;
  // Returns the counts of the chunks of all tenants together, for the operator: no tenant should
  // see them. Waits for the running step. O(chunks).
  [[nodiscard]] Result<ChunkStats> chunk_totals() const;
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
