"""Arguments are used as they are given, or refused by name: none is converted or dropped without a word.

Cases are generated from signatures. Each parameter of each public call gets values of kinds that its annotation does not
have. It gets numbers that nothing can hold, and words that no list of choices has. Everything else of the call is right.
"""

import asyncio
import contextlib
import inspect
import math
import random
import re
import types

import numpy as np
import pytest
from conftest import KEEPER, MODEL

import quire
from quire.composing import Asking, Composing, Registering
from quire.sampling import FIELDS, Request, Sampling, Urgency

pytestmark = pytest.mark.cpu_only  # it is about arguments, whatever computes

CLASSES = (
    quire.LLM, quire.ChunkedLLM, quire.ContextManager, quire.CheckpointManager, quire.Sequence, quire.Store, quire.Tokenizer,
    quire.Blocks, quire.VirtualSequence,
)  # fmt: skip
NO_ARGUMENT = {"self", "handle"}  # the second one is made by the library alone

# Annotations that are names, and those that say less than the call takes.
ALIASES = {
    "Model": "str | os.PathLike", "Prompt": "str | list[int]", "Params": "dict | None", "Progress": "bool | Callable | None",
    "Log": "Callable | None",
    "Scheduler": "choice", "PreemptionMode": "choice", "Speculate": "choice | dict | None",
    "Device": "choice", "DType": "choice", "KVDType": "choice", "Quantize": "choice", "Mode": "choice", "Selector": "choice", "ChunkType": "str",
    "LLM": "object", "Sequence": "object", "Mark": "object", "Blocks": "object", "Composition": "object",
    "VirtualSequence": "object",
}  # fmt: skip
ANNOTATIONS = {
    "existing_blocks": "list[int] | None", "blocks": "list[int] | None", "ids": "list[int]", "chunk_type": "choice",
    "reuse": "choice", "rows": "choice", "mode": "choice", "kind": "choice", "base": "choice | None", "sink": "choice | None",
    "positions": "choice | list[int]", "selector": "choice | None", "request": "dict | str | list[int] | None",
    "query": "str | list[int]", "ttl_seconds": "float | None", "speculate": "Count | None",
}  # fmt: skip
ANNOTATIONS_OF = {
    ("Tokenizer.decode", "ids"): "list[int] | int",
    ("ContextManager.compose", "ids"): "list[str]",
    ("ChunkedLLM.list_chunks", "chunk_type"): "choice | None",
    ("ChunkedLLM.clear_chunks", "chunk_type"): "choice | None",
    ("Store.ls", "kind"): "choice | None",
    ("LLM.__init__", "speculate"): "choice | dict | None",
    ("ChunkedLLM.__init__", "speculate"): "choice | dict | None",
    ("LLM.__init__", "model"): "str | os.PathLike",
    ("ChunkedLLM.__init__", "model"): "str | os.PathLike",
    ("ChunkedLLM.generate", "persist_chunks"): "bool | None",  # None is no, too
    ("ChunkedLLM.generate", "context"): "str | list[str] | None",
    ("CheckpointManager.maybe_save", "sequences"): "dict",
    ("VirtualSequence.__init__", "token_ids"): "list[int] | None",
    ("VirtualSequence.__init__", "existing_blocks"): "list[int] | None",
}
# How an error may call an argument, where not by its name.
CALLED = {
    "ids": "ids?|item", "request": "prompt|request", "requests": "request", "chunks": "chunk", "blocks": "existing_blocks",
    "other": "diff takes another Sequence", "sequence": "a VirtualSequence", "model_path": "model", "seconds": "ttl",
    "llm": "belongs? to an LLM", "sequences": "sequences|ids", "new_tokens": "token_ids", "tags": "a tag",
}  # fmt: skip
CALLED |= dict.fromkeys(("chunk_id", "system_chunk_id", "context_chunk_ids", "query_chunk_id"), "chunk")
COUNTS = ("existing_token_count", "to_length", "drop", "at", "start", "stop", "num_tokens")
CALLED |= dict.fromkeys(COUNTS, "number of tokens|no sequence has")


def functions(cls):
    """Returns the public calls of a class, by qualified name."""
    for name, member in inspect.getmembers(cls, callable):
        if name == "__init__" or not name.startswith("_"):
            owner = next(c for c in cls.__mro__ if name in vars(c))
            heir = next((c for c in reversed(cls.__mro__) if c in CLASSES and issubclass(c, owner)), None)
            if heir is cls and owner.__module__.startswith("quire"):  # its own, or of a part that it is made of
                yield f"{cls.__name__}.{name}", member


CALLS = {name: function for cls in CLASSES for name, function in functions(cls)}
CALLS |= {"Tokenizer.__call__": quire.Tokenizer.__call__, "inspect": quire.inspect}


