"""Our kernels against PyTorch's in the same run, on the GPU that is there.

    python3 docs/results/h200_kernels.py path/to/roofline OUT_FOLDER

Thin products (M = 1) of every stored format, products of many rows, decode attention. Both sides replay CUDA graphs over
copies of the weights past 2.5 times the L2 cache, on random numbers. Every one of ours is checked against float64 by the
program before it is timed. Writes kernels.csv, and prints what was asked for beside what was found.
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
QUICK = "--quick" in sys.argv
SHAPES = [(1024, 1024), (2048, 2048), (896, 4864), (1536, 8960), (2560, 9728), (3072, 8192), (4096, 4096), (5120, 5120), (6144, 4096),
          (4096, 11008), (11008, 4096), (4096, 14336), (13824, 5120), (8192, 8192), (28672, 4096), (8192, 28672), (57344, 8192), (128256, 4096)]
THIN = ["fp16", "bf16", "w8a16", "fp8a16", "w4a16", "nf4", "mxfp4a16", "nvfp4a16", "int8", "fp8"]
WEIGHT_ONLY = {"w8a16": 8, "fp8a16": 8, "w4a16": 4.125, "nf4": 4.5, "mxfp4a16": 4.25, "nvfp4a16": 4.5}
MANY = [(128, 4096, 4096), (128, 28672, 4096), (256, 14336, 4096), (512, 4096, 14336), (512, 8192, 8192), (1024, 5120, 5120), (1024, 11008, 4096),
        (2048, 4096, 4096), (2048, 28672, 4096), (4096, 8192, 8192), (4096, 4096, 14336), (8192, 4096, 4096), (8192, 8192, 8192)]
DECODE = [(1, 32, 8, 32768, 128), (8, 32, 8, 8192, 128), (64, 32, 8, 2048, 128), (64, 32, 8, 8192, 128), (16, 64, 8, 16384, 128), (8, 32, 32, 8192, 128),
          (32, 32, 32, 4096, 128), (1, 32, 8, 2048, 128), (1, 8, 1, 4096, 256), (16, 28, 4, 8192, 128)]
L2 = torch.cuda.get_device_properties(0).L2_cache_size
device = "cuda"
torch.manual_seed(0)
rows = []
config = tempfile.mkdtemp()


def ours(arguments):
    """The program's measurements as JSON, by precision; what it does not support is left out."""
    environment = dict(os.environ, ROOFLINE_CONFIG_DIR=config)
    command = [ROOFLINE, "measure", *arguments, "--backend", "cuda", "--json"] + (["--quick"] if QUICK else [])
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode:
        print("failed:", " ".join(command), done.stderr.strip(), file=sys.stderr)
        return {}
    return {row["precision"]: row for row in json.loads(done.stdout)["measurements"]}


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


def copies(size):
    return max(2, math.ceil(2.5 * L2 / size))


