"""LLM: a model, its KV cache, and the engine that serves requests from any number of threads."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Self, overload

from . import _quire, sequence
from ._quire import SamplingParams
from .outputs import Fields, ForwardOutput, GenerationOutput
from .sequence import VirtualSequence
from .session import each_whose, session_name, to_salt, whose
from .stream import Stream, token_dicts
from .tokenizer import Tokenizer, _callback, _pass, _set, to_bytes, to_ids, to_path, to_text

Params = SamplingParams | dict[str, Any] | None
Prompt = str | Sequence[int]


def _prompt(prompt: Prompt, what: str = "prompt") -> str | list[int]:
    return to_text(prompt) if isinstance(prompt, str) else to_ids(prompt, what, "token ids, or a text")


def _is_batch(prompts: Any) -> bool:
    """A list of texts or of id lists, as opposed to one text or one list of ids."""
    if isinstance(prompts, (str, bytes)) or not (isinstance(prompts, Sequence) or hasattr(prompts, "tolist")):
        return False
    if len(prompts) == 0:
        return False
    first = prompts[0]  # of an array of ids: a number, though one of no dimensions may claim a length
    return isinstance(first, str) or (hasattr(first, "__len__") and getattr(first, "ndim", 1) > 0)


def _kv_budget(size: str | int) -> int:
    return _quire.AUTO_BUDGET if size == "auto" else to_bytes(size, "kv_budget")


# How a keyword becomes a field of the library's options, where it is not as it is given.
_TAKEN: dict[str, Callable[[Any], Any]] = {
    "deterministic": bool,
    "quantize": lambda name: "" if name is None else name,
    "kv_budget": _kv_budget,
    "threads": lambda count: 0 if count is None else count,
    "store": lambda path: b"" if path is None else to_path(path),
    "cache_weights": bool,
}


class LLM:
    """Loads `model` (Hugging Face folder, GGUF file, or "preset:NAME") and serves it.

    Calls may come from any thread; they wait without the GIL. A forked child has no engine: every call there is a
    ClosedError; open the model again in it, or start it with "spawn". Errors: quire.errors.
    """

    def __init__(
        self,
        model: str | os.PathLike[str],
        *,
        device: str = "cpu",
        deterministic: bool = True,
        dtype: str = "auto",
        quantize: str | None = None,
        kv_dtype: str = "auto",
        block_tokens: int = 32,
        kv_budget: str | int = "1GiB",
        max_batch_tokens: int = 2048,
        threads: int | None = None,
        seed: int = 0,
        prefix_cache: bool = True,
        share_reads: bool = True,
        store: str | os.PathLike[str] | None = None,
        cache_weights: bool = False,
        progress: Callable[[float], None] | None = None,
    ) -> None:
        """`store`: the directory of its contexts (ContextManager) and, with `cache_weights`, of its packed weights: a second
        start maps them, without reading and packing the model; what keeps that from working is in `remarks()`.
        `kv_budget`: bytes, "4GiB", or "auto": most of what is free once the weights are loaded. `deterministic`: False lets
        a GPU be faster, with last bits that depend on what is computed together. `share_reads`: False reads what requests
        share for each of them, to measure what sharing gains."""
        given = locals()
        self.store = store
        options = _quire.Options()
        for name in _quire.Options.fields:
            _set(options, name, _TAKEN[name](given[name]) if name in _TAKEN else given[name])
        self._handle = self._open(to_path(model), options, _callback(progress, "progress"))

    def _open(self, model: bytes, options: _quire.Options, progress: Callable[[float], None] | None) -> _quire.LLM:
        return _quire.LLM.open(model, options, progress)

    @overload
    def generate(  # type: ignore[overload-overlap]  # a text is a sequence of texts too: it is one prompt
        self,
        prompt: Prompt,
        sampling_params: Params = None,
        *,
        session: str | None = None,
        salt: str | None = None,
    ) -> GenerationOutput: ...

    @overload
    def generate(
        self,
        prompt: Sequence[Prompt],
        sampling_params: Params | Sequence[Params] = None,
        *,
        session: str | Sequence[str | None] | None = None,
        salt: str | Sequence[str | None] | None = None,
    ) -> list[GenerationOutput]: ...

    def generate(
        self,
        prompt: Prompt | Sequence[Prompt],
        sampling_params: Params | Sequence[Params] = None,
        *,
        session: str | Sequence[str | None] | None = None,
        salt: str | Sequence[str | None] | None = None,
    ) -> GenerationOutput | list[GenerationOutput]:
        """One output, or a list for a list of prompts, computed in one continuous batch.

        session: whose request it is (see pause_session); for a list of prompts perhaps a list
        salt: tenant; cached prefixes are shared by requests of one salt alone. None: that of the chunks if they have
            one (ChunkedLLM), else none; for a list of prompts perhaps a list
        """
        batch = _is_batch(prompt)
        prompts = [_prompt(p) for p in prompt] if batch else [_prompt(prompt)]
        params = list(sampling_params) if isinstance(sampling_params, (list, tuple)) else [sampling_params]
        fields = self._handle.generate(prompts, params, each_whose(session, salt))
        outputs = [GenerationOutput(each) for each in fields]
        return outputs if batch else outputs[0]

    def stream(
        self, prompt: Prompt, sampling_params: Params = None, *, session: str | None = None, salt: str | None = None
    ) -> Stream:
        """Deltas as they come; joined they equal what generate gives."""
        return Stream(self._handle.stream(_prompt(prompt), sampling_params, whose(session, salt)))

    def chat(
        self,
        messages: list[dict[str, Any]],
        sampling_params: Params = None,
        *,
        session: str | None = None,
        salt: str | None = None,
        **template_args: Any,
    ) -> GenerationOutput:
        """As generate, through the model's own chat template."""
        return self.generate(self._chat_ids(messages, template_args), sampling_params, session=session, salt=salt)

    def stream_chat(
        self,
        messages: list[dict[str, Any]],
        sampling_params: Params = None,
        *,
        session: str | None = None,
        salt: str | None = None,
        **template_args: Any,
    ) -> Stream:
        """As stream, through the model's own chat template."""
        return self.stream(self._chat_ids(messages, template_args), sampling_params, session=session, salt=salt)

    def _chat_ids(self, messages: list[dict[str, Any]], template_args: dict[str, Any]) -> list[int]:
        return self.tokenizer.apply_chat_template(messages, tokenize=True, **template_args)

    def forward(
        self, token_ids: Sequence[int], reuse: str = "exact", rows: str = "all", *, salt: str | None = None
    ) -> ForwardOutput:
        """Logits of the rows after the cached prefix (`rows="last"`: of the last one). Fills the cache."""
        if reuse not in ("exact", "none"):
            raise ValueError(f"reuse must be 'exact' or 'none', not {reuse!r}")
        if rows not in ("all", "last"):
            raise ValueError(f"rows must be 'all' or 'last', not {rows!r}")
        ids, whole = to_ids(token_ids, "token_ids"), rows == "all"
        return ForwardOutput(self._handle.forward(ids, reuse == "exact", whole, whose(salt=salt)))

    def explain(self, prompt: Prompt, *, salt: str | None = None) -> list[Fields]:
        """What the prefix cache holds of the prompt (`hit`) and why it holds no more (`reason`). Changes nothing.

        `salt`: for requests of that tenant; it says nothing of what others have computed.
        """
        return [Fields(part) for part in self._handle.explain(_prompt(prompt), whose(salt=salt))]

    def pause_session(
        self, session: str, expected_return: float | None = None, *, salt: str | None = None
    ) -> None:
        """The session is away, and back in `expected_return` seconds (None: nobody knows); its next request ends this.

        When memory runs short the KV of closed sessions goes first, then what outlived its TTL, then the lowest priority,
        and among equals what is expected back last. Results never depend on it. LookupError for a session that is not
        open: one is from the first request or set_retention that names it until it is closed, or until 16,384 others
        were named since. Each `salt` (see generate) has sessions of its own.
        """
        name, tenant = session_name(session), to_salt(salt)
        _pass("expected_return", expected_return, lambda seconds: self._handle.pause_session(name, seconds, tenant))

    def close_session(self, session: str, *, salt: str | None = None) -> None:
        """Nobody comes back to it; what it alone has left in the cache goes first. LookupError as above."""
        self._handle.close_session(session_name(session), to_salt(salt))

    def set_retention(
        self, session: str, *, priority: int = 0, ttl: float | None = None, salt: str | None = None
    ) -> None:
        """How long and how well the session's KV is kept: `ttl` in seconds after its last request. Opens the session."""
        retention = _quire.SessionRetention()
        _set(retention, "priority", priority)
        _set(retention, "ttl", ttl)
        self._handle.set_retention(session_name(session), retention, to_salt(salt))

    def sequence(
        self,
        token_ids: Sequence[int] = (),
        *,
        blocks: Any = None,
        existing_token_count: int | None = None,
        session: str | None = None,
        salt: str | None = None,
    ) -> sequence.Sequence:
        """Tokens as a value of the program's, behind cached ones if `blocks` names any (as `existing_blocks` below).

        What no cache holds of them is computed now. No tokens at all: an empty sequence. It keeps its `salt` (see
        generate) for all that follows; blocks of sequences must have the same one.
        """
        ids = sequence.token_ids_of(token_ids, "token_ids")
        handle = sequence.handle_of(self._handle, *sequence.existing(blocks, existing_token_count), salt)
        return sequence.Sequence(self._handle.sequence(handle, ids, whose(session, salt)))

    def load_sequence(
        self, path: str | os.PathLike[str], wait: bool = True, *, salt: str | None = None
    ) -> sequence.Sequence:
        """What Sequence.save wrote, in any process with this model and KV format: the same KV, the same next tokens.

        Computes nothing. `wait=False` returns at once and reads in the background what is not cached: a request waits for
        each layer when it comes to it, and one that meets a damaged block fails with OSError. OSError for a damaged file,
        IncompatibleChunksError naming what differs, UnsupportedError for a format version of another Quire.
        `salt`: whose it is now (see generate); the file does not say.
        """
        return sequence.Sequence(self._handle.load_sequence(to_path(path), bool(wait), whose(salt=salt)))

    def infer_from_blocks(
        self,
        existing_blocks: Any,
        existing_token_count: int | None = None,
        new_tokens: Sequence[int] | None = None,
        sampling_params: Params = None,
        *,
        session: str | None = None,
        salt: str | None = None,
    ) -> GenerationOutput:
        """Generates behind cached tokens and, if there are any, new ones; no template, no special tokens.

        existing_blocks: a Blocks, a list of Blocks or of (Blocks, used tokens), or plain block ids where they can mean
            one thing only; they are shared, not copied, and stay as they are
        existing_token_count: how many of their tokens count; None: all
        """
        virtual = VirtualSequence(new_tokens, sampling_params, existing_blocks, existing_token_count)
        return self.infer(virtual, session=session, salt=salt)

    def infer_from_blocks_stream(
        self,
        existing_blocks: Any,
        existing_token_count: int | None = None,
        new_tokens: Sequence[int] | None = None,
        sampling_params: Params = None,
        *,
        session: str | None = None,
        salt: str | None = None,
    ) -> Iterator[dict[str, Any]]:
        """The same as it comes, one dict per token: "token" (text), "token_id", "finish_reason" (None until the last).

        Joined texts equal infer_from_blocks' text. Closing or dropping the iterator aborts the request.
        """
        virtual = VirtualSequence(new_tokens, sampling_params, existing_blocks, existing_token_count)
        return self.infer_stream(virtual, session=session, salt=salt)

    def infer(
        self, sequence: VirtualSequence, *, session: str | None = None, salt: str | None = None
    ) -> GenerationOutput:
        """Runs a VirtualSequence as infer_from_blocks does."""
        return GenerationOutput(self._handle.infer_from_blocks(*self._virtual(sequence, salt), whose(session, salt)))

    def infer_stream(
        self, sequence: VirtualSequence, *, session: str | None = None, salt: str | None = None
    ) -> Iterator[dict[str, Any]]:
        """Runs a VirtualSequence as infer_from_blocks_stream does."""
        stream = self._handle.infer_from_blocks_stream(*self._virtual(sequence, salt), whose(session, salt))
        return token_dicts(Stream(stream))

    def _virtual(self, virtual: VirtualSequence, salt: str | None) -> tuple[_quire.Blocks, list[int], Params]:
        if not isinstance(virtual, VirtualSequence):
            raise TypeError(f"infer takes a VirtualSequence, not a {type(virtual).__name__}")
        handle = sequence.handle_of(self._handle, virtual.existing_blocks, virtual.existing_token_count, salt)
        return handle, virtual.token_ids, virtual.sampling_params

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's, with its chat template."""
        return Tokenizer(self._handle.tokenizer())

    def remarks(self) -> list[str]:
        """What opening did not do though it was asked for, and why: packed weights that could not be kept, a store
        that is only read."""
        return self._handle.remarks()

    def stats(self) -> dict[str, int | float]:
        """Counters after the last finished step; times are in seconds."""
        return {k: v if k.endswith("_seconds") else int(v) for k, v in self._handle.stats().items()}

    def clear_prefix_cache(self) -> int:
        """Forgets every cached block that nobody uses; returns how many became free."""
        return self._handle.clear_prefix_cache()

    def abort(self, request_id: int) -> bool:
        """Ends a running request; its blocks are free on return. False when it is not running."""
        return _pass("request_id", request_id, self._handle.abort)

    def close(self) -> None:
        """Ends all requests and frees everything; later calls raise ClosedError."""
        self._handle.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def doctor() -> dict[str, Any]:
    """What this machine offers and which kernels are used; runs their self-test."""
    return json.loads(_quire.doctor_json())


def inspect(model: str | os.PathLike[str]) -> dict[str, Any]:
    """What a model folder holds, what it needs in memory, what is unsupported."""
    return json.loads(_quire.inspect_json(to_path(model)))
