#include "quire/model/hf_fields.h"

#include <algorithm>
#include <array>
#include <string>
#include <string_view>

#include "quire/base/json.h"
#include "quire/base/str.h"
#include "quire/model/family.h"
#include "quire/weights/quantisation.h"

namespace quire::model {
namespace {

using base::JsonView;

// Read for every family, by config_hf.cc.
constexpr std::array<std::string_view, 21> kCommonFields = {"architectures",
                                                            "bos_token_id",
                                                            "dtype",
                                                            "eos_token_id",
                                                            "head_dim",
                                                            "hidden_act",
                                                            "hidden_size",
                                                            "intermediate_size",
                                                            "max_position_embeddings",
                                                            "model_type",
                                                            "num_attention_heads",
                                                            "num_hidden_layers",
                                                            "num_key_value_heads",
                                                            "partial_rotary_factor",
                                                            "rms_norm_eps",
                                                            "rope_parameters",
                                                            "rope_scaling",
                                                            "rope_theta",
                                                            "tie_word_embeddings",
                                                            "torch_dtype",
                                                            "vocab_size"};

// Fields that transformers and the tools around it write into configs, without effect on the
// logits. They are bookkeeping, training, how and where it runs, other ids, names and lengths,
// defaults of sampling, shapes of outputs.
constexpr std::array<std::string_view, 131> kHarmlessFields = {"architecture_version",
                                                               "attention_implementation",
                                                               "attention_probs_dropout_prob",
                                                               "attn_impl",
                                                               "attn_implementation",
                                                               "auto_map",
                                                               "bad_words_ids",
                                                               "base_model",
                                                               "base_model_name",
                                                               "base_model_tp_plan",
                                                               "begin_suppress_tokens",
                                                               "bf16",
                                                               "bos_token",
                                                               "cache_implementation",
                                                               "chat_format",
                                                               "chat_template",
                                                               "classifier_dropout",
                                                               "compile",
                                                               "custom_pipelines",
                                                               "datasets",
                                                               "deepspeed",
                                                               "device",
                                                               "device_map",
                                                               "diversity_penalty",
                                                               "do_sample",
                                                               "dropout",
                                                               "early_stopping",
                                                               "eos_token",
                                                               "ep_size",
                                                               "exponential_decay_length_penalty",
                                                               "finetuned_from",
                                                               "finetuning_task",
                                                               "flash_attention",
                                                               "flash_attn",
                                                               "fp16",
                                                               "fp32",
                                                               "fsdp",
                                                               "fuse_cross_entropy",
                                                               "fuse_norm",
                                                               "fuse_swiglu",
                                                               "generation_config",
                                                               "hidden_dropout_prob",
                                                               "id2label",
                                                               "init_method",
                                                               "init_std",
                                                               "initializer_factor",
                                                               "initializer_range",
                                                               "is_decoder",
                                                               "is_llama_config",
                                                               "keys_to_ignore_at_inference",
                                                               "label2id",
                                                               "language",
                                                               "length_penalty",
                                                               "library_name",
                                                               "license",
                                                               "low_cpu_mem_usage",
                                                               "max_length",
                                                               "max_new_tokens",
                                                               "max_seq_len",
                                                               "max_seq_length",
                                                               "max_sequence_length",
                                                               "max_window_layers",
                                                               "memory_efficient_attention",
                                                               "min_length",
                                                               "model_max_length",
                                                               "model_name",
                                                               "model_parallel",
                                                               "n_positions",
                                                               "neftune_noise_alpha",
                                                               "no_repeat_ngram_size",
                                                               "num_beam_groups",
                                                               "num_beams",
                                                               "num_labels",
                                                               "num_logits_to_keep",
                                                               "num_return_sequences",
                                                               "offload_folder",
                                                               "optimizer",
                                                               "output_attentions",
                                                               "output_hidden_states",
                                                               "output_scores",
                                                               "pad_token",
                                                               "parallelization_style",
                                                               "pipeline_tag",
                                                               "pp_size",
                                                               "prefix",
                                                               "problem_type",
                                                               "remove_invalid_values",
                                                               "repetition_penalty",
                                                               "rescale_prenorm_residual",
                                                               "return_dict",
                                                               "return_dict_in_generate",
                                                               "save_dtype",
                                                               "seed",
                                                               "seq_len",
                                                               "seq_length",
                                                               "suppress_tokens",
                                                               "tags",
                                                               "task_specific_params",
                                                               "temperature",
                                                               "tensor_parallel",
                                                               "tf_legacy_loss",
                                                               "tokenizer_class",
                                                               "tokenizer_name",
                                                               "tokenizer_type",
                                                               "top_k",
                                                               "top_p",
                                                               "torch_compile",
                                                               "torchscript",
                                                               "tp_plan",
                                                               "tp_size",
                                                               "trainer",
                                                               "training_args",
                                                               "transformers.js_config",
                                                               "transformers_version",
                                                               "typical_p",
                                                               "unk_token",
                                                               "use_bfloat16",
                                                               "use_cache",
                                                               "use_cuda_graph",
                                                               "use_fused_cross_entropy",
                                                               "use_fused_rms_norm",
                                                               "use_fused_rope",
                                                               "use_fused_swiglu",
                                                               "use_liger_kernel",
                                                               "use_memory_efficient_attention",
                                                               "use_sdpa",
                                                               "use_triton",
                                                               "use_xformers",
                                                               "world_size",
                                                               "xformers",
                                                               "zero_stage"};

// Fields of the same kinds that come under many names. They are attributes that transformers keeps
// for itself, and switches of training and of faster kernels for the same sums.
constexpr std::array<std::string_view, 6> kHarmlessBeginnings = {
    "_",          "gradient_checkpointing",    "summary_", "unsloth_",
    "use_flash_", "use_gradient_checkpointing"};
constexpr std::array<std::string_view, 4> kHarmlessEndings = {"_dropout", "_loss_coef", "_pdrop",
                                                              "_token_id"};

// Fields that would change the result in any family. They are parts of transformers' base class,
// and other models' multipliers and switches with a neutral value other than zero.
constexpr std::array<FixedField, 14> kFixedFields = {{{"add_cross_attention", "false"},
                                                      {"causal", "true"},
                                                      {"chunk_size_feed_forward", "0"},
                                                      {"embedding_multiplier", "1"},
                                                      {"encoder_no_repeat_ngram_size", "0"},
                                                      {"is_causal", "true"},
                                                      {"is_encoder_decoder", "false"},
                                                      {"logit_scale", "1"},
                                                      {"logits_scaling", "1"},
                                                      {"pruned_heads", "{}"},
                                                      {"residual_multiplier", "1"},
                                                      {"scale_attn_weights", "true"},
                                                      {"tie_encoder_decoder", "false"},
                                                      {"use_rope", "true"}}};

// Fields beside "text_config" that are read, or are of the parts for images.
constexpr std::array<std::string_view, 20> kWrapperFields = {
    "architectures",        "audio_config",
    "boi_token_index",      "dtype",
    "eoa_token_index",      "vision_soft_tokens_per_image",
    "eoi_token_index",      "eos_token_id",
    "image_token_index",    "mm_tokens_per_image",
    "model_type",           "multimodal_projector_bias",
    "projector_hidden_act", "spatial_merge_size",
    "text_config",          "tie_word_embeddings",
    "torch_dtype",          "vision_config",
    "vision_feature_layer", "vocab_size"};

constexpr std::array<std::string_view, 17> kRopeFields = {"attention_factor",
                                                          "beta_fast",
                                                          "beta_slow",
                                                          "factor",
                                                          "finetuned",
                                                          "high_freq_factor",
                                                          "long_factor",
                                                          "low_freq_factor",
                                                          "mscale",
                                                          "mscale_all_dim",
                                                          "original_max_position_embeddings",
                                                          "partial_rotary_factor",
                                                          "rope_theta",
                                                          "rope_type",
                                                          "short_factor",
                                                          "truncate",
                                                          "type"};

bool contains(const auto& names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

bool is_harmless(std::string_view name) {
  return contains(kHarmlessFields, name) ||
         std::ranges::any_of(kHarmlessBeginnings,
                             [&](auto beginning) { return name.starts_with(beginning); }) ||
         std::ranges::any_of(kHarmlessEndings, [&](auto ending) { return name.ends_with(ending); });
}

// Returns whether a field of any name switches something off, or nothing on.
bool is_neutral(JsonView value) {
  switch (value.kind()) {
    case base::JsonKind::kNull:
      return true;
    case base::JsonKind::kBool:
      return !value.as_bool();
    case base::JsonKind::kInt:
    case base::JsonKind::kUint:
    case base::JsonKind::kDouble:
      return value.as_double() == 0.0;
    case base::JsonKind::kString:
      return value.as_string().empty();
    case base::JsonKind::kArray:
    case base::JsonKind::kObject:
      break;
  }
  return value.size() == 0;
}

// Compares two values; 1 and 1.0 are the same.
bool is_same(JsonView a, JsonView b) {
  return a.is_number() && b.is_number() ? a.as_double() == b.as_double() : a == b;
}

// Returns whether a list of fixed values has `name`, which is refused if its value is another.
bool check_fixed(const auto& fixed, std::string_view name, JsonView json, Refused& refused) {
  bool found = false;
  for (const FixedField& field : fixed) {
    if (field.name != name) {
      continue;
    }
    found = true;
    if (!is_same(json, base::parse_json(field.value, field.name).value())) {
      refused.push_back(base::str_cat(base::quoted(name), " is ", shown_json(json),
                                      ", which changes the result and is not implemented; only ",
                                      field.value, " is"));
    }
  }
  return found;
}

// Read by module weights, which says what is not implemented.
constexpr std::string_view kQuantisation = "quantization_config";

void check_quantisation(JsonView config, Refused& refused) {
  const auto how = weights::parse_quantisation(config);
  if (!how.ok()) {
    refused.push_back(how.error().message);
  }
}

}  // namespace

void check_fields(JsonView config, const Family& family, Refused& refused) {
  for (const auto [name, value] : config.members()) {
    if (value.is_null() || name == kQuantisation || contains(kCommonFields, name) ||
        contains(family.fields, name) || is_harmless(name)) {
      continue;
    }
    const bool of_family = check_fixed(family.fixed, name, value, refused);
    if (!check_fixed(kFixedFields, name, value, refused) && !of_family && !is_neutral(value)) {
      refused.push_back(base::str_cat("field ", base::quoted(name), " = ", shown_json(value),
                                      " is not known for ", family.name,
                                      " models and may change the result"));
    }
  }
  check_quantisation(config, refused);
}

void check_wrapper_fields(JsonView wrapper, const Family& family, Refused& refused) {
  check_quantisation(wrapper, refused);
  for (const auto [name, value] : wrapper.members()) {
    if (name != kQuantisation && !contains(kWrapperFields, name) && !is_harmless(name) &&
        !is_neutral(value)) {
      refused.push_back(base::str_cat("field ", base::quoted(name), " = ", shown_json(value),
                                      " is not known for ", family.wrapper.model_type,
                                      " models and may change the result"));
    }
  }
}

void check_rope_fields(JsonView block, std::string_view block_name, const Family& family,
                       Refused& refused) {
  for (const auto [name, value] : block.members()) {
    if (!contains(kRopeFields, name) && !contains(family.rope_fields, name) && !is_neutral(value)) {
      refused.push_back(base::str_cat("field ", base::quoted(base::str_cat(block_name, ".", name)),
                                      " = ", shown_json(value),
                                      " is not known and may change the result"));
    }
  }
}

std::string shown_json(JsonView value) { return base::quoted(base::write_json(value), 40); }

}  // namespace quire::model
