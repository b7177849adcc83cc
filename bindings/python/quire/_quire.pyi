"""Types of what the extension module gives to programs. The rest of it is the package's own affair."""

from typing import Any

__version__: str

class SamplingParams:
    """How the next token is chosen. Order: logit bias and penalties, temperature, top-k, top-p on what is left, min-p against
    the most likely token. temperature=0 is greedy. ValueError for an unknown name and a value out of range."""

    def __init__(
        self,
        temperature: float = 1.0,
        top_p: float = 1.0,
        top_k: int = 0,
        min_p: float = 0.0,
        repetition_penalty: float = 1.0,
        presence_penalty: float = 0.0,
        frequency_penalty: float = 0.0,
        max_tokens: int = 256,
        min_tokens: int = 0,
        stop: str | list[str] | None = None,
        stop_token_ids: list[int] | None = None,
        ignore_eos: bool = False,
        seed: int | None = None,
        logprobs: int | None = None,
        logit_bias: dict[int, float] | dict[str, float] | None = None,
        n: int = 1,
        speculate: int | bool | None = None,
    ) -> None: ...
    def replace(
        self,
        *,
        temperature: float = ...,
        top_p: float = ...,
        top_k: int = ...,
        min_p: float = ...,
        repetition_penalty: float = ...,
        presence_penalty: float = ...,
        frequency_penalty: float = ...,
        max_tokens: int = ...,
        min_tokens: int = ...,
        stop: str | list[str] | None = ...,
        stop_token_ids: list[int] | None = ...,
        ignore_eos: bool = ...,
        seed: int | None = ...,
        logprobs: int | None = ...,
        logit_bias: dict[int, float] | dict[str, float] | None = ...,
        n: int = ...,
        speculate: int | bool | None = ...,
    ) -> SamplingParams:
        """Returns a copy with other values of the fields that are named."""
    def to_dict(self) -> dict[str, Any]:
        """Returns all fields as a plain dict; SamplingParams(**it) is equal."""
    @property
    def temperature(self) -> float:
        """Divides the logits; 0 or more. 0 is greedy: the most likely token, the lower id among equals."""
    @property
    def top_p(self) -> float:
        """Share of probability that the kept tokens have together, in (0, 1]. 1 keeps all."""
    @property
    def top_k(self) -> int:
        """Number of most likely tokens to keep. 0 keeps all."""
    @property
    def min_p(self) -> float:
        """Least probability of a kept token, as a share of the most likely token's, in [0, 1]."""
    @property
    def repetition_penalty(self) -> float:
        """Divides positive logits and multiplies negative ones, of tokens in prompt or output; above 0."""
    @property
    def presence_penalty(self) -> float:
        """Subtracted once from the logit of every token in the output."""
    @property
    def frequency_penalty(self) -> float:
        """Subtracted from a token's logit for each of its occurrences in the output."""
    @property
    def max_tokens(self) -> int:
        """Maximum number of tokens to generate. 0 computes the prompt and returns no token."""
    @property
    def min_tokens(self) -> int:
        """Number of tokens before which no EOS, stop id or stop string ends the output; at most max_tokens."""
    @property
    def stop(self) -> list[str] | None:
        """Up to 64 strings of 1 to 4,096 bytes. The text ends before the first of them that comes."""
    @property
    def stop_token_ids(self) -> list[int] | None:
        """Up to 65,536 ids. Such an id ends the output and is the output's last id."""
    @property
    def ignore_eos(self) -> bool:
        """True: the model's own end tokens do not end the output."""
    @property
    def seed(self) -> int | None:
        """Seed of the random choices."""
    @property
    def logprobs(self) -> int | None:
        """Number of most likely tokens, 0 to 1,024,
        whose log probabilities each token brings, with the chosen token's own."""
    @property
    def logit_bias(self) -> dict[int, float] | None:
        """Up to 65,536 pairs of id and finite number. The number is added to the logit of the id."""
    @property
    def n(self) -> int:
        """Number of outputs, 1 to 16, for one computation of the prompt"""
    @property
    def speculate(self) -> int | None:
        """Number of tokens to guess at most"""

class Mark:
    """A moment of one sequence, from its checkpoint()."""

def __getattr__(name: str) -> Any: ...
