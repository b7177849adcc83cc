#include "quire/engine/active_request.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "quire/base/ids.h"
#include "quire/engine/channel.h"
#include "quire/engine/reuse_grade.h"
#include "quire/output.h"
#include "quire/result.h"
#include "quire/sampling/sampler.h"
#include "quire/text/tokenizer.h"
#include "quire/types.h"

namespace quire::engine {
namespace {

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

}  // namespace

ActiveRequest::ActiveRequest(RequestId id, NewRequest request, std::uint64_t seed,
                             const text::Tokenizer* tokenizer, const std::vector<TokenId>& eos_ids)
    : id_(id),
      request_(std::move(request)),
      seed_(request_.params.seed.value_or(seed)),
      end_ids_(request_.params.stop_token_ids),
      channel_(std::make_shared<Channel>(id, request_.streaming)),
      stops_(request_.params.stop) {
  if (!request_.params.ignore_eos) {
    end_ids_.insert(end_ids_.end(), eos_ids.begin(), eos_ids.end());
  }
  if (tokenizer != nullptr) {
    detokenizer_.emplace(*tokenizer);
    end_of_text_ids_ = tokenizer->vocab_size();
  }
  if (request_.composed) {
    output_.reuse = std::move(request_.composed->reuse);
    if (request_.params.repetition_penalty != 1) {  // the sampler looks at the prompt
      join_prompt();
    }
  }
  if (request_.sampled_before > 0) {
    join_prompt();
    sampled_.assign(request_.prompt.end() - request_.sampled_before, request_.prompt.end());
  }
  output_.reuse.grade = graded(output_.reuse.grade, request_.same_bits);
  output_.request_id = id;
  forward_.request_id = id;
}

sampling::SampleContext ActiveRequest::sample_context() const {
  const std::size_t prompt_tokens =
      request_.prompt.size() - static_cast<std::size_t>(request_.sampled_before);
  return {.params = &request_.params,
          .seed = seed_,
          .index = static_cast<std::int32_t>(sampled_.size()),
          .prompt = std::span(request_.prompt).first(prompt_tokens),
          .output = sampled_,
          .end_ids = end_ids_};
}

std::int64_t ActiveRequest::note_admission(std::int64_t cached_tokens) {
  admitted_ = true;
  output_.timing.queue_seconds = seconds_since(request_.submitted);
  cached_tokens = request_.composed ? request_.composed->cached_tokens : cached_tokens;
  output_.usage.cached_tokens = cached_tokens;
  forward_.cached_tokens = cached_tokens;
  if (cached_tokens > 0 && !request_.composed) {
    output_.reuse.sources.emplace_back("prefix_cache", cached_tokens);
  }
  return cached_tokens;
}

bool ActiveRequest::accept(sampling::SampledToken token) {
  const SamplingParams& params = request_.params;
  if (output_.token_ids.empty()) {
    output_.timing.first_token_seconds = seconds_since(request_.submitted);
  }
  output_.token_ids.push_back(token.id);
  sampled_.push_back(token.id);
  pending_.token_ids.push_back(token.id);
  if (params.logprobs) {
    output_.logprobs.push_back(token.logprobs);
    pending_.logprobs.push_back(std::move(token.logprobs));
  }
  bool stopped = false;
  if (detokenizer_ && token.id < end_of_text_ids_) {
    auto piece = stops_.push(detokenizer_->push(token.id));
    pending_.text += piece.text;
    stopped = piece.stopped;
  }
  const bool ended = std::find(end_ids_.begin(), end_ids_.end(), token.id) != end_ids_.end();
  const bool full = std::ssize(output_.token_ids) >= params.max_tokens;
  output_.finish_reason = stopped || ended ? FinishReason::kStop : FinishReason::kLength;
  finished_ = stopped || ended || full;
  if (finished_ && detokenizer_ && !stopped) {
    auto piece = stops_.push(detokenizer_->flush());
    pending_.text += piece.text;
    if (piece.stopped) {
      output_.finish_reason = FinishReason::kStop;
    } else {
      pending_.text += stops_.flush();
    }
  }
  return finished_;
}

void ActiveRequest::add_logits(std::span<const float> logits, std::int64_t vocab_size) {
  forward_.logits.insert(forward_.logits.end(), logits.begin(), logits.end());
  forward_.vocab_size = vocab_size;
  forward_.rows += static_cast<std::int64_t>(logits.size()) / vocab_size;
}

void ActiveRequest::deliver() {
  output_.text += pending_.text;
  pending_.finished = finished_;
  pending_.finish_reason = output_.finish_reason;
  if (finished_ || !pending_.token_ids.empty()) {
    channel_->push(std::exchange(pending_, Delta()));
  }
  if (finished_) {
    GenerationOutput output = take_output();
    release();
    channel_->finish(std::move(output));
  }
}

// What the request holds of others' goes before its caller sees the end.
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
  output_.finish_reason = reason;
  finished_ = true;
  if (detokenizer_) {
    pending_.text += stops_.push(detokenizer_->flush()).text;
    pending_.text += stops_.flush();
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

// The ids of a composition are put together when somebody wants to see them: composing must not
// take longer for longer chunks.
void ActiveRequest::join_prompt() {
  if (!request_.composed || !request_.prompt.empty()) {
    return;
  }
  for (const auto& piece : request_.composed->pieces) {
    request_.prompt.insert(request_.prompt.end(), piece->begin(), piece->end());
  }
}

GenerationOutput ActiveRequest::take_output() {
  output_.usage.completion_tokens = std::ssize(output_.token_ids);
  output_.timing.total_seconds = seconds_since(request_.submitted);
  join_prompt();
  output_.usage.prompt_tokens = std::ssize(request_.prompt);
  output_.prompt_token_ids = std::move(request_.prompt);
  return std::move(output_);
}

}  // namespace quire::engine
