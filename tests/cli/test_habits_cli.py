"""Tests the first tries of users of other tools, names of the hub, and bytes that are no text. Each works, or the error
says the way out.

Run by CTest as `test_habits_cli.py PROGRAM MODEL`; standard library only.
"""
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

PROGRAM, MODEL = "", ""
SECONDS = 60  # a limit for a hanging program
BYTES = b"Z\xfcrich"  # Latin-1
REFUSED = "byte 2 (0xFC) is not UTF-8; convert the text first, as with iconv -f latin1 -t utf-8"

# Options of other tools on `quire run`, and what is said.
OPTIONS = (
    ("-hf", "Quire downloads nothing"), ("-hfr", "Quire downloads nothing"), ("--hf", "Quire downloads nothing"),
    ("--hf-repo", "Quire downloads nothing"), ("--model-url", "Quire downloads nothing"), ("-ngl", "here it is --device cuda"),
    ("-c", "--kv-budget bounds"), ("--ctx-size", "--kv-budget bounds"), ("--ctx_size", "--kv-budget bounds"),
    ("--num_ctx", "--kv-budget bounds"), ("--max-model-len", "--kv-budget bounds"), ("-n", "here it is --max-tokens"),
    ("--max_new_tokens", "here it is --max-tokens"), ("--gpu-memory-utilization", "here it is --kv-budget"),
    ("--tensor-parallel-size", "Quire does not have it yet"), ("--grammar", "Quire does not have it yet"),
    ("--kv-cache-dtype", "here it is --kv-dtype"), ("--quantization", "here it is --quantize"), ("--block-size", "here it is --block-tokens"),
    ("--max-num-batched-tokens", "here it is --max-batch-tokens"), ("--enable-prefix-caching", "prefixes are always reused"),
    ("--flash-attn", "Quire always does it"), ("--no-mmap", "nothing is to be set"), ("--trust-remote-code", "the files of the model say it"),
    ("--torch-dtype", "here it is --dtype"), ("--keepalive", "no process stays behind"), ("--port", "quire serve"),
    ("-no-cnv", "here it is --raw"), ("-i", "quire chat MODEL talks"), ("--do-sample", "--temperature (0 is greedy)"),
)


def quire(*arguments, text=None, env=None):
    """Runs the program and returns its result; all as bytes."""
    return subprocess.run([os.fsencode(each) for each in (PROGRAM, *arguments)], input=text, stdin=None if text else subprocess.DEVNULL,
                          capture_output=True, timeout=SECONDS, env={**os.environ, **(env or {})})


def hub_cache(folder, name="owner/tiny-model", commit="0123abc"):
    """Makes a Hugging Face cache that has the demo model under a name."""
    repository = pathlib.Path(folder, f"models--{name.replace('/', '--')}")
    snapshot = repository / "snapshots" / commit
    snapshot.mkdir(parents=True)
    for file in pathlib.Path(MODEL).iterdir():
        (snapshot / file.name).symlink_to(file.resolve())
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(commit)


class RefusalTest(unittest.TestCase):
    def assert_refused(self, done, code, *parts):
        error = done.stderr.decode(errors="replace")
        self.assertEqual((done.returncode, done.stdout), (code, b""), error)
        self.assertTrue(error.startswith("error: ") and error.count("\n") == 1, error)
        for part in parts:
            self.assertIn(part, error)


