// LayerAttention: what a step does with KV in one layer. It stores the keys and values of the rows,
// seals the blocks that become full, and attends, in every format that the batch names.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "quire/attention/cuda/args.h"
#include "quire/device/cuda/device_buffer.h"
#include "quire/device/cuda/device_context.h"
#include "quire/kernels/cuda/rotary.h"
#include "quire/kernels/cuda/rows.h"
#include "quire/kernels/rotary.h"
#include "quire/model/config.h"
#include "quire/model/cuda/device_step.h"
#include "quire/model/cuda/mass_probe.h"
#include "quire/model/cuda/recorded_steps.h"
#include "quire/model/cuda/stored_rows.h"
#include "quire/model/forward_batch.h"
#include "quire/model/layer_plan.h"
#include "quire/result.h"
#include "quire/tensor/paged_kv_view.h"

namespace quire::model::cuda {

// Keeps its arrays between steps. The engine thread calls.
class LayerAttention {
 public:
  // Makes one for a backend. `config`, `step` and `stored` outlive it.
  LayerAttention(device::cuda::DeviceContext& device, const ModelConfig& config, DeviceStep& step,
                 StoredRows& stored)
      : device_(device), config_(config), step_(step), stored_(stored), mass_(device) {}

  // Sends what does not change from step to step.
  [[nodiscard]] Status set_up(RecordedSteps& recorded);
  // Makes room for the prepared step, whose heads are stored in `stored_dim` numbers. `recorded`
  // knows the addresses.
  [[nodiscard]] Status reserve(int stored_dim, RecordedSteps& recorded);
  // Begins to measure the attention that a probe asks for.
  [[nodiscard]] Status begin_mass(const ForwardBatch& batch, const ForwardProbe& probe) {
    return mass_.begin(batch, probe);
  }
  [[nodiscard]] Status end_mass(ForwardProbe& probe) { return mass_.end(probe); }

  // Queues the angles of the step.
  [[nodiscard]] Status begin_step();

  // One layer of a step.
  struct Call {
    std::size_t layer = 0;
    std::span<const tensor::PagedKVView> views;  // of the layer, one for each format
    const float* qkv = nullptr;                  // [rows, qkv_width]
    std::int64_t qkv_width = 0;
    const float* sinks = nullptr;           // [heads] or null
    bool stores = true;                     // keys and values of the rows
    std::function<void()> before_read;      // called before KV is read; may be empty
    const ForwardBatch* weighed = nullptr;  // the batch, where attention is measured
  };
  // Queues a layer. Results are in attended().
  [[nodiscard]] Status run(const Call& call);
  [[nodiscard]] kernels::cuda::Half* attended() const { return attended_.data(); }

 private:
  [[nodiscard]] CUstream_st* stream() const { return device_.compute_stream().get(); }
  [[nodiscard]] float scale_log2() const;
  // Angles of all ropes, of keys or of the queries of a window.
  using Angles = std::array<device::cuda::DeviceBuffer<float>, kRopeKinds>;
  // Returns the rotation of a kind of rope; null where it turns nothing.
  [[nodiscard]] const kernels::RotaryConfig* rotary_of(RopeKind rope) const;
  // Returns a table from a row on.
  [[nodiscard]] kernels::cuda::RotaryTable table(RopeKind rope, const Angles& cosines,
                                                 const Angles& sines,
                                                 std::int64_t first_row = 0) const;
  [[nodiscard]] RopeKind rope_of(const Call& call) const {
    return config_.ropes.empty() ? RopeKind::kMain : config_.ropes[call.layer];
  }
  [[nodiscard]] kernels::cuda::QKVRows qkv_rows(const Call& call) const;
  [[nodiscard]] kernels::cuda::KVLayer stored_layer(const tensor::PagedKVView& view) const;
  [[nodiscard]] kernels::cuda::QueryRows query_rows(const Call& call, const FormatPlan& plan) const;
  [[nodiscard]] const FormatPlan* fused_plan(const Call& call, const WindowStep& window) const;
  [[nodiscard]] Status append(const Call& call, const WindowStep& window, const FormatPlan* fused);
  [[nodiscard]] Status seal(const Call& call);
  [[nodiscard]] attention::cuda::AttentionArgs attention_args(const Call& call,
                                                              const WindowStep& window,
                                                              const FormatPlan& plan) const;
  [[nodiscard]] Status attend(const Call& call, const WindowStep& window);

  device::cuda::DeviceContext& device_;
  const ModelConfig& config_;
  DeviceStep& step_;
  StoredRows& stored_;
  std::array<device::cuda::DeviceBuffer<double>, kRopeKinds> frequencies_;
  Angles key_cosines_, key_sines_;  // [T, half]
  // [queries of all formats, heads, stored head_dim]
  device::cuda::DeviceBuffer<kernels::cuda::Half> queries_;
  device::cuda::DeviceBuffer<kernels::cuda::Half> attended_;  // [T, Q]
  device::cuda::DeviceBuffer<float> partial_values_, partial_stats_;
  device::cuda::DeviceBuffer<std::uint32_t> partials_there_;  // [T, heads]
  device::cuda::DeviceBuffer<float> lse_;                     // [T, heads], for a probe
  std::vector<attention::cuda::AttentionArgs> args_;          // of the formats
  MassProbe mass_;
};

}  // namespace quire::model::cuda
