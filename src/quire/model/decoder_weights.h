// DecoderWeights: the packed weights of a decoder, and the one list of what a config wants to be
// there. Packer, random weights, digest and parameter count all walk that list.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <vector>

#include "quire/kernels/packed_weights.h"
#include "quire/model/config.h"
#include "quire/model/latent_weights.h"
#include "quire/model/layer_plan.h"
#include "quire/model/state_weights.h"
#include "quire/result.h"

namespace quire::model {

struct LayerWeights {
  // [hidden] or empty; those of outputs are of what is added to the residual stream.
  std::vector<float> attention_norm, attention_out_norm, mlp_norm, mlp_out_norm;
  std::vector<float> q_norm, k_norm;  // [head_dim], [all heads], or empty
  std::vector<float> sinks;           // [heads] or empty
  LinearWeights qkv;                  // rows: all queries, all keys, all values, all gates
  LinearWeights output;
  LinearWeights gate_up;  // rows: gate, up
  LinearWeights down;
  // Experts of a layer, in place of the two above.
  struct Expert {
    LinearWeights gate_up;
    LinearWeights down;
  };
  LinearWeights router;            // [experts, hidden], fp32
  std::vector<float> choice_bias;  // [experts] or empty
  // Norms of inputs of the router and of the experts, then of outputs of the MLP beside them and of
  // the experts, [hidden]. Factors on weights, [experts]. Empty where Experts has none.
  std::vector<float> router_norm, experts_norm, shared_out_norm, experts_out_norm, expert_scales;
  std::vector<Expert> experts;  // all gate_up have one format, and all down
  Expert shared;                // MLP for all rows beside them, if there is one
  LinearWeights shared_gate;    // [1, hidden], fp32
  StateWeights state;           // instead of q_norm to output
  LatentWeights latent;         // qkv has queries, latents and shared keys then
  // Weights of a layer's own input of each token: [size, hidden], [hidden, size], [hidden].
  LinearWeights input_gate, input_projection;
  std::vector<float> input_norm;
  std::vector<float> scale;  // [1] or empty: multiplies the rows behind the layer
};

struct DecoderWeights {
  kernels::PackedWeights embedding;  // [vocab, hidden]; empty when the head serves as such
  kernels::PackedWeights head;       // [vocab, hidden]
  std::vector<float> final_norm;     // [hidden]
  // Weights that make the layers' inputs of a token: [vocab, layers * size], [layers * size,
  // hidden], [size].
  kernels::PackedWeights layer_embedding;
  LinearWeights layer_projection;
  std::vector<float> layer_input_norm;
  std::vector<LayerWeights> layers;
};

enum class WeightRole : std::uint8_t {
  kEmbedding,
  kFinalNorm,
  kHead,
  kAttentionNorm,
  kQkv,
  kQNorm,
  kKNorm,
  kOutput,
  kMlpNorm,
  kGateUp,
  kDown,
  kAttentionOutNorm,
  kMlpOutNorm,
  kRouter,
  kExpertGateUp,
  kExpertDown,
  kChoiceBias,
  kSharedGateUp,
  kSharedDown,
  kSharedGate,
  kSinks,
  kStateIn,
  kStateGates,
  kStateOut,
  kStateNorm,
  kConv,
  kDecay,
  kDecayShift,
  kStateSkip,
  kRouterNorm,
  kExpertsNorm,
  kSharedOutNorm,
  kExpertsOutNorm,
  kExpertScales,
  kLayerEmbedding,
  kLayerProjection,
  kLayerInputNorm,
  kInputGate,
  kInputProjection,
  kInputNorm,
  kLayerScale,
  kLatentQueryNorm,
  kLatentNorm,
  kLatentQueries,
  kLatentKeys,
  kLatentValues,
};

// Matrices that stay fp32, whatever is asked for.
[[nodiscard]] constexpr bool is_router(WeightRole role) {
  return role == WeightRole::kRouter || role == WeightRole::kSharedGate;
}

[[nodiscard]] constexpr bool is_norm(WeightRole role) {
  return role == WeightRole::kFinalNorm || role == WeightRole::kAttentionNorm ||
         role == WeightRole::kQNorm || role == WeightRole::kKNorm || role == WeightRole::kMlpNorm ||
         role == WeightRole::kAttentionOutNorm || role == WeightRole::kMlpOutNorm;
}

// Names one weight; `layer` is -1 outside the layers.
struct WeightId {
  WeightRole role = WeightRole::kEmbedding;
  int layer = -1;
  bool bias = false;
  int expert = -1;  // of the layer; -1 for what is no expert's
  int head = -1;    // of attention over latents; -1 for what is no head's
};

// Gets each weight as soon as it is there, in the order of visit_weights; whoever gives it lets it
// go afterwards.
class WeightSink {
 public:
  virtual ~WeightSink() = default;
  [[nodiscard]] virtual Status take(const WeightId& id, const kernels::PackedWeights& weights) = 0;
  [[nodiscard]] virtual Status take(const WeightId& id, const std::vector<float>& values) = 0;
};

// Returns the format in which a matrix is packed when the user asks for `format`. Quantised formats
// are for the layers and an untied head. The embedding table stays bf16: it is read a row at a
// time, so its size costs no time. A tied head, being that table too, is q8g32 then. Routers and
// gates of shared experts are fp32: small changes would choose other experts.
[[nodiscard]] kernels::WeightFormat weight_format(const ModelConfig& config, WeightRole role,
                                                  kernels::WeightFormat format);

// Returns the bytes of the weights of `config` packed in `format`, which a decoder of it holds.
[[nodiscard]] std::int64_t packed_weight_bytes(const ModelConfig& config,
                                               kernels::WeightFormat format);
// Returns the number of values of all weights of `config`.
[[nodiscard]] std::int64_t num_parameters(const ModelConfig& config);
// Returns how many of them a row is computed with: of experts only the chosen ones.
[[nodiscard]] std::int64_t num_active_parameters(const ModelConfig& config);

// Fails with kUnsupported where experts of one layer have matrices of several formats.
[[nodiscard]] Status check_expert_formats(const DecoderWeights& weights);

template <class Linear, class Visitor>
Status visit_linear(Linear& linear, const WeightId& id, bool has_bias, std::int64_t columns,
                    std::int64_t depth, Visitor& visitor) {
  QUIRE_TRY_STATUS(visitor.matrix(id, linear.weights, columns, depth));
  if (has_bias) {
    QUIRE_TRY_STATUS(visitor.vector({id.role, id.layer, true, id.expert}, linear.bias, columns));
  }
  return {};
}

// Visits what a layer with a state has between its norms.
template <class Visited, class Visitor>
Status visit_state(const ModelConfig& config, Visited& state, int index, Visitor& visitor) {
  const StateShape& shape = config.state;
  QUIRE_TRY_STATUS(visit_linear(state.in, {WeightRole::kStateIn, index}, shape.bias,
                                shape.in_width(), config.hidden_size, visitor));
  QUIRE_TRY_STATUS(visitor.vector({WeightRole::kConv, index}, state.conv,
                                  std::int64_t{shape.taps} * shape.channels));
  if (shape.conv_bias) {
    QUIRE_TRY_STATUS(
        visitor.vector({WeightRole::kConv, index, true}, state.conv_bias, shape.channels));
  }
  const std::int64_t heads = shape.value_heads;
  if (shape.kind == MixerKind::kStateScan) {
    QUIRE_TRY_STATUS(visitor.vector({WeightRole::kDecay, index}, state.decay, heads));
    QUIRE_TRY_STATUS(visitor.vector({WeightRole::kDecayShift, index}, state.decay_shift, heads));
    QUIRE_TRY_STATUS(visitor.vector({WeightRole::kStateSkip, index}, state.skip, heads));
    QUIRE_TRY_STATUS(
        visitor.vector({WeightRole::kStateNorm, index}, state.norm, shape.out_width()));
  }
  if (shape.kind == MixerKind::kGatedDelta) {
    QUIRE_TRY_STATUS(visitor.matrix({WeightRole::kStateGates, index}, state.gates.weights,
                                    2 * heads, config.hidden_size));
    QUIRE_TRY_STATUS(visitor.vector({WeightRole::kDecay, index}, state.decay, heads));
    QUIRE_TRY_STATUS(visitor.vector({WeightRole::kDecayShift, index}, state.decay_shift, heads));
    QUIRE_TRY_STATUS(visitor.vector({WeightRole::kStateNorm, index}, state.norm, shape.value_dim));
  }
  return visit_linear(state.out, {WeightRole::kStateOut, index}, shape.bias, config.hidden_size,
                      shape.out_width(), visitor);
}

// Visits the MLP that all rows take beside experts.
template <class Layer, class Visitor>
Status visit_shared(const ModelConfig& config, Layer& layer, int index, Visitor& visitor) {
  const std::int64_t hidden = config.hidden_size;
  const std::int64_t inner = config.experts.shared_size;
  if (inner == 0) {
    return {};
  }
  if (config.experts.gates_shared) {
    QUIRE_TRY_STATUS(
        visitor.matrix({WeightRole::kSharedGate, index}, layer.shared_gate.weights, 1, hidden));
  }
  QUIRE_TRY_STATUS(visitor.matrix({WeightRole::kSharedGateUp, index}, layer.shared.gate_up.weights,
                                  config.mlp_parts() * inner, hidden));
  return visitor.matrix({WeightRole::kSharedDown, index}, layer.shared.down.weights, hidden, inner);
}

template <class Layer, class Visitor>
Status visit_experts(const ModelConfig& config, Layer& layer, int index, Visitor& visitor) {
  const Experts& experts = config.experts;
  const std::int64_t hidden = config.hidden_size;
  const std::int64_t inner = experts.intermediate_size;
  if constexpr (!std::is_const_v<Layer>) {
    layer.experts.resize(static_cast<std::size_t>(experts.count));
  }
  QUIRE_TRY_STATUS(visit_linear(layer.router, {WeightRole::kRouter, index}, experts.router_has_bias,
                                experts.count, hidden, visitor));
  if (experts.biases_choice) {
    QUIRE_TRY_STATUS(
        visitor.vector({WeightRole::kChoiceBias, index}, layer.choice_bias, experts.count));
  }
  if (experts.has_norms) {
    QUIRE_TRY_STATUS(visitor.vector({WeightRole::kRouterNorm, index}, layer.router_norm, hidden));
    QUIRE_TRY_STATUS(visitor.vector({WeightRole::kExpertsNorm, index}, layer.experts_norm, hidden));
    QUIRE_TRY_STATUS(
        visitor.vector({WeightRole::kSharedOutNorm, index}, layer.shared_out_norm, hidden));
    QUIRE_TRY_STATUS(
        visitor.vector({WeightRole::kExpertsOutNorm, index}, layer.experts_out_norm, hidden));
    QUIRE_TRY_STATUS(
        visitor.vector({WeightRole::kExpertScales, index}, layer.expert_scales, experts.count));
  }
  for (int i = 0; i < experts.count; ++i) {
    auto& expert = layer.experts[static_cast<std::size_t>(i)];
    QUIRE_TRY_STATUS(visit_linear(expert.gate_up, {WeightRole::kExpertGateUp, index, false, i},
                                  experts.has_bias, config.mlp_parts() * inner, hidden, visitor));
    QUIRE_TRY_STATUS(visit_linear(expert.down, {WeightRole::kExpertDown, index, false, i},
                                  experts.has_bias, hidden, inner, visitor));
  }
  return visit_shared(config, layer, index, visitor);
}

template <class Layer, class Visitor>
Status visit_mlp(const ModelConfig& config, Layer& layer, int index, Visitor& visitor) {
  const std::int64_t hidden = config.hidden_size;
  const std::int64_t inner = config.layer_plan(static_cast<std::size_t>(index)).mlp_size;
  QUIRE_TRY_STATUS(visit_linear(layer.gate_up, {WeightRole::kGateUp, index}, config.mlp_bias,
                                config.mlp_parts() * inner, hidden, visitor));
  return visit_linear(layer.down, {WeightRole::kDown, index}, config.mlp_bias, hidden, inner,
                      visitor);
}

// Visits what attention over latents has between its first and its last projection.
template <class Visited, class Visitor>
Status visit_latent(const ModelConfig& config, Visited& latent, int index, Visitor& visitor) {
  const LatentShape& shape = config.latent;
  if (shape.query_rank > 0) {
    QUIRE_TRY_STATUS(
        visitor.vector({WeightRole::kLatentQueryNorm, index}, latent.query_norm, shape.query_rank));
    QUIRE_TRY_STATUS(visitor.matrix({WeightRole::kLatentQueries, index}, latent.queries.weights,
                                    shape.queries_width(config.heads), shape.query_rank));
  }
  QUIRE_TRY_STATUS(visitor.vector({WeightRole::kLatentNorm, index}, latent.norm, shape.rank));
  if constexpr (!std::is_const_v<Visited>) {
    latent.keys.resize(static_cast<std::size_t>(config.heads));
    latent.values.resize(static_cast<std::size_t>(config.heads));
  }
  for (int head = 0; head < config.heads; ++head) {
    const auto i = static_cast<std::size_t>(head);
    QUIRE_TRY_STATUS(visitor.matrix({WeightRole::kLatentKeys, index, false, -1, head},
                                    latent.keys[i].weights, shape.rank, shape.plain_dim));
    QUIRE_TRY_STATUS(visitor.matrix({WeightRole::kLatentValues, index, false, -1, head},
                                    latent.values[i].weights, shape.value_dim, shape.rank));
  }
  return {};
}

// Visits attention over latents, between the norms of its layer.
template <class Layer, class Visitor>
Status visit_latent_attention(const ModelConfig& config, Layer& layer, int index,
                              Visitor& visitor) {
  QUIRE_TRY_STATUS(visitor.matrix({WeightRole::kQkv, index}, layer.qkv.weights,
                                  config.latent.down_width(config.heads), config.hidden_size));
  QUIRE_TRY_STATUS(visit_latent(config, layer.latent, index, visitor));
  return visitor.matrix({WeightRole::kOutput, index}, layer.output.weights, config.hidden_size,
                        std::int64_t{config.heads} * config.latent.value_dim);
}

// Visits what a layer of attention has between its norms.
template <class Layer, class Visitor>
Status visit_attention(const ModelConfig& config, Layer& layer, int index, Visitor& visitor) {
  if (config.latent.is_there()) {
    return visit_latent_attention(config, layer, index, visitor);
  }
  const LayerPlan plan = config.layer_plan(static_cast<std::size_t>(index));
  const std::int64_t hidden = config.hidden_size;
  const std::int64_t heads_width = std::int64_t{config.heads} * plan.head_dim;
  const std::int64_t kv_width = std::int64_t{plan.kv_heads} * plan.head_dim;
  const std::int64_t gates = plan.gates_output ? heads_width : 0;
  QUIRE_TRY_STATUS(visit_linear(layer.qkv, {WeightRole::kQkv, index}, config.qkv_bias,
                                heads_width + plan.kv_parts() * kv_width + gates, hidden, visitor));
  if (plan.qk_norm != QkNorm::kNone) {
    const bool rows = plan.qk_norm == QkNorm::kRows;
    QUIRE_TRY_STATUS(visitor.vector({WeightRole::kQNorm, index}, layer.q_norm,
                                    rows ? heads_width : plan.head_dim));
    if (plan.stores_kv) {
      QUIRE_TRY_STATUS(visitor.vector({WeightRole::kKNorm, index}, layer.k_norm,
                                      rows ? kv_width : plan.head_dim));
    }
  }
  if (config.has_sinks) {
    QUIRE_TRY_STATUS(visitor.vector({WeightRole::kSinks, index}, layer.sinks, config.heads));
  }
  return visit_linear(layer.output, {WeightRole::kOutput, index}, config.output_bias, hidden,
                      heads_width, visitor);
}

// Visits attention or what stands in its place, with its norms.
template <class Layer, class Visitor>
Status visit_mixer(const ModelConfig& config, Layer& layer, int index, Visitor& visitor) {
  const std::int64_t hidden = config.hidden_size;
  const LayerPlan plan = config.layer_plan(static_cast<std::size_t>(index));
  if (plan.norms_input()) {
    QUIRE_TRY_STATUS(
        visitor.vector({WeightRole::kAttentionNorm, index}, layer.attention_norm, hidden));
  }
  QUIRE_TRY_STATUS(plan.mixer == MixerKind::kAttention
                       ? visit_attention(config, layer, index, visitor)
                       : visit_state(config, layer.state, index, visitor));
  if (plan.norms_output()) {
    return visitor.vector({WeightRole::kAttentionOutNorm, index}, layer.attention_out_norm, hidden);
  }
  return {};
}

// Visits what a layer does with its own input, and the factor on its rows.
template <class Layer, class Visitor>
Status visit_input(const ModelConfig& config, Layer& layer, int index, Visitor& visitor) {
  const std::int64_t hidden = config.hidden_size;
  const std::int64_t size = config.layer_inputs.size;
  if (size > 0) {
    QUIRE_TRY_STATUS(
        visitor.matrix({WeightRole::kInputGate, index}, layer.input_gate.weights, size, hidden));
    QUIRE_TRY_STATUS(visitor.matrix({WeightRole::kInputProjection, index},
                                    layer.input_projection.weights, hidden, size));
    QUIRE_TRY_STATUS(visitor.vector({WeightRole::kInputNorm, index}, layer.input_norm, hidden));
  }
  return config.scales_layers ? visitor.vector({WeightRole::kLayerScale, index}, layer.scale, 1)
                              : Status();
}

// Visits what makes the layers' inputs of a token.
template <class Weights, class Visitor>
Status visit_layer_inputs(const ModelConfig& config, Weights& weights, Visitor& visitor) {
  const LayerInputShape& shape = config.layer_inputs;
  if (shape.size == 0) {
    return {};
  }
  const std::int64_t width = std::int64_t{shape.size} * config.layers;
  QUIRE_TRY_STATUS(visitor.matrix({WeightRole::kLayerEmbedding}, weights.layer_embedding,
                                  shape.vocab_size, width));
  QUIRE_TRY_STATUS(visitor.matrix({WeightRole::kLayerProjection}, weights.layer_projection.weights,
                                  width, config.hidden_size));
  return visitor.vector({WeightRole::kLayerInputNorm}, weights.layer_input_norm, shape.size);
}

template <class Layer, class Visitor>
Status visit_layer(const ModelConfig& config, Layer& layer, int index, Visitor& visitor) {
  const std::int64_t hidden = config.hidden_size;
  const LayerPlan plan = config.layer_plan(static_cast<std::size_t>(index));
  if (plan.mixer != MixerKind::kNone) {
    QUIRE_TRY_STATUS(visit_mixer(config, layer, index, visitor));
  }
  if (plan.mlp == MlpKind::kNone) {
    return visit_input(config, layer, index, visitor);
  }
  if (plan.norms_input()) {
    QUIRE_TRY_STATUS(visitor.vector({WeightRole::kMlpNorm, index}, layer.mlp_norm, hidden));
  }
  QUIRE_TRY_STATUS(plan.mlp == MlpKind::kExperts ? visit_experts(config, layer, index, visitor)
                                                 : visit_mlp(config, layer, index, visitor));
  if (plan.norms_output()) {
    QUIRE_TRY_STATUS(visitor.vector({WeightRole::kMlpOutNorm, index}, layer.mlp_out_norm, hidden));
  }
  return visit_input(config, layer, index, visitor);
}

// Calls visitor.matrix(id, PackedWeights&, columns, depth) and visitor.vector(id,
// std::vector<float>&, size) for everything that `config` has, first to last; stops at the first
// failure. Precondition: weights.layers.size() == config.layers.
template <class Weights, class Visitor>
Status visit_weights(const ModelConfig& config, Weights& weights, Visitor& visitor) {
  if (!config.tied_embeddings) {
    QUIRE_TRY_STATUS(visitor.matrix({WeightRole::kEmbedding}, weights.embedding, config.vocab_size,
                                    config.hidden_size));
  }
  QUIRE_TRY_STATUS(visit_layer_inputs(config, weights, visitor));
  for (std::size_t i = 0; i < weights.layers.size(); ++i) {
    QUIRE_TRY_STATUS(visit_layer(config, weights.layers[i], static_cast<int>(i), visitor));
  }
  QUIRE_TRY_STATUS(
      visitor.vector({WeightRole::kFinalNorm}, weights.final_norm, config.hidden_size));
  return visitor.matrix({WeightRole::kHead}, weights.head, config.vocab_size, config.hidden_size);
}

}  // namespace quire::model
