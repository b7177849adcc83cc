"""Chunks on the command line: `quire script` from a file and a pipe; `quire chunk`, `compose` and `run` on a store.

Run by CTest as `test_chunks_cli.py PROGRAM MODEL`; standard library only.
"""
import ctypes
import json
import os
import subprocess
import sys
import tempfile
import unittest

PILE = """
# two cards and a question
chunk add --type system_prompt --name keeper "You are the keeper of a card file. Answer from the cards."
chunk add --type context --name ada "Card 7. Ada trades in apples. They live in Foxley." --metadata source=cards
chunk add --type context --name lars 'Card 9. Lars carries a lantern.' --pin
chunk add --type query --name trade "What does Ada trade in?"
"""


def give_up_writing_everywhere():
    """Takes a right from the process that begins: root may not write to a folder against its mode either."""
    drop_from_bounding_set, dac_override = 24, 1
    ctypes.CDLL(None).prctl(drop_from_bounding_set, dac_override, 0, 0, 0)


def script(text, *arguments):
    return subprocess.run([PROGRAM, "script", MODEL, *arguments], input=text, capture_output=True, text=True, timeout=60)


class ScriptTest(unittest.TestCase):
    def results(self, commands, *arguments):
        """Returns the output of the commands behind PILE, one JSON value a line."""
        done = script(PILE + commands, "--format", "json", *arguments)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        return [json.loads(line) for line in done.stdout.splitlines()][4:]

    def assert_refused(self, commands, code, naming):
        done = script(PILE + commands)
        self.assertEqual(done.returncode, code, done.stderr)
        self.assertRegex(done.stderr, r"\Aerror: line 7: [^\n]+\n\Z")
        self.assertIn(naming, done.stderr)

    def test_chunks_are_listed_shown_and_deleted_by_name(self):
        rows, one, gone, left = self.results("chunk list\nchunk show ada\nchunk rm ada\nchunk list --type context\n")
        self.assertEqual([row["metadata"]["name"] for row in rows], ["keeper", "ada", "lars", "trade"])
        self.assertEqual([row["pinned"] for row in rows], [False, False, True, False])
        self.assertEqual(one["content"], "Card 7. Ada trades in apples. They live in Foxley.")
        self.assertEqual(one["metadata"], {"source": "cards", "name": "ada"})
        self.assertTrue(gone["deleted"])
        self.assertEqual([row["chunk_id"] for row in left], [rows[2]["chunk_id"]])

    def test_ids_and_their_beginnings_mean_a_chunk(self):
        (rows,) = self.results("chunk list\n")
        for length in (16, 64):
            (row,) = self.results(f"chunk show {rows[1]['chunk_id'][:length]}\n")
            self.assertEqual(row["chunk_id"], rows[1]["chunk_id"])

    def test_pins_and_clearing(self):
        pinned, free, cleared, left = self.results("chunk pin ada\nchunk pin lars --off\nchunk clear --type context\nchunk list\n")
        self.assertEqual((pinned["pinned"], free["pinned"], cleared["cleared"], len(left)), (True, False, 2, 2))

    def test_compose_shows_what_run_then_does(self):
        preview, output = self.results("compose keeper lars ada trade --mode independent\n"
                                       "run --chunk keeper --chunk lars --chunk ada --chunk trade --mode independent --max-tokens 1\n")
        self.assertEqual((preview["mode"], preview["grade"], preview["num_levels"]), ("independent", "approximate", 4))
        self.assertEqual(preview["tokens_reused"], output["usage"]["cached_tokens"])
        self.assertEqual(preview["total_tokens"], output["usage"]["prompt_tokens"])

    def test_a_chunk_may_have_a_kv_format_of_its_own(self):
        one, preview = self.results("chunk add --type context --name bo --chunk-kv-dtype int8 'Card 8. Bo trades in pears.'\n"
                                    "chunk show bo\ncompose keeper bo ada trade\n")[-2:]
        self.assertEqual(one["kv_dtype"], "int8")
        self.assertGreater(one["kv_error"]["key"], 0)
        formats = [segment["kv_dtype"] for segment in preview["segments"]]
        self.assertEqual(formats, [formats[0], "int8", formats[0], formats[0]])

    def test_run_answers_in_text(self):
        for run in ("run --chunk keeper --chunk ada --chunk trade --temperature 0",
                    'run --chunk keeper --chunk ada "What does Ada trade in?" --temperature 0'):
            done = script(PILE + run)
            self.assertEqual((done.returncode, done.stderr), (0, ""))
            self.assertEqual(done.stdout.splitlines()[-1].strip(), "apples.")
            self.assertRegex(done.stdout, r"\A([0-9a-f]{64}\n){4}")

    def test_commands_and_texts_may_come_from_files(self):
        with tempfile.NamedTemporaryFile("w") as card, tempfile.NamedTemporaryFile("w") as commands:
            card.write("Card 7. Ada trades in apples.")
            card.flush()
            commands.write(f'chunk add --type context --file "{card.name}"\nchunk list --format json\n')
            commands.flush()
            done = script("", commands.name)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertEqual(json.loads(done.stdout.splitlines()[1])[0]["content_preview"], "Card 7. Ada trades in apples.")

    def segments(self, how):
        (plan,) = self.results(f"compose keeper ada lars trade {how}\n")
        return plan, [part["position"] for part in plan["segments"]], [part["num_tokens"] for part in plan["segments"]]

    def test_positions_are_those_that_were_asked_for(self):
        _, concat, (system, ada, lars, _) = self.segments("")
        self.assertEqual(concat, [0, system, system + ada, system + ada + lars])
        self.assertEqual(self.segments("--positions concat")[1], concat)
        for how in ("--parallel", "--positions parallel"):
            self.assertEqual(self.segments(how)[1], [0, system, system, system + max(ada, lars)])
        for mode in ("", "--mode independent", "--mode independent --bos-sink", "--computed-in-place"):
            self.assertEqual(self.segments(f"--positions 0,100,40,200 {mode}")[1], [0, 100, 40, 200])

    def test_contexts_that_have_seen_something_else_are_other_kv(self):
        """A context that this way of composing would compute is not cached, though it is under its anchor."""
        for how, cached in (("", True), ("--mode independent", False), ("--mode independent --bos-sink", False),
                            ("--computed-in-place", False), ("--mode blend --base independent", False)):
            plan, _, _ = self.segments(how)
            self.assertEqual(plan["segments"][2]["cached"], cached, how)

    def test_blend_computes_the_tokens_that_are_listed_again(self):
        shares = {}
        for how in ("--recompute 16,17,30", "--selector explicit --recompute 30", "--selector explicit --recompute 0,46", "",
                    "--recompute 0.5", "--recompute 1", "--selector none", "--selector all",
                    "--selector random --selector-seed 18446744073709551615"):
            (output,) = self.results(f"run --chunk keeper --chunk ada --chunk lars --chunk trade --mode blend {how} --max-tokens 1\n")
            shares[how] = round(23 * output["reuse"]["recompute_share"], 6)  # of 23 context tokens behind 16 of the system chunk
        self.assertEqual(list(shares.values()), [3, 1, 0, 4, 12, 23, 0, 23, 4])

    def test_blend_computes_layers_of_all_context_tokens_again(self):
        one = ("chunk add --type context --anchor keeper --name ada 'Card 7. Ada trades in apples. They live in Foxley.' --keep-hidden 4\n"
               "chunk add --type context --anchor keeper --name lars 'Card 9. Lars carries a lantern.' --keep-hidden 4\n")
        run = "run --chunk keeper --chunk ada --chunk lars --chunk trade --mode blend --recompute-layers "
        kept, _, band, whole = self.results(one + f"{run} 4,6 --max-tokens 1\n{run} 0,8 --max-tokens 1\n")
        self.assertEqual(kept["keep_hidden"], 4)
        self.assertEqual([round(8 * output["reuse"]["recompute_share"], 6) for output in (band, whole)], [2, 8])

    def test_the_seed_of_a_selector_chooses_other_tokens(self):
        how = "run --chunk keeper --chunk ada --chunk lars --chunk trade --mode blend --selector random --temperature 0 --logprobs 5 "
        outputs = self.results("".join(how + f"--recompute 0.5 --selector-seed {seed}\n" for seed in (0, 1, 0)))
        first, other, again = ([output["reuse"]["sources"], output.get("logprobs")] for output in outputs)
        self.assertEqual(first, again)
        self.assertNotEqual(first, other)

    def test_a_chunk_may_be_given_as_token_ids(self):
        text, same, alone = self.results("chunk show ada\nchunk add --type context --token-ids 4,300,301 --name ids\n"
                                         "chunk add --type context --token-ids 4,300,301 --no-anchor\n")
        self.assertEqual((same["token_count"], same["content_preview"]), (3, "<doc> haro"))
        self.assertEqual((text["anchor"], same["anchor"], alone["anchor"]), (same["anchor"], text["anchor"], None))
        self.assertNotEqual(same["chunk_id"], alone["chunk_id"])

    def test_a_context_is_computed_behind_the_anchor_that_is_named(self):
        second, last, named, none = self.results(
            'chunk add --type system_prompt --name clerk "You are a clerk."\nchunk add --type context "Card 1. Ada."\n'
            'chunk add --type context --anchor keeper "Card 1. Ada."\nchunk add --type context --no-anchor "Card 1. Ada."\n')
        (rows,) = self.results("chunk list\n")
        self.assertEqual([chunk["anchor"] for chunk in (last, named, none)], [second["chunk_id"], rows[0]["chunk_id"], None])

    def test_an_anchor_may_be_several_chunks_joined_by_plus(self):
        part, rows, behind = self.results(
            'chunk add --type context --anchor keeper --name part "Card 1. Ada."\nchunk list\n'
            'chunk add --type context --anchor keeper+part "She trades in apples."\n')
        self.assertEqual(behind["anchor"], rows[0]["chunk_id"] + "+" + part["chunk_id"])
        self.assert_refused("chunk add --type context --anchor keeper+nobody 'A card.'\n", 1, "nobody")

    def test_bad_ways_to_compose_are_code_2_and_name_the_option_and_the_way_out(self):
        for how, *naming in (
                ("--positions 0,16", "--positions has 2 starts for 4 segments", "system and query included"),
                ("--positions 0,-1,2,3", "--positions", "want concat, parallel, or the start of each segment", '"0,-1,2,3"'),
                ("--positions 0,1,2,", "--positions", '"0,1,2,"'), ("--positions 0,1,2,4294967296", "4294967296"),
                ("--positions behind", "--positions", '"behind"'),
                ("--positions 0,1,2,3 --mode blend", "--positions", "concat only", "--mode anchored or independent"),
                ("--parallel --mode exact", "--parallel", "concat only"), ("--parallel --positions concat", "excludes"),
                ("--bos-sink", "--bos-sink", "--mode independent"), ("--bos-sink --mode blend", "--mode independent"),
                ("--computed-in-place --mode exact", "--computed-in-place", "--mode anchored"),
                ("--computed-in-place --mode blend --base independent", "--computed-in-place", "--mode anchored"),
                ("--mode blend --selector explicit", "--selector", "--recompute with indices"),
                ("--mode blend --selector explicit --recompute 0.3", "--recompute", "want indices", '"0.3"'),
                ("--mode blend --selector random --recompute 1,2", "--recompute", "--selector random", "leave it out"),
                ("--mode blend --recompute 1,-2", "--recompute", '"1,-2"'), ("--mode blend --recompute 1.5", "from 0 to 1", '"1.5"'),
                ("--mode blend --recompute nan", "from 0 to 1"), ("--mode blend --recompute 16,47", "recompute", "47"),
                ("--mode blend --selector-seed -1", "--selector-seed", '"-1"'),
                ("--mode blend --recompute-layers 4", "--recompute-layers", "two layers", '"4"'), ("--recompute-layers 4,6", "--mode blend"),
                ("--mode blend --recompute-layers 0,9", "recompute_layers", "last <= 8"),
                ("--mode blend --recompute-layers 0,4 --recompute 0.5", "--recompute-layers", "leave --recompute"),
                ("--mode blend --selector-seed 18446744073709551616", "--selector-seed"), ("--selector-seed 1", "--mode blend")):
            for command in ("compose keeper ada lars trade", "run --chunk keeper --chunk ada --chunk lars --chunk trade"):
                for part in naming:
                    self.assert_refused(f"{command} {how}", 2, part)

    def test_bad_chunks_are_refused_and_none_is_added(self):
        for arguments, code, naming in (
                ("--type context --token-ids 4,300 text", 2, "TEXT, --file and --token-ids"),
                ("--type context --token-ids 4,x", 2, "--token-ids"), ("--type context --token-ids 4,2048", 2, "2048"),
                ("--type context --token-ids -4", 2, "-4"), ("--type query --anchor keeper text", 2, "--anchor belongs to --type context"),
                ("--type system_prompt --no-anchor text", 2, "--no-anchor belongs to --type context"),
                ("--type context --anchor ada text", 2, "give a system_prompt chunk, or --no-anchor"),
                ("--type context --anchor nobody text", 1, "nobody"),
                ("--type context --anchor keeper --no-anchor text", 2, "excludes")):
            self.assert_refused(f"chunk add {arguments}", code, naming)

    def test_a_run_that_is_refused_leaves_no_question_behind(self):
        with tempfile.TemporaryDirectory() as folder:
            store = ("--store", folder + "/store", "--format", "json")
            done = script(PILE + "run --chunk keeper --chunk ada --mode blend --recompute 16,99 'Where does Ada live?'\n", *store)
            self.assertEqual((done.returncode, "99" in done.stderr), (2, True), done.stderr)
            done = script("chunk list --type query\n", *store)
            self.assertEqual([row["metadata"].get("name") for row in json.loads(done.stdout)], ["trade"])

    def test_wrong_usage_is_code_2_and_names_it(self):
        self.assert_refused("frobnicate", 2, "frobnicate")
        self.assert_refused("chunk frobnicate", 2, "frobnicate")
        self.assert_refused("chunk add --type document text", 2, "document")
        self.assert_refused("chunk add --type context", 2, "TEXT")
        for alone in ("chunk", "  chunk ", "chunk --help-me"):
            self.assert_refused(alone, 2, "add|list|show|pin|update|rm|clear" if "-" not in alone else "help-me")
        for command in ("compose keeper ada trade", "run --chunk keeper --chunk ada --chunk trade"):
            self.assert_refused(command + " --without-system", 2, "--without-system stands beside a system chunk")
        self.assert_refused("compose keeper trade --mode fuzzy", 2, "fuzzy")
        self.assert_refused("run --chunk keeper --chunk trade --max-tokens -1", 2, "max_tokens")
        self.assert_refused('chunk add --type context --priority "" text', 2, "--priority")
        for option in ("--recompute 0.3", "--selector all", "--base independent"):
            for mode in ("", " --mode anchored", " --mode exact"):
                self.assert_refused(f"compose keeper ada trade {option}{mode}", 2, "belongs to --mode blend")
        self.assert_refused("run --chunk keeper --chunk ada --chunk trade --recompute 0.3", 2, "belongs to --mode blend")

    def test_a_quote_that_nothing_closes_takes_no_words_after_it(self):
        for quote in "\"'`":
            self.assert_refused(f"run --chunk ada {quote}Where does Ada live? --mode exact", 2, f"the quote {quote} is not closed")
            self.assert_refused(f"run {quote}no \\{quote}", 2, f"the quote {quote} is not closed")
        done = script("chunk add --type query --name it's \"Where does Ada's cousin \\\"live\\\"?\"\nchunk show it's\n", "--format", "json")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("Ada's cousin", done.stdout)

    def test_failures_are_code_1_and_end_the_script(self):
        self.assert_refused("chunk show nobody\nchunk list", 1, "nobody")
        self.assert_refused("compose keeper ada", 1, "name a query chunk, or give its text to quire run")
        self.assert_refused("compose ada trade", 1, "name one, or give --without-system")
        self.assert_refused("run --chunk ada text", 1, "name one, or give --without-system")
        self.assert_refused("compose keeper keeper trade", 1, "keeper")
        self.assert_refused("chunk add --type context --file no/such.txt", 1, "no/such.txt")
        for unreadable in ("no/such/script", MODEL):  # a folder
            done = script("", unreadable)
            self.assertEqual((done.returncode, done.stdout), (1, ""))
            self.assertIn(f'error: cannot read "{unreadable}"', done.stderr)


