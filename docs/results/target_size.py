"""Size against KL divergence: formats that `--target-bits` chooses, one format throughout, and llama.cpp's recipes, side by side.

    python target_size.py --roofline target/release/roofline --text evaluation.txt --out 2026-11-17-target-size.csv \
        demo=DIR [NAME=DIR ...] [--bits 4.3]

Every file is made with an importance matrix of the first half of the text, and held against its model on the second half. What is
chosen is chosen on the first half alone.
"""

import argparse
import csv
import json
import subprocess
import tempfile
import time
from pathlib import Path

UNIFORM = ["q2_k", "iq3_xxs", "q3_k", "iq3_s", "iq4_xs", "iq4_nl", "q4_0", "q4_k", "q5_k", "q6_k", "q8_0"]
RECIPES = ["iq3_m", "q3_k_m", "iq4_xs", "q4_k_s", "q4_k_m"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", metavar="NAME=DIR")
    parser.add_argument("--roofline", required=True)
    parser.add_argument("--text", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--bits", type=float, nargs="+", default=[4.3])
    parser.add_argument("--uniform", nargs="+", default=UNIFORM)
    parser.add_argument("--recipes", nargs="+", default=RECIPES)
    asked = parser.parse_args()

    def told(*arguments):
        return json.loads(subprocess.run([asked.roofline, *map(str, arguments), "--json"], check=True, capture_output=True).stdout)

    with tempfile.TemporaryDirectory() as scratch:
        scratch = Path(scratch)
        text = asked.text.read_text()
        middle = text.index("\n", len(text) // 2)
        first, second = scratch / "first.txt", scratch / "second.txt"
        first.write_text(text[:middle])
        second.write_text(text[middle:])
        with asked.out.open("w", newline="") as out:
            table = csv.writer(out, lineterminator="\n")
            table.writerow(["model", "kind", "plan", "file_bytes", "bits_per_weight", "kl_nats", "top1_agreement", "seconds"])
            for name, folder in (model.split("=") for model in asked.models):
                matrix = scratch / f"{name}.imatrix.gguf"
                told("imatrix", folder, "--data", first, "-o", matrix)
                ways = [("uniform", f"attention={one},ffn={one},embedding={one}", []) for one in asked.uniform]
                ways += [("recipe", one, []) for one in asked.recipes]
                ways += [("target", None, ["--target-bits", bits, "--data", first]) for bits in asked.bits]
                for kind, plan, more in ways:
                    file = scratch / "model.gguf"
                    start = time.time()
                    plans = ["--plan", plan] if plan else []
                    made = told("quantize", folder, *plans, *more, "--imatrix", matrix, "--to", file, "--force")
                    seconds = time.time() - start
                    found = told("evaluate", file, "--against", folder, "--text", second)
                    stored = told("inspect", file)
                    row = [name, kind, made["plan"], made["bytes_after"], f"{stored['bits_per_weight']:.4f}"]
                    row += [f"{found['kl_divergence']:.6f}", f"{found['top1_agreement']:.5f}", f"{seconds:.1f}"]
                    table.writerow(row)
                    out.flush()
                    print(*row, flush=True)



main()
