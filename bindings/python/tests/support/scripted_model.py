"""A model that says one thing: behind each token of a script the next one is certain."""

import json
import struct

import numpy as np

_BYTES = 256
_HEADS, _HEAD_DIM = 8, 40
_WIDTH = _HEADS * _HEAD_DIM  # one dimension for each id


def _tensors(script_ids):
    """Returns the weights of a Llama without attention and MLP, whose head maps the embedding of a token to the next token."""
    head = np.zeros((_WIDTH, _WIDTH), np.float32)
    for token, following in zip(script_ids, script_ids[1:], strict=False):
        head[following, token] = 1
    zeros = np.zeros((_WIDTH, _WIDTH), np.float32)
    ones = np.ones(_WIDTH, np.float32)
    layer = "model.layers.0."
    return {
        "model.embed_tokens.weight": np.eye(_WIDTH, dtype=np.float32),
        "lm_head.weight": head,
        "model.norm.weight": ones,
        layer + "input_layernorm.weight": ones,
        layer + "post_attention_layernorm.weight": ones,
        **{layer + f"self_attn.{name}_proj.weight": zeros for name in "qkvo"},
        **{layer + f"mlp.{name}_proj.weight": zeros for name in ("gate", "up", "down")},
    }


def _write_safetensors(path, tensors):
    header, data = {}, b""
    for name, values in tensors.items():
        raw = values.tobytes()
        header[name] = {"dtype": "F32", "shape": list(values.shape), "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def scripted_model(folder, template, script, specials=(), start="<start>"):
    """Makes the folder of a model that answers with `script`, a list of pieces that differ, and then ends.

    template: ends with `start`, the token behind which the script begins
    specials: tokens that are special, of the script or not; the pieces of the script are tokens of their own, too
    """
    pieces = [start, *script, "<end>", *(each for each in specials if each not in (start, *script))]
    assert len(set(pieces)) == len(pieces) and _BYTES + len(pieces) <= _WIDTH
    folder.mkdir()
    special = {"<start>", "<end>", *specials}
    end = _BYTES + 1 + len(script)
    added = [
        {"id": _BYTES + i, "content": piece, "special": piece in special, "single_word": False, "lstrip": False, "rstrip": False,
         "normalized": False}
        for i, piece in enumerate(pieces)
    ]
    (folder / "tokenizer.json").write_text(json.dumps({
        "added_tokens": added,
        "decoder": {"type": "Sequence", "decoders": [{"type": "ByteFallback"}, {"type": "Fuse"}]},
        "model": {"type": "BPE", "byte_fallback": True, "vocab": {f"<0x{i:02X}>": i for i in range(_BYTES)}, "merges": []},
    }))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<end>", "chat_template": template}))
    (folder / "config.json").write_text(json.dumps({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": _WIDTH, "hidden_size": _WIDTH,
        "intermediate_size": _WIDTH, "num_hidden_layers": 1, "num_attention_heads": _HEADS, "num_key_value_heads": _HEADS,
        "head_dim": _HEAD_DIM, "max_position_embeddings": 1024, "rms_norm_eps": 1e-6, "rope_theta": 10000.0,
        "hidden_act": "silu", "tie_word_embeddings": False, "torch_dtype": "float32",
        "eos_token_id": end,
    }))
    _write_safetensors(folder / "model.safetensors", _tensors(range(_BYTES, end + 1)))
    return folder
