// LLM: a model, its KV cache and the engine that serves requests from any number of threads.
// Stream gives the output of one request piece by piece.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "quire/chat.h"  // IWYU pragma: export
#include "quire/export.h"
#include "quire/interrupt.h"
#include "quire/options.h"  // IWYU pragma: export
#include "quire/output.h"
#include "quire/result.h"
#include "quire/sampling.h"
#include "quire/stats.h"  // IWYU pragma: export
#include "quire/tokenizer.h"
#include "quire/types.h"

namespace quire {

// Gives the output of one request piece by piece, as the engine computes it.
//
// Ownership: move only. The stream owns its output and shares the engine, whose memory stays as
// long as a stream does. Destroying a stream closes it; a moved-from one may only be closed,
// destroyed or assigned to.
// Threads: one thread at a time.
class QUIRE_API Stream {
 public:
  Stream(Stream&&) noexcept;
  // Closes the stream that is replaced.
  Stream& operator=(Stream&&) noexcept;
  ~Stream();

  // Returns the request's id, for LLM::abort. Returns id 0 for a request that the engine has
  // refused, and in a forked child.
  // With RequestOptions::notify the call may block until the engine has taken or refused the
  // request.
  [[nodiscard]] RequestId request_id() const;
  // Returns how many tokens of the request have KV by now, cached ones included. Tokens of the
  // running step count by the share of its layers that are done. Returns 0 while the request waits,
  // and in a forked child. Never blocks.
  [[nodiscard]] std::int64_t computed_tokens() const;
  // Blocks until next() has something to give, but at most `timeout_ms` milliseconds. A negative
  // timeout waits for ever.
  // Returns true when next() will not block, also after the end and in a forked child.
  [[nodiscard]] bool wait(int timeout_ms);
  // Blocks until the next delta is there, and returns it. Returns nullopt after the last delta, and
  // after close().
  // With RequestOptions::deltas false: blocks until the request ends, and returns nullopt.
  // Errors: an error of the request ends the stream (see LLM, Requests). kClosed when the LLM was
  // closed, and in a forked child.
  [[nodiscard]] Result<std::optional<Delta>> next();
  // Returns true once next() has taken the end of the request: a delta with `finished`, or nullopt
  // where RequestOptions::deltas is false. Returns false for a stream that has ended with an error
  // or was closed early.
  [[nodiscard]] bool finished() const;
  // Returns the whole output. The stream owns it.
  // Precondition: finished(). Calling output() before ends the program.
  [[nodiscard]] const GenerationOutput& output() const;
  // Aborts the request if it has not ended. Idempotent.
  // Without RequestOptions::notify: waits for the running step, and the request's blocks are free
  // on return. With `notify`: does not wait, and any later question to the LLM finds the request
  // ended.
  void close();

  // For the library itself.
  struct Impl;
  explicit Stream(std::unique_ptr<Impl> impl);

 private:
  std::unique_ptr<Impl> impl_;
};

// Function that hears how many tokens of a call's prompts have KV. Tokens of the running step count
// by the share of its layers that are done. The thread that waits calls it, every kInterruptPollMs
// and once at the end.
using PromptProgress = std::function<void(std::int64_t tokens, std::int64_t wanted_tokens)>;

class BlockList;
class Sequence;

// A model, its KV cache and the engine that computes.
//
// Ownership: move only. Destroying an LLM closes it; a moved-from one may only be closed, destroyed
// or assigned to. Sequences, streams and managers may outlive the LLM: calls that need the engine
// then return kClosed.
// Threads: any number of threads may call at once. Each call waits in its own thread while one
// engine thread computes. Moving or destroying an LLM must not happen beside other calls.
// Errors of every call: kClosed after close() and in a forked child; kOutOfBlocks when the machine
// refuses memory. Calls that return a Result or a Status throw nothing.
//
// Requests. Calls that compute (generate, stream, chat, forward, sequence, infer_from_blocks)
// return these errors, too:
// * kInvalidArgument: a parameter is out of range, the prompt is empty, or an id is outside of the
//   vocabulary. A model without a tokenizer refuses texts and stop strings.
// * kOverflow: the prompt is longer than the model's context, or the request can never fit into the
//   pool of blocks.
// * kOutOfBlocks: the request does not fit now.
// * kCancelled: the caller's Interrupt returned true, the request's deadline has passed, or abort()
//   ended a request that generates no tokens.
// * kQueueFull: as many requests wait as LLMOptions::max_waiting allows.
// * kCorrupt: the request used KV that was loaded from a damaged file.
// * kDevice: the GPU failed.
// The engine cuts SamplingParams::max_tokens to the room that the model's context leaves.
//
// Waiting. A call "waits for the running step" when the engine can only answer between two steps;
// an idle engine answers at once.
class QUIRE_API LLM {
 public:
  // Opens a model. `model` is a Hugging Face folder (config.json, *.safetensors, tokenizer files),
  // a GGUF file, or "preset:NAME". "~" in front of a path is the home folder. A preset has random
  // weights of a public shape and no tokenizer: its prompts are token ids.
  // Blocks until all weights are read and packed, unless options.cache_weights finds them packed.
  // Errors name the file, tensor or key: kInvalidArgument, kUnsupported, kIo, kCorrupt, kDevice,
  // kOutOfBlocks.
  [[nodiscard]] static Result<LLM> open(const std::string& model, const LLMOptions& options = {});

