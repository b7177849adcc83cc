// DeviceStep: what one pass of the decoder is given, on the device. Its plans and small arrays go
// up in one copy, and its shape decides what is launched. Steps of equal shape launch the same
// kernels with the same arguments; only what the arrays hold differs.
#pragma once

#include <algorithm>
#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "quire/attention/attention_plan.h"
#include "quire/attention/device_plan.h"
#include "quire/device/cuda/device_buffer.h"
#include "quire/device/cuda/device_context.h"
#include "quire/kernels/choice.h"
#include "quire/model/config.h"
#include "quire/model/forward_batch.h"
#include "quire/result.h"
#include "quire/tensor/kv_format.h"
#include "quire/tensor/paged_kv_view.h"
#include "quire/types.h"

namespace quire::model::cuda {

// The place of an array in the upload.
template <class T>
struct Uploaded {
  std::size_t offset = 0;
};

// Numbers of elements that the kernels of layers with one window are launched for.
struct WindowShape {
  std::int32_t few = 0, many = 0;  // items
  std::int32_t item_rows = 0;
  std::int32_t queries = 0;
  bool wide = false;    // an item of few has more than 8 columns
  bool merges = false;  // a row has several partials, or none
  auto operator<=>(const WindowShape&) const = default;
};

struct StepShape {
  const std::byte* kv = nullptr;      // KV of the first layer
  const std::byte* arrays = nullptr;  // on the device
  tensor::KVFormat format = tensor::KVFormat::kPlain;
  bool measures = false;  // what storing KV as codes changes
  std::int32_t rows = 0;
  std::int32_t logit_rows = 0;
  bool chooses = false;      // tokens are chosen on the device
  std::int32_t changes = 0;  // changes of logits before the choice
  // Room for log probabilities of a row: of the chosen token and the most likely ones; 0: of none.
  std::int32_t logprobs = 0;
  std::vector<WindowShape> windows;
  auto operator<=>(const StepShape&) const = default;
};

// State that all layers with one window share during a step.
struct WindowStep {
  std::int32_t window_tokens = 0;
  attention::DevicePlan plan;
  WindowShape shape;
  Uploaded<attention::DevicePlan::Queue> queues;
  Uploaded<attention::DevicePlan::WorkItem> few, many;
  Uploaded<attention::DevicePlan::Row> rows;
  Uploaded<attention::DevicePlan::PartialResults> partials;
  Uploaded<std::int32_t> query_rows, query_positions;
  device::cuda::DeviceBuffer<float> cosines, sines;  // [queries, half]
};

// Bytes collected on the host and sent to the device as one copy.
class Upload {
 public:
  explicit Upload(device::cuda::DeviceContext& device) : device_(&device) {}

  void clear() { bytes_.clear(); }

  // Adds `room` elements: `values`, of which there are at most `room`, then copies of `rest`.
  template <class T>
  [[nodiscard]] Uploaded<T> add(std::span<const T> values, std::size_t room, const T& rest) {
    const std::size_t offset = make_room(room * sizeof(T));
    auto* to = reinterpret_cast<T*>(bytes_.data() + offset);
    std::fill(std::ranges::copy(values, to).out, to + room, rest);
    return {offset};
  }

  // Queues the copy on the compute stream. All uploads sent before, but the last, must have been
  // read by now: the host writes the next bytes where they were.
  [[nodiscard]] Status send();

  // Returns the bytes on the device, valid after send() until the next one. The address stays until
  // an upload is larger than all before.
  [[nodiscard]] const std::byte* base() const { return on_device_.data(); }
  template <class T>
  [[nodiscard]] const T* get(Uploaded<T> array) const {
    return reinterpret_cast<const T*>(on_device_.data() + array.offset);
  }

 private:
  std::size_t make_room(std::size_t bytes);

  device::cuda::DeviceContext* device_;
  std::vector<std::byte> bytes_;
  device::cuda::DeviceBuffer<std::byte> on_device_;
  std::array<device::cuda::PinnedBuffer<std::byte>, 2> pinned_;  // in turn
  std::size_t turn_ = 0;
};

class DeviceStep {
 public:
  // Makes an empty step. `range_tokens` is that of attention::DevicePlanOptions. `config` outlives
  // the step.
  DeviceStep(device::cuda::DeviceContext& device, const ModelConfig& config,
             std::int32_t range_tokens);

  // Plans the batch and queues the copy of its arrays on the compute stream. With `rounded` the
  // numbers of its shape are rounded up, so that few shapes serve many batches. The elements that
  // this adds do nothing, or compute rows that nobody reads.
  [[nodiscard]] Status prepare(const ForwardBatch& batch, const tensor::PagedKVView& view,
                               bool rounded);

  [[nodiscard]] const StepShape& shape() const { return shape_; }
  // Returns one window step per distinct window.
  [[nodiscard]] std::span<WindowStep> windows() { return windows_; }
  [[nodiscard]] WindowStep& window_of(std::size_t layer);
  [[nodiscard]] attention::PlanCounters counters() const;

  // Returns an array on the device. Rows that were added have token 0 and no slot (block -1).
  template <class T>
  [[nodiscard]] const T* get(Uploaded<T> array) const {
    return upload_.get(array);
  }
  [[nodiscard]] const TokenId* ids() const { return get(ids_); }
  [[nodiscard]] const std::int32_t* ids_from() const { return get(ids_from_); }
  [[nodiscard]] Uploaded<std::int32_t> positions() const { return positions_; }
  [[nodiscard]] const tensor::KVSlot* slots() const { return get(slots_); }
  [[nodiscard]] const std::int32_t* logit_rows() const { return get(logit_rows_); }
  [[nodiscard]] const kernels::Choice* choices() const { return get(choices_); }
  [[nodiscard]] const kernels::LogitChange* changes() const { return get(changes_); }
  [[nodiscard]] const std::int32_t* blocks() const {
    return get(blocks_);
  }  // block ids of all plans
  // Returns, per entry row, what each query sees of its entry's run.
  [[nodiscard]] const std::int32_t* query_ends() const { return get(query_ends_); }

 private:
  void plan(WindowStep& window, const ForwardBatch& batch, const tensor::PagedKVView& view);
  void add_arrays(WindowStep& window);
  [[nodiscard]] std::int32_t room_of(std::size_t count, std::size_t least = 1) const;

  const ModelConfig& config_;
  const attention::AttentionShape attention_;
  const std::int32_t range_tokens_;
  bool rounded_ = false;
  Upload upload_;
  StepShape shape_;
  std::vector<WindowStep> windows_;
  std::vector<std::int32_t> ends_;  // array that is uploaded as query_ends_
  Uploaded<TokenId> ids_;
  Uploaded<std::int32_t> ids_from_, positions_, logit_rows_, query_ends_, blocks_;
  Uploaded<tensor::KVSlot> slots_;
  Uploaded<kernels::Choice> choices_;
  Uploaded<kernels::LogitChange> changes_;
};

}  // namespace quire::model::cuda
