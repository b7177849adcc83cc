// LayerPlan: what a backend does in one layer. Scales: factors on what flows through a decoder.
#pragma once

#include <cstdint>

#include "quire/kernels/cpu/kernel_table.h"

namespace quire::model {

// The way in which a layer mixes tokens: attention, or an update of a state from token to token.
enum class MixerKind : std::uint8_t {
  kAttention,
  kShortConv,   // gated convolution of the last tokens (LFM2)
  kGatedDelta,  // gated delta rule behind a convolution (Qwen3-Next, Qwen3.5)
  kStateScan,   // state space behind a convolution (Mamba-2)
  kNone,        // the layer is an MLP alone
};

// The rotation of a layer's queries and keys.
enum class RopeKind : std::uint8_t {
  kMain,   // ModelConfig::rotary
  kLocal,  // ModelConfig::local_rotary
  kNone,
};
inline constexpr int kRopeKinds = 3;

// Where attention and MLP of a layer are normed: their input, their output, or both.
enum class NormPlacement : std::uint8_t { kBefore, kBehind, kBoth };

// The vectors of queries and keys that are normed before the rotation: none, each head, or all
// heads of a row as one.
enum class QkNorm : std::uint8_t { kNone, kHeads, kRows };

// The part of a layer behind its attention: one MLP for all rows, experts, or nothing.
enum class MlpKind : std::uint8_t { kDense, kExperts, kNone };

// How logits give a row's chosen experts their weights: by a softmax, or each by a sigmoid. Those
// of kSoftmaxOfChosen sum to one; a family that renormalises a softmax of all experts has the same.
// kSigmoidOfChosen divides sigmoids by their sum plus Experts::sum_epsilon.
enum class RouterRule : std::uint8_t {
  kSoftmaxOfAll,
  kSoftmaxOfChosen,
  kSigmoidOfAll,
  kSigmoidOfChosen,
};

// MLPs of which each row takes `chosen`: those with the largest scores of the router, of equal ones
// that with the lower id. Their outputs are added, times their weights, in order of ids.
struct Experts {
  std::int32_t count = 0;              // in each layer of that kind; 0: there are none
  std::int32_t chosen = 0;             // by each row
  std::int32_t intermediate_size = 0;  // of one expert
  RouterRule rule = RouterRule::kSoftmaxOfChosen;
  double sum_epsilon = 0;
  double weight_scale = 1;     // on weights, behind the rule
  bool biases_choice = false;  // a number per expert is added to its sigmoid, for the choice only
  // More than 1: experts stand in so many groups of neighbours, and those chosen are of
  // `chosen_groups` of them. A group's rank is the largest score of its experts, or the sum of the
  // two largest where weights are sigmoids.
  std::int32_t groups = 1;
  std::int32_t chosen_groups = 1;
  // The size of one more MLP for all rows, whose output is added; 0: there is none.
  std::int32_t shared_size = 0;
  bool has_bias = false;  // both matrices of each
  // The router, the experts and both outputs have norms of their own, and each expert a factor on
  // its weight.
  bool has_norms = false;
  bool router_has_bias = false;
  bool gates_shared = false;  // its output is multiplied by the sigmoid of a projection

  friend bool operator==(const Experts&, const Experts&) = default;
};

struct LayerPlan {
  MixerKind mixer = MixerKind::kAttention;
  std::int32_t group_index = 0;  // number among the layers with KV, or among those with a state
  // Sizes of the layer's KV; 0 where it has none.
  std::int32_t kv_heads = 0;
  std::int32_t head_dim = 0;
  bool stores_kv = true;           // false: it reads the KV of the layer that `group_index` names
  bool keys_are_values = false;    // values are the projected keys, before their norm
  bool norms_values = false;       // each head of a value is normed, without a weight
  std::int32_t mlp_size = 0;       // the width of a dense MLP
  bool gates_output = false;       // attention's output is multiplied by a projected gate
  std::int32_t window_tokens = 0;  // 0: full attention
  RopeKind rope = RopeKind::kMain;
  QkNorm qk_norm = QkNorm::kNone;
  NormPlacement norms = NormPlacement::kBefore;
  kernels::Activation activation = kernels::Activation::kSilu;
  MlpKind mlp = MlpKind::kDense;

  // Returns how many of keys and values a layer projects.
  [[nodiscard]] int kv_parts() const { return !stores_kv ? 0 : keys_are_values ? 1 : 2; }
  [[nodiscard]] bool norms_input() const { return norms != NormPlacement::kBehind; }
  [[nodiscard]] bool norms_output() const { return norms != NormPlacement::kBefore; }
};

// A vector for each token and layer, of which the layer adds a gated projection to its rows.
struct LayerInputShape {
  std::int32_t size = 0;        // 0: there are none
  std::int32_t vocab_size = 0;  // rows of their embedding

  friend bool operator==(const LayerInputShape&, const LayerInputShape&) = default;
};

// Every value is neutral by default.
struct Scales {
  double embedding = 1;  // on rows of the embedding
  double residual = 1;   // on what attention and MLP add to the residual stream
  double scores = 0;     // on scores of attention; 0: 1 / sqrt(head_dim)
  double score_cap = 0;  // scaled scores s become cap * tanh(s / cap); 0: they stay
  double logits = 1;     // logits are divided by it
  double logit_cap = 0;  // logits l become cap * tanh(l / cap); 0: they stay
  // A query that is used at position p is multiplied by 1 + query_growth * ln(1 + floor(p /
  // query_length)).
  double query_growth = 0;
  std::int32_t query_length = 1;
  // The embedding's factor is rounded to the dtype of the stored weights.
  bool embedding_is_rounded = false;

  friend bool operator==(const Scales&, const Scales&) = default;
};

}  // namespace quire::model
