"""Random shapes that no calibration saw, measured and compared with what was expected of them, on the GPU that is there.

    python3 docs/results/h200_held_out.py path/to/roofline OUT_FOLDER [--quick] [--seed N] [--count N]

600 kernels (200 with --quick), drawn as the grid of `roofline calibrate` draws its own: products of every format at 1 to 8192
rows, gates, experts, attention of single tokens and of prompts, element-wise kernels. The calibration in use is the one that
`roofline calibrate --backend cuda` kept, else the one that ships. About a minute. Writes held_out.csv, one line per kernel, and
held_out_families.csv, and prints what was asked for (a mean error of at most 7 % in each family of products and attention) beside
what was found. Errors are relative to the measured time; kernels that no term covers are counted, not scored.
"""

import argparse
import csv
import json
import os
import subprocess
import sys

asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
asked.add_argument("roofline")
asked.add_argument("out")
asked.add_argument("--quick", action="store_true")
asked.add_argument("--seed", type=int, default=23)
asked.add_argument("--count", type=int)
asked = asked.parse_args()
COUNT = asked.count or (200 if asked.quick else 600)
GOAL = 7.0
JUDGED = ["thin product", "tiled product", "packed product", "decode attention", "prefill attention", "chosen experts", "grouped experts"]


def roofline(*words):
    done = subprocess.run([asked.roofline, *words, "--json"], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"failed: {' '.join(words)}: {done.stderr.strip()}")
    return json.loads(done.stdout)


def write(name, rows):
    if not rows:
        return
    with open(os.path.join(asked.out, name), "w", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows({key: f"{value:.5g}" if isinstance(value, float) else value for key, value in row.items()} for row in rows)


os.makedirs(asked.out, exist_ok=True)
run = os.path.join(asked.out, "held_out.jsonl")
if os.path.exists(run):
    sys.exit(f"{run} is there already: name another folder")
told = roofline("calibrate", "--backend", "cuda", "--validate", str(COUNT), "--seed", str(asked.seed), "--out", run)
rows = [row for row in told["rows"] if row["kernels"] != "all"]
write("held_out_families.csv", rows)

pairs = roofline("compare", "--from", run)["comparisons"]
write("held_out.csv", [dict(kernel=pair["shape"], precision=pair["precision"], basis=pair["basis"], measured_us=pair["measured_time_us"],
                            expected_us=pair["expected_time_us"], ideal_us=pair["ideal_time_us"],
                            error_pct=100 * (pair["expected_time_us"] / pair["measured_time_us"] - 1)) for pair in pairs])

print("calibration:", told["provenance"])
for family in sorted({row["kernels"] for row in rows}):
    own = [row for row in rows if row["kernels"] == family]
    count = sum(row["count"] for row in own)
    mean = sum(row["expected_mean_pct"] * row["count"] for row in own) / count
    word = "      " if family not in JUDGED else "met   " if mean <= GOAL else "MISSED"
    print(f"{word} {family}: mean {mean:.1f} % of {count} |", ", ".join(f"{row['precision']} {row['expected_mean_pct']:.1f} ({row['count']})" for row in own))
everything = next(row for row in told["rows"] if row["kernels"] == "all")
print(f"all: mean {everything['expected_mean_pct']:.1f} %, median {everything['expected_median_pct']:.1f} %, p90 {everything['expected_p90_pct']:.1f} % of {everything['count']};",
      f"the ideal roofline {everything['ideal_mean_pct']:.1f} %; {told['skipped']} could not be measured, {told['uncovered']} have no term")
for worst in told["worst"]:
    print(f"worst: {worst['kernel']}: {worst['measured_us']:.1f} us, expected {worst['expected_us']:.1f}")
