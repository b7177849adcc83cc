"""Copy a Llama-like folder so that a few channels of its keys are much larger than the rest, and its function is the same.

    python3 tools/key_outliers.py MODEL OUT [--channels 4] [--factor 8]

Keys of large language models have such channels, and small or random models have hardly any. A format of KV shows its
weakness there. Each chosen channel of the keys is multiplied by a power of two and that of the queries divided by it, so
that every score keeps its bits. Channels are chosen by the pairs that rotary positions turn together.
"""

import argparse
import json
import pathlib
import random
import re
import shutil
import sys

import numpy

SEED = 1
PROJECTION = re.compile(r"model\.layers\.(\d+)\.self_attn\.([qk])_proj\.(weight|bias)")


def read_tensors(path):
    """The header and the bytes of a safetensors file, which may be written to."""
    data = bytearray(path.read_bytes())
    size = int.from_bytes(data[:8], "little")
    return json.loads(data[8:8 + size]), data, 8 + size


def multiply(data, dtype, rows, factors):
    """Multiplies each row of a tensor by its factor, a power of two."""
    if dtype == "BF16":
        bits = numpy.frombuffer(data, numpy.uint16).reshape(rows, -1)
        numbers = (bits.astype(numpy.uint32) << 16).view(numpy.float32) * factors
        bits[:] = (numbers.view(numpy.uint32) >> 16).astype(numpy.uint16)
    elif dtype in ("F32", "F16"):
        numbers = numpy.frombuffer(data, {"F32": numpy.float32, "F16": numpy.float16}[dtype]).reshape(rows, -1)
        numbers *= factors.astype(numbers.dtype)
    else:
        sys.exit(f"error: tensors of type {dtype} cannot be scaled; give a model in BF16, F16 or F32")


def key_factors(config, layer, channels, factor):
    """A factor for each row of the key projection: the chosen channels of each head, both of a rotary pair."""
    heads = config.get("num_key_value_heads", config["num_attention_heads"])
    size = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    choice = random.Random(f"{SEED} {layer}")
    factors = numpy.ones((heads, size), numpy.float32)
    for head in range(heads):
        for pair in choice.sample(range(size // 2), channels // 2):
            factors[head, [pair, pair + size // 2]] = factor
    return factors


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=pathlib.Path)
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--channels", type=int, default=4, help="of each head, an even number")
    parser.add_argument("--factor", type=int, default=8, help="a power of two")
    arguments = parser.parse_args()
    if arguments.channels % 2 or arguments.factor & (arguments.factor - 1) or arguments.factor < 1:
        parser.error("--channels must be even and --factor a power of two")
    config = json.loads((arguments.model / "config.json").read_text())
    group = config["num_attention_heads"] // config.get("num_key_value_heads", config["num_attention_heads"])
    shutil.copytree(arguments.model, arguments.out)
    scaled = 0
    for path in arguments.out.glob("*.safetensors"):
        header, data, start = read_tensors(path)
        for name, tensor in header.items():
            found = PROJECTION.fullmatch(name)
            if not found:
                continue
            factors = key_factors(config, int(found[1]), arguments.channels, arguments.factor)
            if found[2] == "q":
                factors = 1 / numpy.repeat(factors, group, axis=0)
            begin, end = (start + at for at in tensor["data_offsets"])
            multiply(memoryview(data)[begin:end], tensor["dtype"], factors.size, factors.reshape(-1, 1))
            scaled += 1
        path.write_bytes(data)
    if scaled == 0:
        sys.exit(f"error: {arguments.model} has no safetensors with q_proj and k_proj; give a Llama-like folder")
    print(arguments.out)


if __name__ == "__main__":
    main()
