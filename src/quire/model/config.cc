#include "quire/model/config.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <numeric>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "quire/base/str.h"
#include "quire/kernels/kv_codes.h"
#include "quire/kernels/rotary.h"
#include "quire/model/config_internal.h"
#include "quire/model/family.h"
#include "quire/model/layer_plan.h"
#include "quire/model/rope.h"
#include "quire/model/state_shape.h"
#include "quire/result.h"
#include "quire/tensor/dtype.h"
#include "quire/tensor/kv_format.h"
#include "quire/tensor/kv_geometry.h"
#include "quire/tensor/state_view.h"
#include "quire/types.h"
#include "quire/weights/model_files.h"

namespace quire::model {
namespace {

Status in_range(std::string_view name, std::int64_t value, std::int64_t low, std::int64_t high) {
  if (value >= low && value <= high) {
    return {};
  }
  return {ErrorCode::kInvalidArgument,
          base::str_cat(name, " is ", value, "; must be in [", low, ", ", high, "]")};
}

Status check_kv_size(const tensor::KVLayerSize& size, std::int32_t heads, const FieldNames& names) {
  QUIRE_TRY_STATUS(in_range(names.kv_heads, size.kv_heads, 1, heads));
  QUIRE_TRY_STATUS(in_range(names.head_dim, size.head_dim, 2, kernels::kMaxHeadDim));
  if (heads % size.kv_heads != 0) {
    return {ErrorCode::kInvalidArgument,
            base::str_cat(names.heads, " is ", heads, ", which is no multiple of ", names.kv_heads,
                          ", ", size.kv_heads)};
  }
  if (size.head_dim % 2 != 0) {
    return {ErrorCode::kUnsupported,
            base::str_cat(names.head_dim, " is ", size.head_dim, "; must be even")};
  }
  return {};
}

Status check_heads(const ModelConfig& config, const FieldNames& names) {
  QUIRE_TRY_STATUS(in_range(names.heads, config.heads, 1, 1024));
  return check_kv_size({config.kv_heads, config.head_dim}, config.heads, names);
}

Status check_rotary(const kernels::RotaryConfig& rotary, std::int32_t head_dim) {
  if (rotary.rotary_dim() > head_dim) {
    return {ErrorCode::kInvalidArgument,
            base::str_cat("rope turns ", rotary.rotary_dim(), " values of heads of ", head_dim)};
  }
  for (const double frequency : rotary.inverse_frequencies) {
    if (!std::isfinite(frequency) || frequency < 0.0) {
      return {ErrorCode::kInvalidArgument, base::str_cat("a rope frequency is ", frequency)};
    }
  }
  if (!std::isfinite(rotary.scale) || rotary.scale <= 0.0) {
    return {ErrorCode::kInvalidArgument,
            base::str_cat("the rope factor on cos and sin is ", rotary.scale)};
  }
  return {};
}

Status check_factor(std::string_view name, double value, bool may_be_zero) {
  constexpr double kLeast = 1e-6;
  constexpr double kMost = 1e6;
  if ((value >= kLeast && value <= kMost) || (may_be_zero && value == 0.0)) {
    return {};
  }
  return {ErrorCode::kInvalidArgument,
          base::str_cat(name, " is ", value, "; must be in [", kLeast, ", ", kMost, "]")};
}

Status check_scales(const Scales& scales) {
  QUIRE_TRY_STATUS(check_factor("the factor on embeddings", scales.embedding, false));
  QUIRE_TRY_STATUS(check_factor("the factor on the residual stream", scales.residual, false));
  QUIRE_TRY_STATUS(check_factor("the factor on attention scores", scales.scores, true));
  QUIRE_TRY_STATUS(check_factor("the divisor of logits", scales.logits, false));
  QUIRE_TRY_STATUS(check_factor("the soft cap of attention scores", scales.score_cap, true));
  QUIRE_TRY_STATUS(check_factor("the soft cap of logits", scales.logit_cap, true));
  QUIRE_TRY_STATUS(check_factor("the growth of queries by position", scales.query_growth, true));
  return in_range("the positions per step of the growth of queries", scales.query_length, 1,
                  std::int64_t{1} << 30);
}

Status check_windows(const ModelConfig& config) {
  if (config.window_tokens.size() != static_cast<std::size_t>(config.layers)) {
    return {ErrorCode::kInvalidArgument,
            base::str_cat("the model has windows for ", config.window_tokens.size(), " of ",
                          config.layers, " layers")};
  }
  for (const std::int32_t window : config.window_tokens) {
    QUIRE_TRY_STATUS(in_range("the sliding window", window, 0, std::int64_t{1} << 30));
  }
  if (!config.ropes.empty() && config.ropes.size() != config.window_tokens.size()) {
    return {ErrorCode::kInvalidArgument,
            base::str_cat("the model has rope kinds for ", config.ropes.size(), " of ",
                          config.layers, " layers")};
  }
  return {};
}

// Groups are of one size, and those that are kept have experts for every choice.
Status check_groups(const Experts& experts) {
  if (experts.groups == 1) {
    return {};
  }
  QUIRE_TRY_STATUS(in_range("the number of groups of experts", experts.groups, 1, experts.count));
  QUIRE_TRY_STATUS(
      in_range("the number of groups for a token", experts.chosen_groups, 1, experts.groups));
  const std::int32_t size = experts.count / experts.groups;
  const bool pairs =
      experts.rule == RouterRule::kSigmoidOfAll || experts.rule == RouterRule::kSigmoidOfChosen;
  if (experts.count % experts.groups != 0 || size < (pairs ? 2 : 1)) {
    return {ErrorCode::kInvalidArgument,
            base::str_cat(experts.count, " experts are no ", experts.groups, " groups of ",
                          pairs ? "two or more" : "one size")};
  }
  if (experts.chosen > size * experts.chosen_groups) {
    return {ErrorCode::kInvalidArgument,
            base::str_cat(experts.chosen, " experts for a token are more than ",
                          experts.chosen_groups, " groups of ", size, " have")};
  }
  return {};
}

Status check_mlps(const ModelConfig& config, const FieldNames& names) {
  if (config.mlps.empty()) {
    return {};
  }
  if (config.mlps.size() != static_cast<std::size_t>(config.layers)) {
    return {ErrorCode::kInvalidArgument,
            base::str_cat("the model has MLP kinds for ", config.mlps.size(), " of ", config.layers,
                          " layers")};
  }
  if (std::ranges::find(config.mlps, MlpKind::kExperts) == config.mlps.end()) {
    return {};
  }
  QUIRE_TRY_STATUS(in_range(names.experts, config.experts.count, 1, 1024));
  QUIRE_TRY_STATUS(in_range(names.chosen_experts, config.experts.chosen, 1, config.experts.count));
  QUIRE_TRY_STATUS(check_groups(config.experts));
  QUIRE_TRY_STATUS(
      check_factor("the factor on weights of experts", config.experts.weight_scale, false));
  QUIRE_TRY_STATUS(in_range("the size of the MLP beside experts", config.experts.shared_size, 0,
                            std::int64_t{1} << 20));
  return in_range(names.expert_size, config.experts.intermediate_size, 1, std::int64_t{1} << 20);
}

Status check_layer_list(std::string_view what, std::size_t given, std::int32_t layers) {
  if (given == 0 || given == static_cast<std::size_t>(layers)) {
    return {};
  }
  return {ErrorCode::kInvalidArgument,
          base::str_cat("the model has ", what, " for ", given, " of ", layers, " layers")};
}

// Checks what layers have of their own: sizes of KV and MLPs, and whose KV they read.
Status check_layer_sizes(const ModelConfig& config, const FieldNames& names) {
  QUIRE_TRY_STATUS(check_layer_list("sizes of KV", config.kv_sizes.size(), config.layers));
  QUIRE_TRY_STATUS(check_layer_list("sources of KV", config.kv_sources.size(), config.layers));
  QUIRE_TRY_STATUS(check_layer_list("sizes of MLPs", config.mlp_sizes.size(), config.layers));
  for (const tensor::KVLayerSize& size : config.kv_sizes) {
    QUIRE_TRY_STATUS(check_kv_size(size, config.heads, names));
  }
  for (const std::int32_t size : config.mlp_sizes) {
    QUIRE_TRY_STATUS(in_range(names.intermediate_size, size, 1, std::int64_t{1} << 20));
  }
  for (std::size_t layer = 0; layer < config.kv_sources.size(); ++layer) {
    const auto source = static_cast<std::size_t>(config.kv_sources[layer]);
    const bool fits =
        source <= layer && config.stores(source) && config.kv_size(source) == config.kv_size(layer);
    if (!fits) {
      return {ErrorCode::kInvalidArgument,
              base::str_cat("layer ", layer, " cannot read the KV of layer ", source)};
    }
  }
  return {};
}

// Every layer is attention or of the one kind that the state is of, and one at least has KV.
Status check_mixers(const ModelConfig& config) {
  if (config.mixers.empty()) {
    return {};
  }
  if (config.mixers.size() != static_cast<std::size_t>(config.layers)) {
    return {ErrorCode::kInvalidArgument,
            base::str_cat("the model has kinds for ", config.mixers.size(), " of ", config.layers,
                          " layers")};
  }
  for (const MixerKind mixer : config.mixers) {
    if (mixer != MixerKind::kAttention && mixer != MixerKind::kNone && mixer != config.state.kind) {
      return {ErrorCode::kUnsupported, "the model has layers with states of several kinds"};
    }
  }
  if (config.kv_layers() == 0) {
    return {ErrorCode::kUnsupported,
            "the model has no attention layer; models of states alone are not implemented"};
  }
  return config.state.validate();
}

}  // namespace

LayerPlan ModelConfig::layer_plan(std::size_t layer) const {
  const QkNorm normed = qk_norms_rows ? QkNorm::kRows : QkNorm::kHeads;
  const MixerKind mixer = mixers.empty() ? MixerKind::kAttention : mixers[layer];
  const std::size_t source =
      kv_sources.empty() ? layer : static_cast<std::size_t>(kv_sources[layer]);
  const tensor::KVLayerSize size =
      mixer == MixerKind::kAttention ? kv_size(layer) : tensor::KVLayerSize();
  return {.mixer = mixer,
          .group_index = group_index(source, mixer),
          .kv_heads = size.kv_heads,
          .head_dim = size.head_dim,
          .stores_kv = source == layer,
          .keys_are_values = full_keys_are_values && is_full(layer),
          .norms_values = norms_values,
          .mlp_size = mlp_sizes.empty() ? intermediate_size : mlp_sizes[layer],
          .gates_output = gates_attention,
          .window_tokens = window_tokens[layer],
          .rope = ropes.empty() ? RopeKind::kMain : ropes[layer],
          .qk_norm = qk_norm ? normed : QkNorm::kNone,
          .norms = norms,
          .activation = activation,
          .mlp = mlps.empty() ? MlpKind::kDense : mlps[layer]};
}

// Returns the number of a layer among those that store KV, or that have a state.
std::int32_t ModelConfig::group_index(std::size_t layer, MixerKind mixer) const {
  std::int32_t before = 0;
  for (std::size_t i = 0; i < layer; ++i) {
    const bool same = mixers.empty() || mixers[i] == mixer;
    before += same && stores(i) ? 1 : 0;
  }
  return before;
}

std::int32_t ModelConfig::kv_layers() const {
  return group_index(static_cast<std::size_t>(layers), MixerKind::kAttention);
}

std::int32_t ModelConfig::state_layers() const {
  return state.kind == MixerKind::kAttention
             ? 0
             : static_cast<std::int32_t>(std::ranges::count(mixers, state.kind));
}

tensor::StateGeometry ModelConfig::state_geometry() const {
  constexpr std::int64_t kAlignment = 64;
  tensor::StateGeometry geometry;
  const std::int64_t values = state.tail_size() + state.matrix_size();
  const std::int64_t bytes = values * static_cast<std::int64_t>(sizeof(float));
  const std::int64_t layer_bytes = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  const auto add_part = [&](std::int32_t layer, tensor::StateForm form, std::int64_t from,
                            std::int64_t count) {
    constexpr auto kBytes = static_cast<std::int64_t>(sizeof(float));
    if (count > 0) {
      geometry.parts.push_back({.layer = layer,
                                .form = form,
                                .bytes = count * kBytes,
                                .offset = geometry.state_bytes + from * kBytes});
    }
  };
  for (std::int32_t layer = 0; layer < std::ssize(mixers); ++layer) {
    if (state_layers() == 0 || mixers[static_cast<std::size_t>(layer)] != state.kind) {
      continue;
    }
    const bool scans = state.kind == MixerKind::kStateScan;
    add_part(layer, tensor::StateForm::kConvTail, 0, state.tail_size());
    add_part(layer, scans ? tensor::StateForm::kScanMatrix : tensor::StateForm::kDeltaMatrix,
             state.tail_size(), state.matrix_size());
    geometry.offsets.push_back(geometry.state_bytes);
    geometry.state_bytes += layer_bytes;
  }
  return geometry;
}

std::int32_t ModelConfig::most_rotary_dim(RopeKind rope) const {
  const auto known = std::ranges::find(ropes, rope);
  if (latent.is_there() || kv_sizes.empty() || known == ropes.end()) {
    return latent.is_there() ? latent.rope_dim : head_dim;
  }
  return kv_sizes[static_cast<std::size_t>(known - ropes.begin())].head_dim;
}

float ModelConfig::embedding_factor() const { return rounded_factor(scales.embedding); }

float ModelConfig::rounded_factor(double exact) const {
  const auto factor = static_cast<float>(exact);
  if (!scales.embedding_is_rounded || stored_dtype == tensor::DType::kFloat32) {
    return factor;
  }
  return stored_dtype == tensor::DType::kFloat16
             ? tensor::fp16_to_float(tensor::float_to_fp16(factor))
             : tensor::bf16_to_float(tensor::float_to_bf16(factor));
}

double ModelConfig::score_scale() const {
  return scales.scores != 0.0 ? scales.scores : 1.0 / std::sqrt(static_cast<double>(head_dim));
}

Status check_device_switches(const ModelConfig& config) {
  constexpr std::int32_t kMostKeyDim = 128;  // of kernels/cuda/state_ops.h
  const std::array<std::pair<bool, std::string_view>, 6> switches = {{
      {config.experts.has_norms, "experts with norms of their own"},
      {config.kv_layers() == 0, "no layer with attention"},
      {config.state.key_dim > kMostKeyDim, "keys of a state above 128 numbers"},
      {config.has_uneven_kv(), "layers whose KV differs or is shared"},
      {config.norms_values, "a norm of values"},
      {config.scales_layers || config.layer_inputs.size > 0, "inputs or factors of layers"},
  }};
  for (const auto& [is_on, name] : switches) {
    if (is_on) {
      return {ErrorCode::kUnsupported,
              base::str_cat(config.family, " models are not implemented on a GPU: ", name,
                            "; open the model on the CPU")};
    }
  }
  return {};
}

tensor::KVGeometry ModelConfig::kv_geometry(tensor::DType kv_dtype, std::int32_t block_tokens,
                                            tensor::KVFormat format) const {
  std::vector<int> windows;
  std::vector<tensor::KVLayerSize> sizes;
  int stored = 0;
  for (std::size_t layer = 0; layer < window_tokens.size(); ++layer) {
    if ((mixers.empty() || mixers[layer] == MixerKind::kAttention) && stores(layer)) {
      windows.push_back(window_tokens[layer]);
      sizes.push_back(kv_size(layer));
      stored = std::gcd(stored, (sizes.back().head_dim + 31) / 32 * 32);
    }
  }
  const bool differ = std::ranges::adjacent_find(sizes, std::not_equal_to<>()) != sizes.end();
  const tensor::KVLayerSize first =
      sizes.empty() ? tensor::KVLayerSize{kv_heads, head_dim} : sizes.front();
  return {.layers = kv_layers(),
          .kv_heads = first.kv_heads,
          .head_dim = differ ? stored : first.head_dim,
          .dtype = kv_dtype,
          .block_tokens = block_tokens,
          .window_tokens = std::move(windows),
          .format = format,
          .layer_sizes = differ ? std::move(sizes) : std::vector<tensor::KVLayerSize>()};
}

Status ModelConfig::validate(const FieldNames& names) const {
  if (find_family(family) == nullptr) {
    return {ErrorCode::kUnsupported,
            base::str_cat("model family ", base::quoted(family), " is unknown")};
  }
  QUIRE_TRY_STATUS(in_range(names.vocab_size, vocab_size, 1, std::int64_t{1} << 21));
  QUIRE_TRY_STATUS(in_range(names.hidden_size, hidden_size, 1, std::int64_t{1} << 17));
  QUIRE_TRY_STATUS(in_range(names.intermediate_size, intermediate_size, 1, std::int64_t{1} << 20));
  QUIRE_TRY_STATUS(in_range(names.layers, layers, 1, 1024));
  QUIRE_TRY_STATUS(in_range(names.context_length, context_length, 1, std::int64_t{1} << 28));
  QUIRE_TRY_STATUS(check_heads(*this, names));
  QUIRE_TRY_STATUS(latent.validate());
  QUIRE_TRY_STATUS(check_rotary(rotary, most_rotary_dim(RopeKind::kMain)));
  QUIRE_TRY_STATUS(check_rotary(local_rotary, most_rotary_dim(RopeKind::kLocal)));
  QUIRE_TRY_STATUS(check_scales(scales));
  QUIRE_TRY_STATUS(check_windows(*this));
  QUIRE_TRY_STATUS(check_mlps(*this, names));
  QUIRE_TRY_STATUS(check_mixers(*this));
  QUIRE_TRY_STATUS(check_layer_sizes(*this, names));
  QUIRE_TRY_STATUS(in_range("the size of a layer's input", layer_inputs.size, 0, 1 << 16));
  if (layer_inputs.size > 0) {
    QUIRE_TRY_STATUS(in_range("the vocabulary of layers' inputs", layer_inputs.vocab_size,
                              vocab_size, std::int64_t{1} << 21));
  }
  if (!(norm_epsilon > 0.0 && norm_epsilon < 1.0)) {
    return {ErrorCode::kInvalidArgument,
            base::str_cat(names.norm_epsilon, " is ", norm_epsilon, "; must be in (0, 1)")};
  }
  for (const TokenId id : eos_token_ids) {
    QUIRE_TRY_STATUS(in_range("an end-of-sequence id", id, 0, vocab_size - 1));
  }
  return {};
}

std::string ModelConfig::context_text() const {
  if (longrope_positions == 0) {
    return std::to_string(context_length);
  }
  return base::str_cat(context_length,
                       " (longrope has other frequencies beyond, which no stored key "
                       "could follow; with \"short_factor\" equal to \"long_factor\" all ",
                       longrope_positions, " are served)");
}

void take_dtype(const weights::ModelFiles& model_files, ModelConfig& config) {
  using weights::Encoding;
  std::set<Encoding> encodings;
  for (const weights::TensorInfo& tensor : model_files.tensors()) {
    if (tensor.shape.size() == 2) {
      encodings.insert(tensor.encoding);
    }
  }
  if (config.dtype_is_given || encodings.size() != 1) {
    return;
  }
  if (*encodings.begin() == Encoding::kF16) {
    config.stored_dtype = tensor::DType::kFloat16;
  } else if (*encodings.begin() == Encoding::kBF16) {
    config.stored_dtype = tensor::DType::kBFloat16;
  }
}

Status finish_config(const RopeSpec& spec, const std::optional<RopeSpec>& local,
                     const FieldNames& names, ModelConfig& config) {
  std::erase_if(config.eos_token_ids, [&](TokenId id) {
    return id >= config.vocab_size;  // can never be sampled
  });
  QUIRE_TRY_STATUS(config.validate(names));  // before the shape sizes anything
  QUIRE_TRY(auto rope, make_rope(spec));
  config.rotary = std::move(rope.rotary);
  if (local) {
    QUIRE_TRY(auto local_rope, make_rope(*local));
    config.local_rotary = std::move(local_rope.rotary);
  }
  if (rope.context_length < config.context_length) {
    config.remarks.push_back(base::str_cat(
        "longrope: ", rope.context_length, " of ", config.context_length,
        " positions are served; beyond them all frequencies would change, and stored keys with "
        "them"));
    config.longrope_positions = config.context_length;
  } else if (rope.context_length > config.context_length) {
    config.remarks.push_back(base::str_cat(spec.type, ": ", rope.context_length,
                                           " positions are served, to which it stretches the ",
                                           config.context_length, " that the model states"));
  }
  config.context_length = rope.context_length;
  for (std::int32_t& window : config.window_tokens) {
    window = window >= config.context_length ? 0 : window;
  }
  return config.validate(names);
}

}  // namespace quire::model
