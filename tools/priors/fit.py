#!/usr/bin/env python3
"""Fits the priors of `crates/roofline-core/data/priors.toml` to published speeds of whole models.

    tools/priors/fit.py SPEEDS.csv target/release/roofline > crates/roofline-core/data/priors.toml

SPEEDS.csv has a row for each published figure: source, device, devices, runtime_family, model, quant, batch, context,
phase (decode or prefill), tokens_per_s. What is fitted, by stack and class of device:

    decode   time = memory_time / bandwidth + layers * layer_us
    prefill  time = compute_time / peak + layers * layer_us

Terms without a stack are for kernels that nobody timed, and fitted to every runtime but llama.cpp where those have figures of
both phases and of four devices: its products of many rows run at a lower share of the peak than those of the libraries others use.

with the times of the ideal roofline that `roofline predict model --tier ideal` gives for the same pass, by the least sum of
absolute logarithms: a figure that is wrong by ten counts as ten, not as a hundred. The interval is the 90th percentile of
|ln(predicted / published)|, each device predicted by terms fitted to the others.
"""

import collections
import csv
import json
import math
import subprocess
import sys

QUANTS = {
    "MXFP4 (attn, head Q8_0)": "attention=q8_0,head=q8_0,experts=mxfp4a16",
    "AWQ g128": "int4-g128-zp", "AWQ": "int4-g128-zp", "GPTQ g128": "w4a16", "W4A16": "w4a16", "W4A8KV4": "w4a8,kv=int4",
    "int8": "w8a16", "int8wo": "w8a16", "int4wo-64": "int4-g64", "INT4 (head too)": "w4a16,head=int4-g128",
    "q4f16_1 (g32)": "int4-g32", "MLX 4bit g64": "int4-g64-zp16", "4 bit": "w4a16", "float8wo": "fp8a16",
    "float8dq per row": "fp8", "NVFP4 + BF16 attention": "ffn=nvfp4",
}
STACKS = {"llama.cpp": "llama.cpp", "gpt-fast/torchao": "torch", "vllm": "vllm", "mlx-lm": "mlx", "tensorrt-llm": "trtllm"}
FEWEST = 6
# Five kernels at the 2.0 us that the barrier of 16 cores takes (docs/results/2026-11-16-processors.md).
START_US = 10


def run(*arguments):
    out = subprocess.run([BINARY, *arguments], capture_output=True, text=True)
    return json.loads(out.stdout) if out.returncode == 0 else None


def ask(row):
    """The pass of a row by the ideal roofline, or nothing where it cannot be asked for."""
    if row["phase"] not in ("decode", "prefill"):
        return None
    told = run("predict", "model", row["model"], "--on", row["device"], "--precision", QUANTS.get(row["quant"], row["quant"]),
               "--phase", row["phase"], "--batch", row["batch"] or "1", "--context", row["context"] or "512",
               "--tp", row["devices"] or "1", "--tier", "ideal", "--json")
    if not told or int(row["batch"] or 1) > 16:
        return None
    estimate = told["estimates"][0]
    tokens = int(row["batch"] or 1) * (int(row["context"]) if row["phase"] == "prefill" else 1)
    return {
        "device": row["device"], "phase": row["phase"], "runtime": STACKS.get(row["runtime_family"]),
        "memory": estimate["memory_time_us"], "compute": estimate["compute_time_us"],
        "layers": LAYERS[row["model"]], "time": tokens / float(row["tokens_per_s"]) * 1e6, "source": row["source"],
    }


def predicted(row, terms):
    bandwidth, peak, layer = terms
    return max(row["memory"] / bandwidth, row["compute"] / peak) + row["layers"] * layer


def error(rows, terms):
    return sum(abs(math.log(predicted(row, terms) / row["time"])) for row in rows)


