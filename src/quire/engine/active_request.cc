#include "quire/engine/active_request.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <memory>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "quire/base/ids.h"
#include "quire/base/stopwatch.h"
#include "quire/engine/channel.h"
#include "quire/engine/reuse_grade.h"
#include "quire/options.h"
#include "quire/output.h"
#include "quire/result.h"
#include "quire/sampling.h"
#include "quire/sampling/sampler.h"
#include "quire/sched/types.h"
#include "quire/text/tokenizer.h"
#include "quire/types.h"

namespace quire::engine {
namespace {

constexpr std::int32_t kRoomTokens = 8192;  // for so many memory is asked for at once

// Returns whether a stop string in the text of the last of so many tokens ends the output.
bool may_stop(std::size_t tokens, const SamplingParams& params) {
  return std::cmp_greater(tokens, params.min_tokens);
}

}  // namespace

Urgency urgency_of(const RequestOptions& options, Clock::time_point submitted) {
  Urgency urgency{.priority = options.priority,
                  .deadline_seconds = options.deadline_seconds,
                  .tenant = options.tenant};
  if (options.deadline_seconds) {
    constexpr double kMost = 1e9;  // seconds that a clock can add
    urgency.deadline =
        submitted + std::chrono::duration_cast<Clock::duration>(
                        std::chrono::duration<double>(std::min(*options.deadline_seconds, kMost)));
  }
  return urgency;
}

ActiveRequest::ActiveRequest(RequestId id, NewRequest request, std::uint64_t seed,
                             const text::Tokenizer* tokenizer, const std::vector<TokenId>& eos_ids)
    : id_(id),
      request_(std::move(request)),
      seed_(seed),
      end_ids_(request_.params.stop_token_ids),
      stops_(request_.params.stop) {
  const auto room = static_cast<std::size_t>(std::min(request_.params.max_tokens, kRoomTokens));
  channel_ =
      std::make_shared<Channel>(id, seed_, request_.streaming, room, std::move(request_.notify));
  if (!request_.params.ignore_eos) {
    end_ids_.insert(end_ids_.end(), eos_ids.begin(), eos_ids.end());
  }
  if (tokenizer != nullptr) {
    detokenizer_.emplace(*tokenizer);
    end_of_text_ids_ = tokenizer->vocab_size();
    output_.text.reserve(room * kTextBytesPerToken);
  }
  if (request_.composed) {
    output_.reuse = std::move(request_.composed->reuse);
    if (request_.params.repetition_penalty != 1) {  // the sampler looks at the prompt
      join_prompt();
    }
  }
  sampled_.reserve(room + static_cast<std::size_t>(request_.sampled_before));
  if (request_.sampled_before > 0) {
    join_prompt();
    sampled_.assign(request_.prompt.end() - request_.sampled_before, request_.prompt.end());
  }
  output_.reuse.grade = graded(output_.reuse.grade, request_.same_bits);
  output_.parts = std::move(request_.parts);
  output_.request_id = id;
  forward_.request_id = id;
}

sampling::SampleContext ActiveRequest::sample_context(std::int32_t assumed) const {
  const std::size_t index = sampled_.size() - assumed_ + static_cast<std::size_t>(assumed);
  const std::size_t prompt_tokens =
      request_.prompt.size() - static_cast<std::size_t>(request_.sampled_before);
  return {.params = &request_.params,
          .seed = seed_,
          .index = static_cast<std::int32_t>(index),
          .prompt = std::span(request_.prompt).first(prompt_tokens),
          .output = std::span(sampled_).first(std::min(index, sampled_.size())),
          .end_ids = end_ids_};
}

void ActiveRequest::assume(std::span<const TokenId> draft) {
  sampled_.resize(sampled_.size() - assumed_);
  sampled_.insert(sampled_.end(), draft.begin(), draft.end());
  assumed_ = draft.size();
}

void ActiveRequest::note_drafts(const DraftCounts& counts) {
  output_.usage.drafted_tokens += counts.tokens;
  output_.usage.accepted_tokens += counts.accepted;
  acceptance_.note(counts.longest, counts.accepted);
}

std::int64_t ActiveRequest::note_admission(const sched::RequestProgress& progress) {
  admitted_ = true;
  output_.timing.queue_seconds = base::seconds_since(request_.submitted);
  const std::int64_t kept = request_.composed ? 0 : progress.kept_tokens;
  const std::int64_t cached_tokens =
      request_.composed ? request_.composed->cached_tokens : std::int64_t{progress.cached_tokens};
  output_.usage.cached_tokens = cached_tokens;
  forward_.cached_tokens = cached_tokens;
  if (cached_tokens > kept && !request_.composed) {
    output_.reuse.sources.emplace_back("prefix_cache", cached_tokens - kept);
  }
  if (kept > 0) {
    output_.reuse.sources.emplace_back("host_memory", kept);
  }
  return cached_tokens;
}

bool ActiveRequest::accept(sampling::SampledToken token) {
  const SamplingParams& params = request_.params;
  if (sampled_ids().empty()) {
    output_.timing.first_token_seconds = base::seconds_since(request_.submitted);
  }
  assume({});
  sampled_.push_back(token.id);
  if (params.logprobs) {
    output_.logprobs.push_back(std::move(token.logprobs));
  }
  bool stopped = false;
  if (detokenizer_ && token.id < end_of_text_ids_) {
    stopped = take_text(detokenizer_->push(token.id));
  }
  const auto ended = std::find(end_ids_.begin(), end_ids_.end(), token.id);
  const bool full = std::ssize(sampled_ids()) >= params.max_tokens;
  finished_ = stopped || ended != end_ids_.end() || full;
  if (finished_ && detokenizer_ && !stopped) {
    stopped = take_text(detokenizer_->flush());
    output_.text += stopped ? "" : stops_.flush();
  }
  if (!stopped && ended != end_ids_.end()) {
    const bool named = ended - end_ids_.begin() < std::ssize(params.stop_token_ids);
    output_.stopped_by = {.kind = named ? StoppedBy::Kind::kStopId : StoppedBy::Kind::kEos,
                          .id = token.id};
  } else if (!stopped && full) {
    output_.stopped_by.kind = StoppedBy::Kind::kLength;
  }
  output_.finish_reason =
      stopped || ended != end_ids_.end() ? FinishReason::kStop : FinishReason::kLength;
  return finished_;
}

// Appends text up to a stop string. Returns whether there was one.
bool ActiveRequest::take_text(std::string_view text) {
  const auto piece = stops_.push(text, may_stop(sampled_.size(), request_.params));
  output_.text += piece.text;
  if (piece.stopped) {
    output_.stopped_by = {.kind = StoppedBy::Kind::kStopString,
                          .text = request_.params.stop[piece.stop]};
  }
  return piece.stopped;
}

Status ActiveRequest::text_status() const {
  return detokenizer_ ? detokenizer_->status() : Status();
}

void ActiveRequest::add_logits(std::int32_t first, std::span<const float> logits,
                               std::int64_t vocab_size) {
  std::int64_t kept = forward_.rows == 0 ? 0 : std::int64_t{first} - first_row_;
  if (kept < 0 || kept > forward_.rows) {  // it stands on other cached KV than before
    forward_.cached_tokens = first;
    kept = 0;
  }
  first_row_ = first - static_cast<std::int32_t>(kept);
  forward_.logits.resize(static_cast<std::size_t>(kept * vocab_size));
  forward_.logits.insert(forward_.logits.end(), logits.begin(), logits.end());
  forward_.vocab_size = vocab_size;
  forward_.rows = std::ssize(forward_.logits) / vocab_size;
}

std::span<const TokenId> ActiveRequest::sampled_ids() const {
  return std::span(sampled_)
      .first(sampled_.size() - assumed_)
      .subspan(static_cast<std::size_t>(request_.sampled_before));
}

void ActiveRequest::push_delta() {
  const std::span<const TokenId> ids = sampled_ids();
  if (!finished_ && ids.size() == sent_tokens_) {
    return;
  }
  const std::span<const TokenLogprobs> logprobs = output_.logprobs;
  channel_->push({.text = std::string_view(output_.text).substr(sent_bytes_),
                  .token_ids = ids.subspan(sent_tokens_),
                  .logprobs = logprobs.subspan(logprobs.empty() ? 0 : sent_tokens_),
                  .finished = finished_,
                  .finish_reason = output_.finish_reason});
  sent_tokens_ = ids.size();
  sent_bytes_ = output_.text.size();
}

void ActiveRequest::deliver() {
  if (request_.streaming) {
    push_delta();
  }
  if (finished_) {
    GenerationOutput output = take_output();
    release();
    channel_->finish(std::move(output));
  }
}

// Releases things of others that the request holds, before its caller sees the end.
void ActiveRequest::release() {
  request_.observer.reset();
  request_.composed.reset();
}

void ActiveRequest::end(FinishReason reason) {
  if (finished_) {  // deliver() has ended it
    return;
  }
  if (request_.kind != RequestKind::kGenerate) {
    if (reason == FinishReason::kCancelled) {
      fail({.code = ErrorCode::kCancelled, .message = "the request was aborted"});
    } else {
      release();
      channel_->finish(std::move(forward_));
    }
    return;
  }
  assume({});
  output_.finish_reason = reason;
  output_.stopped_by.kind =
      reason == FinishReason::kLength ? StoppedBy::Kind::kLength : StoppedBy::Kind::kNothing;
  finished_ = true;
  if (detokenizer_) {
    const bool counts = may_stop(sampled_.size(), request_.params);
    output_.text += stops_.push(detokenizer_->flush(), counts).text;
    output_.text += stops_.flush();
  }
  deliver();
}

void ActiveRequest::note_computed(SeqId sequence) {
  if (request_.observer != nullptr) {
    request_.observer->computed(sequence);
  }
}

void ActiveRequest::fail(Error error) {
  if (request_.observer != nullptr) {
    request_.observer->failed(error);
  }
  release();
  channel_->fail(std::move(error));
}

// Joins the ids of a composition when somebody wants to see them: composing must not take longer
// for longer chunks.
void ActiveRequest::join_prompt() {
  if (!request_.composed || !request_.prompt.empty()) {
    return;
  }
  for (const auto& piece : request_.composed->pieces) {
    request_.prompt.insert(request_.prompt.end(), piece->begin(), piece->end());
  }
}

GenerationOutput ActiveRequest::take_output() {
  output_.token_ids.assign(sampled_ids().begin(), sampled_ids().end());
  output_.usage.completion_tokens = std::ssize(output_.token_ids);
  output_.timing.total_seconds = base::seconds_since(request_.submitted);
  join_prompt();
  output_.usage.prompt_tokens = std::ssize(request_.prompt);
  output_.prompt_token_ids = std::move(request_.prompt);
  return std::move(output_);
}

}  // namespace quire::engine