def fields(annotation):
    """Returns the keywords that `Unpack[...]` stands for."""
    keywords = {each.__name__: each for each in (Sampling, Urgency, Request, Composing, Asking, Registering)}[annotation[len("Unpack[") : -1]]
    return {name: hint.__forward_arg__ for name, hint in keywords.__annotations__.items()}


def parameters(name):
    """Returns names and annotations of what a call takes."""
    given = {}
    for parameter in inspect.signature(CALLS[name]).parameters.values():
        if parameter.kind is inspect.Parameter.VAR_KEYWORD and parameter.annotation.startswith("Unpack["):
            given |= fields(parameter.annotation)
        elif parameter.kind not in (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL):
            given[parameter.name] = parameter.annotation
    return {
        each: ANNOTATIONS_OF.get((name, each), ANNOTATIONS.get(each, annotation))
        for each, annotation in given.items()
        if each not in NO_ARGUMENT
    }


def alternatives(annotation):
    """Returns the types of a union, each as (name, what is in its brackets)."""
    depth, parts = 0, [""]
    for letter in annotation:
        depth += {"[": 1, "]": -1}.get(letter, 0)
        if letter == "|" and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    for part in parts:
        name, _, inside = part.strip().removesuffix("]").partition("[")
        if name in ALIASES and not inside:
            yield from alternatives(ALIASES[name])
        else:
            yield name, inside


KINDS = {
    "bool": {"bool"}, "int": {"int"}, "float": {"int", "float"}, "str": {"text"}, "choice": {"text"}, "None": {"none"},
    "os.PathLike": {"text", "bytes"}, "dict": {"dict"}, "Mapping": {"dict"}, "object": {"thing"}, "Callable": {"function"},
    "list": {"list", "array"}, "Sequence": {"list", "array"}, "Iterable": {"list", "array", "set"}, "Literal": {"text"},
    "Any": set(), "Count": {"int", "bool"},
}  # fmt: skip
NUMBERS = {"int", "float"}
SAMPLED = 4  # values of each field of SamplingParams that a call takes by keyword; its own test takes all of them


def values(rng):
    """Returns one value of each kind."""
    word = "".join(rng.choices("bcdfghjklmnpqrstvwxz", k=8))
    return {
        "none": None, "bool": rng.random() < 0.5, "int": rng.randint(2, 30), "float": rng.randint(1, 30) + rng.uniform(0.1, 0.9),
        "text": word, "bytes": word.encode(), "dict": {word: rng.randint(2, 9)}, "set": {rng.randint(2, 9), word},
        "thing": types.SimpleNamespace(word=word), "array": np.array([rng.uniform(0.1, 0.9)] * 2), "list": [word, 1.5],
        "function": len,
    }  # fmt: skip


def wrong_elements(inside, rng):
    """Lists, one element of which is none of those that belong there."""
    kinds = set().union(*(KINDS.get(name, set()) for name, _ in alternatives(inside)))
    taken = values(rng)
    if kinds == {"int"}:
        yield from ([5, True], [5, 6.5], [5, 2.0], [5, None], [5, "6"], [5, 2 ** rng.randint(64, 200)], np.array([True, False]))
    if "text" in kinds:
        yield from ([taken[kind]] for kind in taken if kind not in kinds and kind not in ("list", "array"))


def wrong_values(annotation, rng):
    """Returns values that the annotation excludes, or that no argument can have."""
    named = list(alternatives(annotation))
    kinds = set().union(*(KINDS[name] for name, _ in named))
    yield from (value for kind, value in values(rng).items() if kind not in kinds)
    if kinds & NUMBERS:
        yield from (math.nan, -math.nan)
    if "int" in kinds and "float" not in kinds:
        yield from (2 ** rng.randint(64, 200), -(2 ** rng.randint(64, 200)), float(rng.randint(2, 9)))
    if ("bool", "") in named:
        yield from (rng.randint(2, 99), "False", "")
    if ("choice", "") in named:
        yield from (values(rng)["text"], "", "\ud800")
    lists = [inside for name, inside in named if name in ("list", "Sequence", "Iterable") and inside]
    if lists:
        yield from wrong_elements(" | ".join(lists), rng)


