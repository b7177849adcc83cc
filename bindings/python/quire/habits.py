"""What other engines call things, and Quire's word for it: every refused name says the nearest right one."""

from __future__ import annotations

import difflib
import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any, NoReturn, TypeVar

_NOT_THERE = "Quire does not have it yet"

# Of sampling parameters.
SAMPLING = {
    "max_new_tokens": "max_tokens",
    "max_completion_tokens": "max_tokens",
    "max_length": "max_tokens, which counts new tokens alone",
    "n_predict": "max_tokens",
    "num_predict": "max_tokens",
    "min_new_tokens": "min_tokens",
    "temp": "temperature",
    "do_sample": "temperature: 0 is greedy",
    "repeat_penalty": "repetition_penalty",
    "penalty_repeat": "repetition_penalty",
    "frequence_penalty": "frequency_penalty",
    "stop_strings": "stop",
    "stop_sequences": "stop",
    "eos_token_id": "stop_token_ids",
    "random_seed": "seed",
    "top_logprobs": "logprobs: a number of tokens",
    "n_probs": "logprobs: a number of tokens",
    "bad_words": "logit_bias: -100 for each id that shall not come",
    "bad_words_ids": "logit_bias: -100 for each id that shall not come",
    "best_of": "a list of prompts, or fork() of a sequence",
    "num_return_sequences": "n",
    "num_beams": _NOT_THERE,
    "use_beam_search": _NOT_THERE,
    "response_format": _NOT_THERE,
    "grammar": _NOT_THERE,
    "guided_json": _NOT_THERE,
    "guided_decoding": _NOT_THERE,
    "structured_outputs": _NOT_THERE,
    "logits_processor": "logit_bias, or forward() for logits",
    "logits_processors": "logit_bias, or forward() for logits",
    "skip_special_tokens": "tokenizer.decode(out.token_ids, skip_special_tokens=False)",
    "prompt_logprobs": "forward(ids).logits",
    "echo": "out.prompt_token_ids",
}

# Of calls that generate, beside those.
CALLS = {
    "stream": "llm.stream(prompt) or llm.stream_chat(messages), which give the text as it comes",
    "use_tqdm": "llm.stream(prompt) for text as it comes; loading and register_chunk take progress=",
    "prompts": "prompt: one, or a list",
    "prompt_token_ids": "prompt: a list of ids is one, too",
    "params": "sampling_params",
    "sampling_parameters": "sampling_params",
    "generation_config": "sampling_params",
    "conversation": "messages",
    "context": "documents",
    "docs": "documents",
    "functions": "tools",
    "tool_choice": _NOT_THERE,
    "chat_template_kwargs": "template_args",
    "tokenizer_kwargs": "template_args",
    "chat_template": _NOT_THERE,
    "lora_request": _NOT_THERE,
    "user": "session",
    "options": "sampling_params",
    "format": _NOT_THERE,
    "keep_alive": "nothing: the model stays until llm.close()",
    "model": "the model that the LLM was opened with",
}

# Of opening a model.
LLM_OPTIONS = {
    "model_name": "model",
    "model_name_or_path": "model",
    "pretrained_model_name_or_path": "model",
    "path": "model",
    "n_ctx": "kv_budget, which bounds the KV of all requests; each may be as long as the model allows",
    "num_ctx": "kv_budget, which bounds the KV of all requests; each may be as long as the model allows",
    "max_model_len": "kv_budget, which bounds the KV of all requests; each may be as long as the model allows",
    "max_seq_len": "kv_budget, which bounds the KV of all requests; each may be as long as the model allows",
    "context_length": "kv_budget, which bounds the KV of all requests; each may be as long as the model allows",
    "gpu_memory_utilization": 'kv_budget: bytes, "4GiB" or "auto"',
    "kv_cache_memory_bytes": "kv_budget",
    "kv_budget_bytes": "kv_budget",
    "n_threads": "threads",
    "num_threads": "threads",
    "n_threads_batch": "threads",
    "n_batch": "max_batch_tokens",
    "n_ubatch": "max_batch_tokens",
    "max_num_batched_tokens": "max_batch_tokens",
    "n_gpu_layers": 'device: "cuda" computes all layers there',
    "device_map": "device",
    "torch_dtype": "dtype",
    "precision": "dtype",
    "quantization": "quantize",
    "load_in_8bit": 'quantize="q8g32"',
    "load_in_4bit": 'quantize="q4g32"',
    "kv_cache_dtype": "kv_dtype",
    "cache_type_k": "kv_dtype",
    "cache_type_v": "kv_dtype",
    "type_k": "kv_dtype",
    "type_v": "kv_dtype",
    "block_size": "block_tokens",
    "enable_prefix_caching": "prefix_cache",
    "cache_dir": "store",
    "verbose": "progress=True",
    "num_gpu": 'device: "cuda" computes all layers there',
    "swap_space": "store: a folder that keeps KV",
    "tensor_parallel_size": _NOT_THERE,
    "draft_model": _NOT_THERE,
    "speculative_config": _NOT_THERE,
    "speculative_model": _NOT_THERE,
    "num_speculative_tokens": _NOT_THERE,
    "trust_remote_code": "nothing: Quire runs no code of a model",
    "tokenizer": "nothing: the tokenizer is the model's own",
    "chat_format": "nothing: the chat template is the model's own",
    "chat_template": _NOT_THERE,
    "embedding": _NOT_THERE,
    "lora_path": _NOT_THERE,
    "enable_lora": _NOT_THERE,
    "seed_value": "seed",
}

