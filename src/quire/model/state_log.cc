#include "quire/model/state_log.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "quire/kernels/state_ops.h"
#include "quire/model/forward_batch.h"
#include "quire/model/layer_plan.h"

namespace quire::model {

void StateLog::begin(const ForwardBatch& batch) {
  runs_.clear();
  num_rows_ = 0;
  longest_run_ = 0;
  states_ = batch.states;
  for (const StateRun& run : batch.state_runs) {
    runs_.push_back({.state = run.to, .first = num_rows_, .count = run.num_assumed});
    num_rows_ += run.num_assumed;
    longest_run_ = std::max(longest_run_, run.num_assumed);
  }
  kept_.require(layers_ * static_cast<std::size_t>(num_rows_ * stride()));
}

std::ptrdiff_t StateLog::stride() const {
  const std::ptrdiff_t channels = shape_.channels;
  return shape_.kind == MixerKind::kShortConv
             ? channels
             : 2 * channels + std::ptrdiff_t{2} * shape_.value_heads;
}

float* StateLog::inputs(std::size_t layer, std::int32_t row) {
  return kept_.data() +
         (static_cast<std::ptrdiff_t>(layer) * std::ptrdiff_t{num_rows_} + row) * stride();
}

void StateLog::keep_inputs(std::size_t layer, const ForwardBatch& batch,
                           const kernels::StridedRows& in) {
  for (std::size_t i = 0; has_rows() && i < runs_.size(); ++i) {
    const std::int32_t first = batch.state_runs[i].first_assumed();
    for (std::int32_t row = 0; row < runs_[i].count; ++row) {
      std::copy_n(in.row(first + row), shape_.channels, inputs(layer, runs_[i].first + row));
    }
  }
}

void StateLog::keep_rows(std::size_t layer, const ForwardBatch& batch, const float* convolved,
                         const float* gates) {
  const std::int64_t channels = shape_.channels;
  const std::int64_t num_gates = std::int64_t{2} * shape_.value_heads;
  for (std::size_t i = 0; has_rows() && i < runs_.size(); ++i) {
    const std::int64_t first = batch.state_runs[i].first_assumed();
    for (std::int32_t row = 0; row < runs_[i].count; ++row) {
      const std::int32_t to = runs_[i].first + row;
      std::copy_n(convolved + (first + row) * channels, channels, this->convolved(layer, to));
      std::copy_n(gates + (first + row) * num_gates, num_gates, this->gates(layer, to));
    }
  }
}

}  // namespace quire::model
