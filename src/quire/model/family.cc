#include "quire/model/family.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <vector>

namespace quire::model {

#define QUIRE_DECLARE_FAMILY(name) const Family& name##_family();
QUIRE_MODEL_FAMILIES(QUIRE_DECLARE_FAMILY)
#undef QUIRE_DECLARE_FAMILY

namespace {

#define QUIRE_LIST_FAMILY(name) name##_family,
constexpr std::array kFamilies = {QUIRE_MODEL_FAMILIES(QUIRE_LIST_FAMILY)};
#undef QUIRE_LIST_FAMILY

}  // namespace

TensorNames hf_names() {
  return {.embedding = "model.embed_tokens",
          .final_norm = "model.norm",
          .head = "lm_head",
          .layer = "model.layers.",
          .attention_norm = "input_layernorm",
          .q_norm = "self_attn.q_norm",
          .k_norm = "self_attn.k_norm",
          .output = "self_attn.o_proj",
          .mlp_norm = "post_attention_layernorm",
          .down = "mlp.down_proj",
          .attention_out_norm = {},
          .mlp_out_norm = {},
          .qkv = {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"},
          .gate_up = {"mlp.gate_proj", "mlp.up_proj"},
          .experts = {}};
}

TensorNames gguf_names() {
  return {.embedding = "token_embd",
          .final_norm = "output_norm",
          .head = "output",
          .layer = "blk.",
          .attention_norm = "attn_norm",
          .q_norm = "attn_q_norm",
          .k_norm = "attn_k_norm",
          .output = "attn_output",
          .mlp_norm = "ffn_norm",
          .down = "ffn_down",
          .attention_out_norm = "post_attention_norm",
          .mlp_out_norm = "post_ffw_norm",
          .qkv = {"attn_q", "attn_k", "attn_v"},
          .gate_up = {"ffn_gate", "ffn_up"},
          .experts = {}};
}

ExpertNames gguf_expert_names() {
  return {.routers = {"ffn_gate_inp"},
          .each = {},
          .gate_up = {},
          .down = {},
          .stacked_gate_up = {{"ffn_gate_exps.weight", "ffn_up_exps.weight"},
                              {"ffn_gate_up_exps.weight"}},
          .stacked_down = {"ffn_down_exps.weight"},
          .gate_up_bias = {"ffn_gate_exps.bias", "ffn_up_exps.bias"},
          .down_bias = "ffn_down_exps.bias",
          .choice_bias = "exp_probs_b.bias",
          .shared_gate_up = {"ffn_gate_shexp", "ffn_up_shexp"},
          .shared_down = "ffn_down_shexp",
          .shared_gate = "ffn_gate_inp_shexp"};
}

const Family* find_family(std::string_view name) {
  for (const auto& family : kFamilies) {
    if (family().name == name) {
      return &family();
    }
  }
  return nullptr;
}

const Family* find_family_of_type(std::string_view model_type) {
  for (const auto& family : kFamilies) {
    const std::string_view own = family().model_type;
    if ((own.empty() ? family().name : own) == model_type) {
      return &family();
    }
  }
  return nullptr;
}

const Family* find_gguf_family(std::string_view architecture) {
  for (const auto& family : kFamilies) {
    const Family& one = family();
    if (one.gguf_architecture == architecture ||
        (!architecture.empty() && one.other_gguf_architecture == architecture)) {
      return &one;
    }
  }
  return nullptr;
}

std::vector<std::string_view> family_names() {
  std::vector<std::string_view> names;
  names.reserve(kFamilies.size());
  for (const auto& family : kFamilies) {
    names.push_back(family().name);
  }
  return names;
}

std::vector<std::string_view> gguf_family_names() {
  std::vector<std::string_view> names;
  names.reserve(kFamilies.size());
  for (const auto& family : kFamilies) {
    for (const std::string_view name :
         {family().gguf_architecture, family().other_gguf_architecture}) {
      if (!name.empty() && std::ranges::find(names, name) == names.end()) {
        names.push_back(name);
      }
    }
  }
  return names;
}

}  // namespace quire::model
