// StateShape: sizes of the layers that carry a state from token to token, of which a model has one
// kind.
#pragma once

#include <cstdint>

#include "quire/model/layer_plan.h"
#include "quire/result.h"

namespace quire::model {

struct StateShape {
  MixerKind kind = MixerKind::kAttention;  // kAttention: the model has no such layers
  std::int32_t taps = 0;                   // inputs that a convolution sees
  std::int32_t channels = 0;               // of the convolution
  bool bias = false;                       // of the projections around the convolution
  bool conv_bias = false;
  // Heads of a gated delta rule, or of a state space, whose groups are key heads. Its keys are B,
  // its queries C.
  std::int32_t key_heads = 0;
  std::int32_t value_heads = 0;
  std::int32_t key_dim = 0;
  std::int32_t value_dim = 0;
  // Value head h uses key head h % key_heads, instead of h / (value_heads / key_heads).
  bool keys_in_turn = false;
  double least_step = 0, most_step = 0;  // bounds of the steps of a state space

  [[nodiscard]] std::int32_t key_head(std::int32_t value_head) const {
    return keys_in_turn ? value_head % key_heads : value_head / (value_heads / key_heads);
  }
  // Returns the width of a row that is projected to be mixed.
  [[nodiscard]] std::int64_t in_width() const {
    if (kind == MixerKind::kShortConv) {
      return std::int64_t{3} * channels;
    }
    const std::int64_t steps = kind == MixerKind::kStateScan ? value_heads : 0;
    return channels + std::int64_t{value_heads} * value_dim + steps;
  }
  // Returns the width of a mixed row.
  [[nodiscard]] std::int64_t out_width() const {
    return kind == MixerKind::kShortConv ? channels : std::int64_t{value_heads} * value_dim;
  }
  // Returns the numbers of the last inputs of a convolution, and those behind them in a state.
  [[nodiscard]] std::int64_t tail_size() const { return std::int64_t{taps - 1} * channels; }
  [[nodiscard]] std::int64_t matrix_size() const {
    return std::int64_t{value_heads} * key_dim * value_dim;
  }

  // Returns kInvalidArgument that names the first number out of bounds.
  [[nodiscard]] Status validate() const;
  friend bool operator==(const StateShape&, const StateShape&) = default;
};

// Returns the name of a kind of layers for messages: "short convolution".
[[nodiscard]] const char* mixer_name(MixerKind kind);

}  // namespace quire::model
