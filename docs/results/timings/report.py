"""Tables and figures of docs/results/2026-11-17-timings.md. `cargo xtask calibrations` calls it:

    python3 docs/results/timings/report.py ROWS.csv CALIBRATIONS TRANSFER.json...

ROWS.csv is what `roofline calibrate --from ... --rows` writes, CALIBRATIONS the folder of what ships, TRANSFER.json what
`roofline calibrate --check ... --transfer --json` prints. Everything that predicts is in the program; here errors are counted and
drawn. Python 3.11 or newer, no packages.
"""

import csv
import json
import pathlib
import sys
import tomllib

import figures

HERE = pathlib.Path(__file__).parent
PAGE = HERE.parent / "2026-11-17-timings.md"

# Median, mean and 90th percentile that were asked for, in percent.
EASY, HARD = (6, 9, 20), (9, 15, 30)
ASKED = {"generation_attention": (10, None, None), "context_attention": (12, None, None)}
OPERATORS = ("gemm", "generation_attention", "context_attention")
REGIMES = {
    "gemm": ("m", (16, 128, 1024), ("up to 16 rows", "17 to 128 rows", "129 to 1024 rows", "more rows")),
    "attention": ("context", (64, 1024, 8192), ("up to 64 keys", "65 to 1024 keys", "1025 to 8192 keys", "more keys")),
}


def asked(op, dtype):
    return ASKED.get(op, EASY if dtype in ("bfloat16", "int8_wo", "int4_wo") else HARD)


def quantile(values, share):
    values = sorted(values)
    place = share * (len(values) - 1)
    below = int(place)
    above = min(below + 1, len(values) - 1)
    return values[below] + (place - below) * (values[above] - values[below])


def errors(rows, name="predicted_us"):
    off = [100 * abs(row[name] / row["measured_us"] - 1) for row in rows]
    return [quantile(off, 0.5), sum(off) / len(off), quantile(off, 0.9)]


def table(head, rows):
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join(lines + ["| " + " | ".join(map(str, row)) + " |" for row in rows])


def number(value):
    return f"{value:.1f}"


def shape(row):
    if row["op"] == "gemm":
        return f"{row['m']:.0f} x {row['n']:.0f} x {row['k']:.0f}"
    window = f", window {row['window']:.0f}" if row["window"] else ""
    heads = f"{row['heads']:.0f}/{row['kv_heads']:.0f} heads of {row['head_dim']:.0f}"
    return f"{row['batch']:.0f} x {row['queries']:.0f} over {row['context']:.0f}, {heads}{window}"


def read_rows(path):
    texts = {"device", "stack", "op", "dtype", "library"}
    with open(path) as file:
        return [
            {key: value if key in texts else float(value) if value else None for key, value in row.items()}
            for row in csv.DictReader(file)
        ]


def read_kernels(folder):
    for path in sorted(pathlib.Path(folder).glob("*.toml")):
        calibration = tomllib.loads(path.read_text())
        for kernel in calibration["terms"].get("kernels", []):
            yield (calibration["device"], calibration["stack"], kernel["op"], kernel["dtype"]), kernel


def grouped(rows, *keys):
    groups = {}
    for row in rows:
        groups.setdefault(tuple(row[key] for key in keys), []).append(row)
    return groups


def regime(row):
    name, bounds, words = REGIMES["gemm" if row["op"] == "gemm" else "attention"]
    return words[sum(row[name] > bound for bound in bounds)]


def weighed(kernels, name):
    rows = sum(kernel["quality"]["rows"] for kernel in kernels)
    return 100 * sum(kernel["quality"][name] * kernel["quality"]["rows"] for kernel in kernels) / rows


def totals(rows, kernels):
    lines = []
    for op in (*OPERATORS, "all"):
        own = [row for row in rows if op in ("all", row["op"])]
        of_op = [kernel for (_, _, of, _), all_of in kernels.items() if op in ("all", of) for kernel in all_of]
        ideal = errors(own, "ideal_us")
        plain, inside = weighed(of_op, "plain_mean"), weighed(of_op, "coverage80")
        lines.append([op, f"{len(own):,}", *map(number, errors(own)), number(plain), number(ideal[0]), number(ideal[1]), number(inside)])
    head = ["operator", "timings", "median %", "mean %", "p90 %", "uncorrected mean %", "ideal median %", "ideal mean %", "inside 80 % intervals, %"]
    return table(head, lines)


