"""Makes tiny models whose matrices are quantised as Hugging Face folders store them, and what they are dequantised.

    python make_goldens.py [NAME ...] # torch 2.15.0, transformers 5.23.0; half a minute on two cores

Per variant a folder: config.json with its "quantization_config", model.safetensors, and golden.json:
    values     name of each quantised matrix: SHA-256 of 8 bytes of length and its numbers in fp32, row by row. They
               are computed from the packed tensors with numpy, as the authors' own code unpacks them
    prompts[]  ids, and the float32 logits of the last row, by transformers with those numbers
    std        of all golden logits
"""

import hashlib
import json
import pathlib
import shutil
import sys

import numpy as np
import torch
import transformers
from safetensors.torch import save_file

HERE = pathlib.Path(__file__).parent
VOCAB, LENGTHS = 120, [1, 17, 60]
LLAMA = dict(vocab_size=VOCAB, hidden_size=160, intermediate_size=192, num_hidden_layers=1, num_attention_heads=4,
             num_key_value_heads=2, head_dim=32, max_position_embeddings=256, bos_token_id=1, eos_token_id=2)
EXPERTS = dict(LLAMA, hidden_size=64, head_dim=16, moe_intermediate_size=32, num_experts=4, num_experts_per_tok=2,
               norm_topk_prob=True)
AWQ_ORDER = [0, 2, 4, 6, 1, 3, 5, 7]


def pack_words(codes, bits, axis, order=None):
    """Packs integers into int32 along an axis, the first one lowest."""
    codes = np.moveaxis(codes.astype(np.uint32), axis, -1)
    per = 32 // bits
    codes = np.pad(codes, [(0, 0)] * (codes.ndim - 1) + [(0, -codes.shape[-1] % per)])
    codes = codes.reshape(*codes.shape[:-1], -1, per)[..., order or list(range(per))]
    words = (codes << (np.arange(per, dtype=np.uint32) * bits)).sum(-1, dtype=np.uint32)
    return np.ascontiguousarray(np.moveaxis(words, -1, axis)).view(np.int32)


def unpack_words(words, bits, axis, size, order=None):
    words = np.moveaxis(words.view(np.uint32), axis, -1)
    per = 32 // bits
    codes = words[..., None] >> (np.arange(per, dtype=np.uint32) * bits) & (2**bits - 1)
    codes = codes[..., np.argsort(order or list(range(per)))]
    return np.moveaxis(codes.reshape(*words.shape[:-1], -1)[..., :size], -1, axis).astype(np.int64)


def integers(weight, bits, group, symmetric, scale_type, index=None):
    """Rounds [out, in] to codes. Returns codes, scales and zero points [out, groups], and the group of each input."""
    out, inputs = weight.shape
    group = inputs if group == -1 else group
    index = np.arange(inputs) // group if index is None else index
    groups = index.max() + 1
    scales, zeros = np.zeros((out, groups), np.float32), np.zeros((out, groups), np.int64)
    codes = np.zeros((out, inputs), np.int64)
    for g in range(groups):
        part = weight[:, index == g]
        top, low = part.max(1), part.min(1)
        if symmetric:
            scale, zero = np.abs(part).max(1) / (2 ** (bits - 1) - 1), np.full(out, 2 ** (bits - 1))
        else:
            scale = np.maximum(top - low, 1e-5) / (2**bits - 1)
            zero = np.clip(np.rint(-low / scale), 1, 2**bits - 1)
        scale = torch.from_numpy(scale.astype(np.float32)).to(scale_type).float().numpy()
        scales[:, g], zeros[:, g] = scale, zero
        codes[:, index == g] = np.clip(np.rint(part / scale[:, None]) + zero[:, None], 0, 2**bits - 1)
    return codes, scales, zeros, index


def dequantise(codes, scales, zeros, index):
    return scales[:, index] * (codes - zeros[:, index]).astype(np.float32)


