"""Makes the tiny random checkpoints of every family variant and what transformers computes with them.

    python make_goldens.py [NAME ...] # torch 2.15.0, transformers 5.23.0; about three minutes on two cores

Per variant a folder: config.json and generation_config.json as transformers writes them, the weights as
safetensors (some also as model.gguf, with llama.cpp's names and order of rows), and golden.json:
    inv_freq, rope_scale       rotary frequencies and the factor on cos and sin, float32
    local_inv_freq             those of layers with a window, where they are others
    prompts[]: ids             1 to 150 tokens
               rows, logits    a few rows of the float32 logits, the last one always among them
               greedy          the next ids, always the largest logit
    std                        of all golden logits
    bf16_rms, bf16_max         the reference's own distance when it runs in bfloat16 (golden rows)
"""

import json
import pathlib
import shutil
import sys

import gguf
import torch
import transformers
from safetensors.torch import save_file

HERE = pathlib.Path(__file__).parent
LENGTHS = [1, 17, 70, 150]
E2M1 = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0]
GREEDY = 32
VOCAB = 200
SMALL = dict(
    vocab_size=VOCAB, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=2, max_position_embeddings=512, bos_token_id=1, eos_token_id=2, pad_token_id=0,
)
LLAMA3_ROPE = dict(
    rope_type="llama3", rope_theta=500000.0, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
    original_max_position_embeddings=64,
)
YARN = dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=128)
GEMMA = dict(head_dim=16, sliding_window=24, query_pre_attn_scalar=16)  # GGUF files do not say the scalar
GEMMA3_ROPE = dict(
    full_attention=dict(rope_type="linear", factor=8.0, rope_theta=1e6),
    sliding_attention=dict(rope_type="default", rope_theta=1e4),
)
SLIDING, FULL, LINEAR = "sliding_attention", "full_attention", "linear_attention"
EXPERTS = dict(hidden_size=32, head_dim=16, intermediate_size=64, moe_intermediate_size=32, num_experts=8,
               num_experts_per_tok=2, norm_topk_prob=True, num_hidden_layers=3)
LFM2 = dict(num_hidden_layers=3, intermediate_size=120, block_multiple_of=32)
QWEN3_5 = dict(
    head_dim=32, linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=16, linear_value_head_dim=16,
    rope_parameters=dict(rope_type="default", rope_theta=1e5, partial_rotary_factor=0.25, mrope_interleaved=True,
                         mrope_section=[2, 1, 1]),
)
QWEN3_5_MOE = dict(QWEN3_5, hidden_size=32, moe_intermediate_size=32, shared_expert_intermediate_size=64, num_experts=4,
                   num_experts_per_tok=3)
QWEN3_NEXT = dict(QWEN3_5_MOE,
                  rope_parameters=dict(rope_type="default", rope_theta=1e5, partial_rotary_factor=0.25))
GPT_OSS = dict(hidden_size=32, intermediate_size=32, head_dim=16, num_local_experts=3, num_experts_per_tok=2,
               sliding_window=24, rope_parameters=dict(YARN, truncate=False, rope_theta=150000.0))
