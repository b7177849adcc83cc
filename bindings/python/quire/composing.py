"""Composing: which chunks, in which order, and how they are reused."""

from __future__ import annotations

import enum
import operator
import reprlib
from collections.abc import ItemsView, Iterable, Iterator, KeysView, Mapping, Sequence, ValuesView
from typing import TYPE_CHECKING, Any, Literal, NoReturn, TypedDict

from . import _quire, habits, show
from .convert import _pass, _set, _set_flag, to_choice, to_ids, to_list, to_text
from .errors import ChunkNotFoundError, KindError
from .outputs import Fields, Record, _plain
from .sampling import FIELDS, Params, Request, sampling
from .session import to_salt

_LAYERS = 1 << 20  # more than any model has
BLEND_SHARE = 0.15  # of the context tokens, where mode "blend" names none: what the demo model's tables recommend

Mode = Literal["exact", "anchored", "independent", "blend"]
Selector = Literal["query_attn", "value_dev", "first_k", "random", "all", "none", "explicit"]


class How(TypedDict, total=False):
    """The keywords of every composing call, see ChunkedLLM."""

    without_system: bool
    mode: Mode
    positions: Literal["concat", "parallel"] | Sequence[int]
    recompute: float | Sequence[int] | None
    selector: Selector | None
    selector_seed: int
    base: Literal["anchored", "independent"] | None
    recompute_layers: Sequence[int] | None
    sink: Literal["bos"] | None
    computed_in_place: bool


HOW = tuple(How.__annotations__)


class Composing(How, total=False):
    """Keywords of a call that takes a composition, too."""

    composition: Composition | None


class Asking(Composing, Request, total=False):
    """The keywords of a call that composes and generates."""


class Registering(How, Request, total=False):
    """The keywords of a call that registers, composes and generates."""


class _Kinds(enum.EnumType):
    """Says which kinds there are."""

    def __getattr__(cls, name: str) -> Any:
        kinds = cls.__dict__.get("_member_map_", {})
        if name in kinds:
            return kinds[name]
        raise AttributeError(f"ChunkType has no {name!r}{habits.hint(name, kinds)}")


class ChunkType(enum.StrEnum, metaclass=_Kinds):
    """Purpose of a chunk. Wherever a type is wanted its value does as well."""

    SYSTEM_PROMPT = "system_prompt"
    CONTEXT = "context"
    QUERY = "query"

    @classmethod
    def _missing_(cls, value: object) -> ChunkType:
        error = ValueError if isinstance(value, str) else KindError
        raise error(f"chunk_type must be one of {', '.join(repr(kind.value) for kind in cls)}, not {value!r}")


class Composition(Record):
    """Chunks in an order, at positions, in a mode. Immutable; names chunks and holds no KV.

    Its fields answer as attribute and as key: these, and those of `ChunkedLLM.preview_composition`, as when it was made.
    """

    __slots__ = ("__weakref__", "_handle")

    segments: tuple[Fields, ...]  # chunk_id, chunk_type, num_tokens, position, kv_dtype, cached, why_not
    mode: str
    grade: str  # that an output will have
    num_levels: int  # runs of KV that attention merges
    memory_bytes: int  # held while it runs
    token_ids: list[int]  # those of all chunks, joined; looked up when somebody asks

    def __init__(self, handle: _quire.Composition) -> None:
        described = _described(handle.info())
        super().__init__({**described, "segments": tuple(described["segments"])})
        object.__setattr__(self, "_handle", handle)

    # A dict without "token_ids", which may be long: whoever walks over the fields meets it as the last one.

    def __missing__(self, name: object) -> Any:
        return self._handle.token_ids() if name == "token_ids" else super().__missing__(name)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            return self[name] if name == "token_ids" else super().__getattr__(name)

    def __contains__(self, name: object) -> bool:
        return name == "token_ids" or super().__contains__(name)

    def __iter__(self) -> Iterator[str]:
        yield from super().__iter__()
        yield "token_ids"

    def __len__(self) -> int:
        return super().__len__() + 1

    def get(self, name: str, default: Any = None) -> Any:
        """Returns the field, or `default` for one that is not there."""
        return self[name] if name in self else default

    def keys(self) -> KeysView[str]:  # type: ignore[override]
        """Returns the names of the fields."""
        return KeysView(self)

    def values(self) -> ValuesView[Any]:  # type: ignore[override]
        """Returns the fields, in order."""
        return ValuesView(self)

    def items(self) -> ItemsView[str, Any]:  # type: ignore[override]
        """Returns names and fields, in order."""
        return ItemsView(self)

    def __reduce__(self) -> NoReturn:
        raise TypeError("a composition belongs to its LLM, and no file keeps it; to_dict() is a plain copy")

    def to_dict(self) -> dict[str, Any]:
        """Returns a plain dict of plain dicts and lists, which may be changed."""
        return _plain(dict(self))

    def _repr_html_(self) -> str:
        """Shows its segments in order, for notebooks."""
        return composition_html(self)

    def __copy__(self) -> Composition:
        return self

    def __deepcopy__(self, _: dict[int, Any]) -> Composition:
        return self

    @property
    def spec(self) -> _quire.CompositionSpec:
        """Its chunks and how they are composed, as the library takes them."""
        return self._handle.spec()


