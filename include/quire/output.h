// What a request gives back.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "quire/types.h"

namespace quire {

enum class FinishReason : std::uint8_t { kStop, kLength, kCancelled };
[[nodiscard]] constexpr const char* finish_reason_name(FinishReason reason) {
  constexpr const char* kNames[] = {"stop", "length", "cancelled"};
  return kNames[static_cast<std::uint8_t>(reason)];
}

// How exact a reuse was: kExact has the bits of the cold full causal prefill on this backend,
// kEqualMath is the same function in another order of rounding (the best there is on a GPU without
// LLMOptions::deterministic), kApproximate anything else.
enum class ReuseGrade : std::uint8_t { kExact, kEqualMath, kApproximate };
[[nodiscard]] constexpr const char* reuse_grade_name(ReuseGrade grade) {
  constexpr const char* kNames[] = {"exact", "equal_math", "approximate"};
  return kNames[static_cast<std::uint8_t>(grade)];
}

struct Usage {
  std::int64_t prompt_tokens = 0;
  std::int64_t cached_tokens = 0;  // of the prompt, whose KV was not computed for the request; less
                                   // what blend has computed twice, as its base was missing
  std::int64_t completion_tokens = 0;
};

struct ReuseReport {
  ReuseGrade grade = ReuseGrade::kExact;
  // What, tokens: ("prefix_cache", 96), ("chunk 1a2b...", 20). They add up to Usage::cached_tokens;
  // those of chunks that begin with "computed", with the query, to the tokens computed before the
  // first one came. What several parts or requests of a call use is computed for the first of them.
  std::vector<std::pair<std::string, std::int64_t>> sources;
  double recompute_share = 0;  // recomputed context tokens / context tokens
};

struct Timing {
  double queue_seconds = 0;        // submitted to first admission
  double first_token_seconds = 0;  // submitted to first token; 0 when there is none
  double total_seconds = 0;        // submitted to finished
};

// id -> natural log of the unmodified softmax, most likely first.
using TokenLogprobs = std::vector<std::pair<TokenId, float>>;

struct GenerationOutput {
  RequestId request_id;
  std::string text;
  std::vector<TokenId> token_ids;
  std::vector<TokenId> prompt_token_ids;
  FinishReason finish_reason = FinishReason::kStop;
  Usage usage;
  ReuseReport reuse;
  std::vector<TokenLogprobs> logprobs;  // one per token, empty unless asked for
  Timing timing;
};

// What became certain since the last delta. Joined texts and ids equal the whole output.
struct Delta {
  std::string text;
  std::vector<TokenId> token_ids;
  std::vector<TokenLogprobs> logprobs;
  bool finished = false;  // the last delta; finish_reason is valid
  FinishReason finish_reason = FinishReason::kStop;
};

// One part of a request: whether its KV is there, and why not.
struct ReusePart {
  std::string chunk_type;  // empty in a plain prompt
  std::string chunk_id;
  std::int64_t position = 0;
  std::int64_t tokens = 0;
  bool hit = false;
  std::string reason;  // "hit"; "never seen", "evicted to make room 3 s ago", ...
};

// Logits fp32 [rows, vocab_size] of the prompt's tokens from `cached_tokens` on, or of the last
// one.
struct ForwardOutput {
  RequestId request_id;
  std::vector<float> logits;
  std::int64_t rows = 0;
  std::int64_t vocab_size = 0;
  std::int64_t cached_tokens = 0;
};

}  // namespace quire
