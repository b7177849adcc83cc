// StepResult: what a step gives. Holds logits on the device, and on the host what its caller needs
// of them. That is tokens and their log probabilities where they could be chosen on the device.
// Logits of a second step that is queued before the first was fetched take the place of the first
// one's; tokens do not.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "quire/device/cuda/cuda_stream.h"
#include "quire/device/cuda/device_buffer.h"
#include "quire/device/cuda/device_context.h"
#include "quire/kernels/choice.h"
#include "quire/model/cuda/device_step.h"
#include "quire/model/cuda/recorded_steps.h"
#include "quire/result.h"
#include "quire/types.h"

namespace quire::model::cuda {

class StepResult {
 public:
  StepResult(device::cuda::DeviceContext& device, std::int32_t vocab_size)
      : device_(&device), vocab_(static_cast<std::size_t>(vocab_size)) {}

  // Makes room for a step of this shape. `recorded` knows the addresses.
  [[nodiscard]] Status reserve(const StepShape& shape, RecordedSteps& recorded);

  [[nodiscard]] float* logits() const { return logits_.data(); }  // [rows, vocab], on the device
  // Returns the tokens [rows] of the step queued last, on the device.
  [[nodiscard]] const TokenId* chosen_on_device() const { return chosen_.data(); }

  // Queues the choice of the step's tokens from logits(), and what is told of them.
  [[nodiscard]] Status choose(const DeviceStep& step);

  // Ends a step of which the first `rows` rows of logits are wanted: queues the copy of their
  // tokens, where it chooses any. Precondition: at most one other is not fetched yet.
  [[nodiscard]] Status send(std::size_t rows, const StepShape& shape);
  // Waits for the step that was sent first. Copies the logits of rows without a token, of all rows
  // where it chooses none, unless another step was sent behind it. Returns [rows, vocab] on the
  // host, valid until the next call.
  [[nodiscard]] Result<std::span<float>> fetch();
  // Returns how many steps were sent and not fetched.
  [[nodiscard]] std::size_t num_sent() const { return num_sent_; }
  // Forgets the steps that were sent, without waiting.
  void forget_sent() { num_sent_ = 0; }

  // Returns the seconds that the last fetch waited for the device.
  [[nodiscard]] double waited_seconds() const { return waited_seconds_; }

  // Returns the tokens of the last fetch: [rows], -1 where there is none; empty when none were
  // chosen.
  [[nodiscard]] std::span<const TokenId> chosen() const { return last_chosen_; }
  // Returns log probabilities of a row of the last fetch, as kernels::cuda::find_logprobs leaves
  // them.
  [[nodiscard]] std::span<const kernels::TokenLogprob> logprobs(std::size_t row) const {
    return last_logprobs_.subspan(row * last_width_, last_width_);
  }

 private:
  // A step that was sent.
  struct Sent {
    std::size_t rows = 0;
    bool chooses = false;
    std::size_t width = 0;                       // log probabilities of a row
    device::cuda::PinnedBuffer<TokenId> chosen;  // chosen tokens on the host
    device::cuda::PinnedBuffer<kernels::TokenLogprob> logprobs;
    std::optional<device::cuda::Event> done;
  };

  [[nodiscard]] Status wait(const device::cuda::Event& done);
  [[nodiscard]] Status copy_missing(const Sent& step);
  [[nodiscard]] Status copy_logits(std::size_t first, std::size_t count);

  device::cuda::DeviceContext* device_;
  std::size_t vocab_;
  device::cuda::DeviceBuffer<float> logits_;
  device::cuda::DeviceBuffer<float> originals_;  // [changes of logits]
  device::cuda::DeviceBuffer<TokenId> chosen_;
  device::cuda::DeviceBuffer<kernels::TokenLogprob> logprobs_;
  device::cuda::PinnedBuffer<float> logits_on_host_;
  std::array<Sent, 2> sent_;  // used in turn
  std::size_t next_ = 0;      // index of the next one in sent_
  std::size_t num_sent_ = 0;
  std::span<const TokenId> last_chosen_;
  std::span<const kernels::TokenLogprob> last_logprobs_;
  std::size_t last_width_ = 0;
  double waited_seconds_ = 0;
};

}  // namespace quire::model::cuda
