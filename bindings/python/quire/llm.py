"""LLM: a model, its KV cache, and the engine that serves requests from any number of threads."""

from __future__ import annotations

import array
import json
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from . import _quire
from ._quire import SamplingParams
from .outputs import Delta, Fields, ForwardOutput, GenerationOutput
from .tokenizer import Tokenizer, to_ids, to_text

Params = SamplingParams | dict[str, Any] | None
Prompt = str | Sequence[int]


def _prompt(prompt: Prompt) -> str | list[int]:
    return to_text(prompt) if isinstance(prompt, str) else to_ids(prompt, "prompt")


def _set(options: _quire.Options, name: str, value: Any, field: str | None = None) -> None:
    """Sets an option; ValueError for a number that does not fit, TypeError for another kind of thing."""
    try:
        setattr(options, field or name, value)
    except TypeError:
        kind = ValueError if isinstance(value, (int, float)) else TypeError
        raise kind(f"{name} cannot be {value!r}") from None


def _is_batch(prompts: Any) -> bool:
    """A list of texts or of id lists, as opposed to one text or one list of ids."""
    if isinstance(prompts, (str, bytes)) or not (isinstance(prompts, Sequence) or hasattr(prompts, "tolist")):
        return False
    if len(prompts) == 0:
        return False
    first = prompts[0]  # of an array of ids: a number, though one of no dimensions may claim a length
    return isinstance(first, str) or (hasattr(first, "__len__") and getattr(first, "ndim", 1) > 0)


class Stream(Iterator[Delta]):
    """Deltas of one request as they come. Closing or dropping it aborts the request and frees its blocks."""

    def __init__(self, handle: _quire.Stream) -> None:
        self._handle = handle
        self.request_id: int = handle.request_id
        self.output: GenerationOutput | None = None  # the whole output, once finished

    def __iter__(self) -> Stream:
        return self

    def __next__(self) -> Delta:
        fields = None if self._handle is None else self._handle.next()
        if fields is None:
            raise StopIteration
        if fields["finish_reason"] is not None:
            self.output = GenerationOutput(self._handle.output())
        return Delta(fields)

    def close(self) -> None:
        if self._handle is not None:
            self._handle.close()
            self._handle = None

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_handle", None) is not None:
            self.close()


class LLM:
    """Loads `model` (Hugging Face folder, .gguf file, or "preset:NAME") and serves it.

    Calls may come from any thread; they wait without the GIL. Errors: quire.errors.
    """

    def __init__(
        self,
        model: str | os.PathLike[str],
        *,
        device: str = "cpu",
        dtype: str = "auto",
        quantize: str | None = None,
        kv_dtype: str = "auto",
        block_tokens: int = 32,
        kv_budget: str | int = "1GiB",
        max_batch_tokens: int = 2048,
        threads: int | None = None,
        seed: int = 0,
        prefix_cache: bool = True,
        progress: Callable[[float], None] | None = None,
    ) -> None:
        options = _quire.Options()
        _set(options, "device", device)
        _set(options, "dtype", dtype)
        _set(options, "quantize", "" if quantize is None else quantize)
        _set(options, "kv_dtype", kv_dtype)
        _set(options, "block_tokens", block_tokens)
        budget = _quire.parse_bytes(kv_budget) if isinstance(kv_budget, str) else kv_budget
        _set(options, "kv_budget", budget, field="kv_budget_bytes")
        _set(options, "max_batch_tokens", max_batch_tokens)
        _set(options, "threads", 0 if threads is None else threads)
        _set(options, "seed", seed)
        _set(options, "prefix_cache", prefix_cache)
        self._handle = self._open(to_text(os.fspath(model)), options, progress)

    def _open(self, model: str, options: _quire.Options, progress: Callable[[float], None] | None) -> _quire.LLM:
        return _quire.LLM.open(model, options, progress)

    def generate(
        self, prompt: Prompt | Sequence[Prompt], sampling_params: Params | Sequence[Params] = None
    ) -> GenerationOutput | list[GenerationOutput]:
        """One output, or a list for a list of prompts, computed in one continuous batch."""
        batch = _is_batch(prompt)
        prompts = [_prompt(p) for p in prompt] if batch else [_prompt(prompt)]
        params = list(sampling_params) if isinstance(sampling_params, (list, tuple)) else [sampling_params]
        outputs = [GenerationOutput(fields) for fields in self._handle.generate(prompts, params)]
        return outputs if batch else outputs[0]

    def stream(self, prompt: Prompt, sampling_params: Params = None) -> Stream:
        """Deltas as they come; joined they equal what generate gives."""
        return Stream(self._handle.stream(_prompt(prompt), sampling_params))

    def chat(self, messages: list[dict[str, Any]], sampling_params: Params = None, **template_args: Any) -> GenerationOutput:
        """As generate, through the model's own chat template."""
        return self.generate(self._chat_ids(messages, template_args), sampling_params)

    def stream_chat(self, messages: list[dict[str, Any]], sampling_params: Params = None, **template_args: Any) -> Stream:
        """As stream, through the model's own chat template."""
        return self.stream(self._chat_ids(messages, template_args), sampling_params)

    def _chat_ids(self, messages: list[dict[str, Any]], template_args: dict[str, Any]) -> list[int]:
        return self.tokenizer.apply_chat_template(messages, tokenize=True, **template_args)

    def forward(self, token_ids: Sequence[int], reuse: str = "exact", rows: str = "all") -> ForwardOutput:
        """Logits of the rows after the cached prefix (`rows="last"`: of the last one). Fills the cache."""
        if reuse not in ("exact", "none"):
            raise ValueError(f"reuse must be 'exact' or 'none', not {reuse!r}")
        if rows not in ("all", "last"):
            raise ValueError(f"rows must be 'all' or 'last', not {rows!r}")
        return ForwardOutput(self._handle.forward(to_ids(token_ids, "token_ids"), reuse == "exact", rows == "all"))

    def explain(self, prompt: Prompt) -> list[Fields]:
        """What the prefix cache holds of the prompt (`hit`) and why it holds no more (`reason`). Changes nothing."""
        return [Fields(part) for part in self._handle.explain(_prompt(prompt))]

    @property
    def tokenizer(self) -> Tokenizer:
        return Tokenizer(self._handle.tokenizer())

    def stats(self) -> dict[str, int | float]:
        """Counters after the last finished step; times are in seconds."""
        return {k: v if k.endswith("_seconds") else int(v) for k, v in self._handle.stats().items()}

    def clear_prefix_cache(self) -> int:
        """Forgets every cached block that nobody uses; returns how many became free."""
        return self._handle.clear_prefix_cache()

    def abort(self, request_id: int) -> bool:
        """Ends a running request; its blocks are free on return. False when it is not running."""
        return self._handle.abort(request_id)

    def close(self) -> None:
        """Ends all requests and frees everything; later calls raise ClosedError."""
        self._handle.close()

    def __enter__(self) -> LLM:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def doctor() -> dict[str, Any]:
    """What this machine offers and which kernels are used; runs their self-test."""
    return json.loads(_quire.doctor_json())


def inspect(model: str | os.PathLike[str]) -> dict[str, Any]:
    """What a model folder holds, what it needs in memory, what is unsupported."""
    return json.loads(_quire.inspect_json(to_text(os.fspath(model))))
