#include "quire/model/hf_fields.h"

#include <algorithm>
#include <array>
#include <string>
#include <string_view>

#include "quire/base/json.h"
#include "quire/base/str.h"
#include "quire/model/family.h"

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

// What transformers and the tools around it write into configs without any effect on the logits:
// bookkeeping, training, other ids, defaults of sampling, shapes of outputs.
constexpr std::array<std::string_view, 61> kHarmlessFields = {"_attn_implementation",
                                                              "_attn_implementation_autoset",
                                                              "_commit_hash",
                                                              "_name_or_path",
                                                              "attention_dropout",
                                                              "attn_implementation",
                                                              "auto_map",
                                                              "bad_words_ids",
                                                              "begin_suppress_tokens",
                                                              "decoder_start_token_id",
                                                              "diversity_penalty",
                                                              "do_sample",
                                                              "early_stopping",
                                                              "embd_pdrop",
                                                              "exponential_decay_length_penalty",
                                                              "finetuning_task",
                                                              "forced_bos_token_id",
                                                              "forced_eos_token_id",
                                                              "hidden_dropout",
                                                              "id2label",
                                                              "initializer_range",
                                                              "is_decoder",
                                                              "is_llama_config",
                                                              "keys_to_ignore_at_inference",
                                                              "label2id",
                                                              "length_penalty",
                                                              "license",
                                                              "max_length",
                                                              "max_sequence_length",
                                                              "min_length",
                                                              "no_repeat_ngram_size",
                                                              "num_beam_groups",
                                                              "num_beams",
                                                              "num_return_sequences",
                                                              "output_attentions",
                                                              "output_hidden_states",
                                                              "output_scores",
                                                              "pad_token_id",
                                                              "prefix",
                                                              "problem_type",
                                                              "remove_invalid_values",
                                                              "repetition_penalty",
                                                              "resid_pdrop",
                                                              "return_dict",
                                                              "return_dict_in_generate",
                                                              "sep_token_id",
                                                              "suppress_tokens",
                                                              "task_specific_params",
                                                              "temperature",
                                                              "tf_legacy_loss",
                                                              "tokenizer_class",
                                                              "top_k",
                                                              "top_p",
                                                              "torchscript",
                                                              "transformers.js_config",
                                                              "transformers_version",
                                                              "typical_p",
                                                              "unsloth_fixed",
                                                              "unsloth_version",
                                                              "use_bfloat16",
                                                              "use_cache"};

// Parts of transformers' base class that would change the result in any family.
constexpr std::array<FixedField, 6> kFixedFields = {{{"add_cross_attention", "false"},
                                                     {"chunk_size_feed_forward", "0"},
                                                     {"encoder_no_repeat_ngram_size", "0"},
                                                     {"is_encoder_decoder", "false"},
                                                     {"pruned_heads", "{}"},
                                                     {"tie_encoder_decoder", "false"}}};

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

// Whether a list of fixed values has `name`, which is refused if its value is another.
bool check_fixed(const auto& fixed, std::string_view name, JsonView json, Refused& refused) {
  bool found = false;
  for (const FixedField& field : fixed) {
    if (field.name != name) {
      continue;
    }
    found = true;
    if (json != base::parse_json(field.value, field.name).value()) {
      refused.push_back(base::str_cat(base::quoted(name), " is ", shown_json(json),
                                      ", which changes the result and is not implemented; only ",
                                      field.value, " is"));
    }
  }
  return found;
}

}  // namespace

void check_fields(JsonView config, const Family& family, Refused& refused) {
  for (const auto [name, value] : config.members()) {
    if (value.is_null() || contains(kCommonFields, name) || contains(kHarmlessFields, name) ||
        contains(family.fields, name)) {
      continue;
    }
    const bool of_family = check_fixed(family.fixed, name, value, refused);
    if (!check_fixed(kFixedFields, name, value, refused) && !of_family) {
      refused.push_back(base::str_cat("field ", base::quoted(name), " = ", shown_json(value),
                                      " is not known for ", family.name,
                                      " models and may change the result"));
    }
  }
}

void check_rope_fields(JsonView block, std::string_view block_name, Refused& refused) {
  for (const auto [name, value] : block.members()) {
    if (!value.is_null() && !contains(kRopeFields, name)) {
      refused.push_back(base::str_cat("field ", base::quoted(base::str_cat(block_name, ".", name)),
                                      " = ", shown_json(value),
                                      " is not known and may change the result"));
    }
  }
}

std::string shown_json(JsonView value) { return base::quoted(base::write_json(value), 40); }

}  // namespace quire::model