def gptq(weight, bits=4, group=32, symmetric=True, offset=1, act_order=False):
    index = None
    if act_order:
        index = np.random.default_rng(5).permutation(np.arange(weight.shape[1]) // group)
    codes, scales, zeros, index = integers(weight, bits, group, symmetric, torch.float16, index)
    parts = {
        "qweight": torch.from_numpy(pack_words(codes.T, bits, 0)),
        "qzeros": torch.from_numpy(pack_words(zeros.T - offset, bits, 1)),
        "scales": torch.from_numpy(np.ascontiguousarray(scales.T)).half(),
        "g_idx": torch.from_numpy(index.astype(np.int32)),
    }
    out, inputs = weight.shape
    q = unpack_words(parts["qweight"].numpy(), bits, 0, inputs).T
    z = unpack_words(parts["qzeros"].numpy(), bits, 1, out).T + offset
    return parts, dequantise(q, parts["scales"].float().numpy().T, z, parts["g_idx"].numpy())


def awq(weight, group=32):
    codes, scales, zeros, index = integers(weight, 4, group, False, torch.float16)
    parts = {
        "qweight": torch.from_numpy(pack_words(codes.T, 4, 1, AWQ_ORDER)),
        "qzeros": torch.from_numpy(pack_words(zeros.T, 4, 1, AWQ_ORDER)),
        "scales": torch.from_numpy(np.ascontiguousarray(scales.T)).half(),
    }
    out = weight.shape[0]
    q = unpack_words(parts["qweight"].numpy(), 4, 1, out, AWQ_ORDER).T
    z = unpack_words(parts["qzeros"].numpy(), 4, 1, out, AWQ_ORDER).T
    return parts, dequantise(q, parts["scales"].float().numpy().T, z, index)


def packed(weight, bits=4, group=32, symmetric=True, scale_type=torch.bfloat16):
    codes, scales, zeros, index = integers(weight, bits, group, symmetric, scale_type)
    out, inputs = weight.shape
    parts = {
        "weight_packed": torch.from_numpy(pack_words(codes, bits, 1)),
        "weight_scale": torch.from_numpy(scales).to(scale_type),
        "weight_shape": torch.tensor([out, inputs]),
    }
    z = zeros
    if not symmetric:
        parts["weight_zero_point"] = torch.from_numpy(pack_words(zeros, bits, 0))
        z = unpack_words(parts["weight_zero_point"].numpy(), bits, 0, out)
    q = unpack_words(parts["weight_packed"].numpy(), bits, 1, inputs)
    return parts, dequantise(q, parts["weight_scale"].float().numpy(), z, index)


def int8(weight, scale_type=torch.bfloat16):
    codes, scales, zeros, index = integers(weight, 8, -1, True, scale_type)
    parts = {"weight": torch.from_numpy((codes - 128).astype(np.int8)),
             "weight_scale": torch.from_numpy(scales).to(scale_type)}
    return parts, parts["weight"].float().numpy() * parts["weight_scale"].float().numpy()


def fp8(weight, block=None, scale_type=torch.float32, name="weight_scale_inv"):
    out, inputs = weight.shape
    rows, columns = block or (1, inputs)
    scale = np.zeros((-(-out // rows), -(-inputs // columns)), np.float32)
    for i in range(scale.shape[0]):
        for k in range(scale.shape[1]):
            scale[i, k] = np.abs(weight[i * rows:(i + 1) * rows, k * columns:(k + 1) * columns]).max() / 448
    stored = torch.from_numpy(scale).to(scale_type)
    wide = stored.float().numpy().repeat(rows, 0)[:out].repeat(columns, 1)[:, :inputs]
    codes = torch.from_numpy(weight / wide).clamp(-448, 448).to(torch.float8_e4m3fn)
    return {"weight": codes, name: stored}, codes.float().numpy() * wide


E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)


def mxfp4(stack):
    """Rounds [experts, out, in] to groups of 32 inputs."""
    groups = stack.reshape(*stack.shape[:-1], -1, 32)
    exponent = np.floor(np.log2(np.abs(groups).max(-1, keepdims=True))) - 2
    codes = np.abs((groups / 2**exponent)[..., None] - E2M1).argmin(-1).astype(np.uint8)
    blocks = codes[..., 0::2] | codes[..., 1::2] << 4
    scales = (exponent[..., 0] + 127).astype(np.uint8)
    q = np.stack([blocks & 15, blocks >> 4], -1).reshape(*blocks.shape[:-1], 32)
    values = np.ldexp(E2M1[q], scales[..., None].astype(np.int32) - 127).reshape(stack.shape)
    return {"_blocks": torch.from_numpy(blocks), "_scales": torch.from_numpy(scales)}, values.astype(np.float32)


def compressed(format, weights, activations=None):
    group = dict(targets=["Linear"], weights=weights, input_activations=activations, output_activations=None)
    return dict(quant_method="compressed-tensors", format=format, config_groups=dict(group_0=group),
                ignore=["lm_head"], kv_cache_scheme=None, quantization_status="compressed")


def int_weights(bits, strategy, symmetric=True):
    group = 32 if strategy == "group" else None
    return dict(num_bits=bits, type="int", strategy=strategy, group_size=group, symmetric=symmetric, dynamic=False,
                observer="minmax", actorder=None, block_structure=None)


GPTQ = dict(quant_method="gptq", bits=4, group_size=32, desc_act=False, sym=True, damp_percent=0.01)
INT8_INPUT = dict(num_bits=8, type="int", strategy="token", symmetric=True, dynamic=True)
# name: (quantises a matrix, quantization_config)
VARIANTS = {
    "gptq": (gptq, GPTQ),
    "gptq_v2_asym": (lambda w: gptq(w, symmetric=False, offset=0), dict(GPTQ, sym=False, checkpoint_format="gptq_v2")),
    "gptq_act_order": (lambda w: gptq(w, act_order=True), dict(GPTQ, desc_act=True)),
    "gptq_8": (lambda w: gptq(w, bits=8, group=-1), dict(GPTQ, bits=8, group_size=-1)),
    "awq": (awq, dict(quant_method="awq", bits=4, group_size=32, zero_point=True, version="gemm",
                      modules_to_not_convert=None)),
    "packed_4": (packed, compressed("pack-quantized", int_weights(4, "group"))),
    "packed_4_asym": (lambda w: packed(w, symmetric=False, scale_type=torch.float16),
                      compressed("pack-quantized", int_weights(4, "group", False))),
    "packed_8": (lambda w: packed(w, bits=8, group=-1), compressed("pack-quantized", int_weights(8, "channel"))),
    "int8": (int8, compressed("int-quantized", int_weights(8, "channel"), INT8_INPUT)),
    "int8_wide": (lambda w: int8(w, torch.float32), compressed("int-quantized", int_weights(8, "channel"), INT8_INPUT)),
    "fp8_blocks": (lambda w: fp8(w, (128, 128)),
                   dict(quant_method="fp8", fmt="e4m3", activation_scheme="dynamic", weight_block_size=[128, 128])),
    "fp8_channels": (lambda w: fp8(w, None, torch.bfloat16, "weight_scale"),
                     compressed("float-quantized", dict(num_bits=8, type="float", strategy="channel", symmetric=True))),
    "mxfp4": (mxfp4, dict(quant_method="mxfp4", modules_to_not_convert=["model.layers.*.self_attn", "lm_head"])),
}


def quantise(state, name, how):
    """Returns the tensors of the folder, and the values of the quantised matrices."""
    tensors, values = {}, {}
    for key, weight in state.items():
        stacked = ".experts." in key
        linear = weight.dim() == 2 and ".layers." in key and not key.endswith(".gate.weight")
        if stacked if name == "mxfp4" else linear:
            parts, values[key] = how(weight.numpy())
            stem = key if stacked else key.removesuffix("weight")
            tensors.update({stem + part: tensor.contiguous() for part, tensor in parts.items()})
        else:
            tensors[key] = weight.bfloat16()
    return tensors, values


@torch.no_grad()
def make_variant(name, how, config_entry):
    folder = HERE / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    torch.manual_seed(sum(name.encode()))
    family = "Qwen3Moe" if name == "mxfp4" else "Llama"
    config = getattr(transformers, family + "Config")(**(EXPERTS if name == "mxfp4" else LLAMA))
    config._attn_implementation = "eager"
    model = getattr(transformers, family + "ForCausalLM")(config).eval()
    for weight in model.parameters():
        drawn = torch.randn_like(weight)
        value = 1 + 0.2 * drawn if weight.dim() == 1 else drawn * 1.5 / weight.shape[-1] ** 0.5
        weight.copy_(value.bfloat16().float())
    tensors, values = quantise(model.state_dict(), name, how)
    exact = {key: torch.from_numpy(np.ascontiguousarray(value)) for key, value in values.items()}
    model.load_state_dict({**model.state_dict(), **exact})
    generator = torch.Generator().manual_seed(7)
    prompts, logits = [], []
    for length in LENGTHS:
        ids = torch.randint(3, VOCAB, (1, length), generator=generator)
        logits.append(model(ids).logits[0, -1])
        prompts.append(dict(ids=ids[0].tolist(), logits=[float(f"{x:.8g}") for x in logits[-1].tolist()]))
    config.dtype, config.architectures = "bfloat16", [family + "ForCausalLM"]
    config.save_pretrained(folder)
    file = folder / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "quantization_config": config_entry}, indent=1) + "\n")
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    hashes = {}
    for key, value in values.items():
        numbers = np.ascontiguousarray(value, np.float32).tobytes()
        hashes[key] = hashlib.sha256(len(numbers).to_bytes(8, "little") + numbers).hexdigest()
    golden = dict(torch=torch.__version__, transformers=transformers.__version__, values=hashes, prompts=prompts,
                  std=float(torch.stack(logits).std()))
    (folder / "golden.json").write_text(json.dumps(golden) + "\n")
    print(f"{name}: {len(values)} matrices, std {golden['std']:.2f}", flush=True)


if __name__ == "__main__":
    torch.set_num_threads(2)
    for name in sys.argv[1:] or VARIANTS:
        make_variant(name, *VARIANTS[name])