GRANITE_HYBRID = dict(
    num_hidden_layers=3, hidden_size=32, intermediate_size=24, shared_intermediate_size=48, num_local_experts=4,
    mamba_n_heads=4, mamba_d_state=16, mamba_expand=2, embedding_multiplier=6.0, attention_multiplier=0.3,
    residual_multiplier=0.6, logits_scaling=2.0,
)
NEMOTRON_H = dict(
    hidden_size=32, intermediate_size=48, head_dim=16, mamba_num_heads=4, mamba_head_dim=16, ssm_state_size=16, n_groups=2,
    n_routed_experts=4, num_experts_per_tok=2, moe_intermediate_size=32, moe_shared_expert_intermediate_size=40,
)
GEMMA4 = dict(head_dim=16, global_head_dim=64, sliding_window=24, hidden_size_per_layer_input=0)
DEEPSEEK = dict(
    hidden_size=32, num_hidden_layers=2, num_key_value_heads=4, kv_lora_rank=32, qk_nope_head_dim=16, qk_rope_head_dim=8,
    v_head_dim=24, moe_intermediate_size=32, n_routed_experts=8, num_experts_per_tok=3, first_k_dense_replace=1,
)
DEEPSEEK_YARN = dict(YARN, mscale=0.7, mscale_all_dim=0.7, rope_theta=1e4)
# name: (family, changes to SMALL, storage)
VARIANTS = {
    "deepseek_v2": (
        "DeepseekV2", dict(DEEPSEEK, q_lora_rank=None, n_shared_experts=2, rope_parameters=DEEPSEEK_YARN), "bf16",
    ),
    "deepseek_v2_groups": (
        "DeepseekV2",
        dict(DEEPSEEK, q_lora_rank=40, topk_method="group_limited_greedy", n_group=4, topk_group=2, routed_scaling_factor=2.5,
             first_k_dense_replace=0, n_shared_experts=1, rope_parameters=dict(YARN, mscale=1.0, mscale_all_dim=0.5, rope_theta=1e4)),
        "bf16",
    ),
    "deepseek_v3": (
        "DeepseekV3", dict(DEEPSEEK, q_lora_rank=40, n_group=4, topk_group=2, rope_parameters=DEEPSEEK_YARN), "bf16",
    ),
    "deepseek_v3_plain": (
        "DeepseekV3",
        dict(DEEPSEEK, q_lora_rank=None, n_group=1, topk_group=1, norm_topk_prob=False, rope_interleave=False,
             routed_scaling_factor=1.0, first_k_dense_replace=0, n_routed_experts=4, n_shared_experts=2,
             tie_word_embeddings=True),
        "bf16",
    ),
    "glm4_moe_lite": (
        "Glm4MoeLite",
        {**{k: v for k, v in DEEPSEEK.items() if k != "first_k_dense_replace"},
         **dict(q_lora_rank=24, qk_nope_head_dim=24, v_head_dim=32, n_routed_experts=6, num_experts_per_tok=5,
                routed_scaling_factor=1.75)},  # GGUF keeps it in fp32
        "bf16",
    ),
    "llama_mha": ("Llama", dict(num_key_value_heads=4), "bf16"),
    "llama_gqa": ("Llama", {}, "f32"),
    "llama_mqa": ("Llama", dict(num_key_value_heads=1), "bf16"),
    "llama_tied": ("Llama", dict(tie_word_embeddings=True), "bf16"),
    "llama_bias": ("Llama", dict(attention_bias=True, mlp_bias=True), "bf16"),
    "llama_rope_linear": ("Llama", dict(rope_parameters=dict(rope_type="linear", factor=4.0)), "bf16"),
    "llama_rope_llama3": ("Llama", dict(rope_parameters=LLAMA3_ROPE), "bf16"),
    "llama_rope_yarn": (
        "Llama",
        dict(rope_parameters=dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=128)),
        "bf16",
    ),
    "llama_head_dim": ("Llama", dict(head_dim=24), "bf16"),
    "llama_head_40": ("Llama", dict(hidden_size=80, num_attention_heads=2, num_key_value_heads=1), "bf16"),
    "llama_head_80": (
        "Llama", dict(hidden_size=80, head_dim=80, num_attention_heads=2, num_key_value_heads=1), "bf16",
    ),
    "llama_sharded": ("Llama", dict(hidden_size=72, num_attention_heads=6, num_key_value_heads=3), "sharded"),
    "llama_f16": ("Llama", {}, "f16"),
    "mistral_window": ("Mistral", dict(sliding_window=16), "bf16"),
    "qwen2": ("Qwen2", {}, "bf16"),
    "qwen2_tied": ("Qwen2", dict(tie_word_embeddings=True), "bf16"),
    "qwen2_window": (
        "Qwen2", dict(use_sliding_window=True, sliding_window=24, max_window_layers=1, num_hidden_layers=3), "bf16",
    ),
    "qwen3": ("Qwen3", dict(head_dim=32, tie_word_embeddings=True), "bf16"),
    "phi3": ("Phi3", dict(sliding_window=40, original_max_position_embeddings=512), "bf16"),
    "phi3_partial": ("Phi3", dict(partial_rotary_factor=0.75, head_dim=32), "bf16"),
    "phi3_longrope": (
        "Phi3",
        dict(
            original_max_position_embeddings=256, max_position_embeddings=512,
            rope_parameters=dict(
                rope_type="longrope", short_factor=[1.0 + 0.1 * i for i in range(8)],
                long_factor=[2.0 + i for i in range(8)],
            ),
        ),
        "bf16",
    ),
    "gemma2": ("Gemma2", dict(GEMMA, attn_logit_softcapping=2.0, final_logit_softcapping=3.0), "bf16"),
    "gemma2_plain": (
        "Gemma2",
        dict(GEMMA, query_pre_attn_scalar=24, attn_logit_softcapping=None, final_logit_softcapping=None,
             layer_types=[FULL, SLIDING], attention_bias=True, tie_word_embeddings=False, hidden_activation="silu"),
        "bf16",
    ),
    "gemma3": (
        "Gemma3", dict(GEMMA, num_hidden_layers=3, sliding_window_pattern=3, rope_parameters=GEMMA3_ROPE), "bf16",
    ),
    "gemma3_wide": (  # windows that hide nothing: two ropes with full attention
        "Gemma3",
        dict(head_dim=16, sliding_window=512, layer_types=[FULL, SLIDING], final_logit_softcapping=3.0),
        "bf16",
    ),
    "gemma3_image": ("Gemma3Image", dict(GEMMA, query_pre_attn_scalar=24, layer_types=[SLIDING, FULL]), "bf16"),
    "gemma4": (  # two layers read the KV of the two before
        "Gemma4",
        dict(GEMMA4, num_hidden_layers=4, layer_types=[SLIDING, FULL, SLIDING, FULL], num_kv_shared_layers=2,
             use_double_wide_mlp=True, hidden_size_per_layer_input=16, vocab_size_per_layer_input=VOCAB, final_logit_softcapping=3.0,
             num_key_value_heads=1),
        "bf16",
    ),
    "gemma4_image": (
        "Gemma4Image",
        dict(GEMMA4, global_head_dim=48, layer_types=[SLIDING, FULL], attention_k_eq_v=True, num_global_key_value_heads=1,
             attention_bias=True),
        "bf16",
    ),
    "gemma4_moe": (
        "Gemma4",
        dict(GEMMA4, layer_types=[SLIDING, FULL], attention_k_eq_v=True, num_global_key_value_heads=1, enable_moe_block=True,
             num_experts=4, top_k_experts=3, moe_intermediate_size=32, tie_word_embeddings=False),
        "bf16",
    ),
    "granitemoehybrid": ("GraniteMoeHybrid", dict(GRANITE_HYBRID, layer_types=[LINEAR, FULL, LINEAR]), "bf16"),
    "granitemoehybrid_dense": (
        "GraniteMoeHybrid",
        dict(GRANITE_HYBRID, layer_types=[FULL, LINEAR], num_hidden_layers=2, num_local_experts=0, mamba_n_groups=2,
             mamba_d_head=24, mamba_n_heads=4, mamba_expand=3, mamba_conv_bias=False, mamba_proj_bias=True,
             time_step_limit=(0.05, 1.5), attention_bias=True, position_embedding_type="rope", tie_word_embeddings=True),
        "bf16",
    ),
    "granitemoehybrid_mlp": (
        "GraniteMoeHybrid",
        dict(GRANITE_HYBRID, layer_types=[LINEAR, FULL], num_hidden_layers=2, num_local_experts=0,
             position_embedding_type="rope"),
        "bf16",
    ),
    "gpt_oss": ("GptOss", dict(GPT_OSS), "bf16"),
    "gpt_oss_mxfp4": ("GptOss", dict(GPT_OSS, num_hidden_layers=1, layer_types=[SLIDING], num_local_experts=4), "bf16"),
    "granite": (
        "Granite",
        dict(embedding_multiplier=12.0, attention_multiplier=0.1, residual_multiplier=0.5, logits_scaling=4.0),
        "bf16",
    ),
    "granite_bias": (
        "Granite", dict(attention_multiplier=0.4, attention_bias=True, mlp_bias=True, tie_word_embeddings=True), "bf16",
    ),
    "ministral3": (
        "Ministral3",
        dict(head_dim=24, rope_parameters=dict(YARN, original_max_position_embeddings=64, mscale=1.0,
                                               mscale_all_dim=1.0, rope_theta=1e6, llama_4_scaling_beta=0.3)),
        "bf16",
    ),
    "lfm2": ("Lfm2", dict(LFM2, layer_types=["conv", FULL, "conv"]), "bf16"),
    "lfm2_bias": (
        "Lfm2",
        dict(conv_bias=True, conv_L_cache=5, block_auto_adjust_ff_dim=False, norm_eps=1e-3, tie_word_embeddings=False,
             num_hidden_layers=3, full_attn_idxs=[0, 2]),
        "bf16",
    ),
    "lfm2_moe": (
        "Lfm2Moe",
        dict(layer_types=["conv", FULL, "conv"], num_hidden_layers=3, num_dense_layers=1, num_experts=6, num_experts_per_tok=2, hidden_size=32,
             moe_intermediate_size=32),
        "bf16",
    ),
    "lfm2_moe_plain": (
        "Lfm2Moe",
        dict(layer_types=[FULL, "conv"], num_hidden_layers=2, num_dense_layers=0, num_experts=5, num_experts_per_tok=3,
             hidden_size=32, moe_intermediate_size=24, use_expert_bias=False, norm_topk_prob=False,
             routed_scaling_factor=1.5, tie_word_embeddings=False),
        "bf16",
    ),
    "nemotron_h": ("NemotronH", dict(NEMOTRON_H, layers_block_type=[LINEAR, "mlp", FULL, "moe"]), "bf16"),
    "nemotron_h_scaled": (
        "NemotronH",
        dict(NEMOTRON_H, layers_block_type=["moe", FULL, LINEAR], norm_topk_prob=False, routed_scaling_factor=0.4,
             use_conv_bias=False, use_bias=True, time_step_min=0.3, conv_kernel=3, layer_norm_epsilon=1e-3),
        "bf16",
    ),
    "olmo2": ("Olmo2", {}, "bf16"),
    "olmo3": (
        "Olmo3",
        dict(num_hidden_layers=4, hidden_size=32, intermediate_size=64, sliding_window=24,
             rope_parameters={FULL: dict(YARN, rope_theta=5e5), SLIDING: dict(rope_type="default", rope_theta=5e5)}),
        "bf16",
    ),
    "qwen3_5": (
        "Qwen3_5", dict(QWEN3_5, num_hidden_layers=4, hidden_size=48, intermediate_size=64), "bf16",
    ),
    "qwen3_5_image": (
        "Qwen3_5Image",
        dict(QWEN3_5, linear_num_value_heads=6, linear_value_head_dim=24, linear_conv_kernel_dim=3, attention_bias=True,
             layer_types=[FULL, LINEAR, LINEAR], num_hidden_layers=3, tie_word_embeddings=True),
        "bf16",
    ),
    "qwen3_5_moe": ("Qwen3_5Moe", dict(QWEN3_5_MOE, layer_types=[LINEAR, FULL]), "bf16"),
    "qwen3_5_moe_image": (
        "Qwen3_5MoeImage",
        dict(QWEN3_5_MOE, layer_types=[FULL, LINEAR], shared_expert_intermediate_size=24, num_experts_per_tok=2),
        "bf16",
    ),
    "qwen3_next": ("Qwen3Next", dict(QWEN3_NEXT, layer_types=[LINEAR, FULL], linear_num_value_heads=6), "bf16"),
    "qwen3_next_dense": (
        "Qwen3Next",
        dict(QWEN3_NEXT, layer_types=[FULL, LINEAR], mlp_only_layers=[0], norm_topk_prob=False,
             attention_bias=True, linear_value_head_dim=24),
        "bf16",
    ),
    "smollm3": ("SmolLM3", dict(num_hidden_layers=4, hidden_size=32, intermediate_size=64), "bf16"),
    "qwen3_moe": ("Qwen3Moe", EXPERTS, "bf16"),
    "qwen3_moe_raw": ("Qwen3Moe", dict(EXPERTS, norm_topk_prob=False), "bf16"),
    "qwen3_moe_step": ("Qwen3Moe", dict(EXPERTS, decoder_sparse_step=2), "bf16"),
    "qwen3_moe_dense": ("Qwen3Moe", dict(EXPERTS, mlp_only_layers=[0, 2]), "bf16"),
    "qwen3_moe_sizes": (
        "Qwen3Moe",
        dict(EXPERTS, num_experts=5, num_experts_per_tok=3, moe_intermediate_size=24, attention_bias=True,
             use_sliding_window=True, sliding_window=24, tie_word_embeddings=True),
        "bf16",
    ),
    "mixtral": ("Mixtral", dict(num_local_experts=4, num_experts_per_tok=2, hidden_size=32), "bf16"),
    "mixtral_window": (
        "Mixtral",
        dict(num_local_experts=3, num_experts_per_tok=2, hidden_size=32, intermediate_size=32, sliding_window=16),
        "f32",
    ),
    "smollm3_window": (
        "SmolLM3",
        dict(no_rope_layers=[0, 1], use_sliding_window=True, sliding_window=24, attention_bias=True, mlp_bias=True,
             tie_word_embeddings=False),
        "bf16",
    ),
}
GGUF = {"gemma4": "gemma4", "gemma4_moe": "gemma4", "deepseek_v2": "deepseek2", "deepseek_v3": "deepseek2", "glm4_moe_lite": "deepseek2", "llama_rope_llama3": "llama", "llama_bias": "llama", "qwen2": "qwen2", "qwen3": "qwen3", "phi3_partial": "phi3",
        "gemma2": "gemma2", "gemma3": "gemma3", "granite": "granite", "lfm2": "lfm2", "qwen3_5": "qwen35",
        "ministral3": "mistral3", "olmo2": "olmo2", "olmo3": "olmo2", "smollm3": "smollm3", "qwen3_moe": "qwen3moe",
        "mixtral": "llama", "lfm2_moe": "lfm2moe", "qwen3_5_moe": "qwen35moe", "qwen3_next": "qwen3next",
        "granitemoehybrid": "granitehybrid", "granitemoehybrid_mlp": "granitehybrid", "nemotron_h": "nemotron_h_moe", "gpt_oss": "gpt-oss", "gpt_oss_mxfp4": "gpt-oss"}