def linear(m, n, k, kind):
    weight = lambda dtype: (torch.randn(n, k, device=device, dtype=torch.float32) / k**0.5).to(dtype)
    count = copies(n * k * {"bf16": 2, "fp16": 2, "int4": 0.5}.get(kind, 1))
    if kind in ("bf16", "fp16"):
        dtype = torch.bfloat16 if kind == "bf16" else torch.float16
        x, all = torch.randn(m, k, device=device, dtype=dtype), [weight(dtype) for _ in range(count)]
        return timed([lambda w=w: F.linear(x, w) for w in all])
    if kind == "fp8":
        x, one = torch.randn(m, k, device=device).to(torch.float8_e4m3fn), torch.ones((), device=device)
        all = [(weight(torch.float32) * k**0.5).to(torch.float8_e4m3fn) for _ in range(count)]
        return timed([lambda w=w: torch._scaled_mm(x, w.t(), scale_a=one, scale_b=one, out_dtype=torch.bfloat16) for w in all])
    if kind == "fp8_rows":
        x, one = torch.randn(m, k, device=device).to(torch.float8_e4m3fn), torch.ones(m, 1, device=device)
        other = torch.ones(1, n, device=device)
        all = [(weight(torch.float32) * k**0.5).to(torch.float8_e4m3fn) for _ in range(count)]
        return timed([lambda w=w: torch._scaled_mm(x, w.t(), scale_a=one, scale_b=other, out_dtype=torch.bfloat16) for w in all])
    if kind == "int8":
        make = lambda *size: torch.randint(-127, 128, size, device=device, dtype=torch.int8)
        x, all = make(m, k), [make(n, k) for _ in range(count)]
        return timed([lambda w=w: torch._int_mm(x, w.t()) for w in all])
    x = torch.randn(m, k, device=device, dtype=torch.bfloat16)
    all = []
    for _ in range(count):
        codes = torch.randint(0, 256, (n, k // 2), device=device, dtype=torch.uint8)
        all.append((torch._convert_weight_to_int4pack(codes, 8), torch.randn(k // 128, n, 2, device=device, dtype=torch.bfloat16) * 0.01))
    return timed([lambda w=w, s=s: torch._weight_int4pack_mm(x, w, 128, s) for w, s in all])


def add(op, shape, precision, row, theirs, name):
    rows.append(dict(op=op, shape="x".join(map(str, shape)), precision=precision, us=row["measured_time_us"], p5=row["p5_us"], p95=row["p95_us"],
                     gb_s=row["measured_bandwidth_gb_s"], tflops=row["measured_tflops"], off=row["check_error"], kernel=row["kernel"], torch=name, torch_us=theirs))


saturated = json.loads(subprocess.run([ROOFLINE, "measure", "--saturate", "--quick", "--backend", "cuda", "--json"],
                                      env=dict(os.environ, ROOFLINE_CONFIG_DIR=config), capture_output=True, text=True).stdout)
ceilings = {c["stream"]["name"]: c["stream"]["rate"] for c in saturated["saturation"]["ceilings"] if "stream" in c}
READ = ceilings["read"]
print("ceilings", {name: f"{rate / 1e12:.3f} TB/s" for name, rate in ceilings.items()}, [c["launch"] for c in saturated["saturation"]["ceilings"] if "launch" in c])

thin, base, packed = {}, {}, {}
for n, k in SHAPES:
    base[n, k] = {kind: linear(1, n, k, kind) for kind in ("bf16", "fp16")}
    packed[n, k] = linear(1, n, k, "int4")
    thin[n, k] = ours(["gemv", "--n", str(n), "--k", str(k), "--precision", ",".join(THIN)])
    again = linear(1, n, k, "bf16")
    base[n, k]["bf16"] = min(base[n, k]["bf16"], again)
    for precision, row in thin[n, k].items():
        kind = "fp16" if precision == "fp16" else "bf16"
        add("gemv", (1, n, k), precision, row, base[n, k][kind], f"linear {kind}")
    add("gemv", (1, n, k), "w4a16", thin[n, k]["w4a16"], packed[n, k], "_weight_int4pack_mm")

many = {}
for m, n, k in MANY:
    tensor = "fp8-e4m3-tensor/fp8-e4m3-tensor"
    measured = ours(["gemm", "--m", str(m), "--n", str(n), "--k", str(k), "--precision", f"fp16,bf16,fp8,{tensor}"])
    sums = ours(["gemm", "--m", str(m), "--n", str(n), "--k", str(k), "--precision", "int8", "--output", "accumulator"])
    pairs = [("fp16", "fp16", measured), ("bf16", "bf16", measured), (tensor, "fp8", measured), ("fp8", "fp8_rows", measured), ("int8", "int8", sums)]
    for precision, kind, all in pairs:
        if precision in all:
            theirs = linear(m, n, k, kind)
            many.setdefault(kind, []).append(all[precision]["measured_time_us"] / theirs)
            add("gemm", (m, n, k), precision, all[precision], theirs, kind)

decode = []
for batch, heads, kv_heads, context, size in DECODE:
    shape = ["--batch", batch, "--heads", heads, "--kv-heads", kv_heads, "--head-dim", size, "--context", context]
    measured = ours(["attention", *map(str, shape), "--precision", "bf16,bf16/bf16/fp8"])
    q = torch.randn(batch, heads, 1, size, device=device, dtype=torch.bfloat16)
    cache = lambda: torch.randn(batch, kv_heads, context, size, device=device, dtype=torch.bfloat16)
    read = 2 * batch * kv_heads * context * size * 2
    theirs = timed([lambda k=k, v=v: F.scaled_dot_product_attention(q, k, v, enable_gqa=heads != kv_heads)
                    for k, v in [(cache(), cache()) for _ in range(min(copies(read), 64))]])
    for precision, row in measured.items():
        decode.append((read * (0.5 if precision.endswith("fp8") else 1), row, (batch, heads, kv_heads, context, size), precision))
        add("decode", (batch, heads, kv_heads, context, size), precision, row, theirs, "scaled_dot_product_attention bf16")

with open(os.path.join(OUT, "kernels.csv"), "w", newline="") as file:
    writer = csv.DictWriter(file, rows[0])
    writer.writeheader()
    writer.writerows({key: f"{value:.4g}" if isinstance(value, float) else value for key, value in row.items()} for row in rows)

checks = []


def check(what, met, found):
    checks.append((what, met, found))
    print("met   " if met else "MISSED", what, "|", found)


time = lambda shape, precision: thin[shape][precision]["measured_time_us"]
for precision in ("bf16", "fp16"):
    slower = {s: (time(s, precision), base[s][precision]) for s in SHAPES if time(s, precision) > max(base[s][precision] * 1.03, base[s][precision] + 0.3)}
    check(f"{precision} slower than PyTorch nowhere by more than 3 % or 0.3 us", not slower, slower or "nowhere")
    large = [n * k * 2 / time((n, k), precision) * 1e6 / READ for n, k in SHAPES if n * k * 2 > 400e6]
    check(f"{precision} at least 90 % of the read ceiling over 400 MB", min(large) >= 0.9, [f"{v:.3f}" for v in large])
for precision, floor in (("w8a16", 1.85), ("fp8a16", 1.85), ("nf4", 2.8), ("mxfp4a16", 2.8), ("nvfp4a16", 2.8)):
    found = {s: round(base[s]["bf16"] / time(s, precision), 2) for s in SHAPES if s[0] * s[1] > 100e6}
    check(f"{precision} at least {floor}x above 100 M elements", min(found.values()) >= floor, found)
for low, high, floor in ((4096**2, 4096**2, 2.6), (100e6, 200e6, 3.0), (200e6, 1e12, 3.2)):
    found = {s: round(base[s]["bf16"] / time(s, "w4a16"), 2) for s in SHAPES if low <= s[0] * s[1] <= high and (low != high or s == (4096, 4096))}
    check(f"w4a16 at least {floor}x from {low / 1e6:.0f} to {high / 1e6:.0f} M elements", min(found.values()) >= floor, found)
found = {s: round(packed[s] / time(s, "w4a16"), 2) for s in SHAPES}
check("w4a16 at least 1.7x of _weight_int4pack_mm above 60 M elements", min(v for s, v in found.items() if s[0] * s[1] > 60e6) >= 1.7, found)
check("w4a16 slower than _weight_int4pack_mm nowhere", min(found.values()) >= 1, min(found.values()))
over = {}
for (n, k), precision in ((s, p) for s in SHAPES for p in WEIGHT_ONLY):
    limit = 3.5 + n * k * WEIGHT_ONLY[precision] / 8 / (0.85 * READ) * 1e6
    if time((n, k), precision) > limit:
        over[f"{n}x{k} {precision}"] = f"{time((n, k), precision):.2f} > {limit:.2f}"
check("weight-only within 3.5 us + bytes / (0.85 read ceiling)", not over, over or "everywhere")
for kind, ratios in many.items():
    mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
    check(f"gemm {kind} within 3 % of PyTorch in geometric mean", mean <= 1.03, f"{mean:.3f} over {len(ratios)}")
for size, row, shape, precision in decode:
    share = size / row["measured_time_us"] * 1e6 / READ
    if size > 250e6:
        check(f"decode {shape} {precision} at least 80 % of the read ceiling", share >= 0.8, f"{share:.3f}")
print(sum(met for _, met, _ in checks), "of", len(checks), "met")
