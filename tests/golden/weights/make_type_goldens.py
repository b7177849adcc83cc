"""Write types.gguf, blocks of every ggml type that is made of small integers, and what gguf-py reads from them.

    pip install gguf==0.19.0 numpy==2.4.6
    python make_type_goldens.py

Needed only when a type is added; the files are committed. Blocks are random bytes whose floats are finite. Some have
extreme scales, and types with a code book name every entry of it. gguf-py does not decode Q1_0 and Q2_0. Values are stored as SHA-256 of their fp32
(base/sha256.h), and the first of each row in full.
"""

import hashlib
import json
import pathlib
import struct

import gguf
import numpy as np

HERE = pathlib.Path(__file__).parent
RNG = np.random.default_rng(26)
SHOWN = 8  # values of each row
# Zeros, the smallest and the largest subnormal, the smallest normal, ordinary ones, the largest.
HALVES = np.array([0x0000, 0x8000, 0x0001, 0x83ff, 0x0400, 0x1c34, 0xa017, 0x7bff], np.uint16)
EXPONENTS = np.array([0, 1, 2, 120, 127, 200, 254, 255], np.uint8)  # of E8M0

# Where their fp16 stand.
TYPES = {"Q2_K": (80, 82), "Q3_K": (108,), "IQ1_S": (0,), "IQ1_M": (), "IQ2_XXS": (0,), "IQ2_XS": (0,), "IQ2_S": (0,),
         "IQ3_XXS": (0,), "IQ3_S": (0,), "IQ4_NL": (0,), "IQ4_XS": (0,), "TQ1_0": (52,), "TQ2_0": (64,), "MXFP4": (),
         "NVFP4": (), "Q1_0": (0,), "Q2_0": (0,)}
NUMBERS = {"Q1_0": 41, "Q2_0": 42}
BLOCK_BYTES = {"Q1_0": 18, "Q2_0": 18}  # fp16, then values of 1 or 2 bits, the first in the lowest


def random_blocks(count, name):
    size = BLOCK_BYTES.get(name) or gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[name]][1]
    return RNG.integers(0, 256, (count, size), dtype=np.uint8)


def dequantize(blocks, name):
    if name not in NUMBERS:
        return gguf.quants.dequantize(blocks, gguf.GGMLQuantizationType[name])
    bits = NUMBERS[name] - 40
    places = np.arange(0, 8, bits, dtype=np.uint8)
    values = ((blocks[:, 2:, None] >> places) & ((1 << bits) - 1)).reshape(len(blocks), -1).astype(np.float32)
    scales = blocks[:, :2].copy().view(np.float16).astype(np.float32)
    return scales * (2 * values - 1 if bits == 1 else values - 1)


def set_halves(blocks, at):
    blocks[:, at:at + 2] = np.resize(HALVES, len(blocks)).reshape(-1, 1).view(np.uint8)


def set_iq1_m_halves(blocks):
    """Spreads an fp16 over the upper nibbles of four words."""
    halves = np.resize(HALVES, len(blocks))
    words = blocks[:, 48:56].copy().view(np.uint16)
    for i in range(4):
        words[:, i] = (words[:, i] & 0x0fff) | ((halves >> (4 * i)) & 15) << 12
    blocks[:, 48:56] = words.view(np.uint8)


def name_entries(name, blocks):
    """Lets blocks name the entries of the code book in turn."""
    per_block = 64 if name in ("IQ3_XXS", "IQ3_S") else 32
    entries = np.arange(len(blocks) * per_block).reshape(-1, per_block)
    low, high = (entries & 255).astype(np.uint8), entries >> 8
    if name == "IQ2_XXS":
        for i in range(32):
            blocks[:, 2 + i // 4 * 8 + i % 4] = low[:, i]
    elif name == "IQ2_XS":
        blocks[:, 2:66:2] = low
        blocks[:, 3:66:2] = (blocks[:, 3:66:2] & 0xfe) | high.astype(np.uint8)
    else:
        blocks[:, 2:2 + per_block] = low
    if name == "IQ2_S":
        blocks[:, 66:74] = sum(high[:, i::4] << (2 * i) for i in range(4))
    elif name == "IQ3_S":
        blocks[:, 66:74] = sum(high[:, i::8] << i for i in range(8))
    elif name == "IQ1_S":
        words = blocks[:, 34:50].copy().view(np.uint16) & 0xf000
        words |= sum(high[:, i::4] << (3 * i) for i in range(4)).astype(np.uint16)
        blocks[:, 34:50] = words.view(np.uint8)


def make_blocks(name):
    reader = getattr(gguf.quants, name, None)
    entries = reader.grid_shape[0] if name != "IQ1_M" and getattr(reader, "grid_shape", None) else 0
    named = random_blocks(entries // (64 if name in ("IQ3_XXS", "IQ3_S") else 32), name)
    if entries:
        name_entries(name, named)
    blocks = np.concatenate([random_blocks(len(HALVES) * 2, name), named])
    for at in TYPES[name]:
        set_halves(blocks, at)
    if name == "IQ1_M":
        set_iq1_m_halves(blocks)
    if name == "MXFP4":
        blocks[:, 0] = np.resize(EXPONENTS, len(blocks))
    return blocks


def main():
    writer = gguf.GGUFWriter(HERE / "types.gguf", "llama")
    expected = {}
    for name in TYPES:
        blocks = make_blocks(name)
        with np.errstate(over="ignore"):
            values = np.ascontiguousarray(dequantize(blocks, name), np.float32)
        number = NUMBERS.get(name) or gguf.GGMLQuantizationType[name]
        assert not np.isnan(values).any(), name
        writer.add_tensor(name, blocks.view(np.int8), raw_shape=values.shape, raw_dtype=number)
        data = values.tobytes()
        digest = hashlib.sha256(struct.pack("<Q", len(data)) + data).hexdigest()
        first = values[:, :SHOWN].copy().view(np.uint32).reshape(-1)
        expected[name] = {"shape": list(values.shape), "digest": digest, "first": [int(b) for b in first]}
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    (HERE / "types_expected.json").write_text(json.dumps(expected, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
