"""Maps the names that other engines use to Quire's words: every refused name says the nearest right one."""

from __future__ import annotations

import difflib
import functools
import inspect
import reprlib
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

_NOT_THERE = "Quire does not have it yet"
_SPECULATE = 'speculate: "ngram", "suffix" or {"method": "draft", "model": path, "max_tokens": 4}'


def _each(words: str, meaning: str) -> dict[str, str]:
    """Gives many words one meaning."""
    return dict.fromkeys(words.split(), meaning)


_NEVER_CUT = "nothing: a prompt is never cut; it fits into the model's context, or the call is an error"
_ALWAYS = "nothing: it is always so"
_NEVER = "nothing: there is nothing to be set"
_THINKING = "template_args, where the chat template of the model reads it"
_KV_BUDGET = "kv_budget, which bounds the KV of all requests; each may be as long as the model allows"

# Names of sampling parameters.
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
    "return_full_text": "out.prompt_token_ids",
    "output_scores": "logprobs: a number of tokens",
    "detokenize": "out.token_ids, which are always there",
    "stop_token": "stop",
    "stopping_criteria": "stop, or stream(prompt), which you may leave at any token",
    "allowed_token_ids": "logit_bias",
    **_each("truncate_prompt_tokens truncation n_keep num_keep", _NEVER_CUT),
    **_each(
        "guided_regex guided_choice guided_grammar json_schema typical_p typical tfs tfs_z mirostat mirostat_mode mirostat_tau "
        "mirostat_eta dry_multiplier xtc_probability top_a eta_cutoff epsilon_cutoff penalty_alpha no_repeat_ngram_size "
        "penalty_last_n repeat_last_n length_penalty early_stopping include_stop_str_in_output "
        "spaces_between_special_tokens sampler samplers sampler_order extra_args",
        _NOT_THERE,
    ),
}

# Names of arguments of generating calls, beside those of sampling.
CALLS = {
    "stream": "llm.stream(prompt) or llm.stream_chat(messages), which give the text as it comes",
    "use_tqdm": "progress=True, of loading, generate, chat and register_chunk",
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
    "chat_template": "LLM(model, chat_template=...)",
    "add_generation_prompt": "tokenizer.apply_chat_template(messages, add_generation_prompt=...), whose ids are a prompt",
    "lora_request": _NOT_THERE,
    "user": "session",
    "options": "sampling_params",
    "format": _NOT_THERE,
    "keep_alive": "nothing: the model stays until llm.close()",
    "model": "the model that the LLM was opened with",
    "keepalive": "nothing: the model stays until llm.close()",
    "messages": "chat(messages)",
    "input": "prompt",
    "inputs": "prompt",
    "text": "prompt",
    "system": 'a message {"role": "system", "content": ...} of chat(messages)',
    "raw": "generate(prompt), which uses no chat template",
    "streamer": "stream(prompt)",
    **_each("timeout deadline", "deadline_seconds"),
    "request_id": "out.request_id, which the engine chooses",
    "add_special_tokens": "tokenizer.encode(text, add_special_tokens=False), whose ids are a prompt, too",
    "cache_prompt": "nothing: prefixes are always reused",
    "cache_salt": "salt",
    **_each("think thinking enable_thinking reasoning_effort", _THINKING),
    **_each("tokenize padding return_tensors return_dict_in_generate id_slot service_tier store metadata stream_options", _NEVER),
    **_each(
        "lora images image audio multi_modal_data mm_processor_kwargs prompt_embeds inputs_embeds suffix parallel_tool_calls "
        "continue_final_message chat_template_content_format modalities extra_body template",
        _NOT_THERE,
    ),
}

# Quire's own options of opening a model that no call takes.
OPTIONS = (
    "device deterministic dtype quantize kv_dtype block_tokens kv_budget state_share host_kv_budget "
    "max_batch_tokens threads prefix_cache share_reads cache_weights scheduler aging_seconds decode_weight "
    "max_wait_seconds max_waiting max_decode_gap_ms on_pressure preemption"
).split()

