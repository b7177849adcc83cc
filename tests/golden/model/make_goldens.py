"""Makes the tiny random checkpoints of every family variant and what transformers computes with them.

    python make_goldens.py            # torch 2.15.0, transformers 5.23.0; about two minutes on two cores

Per variant a folder: config.json and generation_config.json as transformers writes them, the weights as
safetensors (some also as model.gguf, with llama.cpp's names and order of rows), and golden.json:
    inv_freq, rope_scale       rotary frequencies and the factor on cos and sin, float32
    prompts[]: ids             1 to 150 tokens
               rows, logits    a few rows of the float32 logits, the last one always among them
               greedy          the next ids, always the largest logit
    std                        of all golden logits
    bf16_rms, bf16_max         the reference's own distance when it runs in bfloat16 (golden rows)
"""

import json
import pathlib
import shutil

import gguf
import torch
import transformers
from safetensors.torch import save_file

HERE = pathlib.Path(__file__).parent
LENGTHS = [1, 17, 70, 150]
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
# name: (family, changes to SMALL, storage)
VARIANTS = {
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
}
GGUF = {"llama_rope_llama3": "llama", "llama_bias": "llama", "qwen2": "qwen2", "qwen3": "qwen3", "phi3_partial": "phi3"}
GGUF_NAMES = {
    "model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output",
    "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.qkv_proj": "attn_qkv", "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.gate_up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
}


def draw(model, config, storage):
    """Draws weights that spread: logits of deviation about one or more, attention far from uniform."""
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    for name, weight in model.named_parameters():
        if name.endswith("bias"):
            value = 0.4 * torch.randn_like(weight)
        elif weight.dim() == 1:
            value = 1.0 + 0.2 * torch.randn_like(weight)
        elif "embed_tokens" in name:
            value = (0.3 if config.tie_word_embeddings else 1.0) * torch.randn_like(weight)
        else:
            gain = 1.5 / weight.shape[1] ** 0.5
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
    for _ in range(GREEDY):
        result = model(step, past_key_values=cache, use_cache=True)
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


@torch.no_grad()
def make_golden(model, config):
    generator = torch.Generator().manual_seed(7)
    probe = torch.randint(3, VOCAB, (1, 64), generator=generator)
    std = float(model(probe).logits.std())
    half = type(model)(config).eval()  # its own rotary buffers stay float32, as in from_pretrained
    half.load_state_dict(model.state_dict())
    half = half.to(torch.bfloat16)
    half.model.rotary_emb.inv_freq = model.model.rotary_emb.inv_freq.clone()
    half.model.rotary_emb.original_inv_freq = model.model.rotary_emb.inv_freq.clone()
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
    rope = model.model.rotary_emb
    return dict(
        torch=torch.__version__, transformers=transformers.__version__,
        inv_freq=[float(f"{x:.9g}") for x in rope.inv_freq.tolist()], rope_scale=float(rope.attention_scaling),
        std=float(exact.std()), bf16_rms=float((exact - rounded).pow(2).mean().sqrt()),
        bf16_max=float((exact - rounded).abs().max()), prompts=prompts,
    )


def save_weights(model, folder, storage, tied):
    dtype = {"f32": torch.float32, "f16": torch.float16}.get(storage, torch.bfloat16)
    state = {n: w.to(dtype).contiguous() for n, w in model.state_dict().items() if not (tied and n == "lm_head.weight")}
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


def gguf_name(name):
    stem, kind = name.rsplit(".", 1)
    if stem.startswith("model.layers."):
        layer, stem = stem.removeprefix("model.layers.").split(".", 1)
        return f"blk.{layer}.{GGUF_NAMES[stem]}.{kind}"
    return f"{GGUF_NAMES[stem]}.{kind}"


def interleave(rows, heads):
    """Orders rows as llama.cpp does: it rotates neighbours, so row i of a head's first half stands before row i of the
    second."""
    return rows.reshape(heads, 2, rows.shape[0] // heads // 2, *rows.shape[1:]).transpose(1, 2).reshape(rows.shape)


def save_gguf(model, config, path, arch):
    writer = gguf.GGUFWriter(path, arch)
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    rope = config.rope_parameters
    writer.add_vocab_size(config.vocab_size)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(rope["rope_theta"])
    writer.add_rope_dimension_count(int(head_dim * rope.get("partial_rotary_factor", 1.0)))
    writer.add_uint32("tokenizer.ggml.eos_token_id", config.eos_token_id)
    for name, weight in model.state_dict().items():
        if config.tie_word_embeddings and name == "lm_head.weight":
            continue
        if arch == "llama" and ".q_proj." in name:
            weight = interleave(weight, config.num_attention_heads)
        if arch == "llama" and ".k_proj." in name:
            weight = interleave(weight, config.num_key_value_heads)
        if weight.dim() == 1:
            writer.add_tensor(gguf_name(name), weight.numpy())
            continue
        bits = weight.bfloat16().contiguous().view(torch.uint8).numpy()
        writer.add_tensor(gguf_name(name), bits, raw_dtype=gguf.GGMLQuantizationType.BF16)
    if rope["rope_type"] == "llama3":
        plain = 1.0 / rope["rope_theta"] ** (torch.arange(0, head_dim, 2) / head_dim)
        writer.add_tensor("rope_freqs.weight", (plain / model.model.rotary_emb.inv_freq).numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def make_variant(name, family, changes, storage):
    folder = HERE / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    torch.manual_seed(sum(name.encode()))
    config = getattr(transformers, family + "Config")(**{**SMALL, **changes})
    config._attn_implementation = "eager"
    model = getattr(transformers, family + "ForCausalLM")(config).eval()
    draw(model, config, storage)
    golden = make_golden(model, config)
    config.dtype = {"f32": "float32", "f16": "float16"}.get(storage, "bfloat16")
    config.architectures = [family + "ForCausalLM"]
    config.save_pretrained(folder)
    model.generation_config.save_pretrained(folder)
    save_weights(model, folder, storage, config.tie_word_embeddings)
    if name in GGUF:
        save_gguf(model, config, folder / "model.gguf", GGUF[name])
    (folder / "golden.json").write_text(json.dumps(golden) + "\n")
    print(f"{name}: std {golden['std']:.2f}, bf16 rms {golden['bf16_rms']:.4f} max {golden['bf16_max']:.4f}", flush=True)


if __name__ == "__main__":
    torch.set_num_threads(2)
    for name, variant in VARIANTS.items():
        make_variant(name, *variant)
