"""Quire beside transformers on one GPU: the same shape, random weights in the same 16-bit type, in one run.

    python3 bench/gpu/peers.py [--quire build/release/apps/cli/quire] [--model llama-3.1-8b] [--dtype bfloat16]

Decode at batch 1 behind 1k tokens, and a prefill of 8k. Quire's side is its own `quire bench`; transformers
computes with torch's fused attention (sdpa): step by step as `generate` does, and with a static cache and static
inputs as a CUDA graph, which is the least that its kernels can take. Figures are medians; 1.00 is Quire's fast way.
"""

import argparse
import importlib.util
import inspect
import json
import statistics
import subprocess

import torch
import transformers

SHAPES = {
    "llama-3.1-8b": {"hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "head_dim": 128},
    "llama-3.2-1b": {"hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16, "head_dim": 64,
                     "tie_word_embeddings": True},
}
PREFILL, DEPTH, STEPS, ROUNDS = 8192, 1024, 64, 5


def quire_rates(args, deterministic):
    """Returns tokens per second of (decode, prefill), from the command's records."""
    command = [args.quire, "bench", f"preset:{args.model}", "--device", "cuda", "--dtype", args.dtype,
               "--kv-budget", "auto", "--max-batch-tokens", str(PREFILL), "--repeat", str(ROUNDS), "--generate",
               str(STEPS), "--format", "json"]
    if not deterministic:
        command.append("--not-deterministic")

    command += ["--prompt", str(PREFILL), "--depth", f"0,{DEPTH}"]
    records = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)

    def rate(metric, depth):
        return next(each["tokens_per_second"] for each in records
                    if (each["metric"], each["depth_tokens"]) == (metric, depth))

    return rate("decode", DEPTH), rate("prefill", 0)


def make_model(args):
    config = transformers.LlamaConfig(
        vocab_size=128256, num_attention_heads=32, num_key_value_heads=8, max_position_embeddings=131072,
        rope_theta=500000.0, **SHAPES[args.model])
    with torch.device("cuda"):
        model = transformers.AutoModelForCausalLM.from_config(
            config, dtype=getattr(torch, args.dtype), attn_implementation="sdpa")
    return config, model.eval()


def ids(count):
    return torch.randint(0, 128000, (1, count), device="cuda")


def milliseconds(work):
    """Returns the median of `work` on the GPU's clock."""
    times = []
    for _ in range(ROUNDS + 1):  # the first one is not counted
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        work()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end))
    return statistics.median(times[1:])


def prefill_rate(model):
    prompt = ids(PREFILL)
    return PREFILL / milliseconds(lambda: model(input_ids=prompt, use_cache=True, logits_to_keep=1)) * 1e3


def decode_rate(model):
    """Decodes step by step, each with the token of the one before."""
    def steps():
        output = model(input_ids=prompt, use_cache=True, logits_to_keep=1)
        torch.cuda.synchronize()
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        for _ in range(STEPS):
            token = output.logits[:, -1:].argmax(-1)
            output = model(input_ids=token, past_key_values=output.past_key_values, use_cache=True)
        end.record()
        torch.cuda.synchronize()
        return start.elapsed_time(end) / STEPS

    prompt = ids(DEPTH)
    steps()
    return 1e3 / statistics.median(steps() for _ in range(ROUNDS))


def graph_decode_rate(config, model):
    """Decodes one step with a static cache and static inputs, as a CUDA graph."""
    cache = transformers.StaticCache(config=config, max_cache_len=DEPTH + STEPS)
    inputs = {"past_key_values": cache, "use_cache": True}
    positions = "cache_position" in inspect.signature(model.forward).parameters

    def forward(tokens, first):
        if positions:
            inputs["cache_position"] = torch.arange(first, first + tokens.shape[1], device="cuda")
        return model(input_ids=tokens, logits_to_keep=1, **inputs)

    forward(ids(DEPTH), 0)
    token = ids(1)
    if positions:
        inputs["cache_position"] = torch.full((1,), DEPTH, device="cuda")

    def step():
        return model(input_ids=token, **inputs).logits.argmax(-1)

    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        step()
    return 1e3 / milliseconds(graph.replay)


def measured(call, *args):
    """Returns the figure, or why there is none: a peer's failure is no failure of this program."""
    try:
        with torch.inference_mode():
            return call(*args)
    except Exception as error:  # whatever another library throws
        print(f"{call.__name__}: {type(error).__name__}: {str(error).splitlines()[0][:200]}", flush=True)
        return None


def print_row(name, decode, prefill, base):
    def cell(value, other):
        return f"{value:10.0f} {value / other:6.2f}" if value else f"{'-':>10} {'':6}"

    print(f"{name:44} {cell(decode, base[0])} {cell(prefill, base[1])}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quire", default="build/release/apps/cli/quire", help="the command, built with CUDA")
    parser.add_argument("--model", default="llama-3.1-8b", choices=SHAPES)
    parser.add_argument("--dtype", default="bfloat16", choices=["bfloat16", "float16"])
    args = parser.parse_args()
    base = quire_rates(args, deterministic=False)
    print(f"{torch.cuda.get_device_name()}, {args.model}'s shape, {args.dtype}; tokens/s, and times Quire's fast way")
    print(f"{'':44} {f'decode, behind {DEPTH}':>17} {f'prefill {PREFILL}':>17}")
    print_row("quire, fast", *base, base)
    print_row("quire, deterministic", *quire_rates(args, deterministic=True), base)
    config, model = make_model(args)
    name = f"transformers {transformers.__version__} (torch {torch.__version__.split('+')[0]}"
    print_row(f"{name}, sdpa)", measured(decode_rate, model), measured(prefill_rate, model), base)
    print_row(f"{name}, CUDA graph)", measured(graph_decode_rate, config, model), None, base)
    there = importlib.util.find_spec("flashinfer") is not None
    print(f"{'FlashInfer':44} {'present, not measured by this program' if there else 'not present'}")


if __name__ == "__main__":
    main()