# Names of options for opening a model.
LLM_OPTIONS = {
    **_each(
        "temperature top_p top_k min_p repetition_penalty presence_penalty frequency_penalty max_tokens min_tokens stop "
        "stop_token_ids ignore_eos logprobs logit_bias n max_new_tokens num_predict n_predict repeat_penalty do_sample num_beams "
        "sampling_params",
        "a keyword of each call: generate(prompt, temperature=0, max_tokens=64)",
    ),
    **_each("gpu_layers ngl n_gpu", 'device: "cuda" computes all layers there'),
    "model_name": "model",
    "model_name_or_path": "model",
    "pretrained_model_name_or_path": "model",
    "path": "model",
    **_each("n_ctx num_ctx max_model_len max_seq_len max_context_len context_length context_size", _KV_BUDGET),
    **_each("mem_fraction_static max_memory", 'kv_budget: bytes, "4GiB" or "auto"'),
    **_each("num_thread n_threads_batch", "threads"),
    **_each("num_batch batch_size max_batch_size n_ubatch chunked_prefill_size", "max_batch_tokens"),
    **_each("repo_id model_id model_dir model_file filename", "model"),
    **_each("num_gpu_layers main_gpu", 'device: "cuda" computes all layers there'),
    **_each("quantization_config", "quantize"),
    "f16_kv": 'kv_dtype: "float16", on a GPU',
    "revision": 'model: "owner/name@revision"',
    "download_dir": "nothing: Quire downloads nothing; a model of the local Hugging Face cache is opened by its name",
    "local_files_only": "nothing: Quire downloads nothing",
    "token": "nothing: Quire downloads nothing",
    "hf_token": "nothing: Quire downloads nothing",
    "logits_all": "forward(ids).logits",
    "generation_config": "sampling_params, of each call",
    "max_num_seqs": "nothing: as many requests run together as fit into kv_budget",
    "n_parallel": "nothing: as many requests run together as fit into kv_budget",
    "async_engine": "nothing: calls that end in _async wait on the running event loop",
    **_each("flash_attn use_mmap offload_kqv low_cpu_mem_usage enable_chunked_prefill", _ALWAYS),
    **_each(
        "enforce_eager use_mlock low_vram attn_implementation disable_log_stats backend task runner compile use_v2 "
        "tokenizer_mode skip_tokenizer_init use_fast load_format",
        _NEVER,
    ),
    **_each("rope_freq_base rope_freq_scale rope_scaling hf_overrides", "nothing: the files of the model say it"),
    **_each("port host api_key", _NOT_THERE),
    **_each(
        "pipeline_parallel_size data_parallel_size tp_size dp_size tensor_split split_mode cpu_offload_gb lora_base mmproj "
        "limit_mm_per_prompt",
        _NOT_THERE,
    ),
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
    "swap_space": 'preemption="swap", and store: a folder that keeps KV',
    **_each("scheduling_policy policy schedule_policy", "scheduler"),
    "max_queue_size": "max_waiting",
    "tensor_parallel_size": _NOT_THERE,
    **_each("draft_model speculative_model speculative_config num_speculative_tokens", _SPECULATE),
    "trust_remote_code": "nothing: Quire runs no code of a model",
    "tokenizer": "nothing: the tokenizer is the model's own",
    "chat_format": "nothing: the chat template is the model's own",
    "embedding": _NOT_THERE,
    "lora_path": _NOT_THERE,
    "enable_lora": _NOT_THERE,
    "seed_value": "seed",
}

# Names of attributes of an open model.
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
    **_each("unload sleep", "close()"),
    **_each("from_pretrained load", "LLM(model)"),
    **_each("eval wake_up start_profile stop_profile", "nothing: an open LLM is ready"),
    **_each("to cuda cpu half float bfloat16", "device= and dtype= of LLM(model)"),
    **_each("n_ctx config model_config hf_config", "quire.inspect(model)"),
    **_each("llm_engine engine", "stats() and remarks()"),
    **_each("count_tokens num_tokens get_num_tokens", "len(tokenizer.encode(text))"),
    **_each("completions chat_completion", "chat(messages)"),
    "apply_chat_template": "tokenizer.apply_chat_template(messages)",
    "sample": "generate(prompt), or forward(ids) for logits",
    "eval_tokens": "sequence(ids)",
    **_each("beam_search score classify reward rerank", _NOT_THERE),
}

# Names of attributes of a tokenizer.
TOKENIZER = {
    "eos_token": "id_to_token(tokenizer.eos_token_id)",
    "bos_token": "id_to_token(tokenizer.bos_token_id)",
    "pad_token": "id_to_token(tokenizer.pad_token_id)",
    "unk_token": "id_to_token(tokenizer.unk_token_id)",
    "tokenize": "encode(text), and id_to_token(token_id) of each",
    "convert_tokens_to_ids": "token_to_id(token)",
    "convert_ids_to_tokens": "id_to_token(token_id)",
    **_each("encode_plus batch_encode_plus", "tokenizer(text), or tokenizer(texts)"),
    "batch_encode": "tokenizer(texts)",
    **_each("get_vocab vocab", "id_to_token(token_id) of each of range(tokenizer.vocab_size)"),
    "chat_template": "apply_chat_template(messages), and has_chat_template",
    "from_pretrained": "Tokenizer.open(model)",
    "detokenize": "decode(ids)",
    **_each("add_tokens add_special_tokens", "nothing: the vocabulary is the model's own"),
}

