"""Makes the golden KV and weights files, and the fuzzers' seeds, from docs/store-format.md alone.

    python3 tests/golden/kv_store/make_goldens.py

Shares no code with src/quire/kv_store: a second implementation of the format, so that document and program are compared.
Needs libxxhash and libzstd, which the build needs too. Files of an older version stay in the tree when the version grows.
"""

import ctypes
import pathlib
import struct

HERE = pathlib.Path(__file__).resolve().parent
CORPUS = HERE.parents[1] / "fuzz" / "corpus"

xxhash = ctypes.CDLL("libxxhash.so.0")
xxhash.XXH3_64bits.restype = ctypes.c_uint64
xxhash.XXH3_64bits.argtypes = [ctypes.c_char_p, ctypes.c_size_t]
zstd = ctypes.CDLL("libzstd.so.1")
zstd.ZSTD_compress.restype = ctypes.c_size_t
zstd.ZSTD_compress.argtypes = [ctypes.c_char_p, ctypes.c_size_t, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_int]

LAYERS, KV_HEADS, HEAD_DIM, BLOCK_TOKENS, WINDOWS = 2, 2, 8, 4, (0, 16)
STORED_DIM = 32
RUNS = [([7, 10, 13, 16, 19, 22], 0), ([100, 50, 0], 32000)]  # token ids, position of the first
# Version 2: every layer has a window; token ids, position of the first, lost blocks.
LOST_WINDOWS = (5, 3)
LOST_RUNS = [([9, 8, 7, 6], 0, 1), ([7, 10, 13, 16, 19, 22], 4, 1)]
# Version 3: the first run is of float32, the second of the file's bf16.
FLOAT32 = 1
TYPES = (FLOAT32, 0)
# KV that is stored block by block: a full block of codes, and the rest as it was computed.
BF16, FP8, INT4 = 2, 8, 11  # the last two computed in bf16
SEALED_TOKENS = 32
SEALED_RUNS = [(list(range(40, 40 + SEALED_TOKENS)), 0), ([5, 6, 7], SEALED_TOKENS)]
# Version 4: states behind 3 and 9 tokens; layer, form and bytes of each part, tokens and flags of each state.
PARTS = [(1, 1, 24), (1, 2, 64), (3, 1, 24)]
STATES = [(3, 1), (9, 0)]
# Version 6: the first run has lost the window part of its first block. Layer 1 has a window.
LOST_PARTS = (1, 0)
METADATA = '{"name":"golden","é":[1,2]}'.encode()
FINGERPRINT = bytes(range(1, 33))
OBJECT_HASH = b"0123456789abcdef" * 4

WEIGHTS_DIGEST = b"fedcba9876543210" * 4
MODEL = b"/models/golden"
SOURCES = [(b"/models/golden/a.safetensors", 123, 1_700_000_000_000_000_001)]  # path, bytes, modified
PACKING_VERSION = 1
STEP_BYTES = {0: 4096, 1: 2048, 2: 1088, 3: 576, 4: 640}  # of 32 outputs and 32 inputs, by format
VECTOR = 255
WEIGHTS = [(3, 33, 40), (VECTOR, 5, 0), (1, 32, 64)]  # format, outputs, inputs
PIECE = 4 << 20


def checksum(data):
    return xxhash.XXH3_64bits(data, len(data))


