// Options of models, requests and sessions: LLMOptions says how a model is opened, RequestOptions
// how a request is served. Plain data that calls copy.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "quire/drafter.h"
#include "quire/export.h"
#include "quire/result.h"
#include "quire/stats.h"

namespace quire {

// Value of LLMOptions::kv_budget_bytes that means a share of the free memory. The share is four
// fifths of a GPU's memory, or half of the machine's, that is free once the weights are loaded.
inline constexpr std::int64_t kAutoBudget = INT64_MIN;

// Says how grave a message of LLMOptions::log is.
enum class LogLevel : std::uint8_t { kInfo, kWarning, kError };

// Options of LLM::open. Plain data, which the LLM copies.
struct LLMOptions {
  // "cpu", "cuda" or "cuda:1". LLM::open returns kDevice where no usable GPU answers.
  std::string device = "cpu";
  // True: the bits of a request depend neither on what is computed beside it nor on what was
  // cached. False is faster on a GPU. The CPU is always deterministic.
  bool deterministic = true;
  // Type to compute in: "auto", "float32", "bfloat16" or "float16".
  // On the CPU "auto" follows the checkpoint: fp16 weights compute in bf16, quantised GGUF tensors
  // from their own codes. On a GPU "auto" means "bfloat16", and the same for quantised tensors.
  // LLM::open returns kUnsupported for "float16" on the CPU and for "float32" on a GPU.
  std::string dtype = "auto";
  // Format into which loading quantises the weights: "q8g32", "q4g32" or "fp8". With "" or "auto"
  // they stay as the checkpoint has them.
  // LLM::open returns kUnsupported for "fp8" on the CPU.
  std::string quantize = {};
  // Type of KV: "auto" (the type of dtype), "float32", "bfloat16", "float16" (only on a GPU),
  // "int8", "fp8" or "int4". "int8" takes 8 bits a value, and an fp16 scale for each token and KV
  // head. "fp8" and "int4" are stored block by block, when a block is full. "int4" takes a
  // block_tokens that is a multiple of 32. On a GPU other KV has the type of the weights. LLM::open
  // returns kUnsupported for another one.
  std::string kv_dtype = "auto";
  // Tokens of a KV block, 1 to 256. Multiples of 32 are fast.
  std::int32_t block_tokens = 32;
  // Bytes of all KV blocks together, or kAutoBudget. The blocks never exceed it. LLM::open returns
  // kInvalidArgument for a budget below one block, and for one that is not positive.
  std::int64_t kv_budget_bytes = std::int64_t{1} << 30;
  // Share of the budget for states of models whose layers carry one, above 0 and at most 0.9. They
  // are those of running requests and sequences, and restore points, from which later requests go
  // on. There are two states at least. Other models take nothing of it.
  double state_share = 0.25;
  // Bytes of host memory, beside the budget, for restore points that the pool gives up, each with
  // the KV before it. Requests go on from them with the same bits. 0: none. LLM::open returns
  // kUnsupported for models without states, and on a GPU.
  std::int64_t host_kv_budget_bytes = 0;
  // Maximum number of rows (tokens) of one step, 1 to 1,048,576. A longer prompt is computed in
  // pieces.
  std::int32_t max_batch_tokens = 2048;
  // Threads that compute, up to 1,024. 0: one per core.
  std::int32_t threads = 0;
  // Seed from which requests without a seed of their own draw. A preset's random weights come from
  // this seed too.
  std::uint64_t seed = 0;
  // True: a request reuses the KV of prefixes that it shares with earlier ones of its salt.
  bool prefix_cache = true;
  // True: KV that requests share is read for many of them at a time (docs/performance.md,
  // Counters). False reads it for each request, with the same results, to measure the gain.
  bool share_reads = true;
  // Directory for what opening keeps (docs/store-format.md). Chunks and contexts name stores of
  // their own.
  std::string store = {};
  // True: keeps packed weights in `store` (docs/store-format.md). A second start maps them, without
  // reading and packing the model.
  // Only for a model on disk, on the CPU: kInvalidArgument without `store` or for a preset,
  // kUnsupported on a GPU.
  bool cache_weights = false;
  // Chat template in place of the model's own: its text, or the path of a file. A text contains
  // "{{", "{%" or a line break. Empty: the model's own. LLM::open returns kInvalidArgument for a
  // template that cannot be read, kIo for a missing file, kUnsupported without a tokenizer.
  std::string chat_template = {};
  // Policy that orders requests (docs/serving.md, Scheduling): "fcfs", "priority", "shortest",
  // "fair" or "adaptive". No result depends on it.
  std::string scheduler = "fcfs";
  // Seconds, above 0. "priority": a request's priority rises by one each time. "shortest": a
  // request that has waited longer comes first.
  double aging_seconds = 30;
  // "fair": service of a generated token, 0 or more. That of a computed prompt token is 1.
  double decode_weight = 2;
  // "adaptive": seconds, 0 or more, for which the oldest request may be overtaken.
  double max_wait_seconds = 5;
  // Number of requests that may wait, 0 or more; -1: any number. A call beyond it fails with
  // kQueueFull at once. Requests that can run at once do not count, nor do preempted ones.
  std::int32_t max_waiting = -1;
  // Milliseconds, above 0, within which a running request shall get its next token while prompts of
  // others are computed; 0: no bound. Prompts are cut by the measured time of steps.
  double max_decode_gap_ms = 0;
  // "recompute", "swap" or "auto": what becomes of the KV of a preempted request. "swap" copies it
  // to host memory and back; "auto" does so where it takes less time than computing it again.
  std::string preemption = "auto";
  // Way to guess tokens, which the model then checks many at a time (docs/python.md, Guess ahead).
  // A method, or a JSON object with the keys below; "" guesses none. It changes no id, unless
  // "acceptance" says so. LLM::open returns kInvalidArgument for an unknown key.
  //
  // * "method": "ngram" (what followed the last tokens before), "suffix" (the same in earlier
  //   outputs of the tenant, too), "draft" (a smaller model), "custom" (`drafter`).
  // * "max_tokens": tokens of a guess, 1 to 64; else 8 (ngram), 16 (suffix), 4 (draft), 8 (custom).
  // * "min_match": tokens that must be alike, 1 to 16 (ngram, 2).
  // * "model": path of the smaller model (draft).
  // * "width": tokens side by side, 1 to 8 (draft, custom; 1). Above 1 guesses are trees with up to
  //   width times max_tokens tokens. On the CPU alone.
  // * "adapt": false guesses as much as it can, whatever it brings. Default true.
  // * "acceptance": {"rule": "exact"}, or {"rule": "threshold", "p": 0.9}, which also takes guesses
  //   that the model gives a probability of p. Outputs are graded kApproximate then.
  std::string speculate = {};
  // Guesses for the method "custom".
  std::shared_ptr<Drafter> drafter = {};
  // Called by the thread that calls LLM::open, with the share of the weights that is loaded, 0 to
  // 1. Never called for a preset or for mapped weights.
  std::function<void(double share)> progress = {};
  // Hears what no call returns: the model that was opened, requests that are refused for lack of
  // blocks or preempted, and failures in the background. One line of text, without prompts.
  // Called by the engine's thread, too. So `log` must return at once, must not call back into
  // Quire, and must own all that it uses until the LLM is destroyed. It may be called by several
  // threads at once.
  std::function<void(LogLevel level, std::string_view text)> log = {};

