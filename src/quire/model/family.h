// Family: everything in which one model family differs from the others, as data. The decoder knows
// none of it; the parsers and the packer read it.
//
// To add one: families/<name>.cc defines `<name>_family()`, and the list below gets its line.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "quire/base/json.h"
#include "quire/result.h"

#define QUIRE_MODEL_FAMILIES(FAMILY) \
  FAMILY(llama)                      \
  FAMILY(mistral)                    \
  FAMILY(phi3)                       \
  FAMILY(qwen2)                      \
  FAMILY(qwen3)

namespace quire::model {

struct ModelConfig;

// Names of tensors without ".weight" or ".bias"; those of a layer follow `layer` and its number.
// qkv and gate_up list the tensors whose rows, one after the other, make the fused matrix: queries,
// keys, values, or one that is fused already.
struct TensorNames {
  std::string_view embedding, final_norm, head;
  std::string_view layer;  // "model.layers."
  std::string_view attention_norm, q_norm, k_norm, output, mlp_norm, down;
  std::vector<std::string_view> qkv, gate_up;
  bool interleaved = false;  // rows of queries and keys are ordered for rotation of neighbours
};

[[nodiscard]] TensorNames hf_names();
[[nodiscard]] TensorNames gguf_names();

// A field that is implemented for one value only, as JSON text; any other is refused.
struct FixedField {
  std::string_view name;
  std::string_view value;
};

// Values that transformers assumes for absent fields of this family.
struct FieldDefaults {
  double norm_epsilon = 1e-6;
  std::int32_t context_length = 2048;
  std::int32_t kv_heads = 0;  // 0: as many as heads
  std::int32_t head_dim = 0;  // 0: hidden size / heads
};

struct Family {
  std::string_view name;               // "model_type" of config.json
  std::string_view architecture;       // the one class in "architectures"
  std::string_view gguf_architecture;  // "general.architecture"; a file without a config.json is of
                                       // the first family that has it
  FieldDefaults defaults;
  std::vector<std::string_view> fields;  // read by `configure`, beyond those that all families have
  std::vector<FixedField> fixed;
  // Biases, norms and windows from config.json; the shape is already there.
  Status (*configure)(base::JsonView json, ModelConfig& config);
  bool partial_rotary = false;  // "partial_rotary_factor" is honoured
  // True: GGUF files of it have norms of queries and keys, which they do not say.
  bool qk_norm = false;
  std::string_view yarn = "yarn";  // meaning of the rope type "yarn"; "su" is longrope or nothing
  TensorNames hf, gguf;
};

// Returns a family that lives for ever, or nullptr when the name is unknown.
[[nodiscard]] const Family* find_family(std::string_view name);
[[nodiscard]] const Family* find_gguf_family(std::string_view architecture);
[[nodiscard]] std::vector<std::string_view> family_names();
[[nodiscard]] std::vector<std::string_view> gguf_family_names();

}  // namespace quire::model