def sealed_block(kind, at):
    """Returns a full block of fp8 or int4: codes of K and V, then their scales and minimums."""
    numbers = 2 * STORED_DIM * SEALED_TOKENS
    if kind == FP8:
        codes = bytes((at * 31 + i * 7) % 127 for i in range(numbers))  # 127 would be no number
        return codes + struct.pack("<2f", 0.5 + at, 1.5) + bytes(56)
    codes = bytes((at * 31 + i * 7) % 256 for i in range(numbers // 2))
    scales = [0x3C00 + (at + i) % 64 for i in range(STORED_DIM)]  # fp16, above 1
    return codes + 2 * (struct.pack(f"<{STORED_DIM}H", *scales) + struct.pack(f"<{STORED_DIM}H", *(scale ^ 0x8000 for scale in scales)))


def head_block(run, num_tokens, layer, head, block, kind=0, block_tokens=BLOCK_TOKENS):
    """Returns K [dim / 2][slots][2] and V [slots / 2][dim][2] of bf16; slots without a token are zero.

    FLOAT32 has the same numbers as K [dim][slots] and V [slots][dim].
    """
    if kind in (FP8, INT4):
        return sealed_block(kind, (run * LAYERS + layer) * KV_HEADS + head)
    tokens = min(block_tokens, num_tokens - block * block_tokens)
    values = [0] * (2 * STORED_DIM * block_tokens)
    for slot in range(tokens):
        for dim in range(STORED_DIM):
            at = ((run * LAYERS + layer) * KV_HEADS + head) * 8 + block
            value = 0x3F00 + (at * 131 + slot * 7 + dim * 3) % 256  # bf16 between 0.5 and 2: they share bits, so they compress
            if kind == FLOAT32:
                values[dim * block_tokens + slot] = value
                values[STORED_DIM * block_tokens + slot * STORED_DIM + dim] = value ^ 0x8000
                continue
            values[(dim // 2 * block_tokens + slot) * 2 + dim % 2] = value
            values[STORED_DIM * block_tokens + (slot // 2 * STORED_DIM + dim) * 2 + slot % 2] = value ^ 0x8000
    if kind == FLOAT32:
        return struct.pack(f"<{len(values)}I", *(value << 16 for value in values))
    return struct.pack(f"<{len(values)}H", *values)


def compressed(block):
    planes = block[0::2] + block[1::2]
    room = ctypes.create_string_buffer(len(block) - 1)
    size = zstd.ZSTD_compress(room, len(room), planes, len(planes), 1)
    return room.raw[:size] if size <= len(room) else block  # an error code is a huge number


def preamble(kind, file_bytes, header, version=1):
    front = b"\x8aQ" + kind + b"\r\n\x1a\n" + struct.pack("<IIQQQQQ", version, 0, len(header), file_bytes, checksum(header), 0, 0)
    return front + struct.pack("<Q", checksum(front))


def weight_bytes(index):
    """Returns any bytes: what they mean is packed_weights.h's matter."""
    code, outputs, inputs = WEIGHTS[index]
    size = 4 * outputs if code == VECTOR else -(-outputs // 32) * -(-inputs // 32) * STEP_BYTES[code]
    return bytes((index * 31 + at * 7 + at // 256) % 256 for at in range(size))


def weights_file():
    """Returns preamble, header and payload."""
    parts = [weight_bytes(index) for index in range(len(WEIGHTS))]
    pieces = [part[at : at + PIECE] for part in parts for at in range(0, len(part), PIECE)]
    size = 2 * 64 + 4 * 4 + len(MODEL) + sum(20 + len(path) for path, _, _ in SOURCES) + 28 * len(WEIGHTS) + 8 * len(pieces)
    end, offsets = 64 + size, []
    for part in parts:
        offsets.append(-(-end // 4096) * 4096)
        end = offsets[-1] + len(part)
    header = OBJECT_HASH + WEIGHTS_DIGEST + struct.pack("<4I", PACKING_VERSION, len(MODEL), len(SOURCES), len(WEIGHTS)) + MODEL
    header += b"".join(struct.pack("<Iqq", len(path), size, modified) for path, size, modified in SOURCES)
    header += b"".join(path for path, _, _ in SOURCES)
    header += b"".join(struct.pack("<Iqqq", *shape, offset) for shape, offset in zip(WEIGHTS, offsets))
    header += b"".join(struct.pack("<Q", checksum(piece)) for piece in pieces)
    file = bytearray(preamble(b"WF", end, header) + header)
    assert len(file) == 64 + size
    for part, offset in zip(parts, offsets):
        file += bytes(offset - len(file)) + part
    return bytes(file), size


def state_part(state, part):
    """Returns the fp32 numbers of a part."""
    return b"".join(struct.pack("<f", state * 100 + part * 10 + i * 0.5) for i in range(PARTS[part][2] // 4))


def kv_file(codec, runs, lost=(), windows=WINDOWS, types=(), own=BF16, block_tokens=BLOCK_TOKENS, states=(), parts_lost=()):
    """Returns preamble, header and payload. `lost`: blocks of each run, for version 2. `types`: codes, for version 3.

    `states`: tokens and flags of each, for version 4, which has both lists too. `parts_lost`: blocks of each run, for
    version 6, which has both lists too and sizes of no layer.
    """
    if states or parts_lost:
        lost, types = [0] * len(runs), [0] * len(runs)
    lost = lost or [0] * len(types)
    firsts, kinds = lost or [0] * len(runs), types or [0] * len(runs)
    cuts = parts_lost or [0] * len(runs)
    blocks = [
        [
            head_block(run, len(tokens), layer, head, block, kind or own, block_tokens)
            for layer in range(LAYERS)
            for head in range(KV_HEADS)
            for block in range(first + (cut if windows[layer] else 0), -(-len(tokens) // block_tokens))
        ]
        for run, ((tokens, _), first, cut, kind) in enumerate(zip(runs, firsts, cuts, kinds))
    ]
    stored = [[compressed(block) if codec else block for block in run] for run in blocks]
    size = 32 + 64 + 8 * 4 + 4 * LAYERS + sum(16 + 4 * len(tokens) for tokens, _ in runs) + 4 * len(lost) + 4 * len(types)
    size += sum((12 if codec else 8) * len(run) for run in blocks) + len(METADATA)
    size += 4 + 4 * len(runs) if parts_lost else 0
    size += 8 + 16 * len(PARTS) + len(states) * (16 + 8 * len(PARTS)) if states else 0
    end, offsets = 64 + size, []
    for run in stored:
        offsets.append(-(-end // 4096) * 4096 if run else end)
        end = offsets[-1] + sum(map(len, run))
    parts = [[state_part(state, part) for part in range(len(PARTS))] for state in range(len(states))]
    places = []
    for state in parts:
        places.append(-(-end // 4096) * 4096)
        end = places[-1] + sum(map(len, state))
    header = FINGERPRINT + OBJECT_HASH
    header += struct.pack("<8I", LAYERS, KV_HEADS, HEAD_DIM, block_tokens, own, codec, len(runs), len(METADATA))
    header += struct.pack("<2i", *windows) + (struct.pack("<I", 0) if parts_lost else b"")
    for (tokens, position), offset in zip(runs, offsets):
        header += struct.pack("<IiQ", len(tokens), position, offset)
    header += struct.pack(f"<{len(lost)}i", *lost) + struct.pack(f"<{len(types)}I", *types)
    header += struct.pack(f"<{len(parts_lost)}i", *parts_lost)
    for tokens, _ in runs:
        header += struct.pack(f"<{len(tokens)}i", *tokens)
    header += b"".join(struct.pack("<Q", checksum(block)) for run in blocks for block in run)
    if codec:
        header += b"".join(struct.pack("<I", len(block)) for run in stored for block in run)
    if states:
        header += struct.pack("<2I", len(PARTS), len(states))
        header += b"".join(struct.pack("<iIq", *part) for part in PARTS)
        header += b"".join(struct.pack("<iIq", *state, place) for state, place in zip(states, places))
        header += b"".join(struct.pack("<Q", checksum(part)) for state in parts for part in state)
    header += METADATA
    assert len(header) == size
    version = 6 if parts_lost else 4 if states else 3 if types else 2 if lost else 1
    file = bytearray(preamble(b"KV", end, header, version) + header)
    for run, offset in zip(stored, offsets):
        file += bytes(offset - len(file)) + b"".join(run)
    for state, place in zip(parts, places):
        file += bytes(place - len(file)) + b"".join(state)
    return bytes(file), size


def write(folder, name, ending, file, header_bytes):
    """Writes the golden file, and as seeds the whole file and one to be sealed."""
    corpus = CORPUS / folder
    corpus.mkdir(parents=True, exist_ok=True)
    version = file[8]
    (HERE / f"v{version}_{name}{ending}").write_bytes(file)
    (corpus / name).write_bytes(b"\0" + file)
    (corpus / f"{name}_sealed").write_bytes(bytes([version]) + struct.pack("<H", header_bytes) + file[64:])


def main():
    for name, codec, runs in (("raw", 0, RUNS), ("planes", 1, RUNS), ("metadata", 0, [])):
        write("kv_file", name, ".qkv", *kv_file(codec, runs))
    lost = [blocks for _, _, blocks in LOST_RUNS]
    write("kv_file", "lost", ".qkv", *kv_file(0, [run[:2] for run in LOST_RUNS], lost, LOST_WINDOWS))
    write("kv_file", "types", ".qkv", *kv_file(0, RUNS, types=TYPES))
    for name, kind in (("fp8", FP8), ("int4", INT4)):
        write("kv_file", name, ".qkv", *kv_file(0, SEALED_RUNS, types=(0, BF16), own=kind, block_tokens=SEALED_TOKENS))
    write("kv_file", "parts", ".qkv", *kv_file(0, RUNS, parts_lost=LOST_PARTS))
    write("kv_file", "states", ".qkv", *kv_file(0, RUNS, states=STATES))
    write("kv_file", "states_alone", ".qkv", *kv_file(0, [], states=STATES[:1]))
    write("weights_file", "weights", ".qw", *weights_file())


if __name__ == "__main__":
    main()
