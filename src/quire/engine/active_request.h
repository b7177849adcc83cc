// ActiveRequest: a request between submission and its last token, as the engine thread sees it.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "quire/base/ids.h"
#include "quire/drafts/draft_length.h"
#include "quire/engine/channel.h"
#include "quire/kernels/kv_codes.h"
#include "quire/kv/states.h"
#include "quire/kv/types.h"
#include "quire/options.h"
#include "quire/output.h"
#include "quire/sampling.h"
#include "quire/sampling/sampler.h"
#include "quire/sampling/stop_checker.h"
#include "quire/sched/types.h"
#include "quire/text/detokenizer.h"
#include "quire/types.h"

namespace quire::model {
class StateMaps;
}  // namespace quire::model

namespace quire::engine {

// kPrefill computes KV and nothing else: no logits, no sampler.
enum class RequestKind : std::uint8_t { kGenerate, kForwardAll, kForwardLast, kPrefill };

using Clock = std::chrono::steady_clock;

// Hears about a request on the engine thread. Destroyed when the request has ended in any way,
// before its caller sees the end.
class RequestObserver {
 public:
  RequestObserver() = default;
  virtual ~RequestObserver() = default;
  RequestObserver(const RequestObserver&) = delete;
  RequestObserver& operator=(const RequestObserver&) = delete;

  // Hears that all KV that was asked for is stored, when the sequence is about to be closed.
  virtual void computed(SeqId /*sequence*/) {}
  virtual void failed(const Error& /*error*/) {}
  // Returns whether it wants to know what storing KV as codes has changed.
  [[nodiscard]] virtual bool measures_kv() const { return false; }
  // Returns the maps that grow by its rows, in models with layers that carry a state; null: none.
  [[nodiscard]] virtual model::StateMaps* maps() { return nullptr; }
  // Hears what storing the KV of computed rows has changed.
  virtual void stored(const kernels::KVErrorSums& /*sums*/) {}
};

// A prompt with KV of its own: its sequence, opened in the ledger, and the ids of its pieces.
struct ComposedPrompt {
  SeqId sequence;
  std::vector<std::shared_ptr<const std::vector<TokenId>>> pieces;  // joined: the prompt
  std::int64_t cached_tokens = 0;  // tokens of the prompt that were not computed for this request
  ReuseReport reuse;
};

// How pressing a request is: the fields of RequestOptions of these names.
struct Urgency {
  std::int32_t priority = 0;
  std::optional<double> deadline_seconds;
  std::string tenant;
  // The end of deadline_seconds; absent: none.
  std::optional<Clock::time_point> deadline;
};
// Returns the urgency of a request that is submitted at `submitted`.
[[nodiscard]] Urgency urgency_of(const RequestOptions& options,
                                 Clock::time_point submitted = Clock::now());

// A request as its caller makes it. Checked by Engine::submit.
struct NewRequest {
  RequestKind kind = RequestKind::kGenerate;
  std::vector<TokenId> prompt;
  SamplingParams params;
  // First row of kForwardAll with logits; rows before it are computed without.
  std::int32_t first_logit = 0;
  bool reuse = true;
  std::string session;  // session of the request, for SessionService; empty: none
  std::string salt;     // its tenant: of its session, and of the cached prefixes that a prompt
                        // shares; empty: the engine's own
  bool streaming = false;
  std::function<void()> notify;            // function of RequestOptions::notify
  bool explain = false;                    // RequestOptions::explain, for `prompt`
  std::vector<ReusePart> parts;            // parts of a composition that explains
  bool same_bits = true;                   // set by the engine, see graded()
  std::optional<ComposedPrompt> composed;  // instead of `prompt`
  std::vector<kv::PointMark> marks = {};   // of `prompt`: where it wants restore points
  kv::BehindWindow behind_window = kv::BehindWindow::kFrees;  // kKeeps: its KV is sealed
  std::int32_t sampled_before = 0;  // tokens at the end of the prompt that were sampled: the
                                    // sampler goes on as if it had not stopped behind them
  std::shared_ptr<RequestObserver> observer;  // may be null
  Clock::time_point submitted = Clock::now();
  Urgency urgency;
  // Requests of the same prompt that are submitted once this one has begun. The queue counts them
  // with this one, and not again when they come.
  std::int32_t followers = 0;
  bool follows = false;  // true: such a request
};

// Owned by the engine thread. The text side is absent for models without tokenizer.
class ActiveRequest {
 public:
  // Makes a request that samples with `seed`. `tokenizer` may be null and outlives the request.
  // `eos_ids` are the model's.
  ActiveRequest(RequestId id, NewRequest request, std::uint64_t seed,
                const text::Tokenizer* tokenizer, const std::vector<TokenId>& eos_ids);