class Preview(Fields):
    """Effects of running a composition; a dict whose keys answer as attributes too."""

    def _repr_html_(self) -> str:
        """Shows its segments in order, for notebooks."""
        return composition_html(self)


def composition_html(composition: Any) -> str:
    """Shows segments one below the other, and what running them takes."""
    title = (
        f"{composition['total_tokens']} tokens, {composition['tokens_reused']} reused, {composition['tokens_computed']} "
        f"computed; mode {composition['mode']} ({composition['grade']}), {show.bytes_text(composition['memory_bytes'])}"
    )
    names = ("chunk_type", "chunk_id", "num_tokens", "position", "cached")
    rows = ([str(segment[name])[:16] for name in names] for segment in composition["segments"])
    return show.grid(title, names, rows)


def _described(info: dict[str, Any]) -> dict[str, Any]:
    return {**info, "segments": [Fields(segment) for segment in info["segments"]]}


def _id(chunk_id: Any) -> str:
    """Returns the id, which is a string; anything else names no chunk."""
    if isinstance(chunk_id, Composition):
        raise TypeError("a composition is given as composition=, in place of chunk ids")
    if isinstance(chunk_id, str):
        return to_text(chunk_id)
    error = ChunkNotFoundError(f"no chunk {reprlib.repr(chunk_id)}: an id is a string of 64 hexadecimal digits")
    error.chunk_id = repr(chunk_id)
    raise error


def _optional_id(chunk_id: Any) -> str:
    return "" if chunk_id is None else _id(chunk_id)


def _ids(chunk_ids: Iterable[str] | None) -> list[str]:
    return [] if chunk_ids is None else [_id(chunk_id) for chunk_id in to_list(chunk_ids, "context_chunk_ids", "ids")]


def type_name(chunk_type: ChunkType | str) -> str:
    """Returns the name of a type of chunks; ValueError for anything else."""
    return (ChunkType(chunk_type) if isinstance(chunk_type, str) else ChunkType._missing_(chunk_type)).value


def _type(chunk_type: ChunkType | str | None) -> str | None:
    return None if chunk_type is None else type_name(chunk_type)


def _blend(
    recompute: float | Sequence[int] | None,
    selector: str | None,
    selector_seed: int,
    base: str | None,
    layers: Sequence[int] | None,
) -> _quire.Blend:
    blend = _quire.Blend()
    _pass("base", "anchored" if base is None else base, blend.set_base)
    if layers is not None:
        if recompute is not None or selector is not None:
            raise ValueError("recompute_layers computes all context tokens again; leave recompute and selector out")
        bounds = to_list(layers, "recompute_layers", "layers")
        if len(bounds) != 2:
            raise ValueError(f"recompute_layers is a pair (a, b) of layers, not {layers!r}")
        first, last = (to_layer(bound, "recompute_layers") for bound in bounds)
        blend.set_layers(first, last)
        return blend
    listed = isinstance(recompute, Iterable) and not isinstance(recompute, (str, bytes, Mapping))
    if not isinstance(selector, (str, type(None))):
        raise TypeError(f"selector cannot be {selector!r}")
    if listed and selector not in (None, "explicit"):
        raise ValueError(f"recompute lists tokens; selector {selector!r} would choose others")
    if selector == "explicit" and not listed:
        raise ValueError("selector 'explicit' wants recompute as a list of indices into token_ids")
    chosen = ("explicit" if listed else "query_attn") if selector is None else selector
    _pass("selector", chosen, blend.set_selector)
    if listed:
        _set(blend, "recompute", to_ids(recompute, "recompute", "indices into token_ids"), field="tokens")
    else:
        _set(blend, "recompute", BLEND_SHARE if recompute is None else recompute, field="share")
    _set(blend, "selector_seed", selector_seed, field="seed")
    return blend


