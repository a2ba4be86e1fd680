"""Errors of the calibrations of serving stacks, as the tables of docs/results/2026-11-17-timings.md.

    python3 docs/results/timings/report.py crates/roofline-core/data/calibrations

Reads the calibrations (Python 3.11 or newer) and prints Markdown: every kernel with its cross-validated errors, those that miss
what was asked for, and means by operator.
"""

import pathlib
import sys
import tomllib

# Median, mean and 90th percentile that were asked for, in percent.
EASY, HARD = (6, 9, 20), (9, 15, 30)
ASKED = {"generation_attention": (10, None, None), "context_attention": (12, None, None)}


def asked(kernel):
    easy = kernel["dtype"] in ("bfloat16", "int8_wo", "int4_wo")
    return ASKED.get(kernel["op"], EASY if easy else HARD)


def figures(quality):
    return [100 * quality[name] for name in ("median", "mean", "p90")]


def main():
    rows = []
    for path in sorted(pathlib.Path(sys.argv[1]).glob("*.toml")):
        calibration = tomllib.loads(path.read_text())
        for kernel in calibration["terms"].get("kernels", []):
            rows.append((calibration["device"], calibration["stack"], kernel))
    print("| device | stack | operator | formats | timings | median % | mean % | p90 % | uncorrected mean % | ideal mean % | terms | four of five within, by size |")
    print("|---|---|---|---|---|---|---|---|---|---|---|---|")
    missed, sums = [], {}
    for device, stack, kernel in rows:
        quality = kernel["quality"]
        own = figures(quality)
        within = " ".join(f"{100 * (2.718281828 ** value - 1):.0f}" for value in quality["intervals"])
        cells = [device, stack, kernel["op"], kernel["dtype"], quality["rows"], *(f"{value:.1f}" for value in own)]
        cells += [f"{100 * quality['plain_mean']:.1f}", f"{100 * quality['ideal_mean']:.0f}", len(kernel["terms"]), within]
        print("| " + " | ".join(map(str, cells)) + " |")
        if any(limit is not None and value > limit for value, limit in zip(own, asked(kernel))):
            missed.append((device, stack, kernel["op"], kernel["dtype"], own))
        sums.setdefault(kernel["op"], []).append((own, quality))
    print("\n| operator | kernels | mean of medians % | of means % | of p90 % | uncorrected mean % | ideal mean % |\n|---|---|---|---|---|---|---|")
    for op, all_of in sums.items():
        count = len(all_of)
        means = [sum(own[at] for own, _ in all_of) / count for at in range(3)]
        plain = 100 * sum(quality["plain_mean"] for _, quality in all_of) / count
        ideal = 100 * sum(quality["ideal_mean"] for _, quality in all_of) / count
        print(f"| {op} | {count} | {means[0]:.1f} | {means[1]:.1f} | {means[2]:.1f} | {plain:.1f} | {ideal:.0f} |")
    print(f"\n{len(missed)} of {len(rows)} miss what was asked for:\n")
    for device, stack, op, dtype, own in missed:
        print(f"- {device} {stack} {op} {dtype}: {own[0]:.1f} / {own[1]:.1f} / {own[2]:.1f} %")


main()
