// config.json and generation_config.json of Hugging Face model folders.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "quire/base/json.h"
#include "quire/base/str.h"
#include "quire/kernels/cpu/kernel_table.h"
#include "quire/model/config.h"
#include "quire/model/config_internal.h"
#include "quire/model/family.h"
#include "quire/model/hf_fields.h"
#include "quire/model/layer_plan.h"
#include "quire/model/rope.h"
#include "quire/model/state_shape.h"
#include "quire/result.h"
#include "quire/tensor/dtype.h"
#include "quire/types.h"

namespace quire::model {
namespace {

using base::Json;
using base::JsonView;

constexpr std::string_view kConfigFile = "config.json";
constexpr std::string_view kGenerationFile = "generation_config.json";

Error unknown_type(std::string_view field, std::string_view type) {
  std::string known;
  for (const auto name : family_names()) {
    known += base::str_cat(known.empty() ? "" : ", ", name);
  }
  return {.code = ErrorCode::kUnsupported,
          .message = base::str_cat(base::quoted(field), " is ", base::quoted(type),
                                   ", which is not implemented; known: ", known)};
}

Result<const Family*> family_of(JsonView json) {
  QUIRE_TRY(const auto name, base::get_string(json, "model_type", ""));
  const Family* family = find_family_of_type(name);
  if (family == nullptr) {
    return unknown_type("model_type", name);
  }
  return family;
}

// Returns the family of the text part of a model of several parts.
Result<const Family*> family_of_text_part(JsonView json, JsonView text) {
  QUIRE_TRY(const auto outer, base::get_string(json, "model_type", ""));
  QUIRE_TRY(const auto inner, base::get_string(text, "model_type", ""));
  const Family* family = find_family_of_type(inner);
  if (family == nullptr) {
    return unknown_type("text_config.model_type", inner);
  }
  if (family->wrapper.model_type.empty() || family->wrapper.model_type != outer) {
    return {ErrorCode::kUnsupported,
            base::str_cat("\"model_type\" is ", base::quoted(outer), ", whose text part of ",
                          base::quoted(inner), " is not implemented")};
  }
  return family;
}

// Returns "text_config" with those fields of the outer config that count for the text.
Result<Json> text_part(JsonView json, JsonView text, const Family& family, Refused& refused) {
  check_wrapper_fields(json, family, refused);
  Json merged = Json::copy(text);
  for (const std::string_view name :
       {"dtype", "torch_dtype", "eos_token_id", "bos_token_id", "tie_word_embeddings"}) {
    const JsonView outer = json.find(name);
    const JsonView inner = text.find(name);
    if (outer.is_null()) {
      continue;
    }
    if (name == "tie_word_embeddings" && !inner.is_null() && inner != outer) {
      return {ErrorCode::kInvalidArgument,
              base::str_cat("\"tie_word_embeddings\" is ", shown_json(outer),
                            ", but \"text_config.tie_word_embeddings\" is ", shown_json(inner))};
    }
    if (inner.is_null() || name == "eos_token_id") {
      merged.set(name, Json::copy(outer));
    }
  }
  merged.set("architectures", Json::array(family.architecture));
  return merged;
}

void check_class(JsonView json, const Family& family, std::string_view architecture,
                 Refused& refused) {
  const JsonView classes = json.find("architectures");
  const Json wanted = Json::array(architecture);
  if (!classes.is_null() && classes != wanted) {
    refused.push_back(base::str_cat("\"architectures\" is ", shown_json(classes), "; a ",
                                    family.name, " model here must be [\"", architecture, "\"]"));
  }
}

// Returns a 32-bit integer; `fallback` for an absent field, an error when that is negative.
Result<std::int32_t> get_count(JsonView json, std::string_view key, std::int64_t fallback) {
  QUIRE_TRY(const std::int64_t count, base::get_int(json, key, fallback));
  if (json.find(key).is_null() && fallback < 0) {
    return {ErrorCode::kInvalidArgument, base::str_cat("field ", base::quoted(key), " is missing")};
  }
  if (count < 0 || count > std::numeric_limits<std::int32_t>::max()) {
    return {ErrorCode::kInvalidArgument,
            base::str_cat(base::quoted(key), " is ", count, "; must be a 32-bit count")};
  }
  return static_cast<std::int32_t>(count);
}

// Returns the keys of the file. The size of a head that is not given comes from two of them.
FieldNames field_names(JsonView json) {
  const bool has_head_dim = !json.find("head_dim").is_null();
  return {.vocab_size = "\"vocab_size\"",
          .hidden_size = "\"hidden_size\"",
          .intermediate_size = "\"intermediate_size\"",
          .layers = "\"num_hidden_layers\"",
          .heads = "\"num_attention_heads\"",
          .kv_heads = "\"num_key_value_heads\"",
          .head_dim = has_head_dim ? "\"head_dim\"" : "\"hidden_size\" / \"num_attention_heads\"",
          .context_length = "\"max_position_embeddings\"",
          .norm_epsilon = "\"rms_norm_eps\""};
}

// Returns the number of layers of a file that lists their kinds only.
std::int64_t listed_layers_of(JsonView json, std::int64_t absent) {
  const JsonView list = json.find("layers_block_type");
  const JsonView letters = json.find("hybrid_override_pattern");
  if (absent >= 0 || (!list.is_array() && !letters.is_string())) {
    return absent;
  }
  return static_cast<std::int64_t>(list.is_array() ? list.size() : letters.as_string().size());
}

Status read_shape(JsonView json, const FieldDefaults& defaults, ModelConfig& config) {
  QUIRE_TRY(config.vocab_size, get_count(json, "vocab_size", defaults.vocab_size));
  QUIRE_TRY(config.hidden_size, get_count(json, "hidden_size", defaults.hidden_size));
  QUIRE_TRY(config.intermediate_size,
            get_count(json, "intermediate_size", defaults.intermediate_size));
  QUIRE_TRY(config.layers,
            get_count(json, "num_hidden_layers", listed_layers_of(json, defaults.layers)));
  QUIRE_TRY(config.heads, get_count(json, "num_attention_heads", defaults.heads));
  QUIRE_TRY(config.context_length,
            get_count(json, "max_position_embeddings", defaults.context_length));
  const bool null_kv_heads = json.contains("num_key_value_heads");
  const std::int32_t kv_heads =
      defaults.kv_heads == 0 || null_kv_heads ? config.heads : defaults.kv_heads;
  QUIRE_TRY(config.kv_heads, get_count(json, "num_key_value_heads", kv_heads));
  if (config.heads < 1 || config.layers < 1 || config.layers > 1024) {
    return config.validate(field_names(json));  // before the two are used as divisor and length
  }
  const std::int32_t head_dim =
      defaults.head_dim != 0 ? defaults.head_dim : config.hidden_size / config.heads;
  QUIRE_TRY(config.head_dim, get_count(json, "head_dim", head_dim));
  if (json.find("head_dim").is_null() && defaults.head_dim == 0 &&
      config.hidden_size % config.heads != 0) {
    return {ErrorCode::kInvalidArgument,
            base::str_cat("\"hidden_size\" ", config.hidden_size, " is not a multiple of the ",
                          config.heads, " heads and \"head_dim\" is not given")};
  }
  return {};
}

Status read_activation(JsonView json, const Family& family, ModelConfig& config, Refused& refused) {
  QUIRE_TRY(const auto activation,
            base::get_string(json, family.activation_field, family.defaults.activation));
  if (activation == "gelu_pytorch_tanh") {
    config.activation = kernels::Activation::kGeluTanh;
  } else if (activation != "silu" && activation != "swish") {
    refused.push_back(base::str_cat(base::quoted(family.activation_field), " is ",
                                    base::quoted(activation),
                                    "; implemented: \"silu\", \"gelu_pytorch_tanh\""));
  }
  return {};
}

// Refuses an activation that transformers applies to a recurrent mixer too, beside the MLP.
void check_mixer_activation(JsonView json, const Family& family, const ModelConfig& config,
                            Refused& refused) {
  const MixerKind kind = config.state.kind;
  const bool recurs = kind == MixerKind::kGatedDelta || kind == MixerKind::kStateScan;
  if (recurs && config.activation == kernels::Activation::kGeluTanh) {
    refused.push_back(base::str_cat(base::quoted(family.activation_field), " is ",
                                    shown_json(json.find(family.activation_field)),
                                    "; implemented for layers of ", mixer_name(kind),
                                    ": \"silu\""));
  }
}

Status read_switches(JsonView json, const FieldDefaults& defaults, ModelConfig& config,
                     Refused& refused) {
  QUIRE_TRY(config.norm_epsilon, base::get_double(json, "rms_norm_eps", defaults.norm_epsilon));
  QUIRE_TRY(config.tied_embeddings,
            base::get_bool(json, "tie_word_embeddings", defaults.tied_embeddings));
  QUIRE_TRY(const auto old_name, base::get_string(json, "torch_dtype", ""));
  QUIRE_TRY(const auto dtype, base::get_string(json, "dtype", old_name));
  config.dtype_is_given = !dtype.empty();
  if (!config.dtype_is_given) {
    return {};
  }
  for (const auto known :
       {tensor::DType::kFloat32, tensor::DType::kBFloat16, tensor::DType::kFloat16}) {
    if (dtype == tensor::dtype_name(known)) {
      config.stored_dtype = known;
      return {};
    }
  }
  refused.push_back(
      base::str_cat("\"dtype\" is ", base::quoted(dtype), "; known: float32, bfloat16, float16"));
  return {};
}

Result<std::optional<double>> get_optional(JsonView json, std::string_view key) {
  if (json.find(key).is_null()) {
    return std::optional<double>();
  }
  QUIRE_TRY(const double number, base::get_double(json, key, 0.0));
  return std::optional<double>(number);
}

Result<std::vector<double>> get_doubles(JsonView json, std::string_view key) {
  std::vector<double> numbers;
  const JsonView list = json.find(key);
  if (list.is_null()) {
    return numbers;
  }
  if (!list.is_array()) {
    return {ErrorCode::kInvalidArgument, base::str_cat(base::quoted(key), " must be a list")};
  }
  for (const JsonView item : list.elements()) {
    if (!item.is_number()) {
      return {ErrorCode::kInvalidArgument, base::str_cat(base::quoted(key), " holds ",
                                                         shown_json(item), ", which is no number")};
    }
    numbers.push_back(item.as_double());
  }
  return numbers;
}

// The rotary fields: of all layers, or of layers with a window and of the others.
struct RopeBlocks {
  JsonView main, local;
};

// Returns the blocks of one field.
Result<RopeBlocks> blocks_of(JsonView block, std::string_view name, const Family& family,
                             Refused& refused) {
  const bool by_kind = family.rope_by_kind && name == "rope_parameters";
  if (!by_kind) {
    check_rope_fields(block, name, family, refused);
    return RopeBlocks{.main = block, .local = JsonView()};
  }
  for (const auto [kind, part] : block.members()) {
    const std::string full = base::str_cat(name, ".", kind);
    if (kind != "full_attention" && kind != "sliding_attention") {
      refused.push_back(base::str_cat("field ", base::quoted(full), " is not known for ",
                                      family.name,
                                      " models, whose blocks are \"full_attention\" "
                                      "and \"sliding_attention\""));
      continue;
    }
    if (!part.is_object()) {
      return {ErrorCode::kInvalidArgument, base::str_cat(base::quoted(full), " must be an object")};
    }
    check_rope_fields(part, full, family, refused);
  }
  return RopeBlocks{.main = block.find("full_attention"), .local = block.find("sliding_attention")};
}

// Returns the rotary fields: "rope_scaling" up to transformers 4, "rope_parameters" since.
Result<RopeBlocks> rope_blocks(JsonView json, const Family& family, Refused& refused) {
  for (const std::string_view name : {"rope_scaling", "rope_parameters"}) {
    const JsonView block = json.find(name);
    if (block.is_null()) {
      continue;
    }
    if (!block.is_object()) {
      return {ErrorCode::kInvalidArgument, base::str_cat(base::quoted(name), " must be an object")};
    }
    QUIRE_TRY(const RopeBlocks blocks, blocks_of(block, name, family, refused));
    if (block.size() > 0) {
      return blocks;
    }
  }
  return RopeBlocks();
}

Status read_scaling(JsonView block, RopeSpec& spec) {
  QUIRE_TRY(spec.factor, get_optional(block, "factor"));
  QUIRE_TRY(spec.attention_factor, get_optional(block, "attention_factor"));
  QUIRE_TRY(spec.low_freq_factor, get_optional(block, "low_freq_factor"));
  QUIRE_TRY(spec.high_freq_factor, get_optional(block, "high_freq_factor"));
  QUIRE_TRY(spec.beta_fast, base::get_double(block, "beta_fast", spec.beta_fast));
  QUIRE_TRY(spec.beta_slow, base::get_double(block, "beta_slow", spec.beta_slow));
  QUIRE_TRY(spec.mscale, base::get_double(block, "mscale", 0.0));
  QUIRE_TRY(spec.mscale_all_dim, base::get_double(block, "mscale_all_dim", 0.0));
  QUIRE_TRY(spec.truncate, base::get_bool(block, "truncate", true));
  QUIRE_TRY(spec.short_factor, get_doubles(block, "short_factor"));
  QUIRE_TRY(spec.long_factor, get_doubles(block, "long_factor"));
  return {};
}

// Returns the part of a head that rope turns: 1, or less where the family honours it.
Result<double> partial_factor(JsonView json, JsonView block, const Family& family,
                              Refused& refused) {
  QUIRE_TRY(double factor,
            base::get_double(json, "partial_rotary_factor", family.defaults.partial_rotary));
  QUIRE_TRY(factor, base::get_double(block, "partial_rotary_factor", factor));
  if (factor != 1.0 && !family.partial_rotary) {
    refused.push_back(base::str_cat("\"partial_rotary_factor\" is ", factor, "; ", family.name,
                                    " models must have 1"));
    return 1.0;
  }
  if (!(factor > 0.0 && factor <= 1.0)) {
    return {ErrorCode::kInvalidArgument,
            base::str_cat("\"partial_rotary_factor\" is ", factor, "; must be in (0, 1]")};
  }
  return factor;
}

// A block, and the theta of one that does not name any.
struct RopeSource {
  JsonView block;
  double theta = 0;
  RopeKind rope = RopeKind::kMain;
};

// Reads one block.
Result<RopeSpec> read_rope(JsonView json, const RopeSource& source, const Family& family,
                           const ModelConfig& config, Refused& refused) {
  const JsonView block = source.block;
  RopeSpec spec;
  QUIRE_TRY(const auto old_name, base::get_string(block, "type", "default"));
  QUIRE_TRY(spec.type, base::get_string(block, "rope_type", old_name));
  if (spec.type == "yarn" || (spec.type == "su" && family.yarn == "longrope")) {
    spec.type = family.yarn;
  }
  spec.theta_name = "\"rope_theta\"";
  QUIRE_TRY(spec.theta, base::get_double(block, "rope_theta", source.theta));
  const std::int32_t room = config.most_rotary_dim(source.rope);
  if (spec.type == "proportional") {
    spec.rotary_dim = room;
    QUIRE_TRY(spec.turned, base::get_double(block, "partial_rotary_factor", 1.0));
  } else {
    QUIRE_TRY(const double factor, partial_factor(json, block, family, refused));
    spec.rotary_dim = static_cast<std::int32_t>(room * factor);
  }
  spec.context_length = config.context_length;
  QUIRE_TRY_STATUS(read_scaling(block, spec));
  // Phi-3 has this field outside of the block, where it takes precedence.
  constexpr std::string_view kOriginal = "original_max_position_embeddings";
  const JsonView holder = json.find(kOriginal).is_null() ? block : json;
  QUIRE_TRY(spec.original_context_length,
            base::get_double(holder, kOriginal, static_cast<double>(config.context_length)));
  if (family.rope_by_kind) {
    spec.truncate = true;  // transformers looks for it outside of the block
    if (spec.type == "linear" && holder.find(kOriginal).is_null() && spec.factor > 0.0) {
      spec.original_context_length =
          config.context_length / spec.factor.value_or(1.0);  // it was stretched
    }
  }
  return spec;
}

Status read_rope_and_finish(JsonView json, const Family& family, ModelConfig& config,
                            Refused& refused) {
  QUIRE_TRY(RopeBlocks blocks, rope_blocks(json, family, refused));
  Json usual;
  if (blocks.main.is_null() && !family.default_rope.empty()) {
    QUIRE_TRY(usual, base::parse_json(family.default_rope, "the usual rope"));
    blocks = {.main = usual, .local = JsonView()};
    if (family.rope_by_kind) {
      blocks = {.main = blocks.main.find("full_attention"),
                .local = blocks.main.find("sliding_attention")};
    }
  }
  QUIRE_TRY(const double theta, base::get_double(json, "rope_theta", family.defaults.theta));
  QUIRE_TRY(const RopeSpec spec, read_rope(json, {blocks.main, theta}, family, config, refused));
  std::optional<RopeSpec> local;
  if (family.rope_by_kind) {
    const double usual = family.local_theta == 0.0 ? theta : family.local_theta;
    QUIRE_TRY(const double local_theta, base::get_double(json, "rope_local_base_freq", usual));
    QUIRE_TRY(local, read_rope(json, {blocks.local, local_theta, RopeKind::kLocal}, family, config,
                               refused));
  }
  return finish_config(spec, local, field_names(json), config);
}

// Reads the id of the BOS token. Only composing behind a BOS token without a tokenizer uses it, so
// an invalid id counts as none.
std::optional<TokenId> bos_id(JsonView json, std::int32_t vocab_size) {
  const auto given = json.find("bos_token_id").exact<TokenId>();
  return given && *given >= 0 && *given < vocab_size ? given : std::nullopt;
}

Status add_eos_id(JsonView id, std::vector<TokenId>& ids) {
  const auto token = id.exact<TokenId>();
  if (!token || *token < 0) {
    return {ErrorCode::kInvalidArgument,
            base::str_cat("\"eos_token_id\" holds ", shown_json(id), ", which is no token id")};
  }
  if (std::find(ids.begin(), ids.end(), *token) == ids.end()) {
    ids.push_back(*token);
  }
  return {};
}

Status add_eos_ids(JsonView json, std::vector<TokenId>& ids) {
  const JsonView given = json.find("eos_token_id");
  if (given.is_null()) {
    return {};
  }
  if (!given.is_array()) {
    return add_eos_id(given, ids);
  }
  for (const JsonView id : given.elements()) {
    QUIRE_TRY_STATUS(add_eos_id(id, ids));
  }
  return {};
}

// Puts the name of its file before a message, unless that begins with it.
Error in_file(std::string_view file, Error error) {
  if (!error.message.starts_with(file)) {
    error.message = base::str_cat(file, ": ", error.message);
  }
  return error;
}

// Parses the config of a text model. Goes on behind what is refused, to find all of it.
Result<ModelConfig> parse_text(JsonView json, const Family& family, Refused& refused) {
  check_fields(json, family, refused);
  ModelConfig config;
  config.family = family.name;
  QUIRE_TRY_STATUS(read_shape(json, family.defaults, config));
  QUIRE_TRY_STATUS(read_activation(json, family, config, refused));
  QUIRE_TRY_STATUS(read_switches(json, family.defaults, config, refused));
  config.window_tokens.assign(static_cast<std::size_t>(config.layers), 0);
  if (const Status set = family.configure(json, config); !set.ok()) {
    if (set.error().code != ErrorCode::kUnsupported) {
      return set.error();
    }
    refused.push_back(set.error().message);
  }
  check_mixer_activation(json, family, config, refused);
  config.bos_token_id = bos_id(json, config.vocab_size);
  QUIRE_TRY_STATUS(add_eos_ids(json, config.eos_token_ids));
  QUIRE_TRY_STATUS(read_rope_and_finish(json, family, config, refused));
  return config;
}

Result<ModelConfig> parse_config(JsonView json, Refused& refused) {
  const JsonView text = json.find("text_config");
  if (!text.is_object()) {
    QUIRE_TRY(const Family* family, family_of(json));
    check_class(json, *family, family->architecture, refused);
    return parse_text(json, *family, refused);
  }
  QUIRE_TRY(const Family* family, family_of_text_part(json, text));
  check_class(json, *family, family->wrapper.architecture, refused);
  QUIRE_TRY(const Json merged, text_part(json, text, *family, refused));
  QUIRE_TRY(ModelConfig config, parse_text(merged, *family, refused));
  QUIRE_TRY_STATUS(add_eos_ids(text, config.eos_token_ids));
  config.is_text_part = true;
  return config;
}

Status add_generation_config(std::string_view text, ModelConfig& config) {
  QUIRE_TRY(const Json generation, base::parse_model_object(text, kGenerationFile));
  QUIRE_TRY_STATUS(add_eos_ids(generation, config.eos_token_ids));
  std::erase_if(config.eos_token_ids, [&](TokenId id) {
    return id >= config.vocab_size;  // can never be sampled
  });
  return {};
}

Result<ModelConfig> parse(std::string_view config_json, std::string_view generation_config_json,
                          Refused& refused) {
  QUIRE_TRY(const Json document, base::parse_model_object(config_json, kConfigFile));
  auto config = parse_config(document, refused);
  for (std::string& message : refused) {
    message = base::str_cat(kConfigFile, ": ", message);
  }
  if (!config.ok()) {
    return in_file(kConfigFile, config.error());
  }
  if (!generation_config_json.empty()) {
    if (const Status added = add_generation_config(generation_config_json, *config); !added.ok()) {
      return in_file(kGenerationFile, added.error());
    }
  }
  return config;
}

}  // namespace

Result<ModelConfig> config_from_hf(std::string_view config_json,
                                   std::string_view generation_config_json) {
  Refused refused;
  auto config = parse(config_json, generation_config_json, refused);
  if (!refused.empty()) {
    return {ErrorCode::kUnsupported, refused.front()};
  }
  return config;
}

std::vector<std::string> refused_by_hf(std::string_view config_json,
                                       std::string_view generation_config_json) {
  Refused refused;
  const auto config = parse(config_json, generation_config_json, refused);
  if (!config.ok() && config.error().code == ErrorCode::kUnsupported) {
    refused.push_back(config.error().message);
  }
  return refused;
}

}  // namespace quire::model
