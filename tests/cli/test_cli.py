"""The command line as a user meets it: pipes, exit codes, JSON, Ctrl-C, bad input.

Run by CTest as `test_cli.py PROGRAM MODEL`; standard library only.
"""
import contextlib
import json
import os
import pathlib
import pty
import re
import select
import signal
import subprocess
import sys
import tempfile
import time
import unittest

PROGRAM, MODEL = "", ""
SECONDS = 120  # a limit for a hanging program, not a bar for speed
LONG = ["--max-tokens", "1500", "--ignore-eos", "--temperature", "0"]


def quire(*arguments, text=None, **options):
    """Runs the program with `text` on stdin (nothing without)."""
    return subprocess.run([PROGRAM, *map(str, arguments)], input=text if text is not None else "", text=True,
                          capture_output=True, timeout=SECONDS, **options)


def greedy(*arguments):
    return ["run", MODEL, "--temperature", "0", "--max-tokens", "8", *arguments]


class CommandLineTest(unittest.TestCase):
    def assert_refused(self, done, code, *parts):
        """Asserts one `error: ` line on stderr that names the thing, and nothing on stdout."""
        self.assertEqual(done.returncode, code, done.stderr)
        self.assertEqual(done.stdout, "")
        self.assertRegex(done.stderr, r"\Aerror: [^\n]+\n\Z")
        for part in parts:
            self.assertIn(part, done.stderr)

    def assert_json(self, done):
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(done.stderr, "")
        return json.loads(done.stdout)


