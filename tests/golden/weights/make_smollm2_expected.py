"""Write smollm2_expected.json: what gguf-py reads from SmolLM2's GGUF file, all metadata and every value.

    pip install gguf==0.19.0
    python make_smollm2_expected.py ../../../.cache/smollm2/SmolLM2-135M-Instruct.Q4_1.gguf

Long things are stored as SHA-256 over fields, each preceded by its length in 8 bytes (base/sha256.h).
"""

import hashlib
import json
import pathlib
import struct
import sys

import gguf
import numpy as np


def digest(fields):
    state = hashlib.sha256()
    for field in fields:
        state.update(struct.pack("<Q", len(field)))
        state.update(field)
    return state.hexdigest()


def metadata_value(field):
    """Returns scalars as they are, and arrays as [length, digest of the elements' text]."""
    value = field.contents()
    if field.types[0] != gguf.GGUFValueType.ARRAY:
        return value
    return [len(value), digest(str(element).encode() for element in value)]


def main():
    reader = gguf.GGUFReader(sys.argv[1])
    metadata = {name: metadata_value(field) for name, field in reader.fields.items()
                if not name.startswith("GGUF.")}
    tensors = {}
    for tensor in reader.tensors:
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        shape = [int(size) for size in reversed(tensor.shape)]
        tensors[tensor.name] = [tensor.tensor_type.name, shape, digest([values.tobytes()])]
    text = json.dumps({"metadata": metadata, "tensors": tensors}, indent=0) + "\n"
    (pathlib.Path(__file__).parent / "smollm2_expected.json").write_text(text)


if __name__ == "__main__":
    main()