  // Called each time that the level of pressure changes, by the engine's thread; the rules of `log`
  // hold for it.
  std::function<void(const Pressure& pressure)> on_pressure = {};

  // Checks the options by themselves, before any file is opened.
  // Errors: kInvalidArgument names the option, its value and the values that are allowed.
  // kUnsupported for cache_weights on a GPU.
  [[nodiscard]] QUIRE_API Status validate() const;
};

// Returns the bytes that `text` stands for: "1GiB", "512MiB", "64KB", "1073741824".
// K, M, G, T, KiB, MiB, GiB and TiB count in powers of 1,024; KB, MB, GB and TB in powers of 1,000.
// Upper and lower case are alike.
// Errors: kInvalidArgument for other texts, for negative sizes and for more than 10^15 bytes.
[[nodiscard]] QUIRE_API Result<std::int64_t> parse_bytes(std::string_view text);

// Says how LLM::forward uses the prefix cache. kExact begins behind the longest cached prefix,
// kNone computes every token of the prompt.
enum class ForwardReuse : std::uint8_t { kExact, kNone };
// Says which logits LLM::forward returns. kAll: one row for each computed token; kLast: one row for
// the last token.
enum class ForwardRows : std::uint8_t { kAll, kLast };

// Says how a request is served. The result does not depend on these options.
struct RequestOptions {
  // Name of the session that the request belongs to, up to 256 bytes (see LLM::pause_session).
  // Empty: no session.
  std::string session = {};
  // Name of a tenant, up to 1,024 bytes. Only requests of one salt share cached prefixes. Empty
  // means ChunkCacheOptions::salt, usually none.
  // A sequence keeps the salt that it was made with: a later request on it brings that salt or an
  // empty one.
  std::string salt = {};
  // For streams. The engine thread calls `notify` each time that Stream::next has something to
  // give: a delta, the end, an error.
  // `notify` must return at once and must not call back into Quire. One more call may come after
  // the end was taken or the Stream was destroyed, until the LLM is closed. So `notify` must own,
  // or share, all that it uses.
  // With `notify` LLM::stream and LLM::stream_chat return without waiting for the running step. An
  // error that refuses the request may then come with Stream::next. Stream::close does not wait
  // either.
  std::function<void()> notify = {};
  // For streams. False: the stream has no deltas, only its output.
  bool deltas = true;
  // True: the output has GenerationOutput::parts, as LLM::explain or ChunkedLLM::explain would have
  // returned them at admission. Admission fixes the cached prefix of a prompt, or looks up the
  // chunks of a composition. For generate, stream, chat and compositions.
  bool explain = false;
  // A higher one goes first, where LLMOptions::scheduler is "priority".
  std::int32_t priority = 0;
  // Seconds from submission, above 0, after which the request ends with kCancelled, whether it
  // waits or runs. Its blocks are free within one step. Not given: no limit.
  std::optional<double> deadline_seconds = {};
  // Name, up to 1,024 bytes, under which requests share service where LLMOptions::scheduler is
  // "fair". Empty: the salt.
  std::string tenant = {};
  // For streams. Requests of the same prompt that the caller submits once this one has given a
  // token. LLMOptions::max_waiting counts them with it, so they are refused together or not at all.
  std::int32_t followers = 0;
  // For streams. True: such a request, which LLMOptions::max_waiting has counted.
  bool follows = false;
};

// Says how long the KV that a session has left in the prefix cache is worth keeping.
struct SessionRetention {
  // A lower priority is evicted first.
  std::int32_t priority = 0;
  // Seconds after the session's last request from which on nobody wants the KV, 0 to 10^9. Not
  // given: no limit.
  std::optional<double> ttl_seconds = {};
};

// Options of LLM::load_sequence and CheckpointManager::load.
struct LoadSequenceOptions {
  // True: the call returns when all KV is there and every checksum was compared, also of what the
  // prefix cache has.
  // False: the call returns at once. KV that is not cached is read in the background, and a request
  // waits for each layer when it comes to it. A damaged block spoils all that is loaded of its
  // sequence: requests fail with kCorrupt, and so does every later use of the sequence.
  // A model with a sliding window or with states always loads as if `wait` were true.
  bool wait = true;
  // Salt of the loaded sequence, as RequestOptions::salt; the file does not say it. For a
  // checkpoint the salt is the tenant.
  std::string salt = {};
};

}  // namespace quire
