"""Makes the golden KV files of format version 1, and the fuzzer's seeds, from docs/store-format.md alone.

    python3 tests/golden/kv_store/make_goldens.py

Shares no code with src/quire/kv_store: a second implementation of the format, so that document and program are compared.
Needs libxxhash and libzstd, which the build needs too. Files of an older version stay in the tree when the version grows.
"""

import ctypes
import pathlib
import struct

HERE = pathlib.Path(__file__).resolve().parent
CORPUS = HERE.parents[1] / "fuzz" / "corpus" / "kv_file"

xxhash = ctypes.CDLL("libxxhash.so.0")
xxhash.XXH3_64bits.restype = ctypes.c_uint64
xxhash.XXH3_64bits.argtypes = [ctypes.c_char_p, ctypes.c_size_t]
zstd = ctypes.CDLL("libzstd.so.1")
zstd.ZSTD_compress.restype = ctypes.c_size_t
zstd.ZSTD_compress.argtypes = [ctypes.c_char_p, ctypes.c_size_t, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_int]

LAYERS, KV_HEADS, HEAD_DIM, BLOCK_TOKENS, WINDOWS = 2, 2, 8, 4, (0, 16)
STORED_DIM = 32
RUNS = [([7, 10, 13, 16, 19, 22], 0), ([100, 50, 0], 32000)]  # token ids, position of the first
METADATA = '{"name":"golden","é":[1,2]}'.encode()
FINGERPRINT = bytes(range(1, 33))
OBJECT_HASH = b"0123456789abcdef" * 4


def checksum(data):
    return xxhash.XXH3_64bits(data, len(data))


def head_block(run, layer, head, block):
    """K [dim / 2][slots][2] and V [slots / 2][dim][2] of bf16; slots without a token are zero."""
    tokens = min(BLOCK_TOKENS, len(RUNS[run][0]) - block * BLOCK_TOKENS)
    values = [0] * (2 * STORED_DIM * BLOCK_TOKENS)
    for slot in range(tokens):
        for dim in range(STORED_DIM):
            at = ((run * LAYERS + layer) * KV_HEADS + head) * 8 + block
            value = 0x3F00 + (at * 131 + slot * 7 + dim * 3) % 256  # bf16 between 0.5 and 2: they share bits, so they compress
            values[(dim // 2 * BLOCK_TOKENS + slot) * 2 + dim % 2] = value
            values[STORED_DIM * BLOCK_TOKENS + (slot // 2 * STORED_DIM + dim) * 2 + slot % 2] = value ^ 0x8000
    return struct.pack(f"<{len(values)}H", *values)


def compressed(block):
    planes = block[0::2] + block[1::2]
    room = ctypes.create_string_buffer(len(block) - 1)
    size = zstd.ZSTD_compress(room, len(room), planes, len(planes), 1)
    return room.raw[:size] if size <= len(room) else block  # an error code is a huge number


def kv_file(codec, runs):
    """Preamble, header and payload."""
    blocks = [
        [head_block(run, layer, head, block) for layer in range(LAYERS) for head in range(KV_HEADS) for block in range(-(-len(tokens) // BLOCK_TOKENS))]
        for run, (tokens, _) in enumerate(runs)
    ]
    stored = [[compressed(block) if codec else block for block in run] for run in blocks]
    size = 32 + 64 + 8 * 4 + 4 * LAYERS + sum(16 + 4 * len(tokens) for tokens, _ in runs)
    size += sum((12 if codec else 8) * len(run) for run in blocks) + len(METADATA)
    end, offsets = 64 + size, []
    for run in stored:
        offsets.append(-(-end // 4096) * 4096)
        end = offsets[-1] + sum(map(len, run))
    header = FINGERPRINT + OBJECT_HASH
    header += struct.pack("<8I", LAYERS, KV_HEADS, HEAD_DIM, BLOCK_TOKENS, 2, codec, len(runs), len(METADATA))
    header += struct.pack("<2i", *WINDOWS)
    for (tokens, position), offset in zip(runs, offsets):
        header += struct.pack("<IiQ", len(tokens), position, offset)
    for tokens, _ in runs:
        header += struct.pack(f"<{len(tokens)}i", *tokens)
    header += b"".join(struct.pack("<Q", checksum(block)) for run in blocks for block in run)
    if codec:
        header += b"".join(struct.pack("<I", len(block)) for run in stored for block in run)
    header += METADATA
    assert len(header) == size
    preamble = b"\x8aQKV\r\n\x1a\n" + struct.pack("<IIQQQQQ", 1, 0, size, end, checksum(header), 0, 0)
    preamble += struct.pack("<Q", checksum(preamble))
    file = bytearray(preamble + header)
    for run, offset in zip(stored, offsets):
        file += bytes(offset - len(file)) + b"".join(run)
    return bytes(file), size


def main():
    CORPUS.mkdir(parents=True, exist_ok=True)
    for name, codec, runs in (("raw", 0, RUNS), ("planes", 1, RUNS), ("metadata", 0, [])):
        file, header_bytes = kv_file(codec, runs)
        (HERE / f"v1_{name}.qkv").write_bytes(file)
        (CORPUS / f"{name}").write_bytes(b"\0" + file)
        (CORPUS / f"{name}_sealed").write_bytes(b"\1" + struct.pack("<H", header_bytes) + file[64:])


if __name__ == "__main__":
    main()
