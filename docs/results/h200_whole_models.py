"""Whole models on the GPU that is there, beside what `roofline predict` said of them.

    python3 docs/results/h200_whole_models.py path/to/roofline OUT_FOLDER [--quick] [--minutes 6] [--only PRECISION@MODEL]... [--reuse]

Models of random weights answer prompts of 512, 2048 and 8192 tokens, 1, 8 and 32 at once, in four precisions; what fills the
memory, or prompts of more than 65536 tokens together, are left out. Every pass is compared with `predict model` of the same
workload on the same device: a prompt, and the step in the middle of those that follow. The calibration in use is the one that
`roofline calibrate --backend cuda` kept, else the one that ships. No model is started once the minutes are over.

Models with experts answer 1 and 8 prompts of 512 and 2048 tokens.

--quick: two models, two precisions, four shapes. --only: these, in this order, and not the long prompts. --reuse: nothing is measured, what lies in OUT_FOLDER is predicted again, as
after `roofline calibrate --whole OUT_FOLDER/passes-*.json`, which finds what lies between kernels. Writes passes-MODEL-PRECISION.json
for that, and whole_models.csv; prints what was asked for (a mean error of at most 6 % of steps, 10 % of prompts) beside what was
found. Errors are relative to the measured time.
"""

import argparse
import csv
import glob
import json
import os
import re
import subprocess
import sys
import time

asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
asked.add_argument("roofline")
asked.add_argument("out")
asked.add_argument("--quick", action="store_true")
asked.add_argument("--reuse", action="store_true")
asked.add_argument("--only", action="append")
asked.add_argument("--minutes", type=float, default=6.0)
asked = asked.parse_args()
GENERATE = 32
GOALS = {"decode": 6.0, "prefill": 10.0}
SHORT, LONG = ("1,8,32", "512,2048"), ("1,8", "8192")
if asked.quick:
    PLAN = [(model, precision, [("1,8", "512,2048")]) for model in ["llama-3-8b", "qwen2.5-1.5b"] for precision in ["bf16", "w4a16"]]
else:
    # Long contexts ask the same of every format of weights, so two of them do; the rarest come last, where time may be out.
    MODELS = ["llama-3-8b", "qwen2.5-1.5b", "llama-2-7b", "llama-2-13b"]
    PLAN = [(model, precision, [SHORT, LONG]) for precision in ["bf16", "w4a16"] for model in MODELS]
    PLAN += [(model, precision, [SHORT]) for precision in ["w8a16", "fp8"] for model in MODELS]
    EXPERTS = [("gpt-oss-20b", "*=bf16,experts=mxfp4a16"), ("qwen3-30b-a3b", "bf16"), ("mixtral-8x7b", "w4a16")]
    PLAN += [(model, precision, [("1,8", "512,2048")]) for model, precision in EXPERTS]
    if asked.only:
        known = {f"{precision}@{model}": (model, precision, shapes[:1]) for model, precision, shapes in PLAN}
        PLAN = [known[one] for one in asked.only]
started = time.monotonic()
left = lambda: asked.minutes * 60 - (time.monotonic() - started)


def roofline(*words, limit=None):
    """The answer; none where there is none, with the reason on stderr."""
    try:
        done = subprocess.run([asked.roofline, *words, "--json"], capture_output=True, text=True, timeout=limit)
    except subprocess.TimeoutExpired:
        print("out of time:", " ".join(words), file=sys.stderr)
        return None
    if done.returncode:
        print("failed:", " ".join(words), done.stderr.strip(), file=sys.stderr)
        return None
    return json.loads(done.stdout)


