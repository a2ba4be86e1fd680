"""Attention of prompts and of one new token against PyTorch in the same run, on the GPU that is there.

    python3 docs/results/h200_attention.py path/to/roofline OUT_FOLDER [--decode]

Prompts of 2k, 8k and 32k tokens with the heads of Llama 3 8B (32 of 128 features, 8 of keys and values), short chunks after
long contexts, other widths; then (with --decode, only) one new token per sequence over caches in BF16 and FP8. PyTorch's
scaled_dot_product_attention runs by cuDNN and by its own flash kernel, which takes keys repeated for every query head and no
chunks. Both sides replay CUDA graphs; medians. Every one of ours is checked against float64 by the program before it is
timed. PyTorch is timed before and after ours, and the faster of the two counts. Operations of a causal prompt count by half.
Writes attention.csv, and prints what was asked for beside what was found.
"""

import csv
import json
import math
import os
import subprocess
import sys
import tempfile

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

ROOFLINE, OUT = sys.argv[1], sys.argv[2]
# Sequences, heads, heads of keys, features, new tokens, tokens before them.
PROMPTS = [(1, 32, 8, 128, 2048, 0), (1, 32, 8, 128, 8192, 0), (1, 32, 8, 128, 32768, 0), (8, 32, 8, 128, 1024, 0), (1, 32, 8, 64, 8192, 0),
           (1, 16, 8, 256, 8192, 0), (1, 32, 32, 96, 8192, 0), (1, 32, 8, 128, 64, 8192), (1, 32, 8, 128, 512, 8192)]
DECODES = [(1, 32, 8, 131072, 128), (8, 32, 8, 16384, 128), (64, 32, 8, 4096, 128), (256, 32, 8, 1024, 128), (16, 64, 8, 16384, 128)]
SHARE, RATIO = 0.75, 1.7
BACKENDS = {"cudnn": SDPBackend.CUDNN_ATTENTION, "flash": SDPBackend.FLASH_ATTENTION}
L2 = torch.cuda.get_device_properties(0).L2_cache_size
torch.manual_seed(0)
config = tempfile.mkdtemp()


def ours(batch, heads, kv_heads, size, new, before, precisions):
    """The program's measurements by precision, and what it said where it has none."""
    shape = dict(batch=batch, heads=heads, kv_heads=kv_heads, head_dim=size, queries=new, context=new + before)
    command = [ROOFLINE, "measure", "attention", *(word for name, value in shape.items() for word in ("--" + name.replace("_", "-"), str(value))),
               "--precision", ",".join(precisions), "--backend", "cuda", "--json", "--quick"]
    done = subprocess.run(command, env=dict(os.environ, ROOFLINE_CONFIG_DIR=config), capture_output=True, text=True)
    if done.returncode:
        print("failed:", " ".join(command), done.stderr.strip(), file=sys.stderr)
        return {}
    answer = json.loads(done.stdout)
    for skipped in answer.get("skipped", []):
        print("skipped:", skipped, file=sys.stderr)
    return {row["precision"]: row for row in answer["measurements"]}


