"""The model's tokenizer and chat template."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from . import _quire


class Tokenizer:
    """Immutable; any number of threads may call it. It outlives the LLM that it came from."""

    def __init__(self, handle: _quire.Tokenizer) -> None:
        self._handle = handle

    @classmethod
    def open(cls, model: str) -> Tokenizer:
        """The tokenizer of a model folder or .gguf file, without its weights."""
        return cls(_quire.Tokenizer.open(str(model)))

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return self._handle.encode(text.encode("utf-8", "surrogatepass").decode("utf-8", "replace"), add_special_tokens)

    def decode(self, ids: Iterable[int] | int, skip_special_tokens: bool = True) -> str:
        return self._handle.decode([ids] if isinstance(ids, int) else list(ids), skip_special_tokens)

    def apply_chat_template(
        self, messages: list[dict[str, Any]], tokenize: bool = True, add_generation_prompt: bool = True, **variables: Any
    ) -> list[int] | str:
        """Ids, or the prompt's text with `tokenize=False`. Text of messages never becomes a special token."""
        call = self._handle.apply_chat_template if tokenize else self._handle.render_chat_template
        return call(json.dumps(messages), add_generation_prompt, json.dumps(variables))

    def id_to_token(self, token_id: int) -> str:
        return self._handle.id_to_token(token_id)

    def token_to_id(self, token: str) -> int | None:
        return self._handle.token_to_id(token)

    @property
    def has_chat_template(self) -> bool:
        return self._handle.has_chat_template()

    @property
    def vocab_size(self) -> int:
        """Highest id + 1."""
        return self._handle.vocab_size

    @property
    def bos_token_id(self) -> int | None:
        return self._handle.bos_token_id

    @property
    def eos_token_id(self) -> int | None:
        return self._handle.eos_token_id

    @property
    def pad_token_id(self) -> int | None:
        return self._handle.pad_token_id

    @property
    def unk_token_id(self) -> int | None:
        return self._handle.unk_token_id