def fit(rows):
    """A grid; few figures do not tell the time of a layer, which is then that of starting five kernels on a processor."""
    best = (0.6, 0.4, 50.0)
    bandwidths = [0.2 + 0.04 * step for step in range(21)]
    peaks = [0.04 + 0.04 * step for step in range(24)]
    layers = [0, 5, 10, 15, 20, 30, 40, 60, 80, 120, 180, 260, 400]
    decode = [row for row in rows if row["phase"] == "decode"]
    if len(decode) < 2 * FEWEST:
        layers = [START_US]
    prefill = [row for row in rows if row["phase"] == "prefill"]
    bandwidth, layer = min(((b, l) for b in bandwidths for l in layers), key=lambda t: error(decode, (t[0], 1.0, t[1])))
    peak = min(peaks, key=lambda p: error(prefill, (bandwidth, p, layer))) if prefill else best[1]
    return (round(bandwidth, 2), round(peak, 2), layer)


def interval(rows):
    devices = sorted({row["device"] for row in rows})
    off = []
    for device in devices:
        others = [row for row in rows if row["device"] != device]
        terms = fit(others if len(devices) > 1 and others else rows)
        off += [abs(math.log(predicted(row, terms) / row["time"])) for row in rows if row["device"] == device]
    off.sort()
    return off[int(0.9 * (len(off) - 1))], off[len(off) // 2]


def main():
    rows = [answer for row in csv.DictReader(open(sys.argv[1])) if (answer := ask(row))]
    groups = collections.defaultdict(list)
    for row in rows:
        kind = CLASSES[row["device"]]
        groups[(None, kind)].append(row)
        if row["runtime"]:
            groups[(row["runtime"], kind)].append(row)
    for kind in set(CLASSES.values()):
        others = [row for row in groups[(None, kind)] if row["runtime"] != "llama.cpp"]
        phases = collections.Counter(row["phase"] for row in others)
        if phases["decode"] >= 2 * FEWEST and phases["prefill"] >= 3 and len({row["device"] for row in others}) >= 4:
            groups[(None, kind)] = others
    groups[(None, "other")] = rows
    print("# Terms of classes of devices, fitted by tools/priors/fit.py to speeds of whole models that people published: the share")
    print("# of the bandwidth, the share of the peak, the time of a layer beside its bytes, and within which factor, as a")
    print("# logarithm, nine of ten figures lie of devices that the fit had not seen. A stack without a row of its own has the")
    print("# one of its class.")
    for (stack, kind), own in sorted(groups.items(), key=lambda item: (item[0][1], item[0][0] or "")):
        decode = sum(row["phase"] == "decode" for row in own)
        if decode < FEWEST:
            continue
        bandwidth, peak, layer = fit(own)
        p90, median = interval(own)
        devices, sources = len({row["device"] for row in own}), len({row["source"] for row in own})
        if len(own) == decode:
            peak = PEAKS.get(kind, peak)
        elif stack is None:
            PEAKS[kind] = peak
        print("\n[[prior]]")
        if stack:
            print(f'stack = "{stack}"')
        print(f'class = "{kind}"\nbandwidth = {bandwidth}\npeak = {peak}\nlayer_us = {float(layer)}\ninterval = {p90:.2f}')
        print(f'source = "{decode} decode and {len(own) - decode} prefill figures of {devices} devices, {sources} publications; '
              f'half within {100 * (math.exp(median) - 1):.0f} %"')


PEAKS = {}
BINARY = sys.argv[2]
LAYERS = {model["key"]: sum(layer["count"] for layer in model["layers"])
          for model in run("models", "--json")["models"]}


def class_of(device):
    kind, memory = device["kind"], (device["memory"].get("type") or "")
    if kind == "cpu":
        return "cpu"
    if kind == "soc":
        return "apple" if device["vendor"] == "Apple" else "shared"
    if kind == "gpu":
        return "hbm" if memory.startswith("HBM") else "gddr"
    return "other"


CLASSES = {device["key"]: class_of(device) for device in run("devices", "--json")["devices"]}

if __name__ == "__main__":
    main()