  LLM(LLM&&) noexcept;
  // Closes the LLM that is replaced.
  LLM& operator=(LLM&&) noexcept;
  ~LLM();

  // Computes the prompt and generates tokens. Blocks until the last token, and returns the output.
  // A request that abort() has ended returns its output so far, with FinishReason::kCancelled.
  [[nodiscard]] Result<GenerationOutput> generate(const Prompt& prompt,
                                                  const SamplingParams& params = {},
                                                  const RequestOptions& options = {});
  // Generates for all prompts in one continuous batch. Blocks until the last token of all, and
  // returns the outputs in the order of prompts.
  // `params` holds one element, or one per prompt. `options` holds none, one, or one per prompt.
  // Errors: kInvalidArgument for another count. Nothing starts if any request is refused. If a
  // request fails later, the call returns its error and aborts the others.
  // `progress` hears how far the prompts are.
  [[nodiscard]] Result<std::vector<GenerationOutput>> generate_batch(
      std::span<const Prompt> prompts, std::span<const SamplingParams> params,
      const Interrupt& interrupted = {}, std::span<const RequestOptions> options = {},
      const PromptProgress& progress = {});
  // Starts a request and returns its stream, which gives the tokens as they come.
  // Waits for the running step, unless options.notify is set. `interrupted` is asked while the
  // prompt is encoded, and not afterwards.
  [[nodiscard]] Result<Stream> stream(const Prompt& prompt, const SamplingParams& params = {},
                                      const RequestOptions& options = {},
                                      const Interrupt& interrupted = {});

  // Generates the answer to a chat. Blocks until the last token, and returns the output, whose
  // `answer` has thinking and tool calls apart. Tool calls stay text without a variable "tools".
  // The model's own chat template makes the prompt; the JSON arguments are those of
  // Tokenizer::apply_chat_template, with a generation prompt.
  // Errors: those of a request and of Tokenizer::apply_chat_template. kUnsupported for a model
  // without a tokenizer or a template.
  [[nodiscard]] Result<GenerationOutput> chat(std::string_view messages_json,
                                              const SamplingParams& params = {},
                                              std::string_view variables_json = "{}",
                                              const RequestOptions& options = {});
  // Starts the answer to a chat, with the arguments and errors of chat(), and returns its stream,
  // whose deltas have `answer`.
  // Waits as stream() does.
  [[nodiscard]] Result<Stream> stream_chat(std::string_view messages_json,
                                           const SamplingParams& params = {},
                                           std::string_view variables_json = "{}",
                                           const RequestOptions& options = {});

  // Answers a chat of typed messages, as chat(to_json(messages), ...) and stream_chat(...) do.
  // Errors: those of the calls above, and of to_json(messages).
  [[nodiscard]] Result<GenerationOutput> chat(std::span<const ChatMessage> messages,
                                              const SamplingParams& params = {},
                                              std::string_view variables_json = "{}",
                                              const RequestOptions& options = {});
  [[nodiscard]] Result<Stream> stream_chat(std::span<const ChatMessage> messages,
                                           const SamplingParams& params = {},
                                           std::string_view variables_json = "{}",
                                           const RequestOptions& options = {});

  // Computes the prompt and returns its logits, fp32 [rows, vocab_size] (see ForwardOutput). Blocks
  // until they are computed. No token is sampled. The prefix cache keeps the prompt's KV.
  // Errors: those of a request.
  [[nodiscard]] Result<ForwardOutput> forward(std::span<const TokenId> token_ids,
                                              ForwardReuse reuse = ForwardReuse::kExact,
                                              ForwardRows rows = ForwardRows::kAll,
                                              const Interrupt& interrupted = {},
                                              const RequestOptions& options = {});

