"""LLM: a model, its KV cache, and the engine that serves requests from any number of threads."""

from __future__ import annotations

import os
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NoReturn, Self, Unpack, overload

from . import _quire, habits, sequence, show
from .async_stream import AsyncStream, all_choices
from .answers import Answer, Answers
from .chat import OWN_WORDS, Conversation, template_arguments, to_tools
from .convert import _pass, _set, _set_flag, to_choice, to_flag, to_ids, to_model, to_path, to_text
from .ending import opened
from .errors import ClosedError
from .load_options import TAKEN, Device, DType, KVDType, Model, PreemptionMode, Quantize, Scheduler, Speculate, drafter_of, model_of
from .logs import Delivery, Log, on_change
from .machine import groups_in_use, inspect
from .operating import Operated
from .outputs import Fields, ForwardOutput, GenerationOutput
from .progress import Progress, shown
from .prompts import Prompt, is_batch, prompt_of
from .sampling import FIELDS, Params, Request, Urgency, check_keywords, each_sampling, sampling
from .sequence import VirtualSequence
from .session import URGENCY, each_whose, urgent, whose
from .stream import Stream, token_dicts
from .tokenizer import Tokenizer

# Calls that apply the chat template, by those that do not.
_CHATS = {"generate": "chat", "stream": "stream_chat", "generate_async": "chat_async", "stream_async": "stream_chat_async"}

_CHAT_ARGUMENTS = ("documents", "tools", "template_args", "session", "salt", "explain", "progress", *URGENCY)


