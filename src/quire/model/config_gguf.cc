// Metadata of GGUF files. Keys: ggml docs/gguf.md and llama.cpp's converters.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "quire/base/str.h"
#include "quire/model/config.h"
#include "quire/model/config_internal.h"
#include "quire/model/family.h"
#include "quire/model/layer_mixers.h"
#include "quire/model/layer_plan.h"
#include "quire/model/rope.h"
#include "quire/result.h"
#include "quire/tensor/dtype.h"
#include "quire/types.h"
#include "quire/weights/gguf.h"
#include "quire/weights/tensor_info.h"

namespace quire::model {
namespace {

using weights::GgufFile;
using weights::TensorInfo;

// Keys below "<architecture>." that are read here.
constexpr std::array<std::string_view, 23> kReadKeys = {"attention.causal",
                                                        "attention.head_count",
                                                        "attention.head_count_kv",
                                                        "attention.key_length",
                                                        "attention.layer_norm_rms_epsilon",
                                                        "attention.scale",
                                                        "attention.sliding_window",
                                                        "attention.value_length",
                                                        "block_count",
                                                        "context_length",
                                                        "embedding_length",
                                                        "expert_count",
                                                        "feed_forward_length",
                                                        "rope.dimension_count",
                                                        "rope.freq_base",
                                                        "rope.scale_linear",
                                                        "rope.scaling.attn_factor",
                                                        "rope.scaling.factor",
                                                        "rope.scaling.original_context_length",
                                                        "rope.scaling.type",
                                                        "rope.scaling.yarn_beta_fast",
                                                        "rope.scaling.yarn_beta_slow",
                                                        "tensor_data_layout"};

// These keys change nothing. They are of norms that these models do not have, of experts where
// there are none, of training, of other models' decoders. One is the size of the vocabulary, which
// the embedding has anyway.
constexpr std::array<std::string_view, 11> kHarmlessKeys = {"attention.layer_norm_epsilon",
                                                            "decoder_start_token_id",
                                                            "expert_feed_forward_length",
                                                            "expert_gating_func",
                                                            "expert_group_count",
                                                            "expert_group_used_count",
                                                            "expert_used_count",
                                                            "expert_weights_norm",
                                                            "expert_weights_scale",
                                                            "rope.scaling.finetuned",
                                                            "vocab_size"};

// Keys whose neutral value is 1: multipliers.
constexpr std::array<std::string_view, 7> kMultiplierKeys = {"attention.output_scale",
                                                             "embedding_scale",
                                                             "logit_scale",
                                                             "residual_scale",
                                                             "rope.scaling.alpha",
                                                             "rope.scaling.yarn_attn_factor",
                                                             "rope.scaling.yarn_ext_factor"};

bool is_listed(const auto& names, std::string_view name) {
  return std::ranges::find(names, name) != names.end();
}

// Returns whether a value switches nothing on, under any key.
bool is_neutral(const weights::GgufValue& value) {
  return std::visit(
      [](const auto& held) {
        using Held = std::decay_t<decltype(held)>;
        if constexpr (std::is_arithmetic_v<Held>) {
          return held == Held{};
        } else if constexpr (std::is_same_v<Held, std::string>) {
          return held.empty() || held == "none";
        } else if constexpr (std::is_same_v<Held, weights::GgufUnkept>) {
          return false;
        } else {
          using Item = typename Held::value_type;
          return std::ranges::all_of(held, [](const Item& item) { return item == Item{}; });
        }
      },
      value);
}

std::optional<double> as_number(const weights::GgufValue& value) {
  if (const auto* whole = std::get_if<std::int64_t>(&value)) {
    return static_cast<double>(*whole);
  }
  const auto* number = std::get_if<double>(&value);
  return number == nullptr ? std::nullopt : std::optional(*number);
}

// Returns " = 0.5" for a number, a flag or a text; "" for a list.
std::string shown(const weights::GgufValue& value) {
  if (const auto number = as_number(value)) {
    return base::str_cat(" = ", *number);
  }
  if (const auto* flag = std::get_if<bool>(&value)) {
    return *flag ? " = true" : " = false";
  }
  const auto* text = std::get_if<std::string>(&value);
  return text == nullptr ? "" : base::str_cat(" = ", base::quoted(*text, 40));
}

// Access to the keys of one architecture.
struct Metadata {
  const GgufFile& file;
  std::string prefix;  // "llama."

