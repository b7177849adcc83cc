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
#include "quire/attention/entry.h"
#include "quire/device/cuda/device_buffer.h"
#include "quire/device/cuda/device_context.h"
#include "quire/kernels/choice.h"
#include "quire/kernels/cuda/kv_seal.h"
#include "quire/kernels/cuda/state_ops.h"
#include "quire/model/config.h"
#include "quire/model/forward_batch.h"
#include "quire/model/layer_plan.h"
#include "quire/result.h"
#include "quire/tensor/paged_kv_view.h"
#include "quire/tensor/state_view.h"
#include "quire/types.h"

namespace quire::model::cuda {

// The place of an array in the upload.
template <class T>
struct Uploaded {
  std::size_t offset = 0;
};

// Numbers of elements that the kernels of one format and window are launched for.
struct PlanShape {
  std::uint8_t format = 0;
  std::int32_t few = 0, many = 0;  // items
  std::int32_t item_rows = 0;
  std::int32_t queries = 0;
  bool wide = false;  // an item of few has more than 8 columns
  auto operator<=>(const PlanShape&) const = default;
};
struct WindowShape {
  std::vector<PlanShape> formats;
  bool merges = false;  // a row has several partials, or none
  auto operator<=>(const WindowShape&) const = default;
};

struct StepShape {
  const std::byte* kv = nullptr;      // KV of the first layer
  const std::byte* arrays = nullptr;  // on the device
  const std::byte* states = nullptr;  // of layers that carry one
  std::int32_t state_runs = 0;
  std::uint32_t slot_formats = 1;  // formats in which rows are stored, a bit for each
  std::int32_t seals = 0;          // blocks that become full
  bool refuses = false;            // codes are stored, which cannot hold every number
  bool measures = false;           // what storing KV as codes changes
  std::int32_t rows = 0;
  std::int32_t logit_rows = 0;
  bool chooses = false;      // tokens are chosen on the device
  std::int32_t changes = 0;  // changes of logits before the choice
  // Room for log probabilities of a row: of the chosen token and the most likely ones; 0: of none.
  std::int32_t logprobs = 0;
  std::vector<WindowShape> windows;
  auto operator<=>(const StepShape&) const = default;
};

// The entries of one format, as layers with one window see them.
struct FormatPlan {
  std::uint8_t format = 0;
  attention::DevicePlan plan;
  PlanShape shape;
  std::int32_t first_query = 0;  // its queries stand behind those of the formats before
  std::int32_t first_block = 0;  // so do its blocks
  Uploaded<attention::DevicePlan::Queue> queues;
  Uploaded<attention::DevicePlan::WorkItem> few, many;
  Uploaded<attention::DevicePlan::Row> rows;
  Uploaded<std::int32_t> query_rows;
};

// State that all layers with one window share during a step.
struct WindowStep {
  std::int32_t window_tokens = 0;
  std::vector<FormatPlan> known;  // kept for their memory
  std::size_t num_formats = 0;    // of the batch's entries: the first ones
  Uploaded<attention::DevicePlan::PartialResults> partials;
  Uploaded<std::int32_t> query_positions;  // of all formats
  // [queries, half] for each rope (RopeKind) that a layer has.
  std::array<device::cuda::DeviceBuffer<float>, kRopeKinds> cosines, sines;

