// LLM: a model, its KV cache and the engine that serves requests from any number of threads.
#pragma once

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
#include "quire/interrupt.h"
#include "quire/output.h"
#include "quire/result.h"
#include "quire/sampling.h"
#include "quire/tokenizer.h"
#include "quire/types.h"

namespace quire {

// LLMOptions::kv_budget_bytes: a share of the memory that is free once the weights are loaded. Four
// fifths of a GPU's, half of the machine's.
inline constexpr std::int64_t kAutoBudget = INT64_MIN;

struct LLMOptions {
  std::string device = "cpu";  // "cpu"; "cuda", "cuda:1": kDevice without a usable GPU
  bool deterministic = true;  // a request's bits do not depend on what is computed beside it nor on
                              // what was cached; false: faster on a GPU. The CPU always is
  std::string dtype = "auto";  // "auto" (as the checkpoint says: fp16 computes in bf16, quantised
                               // GGUF tensors from their own codes; on a GPU always "bfloat16")
                               // | "float32" | "bfloat16" | "float16" (only on a GPU)
  std::string quantize = {};   // weights: "" (none) | "q8g32" | "q4g32", done while loading
  std::string kv_dtype = "auto";   // "auto" (= dtype) | "float32" | "bfloat16" |
                                   // "float16"; on a GPU as dtype
  std::int32_t block_tokens = 32;  // 1..256; multiples of 32 are fast
  std::int64_t kv_budget_bytes = std::int64_t{1} << 30;  // of KV blocks, never exceeded;
                                                         // or kAutoBudget
  std::int32_t max_batch_tokens = 2048;  // rows of one step; longer prompts are computed in pieces
  std::int32_t threads = 0;              // 0 = one per core
  std::uint64_t seed = 0;                // of requests that bring none
  bool prefix_cache = true;              // reuse the KV of shared prefixes
  bool share_reads = true;  // what requests share is read for many at a time (performance.md,
                            // Counters); false: for each, same results (to measure the gain)
  std::string store = {};   // a directory (docs/store-format.md) for what opening keeps; chunks and
                            // contexts name theirs
  bool cache_weights = false;  // keep packed weights in `store`: a second start maps them, without
                               // reading and packing the model (docs/store-format.md). CPU only
  std::function<void(double share)> progress = {};  // of loading, 0..1, on the calling thread

  [[nodiscard]] QUIRE_API Status validate() const;
};

// "1GiB", "512MiB", "64KB", "1073741824" -> bytes. kInvalidArgument otherwise.
[[nodiscard]] QUIRE_API Result<std::int64_t> parse_bytes(std::string_view text);

// A prompt is text (encoded with special tokens) or token ids (taken as they are).
using Prompt = std::variant<std::string, std::vector<TokenId>>;

enum class ForwardReuse : std::uint8_t { kExact, kNone };
enum class ForwardRows : std::uint8_t { kAll, kLast };

// How a request is served; what is computed does not depend on it.
struct RequestOptions {
  std::string session = {};  // a name of up to 256 bytes: whose request it is (see
                             // LLM::pause_session)
  std::string salt = {};  // tenant, up to 1024 bytes: cached prefixes are shared by requests of one
                          // salt alone. Empty: ChunkCacheOptions::salt, usually none. A sequence
                          // keeps the one that it was made with: for what follows, that or empty
  // Of a stream. Called by the engine thread each time that Stream::next has something to give: a
  // delta, the end, an error. Must return at once and must not call back in. May be called once
  // more after the end was taken or the Stream destroyed, until the LLM is closed: it owns, or
  // shares, what it uses. A stream with it begins and is closed without waiting for the step that
  // runs: what refuses it may come with next().
  std::function<void()> notify = {};
  bool deltas = true;  // of a stream: false, when only its output is wanted
};

// What becomes of the cached tokens of a session between its requests.
struct SessionRetention {
  std::int32_t priority = 0;               // lower is evicted first
  std::optional<double> ttl_seconds = {};  // nobody wants them so long after its last request
};

// Numbers for dashboards: name, value (docs/performance.md, Counters).
using Stats = std::vector<std::pair<std::string, double>>;

// One request's deltas as they come. Move only; destroying or closing it aborts an unfinished
// request and frees its blocks before returning. One thread per stream.
class QUIRE_API Stream {
 public:
  Stream(Stream&&) noexcept;
  Stream& operator=(Stream&&) noexcept;
  ~Stream();

