"""Writes a GGUF file in bfloat16 with random weights of a preset's shape, for programs that open no preset.

    python bench/make_shape.py PRESET LAYERS FILE [circle]

It keeps the first LAYERS layers and 32,000 tokens, so that the output matrix weighs about as much beside them as in the whole
model. Other types come from llama.cpp's llama-quantize. Needs torch, transformers and gguf.

With "circle" the layers add nothing to what they read, at their full price. So the next token depends on the last one alone,
and greedy answers run in a circle: text that guesses can copy.
"""
import json
import pathlib
import re
import sys

import torch
import transformers

ROOT = pathlib.Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tests/golden/model"))
import make_goldens  # noqa: E402

VOCAB, NAMES = 32000, 259  # NAMES: tokens of control and of bytes, which come first
FAMILIES = {"qwen3_5_text": ("Qwen3_5", "qwen35"), "gemma3_text": ("Gemma3", "gemma3"), "lfm2": ("Lfm2", "lfm2"),
            "qwen3_moe": ("Qwen3Moe", "qwen3moe"), "qwen3": ("Qwen3", "qwen3"), "llama": ("Llama", "llama")}


def preset_config(preset, layers):
    """Returns a preset's text configuration with fewer layers and tokens, its family and its GGUF architecture."""
    source = (ROOT / "src/quire/model/presets.cc").read_text()
    found = re.search(rf'\{{"{re.escape(preset)}",\s*R"\((.*?)\)"\}}', source, re.S)
    if not found:
        sys.exit(f"{preset} is no preset of src/quire/model/presets.cc")
    keys = json.loads(found.group(1))
    keys = keys.get("text_config", keys)
    if keys["model_type"] not in FAMILIES:
        sys.exit(f"{preset}: no GGUF names for {keys['model_type']}; known: {', '.join(FAMILIES)}")
    family, arch = FAMILIES[keys.pop("model_type")]
    keys.pop("torch_dtype", None)
    keys.update(vocab_size=VOCAB, eos_token_id=2, pad_token_id=0, num_hidden_layers=layers)
    if "full_attn_idxs" in keys:
        keys["full_attn_idxs"] = [layer for layer in keys["full_attn_idxs"] if layer < layers]
    config = getattr(transformers, make_goldens.CONFIGS.get(family, family + "Config"))(**keys)
    if arch == "qwen35":
        config.rope_parameters["mrope_section"] = [11, 11, 10]  # which the file has to name
    return config, family, arch


def draw(model, family, circle):
    """Fills matrices with the same noise, scaled by their inputs: speed does not depend on the numbers."""
    torch.manual_seed(1)
    noise = torch.randn(1 << 24).bfloat16()
    centred = family in ("Gemma3", "Qwen3_5")
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name.endswith("A_log"):
                weight.copy_(torch.empty(weight.shape).uniform_(-3, 0.5))
            elif circle and name.endswith(("o_proj.weight", "down_proj.weight")):
                weight.zero_()
            elif weight.dim() == 1:
                weight.fill_(1.0 if "norm" in name and (not centred or "linear" in name) else 0.0)
            else:
                drawn = noise.flip(0) if name == "lm_head.weight" else noise  # or a token would be likeliest behind itself
                for part in weight.view(-1).split(noise.numel()):
                    part.copy_(drawn[: part.numel()] * weight.shape[-1] ** -0.5)
                if circle and name == "lm_head.weight":
                    weight[:NAMES] = 0  # no bytes, which might be no text together


def add_tokens(writer):
    """Adds a vocabulary of bytes and words, which llama.cpp asks for."""
    names = [b"<unk>", b"<s>", b"</s>", *(b"<0x%02X>" % byte for byte in range(256))]
    words = [b"w%d" % number for number in range(VOCAB - len(names))]
    writer.add_tokenizer_model("llama")
    writer.add_token_scores([0.0] * len(names) + [-float(number) for number in range(len(words))])
    writer.add_token_types([2, 3, 3] + [6] * 256 + [1] * len(words))
    writer.add_token_list(names + words)
    writer.add_bos_token_id(1)
    writer.add_unk_token_id(0)


def main():
    preset, layers, file = sys.argv[1], int(sys.argv[2]), pathlib.Path(sys.argv[3])
    config, family, arch = preset_config(preset, layers)
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("meta"):
        model = getattr(transformers, family + "ForCausalLM")(config)
    model = model.to_empty(device="cpu")
    draw(model, family, sys.argv[4:] == ["circle"])
    weights = {name: weight if weight.dim() > 1 and not name.endswith(("conv.weight", "conv1d.weight", "mlp.gate.weight"))
               else weight.float() for name, weight in model.state_dict().items()}
    model.state_dict = lambda: weights  # vectors and small matrices in float32, as published files have them
    make_goldens.save_gguf(model, config, file, arch, add_tokens)


if __name__ == "__main__":
    if len(sys.argv) not in (4, 5) or sys.argv[4:] not in ([], ["circle"]):
        sys.exit(__doc__)
    main()
