#include "quire/model/cuda/stored_rows.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "quire/base/check.h"
#include "quire/device/cuda/copy.h"
#include "quire/device/cuda/device_buffer.h"
#include "quire/device/cuda/device_context.h"
#include "quire/kernels/kv_codes.h"
#include "quire/model/cuda/device_step.h"
#include "quire/model/cuda/recorded_steps.h"
#include "quire/result.h"

namespace quire::model::cuda {
namespace {

using device::cuda::DeviceBuffer;
using device::cuda::DeviceContext;
using device::cuda::PinnedBuffer;

bool says(const StepShape& shape) { return shape.refuses; }

// Queues the copy of the first `size` elements, making room for them.
template <class T>
Status queue_copy(DeviceContext& device, const DeviceBuffer<T>& from, std::size_t size,
                  PinnedBuffer<T>& to) {
  if (to.size() < size) {
    to = {};
    QUIRE_TRY(to, PinnedBuffer<T>::make(device.pinned_pool(), size));
  }
  return device::cuda::copy_async(to.data(), from.data(), size * sizeof(T),
                                  device.compute_stream().get());
}

}  // namespace

Status StoredRows::reserve(const StepShape& shape, RecordedSteps& recorded) {
  const auto rows = static_cast<std::size_t>(shape.rows);
  if (says(shape)) {
    QUIRE_TRY_STATUS(recorded.reserve(refused_, rows));
  }
  return shape.measures ? recorded.reserve(errors_, rows) : Status();
}

Status StoredRows::clear(const StepShape& shape) const {
  const auto rows = static_cast<std::size_t>(shape.rows);
  CUstream_st* const stream = device_->compute_stream().get();
  if (says(shape)) {
    QUIRE_TRY_STATUS(device::cuda::fill_async(refused_.data(), 0, rows, stream));
  }
  return shape.measures ? device::cuda::fill_async(errors_.data(), 0,
                                                   rows * sizeof(kernels::KVErrorSums), stream)
                        : Status();
}

std::uint8_t* StoredRows::refused(const StepShape& shape) const {
  return says(shape) ? refused_.data() : nullptr;
}

kernels::KVErrorSums* StoredRows::errors(const StepShape& shape) const {
  return shape.measures ? errors_.data() : nullptr;
}

Status StoredRows::send(std::size_t rows, std::span<kernels::KVErrorSums> errors,
                        const StepShape& shape) {
  QUIRE_CHECK(num_sent_ < sent_.size(), "two steps were sent and not fetched");
  Sent& step = sent_[next_];
  step.rows = says(shape) ? rows : 0;
  step.increased = shape.measures ? errors : std::span<kernels::KVErrorSums>();
  if (step.rows > 0) {
    QUIRE_TRY_STATUS(queue_copy(*device_, refused_, rows, step.refused));
  }
  if (!step.increased.empty()) {
    QUIRE_TRY_STATUS(queue_copy(*device_, errors_, step.increased.size(), step.errors));
  }
  next_ = 1 - next_;
  ++num_sent_;
  return {};
}

void StoredRows::take_back() {
  next_ = 1 - next_;
  --num_sent_;
}

void StoredRows::fetch() {
  QUIRE_CHECK(num_sent_ > 0, "no step was sent");
  const Sent& step = sent_[(next_ + sent_.size() - num_sent_) % sent_.size()];
  --num_sent_;
  const std::span<const std::uint8_t> rows(step.refused.data(), step.rows);
  const bool any = std::ranges::find(rows, std::uint8_t{1}) != rows.end();
  last_refused_ = any ? rows : std::span<const std::uint8_t>();
  for (std::size_t i = 0; i < step.increased.size(); ++i) {
    step.increased[i].add(step.errors.data()[i]);
  }
}

void StoredRows::forget_sent() {
  num_sent_ = 0;
  last_refused_ = {};
}

}  // namespace quire::model::cuda
