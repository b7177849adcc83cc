"""Disks that are full, read-only or another user's: a miss or a typed error, no wrong token, and nothing saved is lost.

Each case runs in a process of its own, with mounts that nobody else sees, and perhaps as another user.
"""

import os
import pathlib
import resource
import shutil
import subprocess
import sys
import tempfile

import pytest
from conftest import KEEPER, MODEL

import quire

NOBODY = 65534
IDS = list(range(20, 220))
MORE = list(range(300, 380))
SEEDED = {"max_tokens": 64, "seed": 7, "ignore_eos": True}
GREEDY = {"temperature": 0, "max_tokens": 8}
PAGE = 4096


class Saved:
    """A store with chunks, items and a checkpoint, the file of a sequence beside it, and the LLM that made them."""

    def __init__(self, folder):
        self.folder, self.store, self.file = folder, folder / "store", folder / "talk.qkv"
        self.open()
        self.chunks = {
            "system_chunk_id": self.llm.register_chunk(KEEPER, "system_prompt"),
            "context_chunk_ids": [self.llm.register_chunk("Card 4. Ada keeps a goose.", "context")],
            "query_chunk_id": self.llm.register_chunk("Which animal does Ada keep?", "query"),
        }
        self.answer = self.ask()
        self.context.save()
        self.manager.save({"a": self.sequence})
        self.sequence.save(self.file)
        self.state = self.file_state = self.sequence.tokens  # what the checkpoint and the file have

    def open(self):
        options = {"threads": 1, "kv_budget": "64MiB"}
        self.other = quire.LLM(MODEL, **options)  # reads what is there; opened while this user may read the model
        self.llm = quire.ChunkedLLM(MODEL, store=self.store, **options)
        self.sequence = self.llm.sequence(IDS)
        self.manager = quire.CheckpointManager(self.llm, keep=1)
        self.context = quire.ContextManager(self.llm)
        self.context.add(KEEPER, kind="system", name="keeper")
        self.context.add("Card 6. Lars keeps a finch.", name="lars")

    def close(self):
        self.llm.close()
        self.other.close()
        self.sequence = self.manager = self.context = None

    def ask(self):
        return self.llm.generate_from_chunks(**self.chunks, sampling_params=GREEDY).token_ids

    def write_all(self, mark):
        """Makes every call that writes. Each is done, or gives OSError and the state before. Returns how many were
        done."""
        self.sequence.append(MORE)
        states = len(self.manager.list())
        done = 0

        def attempt(call):
            try:
                call()
            except OSError as error:
                assert str(self.folder) in str(error), error
                return 0
            return 1

        if attempt(lambda: self.manager.save({"a": self.sequence})):
            self.state = self.sequence.tokens
            done += 1
        assert len(self.manager.list()) == states
        if attempt(lambda: self.sequence.save(self.file)):
            self.file_state = self.sequence.tokens
            done += 1
        chunks = len(self.llm.list_chunks())
        registered = attempt(lambda: self.llm.register_chunk(f"Card {mark}. Rosa keeps a lynx.", "context"))
        assert len(self.llm.list_chunks()) == chunks + registered
        self.context.add(f"Card {mark}. Emil keeps a crow.", name=f"emil {mark}")
        done += attempt(lambda: self.context.save(f"emil {mark}"))
        self.context.unload("lars", drop=True)
        self.context.restore("lars")
        done += attempt(lambda: quire.Store(self.store).pin(self.chunks["query_chunk_id"]))
        done += attempt(lambda: quire.Store(self.store).gc())
        done += attempt(lambda: quire.Store(self.store).export(self.chunks["system_chunk_id"], self.folder / "x.qke"))
        assert self.ask() == self.answer
        return done + registered

    def expect_whole(self):
        """Expects each saved thing to be there, to the bit: in this LLM and in another one."""
        assert {item.state for item in quire.Store(self.store).verify()} == {"ok"}
        loads = (
            (self.state, lambda: quire.CheckpointManager(self.other, self.store).load()["a"]),
            (self.file_state, lambda: self.other.load_sequence(self.file)),
        )
        for tokens, load in loads:
            with load() as loaded:
                assert loaded.tokens == tokens
                assert loaded.generate(SEEDED).token_ids == self.other.generate(tokens, SEEDED).token_ids
        context = quire.ContextManager(self.other, store=self.store)
        for name in ("keeper", "lars"):
            context.restore(name)
        assert context.stats()["tokens_computed"] == 0
        assert self.ask() == self.answer


