// Everything in a config that decides a result, as one hash.
#include <bit>
#include <cstdint>

#include "quire/base/sha256.h"
#include "quire/kernels/cpu/kernel_table.h"
#include "quire/kernels/rotary.h"
#include "quire/model/config.h"
#include "quire/model/latent_shape.h"
#include "quire/model/layer_plan.h"
#include "quire/model/state_shape.h"
#include "quire/tensor/kv_geometry.h"

namespace quire::model {
namespace {

void add_double(base::FieldHasher& hasher, double value) {
  hasher.add_int(std::bit_cast<std::int64_t>(value));
}

void add_rotary(base::FieldHasher& hasher, const kernels::RotaryConfig& rotary) {
  add_double(hasher, rotary.scale);
  hasher.add_int(rotary.rotary_dim());
  for (const double frequency : rotary.inverse_frequencies) {
    add_double(hasher, frequency);
  }
}

// Adds what few experts have. Others keep the digest that they always had.
void add_expert_switches(base::FieldHasher& hasher, const Experts& experts) {
  const Experts plain = {.count = experts.count,
                         .chosen = experts.chosen,
                         .intermediate_size = experts.intermediate_size,
                         .rule = experts.rule};
  if (experts == plain) {
    return;
  }
  hasher.add("switches of experts");
  add_double(hasher, experts.sum_epsilon);
  add_double(hasher, experts.weight_scale);
  for (const std::int64_t value :
       {std::int64_t{experts.biases_choice}, std::int64_t{experts.shared_size},
        std::int64_t{experts.gates_shared}, std::int64_t{experts.has_bias},
        std::int64_t{experts.router_has_bias}}) {
    hasher.add_int(value);
  }
  if (experts.has_norms) {
    hasher.add("norms of experts");
  }
  if (experts.groups > 1) {
    hasher.add("groups of experts");
    hasher.add_int(experts.groups);
    hasher.add_int(experts.chosen_groups);
  }
}

// Models without experts keep the digest that they always had.
void add_experts(base::FieldHasher& hasher, const ModelConfig& config) {
  if (config.mlps.empty()) {
    return;
  }
  hasher.add("experts");
  for (const std::int64_t value :
       {std::int64_t{config.experts.count}, std::int64_t{config.experts.chosen},
        std::int64_t{config.experts.intermediate_size},
        static_cast<std::int64_t>(config.experts.rule)}) {
    hasher.add_int(value);
  }
  add_expert_switches(hasher, config.experts);
  for (const MlpKind kind : config.mlps) {
    hasher.add_int(static_cast<std::int64_t>(kind));
  }
}

// Adds what layers with a state decide. Models without them keep the digest they always had.
void add_state(base::FieldHasher& hasher, const ModelConfig& config) {
  if (config.mixers.empty()) {
    return;
  }
  hasher.add("states computed token by token in fp32");
  for (const MixerKind mixer : config.mixers) {
    hasher.add_int(static_cast<std::int64_t>(mixer));
  }
  const StateShape& state = config.state;
  for (const std::int32_t size :
       {state.taps, state.channels, std::int32_t{state.bias}, state.key_heads, state.value_heads,
        state.key_dim, state.value_dim, std::int32_t{state.keys_in_turn},
        std::int32_t{config.gates_attention}}) {
    hasher.add_int(size);
  }
  if (state.kind == MixerKind::kStateScan) {
    hasher.add_int(std::int64_t{state.conv_bias});
    add_double(hasher, state.least_step);
    add_double(hasher, state.most_step);
  }
}

// Adds the sizes of attention over latents. Other models keep the digest they always had.
void add_latent(base::FieldHasher& hasher, const LatentShape& latent) {
  if (!latent.is_there()) {
    return;
  }
  hasher.add("attention over latents");
  for (const std::int32_t size : {latent.rank, latent.query_rank, latent.rope_dim, latent.plain_dim,
                                  latent.value_dim, std::int32_t{latent.interleaved}}) {
    hasher.add_int(size);
  }
  add_double(hasher, latent.norm_epsilon);
}

// Adds what layers have of their own. Other models keep the digest they always had.
void add_layers(base::FieldHasher& hasher, const ModelConfig& config) {
  const bool plain = !config.has_uneven_kv() && config.mlp_sizes.empty() &&
                     config.layer_inputs == LayerInputShape{} && !config.full_keys_are_values &&
                     !config.norms_values && !config.scales_layers;
  if (plain) {
    return;
  }
  hasher.add("layers of several sizes");
  for (const tensor::KVLayerSize& size : config.kv_sizes) {
    hasher.add_int(size.kv_heads);
    hasher.add_int(size.head_dim);
  }
  hasher.add("sources");
  for (const std::int32_t source : config.kv_sources) {
    hasher.add_int(source);
  }
  hasher.add("widths");
  for (const std::int32_t size : config.mlp_sizes) {
    hasher.add_int(size);
  }
  for (const std::int64_t value :
       {std::int64_t{config.full_keys_are_values}, std::int64_t{config.norms_values},
        std::int64_t{config.scales_layers}, std::int64_t{config.layer_inputs.size},
        std::int64_t{config.layer_inputs.vocab_size}}) {
    hasher.add_int(value);
  }
}

// Adds the switches that plain models leave as they are, which keep the digest they always had.
void add_switches(base::FieldHasher& hasher, const ModelConfig& config) {
  const bool plain = !config.qk_norms_rows && config.norms == NormPlacement::kBefore &&
                     config.activation == kernels::Activation::kSilu && config.scales == Scales{} &&
                     config.ropes.empty();
  if (plain) {
    return;
  }
  hasher.add("switches");
  hasher.add_int(std::int64_t{config.qk_norms_rows});
  hasher.add_int(static_cast<std::int64_t>(config.norms));
  hasher.add_int(static_cast<std::int64_t>(config.activation));
  const Scales& scales = config.scales;
  for (const double factor :
       {static_cast<double>(config.embedding_factor()), scales.residual, scales.scores,
        scales.score_cap, scales.logits, scales.logit_cap, scales.query_growth}) {
    add_double(hasher, factor);
  }
  hasher.add_int(scales.query_length);
  for (const RopeKind rope : config.ropes) {
    hasher.add_int(static_cast<std::int64_t>(rope));
  }
  add_rotary(hasher, config.local_rotary);
}

}  // namespace

void add_config(base::FieldHasher& hasher, const ModelConfig& config) {
  for (const std::int64_t value :
       {std::int64_t{config.vocab_size}, std::int64_t{config.hidden_size},
        std::int64_t{config.intermediate_size}, std::int64_t{config.layers},
        std::int64_t{config.heads}, std::int64_t{config.kv_heads}, std::int64_t{config.head_dim},
        std::int64_t{config.tied_embeddings}, std::int64_t{config.qkv_bias},
        std::int64_t{config.output_bias}, std::int64_t{config.mlp_bias},
        std::int64_t{config.qk_norm}}) {
    hasher.add_int(value);
  }
  add_double(hasher, config.norm_epsilon);
  add_rotary(hasher, config.rotary);
  for (const std::int32_t window : config.window_tokens) {
    hasher.add_int(window);
  }
  if (config.has_sinks) {
    hasher.add("sinks");
  }
  if (!config.gates_mlp) {
    hasher.add("MLPs without a gate");
  }
  add_switches(hasher, config);
  add_experts(hasher, config);
  add_state(hasher, config);
  add_latent(hasher, config.latent);
  add_layers(hasher, config);
}

}  // namespace quire::model