  [[nodiscard]] RequestId id() const { return id_; }
  [[nodiscard]] RequestKind kind() const { return request_.kind; }
  [[nodiscard]] const NewRequest& request() const { return request_; }
  // Notes that all KV is stored, in this sequence, which is still open.
  void note_computed(SeqId sequence);
  [[nodiscard]] const std::shared_ptr<Channel>& channel() const { return channel_; }
  // Returns the context for the sampler of the token behind the first `assumed` tokens that are not
  // certain, be they drafts or on a device. Its views borrow from this object.
  [[nodiscard]] sampling::SampleContext sample_context(std::int32_t assumed = 0) const;

  // Sets the tokens that the next step assumes behind the sampled ones, until accept().
  void assume(std::span<const TokenId> draft);
  [[nodiscard]] std::span<const TokenId> assumed() const {
    return std::span(sampled_).last(assumed_);
  }
  // Counts of the assumed tokens of a step.
  struct DraftCounts {
    std::int32_t tokens = 0;    // computed
    std::int32_t longest = 0;   // those of them that stood one behind the other
    std::int32_t accepted = 0;  // those that the output has
  };
  void note_drafts(const DraftCounts& counts);
  // Notes that tokens may be taken that the model would not have chosen.
  void note_lossy() { output_.reuse.grade = ReuseGrade::kApproximate; }
  [[nodiscard]] drafts::Acceptance& acceptance() { return acceptance_; }

  // Notes the first admission, at which queueing ends. Returns how many tokens of the prompt need
  // no computing, be they the prefix index's or composed.
  std::int64_t note_admission(const sched::RequestProgress& progress);
  [[nodiscard]] bool admitted() const { return admitted_; }
  // Keeps the parts of the prompt for the output.
  void note_parts(std::vector<ReusePart> parts) { output_.parts = std::move(parts); }
  [[nodiscard]] const Timing& timing() const { return output_.timing; }
  // Returns the token ids that this request has sampled.
  [[nodiscard]] std::span<const TokenId> sampled_ids() const;
  // Returns how many tokens were sampled for this request.
  [[nodiscard]] std::size_t num_sampled() const { return sampled_ids().size(); }
  [[nodiscard]] std::int64_t cached_tokens() const { return output_.usage.cached_tokens; }

  // Takes a sampled token; true when it was the last one: deliver() then ends the request.
  [[nodiscard]] bool accept(sampling::SampledToken token);
  // Returns the error of text that takes more work than text::kWorkOfCall allows.
  [[nodiscard]] Status text_status() const;
  // Keeps logits rows of a forward request. `first` is an index into the sequence's own tokens. A
  // request that has made way for others begins again: rows that come twice replace what was there.
  void add_logits(std::int32_t first, std::span<const float> logits, std::int64_t vocab_size);

  // Sends a streaming caller what accept has gathered since the last call. Call after the request's
  // blocks are accounted for, so that a caller who sees the end sees its blocks free.
  void deliver();
  // Ends the request in its present state.
  void end(FinishReason reason);
  void fail(Error error);

 private:
  [[nodiscard]] bool take_text(std::string_view text);
  void push_delta();
  [[nodiscard]] GenerationOutput take_output();
  void release();
  void join_prompt();

  RequestId id_;
  NewRequest request_;
  std::uint64_t seed_ = 0;
  std::vector<TokenId> end_ids_;
  std::shared_ptr<Channel> channel_;
  std::optional<text::Detokenizer> detokenizer_;
  // Ids from here on have no text: models pad their vocabulary beyond the tokenizer's.
  TokenId end_of_text_ids_ = 0;
  sampling::StopChecker stops_;
  std::vector<TokenId> sampled_;  // those before, those of this request, and assumed ones
  std::size_t assumed_ = 0;       // number of the last
  drafts::Acceptance acceptance_;
  GenerationOutput output_;      // token_ids: when it is taken
  std::size_t sent_tokens_ = 0;  // tokens of this request that were sent
  std::size_t sent_bytes_ = 0;   // bytes of output_.text that were sent
  ForwardOutput forward_;
  std::int32_t first_row_ = 0;  // first row of forward_
  bool admitted_ = false;
  bool finished_ = false;
};

}  // namespace quire::engine