def by_regime(rows):
    groups = {}
    for row in rows:
        groups.setdefault((row["op"], regime(row)), []).append(row)
    order = lambda key: (OPERATORS.index(key[0]), REGIMES["gemm" if key[0] == "gemm" else "attention"][2].index(key[1]))
    lines = [[*key, len(groups[key]), *map(number, errors(groups[key])), number(errors(groups[key], "ideal_us")[1])] for key in sorted(groups, key=order)]
    return table(["operator", "size", "timings", "median %", "mean %", "p90 %", "ideal mean %"], lines)


def every(groups, kernels):
    lines, missed = [], []
    for key in sorted(groups, key=lambda key: (key[0], key[1], OPERATORS.index(key[2]))):
        rows, own = groups[key], kernels[key]
        found = errors(rows)
        terms = " + ".join(str(len(kernel["terms"])) for kernel in own)
        cells = [*key, len(rows), *map(number, found), number(weighed(own, "plain_mean")), f"{errors(rows, 'ideal_us')[1]:.0f}", f"{weighed(own, 'coverage80'):.0f}", terms]
        lines.append(cells)
        if any(limit is not None and value > limit for value, limit in zip(found, asked(key[2], key[3]))):
            missed.append(f"- {' '.join(key)}: {' / '.join(map(number, found))} %")
    head = ["device", "stack", "operator", "formats", "timings", "median %", "mean %", "p90 %", "uncorrected mean %", "ideal mean %", "inside 80 %", "terms"]
    listed = f"{len(missed)} of {len(groups)} miss what was asked for (median / mean / p90):\n\n" + "\n".join(missed)
    return table(head, lines), listed


def worst(rows):
    far = sorted(rows, key=lambda row: -max(row["predicted_us"] / row["measured_us"], row["measured_us"] / row["predicted_us"]))[:10]
    lines = [
        [row["device"], row["stack"], row["library"] or "", f"{row['op']} {row['dtype']}", shape(row), *(number(row[name]) for name in ("measured_us", "predicted_us", "ideal_us"))]
        for row in far
    ]
    return table(["device", "stack", "library", "kernel", "shape", "measured us", "forecast us", "ideal us"], lines)


def transfer(paths):
    groups, lines = {}, []
    for path in paths:
        for group in json.loads(pathlib.Path(path).read_text())["groups"]:
            groups.setdefault((group["device"], group["from"], group["op"]), []).append(group)
    for key in sorted(groups, key=lambda key: (key[0], OPERATORS.index(key[2]))):
        own = groups[key]
        rows = sum(group["rows"] for group in own)
        mean = lambda name: 100 * sum(group[name] * group["rows"] for group in own) / rows
        medians = sorted(100 * group["median"] for group in own)
        lines.append([*key, len(own), rows, number(quantile(medians, 0.5)), f"{medians[0]:.1f} to {medians[-1]:.1f}", number(mean("mean")), f"{mean('ideal_mean'):.0f}", f"{mean('coverage80'):.0f}"])
    return table(["device", "by what was timed on", "operator", "kernels", "timings", "median of medians %", "medians %", "mean %", "ideal mean %", "inside 80 %"], lines)


def main():
    rows = read_rows(sys.argv[1])
    kernels = {}
    for key, kernel in read_kernels(sys.argv[2]):
        kernels.setdefault(key, []).append(kernel)
    groups = grouped(rows, "device", "stack", "op", "dtype")
    full, missed = every(groups, kernels)
    parts = {"totals": totals(rows, kernels), "regimes": by_regime(rows), "missed": missed, "worst": worst(rows), "transfer": transfer(sys.argv[3:]), "every": full}
    text = PAGE.read_text()
    for name, part in parts.items():
        begin, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->"
        before, rest = text.split(begin)
        text = before + begin + "\n" + part + "\n\n" + end + rest.split(end)[1]
    PAGE.write_text(text)
    (HERE / "scatter.svg").write_text(figures.scatter(rows, OPERATORS))
    for name, of in (("products", ("gemm",)), ("decode", ("generation_attention",)), ("prompts", ("context_attention",))):
        own = [row for row in rows if row["op"] in of]
        (HERE / f"terms-{name}.svg").write_text(figures.terms(own))


if __name__ == "__main__":
    main()