  [[nodiscard]] std::span<const FormatPlan> formats() const {
    return std::span(known).first(num_formats);
  }
  [[nodiscard]] std::span<FormatPlan> formats() { return std::span(known).first(num_formats); }
  // Returns the queries of all formats.
  [[nodiscard]] std::int32_t queries() const {
    return known[num_formats - 1].first_query + known[num_formats - 1].shape.queries;
  }
  [[nodiscard]] bool merges() const { return known.front().plan.num_merged > 0; }
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
  // `views` are of one layer, for each format that the batch names.
  [[nodiscard]] Status prepare(const ForwardBatch& batch,
                               std::span<const tensor::PagedKVView> views, bool rounded);

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
  // Returns the position of each row in its sequence; set for models whose queries grow with it.
  [[nodiscard]] const std::int32_t* use_positions() const { return get(use_positions_); }
  [[nodiscard]] const tensor::KVSlot* slots() const { return get(slots_); }
  // Returns the formats of the slots; null: all have the first one.
  [[nodiscard]] const std::uint8_t* slot_formats() const {
    return shape_.slot_formats == 1 ? nullptr : get(slot_formats_);
  }
  // Returns the blocks to seal: shape().seals of them.
  [[nodiscard]] const kernels::cuda::SealedBlock* seals() const { return get(seals_); }
  [[nodiscard]] const std::int32_t* logit_rows() const { return get(logit_rows_); }
  [[nodiscard]] const kernels::Choice* choices() const { return get(choices_); }
  [[nodiscard]] const kernels::LogitChange* changes() const { return get(changes_); }
  [[nodiscard]] const std::int32_t* blocks() const {
    return get(blocks_);
  }  // block ids of all plans
  [[nodiscard]] const tensor::StateView& states() const { return states_; }
  // Returns the runs of rows: shape().state_runs of them. Runs that were added have no rows.
  [[nodiscard]] const kernels::cuda::StateRows* state_runs() const { return get(state_runs_); }
  [[nodiscard]] const kernels::cuda::CapturedState* captures() const { return get(captures_); }
  // Returns, per row, the number of its run; -1 for rows that were added.
  [[nodiscard]] const std::int32_t* runs_of_rows() const { return get(runs_of_rows_); }
  // Returns, per query of all formats, what it sees of its entry's run.
  [[nodiscard]] const std::int32_t* query_ends() const { return get(query_ends_); }

 private:
  void order_formats(const ForwardBatch& batch, std::span<const tensor::PagedKVView> views);
  void plan(WindowStep& window, const ForwardBatch& batch, const tensor::PagedKVView& view);
  void add_arrays(WindowStep& window);
  void add_choices(const ForwardBatch& batch);
  void add_slots(const ForwardBatch& batch, std::span<const tensor::PagedKVView> views);
  void add_query_ends(const ForwardBatch& batch);
  void add_states(const ForwardBatch& batch);
  [[nodiscard]] std::int32_t room_of(std::size_t count, std::size_t least = 1) const;

  const ModelConfig& config_;
  const attention::AttentionShape attention_;
  const std::int32_t range_tokens_;
  bool rounded_ = false;
  Upload upload_;
  StepShape shape_;
  std::vector<WindowStep> windows_;
  std::vector<std::uint8_t> format_order_;  // formats of the entries
  std::vector<attention::Entry> entries_;   // of one format
  std::vector<std::int32_t> blocks_of_plans_;
  std::vector<std::int32_t> positions_of_queries_;
  std::vector<std::int32_t> ends_;       // array that is uploaded as query_ends_
  std::vector<tensor::KVSlot> written_;  // slots without those of kept rows
  std::vector<kernels::cuda::SealedBlock> sealed_;
  std::vector<kernels::cuda::StateRows> runs_;
  std::vector<kernels::cuda::CapturedState> captured_;
  std::vector<std::int32_t> run_of_row_;
  tensor::StateView states_;
  Uploaded<kernels::cuda::StateRows> state_runs_;
  Uploaded<kernels::cuda::CapturedState> captures_;
  Uploaded<std::int32_t> runs_of_rows_;
  Uploaded<TokenId> ids_;
  Uploaded<std::int32_t> ids_from_, positions_, use_positions_, logit_rows_, query_ends_, blocks_;
  Uploaded<tensor::KVSlot> slots_;
  Uploaded<std::uint8_t> slot_formats_;
  Uploaded<kernels::cuda::SealedBlock> seals_;
  Uploaded<kernels::Choice> choices_;
  Uploaded<kernels::LogitChange> changes_;
};

}  // namespace quire::model::cuda
