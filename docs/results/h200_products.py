#!/usr/bin/env python3
"""Times the matrix products of a Llama-3 8B layer in BF16 with PyTorch, for the measured points of `roofline plot`.

    python3 h200_products.py 1 > decode.csv
    python3 h200_products.py 512 > prefill.csv

Weights are rotated through more than 1 GB, so that none is left in L2; a CUDA graph holds one product per copy, so that
launches cost what they cost inside a graph; events time the replay; the median of 30 replays counts. Intensity counts each
operand once: 2 (mk + nk + mn) bytes.
"""

import statistics
import sys

import torch

SITES = {"qkv_proj": (6144, 4096), "o_proj": (4096, 4096), "gate_up_proj": (28672, 4096), "down_proj": (4096, 14336)}


def microseconds(m, n, k):
    copies = max(3, -(-(1 << 30) // (2 * n * k)))
    weights = [torch.randn(n, k, device="cuda", dtype=torch.bfloat16) * 0.02 for _ in range(copies)]
    x = torch.randn(m, k, device="cuda", dtype=torch.bfloat16)
    y = torch.empty(m, n, device="cuda", dtype=torch.bfloat16)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for weight in weights:
            torch.matmul(x, weight.t(), out=y)
    torch.cuda.synchronize()
    reference = x.double() @ weights[-1].double().t()
    error = ((y.double() - reference).norm() / reference.norm()).item()
    assert error < 1e-2, f"wrong by {error}"
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        for weight in weights:
            torch.matmul(x, weight.t(), out=y)
    times = []
    for replay in range(40):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        if replay >= 10:
            times.append(start.elapsed_time(end) * 1e3 / copies)
    return statistics.median(times)


def main(m):
    print("label,precision,m,n,k,time_us,ai,tflops")
    for site, (n, k) in SITES.items():
        time = microseconds(m, n, k)
        flops, moved = 2 * m * n * k, 2 * (m * k + n * k + m * n)
        print(f"{site},bf16,{m},{n},{k},{time:.2f},{flops / moved:.4f},{flops / time / 1e6:.4f}", flush=True)


main(int(sys.argv[1]))