def timed(calls, repeats=9):
    """Median time of one call in microseconds, all calls in one graph of a few milliseconds."""
    stream = torch.cuda.Stream()
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    with torch.cuda.stream(stream):
        calls[0]()
        start.record(stream)
        calls[0]()
        end.record(stream)
        end.synchronize()
        calls = calls * math.ceil(min(16, 5 / start.elapsed_time(end)) / len(calls))
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            for call in calls:
                call()
        for _ in range(3):
            graph.replay()
        torch.cuda.synchronize()
        samples = []
        for _ in range(repeats):
            start.record(stream)
            graph.replay()
            end.record(stream)
            end.synchronize()
            samples.append(start.elapsed_time(end) * 1e3 / len(calls))
    del graph
    torch.cuda.empty_cache()
    return sorted(samples)[len(samples) // 2]


def theirs(backend, calls):
    """None where PyTorch has no such kernel."""
    try:
        with sdpa_kernel(backend):
            return timed(calls)
    except RuntimeError:
        return None


def numbers(*shape):
    return torch.randn(*shape, device="cuda", dtype=torch.bfloat16)


rows, met = [], []


def add(kind, shape, precision, row, flops, read, other):
    time = row["measured_time_us"]
    best = {f"{name}_us": value if value else math.nan for name, value in other.items()}
    rows.append(dict(op=kind, shape="x".join(map(str, shape)), precision=precision, us=time, p5=row["p5_us"], p95=row["p95_us"], tflops=flops / time / 1e6,
                     gb_s=read / time / 1e3, off=row["check_error"], kernel=row["kernel"], **best))


def asked(good, *words):
    met.append(good)
    print("met   " if good else "MISSED", *words)


for batch, heads, kv_heads, size, new, before in [] if "--decode" in sys.argv else PROMPTS:
    q = numbers(batch, heads, new, size)
    # Keys for every query head: not all of PyTorch's kernels take fewer. Their own mask for chunks is another shape.
    k, v = (numbers(batch, kv_heads, new, size).repeat_interleave(heads // kv_heads, 1) for _ in range(2))
    call = lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True)
    run = lambda: {name: None if before else theirs(backend, [call]) for name, backend in BACKENDS.items()}
    first = run()
    measured = ours(batch, heads, kv_heads, size, new, before, ["bf16", "fp16", "bf16/bf16/fp8"])
    second = run()
    other = {name: min(first[name], second[name]) if first[name] and second[name] else None for name in BACKENDS}
    flops = 4 * batch * heads * size * new * (before + new / 2)
    for precision, row in measured.items():
        add("prompt", (batch, heads, kv_heads, size, new, before), precision, row, flops, 4 * batch * kv_heads * (new + before) * size, other)
    if "bf16" in measured and other["cudnn"]:
        time = measured["bf16"]["measured_time_us"]
        asked(other["cudnn"] / time >= SHARE, f"{batch}x{heads}x{kv_heads}x{size}, {new} tokens: {flops / time / 1e6:.0f} TFLOP/s, {other['cudnn'] / time:.2f} of cuDNN's speed,",
              f"asked {SHARE}; flash {other['flash'] / time if other['flash'] else math.nan:.2f}")
    del q, k, v
    torch.cuda.empty_cache()

for batch, heads, kv_heads, context, size in DECODES:
    measured = ours(batch, heads, kv_heads, size, 1, context - 1, ["bf16", "bf16/bf16/fp8", "bf16/bf16/int8"])
    read = 4 * batch * kv_heads * context * size
    q = numbers(batch, heads, 1, size)
    caches = [(numbers(batch, kv_heads, context, size), numbers(batch, kv_heads, context, size)) for _ in range(max(2, math.ceil(2.5 * L2 / read)))]
    other = timed([lambda k=k, v=v: F.scaled_dot_product_attention(q, k, v, enable_gqa=heads != kv_heads) for k, v in caches])
    for precision, row in measured.items():
        narrow = precision != "bf16"
        add("decode", (batch, heads, kv_heads, context, size), precision, row, 4 * batch * heads * size * context, read / 2 if narrow else read, {"default": other})
    if "bf16" in measured and "bf16/bf16/fp8" in measured:
        times = measured["bf16"]["measured_time_us"] / measured["bf16/bf16/fp8"]["measured_time_us"]
        asked(times >= RATIO, f"{batch}x{heads}x{kv_heads}x{size} over {context}: FP8 {times:.2f} times as fast as BF16, asked {RATIO}")
    del q, caches
    torch.cuda.empty_cache()

names = list(dict.fromkeys(name for row in rows for name in row))
with open(os.path.join(OUT, "attention.csv"), "w", newline="") as file:
    writer = csv.DictWriter(file, names)
    writer.writeheader()
    writer.writerows({key: f"{value:.4g}" if isinstance(value, float) else value for key, value in row.items()} for row in rows)
print(sum(met), "of", len(met), "met;", torch.cuda.get_device_name(), torch.__version__)
