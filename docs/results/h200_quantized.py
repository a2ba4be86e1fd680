"""Products of packed weights beyond few rows against PyTorch's BF16 in the same run, on the GPU that is there.

    python3 docs/results/h200_quantized.py path/to/roofline OUT_FOLDER [--floors]

Six shapes of 50 to 120 M weights, 16 to 1024 rows. Both sides replay CUDA graphs over copies of the weights past 2.5 times
the L2 cache, on random numbers; medians. Every one of ours is checked against float64 by the program before it is timed.
PyTorch is timed before and after ours, and the faster of the two counts. Writes quantized.csv, and prints what was asked for
beside what was found.
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

ROOFLINE, OUT = sys.argv[1], sys.argv[2]
os.makedirs(OUT, exist_ok=True)
SHAPES = [(28672, 4096), (14336, 4096), (4096, 14336), (8192, 8192), (13824, 5120), (5120, 13824)]
ROWS = [16, 32, 64, 128, 256, 1024]
EIGHT = {16: 1.8, 32: 1.7, 64: 1.5, 128: 1.1, 256: 0.95, 1024: 0.95}
FLOORS = {"w4a16": {16: 2.9, 32: 2.4, 64: 1.7, 128: 1.15, 256: 0.9, 1024: 0.9}, "w8a16": EIGHT, "fp8a16": EIGHT,
          "fp8": {64: 1.0, 128: 1.0, 256: 1.0}}
OTHERS = [] if "--floors" in sys.argv else ["nf4", "mxfp4a16", "nvfp4a16", "int4-g128-zp/bf16"]
L2 = torch.cuda.get_device_properties(0).L2_cache_size
torch.manual_seed(0)
config = tempfile.mkdtemp()


def ours(m, n, k, precisions):
    """The program's measurements by precision, and what it said where it has none."""
    command = [ROOFLINE, "measure", "gemm", "--m", str(m), "--n", str(n), "--k", str(k), "--precision", ",".join(precisions), "--backend", "cuda",
               "--json", "--quick"]
    done = subprocess.run(command, env=dict(os.environ, ROOFLINE_CONFIG_DIR=config), capture_output=True, text=True)
    if done.returncode:
        print("failed:", " ".join(command), done.stderr.strip(), file=sys.stderr)
        return {}
    answer = json.loads(done.stdout)
    for skipped in answer.get("skipped", []):
        print("skipped:", skipped, file=sys.stderr)
    return {row["precision"]: row for row in answer["measurements"]}


def timed(calls, repeats=9):
    """Median time of one call in microseconds, all calls in one graph; sixteen at least, so that its start does not count."""
    calls = calls * math.ceil(16 / len(calls))
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for call in calls[:2]:
            call()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            for call in calls:
                call()
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
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


rows, met = [], []
for n, k in SHAPES:
    weights = [(torch.randn(n, k, device="cuda") / k**0.5).bfloat16() for _ in range(max(2, math.ceil(2.5 * L2 / (2 * n * k))))]
    inputs = {m: torch.randn(m, k, device="cuda", dtype=torch.bfloat16) for m in ROWS}
    theirs = lambda m: timed([lambda w=w: F.linear(inputs[m], w) for w in weights])
    before = {m: theirs(m) for m in ROWS}
    measured = {m: ours(m, n, k, [*FLOORS, *(OTHERS if m in (32, 64, 256) else [])]) for m in ROWS}
    for m in ROWS:
        base = min(before[m], theirs(m))
        for precision, row in measured[m].items():
            rows.append(dict(m=m, n=n, k=k, precision=precision, us=row["measured_time_us"], p5=row["p5_us"], p95=row["p95_us"], off=row["check_error"],
                             kernel=row["kernel"], torch_bf16_us=base, times=base / row["measured_time_us"]))
    del weights, inputs
    torch.cuda.empty_cache()

with open(os.path.join(OUT, "quantized.csv"), "w", newline="") as file:
    writer = csv.DictWriter(file, rows[0])
    writer.writeheader()
    writer.writerows({key: f"{value:.4g}" if isinstance(value, float) else value for key, value in row.items()} for row in rows)

for precision in [*FLOORS, *OTHERS]:
    for m in ROWS:
        found = {f"{row['n']}x{row['k']}": round(row["times"], 2) for row in rows if (row["precision"], row["m"]) == (precision, m)}
        floor = FLOORS.get(precision, {}).get(m)
        if not found:
            continue
        word = "      " if floor is None else "met   " if min(found.values()) >= floor else "MISSED"
        met += [] if floor is None else [min(found.values()) >= floor]
        print(word, precision, m, "rows, asked", floor, "|", " ".join(f"{shape} {times}" for shape, times in found.items()))
print(sum(met), "of", len(met), "met;", torch.cuda.get_device_name(), torch.__version__)