# Names of arguments of a tokenizer's calls.
TOKENIZER_CALLS = {
    **_each("truncation max_length stride", "nothing: a text is never cut"),
    **_each("padding padding_side", "nothing: each list of ids is as long as it is"),
    "return_tensors": "nothing: ids are a list, which numpy.array takes",
    **_each("clean_up_tokenization_spaces spaces_between_special_tokens", "nothing: texts are decoded as they are"),
    "add_bos": "add_special_tokens",
    "special": "add_special_tokens",
    "text_pair": _NOT_THERE,
    "token_ids": "ids",
}

# Names in the package.
PACKAGE = {
    **_each("Llama AutoModelForCausalLM AutoModel Engine pipeline load load_model", "LLM(model)"),
    **_each("AsyncLLM AsyncLLMEngine LLMEngine AsyncEngine", "LLM(model), whose calls that end in _async wait on the event loop"),
    **_each("AutoTokenizer LlamaTokenizer", "Tokenizer.open(model)"),
    **_each("GenerationConfig GenerateConfig", "SamplingParams"),
    **_each("RequestOutput CompletionOutput", "GenerationOutput"),
    **_each("generate", "LLM(model).generate(prompt)"),
}

# Names of attributes of an output.
OUTPUT = {
    "choices": "out.text; out.outputs of several",
    "generated_text": "out.text",
    "response": "out.text",
    "eval_count": "out.usage.completion_tokens",
    "prompt_eval_count": "out.usage.prompt_tokens",
    "content": "out.text; llm.chat gives it apart from thinking",
    **_each("thinking tool_calls", "llm.chat gives it"),
    **_each("reasoning reasoning_content", "out.thinking, which llm.chat gives"),
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
    """Returns the way out behind an unknown name: Quire's word for it, else the most similar of the `known` ones, else
    nothing."""
    for words in habits:
        if name in words:
            word = words[name]
            return f"; {word}" if word == _NOT_THERE else f"; Quire's word is {word}"
    similar = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    return f"; did you mean {similar[0]}?" if similar else ""


def unknown_sampling(name: str, known: list[str]) -> str:
    """Returns the message for a field that SamplingParams does not have."""
    return f"unknown sampling parameter {name!r}{hint(name, known, SAMPLING)}"


def refused_sampling(name: str, value: Any, kind: str, is_of_kind: bool) -> str:
    """Returns the refusal of a value that a field of SamplingParams cannot hold."""
    if is_of_kind:
        return f"sampling parameter {name!r} cannot be {reprlib.repr(value)}; it is out of range"
    if name == "max_tokens" and value is None:
        return f"sampling parameter {name!r} cannot be None; give a number: what is beyond the model's context is cut"
    return f"sampling parameter {name!r} cannot be {reprlib.repr(value)}; it takes {kind}"


def sampling_attribute(name: str, known: list[str], change: bool) -> str:
    """Returns the refusal of an attribute that SamplingParams does not have, or does not let change."""
    if not change or name not in known:
        return f"SamplingParams has no {name!r}{hint(name, [*known, 'replace', 'to_dict'], SAMPLING)}"
    return f"SamplingParams are immutable; {name!r} stays as it is: params.replace({name}=...) is a changed copy"


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


def names_first(call: Call) -> Call:
    """Wraps a call so that, without its first argument, the keyword that was given in its place is named."""
    known = [name for name, each in inspect.signature(call).parameters.items() if each.kind is not each.VAR_KEYWORD]
    first = known[1]

    @functools.wraps(call)
    def checked(self: Any, *args: Any, **named: Any) -> Any:
        if not args and first not in named:
            for name in named:
                if name not in known and name in CALLS:
                    refuse_keyword(call.__name__, name, known[1:], CALLS)
        return call(self, *args, **named)

    return checked  # type: ignore[return-value]


class Named(type):
    """A metaclass that names the nearest right word for an attribute that the class does not have, as its objects do."""

    _class_habits: dict[str, str] = {}

    if not TYPE_CHECKING:

        def __getattr__(cls, name: str) -> NoReturn:
            known = [each for each in dir(cls) if not each.startswith("_")]
            near = "" if name.startswith("_") else hint(name, known, cls._class_habits)
            raise AttributeError(f"{cls.__name__!r} has no attribute {name!r}{near}", name=name, obj=cls)


def missing_attribute(owner: object, name: str, habits: dict[str, str]) -> NoReturn:
    """Raises the AttributeError for a name that an object does not have."""
    known = [each for each in dir(type(owner)) if not each.startswith("_")]
    raise AttributeError(f"{type(owner).__name__!r} has no attribute {name!r}{hint(name, known, habits)}", name=name, obj=owner)
