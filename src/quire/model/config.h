// ModelConfig: a decoder's shape and switches, from config.json, GGUF metadata or a preset. A field
// that changes the result and is not implemented is refused by name while parsing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "quire/base/sha256.h"
#include "quire/kernels/cpu/kernel_table.h"
#include "quire/kernels/rotary.h"
#include "quire/model/latent_shape.h"
#include "quire/model/layer_plan.h"
#include "quire/model/state_shape.h"
#include "quire/result.h"
#include "quire/tensor/dtype.h"
#include "quire/tensor/kv_format.h"
#include "quire/tensor/kv_geometry.h"
#include "quire/tensor/state_view.h"
#include "quire/types.h"
#include "quire/weights/gguf.h"
#include "quire/weights/model_files.h"

namespace quire::model {

// The names of a config's numbers in the file that they were read from, for messages.
struct FieldNames {
  std::string vocab_size = "the vocabulary";
  std::string hidden_size = "the hidden size";
  std::string intermediate_size = "the intermediate size";
  std::string layers = "the number of layers";
  std::string heads = "the number of heads";
  std::string kv_heads = "the number of key-value heads";
  std::string head_dim = "the head size";
  std::string context_length = "the number of positions";
  std::string norm_epsilon = "the norm epsilon";
  std::string experts = "the number of experts";
  std::string chosen_experts = "the number of experts for a token";
  std::string expert_size = "the intermediate size of an expert";
};

// Sizes and switches of a decoder.
struct ModelConfig {
  std::string family;  // "llama", "mistral", "qwen2", "qwen3", "phi3", ...
  std::int32_t vocab_size = 0;
  std::int32_t hidden_size = 0;
  std::int32_t intermediate_size = 0;
  std::int32_t layers = 0;
  std::int32_t heads = 0;
  std::int32_t kv_heads = 0;
  std::int32_t head_dim = 0;
  std::int32_t context_length = 0;  // positions at or above are not served
  // The positions that the model states, if longrope is why fewer are served; else 0.
  std::int32_t longrope_positions = 0;
  double norm_epsilon = 1e-6;
  kernels::RotaryConfig rotary;
  kernels::RotaryConfig local_rotary;  // of layers with RopeKind::kLocal
  bool tied_embeddings = false;
  bool qkv_bias = false;
  bool output_bias = false;  // true: the attention output projection has a bias
  bool mlp_bias = false;
  bool qk_norm = false;          // before rotation
  bool gates_attention = false;  // attention's output is multiplied by sigmoid(gate)
  bool gates_mlp = true;         // false: an MLP is down(activation(up(x)) * up(x))
  bool has_sinks = false;        // a logit per head joins the softmax of attention
  bool qk_norms_rows = false;    // all heads of a row as one vector, instead of each head
  NormPlacement norms = NormPlacement::kBefore;
  kernels::Activation activation = kernels::Activation::kSilu;
  Scales scales;
  std::vector<std::int32_t> window_tokens;  // [layers], 0 = full attention
  std::vector<RopeKind> ropes;              // [layers]; empty: all kMain
  Experts experts;
  std::vector<MlpKind> mlps;  // [layers]; empty: all kDense, and no experts
  // Which layers have KV (kAttention) and which the state of `state.kind`; empty: all have KV.
  std::vector<MixerKind> mixers;  // [layers]
  StateShape state;
  // Sizes where attention is over latents. `kv_heads` is 1 then, and `head_dim` that of the KV.
  LatentShape latent;
  // [layers], or empty: all layers have `kv_heads` and `head_dim`.
  std::vector<tensor::KVLayerSize> kv_sizes;
  // [layers] layer whose KV a layer reads, its own number where it stores some; empty: all do.
  std::vector<std::int32_t> kv_sources;
  std::vector<std::int32_t> mlp_sizes;  // [layers] widths of dense MLPs; empty: intermediate_size
  // Full layers have no projection of values: they are the keys', before their norm.
  bool full_keys_are_values = false;
  bool norms_values = false;   // each head of a value is normed, without a weight
  bool scales_layers = false;  // a number of each layer multiplies the rows behind it
  LayerInputShape layer_inputs;
  std::int32_t draft_layers = 0;  // of the file, behind the others: left out
  // The text part of a model of several parts, whose other tensors are left out.
  bool is_text_part = false;
  tensor::DType stored_dtype = tensor::DType::kFloat32;
  bool dtype_is_given = true;           // false: config.json does not say it
  std::vector<TokenId> eos_token_ids;   // from every source that names an end of text or turn
  std::optional<TokenId> bos_token_id;  // if the config names one of the vocabulary
  std::vector<std::string> remarks;     // decisions of parsing that a user should know