class UsageTest(CommandLineTest):
    def test_version_and_help_go_to_stdout(self):
        self.assertRegex(quire("--version").stdout, r"\Aquire \d+\.\d+\.\d+\n\Z")
        for arguments in (["--help"], ["run", "--help"], ["chat", "--help"], ["bench", "--help"]):
            done = quire(*arguments)
            self.assertEqual((done.returncode, done.stderr), (0, ""))
            self.assertIn("Usage: quire", done.stdout)

    def test_wrong_usage_is_code_2_and_names_what_is_wrong(self):
        for arguments, part in ((["fly"], '"fly"'), (["fly", "--help"], '"fly"; there are run, chat'), (["help", "fly"], '"fly"; there are run, chat'),
                                (["help", "run", "fly"], '"fly"'), (["version", "fly"], '"fly"'),
                                ([], "no command"), (["--fly"], "--fly"), (["run"], "MODEL"),
                                (["run", MODEL, "x", "--fly"], "--fly"), (["run", MODEL, "x", "--format", "xml"], '"xml"'),
                                (["run", MODEL, "x", "--temperature", "nan"], "temperature"),
                                (["run", MODEL, "x", "--max-tokens", "many"], "many"),
                                (["run", MODEL, "x", "--max-tokens", ""], "--max-tokens: want a number"),
                                (["run", MODEL, "x", "--temperature="], "--temperature"),
                                (["run", MODEL, "--prompt-ids", ""], "--prompt-ids"),
                                (["bench", MODEL, "--depth", ""], "--depth"), (["bench", MODEL, "--prompt", "32,,64"], "--prompt"),
                                (["bench", MODEL, "--batch", "1,"], "--batch"), (["run", MODEL, "--prompt-ids", "1,,2"], "--prompt-ids"),
                                (["run", MODEL, "x", "--stop-token-ids", ",2"], "--stop-token-ids"),
                                (["run", MODEL, "x", "--block-tokens", "0"], "block_tokens"),
                                (["run", MODEL, "x", "--kv-budget", "big"], "big"),
                                (["run", MODEL, "x", "--seed", "-1"], "--seed"), (["run", MODEL, "x", "--seed", "9" * 30], "--seed"),
                                (["run", MODEL, "x", "--dtype", "int3"], "int3"), (["run", MODEL, "x", "--quantize", "q3"], "q3"),
                                (["run", MODEL, "x", "--prompt-file", "f"], "--prompt-file"),
                                (["run", MODEL, "x", "--system", "s", "--raw"], "--raw"),
                                (["run", MODEL, "--prompt-ids", "1", "--system", "s"], "--prompt-ids"),
                                (["run", MODEL, "x", "--chat", "--raw"], "--raw"),
                                (["run", MODEL, "x", "--logprobs", "2"], "--format json"), (["chat", MODEL, "--logprobs", "2"], "--format json"),
                                (["chat", MODEL, "--top-p", "2"], "top_p"), (["bench", MODEL, "--repeat", "0"], "repeat")):
            with self.subTest(arguments):
                self.assert_refused(quire(*arguments), 2, part)

    def test_an_unknown_option_is_named_with_the_nearest_and_the_help_to_read(self):
        for arguments, parts in (
                (["run", MODEL, "x", "--temprature", "0"], ['"--temprature"', "did you mean --temperature?", "see quire run --help"]),
                (["run", MODEL, "x", "--max-token=8"], ['"--max-token"', "did you mean --max-tokens?"]),
                (["chat", MODEL, "--docment", "f"], ["did you mean --document?", "see quire chat --help"]),
                (["chunk", "add", "--typ", "context", MODEL, "x", "--store", "s"], ['"--typ"', "did you mean --type?", "see quire chunk add --help"]),
                (["chunk", "--stor", "s", "list", MODEL], ['"--stor"', "did you mean --store?"]),
                (["compose", MODEL, "a", "--store", "s", "--recomput", "1"], ["did you mean --recompute?", "see quire compose --help"]),
                (["store", "ls", "s", "--knd", "chunk"], ["did you mean --kind?", "see quire store ls --help"]),
                (["bench", MODEL, "--repat", "2"], ["did you mean --repeat?"]), (["tokenize", MODEL, "--formt", "json"], ["did you mean --format?"]),
                (["run", MODEL, "-x apples"], ["goes behind --"])):
            with self.subTest(arguments):
                self.assert_refused(quire(*arguments), 2, *parts)
                self.assertLess(len(quire(*arguments).stderr), 250)

    def test_words_of_other_tools_are_answered_with_the_words_here(self):
        for arguments, part in (
                (["run", "-m", "x.gguf", "-p", "hi"], "the model stands by itself: quire run [OPTIONS] MODEL [PROMPT]"),
                (["run", MODEL, "-p", "hi"], "the prompt stands by itself, behind the model"),
                (["run", MODEL, "hi", "-n", "8"], "here it is --max-tokens"), (["run", MODEL, "hi", "-n8"], "here it is --max-tokens"),
                (["run", MODEL, "hi", "--n-predict=8"], "here it is --max-tokens"), (["run", MODEL, "hi", "--temp", "0"], "here it is --temperature"),
                (["chat", MODEL, "-t", "2"], "here it is --threads"), (["chat", MODEL, "-c", "4096"], "--kv-budget"),
                (["chat", MODEL, "--repeat-penalty", "1.1"], "--repetition-penalty"), (["run", MODEL, "hi", "-ngl", "99"], "--device cuda"),
                (["inspect", MODEL, "--json"], "here it is --format json"), (["chat", MODEL, "-p", "hi"], "quire run MODEL PROMPT"),
                (["server"], "quire serve MODEL"), (["list"], "quire inspect"), (["pull", "llama3"], "downloads nothing"), (["ps"], "no process stays"),
                (["show", MODEL], "quire inspect MODEL"), (["generate", MODEL], "quire run MODEL PROMPT"), (["rnu", MODEL, "x"], "did you mean run?"),
                (["help", "server"], "quire serve MODEL"), (["store", "lst", "s"], "unknown command")):
            with self.subTest(arguments):
                self.assert_refused(quire(*arguments), 2, part)

    def test_values_that_are_no_numbers_are_refused_in_plain_words(self):
        for arguments, said in ((["--max-tokens", "four"], '--max-tokens: want a number as 8, got "four"'),
                                (["--max-tokens", "1.5"], '--max-tokens: want a number as 8, got "1.5"'),
                                (["--max-tokens", "9" * 12], f'--max-tokens: "{"9" * 12}" does not fit'),
                                (["--top-p", "most"], '--top-p: want a number as 0.7, got "most"'), (["--threads", "two"], "--threads: want a number"),
                                (["--max-tokens"], "--max-tokens wants a value"), (["--kv-budget"], "--kv-budget wants a value"),
                                (["x", "y"], '"y" is one argument too many: quire run [OPTIONS] MODEL [PROMPT]')):
            with self.subTest(arguments):
                done = quire("run", MODEL, *(arguments if arguments[0] == "x" else ["x", *arguments]))
                self.assert_refused(done, 2, said, "see quire run --help")

    def test_options_may_stand_before_the_model(self):
        prompt = ["What does Ada trade in?", "--format", "json"]
        behind = self.assert_json(quire("run", MODEL, *prompt, "--temperature", "0", "--max-tokens", "4"))
        before = self.assert_json(quire("run", "--temperature", "0", "--max-tokens", "4", MODEL, *prompt))
        self.assertEqual(before["token_ids"], behind["token_ids"])
        self.assertEqual(quire("tokenize", "--format", "json", MODEL, "x").stdout, quire("tokenize", MODEL, "x", "--format", "json").stdout)
        self.assertEqual(quire("inspect", "--format", "json", MODEL).returncode, 0)

    def test_help_and_version_are_commands_too(self):
        self.assertEqual(quire("version").stdout, quire("--version").stdout)
        self.assertEqual("quire " + self.assert_json(quire("version", "--format", "json"))["version"] + "\n", quire("version").stdout)
        for words in ([], ["run"], ["chunk"], ["chunk", "add"], ["store", "ls"]):
            with self.subTest(words):
                self.assertEqual(quire("help", *words).stdout, quire(*words, "--help").stdout)
                self.assertIn(" ".join(["Usage: quire", *words]), quire("help", *words).stdout)

    def test_help_shows_defaults_and_where_the_model_stands(self):
        text = quire("run", "--help").stdout
        for option in ("--top-p FLOAT=1 ", "--top-k INT=0", "--max-batch-tokens INT=2048", "--max-tokens INT=256", "--device TEXT=cpu"):
            self.assertIn(option, text)
        self.assertIn("Usage: quire chunk add [OPTIONS] MODEL [TEXT]", quire("chunk", "add", "--help").stdout)
        self.assertIn("Usage: quire compose [OPTIONS] MODEL CHUNK...", quire("compose", "--help").stdout)
        for command in ("run", "chat", "chunk", "compose", "script", "store", "bench", "tokenize", "inspect", "doctor"):
            self.assertNotRegex(quire(command, "--help").stdout, r"--[\w-]+\{")

    def test_missing_models_are_code_1_in_every_command(self):
        for arguments in (["run", "no/such", "x"], ["chat", "no/such"], ["tokenize", "no/such", "x"],
                          ["inspect", "no/such"], ["bench", "no/such"]):
            for extra in ([], ["--format", "json"]):
                with self.subTest(arguments + extra):
                    self.assert_refused(quire(*arguments, *extra), 1, "no/such")