  // Waits until the engine has taken the request; 0 of one that it has refused.
  [[nodiscard]] RequestId request_id() const;
  // Waits at most `timeout_ms` (negative: for ever) for the next delta; true when `next` will not
  // block.
  [[nodiscard]] bool wait(int timeout_ms);
  // The next delta, waiting for it; nullopt after the last one. An error ends the stream.
  [[nodiscard]] Result<std::optional<Delta>> next();
  // Whether next() has given a delta with `finished`, so that output() may be asked. Stays false
  // when the stream has ended with an error.
  [[nodiscard]] bool finished() const;
  // The whole output. Precondition: finished(), or next() has given nullopt.
  [[nodiscard]] const GenerationOutput& output() const;
  // With RequestOptions::notify: does not wait; what is asked afterwards finds the request ended.
  void close();

  struct Impl;
  explicit Stream(std::unique_ptr<Impl> impl);  // for the library itself

 private:
  std::unique_ptr<Impl> impl_;
};

class BlockList;
class Sequence;

// How LLM::load_sequence and CheckpointManager::load return.
struct LoadSequenceOptions {
  // True: when all KV is there, every checksum compared, also of what the prefix cache has. False:
  // at once; what is not cached is read in the background, a request waits for each layer when it
  // comes to it. A damaged block spoils all that is loaded of its sequence: requests fail with
  // kCorrupt, as does every later use of it.
  bool wait = true;
  // As RequestOptions::salt: whose the sequence is, which the file does not say. Of a checkpoint it
  // is the tenant.
  std::string salt = {};
};

// Move only. All calls may come from any thread; they wait in the calling thread while one engine
// thread computes. After close(), and in a forked child, every call gives kClosed.
class QUIRE_API LLM {
 public:
  // `model`: a Hugging Face folder (config.json, *.safetensors, tokenizer files), a GGUF file, or
  // "preset:NAME" (random weights of a public shape, no tokenizer: prompts are ids). Reads and
  // packs all weights, unless options.cache_weights finds them packed. Errors name file, tensor or
  // key.
  [[nodiscard]] static Result<LLM> open(const std::string& model, const LLMOptions& options = {});

  LLM(LLM&&) noexcept;
  LLM& operator=(LLM&&) noexcept;
  ~LLM();

  [[nodiscard]] Result<GenerationOutput> generate(const Prompt& prompt,
                                                  const SamplingParams& params = {},
                                                  const RequestOptions& options = {});
  // All prompts in one continuous batch; outputs in the order of prompts. `params` holds one
  // element or one per prompt, and so does `options` if it holds any. Nothing starts if any request
  // is refused; if one fails later, its error is returned and the others are aborted.
  [[nodiscard]] Result<std::vector<GenerationOutput>> generate_batch(
      std::span<const Prompt> prompts, std::span<const SamplingParams> params,
      const Interrupt& interrupted = {}, std::span<const RequestOptions> options = {});
  // `interrupted` is asked while the prompt is encoded.
  [[nodiscard]] Result<Stream> stream(const Prompt& prompt, const SamplingParams& params = {},
                                      const RequestOptions& options = {},
                                      const Interrupt& interrupted = {});

  // Through the model's own chat template; arguments as Tokenizer::apply_chat_template.
  [[nodiscard]] Result<GenerationOutput> chat(std::string_view messages_json,
                                              const SamplingParams& params = {},
                                              std::string_view variables_json = "{}",
                                              const RequestOptions& options = {});
  [[nodiscard]] Result<Stream> stream_chat(std::string_view messages_json,
                                           const SamplingParams& params = {},
                                           std::string_view variables_json = "{}",
                                           const RequestOptions& options = {});

  // Computes the prompt and returns logits; no sampling, no generator. Fills the prefix cache.
  [[nodiscard]] Result<ForwardOutput> forward(std::span<const TokenId> token_ids,
                                              ForwardReuse reuse = ForwardReuse::kExact,
                                              ForwardRows rows = ForwardRows::kAll,
                                              const Interrupt& interrupted = {},
                                              const RequestOptions& options = {});

  // Says what the prefix cache holds of the prompt for requests of this salt, and why it holds no
  // more. A prompt that only another salt has computed was never seen. Changes nothing.
  [[nodiscard]] Result<std::vector<ReusePart>> explain(const Prompt& prompt,
                                                       const RequestOptions& options = {}) const;

