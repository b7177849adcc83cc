#include "quire/model/state_log.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>

#include "quire/base/check.h"
#include "quire/kernels/state_ops.h"
#include "quire/model/forward_batch.h"
#include "quire/model/layer_plan.h"

namespace quire::model {

void StateLog::begin(const ForwardBatch& batch) {
  runs_.clear();
  rows_.clear();
  longest_run_ = 0;
  states_ = batch.states;
  const auto add = [this](std::int32_t first, std::int32_t count) {
    for (std::int32_t row = first; row < first + count; ++row) {
      rows_.push_back(row);
    }
  };
  for (const StateRun& run : batch.state_runs) {
    runs_.push_back({.state = run.to,
                     .first = static_cast<std::int32_t>(rows_.size()),
                     .count = run.num_assumed});
    add(run.first_assumed(), run.num_assumed);
    for (const StateBranch& branch : run.branches) {
      add(branch.first_row, branch.num_rows);
    }
    longest_run_ = std::max(longest_run_, run.num_assumed);
  }
  kept_.require(layers_ * rows_.size() * static_cast<std::size_t>(stride()));
}

std::ptrdiff_t StateLog::stride() const {
  const std::ptrdiff_t channels = shape_.channels;
  return shape_.kind == MixerKind::kShortConv
             ? channels
             : 2 * channels + std::ptrdiff_t{2} * shape_.value_heads;
}

float* StateLog::inputs(std::size_t layer, std::int32_t row) {
  return kept_.data() + (static_cast<std::ptrdiff_t>(layer) * std::ssize(rows_) + row) * stride();
}

void StateLog::keep_inputs(std::size_t layer, const kernels::StridedRows& in) {
  for (std::int32_t to = 0; to < std::ssize(rows_); ++to) {
    std::copy_n(in.row(rows_[static_cast<std::size_t>(to)]), shape_.channels, inputs(layer, to));
  }
}

void StateLog::keep_rows(std::size_t layer, const float* convolved, const float* gates) {
  const std::int64_t channels = shape_.channels;
  const std::int64_t num_gates = std::int64_t{2} * shape_.value_heads;
  for (std::int32_t to = 0; to < std::ssize(rows_); ++to) {
    const std::int64_t row = rows_[static_cast<std::size_t>(to)];
    std::copy_n(convolved + row * channels, channels, this->convolved(layer, to));
    std::copy_n(gates + row * num_gates, num_gates, this->gates(layer, to));
  }
}

// Ancestors that are the run's own are in their places already, so nothing is overwritten that is
// copied later.
void StateLog::take_branch(std::int32_t run, const StateBranch& branch, std::int32_t count) {
  for (std::int32_t depth = 0; depth < count; ++depth) {
    const auto found = std::ranges::find(rows_, branch.row_at(depth));
    QUIRE_CHECK(found != rows_.end(), "a row that was not assumed was right");
    const auto from = static_cast<std::int32_t>(found - rows_.begin());
    const std::int32_t to = this->run(run).first + depth;
    for (std::size_t layer = 0; layer < layers_ && from != to; ++layer) {
      std::copy_n(inputs(layer, from), stride(), inputs(layer, to));
    }
  }
}

}  // namespace quire::model