class RunTest(CommandLineTest):
    PROMPT = "<bos><sys> You are the keeper of a card file. Answer from the cards.<doc> Card 7. Ada trades in apples.<q> What does Ada trade in?<a>"

    def test_prompt_comes_from_argument_file_or_stdin(self):
        by_argument = quire(*greedy(self.PROMPT))
        self.assertEqual((by_argument.returncode, by_argument.stderr), (0, ""))
        self.assertEqual(by_argument.stdout.strip(), "apples.")
        with tempfile.NamedTemporaryFile("w") as file:
            file.write(self.PROMPT + "\n")
            file.flush()
            self.assertEqual(quire(*greedy("--prompt-file", file.name)).stdout, by_argument.stdout)
        self.assertEqual(quire(*greedy(), text=self.PROMPT + "\n").stdout, by_argument.stdout)
        self.assertEqual(quire(*greedy("--prompt-file", "-"), text=self.PROMPT).stdout, by_argument.stdout)

    def test_a_tilde_in_a_path_is_the_home_folder(self):
        with tempfile.TemporaryDirectory() as home:
            pathlib.Path(home, "prompt.txt").write_text(self.PROMPT)
            done = quire(*greedy("--prompt-file=~/prompt.txt"), env={"HOME": home})
            self.assertEqual((done.returncode, done.stdout.strip(), done.stderr), (0, "apples.", ""))
            done = quire("chat", MODEL, "--store=~/store", text="/load name=card ~/prompt.txt\n/save card\n", env={"HOME": home})
            self.assertEqual((done.returncode, done.stderr), (0, ""))
            self.assertEqual(sorted(path.name for path in pathlib.Path(home).iterdir()), ["prompt.txt", "store"])

    def test_the_chat_template_is_applied_unless_the_prompt_is_raw_or_was_made_by_it(self):
        def ids(*arguments):
            return self.assert_json(quire(*greedy("--format", "json", *arguments)))["prompt_token_ids"]
        question = "What does Ada trade in?"
        encoded = self.assert_json(quire("tokenize", MODEL, question, "--format", "json"))["token_ids"]
        self.assertEqual(ids("--raw", question), encoded)
        self.assertEqual(ids(question), ids("--chat", question))
        self.assertGreater(len(ids(question)), len(encoded))
        made = self.assert_json(quire("tokenize", MODEL, self.PROMPT, "--format", "json"))["token_ids"]
        self.assertEqual(ids(self.PROMPT), made)
        self.assertEqual(ids("--raw", self.PROMPT), made)
        self.assertGreater(len(ids("--chat", self.PROMPT)), len(made), "--chat takes no text for a prompt that was made")
        self.assertEqual(ids("--system", "Be short.", question), ids("--chat", "--system", "Be short.", question))

    def test_a_model_without_a_chat_template_takes_the_prompt_as_it_is(self):
        with tempfile.TemporaryDirectory() as folder:
            for file in pathlib.Path(MODEL).iterdir():
                if file.name != "tokenizer_config.json" and not file.name.startswith("chat_template"):
                    pathlib.Path(folder, file.name).symlink_to(file.resolve())
            config = json.loads(pathlib.Path(MODEL, "tokenizer_config.json").read_text())
            config.pop("chat_template", None)
            pathlib.Path(folder, "tokenizer_config.json").write_text(json.dumps(config))
            plain = self.assert_json(quire("run", folder, "Ada", "--max-tokens", "1", "--format", "json"))
            self.assertEqual(plain["prompt_token_ids"],
                             self.assert_json(quire("tokenize", folder, "Ada", "--format", "json"))["token_ids"])
            for option in (["--chat"], ["--system", "Be short."]):
                self.assert_refused(quire("run", folder, "Ada", *option), 1, "no chat template")

    def test_text_that_is_piped_in_stands_behind_a_prompt(self):
        def ids(*arguments, text=None):
            return self.assert_json(quire(*greedy("--format", "json", *arguments), text=text))["prompt_token_ids"]
        for how in ([], ["--raw"], ["--chat"]):
            with self.subTest(how):
                self.assertEqual(ids(*how, "Sum up:", text="Card 7. Ada trades in apples.\n"),
                                 ids(*how, "Sum up:\n\nCard 7. Ada trades in apples."))
        with tempfile.NamedTemporaryFile("w") as file:
            file.write("Sum up:\n")
            file.flush()
            self.assertEqual(ids("--prompt-file", file.name, text="Card 7."), ids("Sum up:\n\nCard 7."))
            with open(file.name) as piped:
                done = subprocess.run([PROGRAM, *greedy("--format", "json", "Now")], stdin=piped, capture_output=True, text=True)
            self.assertEqual(self.assert_json(done)["prompt_token_ids"], ids("Now\n\nSum up:"))
        self.assert_refused(quire(*greedy("--prompt-ids", "1,2"), text="Card 7."), 1, "piped in beside --prompt-ids")

    def test_a_pipe_in_which_nothing_comes_is_named(self):
        reader, writer = os.pipe()
        child = subprocess.Popen([PROGRAM, *greedy("Ada")], stdin=reader, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.assertIn("waiting for text on stdin", child.stderr.readline())
        os.close(writer)
        child.communicate(timeout=SECONDS)
        os.close(reader)
        self.assertEqual(child.returncode, 0)

    def test_prompt_ids_are_taken_as_they_are(self):
        ids = self.assert_json(quire("tokenize", MODEL, self.PROMPT, "--format", "json"))["token_ids"]
        done = quire(*greedy("--prompt-ids", ",".join(map(str, ids))))
        self.assertEqual(done.stdout, quire(*greedy(self.PROMPT)).stdout)

    def test_chat_puts_the_prompt_through_the_template(self):
        with tempfile.NamedTemporaryFile("w") as card:
            card.write("Card 7. Ada trades in apples.")
            card.flush()
            done = quire(*greedy("--chat", "--document", card.name, "What does Ada trade in?"))
        self.assertEqual((done.returncode, done.stdout.strip()), (0, "apples."))

    def test_json_is_one_object_with_all_that_is_known(self):
        result = self.assert_json(quire(*greedy("--format", "json", "--logprobs", "2", self.PROMPT)))
        self.assertEqual(result["text"].strip(), "apples.")
        self.assertEqual(result["finish_reason"], "stop")
        self.assertEqual(result["usage"]["completion_tokens"], len(result["token_ids"]))
        self.assertEqual(result["usage"]["cached_tokens"], 0)
        self.assertEqual(result["reuse"]["grade"], "exact")
        self.assertGreater(result["timing"]["total_seconds"], 0)
        self.assertEqual(len(result["logprobs"]), len(result["token_ids"]))
        members = "request_id text token_ids prompt_token_ids finish_reason stopped_by usage reuse logprobs timing"
        self.assertEqual(list(result), members.split())
        self.assertEqual(len(result["prompt_token_ids"]), result["usage"]["prompt_tokens"])

    def test_guesses_change_no_answer(self):
        draft = str(pathlib.Path(MODEL).parent / "draft")
        plain = self.assert_json(quire(*greedy("--format", "json", self.PROMPT)))
        for options in (["--speculate", "ngram"], ["--draft-model", draft, "--draft-tokens", "3"],
                        ["--draft-model", draft, "--draft-width", "2"]):
            with self.subTest(options[0]):
                guessed = self.assert_json(quire(*greedy("--format", "json", *options, self.PROMPT)))
                self.assertEqual(guessed["token_ids"], plain["token_ids"])
        self.assertGreater(guessed["usage"]["drafted_tokens"], 0)
        for options in (["--draft-tokens", "3"], ["--draft-model", draft, "--draft-width", "9"], ["--speculate", "turbo"]):
            with self.subTest(options[0]):
                self.assertNotEqual(quire(*greedy(*options, self.PROMPT)).returncode, 0)

    def test_a_seed_repeats_the_answer(self):
        arguments = ["run", MODEL, "--raw", "<bos>", "--max-tokens", "16", "--seed", "5"]
        self.assertEqual(quire(*arguments).stdout, quire(*arguments).stdout)

    def test_verbose_reports_on_stderr_only(self):
        done = quire(*greedy("--verbose", self.PROMPT))
        self.assertEqual(done.stdout.strip(), "apples.")
        self.assertRegex(done.stderr, r"loaded .*\nprompt \d+ tokens \(0 reused\)")

    def test_refused_requests_are_code_1(self):
        self.assert_refused(quire(*greedy("--prompt-ids", "1,99999999")), 1, "99999999")
        self.assert_refused(quire(*greedy("--prompt-file", "no/such.txt")), 1, "no/such.txt")
        self.assert_refused(quire("run", MODEL, "--kv-budget", "256KiB", "--max-tokens", "1500", "--format", "json", self.PROMPT), 1)
        self.assert_refused(quire(*greedy("--device", "cuda:99", self.PROMPT)), 1, "cuda")

    def test_ctrl_c_prints_what_is_there_and_is_code_130(self):
        for format in ("text", "json"):
            with self.subTest(format):
                child = subprocess.Popen([PROGRAM, "run", MODEL, "<bos>", "--verbose", "--format", format, *LONG],
                                         stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
                self.assertIn("loaded", child.stderr.readline())
                time.sleep(0.1)
                child.send_signal(signal.SIGINT)
                out, err = child.communicate(timeout=SECONDS)
                self.assertEqual(child.returncode, 130, err)
                if format == "json":
                    result = json.loads(out)
                    self.assertEqual(result["finish_reason"], "cancelled")
                    self.assertEqual(result["usage"]["completion_tokens"], len(result["token_ids"]))
                else:
                    self.assertTrue(out.endswith("\n"))

    def test_a_reader_that_leaves_ends_the_program_quietly(self):
        child = subprocess.Popen([PROGRAM, "run", MODEL, "<bos>", *LONG], stdin=subprocess.DEVNULL,
                                 stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        child.stdout.read(1)
        child.stdout.close()
        self.assertEqual(child.stderr.read(), b"")
        self.assertEqual(child.wait(SECONDS), -signal.SIGPIPE)
        child.stderr.close()

    def test_output_that_cannot_be_written_is_an_error(self):
        with open("/dev/full", "w") as full:
            for arguments in (greedy(self.PROMPT), greedy(self.PROMPT, "--format", "json"), ["--version"], ["doctor"]):
                done = subprocess.run([PROGRAM, *arguments], stdin=subprocess.DEVNULL, stdout=full,
                                      stderr=subprocess.PIPE, text=True, timeout=SECONDS)
                self.assertEqual(done.returncode, 1)
                self.assertIn("No space left", done.stderr)
        closed = subprocess.run(f'"{PROGRAM}" --version >&-', shell=True, capture_output=True, text=True)
        self.assertEqual(closed.returncode, 1)
        self.assertIn("cannot write", closed.stderr)

    def test_output_into_a_full_pipe_that_does_not_block_waits_for_its_reader(self):
        reader, writer = os.pipe()
        os.set_blocking(writer, False)
        child = subprocess.Popen([PROGRAM, "tokenize", MODEL, "--format", "json"], stdin=subprocess.PIPE, stdout=writer,
                                 stderr=subprocess.PIPE)
        os.close(writer)
        child.stdin.write(b"Ada trades in apples. " * 20000)  # the answer is many times what a pipe holds
        child.stdin.close()
        select.select([reader], [], [], SECONDS)
        time.sleep(0.2)  # it is full now
        with open(reader, "rb") as pipe:
            result = json.loads(pipe.read())
        self.assertEqual((child.wait(SECONDS), child.stderr.read()), (0, b""))
        self.assertEqual(len(result["token_ids"]), result["num_tokens"])
        child.stderr.close()


class ChatTest(CommandLineTest):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.card = pathlib.Path(self.folder.name, "card.txt")
        self.card.write_text("Card 7. Ada trades in apples. They live in Foxley. They own a coat of felt.")
        self.arguments = ["chat", MODEL, "--temperature", "0", "--max-tokens", "16", "--document", self.card]

    def test_lines_of_a_pipe_are_turns_of_one_conversation(self):
        done = quire(*self.arguments, text="What does Ada trade in?\n\nWhere does Ada live?\n/exit\nnot read\n")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertEqual([line.strip() for line in done.stdout.splitlines()], ["apples.", "Foxley."])

    def test_json_is_one_object_a_turn_and_later_turns_reuse_earlier_ones(self):
        done = quire(*self.arguments, "--format", "json", text="What does Ada trade in?\nWhere does Ada live?\n")
        first, second = map(json.loads, done.stdout.splitlines())
        self.assertGreater(first["usage"]["cached_tokens"], 0)  # system text and document are there before the question
        self.assertGreater(second["usage"]["cached_tokens"], first["usage"]["cached_tokens"])
        self.assertGreater(second["usage"]["prompt_tokens"], first["usage"]["prompt_tokens"])

    def test_unknown_commands_are_named_and_change_nothing(self):
        question = "What does Ada trade in?\n"
        done = quire(*self.arguments, "--format", "json", text="/frobnicate now\n" + question)
        self.assertEqual(done.returncode, 0)
        self.assertRegex(done.stderr, r'\Aerror: [^\n]*"/frobnicate"[^\n]*\n\Z')
        plain = quire(*self.arguments, "--format", "json", text=question)
        self.assertEqual(json.loads(done.stdout)["token_ids"], json.loads(plain.stdout)["token_ids"])
        self.assertEqual(json.loads(done.stdout)["usage"], json.loads(plain.stdout)["usage"])

    def test_a_conversation_begins_exact_and_anchored_where_a_store_keeps_items(self):
        def grade(*options):
            return json.loads(quire(*self.arguments, *options, "--format", "json", text="Who?\n").stdout)["reuse"]["grade"]
        self.assertEqual(grade(), "exact")
        self.assertEqual(grade("--mode", "anchored"), "equal_math")
        self.assertEqual(grade("--store", self.folder.name + "/store"), "equal_math")
        self.assertEqual(grade("--store", self.folder.name + "/store", "--mode", "exact"), "exact")

    def test_a_text_in_triple_quotes_is_one_question_of_several_lines(self):
        def turns(text):
            done = quire("chat", MODEL, "--temperature", "0", "--max-tokens", "2", text=text + "/conversation\n")
            self.assertEqual((done.returncode, done.stderr), (0, ""))
            return [line for line in done.stdout.splitlines() if not line.startswith("output: ") and line != ""][1:]
        self.assertEqual(turns('"""What does Ada\ntrade in?"""\n'), ["user: What does Ada", "trade in?"])
        self.assertEqual(turns('"""\nWhat does Ada\ntrade in?\n"""\n'), ["user: What does Ada", "trade in?"])
        self.assertEqual(turns('"""/exit"""\n'), ["user: /exit"])
        done = quire(*self.arguments, text='/add name=two """Card 1.\nCard 2."""\n/show two\n"""open\n')
        self.assertIn("text: Card 1.\nCard 2.\n", done.stdout)
        self.assertIn('no """ at its end', done.stderr)

    def test_words_of_other_tools_work_at_the_prompt(self):
        for word in ("/bye", "bye", "/quit", "exit"):
            done = quire(*self.arguments, text=f"{word}\n/frobnicate\n")
            self.assertEqual((done.returncode, done.stderr, done.stdout), (0, "", ""))
        help_text = quire(*self.arguments, text="/help\n").stdout
        for word in ("/?", "?"):
            self.assertEqual(quire(*self.arguments, text=word + "\n").stdout, help_text)
        self.assertIn("did you mean /conversation?", quire(*self.arguments, text="/conversaton\n").stderr)

    def test_saving_without_a_store_names_the_option(self):
        self.assertIn("begin quire chat with --store DIR", quire(*self.arguments, text="/save\n").stderr)

    def test_help_lists_the_commands(self):
        self.assertIn("/exit", quire(*self.arguments, text="/help\n").stdout)

    def test_answers_name_the_items_that_they_became(self):
        done = quire(*self.arguments, "--format", "json", "--mode", "exact", text="What does Ada trade in?\n/output\n")
        answer = json.loads(done.stdout.splitlines()[0])
        self.assertEqual(answer["reuse"]["grade"], "exact")
        self.assertIn(answer["output_id"][:12], done.stdout.splitlines()[2])

    def test_through_a_pipe_there_are_no_prompts_colours_or_history(self):
        done = quire(*self.arguments, text="/deactivate 5109\n/list\n", env={"XDG_STATE_HOME": self.folder.name})
        self.assertNotIn("\x1b", done.stdout)
        self.assertNotIn(">", done.stdout)
        self.assertEqual(os.listdir(self.folder.name), ["card.txt"])

    def test_echo_repeats_each_line(self):
        done = quire(*self.arguments, "--echo", text="/switch\n\nq\n")
        self.assertEqual(done.stdout, "> /switch\n* main\n> \n> q\n")

    def test_a_conversation_without_system_text_begins_with_bos_once(self):
        model = pathlib.Path(self.folder.name, "model")
        model.mkdir()
        for file in pathlib.Path(MODEL).iterdir():
            (model / file.name).symlink_to(file.resolve())
        config = json.loads((model / "tokenizer_config.json").read_text())
        config["chat_template"] = (
            "{{- bos_token -}}{%- for message in messages -%}{%- if message['role'] == 'system' -%}"
            "{{- '<sys> ' + message['content'] | trim -}}{%- elif message['role'] in ('context', 'document') -%}"
            "{{- '<doc> ' + message['content'] | trim -}}{%- elif message['role'] == 'user' -%}"
            "{{- '<q> ' + message['content'] | trim -}}{%- else -%}{{- '<a> ' + message['content'] | trim + '<eos>' -}}"
            "{%- endif -%}{%- endfor -%}{%- if add_generation_prompt -%}{{- '<a>' -}}{%- endif -%}")
        (model / "tokenizer_config.json").unlink()
        (model / "tokenizer_config.json").write_text(json.dumps(config))
        arguments = ["chat", model, "--temperature", "0", "--max-tokens", "4", "--mode", "exact", "--format", "json"]
        question = "What does Ada trade in?"
        for extra, text in ((["--document", self.card], f"{self.card.read_text()}"), ([], "")):
            done = quire(*arguments, *extra, text=f"{question}\n/clear\n{question}\n")
            answers = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
            documents = [{"role": "context", "content": text}] if text else []
            whole = "".join(["<bos>", *(f"<doc> {each['content']}" for each in documents), f"<q> {question}<a>"])
            ids = self.assert_json(quire("tokenize", model, whole, "--format", "json"))["token_ids"]
            self.assertEqual(answers[0]["usage"]["prompt_tokens"], len(ids))
            self.assertEqual(answers[0]["token_ids"], self.assert_json(
                quire("run", model, "--prompt-ids", ",".join(map(str, ids)), "--temperature", "0", "--max-tokens", "4",
                      "--format", "json"))["token_ids"])
            cleared = self.assert_json(quire("tokenize", model, f"<bos><q> {question}<a>", "--format", "json"))["token_ids"]
            self.assertEqual(answers[1]["usage"]["prompt_tokens"], len(cleared), "BOS outlives /clear")

    def test_an_answer_comes_through_a_pipe_while_it_is_generated(self):
        child = subprocess.Popen([PROGRAM, "chat", MODEL, *LONG], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                 stderr=subprocess.PIPE)
        child.stdin.write(b"hello\n/stats\n")
        child.stdin.close()
        pieces = []
        while piece := os.read(child.stdout.fileno(), 65536):
            pieces.append(piece)
        self.assertEqual((child.wait(SECONDS), child.stderr.read()), (0, b""))
        self.assertGreater(len(pieces), 20)
        self.assertIn(b"\nitems: 3\n", b"".join(pieces))
        child.stdout.close()
        child.stderr.close()

    def test_ctrl_c_keeps_what_there_is_of_an_answer_and_the_next_turn_stands_on_it(self):
        for mode in ("anchored", "exact"):
            with self.subTest(mode):
                child = subprocess.Popen([PROGRAM, "chat", MODEL, "--mode", mode, *LONG], stdin=subprocess.PIPE,
                                         stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
                child.stdin.write("hello\n")
                child.stdin.flush()
                begun = os.read(child.stdout.fileno(), 1).decode()
                child.send_signal(signal.SIGINT)
                self.assertIn("(stopped", child.stderr.readline())
                child.stdin.write("/explain\n/conversation\n/set max-tokens 3\nWho?\n/explain\n/forget\n/forget\n/list\n")
                out, err = child.communicate(timeout=SECONDS)
                self.assertEqual((child.returncode, err), (0, ""))
                answer, _, rest = (begun + out).partition("\ngrade: ")
                self.assertIn("finish_reason: cancelled", rest)
                self.assertIn(f"output: {answer.strip()} (stopped)\n", rest)
                first, second = (dict(re.findall(r"^(\w+_tokens): (\d+)$", part, re.M)) for part in rest.split("grade: "))
                kept = int(first["prompt_tokens"]) + int(first["generated_tokens"])
                self.assertLess(int(first["generated_tokens"]), 1500)
                self.assertGreater(int(second["prompt_tokens"]), kept)
                self.assertGreaterEqual(int(second["reused_tokens"]), kept - 1)
                self.assertEqual(rest.count("forgot 2 items"), 2)
                self.assertEqual(len(re.findall("^[0-9a-f]{12}  ", rest.rpartition("forgot")[2], re.M)), 1)

    def test_a_chat_that_cannot_print_ends_with_code_1(self):
        for line in ("What does Ada trade in?", "/list", "/help"):
            for extra in ([], ["--echo"], ["--format", "json"]):
                with self.subTest(line, extra=extra), open("/dev/full", "w") as full:
                    done = subprocess.run([PROGRAM, *self.arguments, *extra], input=f"{line}\n{line}\n", stdout=full,
                                          stderr=subprocess.PIPE, text=True, timeout=SECONDS)
                    self.assertEqual(done.returncode, 1)
                    self.assertRegex(done.stderr, r"\Aerror: cannot write to standard output: [^\n]+\n\Z")

    def test_a_missing_document_is_an_error(self):
        self.assert_refused(quire("chat", MODEL, "--document", "no/such.txt"), 1, "no/such.txt")


class TerminalTest(unittest.TestCase):
    """quire chat on a terminal of its own."""

    def setUp(self):
        self.state = tempfile.TemporaryDirectory()
        self.addCleanup(self.state.cleanup)
        self.start(*LONG)

    def start(self, *options):
        pid, self.terminal = pty.fork()
        if pid == 0:
            os.environ |= {"TERM": "xterm", "XDG_STATE_HOME": self.state.name}
            os.execv(PROGRAM, [PROGRAM, "chat", MODEL, *options])
        self.pid, self.seen = pid, ""
        self.addCleanup(os.close, self.terminal)

    def wait_for(self, text):
        """Reads the screen until `text` comes, and forgets what came up to it."""
        self.wait_for_match(re.escape(text))

    def wait_for_match(self, pattern):
        """Reads the screen until the pattern matches, and forgets what came up to its end."""
        deadline = time.monotonic() + SECONDS
        while not (match := re.search(pattern, self.seen, re.DOTALL)):
            if not select.select([self.terminal], [], [], max(0, deadline - time.monotonic()))[0]:
                self.fail(f"waited for {pattern!r}, saw {self.seen!r}")
            self.seen += os.read(self.terminal, 4096).decode(errors="replace")
        self.seen = self.seen[match.end():]

    def type(self, text):
        os.write(self.terminal, text.encode())

    def exit_code(self, repeat=""):
        """Waits for the end, pressing `repeat` until it comes."""
        deadline = time.monotonic() + SECONDS
        while time.monotonic() < deadline:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                return os.waitstatus_to_exitcode(status)
            with contextlib.suppress(OSError):  # ended in this moment
                self.type(repeat)
            if select.select([self.terminal], [], [], 0.05)[0]:
                try:
                    os.read(self.terminal, 4096)
                except OSError:  # the other end is closed
                    time.sleep(0.05)
        self.fail("does not end")

    def test_ctrl_c_ends_the_answer_and_a_second_one_at_the_prompt_leaves(self):
        self.wait_for("> ")
        self.type("hello\r")
        self.wait_for("hello\r\n")
        self.wait_for_match(r"\[\?2004l.*\w")  # the answer has begun, and takes long
        self.type("\x03")
        self.wait_for("(stopped")
        self.wait_for("> ")
        self.type("/conversation\r")
        self.wait_for("user: hello")
        self.wait_for("(stopped)")
        self.wait_for("> ")
        self.type("/frobnicate\r")
        self.wait_for("error: ")
        self.wait_for("> ")
        self.type("\x03")
        self.wait_for("again")
        self.wait_for("> ")
        self.type("\x03")
        self.assertEqual(self.exit_code(), 130)

    def test_end_of_input_leaves_with_code_0(self):
        self.wait_for("> ")
        # The prompt shows before the line editor has the terminal: a Ctrl-D pressed between is lost, no more.
        self.assertEqual(self.exit_code(repeat="\x04"), 0)

    def leave(self):
        self.type("/exit\r")
        self.assertEqual(self.exit_code(), 0)

    def test_tab_completes_commands_and_items(self):
        self.wait_for("> ")
        self.type("/add name=lantern Card 9. Lars carries a lantern.\r")
        self.wait_for(" lantern, ")
        self.wait_for("> ")
        self.type("/sho\tlan\t\r")  # one choice each: the words grow to the whole name
        self.wait_for("kind: context")
        self.wait_for("text: Card 9. Lars carries a lantern.")
        self.wait_for("> ")
        self.type("/s\t")  # several: they are listed, the line stays
        for name in ("/stats", "/switch", "/system"):
            self.wait_for(name)
        self.wait_for("> /s")
        self.type("tats\r")
        self.wait_for("active_items: 2")
        self.wait_for("> ")
        self.type("/nothing\t\tx\r")
        self.wait_for('"/nothingx"')
        self.leave()

    def test_history_is_there_for_the_next_session_and_private(self):
        self.wait_for("> ")
        self.type("/switch\r")
        self.wait_for("* main")
        self.wait_for("> ")
        self.leave()
        history = pathlib.Path(self.state.name, "quire", "history")
        self.assertEqual(history.stat().st_mode & 0o777, 0o600)
        self.start(*LONG)
        self.wait_for("> ")
        self.type("\x1b[A\x1b[A\r")  # up to the line before /exit
        self.wait_for("* main")
        self.leave()

    def test_history_has_what_killed_and_other_sessions_entered(self):
        for word in ("first", "second"):
            self.wait_for("> ")
            self.type(f"/{word}\r")
            self.wait_for(f'"/{word}"')
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
            self.start(*LONG)
        self.wait_for("> ")
        beside = self.pid, self.terminal
        self.start(*LONG)
        self.wait_for("> ")
        self.type("/third\r")
        self.wait_for('"/third"')
        self.leave()
        self.pid, self.terminal = beside
        self.type("\x1b[A\x1b[A\r")  # it has loaded the two, not the third
        self.wait_for('"/first"')
        self.leave()
        history = pathlib.Path(self.state.name, "quire", "history")
        commands = [line for line in history.read_text().splitlines() if line.startswith("/")]
        self.assertEqual(commands, ["/first", "/second", "/third", "/exit", "/first", "/exit"])

    def test_a_long_or_damaged_history_is_begun_anew(self):
        self.wait_for("> ")
        self.leave()
        history = pathlib.Path(self.state.name, "quire", "history")
        first_line = history.read_text().splitlines()[0]
        for content, kept in ((f"{first_line}\n" + "".join(f"/line{i}\n" for i in range(2500)), 1000), ("no history\n", 0)):
            history.write_text(content)
            history.chmod(0o644)
            self.start(*LONG)
            self.wait_for("> ")
            self.leave()
            lines = history.read_text().splitlines()
            self.assertEqual((lines[0], len(lines) - 2, lines[-1]), (first_line, kept, "/exit"))
            self.assertEqual(history.stat().st_mode & 0o777, 0o600)
            self.assertEqual(list(history.parent.iterdir()), [history])

    def test_a_session_begins_with_the_model_its_context_and_the_way_to_help(self):
        self.wait_for("model, context of 2048 tokens, mode exact")
        self.wait_for("/help")
        self.wait_for("> ")
        self.leave()

    def test_pasted_lines_are_one_question(self):
        self.start("--max-tokens", "2")
        self.wait_for("\x1b[?2004h")
        self.type("\x1b[200~first line\rsecond line\r\x1b[201~")
        self.type("\r")
        self.wait_for("\x1b[?2004l")
        self.wait_for("\x1b[?2004h")
        self.type("/conversation\r")
        self.wait_for("user: first line\r\nsecond line\r\n")
        self.leave()

    def test_without_colours_where_the_environment_says_so(self):
        os.environ["NO_COLOR"] = "1"
        self.addCleanup(os.environ.pop, "NO_COLOR")
        self.start()
        self.wait_for("> ")
        self.type("/add name=ada Ada.\r/deactivate ada\r/list\r")
        self.wait_for("cards.\r\n39e98017fd62  context  ada   off ")  # no colour between
        self.leave()

    def test_branches_show_in_the_prompt_and_inactive_items_are_dim(self):
        self.wait_for("> ")
        self.type("/fork side\r")
        self.wait_for("side> ")
        self.type("/add name=ada Ada.\r")
        self.wait_for("side> ")
        self.type("/deactivate ada\r")
        self.wait_for("side> ")
        self.type("/list\r")
        self.wait_for("\x1b[2m")
        self.wait_for("\x1b[0m")
        self.leave()


class ToolsTest(CommandLineTest):
    def test_tokenize_shows_ids_and_pieces(self):
        result = self.assert_json(quire("tokenize", MODEL, "Ada trades in apples.", "--format", "json"))
        self.assertEqual(len(result["token_ids"]), len(result["pieces"]))
        self.assertEqual(result["num_tokens"], len(result["token_ids"]))
        rows = quire("tokenize", MODEL, "Ada trades in apples.").stdout.splitlines()
        self.assertEqual([int(row.split("\t")[0]) for row in rows], result["token_ids"])
        self.assertEqual([json.loads(row.split("\t")[1]) for row in rows], result["pieces"])
        self.assertEqual([json.loads(row.split("\t")[2]) for row in rows], result["texts"])
        self.assertEqual("".join(result["texts"])[-len("Ada trades in apples."):], "Ada trades in apples.")
        self.assertEqual(quire("tokenize", MODEL, "Ada trades in apples.").stderr, f"{len(rows)} tokens\n")
        self.assertEqual(self.assert_json(quire("tokenize", MODEL, "--format", "json", text="Ada trades in apples.")), result)

    def test_inspect_tells_shape_memory_and_what_is_unsupported(self):
        result = self.assert_json(quire("inspect", MODEL, "--format", "json"))
        self.assertEqual(result["unsupported"], [])
        self.assertEqual(result["parameters"], 6426880)
        self.assertIn("kv_bytes_per_token", result)
        self.assertEqual(result["weight_bytes"]["auto"], result["weight_bytes"][result["dtype"]])
        shown = quire("inspect", MODEL).stdout
        self.assertIn("unsupported: none", shown)
        self.assertIn("  auto: 12.3 MiB\n", shown)  # of 12,862,464 bytes
        self.assertIn("  bfloat16: 4.0 KiB; in 1 GiB 262144 tokens; the whole context 8.0 MiB\n", shown)

    def test_texts_of_tokens_are_whole_characters_that_join_to_the_text(self):
        for text in ("ü there", "naïve 東京 🦊", "  two  blanks\n"):
            result = self.assert_json(quire("tokenize", MODEL, text, "--no-special-tokens", "--format", "json"))
            decoded = "".join(result["texts"])
            self.assertNotIn("Ġ", decoded)
            self.assertEqual(decoded.strip(), text.strip())

    def test_doctor_tells_processor_and_self_test(self):
        result = self.assert_json(quire("doctor", "--format", "json"))
        self.assertGreaterEqual(result["cores"], 1)
        self.assertIn("self_test", result["isa"])
        self.assertIn("isa:", quire("doctor").stdout)

    def bench(self, *arguments):
        records = self.assert_json(quire("bench", MODEL, "--prompt", "32", "--generate", "2", *arguments, "--format", "json"))
        for record in records:
            self.assertLessEqual({"metric", "prompt_tokens", "depth_tokens", "batch", "shared_tokens", "weights", "kv", "device",
                                  "threads", "seconds", "bytes_per_second", "floor_seconds", "of_floor"}, record.keys())
            self.assertGreater(record["seconds"], 0)
            if record["metric"] not in ("fork", "compose"):
                self.assertGreater(record["bytes_per_second"], 0, record)
                self.assertGreater(record["floor_seconds"], 0, record)
                self.assertAlmostEqual(record["of_floor"], record["floor_seconds"] / record["seconds"])
        return records

    def test_bench_decodes_every_batch_that_is_named_behind_the_shared_prefix(self):
        batched = [record for record in self.bench("--batch", "1,2", "--shared-prefix", "64", "--depth", "0,32")
                   if record["metric"] == "batched_decode"]
        self.assertEqual([(record["batch"], record["shared_tokens"], record["depth_tokens"]) for record in batched],
                         [(1, 64, 0), (2, 64, 0)])

    def test_bench_without_a_shared_prefix_decodes_a_batch_behind_contexts_of_their_own(self):
        batched = [record for record in self.bench("--batch", "4", "--depth", "0,128") if record["metric"] == "batched_decode"]
        self.assertEqual([(record["batch"], record["shared_tokens"], record["depth_tokens"]) for record in batched],
                         [(4, 0, 0), (4, 0, 128)])
        # All that each of the four has is read.
        empty, deep = (record["bytes_per_second"] * record["seconds"] for record in batched)
        model = self.assert_json(quire("inspect", MODEL, "--format", "json"))
        self.assertAlmostEqual(deep - empty, 4 * 128 * model["kv_bytes_per_token"][batched[0]["kv"]], delta=1)

    def test_bench_at_a_depth_measures_what_is_done_with_cached_tokens(self):
        records = self.bench("--depth", "64")
        self.assertEqual([record["metric"] for record in records], ["prefill", "ttft", "decode", "restore", "fork", "compose"])
        for record in records:
            self.assertEqual(record["depth_tokens"], 64)
        for record in records[-2:]:  # they move no KV
            self.assertEqual(record["floor_seconds"], 0)

    def test_bench_of_a_model_with_a_sliding_window_leaves_out_what_the_window_forgets(self):
        model = pathlib.Path(MODEL).parents[2] / "tests" / "golden" / "model" / "mistral_window"  # of 16 tokens
        records = self.assert_json(quire("bench", model, "--prompt", "32", "--depth", "64", "--generate", "2", "--format", "json"))
        self.assertEqual([record["metric"] for record in records], ["prefill", "ttft", "decode", "fork"])

    def test_bench_of_accuracy_measures_each_format_that_is_named_over_a_text(self):
        text = pathlib.Path(MODEL).parents[2] / "docs" / "glossary.md"
        with tempfile.TemporaryDirectory() as folder:
            part = pathlib.Path(folder) / "part.txt"
            part.write_text(text.read_text()[:1500])
            measure = ["bench", MODEL, "--kv-accuracy", part]
            both = self.assert_json(quire(*measure, "--kv-dtype", "int8,bfloat16", "--format", "json"))
            codes = self.assert_json(quire(*measure, "--format", "json"))
            self.assertIn("key error", quire(*measure).stdout.splitlines()[0])
            self.assert_refused(quire(*measure, "--kv-dtype", "int8,int3"), 2, '"int3" is unknown')
            self.assert_refused(quire(*measure, "--kv-dtype", "float16"), 1, '"float16" is not there')
            self.assert_refused(quire("bench", MODEL, "--kv-accuracy", part.with_name("none.txt")), 1, "none.txt")
        self.assertEqual([record["kv"] for record in both], ["int8", "bfloat16"])
        self.assertEqual([record["kv"] for record in codes], ["int8", "fp8", "int4"])
        alone = codes[0]
        self.assertEqual(both[0], alone)
        self.assertTrue(alone["logit_kl_mean"] < codes[1]["logit_kl_mean"] < 2e-2 and codes[2]["logit_kl_mean"] < 2e-2, codes)
        self.assertEqual((both[1]["logit_kl_mean"], both[1]["perplexity_delta"], both[1]["ratio_vs_bf16"]), (0, 0, 1))
        self.assertTrue(0 < alone["logit_kl_mean"] <= 1e-3 and 0 < alone["key_error"]["mean"] < 0.02, alone)

    def test_bench_over_int8_names_the_format_and_reads_fewer_bytes(self):
        def bytes_read(kv_dtype):
            (record,) = [one for one in self.bench("--depth", "64", "--kv-dtype", kv_dtype) if one["metric"] == "restore"]
            self.assertEqual(record["kv"], kv_dtype)
            return record["bytes_per_second"] * record["seconds"]
        self.assertLess(bytes_read("int8"), bytes_read("bfloat16") / 1.9)

    def test_bench_measures_nothing_that_would_end_at_the_context(self):
        # Depth 64, a token to start from and 1,984 others are 2,049 positions; the model has 2,048.
        for arguments in (["--depth", "64", "--generate", "1984"], ["--prompt", "2049"],
                          ["--shared-prefix", "64", "--batch", "2", "--generate", "1984"]):
            result = quire("bench", MODEL, *arguments)
            self.assertEqual((result.returncode, result.stdout), (1, ""))
            self.assertIn("2049 positions, the model's context has 2048", result.stderr)


if __name__ == "__main__":
    PROGRAM, MODEL = sys.argv.pop(1), sys.argv.pop(1)
    unittest.main()
