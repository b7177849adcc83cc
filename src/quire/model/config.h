// ModelConfig: a decoder's shape and switches, from config.json, GGUF metadata or a preset. A field
// that changes the result and is not implemented is refused by name while parsing.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "quire/base/sha256.h"
#include "quire/kernels/packed_weights.h"
#include "quire/kernels/rotary.h"
#include "quire/result.h"
#include "quire/tensor/dtype.h"
#include "quire/tensor/kv_geometry.h"
#include "quire/types.h"
#include "quire/weights/checkpoint.h"
#include "quire/weights/gguf.h"

namespace quire::model {

// What the numbers of a config are called where they were read, for messages.
struct FieldNames {
  std::string vocab_size = "the vocabulary";
  std::string hidden_size = "the hidden size";
  std::string intermediate_size = "the intermediate size";
  std::string layers = "the number of layers";
  std::string heads = "the number of heads";
  std::string kv_heads = "the number of key-value heads";
  std::string head_dim = "the head size";
  std::string max_positions = "the number of positions";
  std::string norm_epsilon = "the norm epsilon";
};

struct ModelConfig {
  std::string family;  // "llama", "mistral", "qwen2", "qwen3", "phi3", ...
  std::int32_t vocab_size = 0;
  std::int32_t hidden_size = 0;
  std::int32_t intermediate_size = 0;
  std::int32_t layers = 0;
  std::int32_t heads = 0;
  std::int32_t kv_heads = 0;
  std::int32_t head_dim = 0;
  std::int32_t max_positions = 0;  // positions at or above are not served
  // As the model states them, where longrope is why fewer are served; else 0.
  std::int32_t longrope_positions = 0;
  double norm_epsilon = 1e-6;
  kernels::RotaryConfig rotary;
  bool tied_embeddings = false;
  bool qkv_bias = false;
  bool output_bias = false;  // of the attention output projection
  bool mlp_bias = false;
  bool qk_norm = false;                     // per head, before rotation
  std::vector<std::int32_t> window_tokens;  // [layers], 0 = full attention
  tensor::DType checkpoint_dtype = tensor::DType::kFloat32;
  bool dtype_is_given = true;           // false: of a config.json that does not say it
  std::vector<TokenId> eos_token_ids;   // all that a source calls end of text or turn
  std::optional<TokenId> bos_token_id;  // where the config has one of the vocabulary
  std::vector<std::string> remarks;     // what parsing decided and a user should know

  // kUnsupported or kInvalidArgument naming the first field out of bounds. What passes can neither
  // overflow an index nor, by itself, make the loader allocate: shapes are compared with the
  // tensors in the file first.
  [[nodiscard]] Status validate(const FieldNames& names = {}) const;

  // Returns max_positions for a message: with the reason where longrope lowers it.
  [[nodiscard]] std::string context_text() const;

  [[nodiscard]] tensor::KVGeometry kv_geometry(tensor::DType kv_dtype,
                                               std::int32_t block_tokens) const;
  [[nodiscard]] std::int64_t parameters() const;
};

// Fields that change the result and are not implemented, and fields that nobody here knows and that
// switch something on, are kUnsupported by name; null counts as absent. `generation_config_json`
// may be empty. A message begins with the file that it is about ("config.json: ").
[[nodiscard]] Result<ModelConfig> config_from_hf(std::string_view config_json,
                                                 std::string_view generation_config_json);
// All that config_from_hf refuses so, one message each.
[[nodiscard]] std::vector<std::string> refused_by_hf(std::string_view config_json,
                                                     std::string_view generation_config_json);
// Where the config does not say its dtype: that of the checkpoint's matrices if all have the same.
void take_dtype(const weights::Checkpoint& checkpoint, ModelConfig& config);
// As config_from_hf, for metadata keys below the architecture's name. Biases and tied embeddings
// are told by the tensors that are there; rope_freqs and rope_factors tensors end up in `rotary`.
[[nodiscard]] Result<ModelConfig> config_from_gguf(const weights::GgufFile& file);
// Shapes of public models for benchmarks on random weights: "tinyllama-1.1b", "llama-3.1-8b", ...
[[nodiscard]] Result<ModelConfig> config_from_preset(std::string_view name);
[[nodiscard]] std::vector<std::string> preset_names();

// Feeds every field that decides a result; names and ids do not.
void add_config(base::FieldHasher& hasher, const ModelConfig& config);

// Bytes of the weights of `config` once packed in `format`: what a decoder of it holds.
[[nodiscard]] std::int64_t packed_weight_bytes(const ModelConfig& config,
                                               kernels::WeightFormat format);

}  // namespace quire::model
