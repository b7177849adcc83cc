// StateLayers: what layers with a state compute between their two projections, on the CPU.
//
// A state is updated row after row in fp32, so it is a function of the tokens before it alone. The
// next step reads it as it is stored. Behind assumed rows no state is stored: their inputs are
// logged, and advance() adds those that turned out to be right.
//
// Thread rule: one call at a time; a call spreads over the pool of its context.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "quire/device/aligned_buffer.h"
#include "quire/kernels/cpu/kernel_table.h"
#include "quire/kernels/kernel_context.h"
#include "quire/kernels/state_ops.h"
#include "quire/model/config.h"
#include "quire/model/forward_batch.h"
#include "quire/model/layer_plan.h"
#include "quire/model/state_log.h"
#include "quire/model/state_weights.h"
#include "quire/tensor/state_view.h"

namespace quire::model {

class StateLayers {
 public:
  // Borrows `config`.
  StateLayers(const kernels::KernelContext& context, const ModelConfig& config)
      : context_(context),
        config_(config),
        geometry_(config.state_geometry()),
        log_(config.state, geometry_.offsets.size()) {}

  // A layer's rows, all of the batch.
  struct Rows {
    std::span<float> in;     // [T, in_width], overwritten
    std::span<float> gates;  // [T, 2 * value_heads], overwritten; of a state space only room
    std::span<float> out;    // [T, out_width]
  };
  // Mixes the rows and stores the layer's part of the states behind them. Precondition: every row
  // is in one run of the batch.
  void mix(const ForwardBatch& batch, const LayerPlan& plan, const StateWeights& weights,
           const Rows& rows);

  // Begins a pass. Call it before its first layer.
  void begin(const ForwardBatch& batch);
  // Advances the states behind the certain rows of the last pass by assumed ones. The bits are
  // those of a pass in which these were certain. Allocates nothing. Precondition: a run comes once.
  void advance(std::span<const RightRows> right);

 private:
  // The places of one layer's part of the states of a run.
  struct Places {
    const float* from = nullptr;  // null: of no token
    float* to = nullptr;
  };
  [[nodiscard]] float* place(const tensor::StateView& states, std::size_t layer,
                             std::int32_t state) const;
  [[nodiscard]] Places places(const ForwardBatch& batch, const LayerPlan& plan,
                              const StateRun& run) const;
  void mix_short(const ForwardBatch& batch, const LayerPlan& plan, const StateWeights& weights,
                 const Rows& rows);
  void mix_delta(const ForwardBatch& batch, const LayerPlan& plan, const StateWeights& weights,
                 const Rows& rows);
  void mix_scan(const ForwardBatch& batch, const LayerPlan& plan, const StateWeights& weights,
                const Rows& rows);
  // Convolves all rows of the batch, `in` to `out`. Keeps the last inputs where states are kept.
  void convolve_runs(const ForwardBatch& batch, const LayerPlan& plan,
                     const kernels::ConvWeights& conv, const kernels::StridedRows& in,
                     const kernels::StridedRows& out);
  [[nodiscard]] const float* tail_before(const StateBranch& branch, const kernels::TailShape& shape,
                                         const kernels::StridedRows& in, const float* certain);
  // Convolves columns [first, first + channels) of the rows, into `convolved_`.
  void convolve(const ForwardBatch& batch, const LayerPlan& plan, const StateWeights& weights,
                const Rows& rows, std::int64_t first);
  // Where queries, keys and values begin among the channels.
  struct Channels {
    std::int64_t query = 0, key = 0, value = 0;
  };
  [[nodiscard]] Channels channels() const;
  // Rows as the heads of a layer read them.
  struct HeadRows {
    const float* convolved = nullptr;
    std::ptrdiff_t stride = 0;
    const float* gates = nullptr;
    std::ptrdiff_t gate_stride = 0;
  };
  [[nodiscard]] kernels::DeltaTask task_of(const HeadRows& rows, std::int32_t head) const;
  void update_heads(const ForwardBatch& batch, const LayerPlan& plan, std::span<const float> skip,
                    const Rows& rows);
  void advance_head(std::size_t layer, const RightRows& right, std::int32_t head, int thread);
  void grow_maps(const ForwardBatch& batch, const LayerPlan& plan, const Rows& rows);
  void gate_out(const Rows& rows, std::int64_t first);

  kernels::KernelContext context_;
  const ModelConfig& config_;
  tensor::StateGeometry geometry_;
  device::AlignedBuffer<float> convolved_;  // [T, channels]
  StateLog log_;
  device::AlignedBuffer<float> ahead_;    // [threads] of a head's state behind assumed rows
  device::AlignedBuffer<float> tail_;     // the last inputs before a branch
  device::AlignedBuffer<float> dropped_;  // [threads] of outputs that nobody reads
};

}  // namespace quire::model
