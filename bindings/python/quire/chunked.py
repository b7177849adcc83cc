"""ChunkedLLM: text registered once, whose KV is computed once and composed in any order afterwards."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, Unpack, overload

import numpy as np

from . import _quire, habits, sequence
from .async_stream import AsyncStream, all_choices, in_thread
from .bands import Band, find_band
from .composing import (
    Asking,
    ChunkType,
    Composing,
    Composition,
    Preview,
    Registering,
    _asked,
    _described,
    _how,
    _id,
    _of_tenant,
    _request,
    _spec,
    keywords_of,
)
from .convert import _set, _set_flag, to_bytes, to_compression, to_flag, to_list, to_path
from .errors import ClosedError, InvalidCompositionError
from .llm import LLM
from .load_options import Device, DType, KVDType, Model, PreemptionMode, Quantize, Scheduler, Speculate, model_of
from .logs import Log
from .outputs import Fields, GenerationOutput
from .progress import Progress, shown
from .prompts import Prompt, prompt_of
from .registered import Registered
from .registering import ClosedRegistry, RegisteredChunk, affixes_of, content_of, listed_content
from .sampling import Params, Request, each_sampling, sampling
from .session import URGENCY, each_whose, to_salt, whose
from .stream import Stream


class ChunkedLLM(Registered, LLM):
    """An LLM with a registry of chunks.

    Calls that compose take the ids of one system chunk, any number of contexts and one query, or one
    `composition=` from compose(), and these keywords:

    mode: what contexts have seen. "anchored": the system chunk and themselves; "independent": only themselves; "exact":
        everything before them. "blend": as anchored, and a share of their tokens is computed again
    positions: "concat", "parallel" (all contexts start where the system chunk ends), or the start of each segment
    recompute, selector, selector_seed, base: of mode "blend". `recompute` is a share of the context tokens, or a list
        of indices into token_ids. `selector` is "query_attn", "value_dev", "first_k", "random", "all" or "none". `base`
        is the mode of the rest
    recompute_layers: of mode "blend", in place of those. (a, b) computes layers a to b - 1 of all context tokens again.
        They start from the embeddings (a = 0), or from what the chunks kept (`register_chunk(keep_hidden=a)`)
    sink: "bos": contexts of mode "independent" have seen a BOS token too
    computed_in_place: contexts of mode "anchored" are computed at the distance at which they are used
    without_system: allows a composition without a system chunk

    Every call takes `salt=`, the tenant; None is the one that the registry was opened with. Chunks, ids, anchors, counts
    and limits are a tenant's own: another one's chunk is a ChunkNotFoundError, as one that never was.
    """

    @habits.names_unknown(habits.LLM_OPTIONS)
    def __init__(
        self,
        model: Model | LLM | None = None,
        *,
        max_chunks: int = 1000,
        chunk_memory_ratio: float = 0.5,
        enable_deduplication: bool = True,
        chunk_format: Mapping[str, Sequence[str]] | None = None,
        salt: str = "",
        store: str | os.PathLike[str] | None = None,
        max_store_bytes: int | str | None = 0,
        compress_store: bool | Literal["zstd", "lz4"] = False,
        write_through: bool = True,
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
        cache_weights: bool = False,
        chat_template: str | os.PathLike[str] | None = None,
        scheduler: Scheduler = "fcfs", aging_seconds: float = 30.0, decode_weight: float = 2.0, max_wait_seconds: float = 5.0,
        max_waiting: int | None = None, max_decode_gap_ms: float | None = None, preemption: PreemptionMode = "auto",
        speculate: Speculate = None,
        on_pressure: Callable[[dict[str, Any]], object] | None = None,
        progress: Progress = None,
        log: Log = None,
        model_path: Model | None = None,
    ) -> None:
        """Opens a model with a registry of chunks. `model`: as for LLM, or an open LLM, whose own registry this is then.
        Closing it leaves the LLM open, and all options are those of the LLM. `chunk_format`: {"system": (prefix, suffix),
        "context": ..., "query": ...} instead of the model's chat template. `salt`: the tenant of calls that name none.
        `store`: a directory where registered chunks are written and those of earlier processes are found. One that cannot be
        written to is read, and new chunks stay in memory. `max_store_bytes`: bytes or "10GiB", 0 or None: no limit. Beyond it
        registering evicts what was used least recently from there. `compress_store`: smaller, slower. True or "zstd", or
        "lz4", which is faster and less small. `write_through`: registering returns when the chunk is on the disk. False:
        before that, see flush_store; the call is shorter, a whole run is not. The rest is as for LLM."""
        given = dict(locals())
        self._over: LLM | None = None
        if isinstance(model, LLM):
            self._attach(model, given)
            return
        self._chunk_options = _quire.ChunkCacheOptions()
        _set(self._chunk_options, "max_chunks", max_chunks)
        _set(self._chunk_options, "chunk_memory_ratio", chunk_memory_ratio)
        _set_flag(self._chunk_options, "enable_deduplication", enable_deduplication)
        _set(self._chunk_options, "salt", salt)
        _set(self._chunk_options, "max_store_bytes", to_bytes(max_store_bytes, "max_store_bytes"))
        _set(self._chunk_options, "compress_store", to_compression(compress_store, "compress_store"))
        _set_flag(self._chunk_options, "write_through", write_through)
        if store is not None:
            _set(self._chunk_options, "store", to_path(store, "store"))
        if chunk_format is not None:
            self._chunk_options.set_format(affixes_of(chunk_format))
        named = {name: given[name] for name in (*_quire.Options.fields, "progress", "log", "on_pressure")}
        super().__init__(model_of(model, model_path), **named)

    def _attach(self, llm: LLM, given: Mapping[str, Any]) -> None:
        """Becomes the registry of an open LLM."""
        for name, parameter in inspect.signature(ChunkedLLM.__init__).parameters.items():
            if name not in ("self", "model") and given[name] != parameter.default:
                over = f"{name} cannot be given over an open LLM, which has it already"
                raise ValueError(f"{over}; open the model with it: ChunkedLLM(path, {name}=...)")
        self.model, self.dtype, self.device, self.store = llm.model, llm.dtype, llm.device, llm.store
        self._block_tokens = llm._block_tokens
        self._over, self._warned, self._chunks = llm, False, _quire.ChunkedLLM.over(llm._handle)
        self._handle = self._chunks.llm

    def _open(self, model: bytes, options: _quire.Options, progress: Callable[[float], object] | None) -> _quire.LLM:
        self._chunks = _quire.ChunkedLLM.open(model, options, self._chunk_options, progress)
        return self._chunks.llm

    def close(self) -> None:
        """Ends all requests and frees everything; over an open LLM this registry alone, and no request. Later calls raise
        ClosedError."""
        if self._over is None:
            super().close()
        else:
            self._chunks = self._handle = ClosedRegistry()

    @overload
    def register_chunk(
        self,
        content: Prompt,
        chunk_type: ChunkType | str,
        metadata: Mapping[str, Any] | None = None,
        *,
        ttl_seconds: float | None = None,
        pinned: bool = False,
        priority: int = 0,
        anchor: str | Sequence[str] | None = None,
        salt: str | None = None,
        kv_dtype: KVDType | None = None,
        keep_hidden: int | None = None,
        progress: Progress = None,
        details: Literal[False] = False,
    ) -> str: ...

    @overload
    def register_chunk(
        self,
        content: Prompt,
        chunk_type: ChunkType | str,
        metadata: Mapping[str, Any] | None = None,
        *,
        ttl_seconds: float | None = None,
        pinned: bool = False,
        priority: int = 0,
        anchor: str | Sequence[str] | None = None,
        salt: str | None = None,
        kv_dtype: KVDType | None = None,
        keep_hidden: int | None = None,
        progress: Progress = None,
        details: Literal[True],
    ) -> RegisteredChunk: ...

    def register_chunk(
        self,
        content: Prompt,
        chunk_type: ChunkType | str,
        metadata: Mapping[str, Any] | None = None,
        *,
        ttl_seconds: float | None = None,
        pinned: bool = False,
        priority: int = 0,
        anchor: str | Sequence[str] | None = None,
        salt: str | None = None,
        kv_dtype: KVDType | None = None,
        keep_hidden: int | None = None,
        progress: Progress = None,
        details: bool = False,
    ) -> str | RegisteredChunk:
        """Computes the chunk's KV, unless an equal chunk is there, and returns its id: 64 hexadecimal digits.

        Text goes through the chunk format, token ids are taken as they are. Metadata of a known chunk is merged, and
        a TTL, a pin and a priority other than 0 hold from then on.

        ttl_seconds: since the last use; None: no end
        pinned, priority: never evicted; lower ones go first
        anchor: id of the system chunk under which a context is computed; "": none; None: the tenant's last registered.
            A list of ids: a composition, each behind those that it was registered behind
        kv_dtype: format of its KV; None is the pool's (`LLM(kv_dtype=)`). A pool of floats takes "int8", "fp8", "int4", too
        keep_hidden: layer at which a context keeps its hidden states, where `recompute_layers` may begin then
        progress: True shows a bar, on a terminal and in notebooks; a function gets the share of tokens that have KV
        details: gives a RegisteredChunk instead of the id
        """
        detailed = to_flag(details, "details")
        kept = {"ttl_seconds": ttl_seconds, "pinned": pinned, "priority": priority, "anchor": anchor, "salt": salt}
        kept |= {"kv_dtype": kv_dtype, "keep_hidden": keep_hidden}
        contents = [content_of(content, chunk_type, metadata, **kept)]
        (chunk,) = self._register(contents, progress)
        return chunk if detailed else chunk.chunk_id

    @overload
    def register_chunks(
        self,
        chunks: Iterable[Mapping[str, Any] | Sequence[Any]],
        *,
        salt: str | None = None,
        progress: Progress = None,
        details: Literal[False] = False,
    ) -> list[str]: ...

    @overload
    def register_chunks(
        self,
        chunks: Iterable[Mapping[str, Any] | Sequence[Any]],
        *,
        salt: str | None = None,
        progress: Progress = None,
        details: Literal[True],
    ) -> list[RegisteredChunk]: ...

    def register_chunks(
        self,
        chunks: Iterable[Mapping[str, Any] | Sequence[Any]],
        *,
        salt: str | None = None,
        progress: Progress = None,
        details: bool = False,
    ) -> list[str] | list[RegisteredChunk]:
        """Registers many in one batch, all or none. Each is a dict or a tuple of register_chunk's arguments.

        salt: of those that name none
        """
        detailed, listed = to_flag(details, "details"), to_list(chunks, "chunks", "chunks")
        registered = self._register([listed_content(chunk, salt) for chunk in listed], progress)
        return registered if detailed else [chunk.chunk_id for chunk in registered]

    def _register(self, contents: list[_quire.ChunkContent], progress: Progress) -> list[RegisteredChunk]:
        with shown(progress, "registering") as report:
            return [RegisteredChunk(**chunk) for chunk in self._chunks.register_chunks(contents, report)]

    def compose(
        self,
        system_chunk_id: str | None = None,
        context_chunk_ids: Iterable[str] | None = (),
        query_chunk_id: str | None = None,
        *,
        salt: str | None = None,
        **how: Unpack[Composing],
    ) -> Composition:
        """Checks kinds, number and mode of the chunks, and computes nothing."""
        return Composition(self._chunks.compose(_spec(system_chunk_id, context_chunk_ids, query_chunk_id, salt=salt, **how)))

    def preview_composition(
        self,
        system_chunk_id: str | None = None,
        context_chunk_ids: Iterable[str] | None = (),
        query_chunk_id: str | None = None,
        *,
        salt: str | None = None,
        **how: Unpack[Composing],
    ) -> Fields:
        """Tells what running it now would do: tokens, levels, blocks and bytes. Changes nothing."""
        spec = _spec(system_chunk_id, context_chunk_ids, query_chunk_id, salt=salt, **how)
        return Preview(_described(self._chunks.preview_composition(spec)))

    def explain(
        self,
        request: Mapping[str, Any] | Composition | Prompt | None = None,
        *,
        salt: str | None = None,
        **composing: Any,
    ) -> list[Fields]:
        """Tells for each part of a request whether its KV is there (`hit`), and why not (`reason`). Changes nothing.

        A request is one of batch_generate_from_chunks, a Composition, composing keywords, or a plain prompt.
        Chunks that have gone are parts too.
        """
        plain = request is not None and not isinstance(request, (Mapping, Composition))
        if request is None:
            spec = _spec(**composing, salt=salt)
        elif composing:
            raise TypeError("explain takes a request, or composing keywords")
        elif plain:
            return super().explain(request, salt=salt)
        else:
            spec = _of_tenant(_request(request), salt)
        return [Fields(part) for part in self._chunks.explain(spec)]

    def generate_from_chunks(
        self,
        system_chunk_id: str | None = None,
        context_chunk_ids: Iterable[str] | None = (),
        query_chunk_id: str | None = None,
        sampling_params: Params = None,
        *,
        session: str | None = None,
        salt: str | None = None,
        explain: bool = False,
        **keywords: Unpack[Asking],
    ) -> GenerationOutput:
        """Answers the query behind the contexts; only the query is computed when their KV is there.

        session: whose request it is; what it alone composes goes by what it says (see pause_session)
        keywords: how it is composed (see the class), and fields of sampling_params
        """
        chunks, options = (system_chunk_id, context_chunk_ids, query_chunk_id), whose(session, salt, keywords, explain=explain)
        spec, params = _asked("generate_from_chunks", chunks, sampling_params, keywords)
        return GenerationOutput(self._chunks.generate_from_chunks([spec], [params], [options])[0])

    def stream_from_chunks(
        self,
        system_chunk_id: str | None = None,
        context_chunk_ids: Iterable[str] | None = (),
        query_chunk_id: str | None = None,
        sampling_params: Params = None,
        *,
        session: str | None = None,
        salt: str | None = None,
        explain: bool = False,
        **keywords: Unpack[Asking],
    ) -> Stream:
        """Streams deltas as they come; joined they equal what generate_from_chunks gives."""
        chunks, options = (system_chunk_id, context_chunk_ids, query_chunk_id), whose(session, salt, keywords, explain=explain)
        spec, params = _asked("stream_from_chunks", chunks, sampling_params, keywords)
        return Stream(self._chunks.stream_from_chunks(spec, params, options))

    async def generate_from_chunks_async(
        self,
        system_chunk_id: str | None = None,
        context_chunk_ids: Iterable[str] | None = (),
        query_chunk_id: str | None = None,
        sampling_params: Params = None,
        *,
        session: str | None = None,
        salt: str | None = None,
        explain: bool = False,
        **keywords: Unpack[Asking],
    ) -> GenerationOutput:
        """Works like generate_from_chunks, on the running event loop. Cancelling the task aborts the request."""
        chunks = (system_chunk_id, context_chunk_ids, query_chunk_id)
        options = whose(session, salt, keywords, explain=explain, deltas=False)
        spec, params = _asked("generate_from_chunks_async", chunks, sampling_params, keywords)
        return (await all_choices(self._composed_stream, [(spec, params, options)]))[0]

    def stream_from_chunks_async(
        self,
        system_chunk_id: str | None = None,
        context_chunk_ids: Iterable[str] | None = (),
        query_chunk_id: str | None = None,
        sampling_params: Params = None,
        *,
        session: str | None = None,
        salt: str | None = None,
        explain: bool = False,
        **keywords: Unpack[Asking],
    ) -> AsyncStream:
        """Works like stream_from_chunks, on the running event loop. KV that is missing is waited for in a thread of the
        loop's pool."""
        chunks, options = (system_chunk_id, context_chunk_ids, query_chunk_id), whose(session, salt, keywords, explain=explain)
        spec, params = _asked("stream_from_chunks_async", chunks, sampling_params, keywords)
        return self._composed_stream(spec, params, options)

    def _composed_stream(
        self, spec: _quire.CompositionSpec, params: Params, options: _quire.RequestOptions
    ) -> AsyncStream:
        async def start(options: _quire.RequestOptions) -> _quire.Stream:
            return await in_thread(self._chunks.stream_from_chunks_until, spec, params, options)

        return AsyncStream(start, options)

    def batch_generate_from_chunks(
        self,
        requests: Iterable[Mapping[str, Any] | Composition],
        sampling_params: Params | Sequence[Params] = None,
        *,
        session: str | Sequence[str | None] | None = None,
        salt: str | Sequence[str | None] | None = None,
        explain: bool = False,
        **keywords: Unpack[Request],
    ) -> list[GenerationOutput]:
        """Runs one continuous batch. A request is a dict of composing arguments or a Composition; params, session and salt
        are one for all, or one for each. `keywords`: fields of the params, over those."""
        options = each_whose(session, salt, keywords, explain=explain)
        params = each_sampling("batch_generate_from_chunks", sampling_params, keywords)
        specs = [_request(request) for request in to_list(requests, "requests", "requests")]
        return [GenerationOutput(fields) for fields in self._chunks.generate_from_chunks(specs, params, options)]

    def logits_from_chunks(
        self,
        system_chunk_id: str | None = None,
        context_chunk_ids: Iterable[str] | None = (),
        query_chunk_id: str | None = None,
        *,
        salt: str | None = None,
        **how: Unpack[Composing],
    ) -> np.ndarray:
        """Computes logits float32 [query tokens, vocab_size] without sampling. Mode "exact" reuses nothing."""
        return self._chunks.logits_from_chunks(_spec(system_chunk_id, context_chunk_ids, query_chunk_id, salt=salt, **how))["logits"]

    def find_band(
        self,
        contexts: Iterable[Prompt] | Iterable[Iterable[Prompt]],
        queries: Iterable[Prompt] | Iterable[Iterable[Prompt]],
        *,
        system_prompt: Prompt | None = None,
        salt: str | None = None,
    ) -> Band:
        """Finds the layers to name as `recompute_layers`: asks every query with the KV of one layer alone exact, for each
        layer. The error is the mean KL divergence of the answers' first tokens from exact ones, in nats. Leaves no chunk.
        Both may be lists of lists: sets of contexts, and the queries of each. Ask what needs several contexts at once.
        Costs a prefill of the contexts for each layer and query. Source: docs/reuse-grades.md."""
        return find_band(self, contexts, queries, system_prompt, salt)

    def chunk_blocks(self, chunk_id: str, *, salt: str | None = None) -> tuple[sequence.Blocks, int]:
        """Returns a handle on the KV that a system or context chunk was registered with, and the number of its tokens."""
        blocks = sequence.Blocks(self._chunks.chunk_blocks(_id(chunk_id), to_salt(salt)))
        return blocks, blocks.num_tokens

    def sequence(
        self,
        token_ids: Sequence[int] | Composition = (),
        *,
        blocks: Any = None,
        existing_token_count: int | None = None,
        session: str | None = None,
        salt: str | None = None,
    ) -> sequence.Sequence:
        """Makes a sequence as LLM.sequence does, or behind a composition, whose query is the first of the sequence's
        own tokens."""
        if not isinstance(token_ids, Composition):
            behind = {"blocks": blocks, "existing_token_count": existing_token_count}
            return super().sequence(token_ids, session=session, salt=salt, **behind)
        if blocks is not None or existing_token_count is not None:
            raise TypeError("a composition says already what stands before; give no blocks")
        return sequence.Sequence(self._chunks.sequence(token_ids.spec, whose(session, salt)))

    @overload
    def generate(  # type: ignore[overload-overlap]  # as of LLM.generate
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

    @overload
    def generate(
        self,
        *,
        system_prompt: Prompt | None = None,
        context: Iterable[Prompt] | None = (),
        query: Prompt,
        sampling_params: Params = None,
        persist_chunks: bool = True,
        session: str | None = None,
        salt: str | None = None,
        explain: bool = False,
        **keywords: Unpack[Registering],
    ) -> GenerationOutput: ...

    def generate(
        self,
        prompt: Prompt | Sequence[Prompt] | None = None,
        sampling_params: Params | Sequence[Params] = None,
        *,
        system_prompt: Prompt | None = None,
        context: Iterable[Prompt] | None = (),
        query: Prompt | None = None,
        persist_chunks: bool = True,
        session: str | Sequence[str | None] | None = None,
        salt: str | Sequence[str | None] | None = None,
        explain: bool = False,
        progress: Progress = None,
        **keywords: Unpack[Registering],
    ) -> GenerationOutput | list[GenerationOutput]:
        """Runs a plain prompt as LLM.generate; or registers system prompt, contexts and query and runs their composition.

        The output then has `chunk_ids`: {"system", "context": [...], "query"}. With `persist_chunks=False` nothing
        stays of what this call registered. `keywords`: how it is composed (see the class),
        and fields of sampling_params.
        """
        contexts = [context] if isinstance(context, str) else [] if context is None else to_list(context, "context", "texts")
        persists = persist_chunks is not None and to_flag(persist_chunks, "persist_chunks")
        urgency = {name: keywords.pop(name) for name in URGENCY if name in keywords}
        sampled, how = keywords_of(keywords)
        if query is None and system_prompt is None and not contexts and not how:
            of = {"session": session, "salt": salt, "explain": explain, **urgency, **sampled}
            return super().generate(prompt, sampling_params, progress=progress, **of)
        spec = _how(**how)
        if progress is not None and progress is not False:
            raise TypeError("progress is of plain prompts; register_chunks takes it for chunks")
        if prompt is not None:
            raise TypeError("generate takes a prompt, or system_prompt, context and query")
        if query is None:
            raise InvalidCompositionError("a composition has exactly one query; give query")
        system = None if system_prompt is None else prompt_of(system_prompt, "system_prompt")
        params = sampling("generate", sampling_params, sampled)
        whole = (system, [prompt_of(text, "context") for text in contexts], prompt_of(query, "query"))
        fields = self._chunks.generate(whole, spec, params, persists, whose(session, salt, urgency, explain=explain))
        return GenerationOutput(fields)