INTERLEAVED = {"llama", "granite", "granitehybrid", "mistral3", "smollm3"}
# Experts as published models have them, one tensor each; others keep the stacked tensors of transformers 5.
EXPERT_NAMES = {
    "deepseek_v2": ("mlp", "gate_proj", "up_proj", "down_proj"),
    "glm4_moe_lite": ("mlp", "gate_proj", "up_proj", "down_proj"),
    "qwen3_moe": ("mlp", "gate_proj", "up_proj", "down_proj"),
    "qwen3_moe_step": ("mlp", "gate_proj", "up_proj", "down_proj"),
    "mixtral": ("block_sparse_moe", "w1", "w3", "w2"),
    "lfm2_moe": ("feed_forward", "w1", "w3", "w2"),
    "qwen3_next": ("mlp", "gate_proj", "up_proj", "down_proj"),
}
CONFIGS = {"Gemma3": "Gemma3TextConfig", "Gemma4": "Gemma4TextConfig", "Qwen3_5": "Qwen3_5TextConfig", "Qwen3_5Moe": "Qwen3_5MoeTextConfig"}
GGUF_NAMES = {
    "model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output",
    "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.qkv_proj": "attn_qkv", "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm",
    "mlp.gate": "ffn_gate_inp",
    "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.gate_up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
}
STATE_NAMES = {
    "lfm2": {
        "model.embedding_norm": "token_embd_norm", "ffn_norm": "ffn_norm", "operator_norm": "attn_norm", "self_attn.q_layernorm": "attn_q_norm",
        "self_attn.k_layernorm": "attn_k_norm", "self_attn.out_proj": "attn_output", "feed_forward.w1": "ffn_gate",
        "feed_forward.w3": "ffn_up", "feed_forward.w2": "ffn_down", "conv.conv": "shortconv.conv",
        "conv.in_proj": "shortconv.in_proj", "conv.out_proj": "shortconv.out_proj",
    },
    "qwen35": {
        "post_attention_layernorm": "post_attention_norm", "linear_attn.in_proj_qkv": "attn_qkv",
        "linear_attn.in_proj_z": "attn_gate", "linear_attn.in_proj_b": "ssm_beta", "linear_attn.in_proj_a": "ssm_alpha",
        "linear_attn.conv1d": "ssm_conv1d", "linear_attn.A_log": "ssm_a", "linear_attn.dt_bias": "ssm_dt.bias",
        "linear_attn.norm": "ssm_norm", "linear_attn.out_proj": "ssm_out",
    },
}
SHARED_NAMES = {"mlp.shared_expert.gate_proj": "ffn_gate_shexp", "mlp.shared_expert.up_proj": "ffn_up_shexp",
                "mlp.shared_expert.down_proj": "ffn_down_shexp", "mlp.shared_expert_gate": "ffn_gate_inp_shexp"}