class WordsTest(RefusalTest):
    def test_options_of_other_tools_are_answered_with_the_word_here(self):
        for option, said in OPTIONS:
            for given in ([MODEL, "x", option, "4"], [option, "4", MODEL, "x"]):
                with self.subTest(given):
                    self.assert_refused(quire("run", *given), 2, f'unknown option "{option}"', said, "see quire run --help")

    def test_the_model_by_name_alone_is_refused_for_what_it_is_not_for_what_it_lacks(self):
        self.assert_refused(quire("run", "-hf", "owner/tiny-model"), 2, 'unknown option "-hf"', "owner/name")
        self.assert_refused(quire("-hf", "owner/tiny-model"), 2, 'unknown option "-hf"')
        self.assertEqual(quire("run", "-h").stdout, quire("run", "--help").stdout)

    def test_a_command_takes_the_words_that_it_has(self):
        self.assert_refused(quire("bench", MODEL, "-p", "512"), 2, "here it is --prompt")
        self.assert_refused(quire("bench", MODEL, "-n", "512"), 2, "here it is --generate")
        self.assert_refused(quire("tokenize", MODEL, "x", "--show-count"), 2, "Quire always does it")
        self.assert_refused(quire("run", MODEL, "-p", "hi"), 2, "the prompt stands by itself")

    def test_commands_of_the_same_meaning_are_named(self):
        for arguments, said in ((["chunk", "delete", MODEL, "a"], "did you mean rm?"), (["chunk", "ls", MODEL], "did you mean list?"),
                                (["store", "list", "s"], "did you mean ls?"), (["store", "delete", "s", "a"], "did you mean rm?"),
                                (["launch"], "quire serve"), (["quantize"], "--quantize"), (["benchmark"], "quire bench"),
                                (["models"], "quire inspect"), ([MODEL], "quire chat MODEL talks, quire run MODEL PROMPT"),
                                (["m.gguf"], "quire chat MODEL talks")):
            with self.subTest(arguments):
                self.assert_refused(quire(*arguments), 2, said)
        self.assert_refused(quire("store"), 2, "see quire store --help")


class HubTest(RefusalTest):
    def test_a_name_is_found_in_the_local_cache_by_every_command(self):
        with tempfile.TemporaryDirectory() as folder:
            hub_cache(folder)
            env = {"HF_HUB_CACHE": folder}
            for name in ("owner/tiny-model", "owner/tiny-model@main", "owner/tiny-model@0123abc"):
                with self.subTest(name):
                    self.assertEqual(quire("tokenize", name, "Ada", env=env).stdout, quire("tokenize", MODEL, "Ada").stdout)
            asked = ["x", "--temperature", "0", "--max-tokens", "4"]
            self.assertEqual(quire("run", "owner/tiny-model", *asked, env=env).stdout, quire("run", MODEL, *asked).stdout)
            self.assertIn(b"family: llama", quire("inspect", "owner/tiny-model", env=env).stdout)
            self.assertEqual(quire("chat", "owner/tiny-model", text=b"/bye\n", env=env).returncode, 0)
            self.assert_refused(quire("run", "owner/tiny-model@v2", "x", env=env), 1, 'no revision "v2" of it')
            self.assert_refused(quire("run", "owner/other", "x", env=env), 1, f'no model of that name in {folder}; "hf download owner/other"')

    def test_the_cache_lies_where_the_variables_of_the_hub_say(self):
        with tempfile.TemporaryDirectory() as folder:
            hub_cache(pathlib.Path(folder, "huggingface", "hub"))
            none = {"HF_HUB_CACHE": "", "HUGGINGFACE_HUB_CACHE": "", "HF_HOME": "", "XDG_CACHE_HOME": ""}
            below = pathlib.Path(folder, "huggingface")
            for variable, value in (("HF_HUB_CACHE", below / "hub"), ("HUGGINGFACE_HUB_CACHE", below / "hub"), ("HF_HOME", below),
                                    ("XDG_CACHE_HOME", folder)):
                with self.subTest(variable):
                    done = quire("tokenize", "owner/tiny-model", "Ada", env={**none, variable: str(value)})
                    self.assertEqual((done.returncode, done.stdout), (0, quire("tokenize", MODEL, "Ada").stdout))

    def test_addresses_and_tags_say_that_nothing_is_downloaded(self):
        for name in ("https://huggingface.co/owner/m", "hf.co/owner/m", "llama3:8b", "owner/m:Q4_K_M"):
            with self.subTest(name):
                self.assert_refused(quire("run", name, "x"), 1, f'no model at "{name}"', "Quire downloads nothing")


