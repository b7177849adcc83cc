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
  FAMILY(deepseek_v2)                \
  FAMILY(deepseek_v3)                \
  FAMILY(gemma2)                     \
  FAMILY(gemma3)                     \
  FAMILY(gemma4)                     \
  FAMILY(glm4_moe_lite)              \
  FAMILY(gpt_oss)                    \
  FAMILY(granite)                    \
  FAMILY(granitemoehybrid)           \
  FAMILY(lfm2)                       \
  FAMILY(lfm2_moe)                   \
  FAMILY(llama)                      \
  FAMILY(ministral3)                 \
  FAMILY(mistral)                    \
  FAMILY(mixtral)                    \
  FAMILY(nemotron_h)                 \
  FAMILY(olmo2)                      \
  FAMILY(olmo3)                      \
  FAMILY(phi3)                       \
  FAMILY(qwen2)                      \
  FAMILY(qwen3)                      \
  FAMILY(qwen3_5)                    \
  FAMILY(qwen3_5_moe)                \
  FAMILY(qwen3_moe)                  \
  FAMILY(qwen3_next)                 \
  FAMILY(smollm3)

namespace quire::weights {
class GgufFile;
}

namespace quire::model {

struct ModelConfig;

// Tensors of a layer with experts, each with the alternatives that files use. Those of one expert
// follow `each` and its number, without ".weight"; stacked ones hold all experts, first expert
// first, and are named in full. `gate_up` as in TensorNames.
struct ExpertNames {
  std::vector<std::string_view> routers;
  std::vector<std::string_view> each;
  std::vector<std::string_view> gate_up;
  std::string_view down;
  std::vector<std::vector<std::string_view>> stacked_gate_up;
  std::vector<std::string_view> stacked_down;
  // Biases of stacked experts, as `stacked_gate_up` and `stacked_down`.
  std::vector<std::string_view> gate_up_bias = {};
  std::string_view down_bias = {};
  std::string_view choice_bias = {};  // whole name
  std::vector<std::string_view> shared_gate_up = {};
  std::string_view shared_down = {}, shared_gate = {};
  // Whole names but for the norms.
  std::string_view router_norm = {}, scales = {};
  std::string_view input_norm = {}, shared_out_norm = {}, output_norm = {};
  bool in_turn = false;  // rows of gate and up stand in turn, in one tensor
  // Stacked tensors that are not quantised are [experts, inputs, outputs].
  bool inputs_first = false;
};

// Names of tensors without ".weight" or ".bias"; those of a layer follow `layer` and its number.
// qkv and gate_up list the tensors whose rows, one after the other, make the fused matrix: queries,
// keys, values, or one that is fused already.
struct TensorNames {
  std::string_view embedding, final_norm, head;
  std::string_view sinks = {};  // whole name, in a layer
  std::string_view layer;       // "model.layers."
  std::string_view attention_norm, q_norm, k_norm, output, mlp_norm, down;
  std::string_view attention_out_norm, mlp_out_norm;  // of the output, where a family has them
  std::vector<std::string_view> qkv, gate_up;
  ExpertNames experts;
  // Names of layers with a state: what is projected to be mixed, in order, and gates of the mixing.
  // One tensor for all of a gated delta rule is grouped by key heads. `decay`, `decay_shift` and
  // `state_skip` are whole names.
  std::vector<std::string_view> state_in = {}, state_gates = {};
  std::string_view state_out = {}, state_norm = {}, conv = {}, decay = {}, decay_shift = {},
                   state_skip = {};
  // Names of attention over latents, whose queries, latents and shared keys `qkv` has. Keys and
  // values of heads are projections of one tensor, or of two that stack the heads.
  std::string_view latent_query_norm = {}, latent_queries = {}, latent_norm = {},
                   latent_keys_values = {}, latent_keys = {}, latent_values = {};
  // Names of what makes the layers' inputs, of what a layer does with its own, and of its factor,
  // which is a whole name.
  std::string_view layer_embedding = {}, layer_projection = {}, layer_input_norm = {},
                   input_gate = {}, input_projection = {}, input_norm = {}, layer_scale = {};
  bool decay_is_log = false;    // A stands as ln(-A)
  bool interleaved = false;     // rows of queries and keys are ordered for rotation of neighbours
  bool norms_lack_one = false;  // a weight w of a norm stands for 1 + w
};

[[nodiscard]] TensorNames hf_names();
[[nodiscard]] TensorNames gguf_names();
[[nodiscard]] ExpertNames gguf_expert_names();

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
  // -1: the file must say it
  std::int32_t vocab_size = -1, hidden_size = -1, intermediate_size = -1, layers = -1, heads = -1;
  bool tied_embeddings = false;
  double theta = 10000.0;
  std::string_view activation = "silu";
  double partial_rotary = 1;
};

// A model of several parts whose text part is of a family: its config stands in "text_config".
struct WrapperNames {
  std::string_view model_type, architecture;
};

struct Family {
  std::string_view name;
  std::string_view model_type = {};    // of config.json; empty: the name
  std::string_view architecture;       // the one class in "architectures"
  std::string_view gguf_architecture;  // "general.architecture"; a file without a config.json is of
                                       // the first family that has it
  std::string_view other_gguf_architecture = {};  // that files with experts have, if another
  FieldDefaults defaults;
  std::vector<std::string_view> fields;  // read by `configure`, beyond those that all families have
  std::vector<FixedField> fixed;
  // Biases, norms and windows from config.json; the shape is already there.
  Status (*configure)(base::JsonView json, ModelConfig& config);
  WrapperNames wrapper = {};
  std::string_view activation_field = "hidden_act";
  // Layers with a window have a rope of their own. "rope_parameters" holds one block for each kind
  // of layer; "rope_scaling" is for layers without a window.
  bool rope_by_kind = false;
  // The theta of layers with a window; 0: the other layers'.
  double local_theta = 0;
  std::vector<std::string_view> rope_fields = {};  // read by `configure` in the rotary block
  // Reads the switches that GGUF metadata tell, from `gguf_keys` below the architecture's name,
  // which check_names lets pass. May be null.
  Status (*configure_gguf)(const weights::GgufFile& file, ModelConfig& config) = nullptr;
  std::vector<std::string_view> gguf_keys = {};
  bool partial_rotary = false;  // "partial_rotary_factor" is honoured
  // The rotary fields, as JSON, of a config.json that has none.
  std::string_view default_rope = {};
  bool gguf_yarn_truncates = true;  // the ramp of YaRN begins and ends at whole numbers
  // True: GGUF files of it have norms of queries and keys, which they do not say.
  bool qk_norm = false;
  // True: some layers may carry a state instead of KV.
  bool has_states = false;
  // True: layers may have other KV heads than others in GGUF files, which `configure_gguf` reads.
  bool kv_by_layer = false;
  // Beginnings of tensors that the model does not need.
  std::vector<std::string_view> skipped_tensors = {};
  std::string_view yarn = "yarn";  // meaning of the rope type "yarn"; "su" is longrope or nothing
  TensorNames hf, gguf;
};

// Returns a family that lives for ever, or nullptr when the name is unknown.
[[nodiscard]] const Family* find_family(std::string_view name);
[[nodiscard]] const Family* find_family_of_type(std::string_view model_type);
[[nodiscard]] const Family* find_gguf_family(std::string_view architecture);
[[nodiscard]] std::vector<std::string_view> family_names();
[[nodiscard]] std::vector<std::string_view> gguf_family_names();

}  // namespace quire::model
