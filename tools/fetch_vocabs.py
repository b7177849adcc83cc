"""Fetch llama.cpp's test vocabularies and chat templates (MIT) into .cache/llama-vocabs/ from the source
distribution of llama-cpp-python.

    python3 tools/fetch_vocabs.py        prints the folder; does nothing when it is complete
"""

import pathlib
import subprocess
import sys
import tarfile
import tempfile

PACKAGE = "llama-cpp-python"
VERSION = "0.3.36"
FOLDER = f"llama_cpp_python-{VERSION}/vendor/llama.cpp/models/"
TARGET = pathlib.Path(__file__).resolve().parents[1] / ".cache" / "llama-vocabs"
DONE = TARGET / "complete"


def wanted(name):
    return name.startswith(FOLDER + "ggml-vocab-") or (
        name.startswith(FOLDER + "templates/") and name.endswith(".jinja"))


def fetch():
    TARGET.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=TARGET.parent) as folder:
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", PACKAGE]
        subprocess.run([*pip, "--dest", folder, f"{PACKAGE}=={VERSION}"], check=True, stdout=sys.stderr)
        (sdist,) = pathlib.Path(folder).glob("*.tar.gz")
        with tarfile.open(sdist) as archive:
            for member in archive:
                if member.isfile() and wanted(member.name):
                    path = TARGET / member.name.removeprefix(FOLDER)
                    path.parent.mkdir(exist_ok=True)
                    path.write_bytes(archive.extractfile(member).read())
    DONE.write_text(VERSION + "\n")  # last, so that half a fetch is never taken for the whole


if __name__ == "__main__":
    if not DONE.exists() or DONE.read_text().strip() != VERSION:
        fetch()
    print(TARGET)