class OrderTest(RefusalTest):
    def test_options_may_stand_before_the_name_of_the_command(self):
        plain = quire("run", MODEL, "hi", "--temperature", "0", "--max-tokens", "4")
        for given in (["--temperature", "0", "run", "--max-tokens", "4", MODEL, "hi"], ["--temperature=0", "--max-tokens=4", "run", MODEL, "hi"]):
            self.assertEqual(quire(*given).stdout, plain.stdout)
        with tempfile.TemporaryDirectory() as store:
            for i, given in enumerate((["--type", "query", "chunk", "add", MODEL, "--store", store], ["chunk", "--type", "query", "add", MODEL, "--store", store],
                                       ["--store", store, "chunk", "--type=query", "add", MODEL], ["chunk", "add", "--type", "query", "--store", store, MODEL])):
                done = quire(*given, f"text {i}")
                self.assertEqual((done.returncode, done.stderr), (0, b""), given)
            self.assertEqual(len(quire("chunk", "--store", store, "list", MODEL).stdout.splitlines()), 4)
            self.assert_refused(quire("--typ", "query", "chunk", "add", MODEL, "x", "--store", store), 2, 'unknown option "--typ"')
            self.assert_refused(quire("--kind", "chunk", "chunk", "list", MODEL), 2, "--kind")


class StdinTest(RefusalTest):
    """Text on stdin is read, or a note says that it is not."""

    def test_a_chunk_takes_the_text_that_is_piped_in(self):
        with tempfile.TemporaryDirectory() as store:
            piped = quire("chunk", "add", MODEL, "--type", "context", "--store", store, text=b"Ada trades in apples.")
            given = quire("chunk", "add", MODEL, "Ada trades in apples.", "--type", "context", "--store", store)
            self.assertEqual((piped.returncode, piped.stdout, piped.stderr), (0, given.stdout, b""))
            self.assert_refused(quire("chunk", "add", MODEL, "--type", "context", "--store", store), 2, "or pipe text in")

    def test_what_is_not_read_is_named(self):
        with tempfile.TemporaryDirectory() as store:
            add = ["chunk", "add", MODEL, "--type", "query", "--name", "q", "--store", store]
            for arguments, beside in ((["tokenize", MODEL, "x"], "TEXT"), ([*add, "x"], "TEXT"), ([*add, "--token-ids", "5"], "--token-ids")):
                with self.subTest(arguments):
                    done = quire(*arguments, text=b"more\n")
                    said = done.stderr.decode().replace("1 token\n", "")
                    self.assertEqual((done.returncode, said), (0, f"(the text on stdin is not read: {beside} is given)\n"))
                    self.assertEqual(quire(*arguments).stderr.decode().replace("1 token\n", ""), "")


class NumbersTest(unittest.TestCase):
    def test_json_has_numbers_as_people_write_them(self):
        with tempfile.TemporaryDirectory() as store:
            quire("chunk", "add", MODEL, "x", "--type", "context", "--store", store)
            for arguments in (["run", MODEL, "hi", "--max-tokens", "2", "--format", "json", "--logprobs", "1"], ["store", "ls", store, "--json"],
                              ["inspect", MODEL, "--format", "json"], ["chunk", "list", MODEL, "--store", store, "--format", "json"]):
                out = quire(*arguments).stdout.decode()
                with self.subTest(arguments):
                    json.loads(out)  # the oracle
                    self.assertNotRegex(out, r"[0-9]E[-+0-9]")
        self.assertIn('"recompute_share":0.0', quire("run", MODEL, "hi", "--max-tokens", "1", "--format", "json").stdout.decode())


class EmptyAnswerTest(unittest.TestCase):
    def test_an_answer_that_ends_at_once_is_named(self):
        asked = json.loads(quire("run", MODEL, "hi", "--temperature", "0", "--format", "json").stdout)
        self.assertEqual(asked["stopped_by"], "eos")
        answered = asked["prompt_token_ids"] + [id for id in asked["token_ids"] if id != 2]  # only the end can follow
        ids = ["run", MODEL, "--prompt-ids", ",".join(map(str, answered)), "--temperature", "0"]
        done = quire(*ids)
        self.assertEqual((done.returncode, done.stdout), (0, b"\n"))
        self.assertEqual(done.stderr, b"(the answer is empty: the model ended it at once; its chat template was left out)\n")
        self.assertEqual(quire(*ids, "--format", "json").stderr, b"")
        stopped = quire("run", MODEL, "hi", "--temperature", "0", "--stop", asked["text"][:2])
        self.assertEqual((stopped.stdout, stopped.stderr), (b"\n", b""))  # the user's own end