  // Measures how far KV stored as `kv_dtype` is from KV in the compute type, over this prompt: both
  // are computed, in memory beside kv_budget. Other requests run in between, and no cache changes.
  // Errors: those of a request. kInvalidArgument for fewer than two tokens and for an unknown
  // kv_dtype. kUnsupported for a format that is not there, on a GPU, and for KV that the format
  // cannot hold.
  [[nodiscard]] Result<KVAccuracy> kv_accuracy(const Prompt& prompt, const std::string& kv_dtype,
                                               const Interrupt& interrupted = {});

  // Returns which part of the prompt the prefix cache holds for requests of this salt, and why no
  // more. A prompt that only another salt has computed counts as never seen.
  // Changes nothing and computes nothing; waits for the running step. Only the salt of `options`
  // counts.
  // Errors: kInvalidArgument for a text where the model has no tokenizer.
  [[nodiscard]] Result<std::vector<ReusePart>> explain(const Prompt& prompt,
                                                       const RequestOptions& options = {}) const;
  // Returns the parts of the prompt that the prefix cache holds, whatever the salt, in order, each
  // with the number of salts that hold it. Names no salt. Changes nothing; waits for the running
  // step. For the operator of a service. Never let a tenant call it: it tells what others have
  // asked. Errors: kInvalidArgument for a text where the model has no tokenizer.
  [[nodiscard]] Result<std::vector<CachedPart>> explain_across_salts(const Prompt& prompt) const;

  // Returns a sequence of these tokens, which the caller owns. `token_ids` may be empty.
  // Blocks until the tokens that no cache holds are computed. Only session and salt of `options`
  // count.
  [[nodiscard]] Result<Sequence> sequence(std::span<const TokenId> token_ids,
                                          const Interrupt& interrupted = {},
                                          const RequestOptions& options = {});
  // Returns a sequence of cached tokens with `new_tokens` behind them. The sequence shares the
  // cached blocks and computes nothing of them again. Blocks until the new tokens are computed.
  // The tokens of several joined lists stand one after the other and have not seen each other: the
  // grade is kApproximate. Blocks of one sequence keep its grade; blocks of a chunk give
  // kApproximate.
  // Errors: kInvalidComposition for blocks that are stale or another LLM's. kInvalidArgument for
  // blocks of several salts, or of another salt than options.salt.
  [[nodiscard]] Result<Sequence> sequence(const BlockList& existing,
                                          std::span<const TokenId> new_tokens,
                                          const Interrupt& interrupted = {},
                                          const RequestOptions& options = {});
  // Generates behind cached tokens and, if there are any, new ones. Adds no template and no special
  // tokens. Blocks until the last token.
  // Frees the blocks of the new tokens at the end; the existing blocks stay as they are.
  // Errors: those of a request and of sequence(existing, ...). kInvalidArgument without any token.
  [[nodiscard]] Result<GenerationOutput> infer_from_blocks(const BlockList& existing,
                                                           std::span<const TokenId> new_tokens,
                                                           const SamplingParams& params = {},
                                                           const Interrupt& interrupted = {},
                                                           const RequestOptions& options = {});
  // Starts to generate behind cached tokens and returns the stream. The errors are those of
  // infer_from_blocks(). Blocks until the new tokens are computed, also with options.notify.
  [[nodiscard]] Result<Stream> infer_from_blocks_stream(const BlockList& existing,
                                                        std::span<const TokenId> new_tokens,
                                                        const SamplingParams& params = {},
                                                        const Interrupt& interrupted = {},
                                                        const RequestOptions& options = {});
  // Returns the sequence that Sequence::save wrote, in any process with this model and KV format.
  // The loaded sequence has the same KV and the same next tokens. Where another kernel set computed
  // the KV, the grade is kEqualMath or kApproximate.
  // Computes nothing. Blocks until all KV is read, unless options.wait is false.
  // Errors: kIncompatible names what differs; kCorrupt for a damaged file; kIo; kOverflow for more
  // tokens than the model's context; kOutOfBlocks; kInvalidArgument.
  [[nodiscard]] Result<Sequence> load_sequence(const std::string& path,
                                               const LoadSequenceOptions& options = {});
  // Returns a handle on the blocks with these ids. An id does not say which slots of its block
  // count. So the ids and `num_tokens` together must be those of chunks and sequences, the last one
  // possibly cut.
  // An id alone gives no access: only chunks and sequences of `salt` count (see
  // RequestOptions::salt).
  // Waits for the running step. Looks at every chunk and sequence of the salt.
  // Errors: kInvalidComposition when the ids mean nothing, or could mean several things.
  // kInvalidArgument for a salt that is too long.
  [[nodiscard]] Result<BlockList> find_blocks(std::span<const std::int32_t> block_ids,
                                              std::int64_t num_tokens,
                                              const std::string& salt = {}) const;

