// StepResult: what a step gives: logits on the device, and of them on the host what its caller
// needs, which is tokens where they could be chosen on the device.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "quire/device/cuda/device_buffer.h"
#include "quire/device/cuda/device_context.h"
#include "quire/model/cuda/step.h"
#include "quire/result.h"
#include "quire/types.h"

namespace quire::model::cuda {

class StepResult {
 public:
  StepResult(device::cuda::DeviceContext& device, std::int32_t vocab_size)
      : device_(&device), vocab_(static_cast<std::size_t>(vocab_size)) {}

  // Room for `rows` rows of logits. True when addresses on the device have changed.
  [[nodiscard]] Result<bool> reserve(std::int32_t rows);

  [[nodiscard]] float* logits() const { return logits_.data(); }  // [rows, vocab], on the device

  // Queues the choice of the step's tokens from logits().
  [[nodiscard]] Status choose(const Step& step);

  // Waits for the step, and copies what the first `rows` rows of logits give: their tokens where
  // the step chooses any, and the logits of rows without one; all logits where it does not.
  // [rows, vocab] on the host, valid until the next call.
  [[nodiscard]] Result<std::span<float>> fetch(std::size_t rows, bool chooses);

  // Seconds that the last fetch waited for the device.
  [[nodiscard]] double waited_seconds() const { return waited_seconds_; }

  // Of the last fetch: [rows] tokens, -1 where there is none; empty when none were chosen.
  [[nodiscard]] std::span<const TokenId> chosen() const { return last_chosen_; }

 private:
  [[nodiscard]] Status wait();
  [[nodiscard]] Status fetch_chosen(std::size_t rows);
  [[nodiscard]] Status copy_missing();
  [[nodiscard]] Status copy_logits(std::size_t first, std::size_t count);

  device::cuda::DeviceContext* device_;
  std::size_t vocab_;
  device::cuda::DeviceBuffer<float> logits_;
  device::cuda::DeviceBuffer<TokenId> chosen_;
  device::cuda::PinnedBuffer<float> logits_on_host_;
  device::cuda::PinnedBuffer<TokenId> chosen_on_host_;
  std::span<const TokenId> last_chosen_;
  double waited_seconds_ = 0;
};

}  // namespace quire::model::cuda