  // Tokens as a value of the caller's; what no cache holds of them is computed. May be empty.
  [[nodiscard]] Result<Sequence> sequence(std::span<const TokenId> token_ids,
                                          const Interrupt& interrupted = {},
                                          const RequestOptions& options = {});
  // The same behind cached tokens, which are shared, not copied. Behind several lists they stand
  // one after the other, and have not seen each other: kApproximate.
  [[nodiscard]] Result<Sequence> sequence(const BlockList& existing,
                                          std::span<const TokenId> new_tokens,
                                          const Interrupt& interrupted = {},
                                          const RequestOptions& options = {});
  // Generates behind cached tokens and, if there are any, new ones; no template, no special tokens.
  // Blocks of its own are freed at the end, the existing ones stay as they are.
  [[nodiscard]] Result<GenerationOutput> infer_from_blocks(const BlockList& existing,
                                                           std::span<const TokenId> new_tokens,
                                                           const SamplingParams& params = {},
                                                           const Interrupt& interrupted = {},
                                                           const RequestOptions& options = {});
  [[nodiscard]] Result<Stream> infer_from_blocks_stream(const BlockList& existing,
                                                        std::span<const TokenId> new_tokens,
                                                        const SamplingParams& params = {},
                                                        const Interrupt& interrupted = {},
                                                        const RequestOptions& options = {});
  // What Sequence::save wrote, by any process with this model and KV format: the same KV, the same
  // next tokens. Nothing is computed. kIncompatible naming what differs, kCorrupt for a damaged
  // file, kIo.
  [[nodiscard]] Result<Sequence> load_sequence(const std::string& path,
                                               const LoadSequenceOptions& options = {});
  // What plain block ids stand for; they do not say which of their slots count, so together with
  // `num_tokens` they must be those of chunks and sequences, the last one possibly cut. Ids that
  // can be typed are no leave: only what has this salt counts (as RequestOptions::salt).
  // kInvalidComposition when they are not, or could mean several things.
  [[nodiscard]] Result<BlockList> find_blocks(std::span<const std::int32_t> block_ids,
                                              std::int64_t num_tokens,
                                              const std::string& salt = {}) const;

  // Sessions: whose requests follow on one another, and when the next one comes. When memory runs
  // short the KV of closed sessions goes first, then what outlived its TTL, then the lowest
  // priority, and among equals what is expected back last; results do not depend on it. It counts
  // for what the session's last request has left in the prefix cache; what others have used too
  // stays as long as theirs. All errors are kInvalidArgument naming the argument, and kNotFound for
  // a session that is not open: one is from the first request or set_retention that names it until
  // it is closed, or until 16,384 others were named since. Each salt has sessions of its own.
  // The session is away, and expected back in so many seconds; not given: nobody knows. Forgotten
  // when its next request comes.
  [[nodiscard]] Status pause_session(const std::string& session,
                                     std::optional<double> expected_return_seconds = {},
                                     const std::string& salt = {});
  // Nobody comes back. A later request of that name begins a new session.
  [[nodiscard]] Status close_session(const std::string& session, const std::string& salt = {});
  // Opens the session if it is not.
  [[nodiscard]] Status set_retention(const std::string& session, const SessionRetention& retention,
                                     const std::string& salt = {});

  // kUnsupported for presets, which have none.
  [[nodiscard]] Result<Tokenizer> tokenizer() const;
  // What opening did not do though it was asked for, and why: packed weights that could not be
  // kept, a store that is only read. Usually none.
  [[nodiscard]] Result<std::vector<std::string>> remarks() const;
  // As after the last finished step. kClosed when closed.
  [[nodiscard]] Result<Stats> stats() const;
  // Forgets every cached block that nobody uses; returns how many became free.
  [[nodiscard]] Result<std::int64_t> clear_prefix_cache();
  // Ends a running request; its blocks are free when this returns. False when it is not running.
  [[nodiscard]] Result<bool> abort(RequestId request);
  // Ends all requests (their callers get kClosed) and frees everything. Idempotent.
  void close();

  struct Impl;
  // For the library itself. `closes`: destroying it does.
  explicit LLM(std::shared_ptr<Impl> impl, bool closes = true);
  [[nodiscard]] const Impl& impl() const { return *impl_; }
  [[nodiscard]] const std::shared_ptr<Impl>& shared_impl() const { return impl_; }

 private:
  std::shared_ptr<Impl> impl_;
  bool closes_ = true;
};

}  // namespace quire