def measured(model, precision, shapes):
    """All passes of a model in one file, even if some of its shapes did not fit."""
    whole = None
    for batches, prompts in shapes:
        if left() < 0:
            print("no time for", model, precision, batches, prompts, file=sys.stderr)
            break
        told = roofline("measure", "model", model, "--random", "--backend", "cuda", "--precision", precision, "--batches", batches, "--prompt", prompts,
                        "--generate", str(GENERATE), "--quick", limit=max(60.0, left()))
        if told is None:
            continue
        for one in told["passes"]:
            one["model_key"], one["plan"] = model, precision
        if whole is None:
            whole = told
        else:
            whole["passes"] += told["passes"]
    if whole is not None:
        with open(os.path.join(asked.out, f"passes-{model}-{re.sub('[^a-z0-9]+', '-', precision).strip('-')}.json"), "w") as file:
            json.dump(whole, file)


def predicted(device, one, phase):
    context = one["prompt"] if phase == "prefill" else one["prompt"] + -(-one["generated"] // 2)
    told = roofline("predict", "model", one["model_key"], "--on", device, "--stack", "roofline", "--precision", one["plan"], "--phase", phase, "--batch", str(one["batch"]),
                    "--context", str(context))
    return told and told["estimates"][0]


os.makedirs(asked.out, exist_ok=True)
if not asked.reuse:
    for model, precision, shapes in PLAN:
        measured(model, precision, shapes)
    print(f"measured in {time.monotonic() - started:.0f} s")

rows = []
for path in sorted(glob.glob(os.path.join(asked.out, "passes-*.json"))):
    with open(path) as file:
        told = json.load(file)
    for one in told["passes"]:
        for phase, time_us, own in [("decode", one["tpot_us"], one.get("predicted_tpot_us")), ("prefill", one["ttft_us"], one.get("predicted_ttft_us"))]:
            estimate = predicted(told["device"], one, phase) if time_us else None
            if estimate is None:
                continue
            expected, gap = estimate["expected_time_us"], estimate.get("gap") or {}
            rows.append(dict(model=one["model_key"], precision=one["plan"], batch=one["batch"], prompt=one["prompt"], phase=phase, measured_us=time_us,
                             expected_us=expected, lo_us=estimate["lo_us"], hi_us=estimate["hi_us"], ideal_us=estimate["ideal_time_us"], basis=estimate["basis"],
                             gap_us=gap.get("kernel_us", 0.0) if gap.get("measured") else "", said_when_measured_us=own if own is not None else "",
                             error_pct=100 * (expected / time_us - 1), inside=estimate["lo_us"] <= time_us <= estimate["hi_us"]))
if not rows:
    sys.exit("no pass was measured")
with open(os.path.join(asked.out, "whole_models.csv"), "w", newline="") as file:
    writer = csv.DictWriter(file, rows[0])
    writer.writeheader()
    writer.writerows({key: f"{value:.5g}" if isinstance(value, float) else value for key, value in row.items()} for row in rows)


def said(rows):
    off = sorted(abs(row["error_pct"]) for row in rows)
    ideal = sum(abs(row["ideal_us"] / row["measured_us"] - 1) for row in rows) * 100 / len(rows)
    inside = sum(row["inside"] for row in rows) * 100 / len(rows)
    return f"mean {sum(off) / len(off):.1f} %, median {off[len(off) // 2]:.1f} %, worst {off[-1]:.1f} % of {len(off)}; {inside:.0f} % inside; ideal {ideal:.1f} %"


for phase, goal in GOALS.items():
    own = [row for row in rows if row["phase"] == phase]
    if not own:
        continue
    mean = sum(abs(row["error_pct"]) for row in own) / len(own)
    print("met   " if mean <= goal else "MISSED", phase, f"asked {goal:.0f} %:", said(own))
    for key in ["model", "precision", "batch", "prompt"]:
        for value in sorted({row[key] for row in own}):
            print(f"    {key} {value}:", said([row for row in own if row[key] == value]))
gaps = {row["gap_us"] for row in rows}
print("between kernels:", "not measured, kernels are added up" if gaps == {""} else f"{sorted(gaps, key=str)} us")