  [[nodiscard]] std::string key(std::string_view name) const { return base::str_cat(prefix, name); }
  [[nodiscard]] bool has(std::string_view name) const { return file.find(key(name)) != nullptr; }

  // Returns a 32-bit count; an error when it is absent and the fallback negative.
  [[nodiscard]] Result<std::int32_t> count(std::string_view name, std::int64_t fallback) const {
    QUIRE_TRY(const std::int64_t value, file.get_int(key(name), fallback));
    if (value < 0 && !has(name)) {
      return {ErrorCode::kCorrupt, base::str_cat("GGUF key ", key(name), " is missing")};
    }
    if (value < 0 || value > std::numeric_limits<std::int32_t>::max()) {
      return {ErrorCode::kInvalidArgument,
              base::str_cat("GGUF key ", key(name), " is ", value, "; must be a 32-bit count")};
    }
    return static_cast<std::int32_t>(value);
  }
  // Returns the largest number of a list of layers, or the one of all.
  [[nodiscard]] Result<std::int32_t> largest(std::string_view name, std::int64_t fallback) const {
    const weights::GgufValue* value = file.find(key(name));
    const auto* list = value == nullptr ? nullptr : std::get_if<std::vector<std::int64_t>>(value);
    if (list == nullptr || list->empty()) {
      return count(name, fallback);
    }
    const std::int64_t most = std::ranges::max(*list);
    return static_cast<std::int32_t>(std::clamp<std::int64_t>(most, 0, 1 << 30));
  }
  // Reads a number. Whole numbers count too: original_context_length is one in every file.
  [[nodiscard]] Result<double> number(std::string_view name, double fallback) const {
    const weights::GgufValue* value = file.find(key(name));
    const auto number = value == nullptr ? std::nullopt : as_number(*value);
    return number ? Result<double>(*number) : file.get_double(key(name), fallback);
  }
};

const TensorInfo* find_tensor(const GgufFile& file, std::string_view name) {
  for (const TensorInfo& tensor : file.tensors()) {
    if (tensor.name == name) {
      return &tensor;
    }
  }
  return nullptr;
}

bool has_tensor(const GgufFile& file, std::string_view name) {
  return find_tensor(file, name) != nullptr;
}

// Makes the error of a missing embedding. Files of 2 or 3 bits hold one, but of a type that is not
// implemented.
Error without_embedding(const GgufFile& file, std::string_view name) {
  for (const weights::UnsupportedTensor& tensor : file.unsupported()) {
    if (tensor.name == name) {
      return {.code = ErrorCode::kUnsupported,
              .message = base::str_cat("tensor ", base::quoted(name), " has type ", tensor.type,
                                       ", which is not implemented")};
    }
  }
  return {.code = ErrorCode::kCorrupt, .message = base::str_cat("tensor ", name, " is missing")};
}

// Checks keys that are implemented for one value. The layout of that name is the interleaved one.
Status check_fixed_keys(const Metadata& metadata, const Family& family) {
  constexpr std::string_view kInterleaved = "Meta AI original pth";
  const std::string causal = metadata.key("attention.causal");
  QUIRE_TRY(const bool is_causal, metadata.file.get_bool(causal, true));
  if (!is_causal) {
    return {ErrorCode::kUnsupported,
            base::str_cat("GGUF key ", causal, " is false; only causal attention is implemented")};
  }
  const std::string key = metadata.key("tensor_data_layout");
  QUIRE_TRY(const auto layout, metadata.file.get_string(key, kInterleaved));
  if (metadata.file.find(key) != nullptr && (layout != kInterleaved || !family.gguf.interleaved)) {
    return {ErrorCode::kUnsupported,
            base::str_cat("GGUF key ", key, " is ", base::quoted(layout, 40),
                          ", which is not implemented for ", family.name, " models")};
  }
  return {};
}

// Refuses keys of the architecture that are not implemented. Only they can change a result; keys of
// other architectures are ignored.
Status check_names(const Metadata& metadata, const Family& family) {
  for (const std::string& key : metadata.file.keys()) {
    if (!key.starts_with(metadata.prefix)) {
      continue;
    }
    const std::string_view name = std::string_view(key).substr(metadata.prefix.size());
    const weights::GgufValue& value = *metadata.file.find(key);
    const bool is_one = is_listed(kMultiplierKeys, name) && as_number(value) == 1.0;
    if (!is_listed(kReadKeys, name) && !is_listed(family.gguf_keys, name) &&
        !is_listed(kHarmlessKeys, name) && !is_one && !is_neutral(value)) {
      return {ErrorCode::kUnsupported,
              base::str_cat("GGUF key ", base::quoted(key), shown(value),
                            " is not implemented and may change the result")};
    }
  }
  return {};
}

Status check_experts(const Metadata& metadata, const Family& family) {
  if (is_listed(family.gguf_keys, "expert_count")) {
    return {};
  }
  QUIRE_TRY(const std::int32_t experts, metadata.count("expert_count", 0));
  if (experts != 0) {
    return {ErrorCode::kUnsupported,
            base::str_cat("GGUF key ", metadata.key("expert_count"), " is ", experts,
                          "; experts are not implemented for ", family.name, " models")};
  }
  return {};
}

// Refuses an attention scale other than the usual one, which 0 stands for and which files may also
// give as a number.
Status check_attention_scale(const Metadata& metadata, const Family& family,
                             const ModelConfig& config) {
  if (is_listed(family.gguf_keys, "attention.scale")) {
    return {};
  }
  QUIRE_TRY(const double scale, metadata.number("attention.scale", 0.0));
  const double usual = 1.0 / std::sqrt(static_cast<double>(config.head_dim));
  if (scale != 0.0 && !(std::fabs(scale - usual) <= 1e-6 * usual)) {
    return {ErrorCode::kUnsupported,
            base::str_cat("GGUF key ", metadata.key("attention.scale"), " is ", scale,
                          "; only 1 / sqrt(", config.head_dim, ") is implemented")};
  }
  return {};
}

// Returns the keys of the file. The size of a head that is not given comes from two of them.
FieldNames field_names(const Metadata& metadata) {
  const auto named = [&](std::string_view name) {
    return base::str_cat("GGUF key ", metadata.key(name));
  };
  constexpr std::string_view kHeadDim = "attention.key_length";
  return {.vocab_size = "the number of rows of the embedding",
          .hidden_size = named("embedding_length"),
          .intermediate_size = named("feed_forward_length"),
          .layers = named("block_count"),
          .heads = named("attention.head_count"),
          .kv_heads = named("attention.head_count_kv"),
          .head_dim = metadata.has(kHeadDim) ? named(kHeadDim)
                                             : base::str_cat(named("embedding_length"), " / ",
                                                             metadata.key("attention.head_count")),
          .context_length = named("context_length"),
          .norm_epsilon = named("attention.layer_norm_rms_epsilon")};
}

Status read_shape(const Metadata& metadata, const TensorInfo& embedding, const Family& family,
                  ModelConfig& config) {
  constexpr std::int64_t kRequired = -1, kAbsent = 0;
  constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();
  config.vocab_size = static_cast<std::int32_t>(std::min(embedding.rows(), kMost));
  QUIRE_TRY(config.hidden_size, metadata.count("embedding_length", kRequired));
  QUIRE_TRY(const std::int32_t of_experts, metadata.count("expert_feed_forward_length", kAbsent));
  QUIRE_TRY(
      config.intermediate_size,
      metadata.largest("feed_forward_length", of_experts == kAbsent ? kRequired : of_experts));
  QUIRE_TRY(config.layers, metadata.count("block_count", kRequired));
  QUIRE_TRY(config.heads, metadata.count("attention.head_count", kRequired));
  QUIRE_TRY(const std::int64_t kv_heads,
            read_kv_heads(metadata.file, metadata.key("attention.head_count_kv"),
                          {.has_states = family.has_states, .differ = family.kv_by_layer}));
  config.kv_heads =
      static_cast<std::int32_t>(std::min(kv_heads < 0 ? config.heads : kv_heads, kMost));
  QUIRE_TRY(config.context_length, metadata.count("context_length", kRequired));
  if (config.heads < 1 || config.layers < 1 || config.layers > 1024) {
    return config.validate(field_names(metadata));  // before they are used as divisor and length
  }
  QUIRE_TRY(config.head_dim,
            metadata.count("attention.key_length", config.hidden_size / config.heads));
  QUIRE_TRY(const std::int32_t value_dim,
            metadata.count("attention.value_length", config.head_dim));
  if (value_dim != config.head_dim && !metadata.has("attention.kv_lora_rank")) {
    return {ErrorCode::kUnsupported,
            base::str_cat("value heads of ", value_dim, " beside key heads of ", config.head_dim,
                          " are not implemented")};
  }
  QUIRE_TRY(const std::int32_t window, metadata.count("attention.sliding_window", 0));
  config.window_tokens.assign(static_cast<std::size_t>(config.layers), window);
  QUIRE_TRY(config.norm_epsilon, metadata.number("attention.layer_norm_rms_epsilon", 0.0));
  return {};
}

// Reads the switches that the tensors tell: biases, tying, and the type to compute in.
void read_switches(const GgufFile& file, const Family& family, ModelConfig& config) {
  const auto first_layer = [&](std::string_view name, std::string_view kind) {
    return has_tensor(file, base::str_cat(family.gguf.layer, 0, ".", name, kind));
  };
  config.qkv_bias = first_layer(family.gguf.qkv.front(), ".bias");
  config.output_bias = first_layer(family.gguf.output, ".bias");
  config.mlp_bias = first_layer(family.gguf.down, ".bias");
  config.qk_norm = family.qk_norm;
  config.tied_embeddings = !has_tensor(file, base::str_cat(family.gguf.head, ".weight"));
  const TensorInfo* down =
      find_tensor(file, base::str_cat(family.gguf.layer, 0, ".", family.gguf.down, ".weight"));
  if (down == nullptr) {
    down = find_tensor(file, base::str_cat(family.gguf.layer, 0, ".ffn_down_exps.weight"));
  }
  if (down != nullptr) {
    config.stored_dtype = down->encoding == weights::Encoding::kF32   ? tensor::DType::kFloat32
                          : down->encoding == weights::Encoding::kF16 ? tensor::DType::kFloat16
                                                                      : tensor::DType::kBFloat16;
  }
}

// Reads values of a one-dimensional tensor of `expected` values; empty when there is none.
Result<std::vector<double>> read_values(const GgufFile& file, std::string_view name,
                                        std::int32_t expected) {
  const TensorInfo* tensor = find_tensor(file, name);
  if (tensor == nullptr) {
    return std::vector<double>();
  }
  if (tensor->num_values() != expected || tensor->columns() != expected) {
    return {ErrorCode::kCorrupt,
            base::str_cat("tensor ", base::quoted(name), " holds ", tensor->num_values(),
                          " values; expected ", expected)};
  }
  std::vector<float> values(static_cast<std::size_t>(expected));
  weights::read_rows(*tensor, 0, 1, values);
  return std::vector<double>(values.begin(), values.end());
}

// Reads how positions are scaled. A factor without a type stretches linearly, and had another name
// once; 0 stands for none.
Status read_scaling(const Metadata& metadata, RopeSpec& spec) {
  QUIRE_TRY(const double old_factor, metadata.number("rope.scale_linear", 0.0));
  QUIRE_TRY(const double new_factor, metadata.number("rope.scaling.factor", 0.0));
  const double factor = new_factor != 0.0 ? new_factor : old_factor;
  const bool stretches = factor != 0.0 && factor != 1.0;
  QUIRE_TRY(spec.type, metadata.file.get_string(metadata.key("rope.scaling.type"),
                                                stretches ? "linear" : "default"));
  if (spec.type == "none") {
    spec.type = "default";
  }
  if (factor != 0.0) {
    spec.factor = factor;
  } else if (spec.type == "linear" || spec.type == "yarn") {
    spec.factor = 1.0;
  }
  if (metadata.has("rope.scaling.attn_factor")) {
    QUIRE_TRY(spec.attention_factor, metadata.number("rope.scaling.attn_factor", 1.0));
  }
  QUIRE_TRY(spec.beta_fast, metadata.number("rope.scaling.yarn_beta_fast", spec.beta_fast));
  QUIRE_TRY(spec.beta_slow, metadata.number("rope.scaling.yarn_beta_slow", spec.beta_slow));
  QUIRE_TRY(spec.original_context_length,
            metadata.number("rope.scaling.original_context_length",
                            static_cast<double>(spec.context_length)));
  // Both mscales of the model, which cancel out.
  QUIRE_TRY(spec.mscale, metadata.number("rope.scaling.yarn_log_multiplier", 0.0));
  spec.mscale_all_dim = spec.mscale;
  return {};
}

Result<RopeSpec> read_rope(const Metadata& metadata, const Family& family,
                           const ModelConfig& config) {
  RopeSpec spec;
  spec.context_length = config.context_length;
  spec.theta_name = base::str_cat("GGUF key ", metadata.key("rope.freq_base"));
  QUIRE_TRY(spec.theta, metadata.number("rope.freq_base", spec.theta));
  const std::int32_t most = config.most_rotary_dim(RopeKind::kMain);
  QUIRE_TRY(spec.rotary_dim, metadata.count("rope.dimension_count", most));
  if (spec.rotary_dim > most || (spec.rotary_dim != most && !family.partial_rotary)) {
    return {ErrorCode::kUnsupported,
            base::str_cat("GGUF key ", metadata.key("rope.dimension_count"), " is ",
                          spec.rotary_dim, " for heads of ", most)};
  }
  QUIRE_TRY_STATUS(read_scaling(metadata, spec));
  spec.truncate = family.gguf_yarn_truncates;
  if (family.rope_by_kind && spec.type == "linear" &&
      !metadata.has("rope.scaling.original_context_length")) {
    spec.original_context_length =
        config.context_length / spec.factor.value_or(1.0);  // it was stretched
  }
  const std::int32_t half = spec.rotary_dim / 2;
  QUIRE_TRY(spec.divisors, read_values(metadata.file, "rope_freqs.weight", half));
  QUIRE_TRY(spec.short_factor, read_values(metadata.file, "rope_factors_short.weight", half));
  QUIRE_TRY(spec.long_factor, read_values(metadata.file, "rope_factors_long.weight", half));
  if (!spec.short_factor.empty() || !spec.long_factor.empty()) {
    spec.type = "longrope";  // converters write the factors with or without the type
  }
  const double attention_factor = spec.attention_factor.value_or(1.0);
  if (spec.type != "longrope" && attention_factor != 1.0) {
    return {ErrorCode::kUnsupported,
            base::str_cat("GGUF key ", metadata.key("rope.scaling.attn_factor"), " is ",
                          attention_factor, "; implemented for longrope only")};
  }
  return spec;
}

// Returns the rope of layers with a window, if they have one of their own; it is never scaled.
Result<std::optional<RopeSpec>> read_local_rope(const Metadata& metadata, const Family& family,
                                                const ModelConfig& config, const RopeSpec& main) {
  if (!family.rope_by_kind) {
    return std::optional<RopeSpec>();
  }
  RopeSpec local;
  local.theta_name = base::str_cat("GGUF key ", metadata.key("rope.freq_base_swa"));
  const double usual = family.local_theta == 0.0 ? main.theta : family.local_theta;
  QUIRE_TRY(local.theta, metadata.number("rope.freq_base_swa", usual));
  local.rotary_dim =
      config.kv_sizes.empty() ? main.rotary_dim : config.most_rotary_dim(RopeKind::kLocal);
  local.context_length = main.context_length;
  return std::optional<RopeSpec>(std::move(local));
}

Status add_end(std::string_view key, std::int64_t id, ModelConfig& config) {
  if (id >= config.vocab_size) {
    return {ErrorCode::kCorrupt,
            base::str_cat("GGUF key ", key, " is ", id, " of ", config.vocab_size, " tokens")};
  }
  const auto token = static_cast<TokenId>(id);
  auto& ids = config.eos_token_ids;
  if (id >= 0 && std::ranges::find(ids, token) == ids.end()) {
    ids.push_back(token);
  }
  return {};
}

// Reads the ends of a text, a turn and a message; the list is Ollama's.
Status read_ends(const GgufFile& file, ModelConfig& config) {
  for (const std::string_view key : {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id",
                                     "tokenizer.ggml.eom_token_id"}) {
    QUIRE_TRY(const std::int64_t id, file.get_token_id(key));
    QUIRE_TRY_STATUS(add_end(key, id, config));
  }
  constexpr std::string_view kList = "tokenizer.ggml.eos_token_ids";
  QUIRE_TRY(const auto* list, file.find_as<std::vector<std::int64_t>>(kList));
  for (std::size_t i = 0; list != nullptr && i < list->size(); ++i) {
    QUIRE_TRY_STATUS(add_end(kList, (*list)[i], config));
  }
  return {};
}

}  // namespace

Result<ModelConfig> config_from_gguf(const GgufFile& file) {
  QUIRE_TRY(const auto architecture, file.get_string("general.architecture", ""));
  const Family* family = find_gguf_family(architecture);
  if (family == nullptr) {
    std::string known;
    for (const std::string_view name : gguf_family_names()) {
      known += base::str_cat(known.empty() ? "" : ", ", name);
    }
    return {ErrorCode::kUnsupported, base::str_cat("GGUF architecture ", base::quoted(architecture),
                                                   " is not implemented; known: ", known)};
  }
  const Metadata metadata{file, architecture + "."};
  QUIRE_TRY_STATUS(check_fixed_keys(metadata, *family));
  QUIRE_TRY_STATUS(check_experts(metadata, *family));
  QUIRE_TRY_STATUS(check_names(metadata, *family));
  const std::string embedding_name = base::str_cat(family->gguf.embedding, ".weight");
  const TensorInfo* embedding = find_tensor(file, embedding_name);
  if (embedding == nullptr) {
    return without_embedding(file, embedding_name);
  }
  ModelConfig config;
  config.family = family->name;
  QUIRE_TRY_STATUS(read_shape(metadata, *embedding, *family, config));
  const FieldNames names = field_names(metadata);
  QUIRE_TRY_STATUS(config.validate(names));  // before the shape sizes anything
  QUIRE_TRY_STATUS(check_attention_scale(metadata, *family, config));
  read_switches(file, *family, config);
  if (family->configure_gguf != nullptr) {
    QUIRE_TRY_STATUS(family->configure_gguf(file, config));
    family = find_family(config.family);  // two may have one architecture
  }
  QUIRE_TRY_STATUS(read_ends(file, config));
  QUIRE_TRY(const auto spec, read_rope(metadata, *family, config));
  QUIRE_TRY(const auto local, read_local_rope(metadata, *family, config, spec));
  QUIRE_TRY_STATUS(finish_config(spec, local, names, config));
  return config;
}

}  // namespace quire::model
