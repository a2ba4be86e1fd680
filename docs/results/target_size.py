"""Size against KL divergence: formats that `--target-bits` chooses, one format throughout, and llama.cpp's recipes, side by side.

    python docs/results/target_size.py --roofline target/release/roofline --text crates/roofline-verbs/data/demo/evaluation.txt \
        --out docs/results/2026-11-17-target-size.csv --picture docs/images/target-size.svg demo=DIR [NAME=DIR ...] [--bits 4.3]
    python docs/results/target_size.py --draw docs/results/2026-11-17-target-size.csv --picture docs/images/target-size.svg

Every file is made with an importance matrix of the first half of the text, and held against its model on the second half. What is
chosen is chosen on the first half alone. The table is printed once more as Markdown, and the first model is drawn; `--draw` does that for a table
that was made before.
"""

import argparse
import csv
import json
import math
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

UNIFORM = ["q2_k", "iq3_xxs", "q3_k", "iq3_s", "iq4_xs", "iq4_nl", "q4_0", "q4_k", "q5_k", "q6_k", "q8_0"]
RECIPES = ["iq3_m", "q3_k_m", "iq4_xs", "q4_k_s", "q4_k_m"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", metavar="NAME=DIR")
    parser.add_argument("--roofline")
    parser.add_argument("--text", type=Path)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--draw", type=Path, help="a table that was made before")
    parser.add_argument("--picture", type=Path)
    parser.add_argument("--bits", type=float, nargs="*", default=[4.3])
    parser.add_argument("--uniform", nargs="*", default=UNIFORM)
    parser.add_argument("--recipes", nargs="*", default=RECIPES)
    asked = parser.parse_args()
    if asked.draw:
        show(asked.draw, asked.picture)
        return

    def told(*arguments):
        return json.loads(subprocess.run([asked.roofline, *map(str, arguments), "--json"], check=True, capture_output=True).stdout)

    def spent():
        return sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2])

    with tempfile.TemporaryDirectory() as scratch:
        scratch = Path(scratch)
        text = asked.text.read_text()
        middle = text.index("\n", len(text) // 2)
        first, second = scratch / "first.txt", scratch / "second.txt"
        first.write_text(text[:middle])
        second.write_text(text[middle:])
        with asked.out.open("w", newline="") as out:
            table = csv.writer(out, lineterminator="\n")
            table.writerow(["model", "kind", "plan", "file_bytes", "bits_per_weight", "kl_nats", "top1_agreement", "seconds", "processor_seconds"])
            for name, folder in (model.split("=") for model in asked.models):
                matrix = scratch / f"{name}.imatrix.gguf"
                told("imatrix", folder, "--data", first, "-o", matrix)
                ways = [("uniform", f"attention={one},ffn={one},embedding={one}", []) for one in asked.uniform]
                ways += [("recipe", one, []) for one in asked.recipes]
                ways += [("target", None, ["--target-bits", bits, "--data", first]) for bits in asked.bits]
                for kind, plan, more in ways:
                    file = scratch / "model.gguf"
                    start, before = time.time(), spent()
                    plans = ["--plan", plan] if plan else []
                    made = told("quantize", folder, *plans, *more, "--imatrix", matrix, "--to", file, "--force")
                    seconds, processor = time.time() - start, spent() - before
                    found = told("evaluate", file, "--against", folder, "--text", second)
                    stored = told("inspect", file)
                    row = [name, kind, made["plan"], made["bytes_after"], f"{stored['bits_per_weight']:.4f}"]
                    row += [f"{found['kl_divergence']:.6f}", f"{found['top1_agreement']:.5f}", f"{seconds:.1f}", f"{processor:.1f}"]
                    table.writerow(row)
                    out.flush()
                    print(*row, file=sys.stderr, flush=True)
    show(asked.out, asked.picture)


def named(row):
    """What a row is called: a plan of one format by that format."""
    if row["kind"] == "target":
        return "chosen"
    return row["plan"].split(",")[0].split("=")[-1] if row["kind"] == "uniform" else row["plan"]


def show(table, drawn):
    rows = list(csv.DictReader(table.open()))
    kinds = {"uniform": "{} throughout", "recipe": "recipe {}", "target": "**{}**"}
    for model in dict.fromkeys(row["model"] for row in rows):
        print(f"| {model} | file, bytes | bits for each weight | KL, nats | same first choice | processor seconds |\n|---|--:|--:|--:|--:|--:|")
        for row in sorted((row for row in rows if row["model"] == model), key=lambda row: float(row["bits_per_weight"])):
            bits, loss, same = (float(row[name]) for name in ("bits_per_weight", "kl_nats", "top1_agreement"))
            figures = f"{int(row['file_bytes']):,} | {bits:.3f} | {loss:.5f} | {100 * same:.1f} % | {float(row['processor_seconds']):.1f}"
            print(f"| {kinds[row['kind']].format(named(row))} | {figures} |")
        print()
    if drawn:
        drawn.write_text(picture(rows))


def picture(rows):
    """Bits for each weight against the divergence, whose axis is logarithmic: the first model's rows, around the sizes that were aimed at."""
    rows = [row for row in rows if row["model"] == rows[0]["model"]]
    aims = [float(row["bits_per_weight"]) for row in rows if row["kind"] == "target"]
    rows = [row for row in rows if not aims or min(aims) - 1.25 < float(row["bits_per_weight"]) < max(aims) + 1.25]
    width, height, left, below = 720, 420, 70, 50
    bits = [float(row["bits_per_weight"]) for row in rows]
    losses = [math.log10(float(row["kl_nats"])) for row in rows]
    low, high = math.floor(2 * min(bits)) / 2, math.ceil(2 * max(bits)) / 2
    least, most = min(losses) - 0.1, max(losses) + 0.1
    x = lambda value: left + (value - low) / (high - low) * (width - left - 20)
    y = lambda value: 20 + (most - value) / (most - least) * (height - below - 20)
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="12">']
    out.append(f'<rect width="{width}" height="{height}" fill="#fff"/>')
    for value in (half / 2 for half in range(round(2 * low), round(2 * high) + 1)):
        out.append(f'<line x1="{x(value):.1f}" x2="{x(value):.1f}" y1="20" y2="{height - below}" stroke="#ddd"/>')
        out.append(f'<text x="{x(value):.1f}" y="{height - below + 18}" text-anchor="middle" fill="#444">{value:g}</text>')
    steps = (math.log10(digit) + power for power in range(math.floor(least), math.ceil(most)) for digit in (1, 2, 5))
    for value in (step for step in steps if least <= step <= most):
        out.append(f'<line x1="{left}" x2="{width - 20}" y1="{y(value):.1f}" y2="{y(value):.1f}" stroke="#ddd"/>')
        out.append(f'<text x="{left - 8}" y="{y(value) + 4:.1f}" text-anchor="end" fill="#444">{10.0**value:g}</text>')
    out.append(f'<text x="{width / 2}" y="{height - 10}" text-anchor="middle" fill="#222">bits for each weight</text>')
    out.append(f'<text transform="translate(16 {height / 2}) rotate(-90)" text-anchor="middle" fill="#222">KL divergence, nats for each token</text>')
    # Shapes as well as colours tell them apart.
    marks = {
        "uniform": lambda a, b: f'<circle cx="{a:.1f}" cy="{b:.1f}" r="5" fill="#4269d0"/>',
        "recipe": lambda a, b: f'<rect x="{a - 5:.1f}" y="{b - 5:.1f}" width="10" height="10" fill="#97bbf5"/>',
        "target": lambda a, b: f'<path d="M{a:.1f} {b - 8:.1f}l7 13h-14z" fill="#c2410c"/>',
    }
    # A name goes beside its mark, where no mark and no other name is, else further away.
    taken = [(x(bit) - 7, y(loss) - 7, x(bit) + 7, y(loss) + 7) for bit, loss in zip(bits, losses)]

    def free(name, a, b):
        long = 7 * len(name)
        places = [(a + side, b + rise) for far in (9, 16, 23) for side in (far, -far - long) for rise in (4, 4 - far, 4 + far)]
        for left, base in places:
            box = (left, base - 10, left + long, base + 3)
            if not any(box[0] < own[2] and own[0] < box[2] and box[1] < own[3] and own[1] < box[3] for own in taken):
                break
        taken.append(box)
        return left, base

    for row, bit, loss in zip(rows, bits, losses):
        name = named(row)
        out.append(marks[row["kind"]](x(bit), y(loss)))
        left_at, base = free(name, x(bit), y(loss))
        out.append(f'<text x="{left_at:.1f}" y="{base:.1f}" fill="#222">{name}</text>')
    for at, (kind, words) in enumerate([("uniform", "one format throughout"), ("recipe", "llama.cpp's recipe"), ("target", "chosen for a size")]):
        out.append(marks[kind](width - 190, 40 + 20 * at))
        out.append(f'<text x="{width - 176}" y="{44 + 20 * at}" fill="#222">{words}</text>')
    return "\n".join([*out, "</svg>"]) + "\n"


main()
