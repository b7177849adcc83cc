// Output of requests: tokens, text, counts, and how much was reused. The structs are plain data
// that the caller owns. Nothing here waits or fails.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "quire/chat.h"
#include "quire/types.h"  // IWYU pragma: export

namespace quire {

// Says why an output ended.
// * kStop: an end token, a stop id or a stop string came.
// * kLength: the output has SamplingParams::max_tokens, or fills the model's context.
// * kCancelled: the request was aborted.
enum class FinishReason : std::uint8_t { kStop, kLength, kCancelled };
// Returns "stop", "length" or "cancelled". Static memory.
[[nodiscard]] constexpr const char* finish_reason_name(FinishReason reason) {
  constexpr const char* kNames[] = {"stop", "length", "cancelled"};
  return kNames[static_cast<std::uint8_t>(reason)];
}

// Says which condition ended an output.
struct StoppedBy {
  // * kNothing: the request was aborted.
  // * kEos: an end token of the model, which SamplingParams::stop_token_ids does not name.
  // * kStopId, kStopString: one of SamplingParams::stop_token_ids or SamplingParams::stop.
  // * kLength: as FinishReason::kLength.
  enum class Kind : std::uint8_t { kNothing, kEos, kStopId, kStopString, kLength };
  Kind kind = Kind::kNothing;
  // The token that ended the output, for kEos and kStopId. -1 otherwise.
  TokenId id = -1;
  // The stop string, for kStopString.
  std::string text = {};
};

// A part of a request, with its KV found or missing. LLM::explain returns a list of parts.
struct ReusePart {
  // Type of a chunk, or kind of an item of a context. Empty in a plain prompt.
  std::string chunk_type;
  // Id of the chunk or item. Empty in a plain prompt.
  std::string chunk_id;
  // Position of the part's first token.
  std::int64_t position = 0;
  // Number of tokens of the part.
  std::int64_t tokens = 0;
  // True when the KV is there.
  bool hit = false;
  // A hit or the cause of a miss, for people: "hit", "never seen", "evicted to make room 3 s ago".
  std::string reason;
  // Counts of the whole prompt, the same in all parts, and missing in items of a context. They
  // are tokens of the longest history that is known, and tokens behind which the request goes on.
  // The last are known tokens that it computes again, since no state is kept behind them.
  std::optional<std::int64_t> matched_tokens, usable_tokens, replayed_tokens;
  // Format of a chunk's KV, as ChunkInfo::kv_dtype. Empty in a plain prompt and in a context.
  std::string kv_dtype = {};
  // Use of a chunk's part by layers of each kind, for people. Empty where no layer carries a state.
  // For example "attention: stored keys and values; gated delta rule: map on the state, ...".
  std::string layers = {};
};

// Counts the tokens of one request.
struct Usage {
  // Tokens of the whole prompt, cached or not.
  std::int64_t prompt_tokens = 0;
  // Tokens of the prompt whose KV was not computed for the request. Tokens that blend has computed
  // twice, because their base was missing, are subtracted.
  std::int64_t cached_tokens = 0;
  // Generated tokens, with the one that ended the output.
  std::int64_t completion_tokens = 0;
  // Guessed tokens that the model has checked (LLMOptions::speculate), and those that are among the
  // generated ones.
  std::int64_t drafted_tokens = 0, accepted_tokens = 0;
};

// Says where the reused KV of a request came from, and how exact the reuse was.
struct ReuseReport {
  ReuseGrade grade = ReuseGrade::kExact;
  // Pairs of source and number of tokens: ("prefix_cache", 96), ("host_memory", 64),
  // ("chunk 1a2b...", 20). The numbers add up to Usage::cached_tokens, without sources that begin
  // with "computed". A composition of chunks has such sources for tokens that the call has
  // computed. Their numbers and the query's tokens add up to the tokens computed before the first
  // token came. KV that several parts or requests of a call use counts as computed for the first of
  // them.
  std::vector<std::pair<std::string, std::int64_t>> sources;
  // Recomputed context tokens divided by all context tokens. 0 unless blend has recomputed some.
  double recompute_share = 0;
};

// Times of one request, in seconds from its submission.
struct Timing {
  // Until the engine first began to compute the request.
  double queue_seconds = 0;
  // Until the first token was chosen. 0 when there is none.
  double first_token_seconds = 0;
  // Until the request ended.
  double total_seconds = 0;
};

// Pairs of token id and log probability, most likely first. The log probability is the natural log
// of the softmax of the model's own logits, before SamplingParams change them.
using TokenLogprobs = std::vector<std::pair<TokenId, float>>;

// The whole output of a request that has ended.
struct GenerationOutput {
  RequestId request_id;
  // Text of the generated tokens. A stop string and all behind it are left out.
  std::string text;
  // Thinking, tool calls and the rest of `text`. Not given but for chats (LLM::chat).
  std::optional<AnswerParts> answer = {};
  // Generated ids. A stop id that ended the output is the last one.
  std::vector<TokenId> token_ids;
  // Ids of the whole prompt, as the model saw them.
  std::vector<TokenId> prompt_token_ids;
  FinishReason finish_reason = FinishReason::kStop;
  StoppedBy stopped_by;
  Usage usage;
  ReuseReport reuse;
  // Parts of the prompt as they were when the request was admitted. Empty unless
  // RequestOptions::explain is set.
  std::vector<ReusePart> parts;
  // One entry per generated token. Empty unless SamplingParams::logprobs is set.
  std::vector<TokenLogprobs> logprobs;
  Timing timing;
  // With SamplingParams::n above 1: all choices in order, of which the first is this output again.
  // Empty otherwise.
  std::vector<GenerationOutput> outputs;
};

// A piece of an output: text, ids and log probabilities that became certain since the last delta.
// All deltas of a stream, joined, equal the whole output.
struct Delta {
  std::string text;
  // Parts that became certain with this delta, perhaps of text that came before. Not given but for
  // chats (LLM::stream_chat).
  std::optional<AnswerParts> answer = {};
  std::vector<TokenId> token_ids;
  // One entry per id of this delta. Empty unless SamplingParams::logprobs is set.
  std::vector<TokenLogprobs> logprobs;
  // True for the last delta; only then finish_reason is valid.
  bool finished = false;
  FinishReason finish_reason = FinishReason::kStop;
};

// A part of a prompt, with the number of tenants whose prefix cache holds it.
// LLM::explain_across_salts returns a list of parts.
struct CachedPart {
  // Position of the part's first token.
  std::int64_t position = 0;
  // Number of tokens of the part.
  std::int64_t tokens = 0;
  // Number of salts that have computed all tokens up to the part's end. The empty salt counts as
  // one.
  std::int64_t num_salts = 0;
};

// Logits of LLM::forward.
struct ForwardOutput {
  RequestId request_id;
  // fp32 [rows, vocab_size], row by row. The rows are those of the prompt's tokens from
  // `cached_tokens` on, or the row of the last token alone (ForwardRows::kLast).
  std::vector<float> logits;
  std::int64_t rows = 0;
  std::int64_t vocab_size = 0;
  // Tokens at the prompt's beginning whose KV the prefix cache held.
  std::int64_t cached_tokens = 0;
};

// Relative errors (root of mean squares) of the layers of a model.
struct LayerErrors {
  double mean = 0, max = 0;
  // In the order of the layers.
  std::vector<double> layers;
};

// Accuracy of KV in a format, measured by LLM::kv_accuracy over some tokens. The reference is KV in
// the compute type.
struct KVAccuracy {
  std::string kv_dtype;
  // Type of the reference's KV.
  std::string reference;
  std::int64_t num_tokens = 0;
  // Bits that a value of the model takes, with scales and padding.
  double bits_per_value = 0;
  // Tokens of this format in the memory of one in a type of 16 bits, and in that of one of float32.
  double ratio_vs_bf16 = 0, ratio_vs_fp32 = 0;
  // Errors of stored keys and values.
  LayerErrors key_error, value_error;
  // Mean divergence KL(reference, format), in nats, of what queries give to the tokens before them.
  // Every 16th row is measured, in all layers and heads.
  double attention_kl = 0;
  // Divergence KL(reference, format) of the distribution of the next token: its mean, and the value
  // that 99 in 100 rows do not pass.
  double logit_kl_mean = 0, logit_kl_p99 = 0;
  // Share of rows with the same likeliest token.
  double same_best = 0;
  // Perplexity of the tokens with KV in the format, and the difference to the reference's.
  double perplexity = 0, perplexity_delta = 0;
};

}  // namespace quire