class BytesTest(RefusalTest):
    def test_arguments_that_are_no_utf8_are_refused_with_the_place(self):
        for name, arguments in (("PROMPT", ["run", MODEL, BYTES]), ("--system", ["run", MODEL, "x", "--system", BYTES]),
                                ("--stop", ["run", MODEL, "x", "--stop", BYTES]), ("TEXT", ["tokenize", MODEL, BYTES]),
                                ("TEXT", ["chunk", "add", MODEL, BYTES, "--type", "context", "--store", "s"]),
                                ("--name", ["chunk", "add", MODEL, "x", "--name", BYTES, "--type", "context", "--store", "s"])):
            with self.subTest(arguments):
                self.assert_refused(quire(*arguments), 2, f"{name}: {REFUSED}")

    def test_files_and_stdin_that_are_no_utf8_are_refused_with_the_place(self):
        with tempfile.NamedTemporaryFile() as file:
            file.write(BYTES)
            file.flush()
            self.assert_refused(quire("run", MODEL, "--prompt-file", file.name), 1, f'"{file.name}": {REFUSED}')
            for command in (["run", MODEL, "x", "--max-tokens", "1"], ["chat", MODEL]):
                done = quire(*command, "--document", file.name)
                self.assertEqual((done.returncode, done.stderr.decode()),
                                 (0, f'note: "{file.name}": byte 2 (0xFC) is not UTF-8; such bytes are read as U+FFFD\n'))
        for arguments in (["run", MODEL], ["run", MODEL, "x"], ["run", MODEL, "--prompt-file", "-"], ["tokenize", MODEL]):
            with self.subTest(arguments):
                self.assert_refused(quire(*arguments, text=BYTES), 1, f"stdin: {REFUSED}")

    def test_lines_that_are_no_utf8_are_noted_in_a_chat_and_refused_in_a_script(self):
        done = quire("chat", MODEL, text=b"/add " + BYTES + b"\n/add Z\xc3\xbcrich\n")
        self.assertEqual(done.stderr.decode(), "note: the line: byte 7 (0xFC) is not UTF-8; such bytes are read as U+FFFD\n")
        self.assertRegex(done.stdout.decode(), r"context [0-9a-f]{12}, \d+ tokens\n\Z")
        done = quire("script", MODEL, text=b"chunk list\nchunk add " + BYTES + b" --type context\n")
        self.assertEqual((done.returncode, done.stdout), (2, b""))
        self.assertIn("line 2: the line: byte", done.stderr.decode())


class UrgencyTest(unittest.TestCase):
    """--deadline-seconds, --priority and --tenant of the commands that ask. A deadline of a microsecond always passes."""

    ASKED = (("run", ("Ada trades in",)), ("chat", ()), ("script", ()))
    LINES = {"run": None, "chat": b"What does Ada trade in?\n",
             "script": b'chunk add --type system_prompt --name keeper "Keep the cards."\nrun "What?" --chunk keeper --deadline-seconds 1e-6\n'}

    def test_a_deadline_ends_the_request(self):
        for command, prompt in self.ASKED:
            with self.subTest(command):
                flags = () if command == "script" else ("--deadline-seconds", "1e-6", "--priority", "2", "--tenant", "ada")
                done = quire(command, MODEL, *prompt, *flags, text=self.LINES[command])
                self.assertIn(b"the deadline of 1e-06 s has passed", done.stderr)
                self.assertEqual(done.returncode, 0 if command == "chat" else 1)

    def test_a_deadline_that_is_no_time_is_wrong_usage(self):
        for command, prompt in self.ASKED[:2]:
            for seconds in ("0", "-1", "inf", "nan"):
                with self.subTest(command, seconds=seconds):
                    done = quire(command, MODEL, *prompt, f"--deadline-seconds={seconds}", text=self.LINES[command])
                    self.assertEqual(done.returncode, 2)
                    self.assertIn(b"want a number of seconds above 0", done.stderr)


if __name__ == "__main__":
    PROGRAM, MODEL = sys.argv.pop(1), sys.argv.pop(1)
    unittest.main()