  // Returns kUnsupported or kInvalidArgument that names the first field out of bounds. A config
  // that passes overflows no index. It makes the packer allocate nothing before shapes were
  // compared with the tensors of the file.
  [[nodiscard]] Status validate(const FieldNames& names = {}) const;

  // Returns what is done in a layer. Precondition: layer < layers.
  [[nodiscard]] LayerPlan layer_plan(std::size_t layer) const;
  // Returns whether a layer with attention has KV of its own.
  [[nodiscard]] bool stores(std::size_t layer) const {
    return kv_sources.empty() || kv_sources[layer] == static_cast<std::int32_t>(layer);
  }
  // Returns whether a layer sees all tokens, however long windows are.
  [[nodiscard]] bool is_full(std::size_t layer) const {
    return window_tokens[layer] == 0 && (ropes.empty() || ropes[layer] != RopeKind::kLocal);
  }
  // Returns how many layers have KV, and how many a state.
  [[nodiscard]] std::int32_t kv_layers() const;
  [[nodiscard]] std::int32_t state_layers() const;
  // Returns how many matrices of an MLP's width its input meets: up, and gate.
  [[nodiscard]] std::int64_t mlp_parts() const { return gates_mlp ? 2 : 1; }
  // Returns the sizes of the model's state at one position.
  [[nodiscard]] tensor::StateGeometry state_geometry() const;
  // Returns the sizes of the KV of a layer.
  [[nodiscard]] tensor::KVLayerSize kv_size(std::size_t layer) const {
    return kv_sizes.empty() ? tensor::KVLayerSize{kv_heads, head_dim} : kv_sizes[layer];
  }
  // Returns whether layers have KV of several sizes, or share it.
  [[nodiscard]] bool has_uneven_kv() const { return !kv_sizes.empty() || !kv_sources.empty(); }
  // Returns a factor on rows of an embedding as it is applied.
  [[nodiscard]] float rounded_factor(double factor) const;
  // Returns the factor on rows of the embedding as it is applied.
  [[nodiscard]] float embedding_factor() const;
  // Returns the size of what a rope turns at most: a head of its layers, or the rotated part of
  // one.
  [[nodiscard]] std::int32_t most_rotary_dim(RopeKind rope) const;
  // Returns the factor on scores of attention.
  [[nodiscard]] double score_scale() const;

  // Returns context_length for a message, with the reason if longrope lowers it.
  [[nodiscard]] std::string context_text() const;

  [[nodiscard]] tensor::KVGeometry kv_geometry(
      tensor::DType kv_dtype, std::int32_t block_tokens,
      tensor::KVFormat format = tensor::KVFormat::kPlain) const;

 private:
  [[nodiscard]] std::int32_t group_index(std::size_t layer, MixerKind mixer) const;
};

// Parses a config.json. Fails with kUnsupported, by name, for a field that changes the result and
// is not implemented, and for an unknown field that switches something on. Null counts as absent.
// `generation_config_json` may be empty. A message begins with the name of its file.
[[nodiscard]] Result<ModelConfig> config_from_hf(std::string_view config_json,
                                                 std::string_view generation_config_json);
// Returns one message for each field that config_from_hf refuses.
[[nodiscard]] std::vector<std::string> refused_by_hf(std::string_view config_json,
                                                     std::string_view generation_config_json);
// Sets a dtype that the config does not say to that of the files' matrices, if all have one.
void take_dtype(const weights::ModelFiles& model_files, ModelConfig& config);
// Adds a remark with the number of tensors that belong to parts of the model beside the text.
void note_skipped_tensors(const weights::ModelFiles& model_files, ModelConfig& config);
// Parses the metadata of a GGUF file. Fails as config_from_hf does, for keys below the
// architecture's name. The tensors of the file decide biases and tied embeddings. Tensors of rope
// factors go into `rotary`.
[[nodiscard]] Result<ModelConfig> config_from_gguf(const weights::GgufFile& file);
// Returns the shape of a public model, for benchmarks on random weights: "tinyllama-1.1b" and
// others.
[[nodiscard]] Result<ModelConfig> config_from_preset(std::string_view name);
[[nodiscard]] std::vector<std::string> preset_names();

// Fails with kUnsupported, by name, for the first switch of `config` that only the CPU implements.
[[nodiscard]] Status check_device_switches(const ModelConfig& config);

// Hashes every field that decides a result. Names and ids do not.
void add_config(base::FieldHasher& hasher, const ModelConfig& config);

}  // namespace quire::model