class LLM(Operated, metaclass=habits.Named):
    """Loads `model` (Hugging Face folder, .gguf file, "preset:NAME", or "owner/name" in the local Hugging Face cache) and
    serves it.

    Calls may come from any thread; they wait without the GIL. Those that end in _async wait on the running event loop. A
    forked child has no engine: every call there is a ClosedError; open the model again in it, or start it with "spawn".
    Wherever a call takes `sampling_params`, its fields are taken by keyword too, and go over them. Errors: quire.errors.
    """

    _class_habits = habits.LLM_CALLS
    _guesses = False  # whether a function of Python guesses tokens
    _groups: list[dict[str, Any]] | None = None  # layers of the model, read by the first stats()

    @habits.names_unknown(habits.LLM_OPTIONS)
    def __init__(
        self,
        model: Model | None = None,
        *,
        device: Device = "cpu",
        deterministic: bool = True,
        dtype: DType = "auto",
        quantize: Quantize | None = None,
        kv_dtype: KVDType = "auto",
        block_tokens: int = 32,
        kv_budget: str | int = "1GiB",
        state_share: float = 0.25,
        host_kv_budget: int | str | None = 0,
        max_batch_tokens: int = 2048,
        threads: int | None = None,
        seed: int = 0,
        prefix_cache: bool = True,
        share_reads: bool = True,
        store: str | os.PathLike[str] | None = None,
        cache_weights: bool = False,
        chat_template: str | os.PathLike[str] | None = None,
        scheduler: Scheduler = "fcfs",
        aging_seconds: float = 30.0,
        decode_weight: float = 2.0,
        max_wait_seconds: float = 5.0,
        max_waiting: int | None = None,
        max_decode_gap_ms: float | None = None,
        preemption: PreemptionMode = "auto",
        speculate: Speculate = None,
        on_pressure: Callable[[dict[str, Any]], object] | None = None,
        progress: Progress = None,
        log: Log = None,
        model_path: Model | None = None,
    ) -> None:
        """Opens a model. `store`: the directory of its contexts (ContextManager) and, with `cache_weights`, of its packed
        weights. A second start maps them, without reading and packing the model. `remarks()` has what keeps that from
        working. `kv_budget`: bytes, "4GiB", or "auto": half of the memory that is free then, of a GPU's 4/5. `state_share`:
        the share of it for states of layers that carry one, as LFM2 and Qwen3.5 have them. `host_kv_budget`: host memory
        beside it for restore points that it gives up, each with the KV before it, in bytes or "4GiB". `deterministic`:
        False lets a GPU be faster, with last bits that depend on what is computed together. `share_reads`: False reads what
        requests share for each of them, to measure what sharing gains. `chat_template`: the text of a template, or the path
        of its file, in place of the model's own. `log`: a logging.Logger, or a function of a level (logging.INFO, WARNING,
        ERROR) and a text. It hears what no call returns: the model opened, requests refused for lack of blocks or preempted,
        failures in the background. A thread of its own calls it; close() waits for it. `progress`: True shows a bar while
        loading, on a terminal and in notebooks; a function gets the share that is loaded. `model_path`: another name of
        `model`. `scheduler` to `on_pressure`: the guide to serving, Scheduling. `on_pressure` gets what pressure() returns,
        each time that the level changes, on a thread of its own. `speculate`: a way to guess tokens that the model checks,
        as "ngram" or {"method": "suffix", "max_tokens": 16}; the guide to Python, Guess ahead."""
        given = dict(locals())
        chosen = model_of(model, model_path)
        to_path(chosen, "model")
        self.model = os.fspath(chosen)
        self.dtype, self.device, self.store = dtype, device, store
        self._warned = False
        options = _quire.Options()
        for name in _quire.Options.fields:
            setting = _set_flag if isinstance(getattr(options, name), bool) else _set
            setting(options, name, TAKEN[name](given[name]) if name in TAKEN else given[name])
        self._block_tokens = options.block_tokens
        path = to_model(self.model)
        hears = on_change(on_pressure)
        propose = drafter_of(speculate)
        if propose is not None:
            options.draft_with(propose)
        self._log = Delivery(log, options)
        self._pressure = Delivery(hears, options, "pressure_to")
        with shown(progress, f"loading {os.path.basename(str(self.model))}") as report:
            self._handle = self._open(path, options, report)
        self._guesses = propose is not None
        opened.add(self)

    def _open(self, model: bytes, options: _quire.Options, progress: Callable[[float], object] | None) -> _quire.LLM:
        return _quire.LLM.open(model, options, progress)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            habits.missing_attribute(self, name, habits.LLM_CALLS)

    def __call__(self, *_: object, **__: object) -> NoReturn:
        """Raises: Quire has a name for every way to ask."""
        raise TypeError("an LLM is not called; use llm.generate(prompt), llm.chat(messages) or llm.stream(prompt)")

    def _summary(self) -> dict[str, str]:
        try:
            stats = self.stats()
        except ClosedError:
            return {"KV": "closed"}
        used, budget = stats["bytes_in_use"], stats["blocks_total"] * stats["block_bytes"]
        return {"KV": f"{show.bytes_text(used)} of {show.bytes_text(budget)} in use"}

    def __repr__(self) -> str:
        kind = f"{type(self).__name__}({str(self.model)!r}, dtype={self.dtype!r}, device={self.device!r}"
        return f"{kind}, KV {self._summary()['KV']})"

    def _repr_html_(self) -> str:
        """Shows the engine in a notebook."""
        about = {"model": self.model, "dtype": self.dtype, "device": self.device}
        return show.table(type(self).__name__, {**about, **self._summary()})

    @overload
    def generate(  # type: ignore[overload-overlap]  # a text is a sequence of texts too: it is one prompt
        self,
        prompt: Prompt,
        sampling_params: Params = None,
        *,
        session: str | None = None,
        salt: str | None = None,
        explain: bool = False,
        progress: Progress = None,
        **keywords: Unpack[Request],
    ) -> GenerationOutput: ...

    @overload
    def generate(
        self,
        prompt: Sequence[Prompt],
        sampling_params: Params | Sequence[Params] = None,
        *,
        session: str | Sequence[str | None] | None = None,
        salt: str | Sequence[str | None] | None = None,
        explain: bool = False,
        progress: Progress = None,
        **keywords: Unpack[Request],
    ) -> list[GenerationOutput]: ...

    @habits.names_first
    def generate(
        self,
        prompt: Prompt | Sequence[Prompt],
        sampling_params: Params | Sequence[Params] = None,
        *,
        session: str | Sequence[str | None] | None = None,
        salt: str | Sequence[str | None] | None = None,
        explain: bool = False,
        progress: Progress = None,
        **keywords: Unpack[Request],
    ) -> GenerationOutput | list[GenerationOutput]:
        """Returns one output, or a list for a list of prompts, computed in one continuous batch. `[]` is an empty list of
        prompts.

        sampling_params: for all, or one for each prompt; `keywords`: their fields, over those
        session: whose request it is (see pause_session); for a list of prompts perhaps a list
        salt: tenant; cached prefixes are shared by requests of one salt alone. None: that of the chunks if they have
            one (ChunkedLLM), else none; for a list of prompts perhaps a list
        explain: the output has `parts`: for each part of the prompt whether its KV was there at admission (`hit`), and why
            not (`reason`)
        priority, deadline_seconds, tenant: keywords, too, of one or of each (see the guide to serving, Scheduling)
        progress: True shows a bar while the prompts are computed, on a terminal and in notebooks. A function gets the
            share of their tokens that is computed
        """
        batch = is_batch(prompt)
        prompts = [prompt_of(p) for p in prompt] if batch else [prompt_of(prompt)]
        options = each_whose(session, salt, keywords, explain=explain)
        params = each_sampling("generate", sampling_params, keywords)
        if not prompts:
            return []
        outputs = self._generated(prompts, params, options, progress)
        self._look_at(prompts, outputs)
        return outputs if batch else outputs[0]

    def _generated(
        self, prompts: list[str | list[int]], params: list[Params], options: list[_quire.RequestOptions], progress: Progress
    ) -> list[GenerationOutput]:
        with shown(progress, "computing prompts" if len(prompts) > 1 else "computing the prompt") as report:
            return [GenerationOutput(each) for each in self._handle.generate(prompts, params, options, report)]

    def _looks_at(self, prompt: str | list[int], call: str) -> Callable[[GenerationOutput], None]:
        """Returns the function that a stream calls with its output; it does not keep the LLM open."""
        self_or_none = weakref.ref(self)

        def look(output: GenerationOutput) -> None:
            llm = self_or_none()
            if llm is not None:
                llm._look_at([prompt], [output], call)

        return look

    def _look_at(
        self, prompts: Sequence[str | list[int]], outputs: Sequence[GenerationOutput], call: str = "generate"
    ) -> None:
        """Warns once when a model for chat has answered a plain text with nothing."""
        for prompt, output in zip(prompts, outputs, strict=True):
            ended = isinstance(prompt, str) and output.finish_reason == "stop" and len(output.token_ids) == 1
            if ended and not output.text and not self._warned and self.tokenizer.has_chat_template:
                self._warned = True
                warnings.warn(
                    f"the model ended its answer at once. It has a chat template, which {call} does not use: ask with "
                    f'llm.{_CHATS[call]}([{{"role": "user", "content": ...}}])',
                    stacklevel=3,
                )

    @habits.names_first
    def stream(
        self,
        prompt: Prompt,
        sampling_params: Params = None,
        *,
        session: str | None = None,
        salt: str | None = None,
        explain: bool = False,
        **keywords: Unpack[Request],
    ) -> Stream:
        """Streams deltas as they come; joined they equal what generate gives."""
        options = whose(session, salt, keywords, explain=explain)
        params, taken = sampling("stream", sampling_params, keywords), prompt_of(prompt)
        handle = self._handle.stream(taken, params, options)
        return Stream(handle, self._looks_at(taken, "stream"))

    @habits.names_first
    def chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        sampling_params: Params = None,
        *,
        documents: Sequence[Mapping[str, Any] | str] | None = None,
        tools: Sequence[Mapping[str, Any]] | None = None,
        template_args: Mapping[str, Any] = {},
        session: str | None = None,
        salt: str | None = None,
        explain: bool = False,
        progress: Progress = None,
        **keywords: Unpack[Request],
    ) -> GenerationOutput:
        """Works like generate, through the model's own chat template. The output has `thinking`, `content` and `tool_calls`.

        messages: dicts with "role" and "content": a text, or a list of {"type": "text", "text": ...}
        documents, tools: dicts with "text", and with the schema of a function; ValueError where the template of the model
            does not show them
        template_args: its other variables, such as enable_thinking; ValueError for one that it does not read. Further
            keywords that are no sampling parameters but that it reads are such variables, too
        progress: as of generate
        """
        options = whose(session, salt, keywords, explain=explain)
        shown_by = (documents, tools, template_args)
        ids, params, answers = self._conversation("chat", messages, shown_by, sampling_params, keywords)
        return answers.split(self._generated([ids], [params], [options], progress)[0])

    @habits.names_first
    def stream_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        sampling_params: Params = None,
        *,
        documents: Sequence[Mapping[str, Any] | str] | None = None,
        tools: Sequence[Mapping[str, Any]] | None = None,
        template_args: Mapping[str, Any] = {},
        session: str | None = None,
        salt: str | None = None,
        explain: bool = False,
        **keywords: Unpack[Request],
    ) -> Stream:
        """Works like stream, through the model's own chat template; takes the arguments of chat."""
        shown_by = (documents, tools, template_args)
        options = whose(session, salt, keywords, explain=explain)
        ids, params, answers = self._conversation("stream_chat", messages, shown_by, sampling_params, keywords)
        return Stream(self._handle.stream(ids, params, options), answer=answers.answer())

    def _conversation(
        self, call: str, messages: Any, shown_by: tuple[Any, Any, Any], params: Params, keywords: Mapping[str, Any]
    ) -> tuple[list[int], Params, Answers]:
        """Returns the ids of the prompt, the params, and what splits answers; tells keywords apart."""
        documents, tools, template_args = shown_by
        handle = self._handle.tokenizer()
        reads = set(handle.template_variables(bool(tools)))
        own = {name: value for name, value in keywords.items() if name in FIELDS}
        rest = {name: value for name, value in keywords.items() if name not in own}
        unknown = [name for name in rest if name not in reads or name in OWN_WORDS]
        check_keywords(call, unknown, (*_CHAT_ARGUMENTS, *sorted(reads - OWN_WORDS)))
        variables = {**template_arguments(template_args, documents, tools), **template_arguments(rest, documents, tools)}
        ids = Conversation(handle, messages, True, variables).ids()
        return ids, sampling(call, params, own), Answers(handle, ids, to_tools(tools or []))

    def _async_stream(
        self, prompt: str | list[int], params: Params, options: _quire.RequestOptions, answer: Answer | None = None
    ) -> AsyncStream:
        async def start(options: _quire.RequestOptions) -> _quire.Stream:
            return self._handle.stream(prompt, params, options)

        return AsyncStream(start, options, answer)

    @overload
    async def generate_async(  # type: ignore[overload-overlap]
        self,
        prompt: Prompt,
        sampling_params: Params = None,
        *,
        session: str | None = None,
        salt: str | None = None,
        explain: bool = False,
        **keywords: Unpack[Request],
    ) -> GenerationOutput: ...

    @overload
    async def generate_async(
        self,
        prompt: Sequence[Prompt],
        sampling_params: Params | Sequence[Params] = None,
        *,
        session: str | Sequence[str | None] | None = None,
        salt: str | Sequence[str | None] | None = None,
        explain: bool = False,
        **keywords: Unpack[Request],
    ) -> list[GenerationOutput]: ...

    async def generate_async(
        self,
        prompt: Prompt | Sequence[Prompt],
        sampling_params: Params | Sequence[Params] = None,
        *,
        session: str | Sequence[str | None] | None = None,
        salt: str | Sequence[str | None] | None = None,
        explain: bool = False,
        **keywords: Unpack[Request],
    ) -> GenerationOutput | list[GenerationOutput]:
        """Works like generate, on the running event loop. Cancelling the task aborts the request, or all of a list."""
        batch = is_batch(prompt)
        prompts = [prompt_of(p) for p in prompt] if batch else [prompt_of(prompt)]
        options = each_whose(session, salt, keywords, explain=explain, deltas=False)
        params = each_sampling("generate_async", sampling_params, keywords)
        for given, what in ((params, "sampling params"), (options, "sessions, salts, priorities, deadlines or tenants")):
            if prompts and len(given) not in (1, len(prompts)):
                raise ValueError(f"{len(given)} {what} for {len(prompts)} prompts; give one, or one per prompt")
        outputs = await all_choices(
            self._async_stream, [(each, params[i % len(params)], options[i % len(options)]) for i, each in enumerate(prompts)]
        )
        self._look_at(prompts, outputs, "generate_async")
        return outputs if batch else outputs[0]

    def stream_async(
        self,
        prompt: Prompt,
        sampling_params: Params = None,
        *,
        session: str | None = None,
        salt: str | None = None,
        explain: bool = False,
        **keywords: Unpack[Request],
    ) -> AsyncStream:
        """Works like stream, on the running event loop: `async for delta in llm.stream_async(prompt)`."""
        options = whose(session, salt, keywords, explain=explain)
        params, taken = sampling("stream_async", sampling_params, keywords), prompt_of(prompt)
        stream = self._async_stream(taken, params, options)
        stream._ended_with = self._looks_at(taken, "stream_async")
        return stream

    async def chat_async(
        self,
        messages: Sequence[Mapping[str, Any]],
        sampling_params: Params = None,
        *,
        documents: Sequence[Mapping[str, Any] | str] | None = None,
        tools: Sequence[Mapping[str, Any]] | None = None,
        template_args: Mapping[str, Any] = {},
        session: str | None = None,
        salt: str | None = None,
        explain: bool = False,
        **keywords: Unpack[Request],
    ) -> GenerationOutput:
        """Works like chat, on the running event loop. Cancelling the task aborts the request."""
        shown_by = (documents, tools, template_args)
        options = whose(session, salt, keywords, explain=explain, deltas=False)
        ids, params, answers = self._conversation("chat_async", messages, shown_by, sampling_params, keywords)
        return answers.split((await all_choices(self._async_stream, [(ids, params, options)]))[0])

    def stream_chat_async(
        self,
        messages: Sequence[Mapping[str, Any]],
        sampling_params: Params = None,
        *,
        documents: Sequence[Mapping[str, Any] | str] | None = None,
        tools: Sequence[Mapping[str, Any]] | None = None,
        template_args: Mapping[str, Any] = {},
        session: str | None = None,
        salt: str | None = None,
        explain: bool = False,
        **keywords: Unpack[Request],
    ) -> AsyncStream:
        """Works like stream_chat, on the running event loop: `async for delta in llm.stream_chat_async(messages)`."""
        shown_by = (documents, tools, template_args)
        options = whose(session, salt, keywords, explain=explain)
        ids, params, answers = self._conversation("stream_chat_async", messages, shown_by, sampling_params, keywords)
        return self._async_stream(ids, params, options, answers.answer())

    def forward(
        self, token_ids: Sequence[int], reuse: str = "exact", rows: str = "all", *, salt: str | None = None
    ) -> ForwardOutput:
        """Computes logits of the rows after the cached prefix (`rows="last"`: of the last one). Fills the cache."""
        reuses = to_choice(reuse, "reuse", ("exact", "none")) == "exact"
        whole = to_choice(rows, "rows", ("all", "last")) == "all"
        return ForwardOutput(self._handle.forward(to_ids(token_ids, "token_ids"), reuses, whole, whose(salt=salt)))

    def kv_accuracy(self, text_or_ids: Prompt, kv_dtype: KVDType = "int8") -> dict[str, Any]:
        """Measures how far KV stored as `kv_dtype` is from KV in the compute type, over a long text or its ids.

        Computes both, in memory beside `kv_budget`. `key_error` and `value_error` have relative errors as `mean`, `max` and
        `layers`; `attention_kl`, `logit_kl_mean` and `logit_kl_p99` are divergences in nats, `perplexity_delta` a difference.
        """
        return self._handle.kv_accuracy(prompt_of(text_or_ids, "text_or_ids"), to_text(kv_dtype, "kv_dtype"))

    def explain(self, prompt: Prompt, *, salt: str | None = None) -> list[Fields]:
        """Tells how much of the prompt the prefix cache holds (`hit`) and why it holds no more (`reason`). Changes
        nothing.

        `salt`: for requests of that tenant; it says nothing of what others have computed.
        """
        return [Fields(part) for part in self._handle.explain(prompt_of(prompt), whose(salt=salt))]

    def explain_across_salts(self, prompt: Prompt) -> list[Fields]:
        """Tells how much of the prompt the prefix cache holds under any salt: parts in order, and `num_salts` that hold
        each.

        For the operator of a service, and never for tenants: it tells what others have asked. It names no salt. A part that
        none holds has `num_salts` 0; no salt counts as one. Changes nothing.
        """
        return [Fields(part) for part in self._handle.explain_across_salts(prompt_of(prompt))]

    def sequence(
        self,
        token_ids: Sequence[int] = (),
        *,
        blocks: Any = None,
        existing_token_count: int | None = None,
        session: str | None = None,
        salt: str | None = None,
    ) -> sequence.Sequence:
        """Makes a sequence: tokens as a value of the program's, behind cached ones if `blocks` names any (as
        `existing_blocks` below).

        Tokens that no cache holds are computed now. No tokens at all: an empty sequence. It keeps its `salt` (see
        generate) for all that follows; blocks of sequences must have the same one.
        """
        ids = sequence.token_ids_of(token_ids, "token_ids")
        handle = sequence.handle_of(self._handle, *sequence.existing(blocks, existing_token_count), salt)
        return sequence.Sequence(self._handle.sequence(handle, ids, whose(session, salt)))

    def load_sequence(
        self, path: str | os.PathLike[str], wait: bool = True, *, salt: str | None = None
    ) -> sequence.Sequence:
        """Loads the file of a Sequence.save, in any process with this model and KV format: the same KV, the same next
        tokens.

        Computes nothing. `wait=False` returns at once and reads in the background what is not cached. A request waits for
        each layer when it comes to it, and one that meets a damaged block fails with OSError. OSError for a damaged file,
        IncompatibleChunksError naming what differs, UnsupportedError for a format version of another Quire. `salt`: whose
        it is now (see generate); the file does not say.
        """
        return sequence.Sequence(self._handle.load_sequence(to_path(path), to_flag(wait, "wait"), whose(salt=salt)))

    def infer_from_blocks(
        self,
        existing_blocks: Any,
        existing_token_count: int | None = None,
        new_tokens: Sequence[int] | None = None,
        sampling_params: Params = None,
        *,
        session: str | None = None,
        salt: str | None = None,
        **keywords: Unpack[Request],
    ) -> GenerationOutput:
        """Generates behind cached tokens and, if there are any, new ones; no template, no special tokens.

        existing_blocks: a Blocks, a list of Blocks or of (Blocks, used tokens), or plain block ids where they can mean
            one thing only. They are shared, not copied, and stay as they are
        existing_token_count: how many of their tokens count; None: all
        """
        urgency = {name: keywords.pop(name) for name in URGENCY if name in keywords}
        params = sampling("infer_from_blocks", sampling_params, keywords)
        virtual = VirtualSequence(new_tokens, params, existing_blocks, existing_token_count)
        return self.infer(virtual, session=session, salt=salt, **urgency)

    def infer_from_blocks_stream(
        self,
        existing_blocks: Any,
        existing_token_count: int | None = None,
        new_tokens: Sequence[int] | None = None,
        sampling_params: Params = None,
        *,
        session: str | None = None,
        salt: str | None = None,
        **keywords: Unpack[Request],
    ) -> Iterator[dict[str, Any]]:
        """Streams what infer_from_blocks generates, one dict per token: "token" (text), "token_id", "finish_reason"
        (None until the last).

        Joined texts equal infer_from_blocks' text. Closing or dropping the iterator aborts the request.
        """
        urgency = {name: keywords.pop(name) for name in URGENCY if name in keywords}
        params = sampling("infer_from_blocks_stream", sampling_params, keywords)
        virtual = VirtualSequence(new_tokens, params, existing_blocks, existing_token_count)
        return self.infer_stream(virtual, session=session, salt=salt, **urgency)

    def infer(
        self, sequence: VirtualSequence, *, session: str | None = None, salt: str | None = None, **urgency: Unpack[Urgency]
    ) -> GenerationOutput:
        """Runs a VirtualSequence as infer_from_blocks does."""
        options = urgent("infer", session, salt, urgency)
        return GenerationOutput(self._handle.infer_from_blocks(*self._virtual(sequence, salt), options))

    def infer_stream(
        self, sequence: VirtualSequence, *, session: str | None = None, salt: str | None = None, **urgency: Unpack[Urgency]
    ) -> Iterator[dict[str, Any]]:
        """Runs a VirtualSequence as infer_from_blocks_stream does."""
        options = urgent("infer_stream", session, salt, urgency)
        stream = self._handle.infer_from_blocks_stream(*self._virtual(sequence, salt), options)
        return token_dicts(Stream(stream))

    def _virtual(self, virtual: VirtualSequence, salt: str | None) -> tuple[_quire.Blocks, list[int], Params]:
        if not isinstance(virtual, VirtualSequence):
            raise TypeError(f"infer takes a VirtualSequence, not a {type(virtual).__name__}")
        handle = sequence.handle_of(self._handle, virtual.existing_blocks, virtual.existing_token_count, salt)
        return handle, virtual.token_ids, virtual.sampling_params

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer, with its chat template."""
        return Tokenizer(self._handle.tokenizer())

    def stats(self) -> dict[str, Any]:
        """Returns counters after the last finished step; times are in seconds. `groups` has the layers by what they hold of
        tokens, as inspect() has them. Sizes are those of the pool's format, with what is in use."""
        counters = {k: v if k.endswith("_seconds") else int(v) for k, v in self._handle.stats().items()}
        if self._groups is None:
            self._groups = inspect(self.model)["groups"]
        counters["groups"] = groups_in_use(self._groups, counters, self._block_tokens)
        return counters

    def abort(self, request_id: int) -> bool:
        """Ends a running request; its blocks are free on return. False when it is not running."""
        return _pass("request_id", request_id, self._handle.abort)

    def close(self) -> None:
        """Ends all requests and frees everything; later calls raise ClosedError."""
        self._handle.close()
        self._pressure.end()
        self._log.end()

    def __del__(self) -> None:
        if self._guesses:  # the engine's thread may wait for the GIL, which the end of the handle would hold
            self._handle.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
