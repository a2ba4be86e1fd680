"""What each format costs the demo model, measured, beside what `recommend` would have estimated.

    python tools/demo/quality.py target/release/roofline > table.md

Every plan is quantized and evaluated on the demo's text by `roofline evaluate`, with every method that suits it; nothing is computed
here but where the measured change and divergence lie beside the middle of the range that was estimated, all in nats. Estimates are asked for first, with folders of their own: once
a plan was evaluated, what was measured is what `recommend` says.
"""

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile

PLANS = [
    "w8a16", "int8", "fp8", "fp8a16", "q8_0", "q6_k", "q5_k_m", "q5_0",
    "q4_k_m", "nf4", "int4-g32", "int4-g64", "w4a16", "nvfp4a16", "mxfp4a16", "q4_1", "q4_0",
    "q3_k_m", "int3", "q2_k", "int2",
]
METHODS = ["mse", "four-over-six", "hqq"]


def told(binary, home, *words):
    found = subprocess.run([binary, *words, "--json"], capture_output=True, text=True, env=os.environ | {"ROOFLINE_CONFIG_DIR": home})
    if found.returncode:
        raise SystemExit(f"{' '.join(words)}: {found.stderr.strip()}")
    return json.loads(found.stdout)


def estimates(binary, home):
    """The range of each plan's change; the best of two devices, since each loads other plans."""
    known = {}
    for device in ["h200", "rtx_4090"]:
        answer = told(binary, home, "recommend", "model", "demo", "--on", device, "--all", "--any-quality")
        for outcome in answer["outcomes"]:
            quality = outcome["quality"]
            if quality["kind"] == "estimated":
                known.setdefault(outcome["plan"], (quality["low"], quality["high"]))
    return known


def percent(share, digits=2):
    return f"{100 * share:+.{digits}f} %"


def row(plan, estimate):
    change = plan["ratio"] - 1
    cells = [plan["plan"], plan["method"], f"{plan['weights_bytes'] / 1e6:.2f}", f"{plan['perplexity']:.2f}"]
    cells += [f"{percent(change)} ({percent(plan['ratio_low'] - 1)} to {percent(plan['ratio_high'] - 1)})"]
    cells += [f"{plan['kl_divergence']:.5f}", f"{100 * plan['top1_agreement']:.1f} %"]
    if estimate is None or plan["method"] != "rtn":
        return cells + ["", "", ""]
    low, high = estimate
    middle = math.log1p(low) ** 0.5 * math.log1p(high) ** 0.5
    return cells + [f"{percent(low)} to {percent(high)}", f"{math.log(plan['ratio']) / middle:.2f}", f"{plan['kl_divergence'] / middle:.2f}"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("binary")
    parser.add_argument("--plans", nargs="+", default=PLANS)
    parser.add_argument("--methods", nargs="*", default=METHODS)
    parser.add_argument("--tokens", help="only so many of the text's")
    asked = parser.parse_args()
    few = ["--tokens", asked.tokens] if asked.tokens else []
    with tempfile.TemporaryDirectory() as home:
        known = estimates(asked.binary, home)
        methods = ",".join(["rtn", *asked.methods])
        answer = told(asked.binary, home, "evaluate", "demo", "--plan", ",".join(asked.plans), "--method", methods, *few)
    print(f"{answer['tokens']} tokens, perplexity of the original {answer['perplexity']:.2f}\n")
    print("| plan | method | MB | perplexity | change, 95 % | KL, nats | same first token | estimated change | change over its middle | KL over its middle |")
    print("|---|---|---:|---:|---:|---:|---:|---:|---:|---:|")
    for plan in answer["plans"]:
        print("| " + " | ".join(row(plan, known.get(plan["plan"]))) + " |")


if __name__ == "__main__":
    sys.exit(main())