  // Sessions. A session names requests that follow on one another (RequestOptions::session). The
  // user of a session says here when the next request comes.
  //
  // When memory runs short, cached KV goes in this order: closed sessions first, then KV beyond its
  // TTL, then the lowest priority. Among equals the KV goes that is expected back last. Results do
  // not depend on the order.
  // A session speaks for what its last request has left in the prefix cache. KV that others have
  // used, too, stays as long as theirs.
  // A session is open from the first request or set_retention() that names it until it is closed,
  // or until 16,384 others were named since. Each salt has sessions of its own.
  //
  // Each of the next three calls waits for the running step.
  // Errors of the three: kInvalidArgument names an argument that is out of range. A name has 1 to
  // 256 bytes, a salt at most 1,024; seconds are 0 to 10^9. kNotFound for a session that is not
  // open.

  // Says that the session is away, and returns in so many seconds. Without seconds: nobody knows
  // when. The session's next request ends the pause.
  [[nodiscard]] Status pause_session(const std::string& session,
                                     std::optional<double> expected_return_seconds = {},
                                     const std::string& salt = {});
  // Says that nobody comes back to the session. A later request of that name begins a new session.
  [[nodiscard]] Status close_session(const std::string& session, const std::string& salt = {});
  // Sets the retention of the session for all requests to come. Opens the session if it is not
  // open, so kNotFound never comes.
  [[nodiscard]] Status set_retention(const std::string& session, const SessionRetention& retention,
                                     const std::string& salt = {});

  // Returns the model's tokenizer, which may outlive the LLM. Does not wait.
  // Errors: kUnsupported for presets and for models without tokenizer files.
  [[nodiscard]] Result<Tokenizer> tokenizer() const;
  // Returns what opening was asked for and did not do, and why. Examples: packed weights that could
  // not be kept, a store that is only read. Usually none. Does not wait.
  [[nodiscard]] Result<std::vector<std::string>> remarks() const;
  // Returns how many tokens went through the model. Tokens of the running step count by the share
  // of its layers that are done. Does not wait, so it shows the progress of a long prompt. Errors:
  // kClosed.
  [[nodiscard]] Result<std::int64_t> tokens_computed() const;
  // Returns the counters after the last finished step. Waits for the running step only where work
  // that nobody waits for is queued, such as freeing the blocks of a closed sequence.
  [[nodiscard]] Result<EngineStats> engine_stats() const;
  // Returns the numbers of engine_stats() as pairs of name and value.
  [[nodiscard]] Result<Stats> stats() const;
  // Returns the pressure on blocks. Never waits. Errors: kClosed.
  [[nodiscard]] Result<Pressure> pressure() const;
  // Returns the last `count` decisions of the scheduler, the oldest first. At least the last 4,096
  // are kept. Waits for the running step. Errors: kInvalidArgument for a negative count.
  [[nodiscard]] Result<std::vector<PlanDecision>> plan_log(std::int64_t count) const;
  // Returns the counters, and histograms of waiting and of steps, in Prometheus' text format 0.0.4.
  // Waits as stats() does. For the operator: the numbers are those of all tenants together.
  [[nodiscard]] Result<std::string> metrics_text() const;
  // Forgets every cached block that nobody uses, of all salts. Returns how many blocks became free.
  // Waits for the running step.
  [[nodiscard]] Result<std::int64_t> clear_prefix_cache();
  // Ends a request that waits or runs; its blocks are free on return. Waits for the running step.
  // Returns false for a request that has ended or never was.
  // The caller of a generation gets the output so far, with FinishReason::kCancelled. The caller of
  // another request gets kCancelled.
  [[nodiscard]] Result<bool> abort(RequestId request);
  // Ends all requests, whose callers get kClosed, and frees everything. Blocks until the running
  // step, and the writing of chunks to disk, have ended. Idempotent.
  // Memory goes when the last call in flight has returned and the last Stream is destroyed.
  void close();

  struct Impl;
  // Wraps an LLM, for the library itself. With `closes`, destroying the LLM closes it.
  explicit LLM(std::shared_ptr<Impl> impl, bool closes = true);
  [[nodiscard]] const Impl& impl() const { return *impl_; }
  [[nodiscard]] const std::shared_ptr<Impl>& shared_impl() const { return impl_; }

 private:
  std::shared_ptr<Impl> impl_;
  bool closes_ = true;
};

}  // namespace quire