STATE_NAMES["lfm2moe"] = {**STATE_NAMES["lfm2"], "feed_forward.gate": "ffn_gate_inp",
                          "feed_forward.expert_bias": "exp_probs_b.bias"}
STATE_NAMES["qwen35moe"] = {**STATE_NAMES["qwen35"], **SHARED_NAMES}
STATE_NAMES["qwen3next"] = {**STATE_NAMES["qwen35moe"], "linear_attn.in_proj_ba": "ssm_ba"}
STATE_NAMES["granitehybrid"] = {
    "mamba.in_proj": "ssm_in", "mamba.conv1d": "ssm_conv1d", "mamba.A_log": "ssm_a", "mamba.dt_bias": "ssm_dt.bias",
    "mamba.D": "ssm_d", "mamba.norm": "ssm_norm", "mamba.out_proj": "ssm_out",
    "shared_mlp.output_linear": "ffn_down", "block_sparse_moe.router": "ffn_gate_inp",
}
STATE_NAMES["nemotron_h_moe"] = {
    "model.embeddings": "token_embd", "model.norm_f": "output_norm", "norm": "attn_norm",
    **{name.replace("mamba", "mixer"): ours for name, ours in STATE_NAMES["granitehybrid"].items() if "mamba" in name},
    "mixer.q_proj": "attn_q", "mixer.k_proj": "attn_k", "mixer.v_proj": "attn_v", "mixer.o_proj": "attn_output",
    "mixer.up_proj": "ffn_up", "mixer.down_proj": "ffn_down", "mixer.gate": "ffn_gate_inp",
    "mixer.gate.e_score_correction_bias": "exp_probs_b.bias", "mixer.experts.up_proj": "ffn_up_exps.weight",
    "mixer.experts.down_proj": "ffn_down_exps.weight", "mixer.shared_experts.up_proj": "ffn_up_shexp",
    "mixer.shared_experts.down_proj": "ffn_down_shexp",
}
LATENT_NAMES = {
    "self_attn.q_a_proj": "attn_q_a", "self_attn.q_a_layernorm": "attn_q_a_norm", "self_attn.q_b_proj": "attn_q_b",
    "self_attn.kv_a_proj_with_mqa": "attn_kv_a_mqa", "self_attn.kv_a_layernorm": "attn_kv_a_norm",
    "self_attn.kv_b_proj": "attn_kv_b", "mlp.gate.e_score_correction_bias": "exp_probs_b.bias",
    **{f"mlp.shared_experts.{part}_proj": f"ffn_{part}_shexp" for part in ("gate", "up", "down")},
}
STATE_NAMES["deepseek2"] = LATENT_NAMES
STATE_NAMES["gemma4"] = {
    "post_attention_layernorm": "post_attention_norm", "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm", "model.embed_tokens_per_layer": "per_layer_token_embd",
    "model.per_layer_model_projection": "per_layer_model_proj", "model.per_layer_projection_norm": "per_layer_proj_norm",
    "per_layer_input_gate": "inp_gate", "per_layer_projection": "proj", "post_per_layer_input_norm": "post_norm",
    "layer_scalar": "layer_output_scale.weight", "router.proj": "ffn_gate_inp", "router.scale": "ffn_gate_inp.scale",
    "router.per_expert_scale": "ffn_down_exps.scale", "pre_feedforward_layernorm_2": "pre_ffw_norm_2",
    "post_feedforward_layernorm_1": "post_ffw_norm_1", "post_feedforward_layernorm_2": "post_ffw_norm_2",
}
ZERO_CENTRED = ("qwen3_5", "qwen3_next")
OSS_NAMES = {"post_attention_layernorm": "post_attention_norm", "mlp.router": "ffn_gate_inp"}
NORMED_OUTPUT_NAMES = {"post_attention_layernorm": "post_attention_norm", "pre_feedforward_layernorm": "ffn_norm",
                       "post_feedforward_layernorm": "post_ffw_norm"}