def to_layer(layer: Any, name: str) -> int:
    """Returns the number of a layer; KindError or ValueError naming the argument for anything else."""
    if isinstance(layer, bool) or not hasattr(layer, "__index__"):
        raise KindError(f"{name} cannot be {layer!r}")
    number = operator.index(layer)
    if not -_LAYERS <= number <= _LAYERS:
        raise ValueError(f"{name} cannot be {layer!r}")
    return number


def refuse_composing(name: str) -> NoReturn:
    """Raises the TypeError for a keyword that composing calls do not take."""
    near = habits.hint(name, [*HOW, *FIELDS], habits.CALLS, habits.SAMPLING)
    raise TypeError(f"{name!r} is no composing keyword and no sampling parameter{near}; help(quire.ChunkedLLM) lists them")


def keywords_of(given: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Splits the keywords of a call into the sampling parameters and how it composes."""
    sampled = {name: value for name, value in given.items() if name in FIELDS}
    return sampled, {name: value for name, value in given.items() if name not in sampled}


def _starts(positions: Any) -> list[int]:
    try:
        return to_ids(positions, "positions", "starts")
    except ValueError:
        raise TypeError(f"positions cannot be {positions!r}") from None


def _how(
    *,
    without_system: bool = False,
    mode: str = "anchored",
    positions: str | Sequence[int] = "concat",
    recompute: float | Sequence[int] | None = None,
    selector: str | None = None,
    selector_seed: int = 0,
    base: str | None = None,
    recompute_layers: Sequence[int] | None = None,
    sink: str | None = None,
    computed_in_place: bool = False,
    **unknown: Any,
) -> _quire.CompositionSpec:
    """Describes how chunks are composed, by the keywords of every composing call (see ChunkedLLM)."""
    if unknown:
        refuse_composing(next(iter(unknown)))
    spec = _quire.CompositionSpec()
    _pass("mode", mode, spec.set_mode)
    _set_flag(spec, "without_system", without_system)
    _set_flag(spec, "computed_in_place", computed_in_place)
    if mode == "blend":
        spec.blend = _blend(recompute, selector, selector_seed, base, recompute_layers)
    elif any(given is not None for given in (recompute, selector, base, recompute_layers)):
        raise ValueError(f"recompute, recompute_layers, selector and base belong to mode 'blend', not to {mode!r}")
    if sink is not None:
        spec.bos_sink = to_choice(sink, "sink", ("bos",)) == "bos"
    if not isinstance(positions, str):
        spec.set_starts(_starts(positions))
    elif positions == "parallel":
        spec.set_parallel()
    elif positions != "concat":
        raise ValueError(f"positions must be 'concat', 'parallel' or a list of starts, not {positions!r}")
    return spec


def _of_tenant(spec: _quire.CompositionSpec, salt: str | None) -> _quire.CompositionSpec:
    """Returns the composition for a tenant: its own, or one that it does not name."""
    if salt is not None and spec.salt not in ("", salt):
        raise ValueError("the composition is another salt's than the request; give that one, or none")
    spec.salt = spec.salt or to_salt(salt)
    return spec


def _spec(
    system_chunk_id: str | None = None,
    context_chunk_ids: Iterable[str] | None = (),
    query_chunk_id: str | None = None,
    *,
    composition: Composition | None = None,
    salt: str | None = None,
    **how: Any,
) -> _quire.CompositionSpec:
    if composition is not None:
        if system_chunk_id or query_chunk_id or list(context_chunk_ids or ()) or how:
            raise TypeError("composition= says already what is composed and how; give nothing else")
        if not isinstance(composition, Composition):
            raise TypeError(f"composition must come from compose(), not be a {type(composition).__name__}")
        return _of_tenant(composition.spec, salt)
    spec = _of_tenant(_how(**how), salt)
    spec.system_chunk_id = _optional_id(system_chunk_id)
    spec.context_chunk_ids = _ids(context_chunk_ids)
    spec.query_chunk_id = _optional_id(query_chunk_id)
    return spec


def _request(request: Mapping[str, Any] | Composition) -> _quire.CompositionSpec:
    if isinstance(request, Composition):
        return request.spec
    if not isinstance(request, Mapping):
        raise TypeError(f"a request is a dict or a Composition, not a {type(request).__name__}")
    return _spec(**request)


def _asked(
    call: str, chunks: tuple[Any, Any, Any], params: Params, keywords: Mapping[str, Any]
) -> tuple[_quire.CompositionSpec, Params]:
    """Returns the composition that a call names, and how it samples."""
    sampled, how = keywords_of(keywords)
    return _spec(*chunks, **how), sampling(call, params, sampled)
