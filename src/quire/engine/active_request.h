// ActiveRequest: a request between submission and its last token, as the engine thread sees it.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "quire/engine/channel.h"
#include "quire/sampling.h"
#include "quire/sampling/sampler.h"
#include "quire/sampling/stop_checker.h"
#include "quire/text/detokenizer.h"
#include "quire/types.h"

namespace quire::engine {

enum class RequestKind : std::uint8_t { kGenerate, kForwardAll, kForwardLast };

using Clock = std::chrono::steady_clock;

// What a caller asks for. Checked by Engine::submit.
struct NewRequest {
  RequestKind kind = RequestKind::kGenerate;
  std::vector<TokenId> prompt;
  SamplingParams params;
  bool reuse = true;
  bool streaming = false;
};

// Owned by the engine thread. The text side is absent for models without tokenizer.
class ActiveRequest {
 public:
  // `tokenizer` may be null and outlives the request. `end_ids`: the model's EOS ids.
  ActiveRequest(RequestId id, NewRequest request, std::uint64_t seed,
                const text::Tokenizer* tokenizer, const std::vector<TokenId>& eos_ids);

  [[nodiscard]] RequestId id() const { return id_; }
  [[nodiscard]] RequestKind kind() const { return request_.kind; }
  [[nodiscard]] const NewRequest& request() const { return request_; }
  [[nodiscard]] const std::shared_ptr<Channel>& channel() const { return channel_; }
  // For the sampler; views borrow from this object.
  [[nodiscard]] sampling::SampleContext sample_context() const;

  // First admission: queueing ends here.
  void note_admission(std::int64_t cached_tokens);
  [[nodiscard]] bool admitted() const { return admitted_; }

  // Takes a sampled token; true when it was the last one: deliver() then ends the request.
  [[nodiscard]] bool accept(sampling::SampledToken token);
  // Keeps logits rows of a forward request.
  void add_logits(std::span<const float> logits, std::int64_t vocab_size);

  // Sends what accept has gathered since the last call. Call after the request's blocks are
  // accounted for, so that a caller who sees the end sees its blocks free.
  void deliver();
  // Ends the request in its present state.
  void end(FinishReason reason);
  void fail(Error error) { channel_->fail(std::move(error)); }

 private:
  [[nodiscard]] GenerationOutput take_output();

  RequestId id_;
  NewRequest request_;
  std::uint64_t seed_ = 0;
  std::vector<TokenId> end_ids_;
  std::shared_ptr<Channel> channel_;
  std::optional<text::Detokenizer> detokenizer_;
  sampling::StopChecker stops_;
  GenerationOutput output_;
  ForwardOutput forward_;
  Delta pending_;
  bool admitted_ = false;
  bool finished_ = false;
  Clock::time_point submitted_ = Clock::now();
};

}  // namespace quire::engine