class Site:
    """An object of each class, and arguments that are right."""

    def __init__(self, folder):
        self.llm = quire.ChunkedLLM(MODEL, threads=2, kv_budget="32MiB", store=folder / "store")
        chunks = [(KEEPER, "system_prompt"), ("Card 4. Ada keeps a goose.", "context"), ("Which animal does Ada keep?", "query")]
        system, context, query = self.llm.register_chunks(chunks)
        self.sequence = self.llm.sequence([5, 6, 7, 8])
        self.context = quire.ContextManager(self.llm)
        item = self.context.add("Card 4. Ada keeps a goose.", "ada")
        self.checkpoints = quire.CheckpointManager(self.llm, folder / "checkpoints")
        self.checkpoints.save({"a": self.sequence}, name="first")
        self.store = quire.Store(folder / "store")
        self.sequence.save(folder / "saved")
        messages = [{"role": "user", "content": "Which animal?"}]
        self.right = {
            "model": MODEL, "prompt": [5, 6], "messages": messages, "token_ids": [5, 6], "session": None,
            "existing_blocks": self.sequence.blocks()[0], "sequence": quire.VirtualSequence([5, 6]), "request_id": 2**40,
            "system_chunk_id": system, "context_chunk_ids": [context], "query_chunk_id": query, "chunk_id": system,
            "content": "x", "chunk_type": "context", "chunks": [("x", "context")], "requests": [], "item": item, "text": "x",
            "ids": [item], "llm": self.llm, "path": folder / "saved", "entry": system, "seconds": 60, "token_id": 5,
            "token": "a", "sequences": {"a": self.sequence}, "name": "first", "keep": 3, "num_tokens": 2, "start": 0, "stop": 0,
            "at": 0, "other": self.sequence, "contexts": ["x", "y"], "queries": ["x"], "text_or_ids": [5, 6],
        }  # fmt: skip
        self.right_of = {
            "LLM.pause_session": {"session": "s"}, "LLM.close_session": {"session": "s"}, "LLM.set_retention": {"session": "s"},
            "ChunkedLLM.generate": {"prompt": None, "system_prompt": "x", "query": "x"}, "ContextManager.add": {"name": None},
            "ContextManager.compose": {"name": None}, "Sequence.append": {"ids": [5]}, "Sequence.insert": {"ids": [5]},
            "Sequence.replace": {"ids": [5]}, "Tokenizer.decode": {"ids": [5]}, "Tokenizer.batch_decode": {"sequences": [[5]]},
            "Store.__init__": {"path": folder / "store"}, "Store.import_": {"path": folder / "none"},
            "Store.repair": {"path": folder / "none"}, "CheckpointManager.save": {"name": None},
            "ChunkedLLM.explain": {"token_ids": None}, "CheckpointManager.load": {"name": None},
            "Store.export": {"path": folder / "exported"},
            "CheckpointManager.__init__": {"folder": folder / "checkpoints"}, "ContextManager.infer": {"text": None},
        }  # fmt: skip
        self.objects = {
            "LLM": self.llm, "ChunkedLLM": self.llm, "ContextManager": self.context, "CheckpointManager": self.checkpoints,
            "Sequence": self.sequence, "Store": self.store, "Tokenizer": self.llm.tokenizer, "Blocks": self.sequence.blocks()[0],
        }  # fmt: skip

    def arguments(self, name):
        """Returns the arguments that the call needs, and those without which another one could not be wrong alone."""
        right = {**self.right, **self.right_of.get(name, {})}
        needed = inspect.signature(CALLS[name]).parameters.values()
        given = {each.name: right[each.name] for each in needed if each.name in right and each.name not in NO_ARGUMENT}
        return {key: value for key, value in given.items() if value is not None}

    def call(self, name, arguments):
        """Calls, and ends what the call has begun."""
        owner, _, method = name.rpartition(".")
        if method == "__init__":
            made = getattr(quire, owner)(**arguments)
        elif owner == "LLM":
            made = getattr(quire.LLM, method)(self.llm, **arguments)
        else:
            made = getattr(self.objects.get(owner, quire), method)(**arguments)
        if inspect.iscoroutine(made):
            made = asyncio.run(made)
        elif isinstance(made, quire.AsyncStream):
            made = asyncio.run(first(made))
        if hasattr(made, "close"):
            made.close()
        return made


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    made = Site(tmp_path_factory.mktemp("arguments"))
    with contextlib.closing(made.llm):
        yield made


async def first(stream):
    """Returns the first delta of a stream, which is closed afterwards."""
    async with contextlib.aclosing(stream):
        return await anext(stream)


def beside(name, parameter):
    """Returns arguments that must stand beside a wrong one, so that it is what is wrong."""
    if parameter in ("recompute", "recompute_layers", "selector", "selector_seed", "base") and name.startswith("ChunkedLLM"):
        return {"mode": "blend"}
    return {"existing_token_count": 4} if parameter in ("blocks", "existing_blocks") else {}


def instead(parameter):
    """Returns arguments that must go where another one is given."""
    chunks = {"system_chunk_id", "context_chunk_ids", "query_chunk_id"}
    return {"model_path": {"model"}, "composition": chunks}.get(parameter, set())


def cases(name, rng):
    """Returns parameters of a call, each with values that it must refuse."""
    for parameter, annotation in parameters(name).items():
        values = list(wrong_values(annotation, rng))
        yield from ((parameter, value) for value in (rng.sample(values, SAMPLED) if parameter in FIELDS else values))