# Of an open model: attributes.
LLM_CALLS = {
    "create_chat_completion": "chat(messages)",
    "create_completion": "generate(prompt)",
    "complete": "generate(prompt)",
    "invoke": "generate(prompt)",
    "generate_stream": "stream(prompt)",
    "chat_stream": "stream_chat(messages)",
    "agenerate": "await llm.generate_async(prompt)",
    "achat": "await llm.chat_async(messages)",
    "get_tokenizer": "tokenizer",
    "tokenize": "tokenizer.encode(text)",
    "detokenize": "tokenizer.decode(ids)",
    "encode": "tokenizer.encode(text)",
    "decode": "tokenizer.decode(ids)",
    "embed": _NOT_THERE,
    "create_embedding": _NOT_THERE,
    "get_metrics": "stats()",
    "metrics": "stats()",
    "reset": "clear_prefix_cache()",
    "reset_prefix_cache": "clear_prefix_cache()",
    "save_state": "sequence(ids).save(path)",
    "load_state": "load_sequence(path)",
    "set_cache": "nothing: prefixes are always shared; store= keeps chunks on disk",
    "pull": "huggingface-cli download, then LLM(name)",
    "shutdown": "close()",
}

# Of an output: attributes.
OUTPUT = {
    "choices": "out.text; out.outputs of several",
    "generated_text": "out.text",
    "response": "out.text",
    "eval_count": "out.usage.completion_tokens",
    "prompt_eval_count": "out.usage.prompt_tokens",
    "content": "out.text",
    "message": "out.text",
    "prompt": "out.prompt_token_ids",
    "cumulative_logprob": "out.logprobs",
    "metrics": "out.timing",
    "id": "out.request_id",
    "finished": "out.finish_reason",
    "num_cached_tokens": "out.usage.cached_tokens",
}

Call = TypeVar("Call", bound=Callable[..., Any])


def hint(name: str, known: Iterable[str], *habits: dict[str, str]) -> str:
    """The way out behind an unknown name: Quire's word for it, else the most similar of the `known` ones, else nothing."""
    for words in habits:
        if name in words:
            word = words[name]
            return f"; {word}" if word == _NOT_THERE else f"; Quire's word is {word}"
    similar = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    return f"; did you mean {similar[0]}?" if similar else ""


def unknown_sampling(name: str, known: list[str]) -> str:
    """What is said of a field that SamplingParams does not have."""
    return f"unknown sampling parameter {name!r}{hint(name, known, SAMPLING)}"


def refuse_keyword(call: str, name: str, known: Iterable[str], *habits: dict[str, str]) -> NoReturn:
    """Raises the TypeError for a keyword that a call does not take."""
    raise TypeError(f"{call} takes no {name!r}{hint(name, known, *habits)}")


def names_unknown(*habits: dict[str, str]) -> Callable[[Call], Call]:
    """Wraps a call so that a keyword which its signature does not have is refused with the nearest right word."""

    def wrap(call: Call) -> Call:
        known = [name for name in inspect.signature(call).parameters if name != "self"]
        shown = call.__qualname__.removesuffix(".__init__")

        @functools.wraps(call)
        def checked(*args: Any, **named: Any) -> Any:
            for name in named:
                if name not in known:
                    refuse_keyword(shown, name, known, *habits)
            return call(*args, **named)

        return checked  # type: ignore[return-value]

    return wrap


def missing_attribute(owner: object, name: str, habits: dict[str, str]) -> NoReturn:
    """Raises the AttributeError for a name that an object does not have."""
    known = [each for each in dir(type(owner)) if not each.startswith("_")]
    raise AttributeError(f"{type(owner).__name__!r} has no attribute {name!r}{hint(name, known, habits)}", name=name, obj=owner)
