#!/usr/bin/env python3
"""Times matrix products with PyTorch on this machine's NVIDIA GPU and prints them as JSON.

Written by `roofline export --python`. Operations and bytes of each product are those of roofline's own model of it, at
exact stored sizes; nothing is computed here but rates from measured times. To set theory beside the answer:

    python3 THIS_FILE > measured.json
    roofline compare --measured measured.json --on DEVICE

Weights are read from memory: calls go through as many copies of them as do not fit the cache. A row of calls is captured
in a CUDA graph, because small products take less time than Python takes to ask for them; after a warm-up its replays are
timed by CUDA events, and the median is reported.
"""

import json
import statistics
import sys

import torch

HARDWARE_KEY = json.loads(r'''@KEY@''')
# The names by which that device's driver reports it; empty where it is not known.
REPORTED = json.loads(r'''@REPORTED@''')
CASES = json.loads(r'''@CASES@''')

ROW_SECONDS = 2e-3
ROWS = 30
WARM_UP_SECONDS = 0.1


def cache_bytes():
    properties = torch.cuda.get_device_properties(0)
    return getattr(properties, "L2_cache_size", 0) or 128 << 20


def operands(case):
    """One call per copy of the weights."""
    m, n, k, precision = case["m"], case["n"], case["k"], case["precision"]
    wide = {"FP32": torch.float32, "TF32": torch.float32, "FP16": torch.float16, "BF16": torch.bfloat16}
    width = {"FP32": 4, "TF32": 4, "FP16": 2, "BF16": 2, "FP8_E4M3": 1, "INT8": 1}[precision]
    copies = 1 if case["warm"] else max(2, -(-4 * cache_bytes() // (n * k * width)))
    torch.backends.cuda.matmul.allow_tf32 = precision == "TF32"
    calls = []
    if precision in wide:
        x = torch.randn(m, k, device="cuda").to(wide[precision])
        for _ in range(copies):
            w = torch.randn(n, k, device="cuda").to(wide[precision])
            calls.append(lambda w=w: torch.nn.functional.linear(x, w))
    elif precision == "FP8_E4M3":
        x = torch.randn(m, k, device="cuda").to(torch.float8_e4m3fn)
        one = torch.ones((), device="cuda")
        for _ in range(copies):
            w = torch.randn(n, k, device="cuda").to(torch.float8_e4m3fn)
            calls.append(lambda w=w: torch._scaled_mm(x, w.t(), scale_a=one, scale_b=one, out_dtype=torch.bfloat16))
    else:
        x = torch.randint(-127, 128, (m, k), device="cuda", dtype=torch.int8)
        for _ in range(copies):
            w = torch.randint(-127, 128, (n, k), device="cuda", dtype=torch.int8)
            calls.append(lambda w=w: torch._int_mm(x, w.t()))
    return calls


def captured(calls, count):
    """What replays `count` calls, one copy of the weights after the other."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for at in range(count):
            calls[at % len(calls)]()
    return graph.replay


def timed(row):
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    row()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / 1e3


def seconds(calls):
    """Of one call."""
    for call in calls:
        call()
    torch.cuda.synchronize()
    count = len(calls)
    each = timed(captured(calls, count)) / count
    count *= max(1, int(ROW_SECONDS / each) // count)
    row = captured(calls, count)
    spent = 0.0
    while spent < WARM_UP_SECONDS:
        spent += timed(row)
    return statistics.median(timed(row) for _ in range(ROWS)) / count


def main():
    if not torch.cuda.is_available():
        sys.exit("PyTorch sees no CUDA GPU here")
    name = torch.cuda.get_device_name(0)
    if REPORTED and name not in REPORTED:
        sys.exit(f"this is for {HARDWARE_KEY}, and the GPU here is {name}: export it again with another --on, or without")
    results = []
    for case in CASES:
        words = f"{case['kernel_type']} {case['m']} x {case['n']} x {case['k']} {case['precision']}"
        try:
            time = seconds(operands(case))
        except (RuntimeError, AttributeError, NotImplementedError) as error:
            print(f"skipped: {words}: {str(error).splitlines()[0]}", file=sys.stderr)
            continue
        results.append(
            {
                "kernel_type": case["kernel_type"],
                "shape": [case["n"], case["k"]] if case["kernel_type"] == "gemv" else [case["m"], case["n"], case["k"]],
                "precision": case["precision"],
                "measured_time_us": time * 1e6,
                "measured_tflops": case["flops"] / time / 1e12,
                "measured_bandwidth_gb_s": case["bytes"] / time / 1e9,
                "ai": case["flops"] / case["bytes"],
            }
        )
        torch.cuda.empty_cache()
    facts = {"gpu": name, "torch": torch.__version__, "cuda": torch.version.cuda}
    print(json.dumps({"hardware_key": HARDWARE_KEY, "environment": facts, "benchmarks": results}, indent=1))


if __name__ == "__main__":
    main()