def complaint(site, name, parameter, value):
    """Tells what is wrong with how a call takes a value that it must refuse; None if it is refused by
    name."""
    arguments = {key: each for key, each in site.arguments(name).items() if key not in instead(parameter)}
    arguments |= {**beside(name, parameter), parameter: value}
    shown = f"{name}({parameter}={value!r:.40})"
    try:
        made = site.call(name, arguments)
    except (TypeError, ValueError, quire.QuireError, LookupError) as error:
        called = f"{re.escape(parameter)}|{CALLED.get(parameter, parameter)}"
        named = re.search(rf"\b(?:{called})", str(error)) and "unexpected keyword" not in str(error)
        return None if named else f"{shown}: {type(error).__name__}: {error}"
    except Exception as error:
        return f"{shown}: {type(error).__name__}, which is no error of an argument: {error}"
    return f"{shown} is taken, and gives {made!r:.80}"


@pytest.mark.parametrize("name", sorted(CALLS))
def test_what_an_argument_cannot_be_is_refused_by_name(site, name):
    found = [complaint(site, name, *case) for case in cases(name, random.Random(name))]
    assert [each for each in found if each] == []


@pytest.mark.parametrize("name", sorted(CALLS))
def test_a_keyword_that_a_call_does_not_have_is_refused_by_name(site, name):
    rng = random.Random(name)
    for parameter in parameters(name) or ["salt"]:
        at = rng.randrange(len(parameter))
        misspelt = parameter[:at] + rng.choice("qxz") + parameter[at:]
        with pytest.raises((TypeError, ValueError), match=misspelt):
            site.call(name, {**site.arguments(name), misspelt: rng.randint(0, 9)})


@pytest.mark.parametrize("field", FIELDS)
def test_a_sampling_parameter_that_cannot_be_is_refused_by_name(field):
    annotation = ANNOTATIONS.get(field, Sampling.__annotations__[field].__forward_arg__)
    rng = random.Random(field)
    for value in [each for _ in range(20) for each in wrong_values(annotation, rng)]:
        for refused in ({field: value}, {"seed": 1, field: value}):
            with pytest.raises((TypeError, ValueError), match=f"'{field}'|^{field}"):
                quire.SamplingParams(**refused)


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("temperature", [0, 0.5, 1, np.float32(0.25)]), ("top_p", [0.5, 1]), ("top_k", [0, 7, np.int64(9)]), ("min_p", [0, 0.5]),
        ("repetition_penalty", [0.5, 1, 2]), ("presence_penalty", [-1, 0.5]), ("frequency_penalty", [-1, 0.5]),
        ("max_tokens", [0, 7, 2**31 - 1]), ("min_tokens", [0, 7]), ("stop", [["x", "y"], None]),
        ("stop_token_ids", [[5, 6], None]), ("ignore_eos", [True, False]), ("seed", [0, 2**63 - 1, None]),
        ("logprobs", [0, 5, None]), ("speculate", [0, 5, None]), ("logit_bias", [{5: -1.5}, None]),
    ],
)  # fmt: skip
def test_a_sampling_parameter_is_read_back_as_it_was_given(field, values):
    for value in values:
        assert getattr(quire.SamplingParams(**{field: value}), field) == value


@pytest.mark.parametrize("value", [{5: "2"}, {5: True}, {True: 1.0}, {5: None}, {"x": 1.0}, {5.0: 1.0}, {2**40: 1.0}])
def test_a_bias_has_ids_and_numbers_alone(value):
    with pytest.raises((TypeError, ValueError), match="logit_bias"):
        quire.SamplingParams(logit_bias=value)


@pytest.mark.parametrize("key", [5, 2.5, True, None])
@pytest.mark.parametrize("depth", [0, 1, 2])
def test_keys_that_json_would_make_texts_of_are_refused(site, key, depth):
    fields = {key: "x"}
    for _ in range(depth):
        fields = {"inner": [fields]}
    with pytest.raises(TypeError, match="^metadata: keys are str, not"):
        site.llm.register_chunk("x", "context", fields)
    with pytest.raises(TypeError, match="^metadata_filter: keys are str, not"):
        site.llm.list_chunks(None, fields)
    message = {"role": "user", "content": "x", "more": fields}
    with pytest.raises(TypeError, match="^messages: keys are str, not"):
        site.llm.chat([message])


def test_a_flag_may_be_written_as_numpy_and_json_programs_write_it(site):
    ids = site.llm.tokenizer.encode("a b", add_special_tokens=True)
    assert all(site.llm.tokenizer.encode("a b", add_special_tokens=yes) == ids for yes in (np.bool_(True), 1))
