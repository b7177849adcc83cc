#include "quire/model/cuda/step_result.h"

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>

#include "quire/base/check.h"
#include "quire/device/cuda/copy.h"
#include "quire/device/cuda/cuda_error.h"
#include "quire/device/cuda/cuda_stream.h"
#include "quire/device/cuda/device_buffer.h"
#include "quire/device/cuda/device_context.h"
#include "quire/kernels/cuda/choose.h"
#include "quire/model/cuda/device_step.h"
#include "quire/model/cuda/recorded_steps.h"
#include "quire/result.h"

namespace quire::model::cuda {

using device::cuda::DeviceBuffer;
using device::cuda::DeviceContext;
using device::cuda::Event;
using device::cuda::PinnedBuffer;
using device::cuda::to_status;

namespace {

template <class T>
Status make_room(DeviceContext& device, PinnedBuffer<T>& buffer, std::size_t size) {
  if (buffer.size() < size) {
    buffer = {};
    QUIRE_TRY(buffer, PinnedBuffer<T>::make(device.pinned_pool(), size));
  }
  return {};
}

// Copies the first `size` elements, to where room is made.
template <class T>
Status queue_copy(DeviceContext& device, const DeviceBuffer<T>& from, std::size_t size,
                  PinnedBuffer<T>& to) {
  QUIRE_TRY_STATUS(make_room(device, to, size));
  return device::cuda::copy_async(to.data(), from.data(), size * sizeof(T),
                                  device.compute_stream().get());
}

}  // namespace

Status StepResult::reserve(const StepShape& shape, RecordedSteps& recorded) {
  const auto rows = static_cast<std::size_t>(shape.logit_rows);
  QUIRE_TRY_STATUS(recorded.reserve(chosen_, rows));
  QUIRE_TRY_STATUS(recorded.reserve(logits_, rows * vocab_));
  if (shape.logprobs == 0) {
    return {};
  }
  QUIRE_TRY_STATUS(recorded.reserve(originals_, static_cast<std::size_t>(shape.changes)));
  return recorded.reserve(logprobs_, rows * static_cast<std::size_t>(shape.logprobs));
}

Status StepResult::choose(const DeviceStep& step) {
  CUstream_st* const stream = device_->compute_stream().get();
  const auto vocab = static_cast<std::int32_t>(vocab_);
  const StepShape& shape = step.shape();
  const bool tells = shape.logprobs > 0;
  const kernels::cuda::ChangeParams changes = {.changes = step.changes(),
                                               .count = shape.changes,
                                               .logits = logits_.data(),
                                               .vocab = vocab,
                                               .originals = tells ? originals_.data() : nullptr};
  QUIRE_TRY_STATUS(to_status(kernels::cuda::change_logits(changes, stream), "change_logits"));
  QUIRE_TRY_STATUS(to_status(kernels::cuda::choose({.logits = logits_.data(),
                                                    .choices = step.choices(),
                                                    .rows = shape.logit_rows,
                                                    .vocab = vocab,
                                                    .chosen = chosen_.data()},
                                                   stream),
                             "choose"));
  if (!tells) {
    return {};
  }
  QUIRE_TRY_STATUS(to_status(kernels::cuda::restore_logits(changes, stream), "restore_logits"));
  return to_status(kernels::cuda::find_logprobs({.logits = logits_.data(),
                                                 .choices = step.choices(),
                                                 .rows = shape.logit_rows,
                                                 .vocab = vocab,
                                                 .chosen = chosen_.data(),
                                                 .logprobs = logprobs_.data(),
                                                 .width = shape.logprobs},
                                                stream),
                   "find_logprobs");
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

Status StepResult::send(std::size_t rows, const StepShape& shape) {
  QUIRE_CHECK(num_sent_ < sent_.size(), "two steps were sent and not fetched");
  Sent& step = sent_[next_];
  step.rows = rows;
  step.chooses = shape.chooses;
  step.width = static_cast<std::size_t>(shape.logprobs);
  if (!step.done) {
    QUIRE_TRY(step.done, Event::create());
  }
  if (step.chooses) {
    QUIRE_TRY_STATUS(queue_copy(*device_, chosen_, rows, step.chosen));
  }
  if (step.width > 0) {
    QUIRE_TRY_STATUS(queue_copy(*device_, logprobs_, rows * step.width, step.logprobs));
  }
  QUIRE_TRY_STATUS(device_->compute_stream().record(*step.done));
  next_ = 1 - next_;
  ++num_sent_;
  return {};
}

// Copies the logits of rows without a token. Such a row has nothing to choose, or the caller
// chooses: both need its logits.
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
  last_logprobs_ = {};
  last_width_ = 0;
  waited_seconds_ = 0;
  QUIRE_TRY_STATUS(make_room(*device_, logits_on_host_, step.rows * vocab_));
  // NOLINTNEXTLINE(bugprone-unchecked-optional-access): send has made it
  QUIRE_TRY_STATUS(wait(*step.done));
  if (step.chooses) {
    last_chosen_ = std::span(step.chosen.data(), step.rows);
    last_width_ = step.width;
    last_logprobs_ = std::span(step.logprobs.data(), step.rows * step.width);
  }
  if (is_last) {
    QUIRE_TRY_STATUS(copy_missing(step));
  }
  return std::span(logits_on_host_.data(), step.rows * vocab_);
}

}  // namespace quire::model::cuda