def mount(folder, *options):
    subprocess.run(["mount", "-t", "tmpfs", *options, "tmpfs", folder], check=True)


def full_disk(folder):
    mount(folder, "-o", "size=16m")
    saved = Saved(folder)
    done = []
    for pages in (0, 1, 9, 40, 100, 300, 2000):
        with open(folder / "filler", "wb", buffering=0) as filler:
            try:
                while True:
                    filler.write(bytes(PAGE))
            except OSError:
                filler.truncate(max(0, filler.tell() - pages * PAGE))
        done.append(saved.write_all(pages))
        (folder / "filler").unlink()
        saved.expect_whole()
    assert done[0] <= 1 and done[-1] == 7, done


def small_files(folder):
    saved = Saved(folder)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    done = []
    for limit in (0, 1000, 30_000, 140_000, 10**9):
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
        done.append(saved.write_all(limit))
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        saved.expect_whole()
    assert done[0] <= 1 and done[-1] == 7, done


def read_only_mount(folder):
    mount(folder)
    saved = Saved(folder)
    saved.close()
    subprocess.run(["mount", "-o", "remount,ro", folder], check=True)
    saved.open()
    assert saved.write_all("ro") == 1  # a chunk is registered, in memory alone
    assert [chunk.saved for chunk in saved.llm.list_chunks()] == [True, True, True, False]
    with pytest.raises(OSError, match="read-only"):
        saved.llm.flush_store()
    saved.expect_whole()
    with pytest.raises(OSError, match="[Rr]ead-only"):
        quire.CheckpointManager(saved.other, folder / "new")


def become_nobody():
    os.setgroups([])
    os.setresgid(NOBODY, NOBODY, NOBODY)
    os.setresuid(NOBODY, NOBODY, NOBODY)


def store_of_another_user(folder):
    saved = Saved(folder)
    copied = folder / "readable"
    shutil.copytree(saved.store, copied)
    subprocess.run(["chmod", "-R", "a+rX", copied, saved.file], check=True)
    become_nobody()
    for refused in (
        lambda: quire.Store(saved.store),
        lambda: quire.ContextManager(saved.other, store=saved.store),
        lambda: quire.CheckpointManager(saved.other, saved.store),
        lambda: saved.sequence.save(saved.file),
    ):
        with pytest.raises(OSError, match="Permission denied"):
            refused()
    saved.store = copied
    saved.expect_whole()
    manager = quire.CheckpointManager(saved.other, copied)
    with manager.load()["a"] as loaded, pytest.raises(OSError, match="read-only"):
        manager.save({"a": loaded})


def lost_permissions(folder):
    saved = Saved(folder)
    for path in (folder, *folder.rglob("*")):
        os.chown(path, NOBODY, NOBODY)
    become_nobody()
    for part in (".", "objects", "index.sqlite", "format"):
        mode = (saved.store / part).stat().st_mode
        (saved.store / part).chmod(0)
        with pytest.raises(OSError, match=str(saved.store)):
            quire.CheckpointManager(saved.other, saved.store)
        assert saved.ask() == saved.answer
        (saved.store / part).chmod(mode)
    saved.expect_whole()
    objects = [*saved.store.glob("objects/*/*.qkv")]
    for each in objects:
        each.chmod(0)
    context = quire.ContextManager(saved.other, store=saved.store)
    context.restore("keeper")
    context.restore("lars")
    assert context.stats()["tokens_computed"] > 0  # a miss
    with pytest.raises(OSError, match="Permission denied"):
        quire.CheckpointManager(saved.other, saved.store).load()
    assert saved.ask() == saved.answer
    for each in objects:
        each.chmod(0o600)
    saved.expect_whole()


def is_root_and_may_mount():
    probe = ["unshare", "-m", "mount", "-t", "tmpfs", "tmpfs", "/mnt"]
    return os.geteuid() == 0 and subprocess.run(probe, capture_output=True).returncode == 0


@pytest.mark.parametrize("case", [full_disk, small_files, read_only_mount, store_of_another_user, lost_permissions])
def test_a_faulty_disk_gives_typed_errors_and_loses_nothing(case):
    command = [sys.executable, __file__, case.__name__]
    if case is not small_files:
        if not is_root_and_may_mount():
            pytest.skip("only root may mount a disk and become another user")
        command = ["unshare", "-m", *command]
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        done = subprocess.run([*command, folder], capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stdout + done.stderr


if __name__ == "__main__":
    globals()[sys.argv[1]](pathlib.Path(sys.argv[2]))