class StoreTest(unittest.TestCase):
    """`quire chunk`, `quire compose` and `quire run --chunk`: each a process of its own."""

    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)

    def quire(self, *arguments, code=0, input=""):
        command = [PROGRAM, *arguments]
        if "--store" not in arguments:
            command += ["--store", self.folder.name + "/store"]
        done = subprocess.run(command, input=input, capture_output=True, text=True, timeout=60)
        self.assertEqual(done.returncode, code, done.stderr)
        return done.stderr if code else done.stdout

    def test_chunks_outlive_the_process_that_added_them(self):
        self.quire("chunk", "add", MODEL, "Answer from the cards.", "--type", "system_prompt", "--name", "keeper")
        self.quire("chunk", "add", MODEL, "Ada trades in apples.", "--type", "context", "--name", "ada", "--format", "json")
        self.quire("chunk", "add", MODEL, "What does Ada trade in?", "--type", "query", "--name", "trade")
        rows = json.loads(self.quire("chunk", "list", MODEL, "--format", "json"))
        self.assertEqual({row["metadata"]["name"] for row in rows}, {"keeper", "ada", "trade"})
        plan = json.loads(self.quire("compose", MODEL, "keeper", "ada", "trade", "--format", "json"))
        self.assertEqual([part["cached"] for part in plan["segments"]], [True, True, False])
        self.quire("chunk", "rm", MODEL, "ada")
        self.assertIn("ada", self.quire("chunk", "show", MODEL, "ada", code=1))
        self.assertEqual(len(self.quire("chunk", "list", MODEL).splitlines()), 2)

    def test_chunks_of_int8_say_their_format_and_its_error_and_another_format_does_not_find_them(self):
        coded = ["--kv-dtype", "int8"]
        self.quire("chunk", "add", MODEL, "Ada trades in apples.", "--type", "context", "--name", "ada", *coded)
        self.quire("chunk", "add", MODEL, "What does Ada trade in?", "--type", "query", "--name", "trade", *coded)
        chunk = json.loads(self.quire("chunk", "show", MODEL, "ada", *coded, "--format", "json"))
        self.assertEqual(chunk["kv_dtype"], "int8")
        self.assertTrue(0 < chunk["kv_error"]["key"] < 0.02 and 8 < chunk["kv_error"]["bits_per_value"] <= 8.5, chunk["kv_error"])
        plan = json.loads(self.quire("compose", MODEL, "ada", "trade", "--without-system", *coded, "--format", "json"))
        self.assertEqual([(part["kv_dtype"], part["cached"]) for part in plan["segments"]], [("int8", True), ("int8", False)])
        self.assertEqual(self.quire("chunk", "list", MODEL), "")

    def test_a_chunk_is_narrowed_under_a_new_id_which_the_command_prints(self):
        wide = self.quire("chunk", "add", MODEL, "Ada trades in apples.", "--type", "context", "--name", "ada").strip()
        narrow = self.quire("chunk", "update", MODEL, "ada", "--chunk-kv-dtype", "int8").strip()
        self.assertNotEqual(narrow, wide)
        chunk = json.loads(self.quire("chunk", "show", MODEL, narrow[:12], "--format", "json"))
        self.assertEqual((chunk["chunk_id"], chunk["kv_dtype"], chunk["metadata"]["name"]), (narrow, "int8", "ada"))
        self.assertIn(wide[:12], self.quire("chunk", "show", MODEL, wide, code=1))
        kept = self.quire("chunk", "update", MODEL, "ada", "--priority", "3", "--ttl", "3600", "--format", "json")
        self.assertEqual([json.loads(kept)[key] for key in ("chunk_id", "priority", "ttl_seconds")], [narrow, 3, 3600])
        self.assertIn("not narrower", self.quire("chunk", "update", MODEL, "ada", "--chunk-kv-dtype", "fp8", code=2))
        self.assertIn("--chunk-kv-dtype", self.quire("chunk", "update", MODEL, "ada", code=2))

    def test_what_names_no_chunk_deletes_none(self):
        nameless = self.quire("chunk", "add", MODEL, "Card 3.", "--type", "context").strip()
        self.assertIn("an empty text names no chunk", self.quire("chunk", "rm", MODEL, "", code=2))
        self.assertIn(nameless[:3], self.quire("chunk", "rm", MODEL, nameless[:3], code=1))
        self.assertEqual(len(self.quire("chunk", "list", MODEL).splitlines()), 1)
        self.quire("chunk", "rm", MODEL, nameless[:4])
        self.assertEqual(self.quire("chunk", "list", MODEL), "")

    def test_a_name_is_one_line(self):
        for name in ("", "two\nlines", "a\ttab"):
            self.assertIn("--name", self.quire("chunk", "add", MODEL, "Card 3.", "--type", "context", "--name", name, code=2))
        self.quire("chunk", "add", MODEL, "Card 3.", "--type", "context", "--metadata", "name=two\nlines")
        self.assertIn("\ttwo lines\t", self.quire("chunk", "list", MODEL))

    def test_texts_that_are_not_utf_8_are_kept_with_their_ill_formed_bytes_replaced(self):
        card = self.folder.name + "/latin1"
        with open(card, "wb") as file:
            file.write(b"Card 3. Caf\xe9.")
        self.quire("chunk", "add", MODEL, "--file", card, "--type", "context", "--name", "card")
        (row,) = json.loads(self.quire("chunk", "list", MODEL, "--format", "json"))
        self.assertEqual(row["content_preview"], "Card 3. Caf\ufffd.")
        done = subprocess.run([PROGRAM, "chat", MODEL, "--store", self.folder.name + "/store", "--max-tokens", "1"],
                              input=f"/load name=card {card}\n".encode() + b"Caf\xe9?\n/save\n", capture_output=True, timeout=60)
        noted = [f'note: "{card}": byte 12 (0xE9) is not UTF-8; such bytes are read as U+FFFD',
                 "note: the line: byte 4 (0xE9) is not UTF-8; such bytes are read as U+FFFD"]
        self.assertEqual((done.returncode, done.stderr.decode().splitlines()), (0, noted))
        self.assertIn(b"saved 4 items", done.stdout)

    def add_cards(self):
        self.quire("chunk", "add", MODEL, "You are the keeper of a card file. Answer from the cards.", "--type", "system_prompt",
                   "--name", "keeper")
        self.quire("chunk", "add", MODEL, "Card 4. Ada keeps a goose.", "--type", "context", "--name", "ada")

    def test_run_answers_behind_stored_chunks_and_leaves_the_store_as_it_was(self):
        self.add_cards()
        before = self.quire("chunk", "list", MODEL)
        chunks = ("--chunk", "keeper", "--chunk", "ada", "--temperature", "0")
        self.assertEqual(self.quire("run", MODEL, "Which animal does Ada keep?", *chunks), " a goose.\n")
        self.assertEqual(self.quire("chunk", "list", MODEL), before)
        self.quire("chunk", "add", MODEL, "Which animal does Ada keep?", "--type", "query", "--name", "animal")
        for query in (("--chunk", "animal"), ("Which animal does Ada keep?",)):
            output = json.loads(self.quire("run", MODEL, *query, *chunks, "--format", "json"))
            self.assertEqual((output["text"], output["usage"]["cached_tokens"]), (" a goose.", 25))
        self.assertEqual(len(self.quire("chunk", "list", MODEL).splitlines()), 3)

    def test_run_reads_the_question_behind_chunks_from_a_pipe_as_that_of_a_plain_run(self):
        self.add_cards()
        before = self.quire("chunk", "list", MODEL)
        asked = ("run", MODEL, "--chunk", "keeper", "--chunk", "ada", "--temperature", "0")
        self.assertEqual(self.quire(*asked, input="Which animal does Ada keep?\n"), " a goose.\n")
        self.assertIn("exactly one query", self.quire(*asked, input="\n", code=1))
        self.assertEqual(self.quire("chunk", "list", MODEL), before)
        self.quire("chunk", "add", MODEL, "Which animal does Ada keep?", "--type", "query", "--name", "animal")
        self.assertEqual(self.quire(*asked, "--chunk", "animal", input="What is this?"), " a goose.\n")

    def test_chunks_of_earlier_processes_are_anchors_and_stand_where_they_are_told(self):
        self.add_cards()
        self.quire("chunk", "add", MODEL, "You are a clerk.", "--type", "system_prompt", "--name", "clerk")
        described = [json.loads(self.quire("chunk", "add", MODEL, "--token-ids", "4,300,301", "--type", "context", "--format", "json", *anchor))
                     for anchor in ((), ("--anchor", "keeper"), ("--no-anchor",))]
        keeper, clerk = (json.loads(self.quire("chunk", "show", MODEL, name, "--format", "json"))["chunk_id"] for name in ("keeper", "clerk"))
        self.assertEqual([(chunk["anchor"], chunk["token_count"]) for chunk in described], [(clerk, 3), (keeper, 3), (None, 3)])
        before = self.quire("chunk", "list", MODEL)
        asked = ("run", MODEL, "Which animal does Ada keep?", "--chunk", "keeper", "--chunk", "ada", "--temperature", "0")
        for how in (("--positions", "0,16,25"), ("--positions", "0,40,60"), ("--mode", "blend", "--recompute", "16,17"),
                    ("--computed-in-place",)):
            self.assertEqual(self.quire(*asked, *how), " a goose.\n", how)
        for how in (("--positions", "0,16"), ("--positions", ""), ("--mode", "blend", "--recompute", ""), ("--bos-sink",),
                    ("--mode", "blend", "--selector-seed", "")):
            self.assertIn(how[0 if how[0] != "--mode" else 2], self.quire(*asked, *how, code=2))
        self.assertEqual(self.quire("chunk", "list", MODEL), before)

    def test_run_with_chunks_refuses_what_means_nothing(self):
        self.add_cards()
        self.assertIn("query", self.quire("run", MODEL, "--chunk", "keeper", "--chunk", "ada", code=1))
        before = self.quire("chunk", "list", MODEL)
        self.assertIn("--without-system", self.quire("run", MODEL, "Which animal does Ada keep?", "--chunk", "ada", code=1))
        self.assertEqual(self.quire("chunk", "list", MODEL), before)
        self.assertIn("nobody", self.quire("run", MODEL, "x", "--chunk", "nobody", code=1))
        self.assertIn("--chat excludes --chunk", self.quire("run", MODEL, "x", "--chat", "--chunk", "keeper", code=2))
        self.assertIn("--store needs --chunk or --cache-weights", self.quire("run", MODEL, "x", code=2))
        done = subprocess.run([PROGRAM, "run", MODEL, "x", "--mode", "exact"], capture_output=True, text=True, timeout=60)
        self.assertEqual((done.returncode, "--mode requires --chunk" in done.stderr), (2, True))

    def test_a_folder_that_may_not_be_written_to_answers_and_takes_nothing(self):
        self.add_cards()
        before = json.loads(self.quire("chunk", "list", MODEL, "--format", "json"))
        self.assertEqual([row["saved"] for row in before], [True, True])
        folder = self.folder.name + "/store"

        def read(*arguments, code=0, **options):
            done = subprocess.run([PROGRAM, *arguments, "--store", folder], capture_output=True, text=True, timeout=60,
                                  preexec_fn=give_up_writing_everywhere, **options)
            self.assertEqual(done.returncode, code, done.stderr)
            self.assertIn("remark: new chunks are not saved", done.stderr)
            if code:
                self.assertIn(f"error: the store {folder} is open read-only", done.stderr)
            return done.stdout
        os.chmod(folder, 0o500)
        self.addCleanup(os.chmod, folder, 0o700)
        chunks = ("--chunk", "keeper", "--chunk", "ada", "--temperature", "0")
        self.assertEqual(read("run", MODEL, "Which animal does Ada keep?", *chunks), " a goose.\n")
        lines = read("script", MODEL, input="chunk add --type query --name animal 'Which animal does Ada keep?'\n"
                     "chunk show animal --format json\nrun --chunk keeper --chunk ada --chunk animal --temperature 0\n")
        self.assertFalse(json.loads(lines.splitlines()[1])["saved"])
        self.assertEqual(lines.splitlines()[2], " a goose.")
        for refused in (("add", MODEL, "Card 9.", "--type", "context"), ("pin", MODEL, "ada"), ("rm", MODEL, "ada"),
                        ("clear", MODEL)):
            self.assertEqual(read("chunk", *refused, code=1), "")
        self.assertEqual(json.loads(read("chunk", "list", MODEL, "--format", "json")), before)

    def test_a_pin_of_the_store_is_shown(self):
        self.add_cards()
        key = json.loads(self.quire("chunk", "show", MODEL, "ada", "--format", "json"))["chunk_id"]
        subprocess.run([PROGRAM, "store", "pin", self.folder.name + "/store", key], check=True, timeout=60)
        self.assertTrue(json.loads(self.quire("chunk", "show", MODEL, "ada", "--format", "json"))["pinned"])
        self.assertEqual(["pinned" in line for line in self.quire("chunk", "list", MODEL).splitlines()], [False, True])

    def test_a_name_of_several_chunks_is_wrong_usage_everywhere(self):
        self.add_cards()
        self.quire("chunk", "add", MODEL, "Card 5. Ada keeps a hen.", "--type", "context", "--name", "ada")
        for command in (("run", MODEL, "x", "--chunk", "keeper", "--chunk", "ada"), ("compose", MODEL, "keeper", "ada"),
                        ("chunk", "show", MODEL, "ada"), ("chunk", "rm", MODEL, "ada")):
            self.assertIn('"ada" means 2 chunks', self.quire(*command, code=2))

    def test_a_store_may_be_named_below_the_home_folder(self):
        def home(*command):
            return subprocess.run([PROGRAM, "chunk", *command], capture_output=True, text=True, timeout=60,
                                  env={**os.environ, "HOME": self.folder.name})
        added = home("add", MODEL, "Card 3.", "--type", "context", "--store=~/below")
        self.assertEqual((added.returncode, os.listdir(self.folder.name)), (0, ["below"]), added.stderr)
        listed = home("list", MODEL, "--store=~/below")
        self.assertEqual(listed.returncode, 0, listed.stderr)

    def test_only_adding_makes_a_store(self):
        for command in (("chunk", "list", MODEL), ("chunk", "show", MODEL, "ada"), ("compose", MODEL, "ada"),
                        ("run", MODEL, "x", "--chunk", "ada")):
            self.assertIn("no store at", self.quire(*command, code=1))
        self.assertEqual(os.listdir(self.folder.name), [])

    def test_a_chunk_of_one_salt_is_not_found_with_another_or_without(self):
        store = ("--store", self.folder.name + "/salted")

        def names(*salt):
            rows = json.loads(self.quire("chunk", "list", MODEL, *store, *salt, "--format", "json"))
            return [row["metadata"]["name"] for row in rows]
        ids = [self.quire("chunk", "add", MODEL, "Card 3.", "--name", name, "--type", "context", *store, *salt)
               for name, salt in (("hers", ("--salt", "ada")), ("anyone's", ()))]
        self.assertNotEqual(*ids)
        self.assertEqual((names("--salt", "ada"), names("--salt", "lars"), names()), (["hers"], [], ["anyone's"]))
        self.assertIn("hers", self.quire("compose", MODEL, "hers", *store, code=1))
        self.assertIn("hers", self.quire("run", MODEL, "x", "--chunk", "hers", *store, code=1))
        self.assertIn("--salt requires --chunk", self.quire("run", MODEL, "x", "--salt", "ada", code=2))
        self.assertIn("1024", self.quire("chunk", "list", MODEL, *store, "--salt", "a" * 1025, code=2))

    def test_scripts_and_chats_see_what_their_salt_has_saved(self):
        card = self.folder.name + "/card"
        with open(card, "w") as file:
            file.write("Card 4. Ada keeps a goose.")
        for command, save, find, refusal in (
                ("script", f"chunk add --type context --name card --file {card}", "chunk show card", 'no chunk "card"'),
                ("chat", f"/load name=card {card}\n/save card", "/restore card", "no item 'card'")):
            def say(text, *salt):
                return subprocess.run([PROGRAM, command, MODEL, "--store", f"{self.folder.name}/{command}", *salt], input=text + "\n",
                                      capture_output=True, text=True, timeout=60)
            for text in (save, find):
                done = say(text, "--salt", "ada")
                self.assertEqual((done.returncode, done.stderr), (0, ""))
            for salt in (("--salt", "lars"), ()):
                self.assertIn(refusal, say(find, *salt).stderr)
            done = say(find, "--salt", "a" * 1025)
            self.assertEqual((done.returncode, "salt must have at most 1024 bytes" in done.stderr), (2, True))

    def test_options_stand_before_the_model_too(self):
        one = self.quire("chunk", "add", "--type", "context", MODEL, "Text one.", "--name", "one")
        self.assertEqual(self.quire("chunk", "add", MODEL, "Text one.", "--type", "context"), one)
        self.assertEqual(self.quire("chunk", "--threads", "1", "add", "--type", "context", "--threads", "1", MODEL, "Text one.",
                                    code=2).count("more than once"), 1)
        self.quire("chunk", "add", "--pin", "--type", "system_prompt", "--name", "sys", MODEL, "You answer.")
        self.quire("chunk", "add", "--threads", "1", "--type", "query", "--name", "ask", MODEL, "Who?")
        listed = self.quire("chunk", "list", "--type", "context", "--format", "json", MODEL)
        self.assertEqual(self.quire("chunk", "list", MODEL, "--type", "context", "--format", "json"), listed)
        self.assertEqual(self.quire("compose", "--mode", "independent", MODEL, "sys", "one", "ask"),
                         self.quire("compose", MODEL, "sys", "one", "ask", "--mode", "independent"))
        self.assertIn("TEXT", self.quire("chunk", "add", "--type", "context", MODEL, code=2))

    def test_names_that_no_chunk_has_are_said_to_be_none(self):
        self.add_cards()
        self.assertIn('no chunk "nobody": none has this name', self.quire("chunk", "show", MODEL, "nobody", code=1))
        self.quire("chunk", "rm", MODEL, "ada")
        self.assertIn('no chunk "ada": none has this name', self.quire("chunk", "show", MODEL, "ada", code=1))
        done = script(PILE + "chunk rm ada\nchunk show ada\n")
        self.assertIn('no chunk "ada": deleted; register it again', done.stderr)

    def test_wrong_usage_names_what_is_missing(self):
        self.assertIn("MODEL", self.quire("chunk", "list", code=2))
        self.assertIn("frob", self.quire("chunk", "frob", MODEL, code=2))
        self.assertIn("CHUNK is required", self.quire("compose", MODEL, code=2))
        self.assertIn("--store names no directory", self.quire("chunk", "list", MODEL, "--store", "", code=2))


class HelpTest(unittest.TestCase):
    def test_help_says_what_stands_below_a_command(self):
        for command, shown in ((("chunk",), "--metadata"), (("chunk", "add"), "--ttl"), (("compose",), "--selector"), (("compose",), "--positions"),
                               (("chunk",), "--token-ids"), (("chunk", "add"), "--anchor"),
                               (("run",), "--chunk")):
            done = subprocess.run([PROGRAM, *command, "--help"], capture_output=True, text=True, timeout=60)
            self.assertEqual((done.returncode, done.stderr), (0, ""))
            self.assertIn(shown, done.stdout)
        self.assertIn("Usage: chunk add", script("chunk add --help").stdout)


if __name__ == "__main__":
    PROGRAM, MODEL = sys.argv.pop(1), sys.argv.pop(1)
    unittest.main()
