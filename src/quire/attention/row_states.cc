#include "quire/attention/row_states.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numbers>
#include <span>

#include "quire/attention/attention_plan.h"
#include "quire/attention/tile.h"

namespace quire::attention {

void RowStates::clear(std::size_t rows) const {
  const std::size_t pairs = rows * static_cast<std::size_t>(shape_.heads);
  std::fill_n(arrays_.max, pairs, kLowest);
  std::fill_n(arrays_.sum, pairs, 0.0f);
}

// Returns where the tile's row r lies among the [rows, heads] arrays.
std::size_t RowStates::index_of(const WorkItem& item, int r) const {
  return static_cast<std::size_t>(entry_row(entries_, item, r / item.heads).row) *
             static_cast<std::size_t>(shape_.heads) +
         static_cast<std::size_t>(item.first_head + r % item.heads);
}

void RowStates::load(const WorkItem& item, TileState& state) const {
  const int head_dim = shape_.head_dim, padded_dim = shape_.padded_dim;
  for (int r = 0; r < item.rows * item.heads; ++r) {
    const std::size_t at = index_of(item, r);
    state.max[r] = arrays_.max[at];
    state.sum[r] = arrays_.sum[at];
    float* acc = state.acc + std::ptrdiff_t{r} * padded_dim;
    const int held = state.max[r] == kLowest ? 0 : head_dim;  // out holds nothing before
    std::copy_n(arrays_.out.data() + at * static_cast<std::size_t>(head_dim), held, acc);
    std::fill(acc + held, acc + padded_dim, 0.0f);
  }
}

void RowStates::save(const WorkItem& item, const TileState& state) const {
  const int head_dim = shape_.head_dim;
  for (int r = 0; r < item.rows * item.heads; ++r) {
    const std::size_t at = index_of(item, r);
    arrays_.max[at] = state.max[r];
    arrays_.sum[at] = state.sum[r];
    std::copy_n(state.acc + std::ptrdiff_t{r} * shape_.padded_dim, head_dim,
                arrays_.out.data() + at * static_cast<std::size_t>(head_dim));
  }
}

// Returns the sum of exponentials, relative to 2^max, with that of the head's sink.
float RowStates::with_sink(std::size_t head, float max, float sum) const {
  if (arrays_.sinks.empty()) {
    return sum;
  }
  const double exponent = double{arrays_.sinks[head]} * std::numbers::log2e - double{max};
  return static_cast<float>(double{sum} + std::exp2(exponent));
}

void RowStates::finish(std::size_t first, std::size_t end) const {
  const auto heads = static_cast<std::size_t>(shape_.heads);
  const auto head_dim = static_cast<std::size_t>(shape_.head_dim);
  for (std::size_t i = first * heads; i < end * heads; ++i) {
    const float max = arrays_.max[i];
    const float sum = with_sink(i % heads, max, arrays_.sum[i]);
    const std::span<float> out = arrays_.out.subspan(i * head_dim, head_dim);
    if (max == kLowest) {
      std::fill(out.begin(), out.end(), 0.0f);
    } else {
      const float inverse = 1.0f / sum;
      for (float& value : out) {
        value *= inverse;
      }
    }
    if (!arrays_.lse.empty()) {
      arrays_.lse[i] =
          max == kLowest
              ? kLowest
              : static_cast<float>(double{max} * std::numbers::ln2 + std::log(double{sum}));
    }
  }
}

}  // namespace quire::attention
