"""`quire store` as a program, on a store that `quire chunk` has filled.

Run by CTest as `test_store_cli.py PROGRAM MODEL`; standard library only.
"""
import json
import os
import pathlib
import shutil
import sqlite3
import stat
import subprocess
import sys
import tempfile
import unittest

CHUNKS = (("Answer from the cards.", "system_prompt", "keeper"), ("Ada trades in apples.", "context", "ada"),
          ("Lars carries a lantern.", "context", "lars"))


def quire(*arguments):
    return subprocess.run([PROGRAM, *map(str, arguments)], capture_output=True, text=True, timeout=60)


class StoreTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.filled = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.filled.cleanup)
        for text, kind, name in CHUNKS:
            done = quire("chunk", "add", MODEL, text, "--type", kind, "--name", name, "--store", cls.filled.name + "/store")
            assert done.returncode == 0, done.stderr

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.store = self.folder / "store"
        shutil.copytree(self.filled.name + "/store", self.store)

    def done(self, *arguments, code=0):
        """Returns stdout of a `quire store` command, or stderr of one with another exit code."""
        done = quire("store", *arguments)
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        if code == 0:
            self.assertEqual(done.stderr, "")
            return done.stdout
        self.assertEqual(done.stdout, "")
        self.assertRegex(done.stderr, r"\Aerror: [^\n]+\n\Z")
        return done.stderr

    def json(self, *arguments):
        return json.loads(self.done(*arguments, "--json"))

    def objects(self):
        return sorted((self.store / "objects").glob("*/*.qkv"))

    def test_ls_shows_what_was_saved(self):
        rows = self.json("ls", self.store)
        self.assertEqual({row["metadata"]["metadata"]["name"] for row in rows}, {"keeper", "ada", "lars"})
        for row in rows:
            self.assertRegex(row["key"], r"\A[0-9a-f]{64}\Z")
            self.assertEqual((row["kind"], row["tenant"], row["expires_at"], row["pinned"]), ("chunk", "", None, False))
            self.assertRegex(row["accessed_at"], r"\A\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ\Z")
        self.assertEqual(json.loads(self.done("ls", self.store, "--format", "json")), rows)
        table = self.done("ls", self.store).splitlines()
        self.assertEqual([line.split()[0] for line in table], ["KEY", *(row["key"][:12] for row in rows)])
        self.assertEqual([row["ratio"] for row in rows], [1, 1, 1])
        self.assertEqual([line.split()[4] for line in table], ["RATIO", "1.00", "1.00", "1.00"])
        self.assertEqual({row["name"] for row in rows}, {"keeper", "ada", "lars"})
        self.assertEqual([line.split()[-1] for line in table], ["NAME", *(row["name"] for row in rows)])
        self.assertEqual(self.json("pin", self.store, "ada"), [row["key"] for row in rows if row["name"] == "ada"])
        self.json("pin", self.store, "ada", "--off")
        self.assertEqual(self.json("ls", self.store, "--kind", "checkpoint"), [])
        self.assertEqual(self.json("ls", self.store, "--tenant", "somebody"), [])

    def test_pins_last_and_rm_removes_what_nobody_else_holds(self):
        keys = [row["key"] for row in self.json("ls", self.store)]
        self.assertEqual(self.done("pin", self.store, keys[0], keys[1][:16]), "")
        self.assertEqual([row["pinned"] for row in self.json("ls", self.store)], [True, True, False])
        self.assertEqual(self.json("pin", self.store, keys[1], "--off"), [keys[1]])
        self.assertIn("pinned", self.done("ls", self.store).splitlines()[1])
        before = len(self.objects())
        self.assertEqual(self.done("rm", self.store, keys[2][:12], "--wipe"), "")
        self.assertEqual([row["key"] for row in self.json("ls", self.store)], keys[:2])
        self.assertEqual(len(self.objects()), before - 1)
        self.assertIn("nobody", self.done("rm", self.store, keys[0], "nobody", code=1))
        self.assertEqual(len(self.json("ls", self.store)), 2)  # all or nothing

    def test_a_wipe_beside_a_reader_is_finished_by_the_same_command_again(self):
        index = self.store / "index.sqlite"
        names = [row["metadata"]["metadata"]["name"] for row in self.json("ls", self.store)]
        key = self.json("ls", self.store)[names.index("lars")]["key"]
        reader = sqlite3.connect(index, isolation_level=None)
        self.addCleanup(reader.close)
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM entries").fetchall()
        self.assertIn("still in the log", self.done("rm", self.store, key, "--wipe", code=1))
        reader.execute("COMMIT")
        self.assertIn("no entry", self.done("rm", self.store, key, "--wipe", code=1))
        self.assertEqual([file.name for file in self.store.glob("index.sqlite*") if b"a lantern" in file.read_bytes()], [])

    def test_gc_leaves_what_is_wanted(self):
        self.assertEqual(self.json("gc", self.store)["evicted_entries"], 0)
        keys = [row["key"] for row in self.json("ls", self.store)]
        self.done("pin", self.store, keys[0])
        cleaning = self.json("gc", self.store, "--max-bytes", "1KiB")
        self.assertEqual((cleaning["evicted_entries"], cleaning["objects"]), (2, 1))
        self.assertEqual([row["key"] for row in self.json("ls", self.store)], keys[:1])
        self.assertIn("evicted_entries: 0", self.done("gc", self.store))

    def test_entries_travel_between_stores(self):
        entry = self.json("ls", self.store)[1]
        file, other = self.folder / "ada.qke", self.folder / "other"
        self.assertEqual(self.done("export", self.store, entry["key"][:8], file), "")
        self.assertEqual(stat.S_IMODE(file.stat().st_mode), 0o600)
        self.assertEqual(self.done("import", other, file), entry["key"] + "\n")
        (there,) = self.json("ls", other)
        for field in ("key", "kind", "tokens", "bytes", "metadata", "created_at"):
            self.assertEqual(there[field], entry[field])
        self.assertEqual(self.json("import", other, file, "--tenant", "t")["tenant"], "t")
        self.assertIn("2 entries", self.done("rm", other, entry["key"], code=1))
        self.done("rm", other, entry["key"], "--tenant", "t")
        self.assertEqual(len(self.json("ls", other)), 1)

    def test_a_damaged_file_is_named_and_leaves_no_store_where_none_was(self):
        file, empty = self.folder / "ada.qke", self.folder / "empty"
        self.done("export", self.store, self.json("ls", self.store)[1]["key"], file)
        whole = file.read_bytes()
        empty.mkdir()
        for damaged in (whole[:-1], whole[:-1] + bytes([whole[-1] ^ 1]), b"something else", whole[:5000] + b"x" + whole[5001:]):
            file.write_bytes(damaged)
            for store in (self.folder / "none", empty, self.store):
                before = sorted(self.folder.rglob("*"))
                self.assertIn("ada.qke", self.done("import", store, file, code=1))
                self.assertEqual([path for path in sorted(self.folder.rglob("*")) if not path.name.startswith("index.")],
                                 [path for path in before if not path.name.startswith("index.")])
        file.write_bytes(whole)
        self.done("import", self.folder / "none", file)

    def test_verify_finds_every_damaged_object(self):
        self.assertEqual({item["state"] for item in self.json("verify", self.store)}, {"ok"})
        self.assertRegex(self.done("verify", self.store), r"\Aobjects: \d+, damaged or missing: 0\n\Z")
        first, second = self.objects()[:2]
        damaged = bytearray(first.read_bytes())
        damaged[-1] ^= 1
        first.write_bytes(damaged)
        second.unlink()
        done = quire("store", "verify", self.store)
        self.assertEqual((done.returncode, done.stderr), (1, ""))
        self.assertRegex(done.stdout, rf"(?m)^damaged {first.stem} \(entries: 1\): .+$")
        self.assertRegex(done.stdout, rf"(?m)^missing {second.stem} \(entries: 1\): .+$")
        states = {item["hash"]: item["state"] for item in json.loads(quire("store", "verify", self.store, "--json").stdout)}
        self.assertEqual((states[first.stem], states[second.stem]), ("damaged", "missing"))

    def test_packed_weights_are_listed_verified_and_cleared(self):
        store = self.folder / "weights"
        for _ in range(2):
            done = quire("run", MODEL, "x", "--max-tokens", 1, "--store", store, "--cache-weights")
            self.assertEqual((done.returncode, done.stderr), (0, ""))
        (row,) = self.json("ls", store)
        self.assertEqual((row["kind"], row["name"], row["metadata"]["state"]), ("weights", os.path.abspath(MODEL), "ok"))
        self.assertEqual(self.json("ls", store, "--kind", "chunk"), [])
        self.assertIn("weights", self.done("ls", store, "--kind", "weights").splitlines()[1])
        file = store / "weights" / (row["key"] + ".qw")
        damaged = bytearray(file.read_bytes())
        damaged[-1] ^= 1
        file.write_bytes(damaged)
        checked = quire("store", "verify", store)
        self.assertEqual((checked.returncode, checked.stderr), (1, ""))
        self.assertRegex(checked.stdout, rf"(?m)^damaged {file.stem} \(weights\): .+$")
        again = quire("run", MODEL, "x", "--max-tokens", 1, "--store", store, "--cache-weights")
        self.assertEqual(again.returncode, 0)
        self.assertRegex(again.stderr, r"\Aremark: .+ the weights were packed anew\n\Z")
        self.assertRegex(self.done("verify", store), r"\Aobjects: 1, damaged or missing: 0\n\Z")
        file.write_bytes(damaged[:100])
        self.assertEqual(self.json("gc", store)["removed_weights"], 1)
        self.assertEqual(self.json("ls", store), [])
        done = quire("run", MODEL, "x", "--cache-weights")
        self.assertEqual(done.returncode, 2)
        self.assertIn("cache_weights needs a store", done.stderr)

    def test_repair_makes_a_damaged_index_anew(self):
        rows = self.json("ls", self.store)
        (self.store / "index.sqlite").write_bytes(b"nothing of ours")
        self.assertIn("quire store repair", self.done("ls", self.store, code=1))
        self.assertIn("--force", self.done("repair", self.store, code=1))
        self.assertEqual((self.store / "index.sqlite").read_bytes(), b"nothing of ours")
        self.assertEqual(self.done("repair", self.store, "--force"), "entries kept: 0\n")
        self.assertEqual(self.json("ls", self.store), [])
        self.assertTrue((self.store / "index.sqlite.damaged").exists())
        self.assertEqual(len(self.objects()), len(rows))
        self.assertEqual(self.json("repair", self.store, "--force"), {"entries": 0})

    def test_a_folder_that_is_no_store_stays_as_it_is(self):
        plain = self.folder / "plain"
        plain.mkdir()
        for command in (["ls"], ["verify"], ["gc"], ["rm", "x"], ["pin", "x"], ["export", "x", "y"], ["repair"]):
            command[1:1] = [plain]
            self.assertIn("plain", self.done(*command, code=1))
            command[1] = self.folder / "nowhere"
            self.assertIn("nowhere", self.done(*command, code=1))
        self.assertEqual(os.listdir(plain), [])
        self.assertFalse((self.folder / "nowhere").exists())
        self.assertIn("no such", self.done("import", self.folder / "new", self.folder / "no such", code=1))

    def test_wrong_usage_is_code_2_and_names_it(self):
        self.assertIn("repair", self.done(code=2))
        self.assertIn('unknown command "frob"; there are ls, ', self.done("frob", self.store, code=2))
        self.assertIn("DIR", self.done("ls", code=2))
        self.assertIn("ENTRY", self.done("rm", self.store, code=2))
        self.assertIn("FILE", self.done("export", self.store, "x", code=2))
        self.assertIn("file", self.done("ls", self.store, "--kind", "file", code=2))
        self.assertIn("many", self.done("gc", self.store, "--max-bytes", "many", code=2))
        self.assertIn("-5", self.done("gc", self.store, "--max-bytes", "-5", code=2))
        self.assertIn("xml", self.done("ls", self.store, "--format", "xml", code=2))

    def test_help_says_what_a_command_takes(self):
        for arguments, part in (([], "repair"), (["gc"], "--max-bytes"), (["rm"], "--wipe")):
            self.assertIn(part, self.done(*arguments, "--help"))


if __name__ == "__main__":
    PROGRAM, MODEL = sys.argv.pop(1), sys.argv.pop(1)
    unittest.main()
