"""Measures torch's fused attention on the cases of attention_gpu_bench, on the same GPU.

    python3 bench/gpu/torch_attention.py

Contiguous keys and values, each request its own (torch has no paging and no sharing), random bf16, 32 query
heads, 8 KV heads of 128. Medians over CUDA graphs; a large buffer is written in between, so that keys are not
found in the second-level cache.
"""

import statistics
import time

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention as attend

HEADS, KV_HEADS, DIM = 32, 8, 128
BACKENDS = {"flash": SDPBackend.FLASH_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION}
ROUNDS = 15
REST_SECONDS = 0.2  # before each case, as in attention_gpu_bench


def microseconds(call, flush):
    """Returns the median of graph launches of `call`."""
    for _ in range(3):
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    times = []
    for _ in range(ROUNDS):
        flush.add_(1)
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end) * 1e3)
    return statistics.median(times)


def tensors(batch, queries, tokens):
    def random(heads, rows):
        return torch.rand(batch, heads, rows, DIM, device="cuda", dtype=torch.bfloat16) * 2 - 1

    return random(HEADS, queries), random(KV_HEADS, tokens), random(KV_HEADS, tokens)


def measure(name, batch, queries, tokens):
    q, k, v = tensors(batch, queries, tokens)
    flush = torch.zeros(64 << 20, device="cuda", dtype=torch.int32)
    pairs = queries * (queries + 1) / 2 if queries > 1 else tokens
    flops = 4 * batch * HEADS * DIM * pairs
    for backend, kind in BACKENDS.items():
        time.sleep(REST_SECONDS)
        try:
            with sdpa_kernel(kind):
                us = microseconds(lambda: attend(q, k, v, is_causal=queries > 1, enable_gqa=True), flush)
        except RuntimeError as error:
            print(f"{name:24} {backend:6} refused: {str(error).splitlines()[0]}")
            continue
        print(f"{name:24} {backend:6} {us:10.1f} us {flops / us * 1e-6:7.0f} TFLOP/s")


def main():
    print(torch.cuda.get_device_name(), "torch", torch.__version__)
    cases = [(64, 8192), (16, 8192), (256, 128), (64, 1024), (1, 1024), (1, 8192), (1, 32768)]
    for batch, tokens in cases:
        measure(f"{batch} x {tokens}", batch, 1, tokens)
    for tokens in (8192, 32768):
        measure(f"prefill {tokens}", 1, tokens, tokens)


if __name__ == "__main__":
    main()
