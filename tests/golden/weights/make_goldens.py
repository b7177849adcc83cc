"""Write the golden files of the weights module and what the original libraries read from them.

    pip install safetensors==0.8.0 gguf==0.19.0 numpy==2.4.6
    python make_goldens.py

Needed only when a case is added; the files are committed. Values are stored as the bits of fp32, so
that the comparison is exact. Sharded files are bf16 and fp16 views of the same numbers.
"""

import json
import pathlib
import struct

import gguf
import numpy as np
from safetensors.numpy import load_file, save_file

HERE = pathlib.Path(__file__).parent
RNG = np.random.default_rng(7)


def bits(values):
    return [int(b) for b in np.ascontiguousarray(values, np.float32).reshape(-1).view(np.uint32)]


def random(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


def to_bf16(values):
    """Truncates; any rounding gives a legal file."""
    return (values.view(np.uint32) >> 16).astype(np.uint16)


def bf16_to_float(halves):
    return (halves.astype(np.uint32) << 16).view(np.float32)


def raw_safetensors(path, tensors, metadata=None):
    """Writes a file with bfloat16, which numpy lacks. So such files are put together here and read back by
    the library."""
    header, offset, data = {}, 0, b""
    if metadata:
        header["__metadata__"] = metadata
    for name, (dtype, array) in tensors.items():
        end = offset + array.nbytes
        header[name] = {"dtype": dtype, "shape": list(array.shape), "data_offsets": [offset, end]}
        offset, data = end, data + array.tobytes()
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def entry(encoding, array, values):
    return {"encoding": encoding, "shape": list(array.shape), "bits": bits(values)}


def make_single():
    tensors = {
        "matrix": random(3, 5),
        "half": random(2, 33).astype(np.float16),
        "scalar": np.array(0.5, np.float32),
        "empty": np.zeros((0, 4), np.float32),
        "cube": random(2, 3, 4),
        "position_ids": np.arange(6, dtype=np.int64).reshape(1, 6),
    }
    path = HERE / "single.safetensors"
    save_file(tensors, path, metadata={"format": "pt"})
    read = load_file(path)
    names = {np.dtype(np.float32): "F32", np.dtype(np.float16): "F16"}
    return {n: entry(names[a.dtype], a, a.astype(np.float32)) for n, a in read.items()
            if a.dtype in names}


def make_shards():
    folder = HERE / "sharded"
    folder.mkdir(exist_ok=True)
    bf16, half = to_bf16(random(4, 40)), random(3, 64).astype(np.float16)
    norm = random(40)
    first, second = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
    raw_safetensors(folder / first, {"embed": ("BF16", bf16)}, {"format": "pt"})
    raw_safetensors(folder / second, {"norm": ("F32", norm), "proj": ("F16", half)})
    assert set(load_file(folder / second)) == {"norm", "proj"}
    index = {"metadata": {"total_size": 0},
             "weight_map": {"embed": first, "norm": second, "proj": second}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=1) + "\n")
    return {"embed": entry("BF16", bf16, bf16_to_float(bf16)), "norm": entry("F32", norm, norm),
            "proj": entry("F16", half, half.astype(np.float32))}


# Where their fp16 stand.
K_BLOCKS = {"q4_k": ("Q4_K", (0, 2)), "q5_k": ("Q5_K", (0, 2)), "q6_k": ("Q6_K", (208,))}


def make_gguf():
    path = HERE / "tiny.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_uint8("int.u8", 250)
    writer.add_int8("int.i8", -5)
    writer.add_uint16("int.u16", 65000)
    writer.add_int16("int.i16", -3000)
    writer.add_uint32("int.u32", 4000000000)
    writer.add_int32("int.i32", -2000000000)
    writer.add_uint64("int.u64", 1 << 62)
    writer.add_int64("int.i64", -(1 << 62))
    writer.add_float32("float.f32", 0.1)
    writer.add_float64("float.f64", 0.1)
    writer.add_bool("flag", True)
    writer.add_string("text", "naïve \U0001f600")
    writer.add_array("array.ints", [1, -2, 3])
    writer.add_array("array.floats", [0.5, -1.25])
    writer.add_array("array.flags", [True, False])
    writer.add_array("array.texts", ["a", "", "Ġthe"])
    types = {"f32": "F32", "f16": "F16", "bf16": "BF16", "q8_0": "Q8_0", "q4_0": "Q4_0",
             "q4_1": "Q4_1"}
    expected = {}
    for name, type_name in types.items():
        kind = gguf.GGMLQuantizationType[type_name]
        values = random(3, 64)
        data = gguf.quants.quantize(values, kind)
        writer.add_tensor(name, data, raw_dtype=kind)
        expected[name] = entry(type_name, values, gguf.quants.dequantize(data, kind))
    kind = gguf.GGMLQuantizationType.Q8_K
    writer.add_tensor("q8_k", np.zeros((2, 292), np.uint8), raw_dtype=kind)
    for name, type_name in {"q5_0": "Q5_0", "q5_1": "Q5_1"}.items():
        kind = gguf.GGMLQuantizationType[type_name]
        values = random(2, 64)
        data = gguf.quants.quantize(values, kind)
        writer.add_tensor(name, data, raw_dtype=kind)
        expected[name] = entry(type_name, values, gguf.quants.dequantize(data, kind))
    # gguf-py does not quantise to these: any bytes are a block, as long as its fp16 are numbers.
    for name, (type_name, halves) in K_BLOCKS.items():
        kind = gguf.GGMLQuantizationType[type_name]
        data = RNG.integers(0, 256, (2, gguf.GGML_QUANT_SIZES[kind][1]), dtype=np.uint8)
        for at in halves:
            data[:, at:at + 2] = np.array([0.017, -0.0031], np.float16).reshape(2, 1).view(np.uint8)
        values = gguf.quants.dequantize(data, kind)
        writer.add_tensor(name, data, raw_dtype=kind)
        expected[name] = entry(type_name, values, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return expected


def main():
    expected = {"single.safetensors": make_single(), "sharded": make_shards(),
                "tiny.gguf": make_gguf()}
    (HERE / "expected.json").write_text(json.dumps(expected, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
