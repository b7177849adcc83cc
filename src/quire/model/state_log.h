// StateLog: the inputs of a pass's assumed rows, by which states advance once the rows are right.
//
// A state cannot go back. So a pass leaves it behind the certain rows. The log has what assumed
// rows add to it, and is far smaller than a state.
//
// Thread rule: one call at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "quire/device/aligned_buffer.h"
#include "quire/kernels/state_ops.h"
#include "quire/model/forward_batch.h"
#include "quire/model/state_shape.h"
#include "quire/tensor/state_view.h"

namespace quire::model {

class StateLog {
 public:
  // Borrows `shape`, the sizes of `layers` layers.
  StateLog(const StateShape& shape, std::size_t layers) : shape_(shape), layers_(layers) {}

  // The assumed rows of a run of the pass. Those of its branches are behind them.
  struct Run {
    std::int32_t state = 0;  // number of the state before them
    std::int32_t first = 0;  // of the log's rows
    std::int32_t count = 0;
  };

  // Forgets the rows of the pass before, and makes room for those of this one.
  void begin(const ForwardBatch& batch);
  // Keeps the inputs of a layer's convolution, of which `in` has all rows of the batch.
  void keep_inputs(std::size_t layer, const kernels::StridedRows& in);
  // Keeps what the heads of a layer read: [T, channels] convolved rows and [T, 2 * value_heads]
  // gates.
  void keep_rows(std::size_t layer, const float* convolved, const float* gates);
  // Makes the first `count` rows on the way to a branch's end those of its run.
  void take_branch(std::int32_t run, const StateBranch& branch, std::int32_t count);

  // Returns whether the pass has assumed rows.
  [[nodiscard]] bool has_rows() const { return !rows_.empty(); }
  // Returns the most assumed rows of a run.
  [[nodiscard]] std::int32_t longest_run() const { return longest_run_; }
  // Returns a run of the pass, and the states that it was given.
  [[nodiscard]] const Run& run(std::int32_t index) const {
    return runs_[static_cast<std::size_t>(index)];
  }
  [[nodiscard]] const tensor::StateView& states() const { return states_; }
  // Return what is kept of a layer's row of the log. Rows are `stride()` apart.
  [[nodiscard]] float* inputs(std::size_t layer, std::int32_t row);
  [[nodiscard]] float* convolved(std::size_t layer, std::int32_t row) {
    return inputs(layer, row) + shape_.channels;
  }
  [[nodiscard]] float* gates(std::size_t layer, std::int32_t row) {
    return convolved(layer, row) + shape_.channels;
  }
  [[nodiscard]] std::ptrdiff_t stride() const;

 private:
  const StateShape& shape_;
  const std::size_t layers_;
  std::vector<std::int32_t> rows_;  // [rows of the log] their rows of the batch
  std::int32_t longest_run_ = 0;
  std::vector<Run> runs_;  // [runs of the pass]
  tensor::StateView states_;
  device::AlignedBuffer<float> kept_;  // [layers][rows][stride]
};

}  // namespace quire::model