def draw_oss_experts(name, weight):
    """Draws numbers that MXFP4 expresses, of which some gates are clamped. Groups of 32 lie along the inputs."""
    if name.endswith("bias"):
        return torch.randn_like(weight)
    experts, inputs, outputs = weight.shape
    codes = torch.tensor(E2M1)[torch.randint(0, 16, (experts, outputs, inputs // 32, 32))]
    codes[..., 0] = 6.0  # the largest, so that a quantiser finds the same scale
    scales = 2.0 ** torch.randint(-5, -2, (experts, outputs, inputs // 32, 1)).float()
    return (codes * scales).reshape(experts, outputs, inputs).transpose(1, 2)


def mxfp4_parts(weight):
    """Blocks and scales of [experts, inputs, outputs] as published files have them, outputs first."""
    groups = weight.transpose(1, 2).reshape(weight.shape[0], weight.shape[2], -1, 32)
    exponents = torch.floor(torch.log2(groups.abs().amax(-1, keepdim=True))) - 2
    codes = (groups / 2.0**exponents)[..., None].sub(torch.tensor(E2M1)).abs().argmin(-1).to(torch.uint8)
    return codes[..., 0::2] | codes[..., 1::2] << 4, (exponents[..., 0] + 127).to(torch.uint8)


def draw(model, config, storage):
    """Draws weights that spread: logits of deviation about one or more, attention far from uniform."""
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    lacks_one = config.model_type.startswith(("gemma2", "gemma3", *ZERO_CENTRED))
    buffers = ("expert_bias", "correction_bias", "layer_scalar")
    biases = [(name, buffer) for name, buffer in model.named_buffers() if name.endswith(buffers)]
    for name, weight in [*model.named_parameters(), *biases]:
        norm = 0.0 if lacks_one and "linear_attn" not in name else 1.0
        if name.endswith("A_log"):
            value = torch.empty_like(weight).uniform_(-3.0, 0.5)  # some heads forget soon, others late
        elif ".experts." in name and config.model_type == "gpt_oss":
            value = draw_oss_experts(name, weight)
        elif name.endswith("sinks"):
            value = 2.0 * torch.randn_like(weight)
        elif name.endswith("bias"):
            value = 0.4 * torch.randn_like(weight)
        elif weight.dim() == 1:
            value = norm + 0.2 * torch.randn_like(weight)
        elif "embed" in name:
            value = (0.3 if config.tie_word_embeddings else 1.0) * torch.randn_like(weight)
        else:
            gain = 1.5 / weight.shape[-1] ** 0.5
            value = gain * torch.randn_like(weight)
            if name.endswith("qkv_proj.weight"):  # the query and key rows as in the separate tensors
                value[: (config.num_attention_heads + config.num_key_value_heads) * head_dim] *= 1.2
            elif name.endswith(("q_proj.weight", "k_proj.weight")):
                value *= 1.2
        if storage in ("bf16", "sharded"):
            value = value.bfloat16().float()
        elif storage == "f16":
            value = value.half().float()
        with torch.no_grad():
            weight.copy_(value)


@torch.no_grad()
def greedy(model, ids):
    """Returns GREEDY ids after `ids` and the smallest distance between the best two logits on the way."""
    out, gap, cache, step = [], float("inf"), None, torch.tensor([ids])
    whole = model.config.model_type in ("granitemoehybrid", "nemotron_h")  # steps are bounded in the long form only
    for _ in range(GREEDY):
        result = model(torch.tensor([ids + out]) if whole else step, past_key_values=cache, use_cache=not whole)
        cache = result.past_key_values
        best = result.logits[0, -1].topk(2)
        gap = min(gap, float(best.values[0] - best.values[1]))
        out.append(int(best.indices[0]))
        step = torch.tensor([[out[-1]]])
    return out, gap


@torch.no_grad()
def make_prompt(model, length, generator, std):
    """Makes a random prompt whose greedy path has no near tie, so that every right engine takes it."""
    while True:
        ids = torch.randint(3, VOCAB, (length,), generator=generator).tolist()
        path, gap = greedy(model, ids)
        if gap > 5e-3 * std:
            return ids, path


def short(numbers):
    return [float(f"{x:.9g}") for x in numbers.tolist()]


def text_model(model):
    return getattr(model.model, "language_model", model.model)


def rotary(model):
    inner = text_model(model)
    return inner.pos_emb if hasattr(inner, "pos_emb") else getattr(inner, "rotary_emb", None)


class DefaultRope(torch.nn.Module):
    """The default frequencies, of a model that turns nothing."""

    def __init__(self, config):
        super().__init__()
        size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        self.inv_freq = 1.0 / 10000.0 ** (torch.arange(0, size, 2) / size)
        self.attention_scaling = 1.0


@torch.no_grad()
def make_golden(model, config):
    generator = torch.Generator().manual_seed(7)
    probe = torch.randint(3, VOCAB, (1, 64), generator=generator)
    std = float(model(probe).logits.std())
    half = type(model)(config).eval()  # its own rotary buffers stay float32, as in from_pretrained
    half.load_state_dict(model.state_dict())
    half = half.to(torch.bfloat16)
    rope = rotary(model) or DefaultRope(config)
    for name, buffer in rope.named_buffers():
        setattr(rotary(half), name, buffer.clone())
    prompts, exact, rounded = [], [], []
    for length in LENGTHS:
        ids, path = make_prompt(model, length, generator, std)
        rows = sorted({length - 1, length // 2})
        logits = model(torch.tensor([ids])).logits[0, rows]
        exact.append(logits)
        rounded.append(half(torch.tensor([ids])).logits[0, rows].float())
        prompts.append(dict(ids=ids, rows=rows, logits=[[float(f"{x:.8g}") for x in r] for r in logits.tolist()],
                            greedy=path))
    exact, rounded = torch.cat(exact), torch.cat(rounded)
    by_kind = hasattr(rope, "full_attention_inv_freq")
    main = rope.full_attention_inv_freq if by_kind else rope.inv_freq
    scale = rope.full_attention_attention_scaling if by_kind else rope.attention_scaling
    local = dict(local_inv_freq=short(rope.sliding_attention_inv_freq)) if by_kind else {}
    return dict(
        torch=torch.__version__, transformers=transformers.__version__,
        inv_freq=short(main), rope_scale=float(scale), **local,
        std=float(exact.std()), bf16_rms=float((exact - rounded).pow(2).mean().sqrt()),
        bf16_max=float((exact - rounded).abs().max()), prompts=prompts,
    )


def split_experts(state, block, gate, up, down):
    """Renames the MLPs with experts, and gives each expert tensors of its own."""
    split = {}
    for name, weight in state.items():
        place = "feed_forward" if block == "feed_forward" else "mlp"
        stem, stacked, kind = name.partition(f".{place}.experts.")
        if not stacked:
            split[name.replace(f".{place}.gate.", f".{block}.gate.")] = weight
            continue
        for expert, matrix in enumerate(weight):
            prefix = f"{stem}.{block}.experts.{expert}."
            if kind == "down_proj":
                split[f"{prefix}{down}.weight"] = matrix.contiguous()
            else:
                for part, half in zip((gate, up), matrix.chunk(2)):
                    split[f"{prefix}{part}.weight"] = half.contiguous()
    return split


def save_weights(model, folder, storage, tied):
    dtype = {"f32": torch.float32, "f16": torch.float16}.get(storage, torch.bfloat16)
    state = {n: w.to(dtype).contiguous() for n, w in model.state_dict().items() if not (tied and n == "lm_head.weight")}
    if folder.name in EXPERT_NAMES:
        state = split_experts(state, *EXPERT_NAMES[folder.name])
    if folder.name.startswith("nemotron_h"):  # as published
        state = {n.replace("model.", "backbone.", 1): w for n, w in state.items()}
    if folder.name.startswith("granitemoehybrid"):
        published = (("router.weight", "router.layer.weight"), ("experts.gate_up_proj", "input_linear.weight"),
                     ("experts.down_proj", "output_linear.weight"))
        for ours, theirs in published:
            state = {n.replace(f"moe.{ours}", f"moe.{theirs}"): w for n, w in state.items()}
    if folder.name == "gpt_oss_mxfp4":
        for name in [n for n in state if n.endswith(("experts.gate_up_proj", "experts.down_proj"))]:
            state[f"{name}_blocks"], state[f"{name}_scales"] = mxfp4_parts(state.pop(name).float())
    if storage != "sharded":
        save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
        return
    names, where = sorted(state), {}
    for part in range(3):
        file = f"model-{part + 1:05d}-of-00003.safetensors"
        shard = {name: state[name] for name in names[part::3]}
        save_file(shard, folder / file, metadata={"format": "pt"})
        where.update({name: file for name in shard})
    size = sum(w.numel() * w.element_size() for w in state.values())
    index = dict(metadata=dict(total_size=size), weight_map=where)
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=1) + "\n")


def gguf_name(name, arch):
    if arch in STATE_NAMES:
        return state_gguf_name(name, arch)
    if name.endswith("sinks"):
        return f"blk.{name.split('.')[2]}.attn_sinks.weight"
    names = {**GGUF_NAMES, **(OSS_NAMES if arch == "gpt-oss" else {}), **(NORMED_OUTPUT_NAMES if arch in ("gemma2", "gemma3", "olmo2") else {})}
    stem, kind = name.rsplit(".", 1)
    if stem.startswith("model.layers."):
        layer, stem = stem.removeprefix("model.layers.").split(".", 1)
        return f"blk.{layer}.{names[stem]}.{kind}"
    return f"{names[stem]}.{kind}"


def state_gguf_name(name, arch):
    names = {**GGUF_NAMES, **STATE_NAMES[arch]}
    layer, stem = name.removeprefix("model.layers.").split(".", 1) if ".layers." in name else ("", name)
    prefix = f"blk.{layer}." if layer else ""
    if stem in names:  # without a kind
        return prefix + names[stem]
    stem, kind = stem.rsplit(".", 1)
    return f"{prefix}{names[stem]}.{kind}"


def apart(weight, name, config):
    """Orders value heads as llama.cpp does: those of one key head stand apart, so that head h uses key head h % keys."""
    keys, dim = config.linear_num_key_heads, config.linear_value_head_dim
    group = config.linear_num_value_heads // keys

    def turn(rows, size):
        return rows.reshape(keys, group, size, -1).transpose(0, 1).reshape(rows.shape)

    if name.endswith(("in_proj_qkv.weight", "conv1d.weight")):
        first = 2 * keys * config.linear_key_head_dim
        return torch.cat([weight[:first], turn(weight[first:], dim)])
    if name.endswith("in_proj_z.weight"):
        return turn(weight, dim)
    if name.endswith(("in_proj_a.weight", "in_proj_b.weight", "A_log", "dt_bias")):
        return turn(weight, 1)
    if name.endswith("linear_attn.out_proj.weight"):
        return turn(weight.T.contiguous(), dim).T.contiguous()
    return weight


def ungrouped(weight, config):
    """Queries, keys, values and gates of all key heads, which folders of Qwen3-Next keep head by head."""
    keys, key, value = config.linear_num_key_heads, config.linear_key_head_dim, config.linear_value_head_dim
    share = config.linear_num_value_heads // keys * value
    by_head = weight.reshape(keys, 2 * key + 2 * share, -1)
    q, k, v, z = (part.reshape(-1, weight.shape[-1]) for part in by_head.split([key, key, share, share], dim=1))
    return torch.cat([q, k, v]), z


def interleave(rows, heads):
    """Orders rows as llama.cpp does: it rotates neighbours, so row i of a head's first half stands before row i of the
    second."""
    return rows.reshape(heads, 2, rows.shape[0] // heads // 2, *rows.shape[1:]).transpose(1, 2).reshape(rows.shape)


def add_switches(writer, config, arch, rope):
    """The keys that llama.cpp's converter writes for one architecture only."""
    if rope["rope_type"] in ("linear", "yarn") and arch != "llama":
        writer.add_string(f"{arch}.rope.scaling.type", rope["rope_type"])
        writer.add_rope_scaling_factor(rope["factor"])
    if rope["rope_type"] == "yarn" and arch != "llama":
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
    if arch == "gemma2":
        writer.add_attn_logit_softcapping(config.attn_logit_softcapping)
        writer.add_final_logit_softcapping(config.final_logit_softcapping)
    if arch in ("gemma2", "gemma3", "gpt-oss"):
        writer.add_sliding_window(config.sliding_window)
    if arch == "gemma3":
        writer.add_uint32(f"{arch}.attention.sliding_window_pattern", config._sliding_window_pattern)
    if arch == "olmo2" and getattr(config, "sliding_window", None):
        writer.add_sliding_window(config.sliding_window)
        writer.add_sliding_window_pattern([kind == SLIDING for kind in config.layer_types])
    if arch in ("lfm2", "lfm2moe"):
        writer.add_uint32(f"{arch}.shortconv.l_cache", config.conv_L_cache)
    if arch in ("qwen35", "qwen35moe", "qwen3next"):
        writer.add_ssm_conv_kernel(config.linear_conv_kernel_dim)
        writer.add_ssm_state_size(config.linear_key_head_dim)
        writer.add_ssm_group_count(config.linear_num_key_heads)
        writer.add_ssm_time_step_rank(config.linear_num_value_heads)
        writer.add_ssm_inner_size(config.linear_num_value_heads * config.linear_value_head_dim)
        writer.add_uint32(f"{arch}.full_attention_interval", config.layer_types.index(FULL) + 1)
        if arch != "qwen3next":
            writer.add_rope_dimension_sections([*rope["mrope_section"], 0])
    if arch == "granitehybrid":
        writer.add_ssm_conv_kernel(config.mamba_d_conv)
        writer.add_ssm_state_size(config.mamba_d_state)
        writer.add_ssm_group_count(config.mamba_n_groups)
        writer.add_ssm_time_step_rank(config.mamba_n_heads)
        writer.add_ssm_inner_size(config.mamba_n_heads * config.mamba_d_head)
        writer.add_rope_scaling_finetuned(config.position_embedding_type == "rope")
        if config.num_local_experts:
            writer.add_expert_shared_feed_forward_length(config.shared_intermediate_size)
    if arch == "nemotron_h_moe":
        writer.add_ssm_conv_kernel(config.conv_kernel)
        writer.add_ssm_state_size(config.ssm_state_size)
        writer.add_ssm_group_count(config.n_groups)
        writer.add_ssm_time_step_rank(config.mamba_num_heads)
        writer.add_ssm_inner_size(config.mamba_num_heads * config.mamba_head_dim)
        writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
        writer.add_expert_shared_feed_forward_length(config.moe_shared_expert_intermediate_size)
        writer.add_expert_weights_scale(config.routed_scaling_factor)
    if arch in ("granite", "granitehybrid"):
        writer.add_attention_scale(config.attention_multiplier)
        writer.add_embedding_scale(config.embedding_multiplier)
        writer.add_residual_scale(config.residual_multiplier)
        writer.add_logit_scale(config.logits_scaling)
    if arch != "gemma4" and hasattr(config, "num_experts_per_tok") and getattr(config, "num_local_experts", 1):
        writer.add_expert_count(getattr(config, "num_local_experts", 0) or config.num_experts)
        writer.add_expert_used_count(config.num_experts_per_tok)
    if getattr(config, "moe_intermediate_size", None):
        writer.add_expert_feed_forward_length(config.moe_intermediate_size)
    if hasattr(config, "shared_expert_intermediate_size"):
        writer.add_expert_shared_feed_forward_length(config.shared_expert_intermediate_size)
    if arch == "lfm2moe":
        writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
        writer.add_leading_dense_block_count(config.num_dense_layers)
    if arch == "deepseek2":
        add_latents(writer, config, rope)
    if arch == "gemma4":
        add_gemma4(writer, config)
    if arch == "mistral3":
        writer.add_float32(f"{arch}.rope.scaling.yarn_log_multiplier", rope["mscale_all_dim"])
        writer.add_float32(f"{arch}.attention.temperature_scale", rope["llama_4_scaling_beta"])


def add_gemma4(writer, config):
    """Sizes that layers have of their own, and the frequencies of layers without a window."""
    window = [kind == SLIDING for kind in config.layer_types]
    writer.add_sliding_window(config.sliding_window)
    writer.add_sliding_window_pattern(window)
    writer.add_uint32("gemma4.attention.shared_kv_layers", config.num_kv_shared_layers)
    writer.add_uint32("gemma4.attention.key_length_swa", config.head_dim)
    writer.add_uint32("gemma4.attention.value_length_swa", config.head_dim)
    writer.add_float32("gemma4.rope.freq_base_swa", config.rope_parameters[SLIDING]["rope_theta"])
    writer.add_uint32("gemma4.rope.dimension_count_swa", config.head_dim)
    writer.add_uint32("gemma4.embedding_length_per_layer_input", config.hidden_size_per_layer_input)
    if config.final_logit_softcapping:
        writer.add_final_logit_softcapping(config.final_logit_softcapping)
    if config.enable_moe_block:
        writer.add_expert_count(config.num_experts)
        writer.add_expert_used_count(config.top_k_experts)
    dim = config.per_layer_config[window.index(False)].head_dim
    turned = int(config.rope_parameters[FULL]["partial_rotary_factor"] * dim // 2)
    writer.add_tensor("rope_freqs.weight", torch.tensor([1.0] * turned + [1e30] * (dim // 2 - turned)).numpy())


def add_latents(writer, config, rope):
    """Sizes of attention over latents, and how experts are chosen."""
    writer.add_kv_lora_rank(config.kv_lora_rank)
    if config.q_lora_rank:
        writer.add_q_lora_rank(config.q_lora_rank)
    writer.add_key_length_mla(config.qk_nope_head_dim + config.qk_rope_head_dim)
    writer.add_value_length_mla(config.v_head_dim)
    if "mscale_all_dim" in rope:
        writer.add_rope_scaling_yarn_log_mul(0.1 * rope["mscale_all_dim"])
    types = getattr(config, "mlp_layer_types", None)
    writer.add_leading_dense_block_count(types.count("dense") if types else config.first_k_dense_replace)
    writer.add_expert_shared_count(config.n_shared_experts)
    writer.add_expert_weights_scale(config.routed_scaling_factor)
    if config.model_type != "deepseek_v2":
        writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
        writer.add_expert_weights_norm(config.norm_topk_prob)
        writer.add_expert_group_count(config.n_group)
        writer.add_expert_group_used_count(config.topk_group)


def add_head_projections(writer, name, weight, config):
    """Keys and values of heads apart, keys transposed, as newer files have them."""
    block = "blk." + name.removeprefix("model.layers.").split(".")[0]
    heads = weight.reshape(config.num_attention_heads, -1, config.kv_lora_rank)
    keys, values = heads.split([config.qk_nope_head_dim, config.v_head_dim], dim=1)
    add_bf16(writer, f"{block}.attn_k_b.weight", keys.transpose(1, 2))
    add_bf16(writer, f"{block}.attn_v_b.weight", values)


def add_bf16(writer, name, weight):
    bits = weight.bfloat16().contiguous().view(torch.uint8).numpy()
    writer.add_tensor(name, bits, raw_dtype=gguf.GGMLQuantizationType.BF16)


def add_experts(writer, name, weight):
    """The experts of a layer, which GGUF stacks too, but gate and up apart."""
    block = "blk." + name.removeprefix("model.layers.").split(".")[0]
    if name.endswith("down_proj"):
        add_bf16(writer, f"{block}.ffn_down_exps.weight", weight)
        return
    gate, up = weight.chunk(2, dim=1)
    add_bf16(writer, f"{block}.ffn_gate_exps.weight", gate)
    add_bf16(writer, f"{block}.ffn_up_exps.weight", up)


def add_oss_experts(writer, name, weight, quantised):
    """Experts of gpt-oss, whose gates and ups stand in turn: apart, and outputs first."""
    block = "blk." + name.removeprefix("model.layers.").split(".")[0]
    kind = "bias" if name.endswith("bias") else "weight"
    down = "down_proj" in name
    for part, rows in {"down": weight}.items() if down else {"gate": weight[..., ::2], "up": weight[..., 1::2]}.items():
        target = f"{block}.ffn_{part}_exps.{kind}"
        if kind == "bias":
            writer.add_tensor(target, rows.contiguous().numpy())
        elif quantised:
            codes = gguf.quants.quantize(rows.transpose(1, 2).contiguous().numpy(), gguf.GGMLQuantizationType.MXFP4)
            writer.add_tensor(target, codes, raw_dtype=gguf.GGMLQuantizationType.MXFP4)
        else:
            add_bf16(writer, target, rows.transpose(1, 2))


def save_gguf(model, config, path, arch, add_tokens=None):
    writer = gguf.GGUFWriter(path, arch)
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    rope = getattr(config, "rope_parameters", None) or dict(rope_type="default", rope_theta=10000.0)
    rope = rope.get(FULL, rope)
    writer.add_vocab_size(config.vocab_size)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    if arch == "gpt-oss":
        writer.add_feed_forward_length(config.intermediate_size)
        writer.add_expert_feed_forward_length(config.intermediate_size)
    elif arch == "nemotron_h_moe":
        sizes = {"mlp": config.intermediate_size, "moe": config.moe_intermediate_size}
        writer.add_feed_forward_length([sizes.get(kind, 0) for kind in config.layers_block_type])
    elif arch == "granitehybrid":
        writer.add_feed_forward_length(
            config.intermediate_size if config.num_local_experts else config.shared_intermediate_size)
    elif arch == "gemma4":
        writer.add_feed_forward_length([layer.mlp.intermediate_size for layer in model.model.layers])
    elif arch != "qwen35moe":
        inner = next((w.shape[0] for n, w in model.state_dict().items() if n.endswith((
            "gate_proj.weight", "w1.weight", "gate_up_proj.weight"))), config.intermediate_size)
        writer.add_feed_forward_length(inner // (2 if arch == "phi3" else 1))
    writer.add_head_count(config.num_attention_heads)
    kv_heads = config.num_key_value_heads
    if arch == "gemma4":
        layers = [config.per_layer_config[i] for i in range(config.num_hidden_layers)]
        kv_heads, head_dim = [layer.num_key_value_heads for layer in layers], layers[-1].head_dim
    if arch == "deepseek2":
        kv_heads, head_dim = 1, config.kv_lora_rank + config.qk_rope_head_dim
    writer.add_head_count_kv([kv_heads * (kind == FULL) for kind in config.layer_types]
                             if "lfm2" in arch or arch in ("granitehybrid", "nemotron_h_moe") else kv_heads)
    writer.add_key_length(head_dim)
    writer.add_value_length(config.kv_lora_rank if arch == "deepseek2" else head_dim)
    epsilon = {"lfm2": "norm_eps", "lfm2moe": "norm_eps", "nemotron_h_moe": "layer_norm_epsilon"}
    writer.add_layer_norm_rms_eps(getattr(config, epsilon.get(arch, "rms_norm_eps")))
    writer.add_rope_freq_base(rope["rope_theta"])
    rotated = config.qk_rope_head_dim if arch == "deepseek2" else head_dim
    share = 1.0 if arch == "gemma4" else rope.get("partial_rotary_factor", 1.0)
    writer.add_rope_dimension_count(int(rotated * share))
    writer.add_uint32("tokenizer.ggml.eos_token_id", config.eos_token_id)
    add_switches(writer, config, arch, rope)
    if add_tokens:
        add_tokens(writer)
    for name, weight in model.state_dict().items():
        if config.tie_word_embeddings and name == "lm_head.weight":
            continue
        if arch in INTERLEAVED and ".q_proj." in name:
            weight = interleave(weight, config.num_attention_heads)
        if arch in INTERLEAVED and ".k_proj." in name:
            weight = interleave(weight, config.num_key_value_heads)
        if arch in ("qwen35", "qwen35moe"):
            weight = apart(weight, name, config)
        if name.endswith("in_proj_qkvz.weight"):
            stem = name.removesuffix("qkvz.weight")
            for part, rows in zip(("qkv", "z"), ungrouped(weight, config)):
                add_bf16(writer, gguf_name(f"{stem}{part}.weight", arch), rows)
            continue
        if name.endswith("kv_b_proj.weight") and config.model_type == "glm4_moe_lite":
            add_head_projections(writer, name, weight, config)
            continue
        if name.endswith("A_log"):
            weight = -weight.exp()
        if name.endswith(("conv.conv.weight", "conv1d.weight")):
            writer.add_tensor(gguf_name(name, arch), weight.squeeze(1).contiguous().numpy())
            continue
        if ".shared_mlp.input_linear." in name:
            block = "blk." + name.removeprefix("model.layers.").split(".")[0]
            for part, rows in zip(("gate", "up"), weight.chunk(2)):
                add_bf16(writer, f"{block}.ffn_{part}{'_shexp' if config.num_local_experts else ''}.weight", rows)
            continue
        if name.endswith((".A_log", ".D")) and arch in ("granitehybrid", "nemotron_h_moe"):
            writer.add_tensor(gguf_name(name, arch), weight[:, None].numpy())
            continue
        if name.endswith(("mamba.norm.weight", "mixer.norm.weight")):
            groups = config.n_groups if arch == "nemotron_h_moe" else config.mamba_n_groups
            writer.add_tensor(gguf_name(name, arch), weight.reshape(groups, -1).numpy())
            continue
        if ".shared_mlp.output_linear." in name and config.num_local_experts:
            add_bf16(writer, gguf_name(name, arch).replace("ffn_down", "ffn_down_shexp"), weight)
            continue
        if arch == "gpt-oss" and ".experts." in name:
            add_oss_experts(writer, name, weight, path.parent.name == "gpt_oss_mxfp4")
            continue
        if weight.dim() == 1:
            zero_centred = (arch in ("gemma2", "gemma3") or config.model_type.startswith(ZERO_CENTRED)
                            and "norm" in name and "linear" not in name)
            one = 1.0 if zero_centred else 0.0
            writer.add_tensor(gguf_name(name, arch), (weight + one).numpy())
            continue
        if ".experts." in name and arch == "nemotron_h_moe":
            add_bf16(writer, gguf_name(name, arch), weight)
        elif ".experts." in name:
            add_experts(writer, name, weight)
        elif name.endswith(("mlp.gate.weight", "mixer.gate.weight", "router.weight", "router.proj.weight", "feed_forward.gate.weight")):
            writer.add_tensor(gguf_name(name, arch), weight.numpy())
        elif name.endswith("shared_expert_gate.weight"):
            writer.add_tensor(gguf_name(name, arch), weight[0].numpy())  # one row, which GGUF keeps as a vector
        else:
            add_bf16(writer, gguf_name(name, arch), weight)
    if rope["rope_type"] == "llama3":
        plain = 1.0 / rope["rope_theta"] ** (torch.arange(0, head_dim, 2) / head_dim)
        writer.add_tensor("rope_freqs.weight", (plain / model.model.rotary_emb.inv_freq).numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def image_config(text):
    """A config around `text` with a part for images that is as small as can be."""
    if "qwen3_5" in text.model_type:
        vision = dict(depth=1, hidden_size=8, intermediate_size=8, num_heads=1, out_hidden_size=text.hidden_size,
                      num_position_embeddings=4)
        outer = transformers.Qwen3_5MoeConfig if "moe" in text.model_type else transformers.Qwen3_5Config
        return outer(
            text_config=text, vision_config=vision, image_token_id=VOCAB - 1, video_token_id=VOCAB - 2,
            vision_start_token_id=VOCAB - 3, vision_end_token_id=VOCAB - 4,
            tie_word_embeddings=text.tie_word_embeddings,
        )
    if text.model_type == "gemma4_text":
        return transformers.Gemma4Config(text_config=text, tie_word_embeddings=text.tie_word_embeddings)
    vision = dict(model_type="siglip_vision_model", hidden_size=8, intermediate_size=8, num_hidden_layers=1,
                  num_attention_heads=1, image_size=8, patch_size=4)
    return transformers.Gemma3Config(
        text_config=text, vision_config=vision, mm_tokens_per_image=4, boi_token_index=VOCAB - 3,
        eoi_token_index=VOCAB - 2, image_token_index=VOCAB - 1, eos_token_id=[2, 3],
    )


def make_variant(name, family, changes, storage):
    folder = HERE / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    torch.manual_seed(sum(name.encode()))
    with_image = family.endswith("Image")
    family = family.removesuffix("Image")
    config = getattr(transformers, CONFIGS.get(family, family + "Config"))(**{**SMALL, **changes})
    if family == "Gemma4":
        config.allow_global_per_layer_attribute_access = True  # of what layers with a window have
    whole = image_config(config) if with_image else config
    whole._attn_implementation = "eager"
    architecture = family + ("ForConditionalGeneration" if with_image else "ForCausalLM")
    model = getattr(transformers, architecture)(whole).eval()
    draw(model, config, storage)
    golden = make_golden(model, whole)
    whole.dtype = {"f32": "float32", "f16": "float16"}.get(storage, "bfloat16")
    whole.architectures = [architecture]
    if name == "gpt_oss_mxfp4":
        whole.quantization_config = dict(quant_method="mxfp4", modules_to_not_convert=[
            "model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"])
    whole.save_pretrained(folder)
    model.generation_config.save_pretrained(folder)
    save_weights(model, folder, storage, config.tie_word_embeddings)
    if name in GGUF:
        save_gguf(model, config, folder / "model.gguf", GGUF[name])
    (folder / "golden.json").write_text(json.dumps(golden) + "\n")
    print(f"{name}: std {golden['std']:.2f}, bf16 rms {golden['bf16_rms']:.4f} max {golden['bf16_max']:.4f}", flush=True)


if __name__ == "__main__":
    torch.set_num_threads(2)
    for name in sys.argv[1:] or VARIANTS:
        make_variant(name, *VARIANTS[name])
