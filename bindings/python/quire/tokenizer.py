"""The model's tokenizer and chat template."""

from __future__ import annotations

import numbers
import os
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Literal, NoReturn, overload

from . import _quire, habits
from .chat import Conversation
from .convert import _pass, to_flag, to_ids, to_list, to_model, to_text


class Tokenizer(metaclass=habits.Named):
    """Immutable; any number of threads may call it. It outlives the LLM that it came from."""

    _class_habits = habits.TOKENIZER

    def __init__(self, handle: _quire.Tokenizer) -> None:
        if not isinstance(handle, _quire.Tokenizer):
            raise TypeError("Tokenizer.open(model) opens the tokenizer of a model; llm.tokenizer is that of an open one")
        self._handle = handle

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            habits.missing_attribute(self, name, habits.TOKENIZER)

    @classmethod
    @habits.names_unknown(habits.LLM_OPTIONS)
    def open(cls, model: str | os.PathLike[str]) -> Tokenizer:
        """Opens the tokenizer of a model folder or .gguf file, without its weights."""
        return cls(_quire.Tokenizer.open(to_model(model)))

    @habits.names_unknown(habits.TOKENIZER_CALLS)
    def __call__(self, text: str | list[str], add_special_tokens: bool = True) -> dict[str, Any]:
        """Returns {"input_ids": ids of a text, "attention_mask": ones}; for a list of texts lists of them, each as long as it
        is."""
        several = isinstance(text, (list, tuple))
        ids = [self.encode(each, add_special_tokens) for each in (text if several else [text])]
        masks = [[1] * len(each) for each in ids]
        return {"input_ids": ids, "attention_mask": masks} if several else {"input_ids": ids[0], "attention_mask": masks[0]}

    def __len__(self) -> int:
        return self.vocab_size

    def __bool__(self) -> bool:
        return True

    def __repr__(self) -> str:
        template = "with" if self.has_chat_template else "without"
        return f"Tokenizer({self.vocab_size} ids, {template} chat template)"

    @habits.names_unknown(habits.TOKENIZER_CALLS)
    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Returns ids of the text, with the special tokens that the model puts around it (`add_special_tokens=False`:
        without)."""
        return self._handle.encode(to_text(text), to_flag(add_special_tokens, "add_special_tokens"))

    @habits.names_unknown(habits.TOKENIZER_CALLS)
    def decode(self, ids: Iterable[int] | int, skip_special_tokens: bool = True) -> str:
        """Decodes the ids, or one; bytes that are no whole character become U+FFFD."""
        several = [ids] if isinstance(ids, numbers.Integral) else ids
        return self._handle.decode(to_ids(several, "ids"), to_flag(skip_special_tokens, "skip_special_tokens"))

    @habits.names_unknown(habits.TOKENIZER_CALLS)
    def batch_decode(self, sequences: Iterable[Iterable[int]], skip_special_tokens: bool = True) -> list[str]:
        """Decodes each list of ids."""
        return [self.decode(ids, skip_special_tokens) for ids in to_list(sequences, "sequences", "lists of ids")]

    def token_bytes(self, token_id: int) -> bytes:
        """Returns the bytes that the token stands for in a text, exactly: parts of characters too; a special token's own
        spelling."""
        return _pass("token_id", token_id, self._handle.token_bytes)

    @property
    def template_variables(self) -> list[str]:
        """Names that the chat template reads and does not set itself; empty without a template."""
        return self._handle.template_variables(False)

    @overload
    def apply_chat_template(
        self,
        messages: list[dict[str, Any]],
        tokenize: Literal[True] = True,
        add_generation_prompt: bool = True,
        **variables: Any,
    ) -> list[int]: ...

    @overload
    def apply_chat_template(
        self, messages: list[dict[str, Any]], tokenize: Literal[False], add_generation_prompt: bool = True, **variables: Any
    ) -> str: ...

    def apply_chat_template(
        self, messages: list[dict[str, Any]], tokenize: bool = True, add_generation_prompt: bool = True, **variables: Any
    ) -> list[int] | str:
        """Returns ids, or the prompt's text with `tokenize=False`. Text of messages never becomes a special token.

        messages: dicts with "role" and "content": a text, or a list of {"type": "text", "text": ...}
        variables: of the template, such as documents= (dicts with "text") and tools=. ValueError for one that the template
            does not read, and for a document or tool that it does not show
        """
        as_ids = to_flag(tokenize, "tokenize")
        conversation = Conversation(self._handle, messages, add_generation_prompt, variables)
        return conversation.ids() if as_ids else conversation.render()

    def id_to_token(self, token_id: int) -> str:
        """Returns the token as the vocabulary writes it; ValueError for an id that it does not have."""
        return _pass("token_id", token_id, self._handle.id_to_token)

    def token_to_id(self, token: str) -> int | None:
        """Returns the id of a token as the vocabulary writes it; None where there is none."""
        return self._handle.token_to_id(to_text(token, "token"))

    @property
    def has_chat_template(self) -> bool:
        """True if the model brings one; without it apply_chat_template fails."""
        return self._handle.has_chat_template()

    @property
    def vocab_size(self) -> int:
        """Highest id + 1."""
        return self._handle.vocab_size

    @property
    def bos_token_id(self) -> int | None:
        """The token that begins a text; None where the model has none."""
        return self._handle.bos_token_id

    @property
    def leading_bos_token_id(self) -> int | None:
        """The id of the BOS token if prompts begin with it, as the chat template writes them, or as encode() does
        without one."""
        return self._handle.leading_bos_token_id

    @property
    def eos_token_id(self) -> int | None:
        """The token that ends an answer; None where the model has none."""
        return self._handle.eos_token_id

    @property
    def pad_token_id(self) -> int | None:
        """The token that fills up batches elsewhere; None where the model has none."""
        return self._handle.pad_token_id

    @property
    def unk_token_id(self) -> int | None:
        """The token for what the vocabulary cannot write; None where the model has none."""
        return self._handle.unk_token_id
