"""Store from Python, on a store that checkpoints have filled."""

import os

import pytest
from conftest import MODEL

import quire

IDS = list(range(20, 90))


@pytest.fixture
def path(llm, tmp_path):
    manager = quire.CheckpointManager(llm, tmp_path / "store")
    with llm.sequence(IDS) as seq:
        for name, length in (("first", 40), ("second", 70)):
            seq.rollback(to_length=length) if length < len(seq) else seq.append(IDS[len(seq) :])
            manager.save({"a": seq}, name=name)
    return tmp_path / "store"


def names(store):
    return [entry.name for entry in store]


def test_entries_say_what_was_saved(path):
    store = quire.Store(path, read_only=True)
    first, second = store.ls()
    assert (first.name, second.name, len(store)) == ("first", "second", 2)
    assert (first.kind, first.tokens, first.tenant, first.expires_at, first.pinned) == ("checkpoint", 39, "", None, False)
    assert first.ratio == second.ratio == 1
    assert first.metadata["sequences"][0]["name"] == "a"
    assert store.ls("chunk") == [] and store.ls("checkpoint") == [first, second]
    for name in ("first", first.key, first.key[:8]):
        assert store.show(name) == first
    for name in ("third", first.key[:3], ""):
        with pytest.raises(quire.ChunkNotFoundError):
            store.show(name)
    with pytest.raises(OSError, match="read-only"):
        store.rm("first")


def test_pins_ttl_rm_and_gc(path):
    store = quire.Store(path, max_bytes=1)
    store.pin("first")
    store.set_ttl("second", 1000)
    assert store.show("first").pinned and store.show("second").expires_at > "2024"
    store.set_ttl("second", None)
    cleaning = store.gc()
    assert (cleaning.evicted_entries, cleaning.expired_entries) == (1, 0) and cleaning.removed_objects > 0
    assert names(store) == ["first"]
    store.pin("first", False)
    store.rm("first", wipe=True)
    assert names(store) == [] and quire.Store(path, max_bytes="1GiB").gc().objects == 0


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda path: quire.Store(path, max_bytes=[1]), r"^max_bytes cannot be \[1\]"),
        (lambda path: quire.Store(path).set_ttl("first", "1"), "^seconds cannot be '1'"),
        (lambda path: quire.Store(path).set_ttl(1, 1), "^entry must be a str"),
        (lambda path: quire.Store(path).pin(None), "^entry must be a str"),
    ],
)
def test_a_wrong_argument_is_named(path, call, named):
    with pytest.raises(TypeError, match=named):
        call(path)
    assert names(quire.Store(path)) == ["first", "second"]


def test_verify_finds_damage(path):
    store = quire.Store(path)
    assert {item.state for item in store.verify()} == {"ok"}
    file = min(path.glob("objects/*/*.qkv"))
    damaged = bytearray(file.read_bytes())
    damaged[-1] ^= 1
    file.write_bytes(damaged)
    assert [(item.hash, bool(item.message)) for item in store.verify() if item.state == "damaged"] == [(file.stem, True)]


def test_checkpoints_travel_between_stores(llm, path, tmp_path):
    quire.Store(path).export("second", tmp_path / "talk.qke")
    other = quire.Store(tmp_path / "other")
    assert other.import_(tmp_path / "talk.qke").name == "second"
    with quire.CheckpointManager(llm, tmp_path / "other").load("second")["a"] as seq:
        assert seq.tokens == IDS
    tenant = quire.Store(tmp_path / "other", tenant="t")
    assert tenant.import_(tmp_path / "talk.qke").tenant == "t" and len(tenant) == 1 and len(other) == 2
    (tmp_path / "talk.qke").write_bytes(b"something else")
    with pytest.raises(OSError, match=r"talk\.qke"):
        other.import_(tmp_path / "talk.qke")


def test_repair_keeps_what_can_be_read(path):
    assert quire.Store.repair(path) == 2
    (path / "index.sqlite").write_bytes(b"nothing of ours")
    with pytest.raises(OSError, match="quire store repair"):
        quire.Store(path)
    with pytest.raises(OSError, match="--force"):
        quire.Store.repair(path)
    assert quire.Store.repair(path, force=True) == 0 and names(quire.Store(path)) == []


def test_a_tilde_is_the_home_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model").symlink_to(MODEL)
    with quire.ChunkedLLM("~/model", threads=1, store="~/store") as llm:
        context = quire.ContextManager(llm)
        context.add("Card 4. Ada keeps a goose.", name="ada")
        context.save()
        llm.register_chunk("Card 6. Lars keeps a finch.", "context")
        with llm.sequence([5, 6, 7]) as sequence:
            quire.CheckpointManager(llm, "~/store").save({"ada": sequence}, name="kept")
            sequence.save("~/sequence.qkv")
        assert llm.load_sequence("~/sequence.qkv").tokens == [5, 6, 7]
    store = quire.Store("~/store")
    store.export("ada", "~/ada.qke")
    store.rm("ada")
    assert store.import_("~/ada.qke").name == "ada" and len(store) == 3
    assert quire.Tokenizer.open("~/model").vocab_size == quire.inspect("~/model")["shape"]["vocab_size"]
    assert {path.name for path in tmp_path.iterdir()} == {"model", "store", "sequence.qkv", "ada.qke"}


def test_paths_of_any_bytes_and_relative_ones_name_the_same_folder(tmp_path, monkeypatch):
    folder = os.fsencode(tmp_path) + b"/caf\xe9"
    with quire.ChunkedLLM(MODEL, threads=1, store=folder) as llm:
        llm.register_chunk("Card 6. Lars keeps a finch.", "context")
        monkeypatch.chdir(tmp_path)
        store = quire.Store(os.fsdecode(b"caf\xe9"), create=False)
        monkeypatch.chdir("/")
        assert len(store) == 1 and [item.state for item in store.verify()] == ["ok"]
        for path in ("", b""):
            with pytest.raises(ValueError, match="empty"):
                quire.ContextManager(llm, store=path)


def test_where_no_store_is(tmp_path):
    for options in ({"read_only": True}, {"create": False}):
        with pytest.raises(OSError, match="nowhere"):
            quire.Store(tmp_path / "nowhere", **options)
    with pytest.raises(ValueError, match="max_bytes"):
        quire.Store(tmp_path / "store", max_bytes=-1)
    with pytest.raises(ValueError, match="many"):
        quire.Store(tmp_path / "store", max_bytes="many")
    assert names(quire.Store(tmp_path / "store")) == []
