#include "quire/model/cuda/step_result.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>

#include "quire/base/check.h"
#include "quire/device/cuda/copy.h"
#include "quire/device/cuda/cuda_error.h"
#include "quire/device/cuda/device_buffer.h"
#include "quire/device/cuda/stream.h"
#include "quire/kernels/cuda/choose.h"
#include "quire/model/cuda/step.h"
#include "quire/result.h"
#include "quire/types.h"

namespace quire::model::cuda {

using device::cuda::DeviceBuffer;
using device::cuda::Event;
using device::cuda::PinnedBuffer;

Result<bool> StepResult::reserve(std::int32_t rows) {
  const std::size_t wanted = std::max<std::size_t>(static_cast<std::size_t>(rows), 1);
  if (chosen_.size() >= wanted && logits_.size() >= wanted * vocab_) {
    return false;
  }
  chosen_ = {};
  logits_ = {};
  QUIRE_TRY(chosen_, DeviceBuffer<TokenId>::make(device_->device_pool(), wanted));
  QUIRE_TRY(logits_, DeviceBuffer<float>::make(device_->device_pool(), wanted * vocab_));
  return true;
}

Status StepResult::choose(const Step& step) {
  QUIRE_TRY_STATUS(device::cuda::to_status(
      kernels::cuda::change_logits({.changes = step.changes(),
                                    .count = step.shape().changes,
                                    .logits = logits_.data(),
                                    .vocab = static_cast<std::int32_t>(vocab_)},
                                   device_->compute_stream().get()),
      "change_logits"));
  return device::cuda::to_status(kernels::cuda::choose({.logits = logits_.data(),
                                                        .choices = step.choices(),
                                                        .rows = step.shape().logit_rows,
                                                        .vocab = static_cast<std::int32_t>(vocab_),
                                                        .chosen = chosen_.data()},
                                                       device_->compute_stream().get()),
                                 "choose");
}

Status StepResult::copy_logits(std::size_t first, std::size_t count) {
  return device::cuda::copy_async(logits_on_host_.data() + first * vocab_,
                                  logits_.data() + first * vocab_, count * vocab_ * sizeof(float),
                                  device_->compute_stream().get());
}

Status StepResult::wait(const Event& done) {
  const auto start = std::chrono::steady_clock::now();
  Status status = done.synchronize();
  const std::chrono::duration<double> waited = std::chrono::steady_clock::now() - start;
  waited_seconds_ += waited.count();
  return status;
}

Status StepResult::send(std::size_t rows, bool chooses) {
  QUIRE_CHECK(num_sent_ < sent_.size(), "two steps were sent and not fetched");
  Sent& step = sent_[next_];
  step.rows = rows;
  step.chooses = chooses;
  if (!step.done) {
    QUIRE_TRY(step.done, Event::create());
  }
  if (chooses && step.chosen.size() < rows) {
    step.chosen = {};
    QUIRE_TRY(step.chosen, PinnedBuffer<TokenId>::make(device_->pinned_pool(), rows));
  }
  if (chooses) {
    QUIRE_TRY_STATUS(device::cuda::copy_async(step.chosen.data(), chosen_.data(),
                                              rows * sizeof(TokenId),
                                              device_->compute_stream().get()));
  }
  QUIRE_TRY_STATUS(device_->compute_stream().record(*step.done));
  next_ = 1 - next_;
  ++num_sent_;
  return {};
}

// A row without a token has nothing to choose, or is chosen by the caller: both need its logits.
Status StepResult::copy_missing(const Sent& step) {
  bool any = false;
  for (std::size_t row = 0; row < step.rows; ++row) {
    if (step.chooses && step.chosen.data()[row] >= 0) {
      continue;
    }
    QUIRE_TRY_STATUS(copy_logits(row, 1));
    any = true;
  }
  if (!any) {
    return {};
  }
  const Event& done = *step.done;  // NOLINT(bugprone-unchecked-optional-access): send has made it
  QUIRE_TRY_STATUS(device_->compute_stream().record(done));
  return wait(done);
}

Result<std::span<float>> StepResult::fetch() {
  QUIRE_CHECK(num_sent_ > 0, "no step was sent");
  const Sent& step = sent_[(next_ + sent_.size() - num_sent_) % sent_.size()];
  const bool is_last = --num_sent_ == 0;
  last_chosen_ = {};
  waited_seconds_ = 0;
  if (logits_on_host_.size() < step.rows * vocab_) {
    logits_on_host_ = {};
    QUIRE_TRY(logits_on_host_,
              PinnedBuffer<float>::make(device_->pinned_pool(), step.rows * vocab_));
  }
  // NOLINTNEXTLINE(bugprone-unchecked-optional-access): send has made it
  QUIRE_TRY_STATUS(wait(*step.done));
  if (step.chooses) {
    last_chosen_ = std::span(step.chosen.data(), step.rows);
  }
  if (is_last) {
    QUIRE_TRY_STATUS(copy_missing(step));
  }
  return std::span(logits_on_host_.data(), step.rows * vocab_);
}

}  // namespace quire::model::cuda
