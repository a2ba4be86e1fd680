"""Importance matrices and files made with them, ours and llama.cpp's, each with tools of its own: perplexity of both in llama.cpp.

    python docs/results/beside_llama_cpp.py target/release/roofline --llama llama.cpp/build/bin \
        --text crates/roofline-verbs/data/demo/evaluation.txt --out docs/results/2026-11-17-beside-llama-cpp.csv NAME=DIR...

Each DIR holds a checkpoint and its tokenizer. Its weights are written to GGUF in FP32 once; then `roofline imatrix` and `roofline quantize` make one file of
every recipe, `llama-imatrix` and `llama-quantize` another, from the first half of the text. `llama-perplexity -c 512` judges both on the second half;
with `--judge roofline`, `roofline evaluate` does, in the way of llama.cpp, which is quicker where that is built for any x86-64.
"""

import argparse
import csv
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

# Threads that wait for each other shall sleep: others may want the cores.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

RECIPES = ["q4_k_m", "iq4_xs", "iq3_m", "iq3_s", "iq3_xs", "iq3_xxs", "iq2_m", "iq2_s", "iq2_xs", "iq2_xxs", "iq1_m", "iq1_s"]
# One type throughout: llama.cpp names types by recipes, and has no narrower one for the embedding.
PURE = ["iq3_xxs"]


def run(*command):
    told = subprocess.run(list(map(str, command)), capture_output=True, text=True)
    if told.returncode:
        sys.exit(f"{' '.join(map(str, command))}\n{told.stdout}{told.stderr}")
    return told.stdout + told.stderr


def tensors(file):
    """Names, types and bytes of a GGUF file's tensors, to see where two files differ."""
    from gguf import GGUFReader

    return {one.name: (one.tensor_type, one.data.view("uint8").ravel()) for one in GGUFReader(file).tensors}


def apart(a, b):
    """The part of all bytes that differ; nothing where types do."""
    assert a.keys() == b.keys(), a.keys() ^ b.keys()
    if any(a[name][0] != b[name][0] for name in a):
        return None
    return float(sum((a[name][1] != b[name][1]).sum() for name in a) / sum(len(own) for _, own in a.values()))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("roofline", type=Path)
    parser.add_argument("models", nargs="+", metavar="NAME=DIR")
    parser.add_argument("--llama", type=Path, required=True, help="the folder with llama-imatrix, llama-quantize and llama-perplexity")
    parser.add_argument("--gguf", type=Path, help="gguf-py of llama.cpp, where Python does not find it by itself")
    parser.add_argument("--text", type=Path, required=True)
    parser.add_argument("--recipes", nargs="+", default=RECIPES)
    parser.add_argument("--pure", nargs="*", default=PURE)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--judge", choices=["llama.cpp", "roofline"], default="llama.cpp")
    parser.add_argument("--out", type=Path, required=True)
    asked = parser.parse_args()
    if asked.gguf:
        sys.path.insert(0, str(asked.gguf))
    exact = ["-c", 512, "-b", 512, "-ctk", "f32", "-ctv", "f32", "-fa", "off", "-t", asked.threads]

    def perplexity(file, text):
        if asked.judge == "roofline":
            told = subprocess.run(
                list(map(str, [asked.roofline, "evaluate", file, "--text", text, "--values", "fp32", "--threads", asked.threads, "--json"])),
                capture_output=True, text=True, check=True,
            )  # fmt: skip
            return json.loads(told.stdout)["llama_cpp_perplexity"]
        # Its log is written by a thread of its own, and once ended before the last line.
        for _ in range(3):
            told = run(asked.llama / "llama-perplexity", "-m", file, "-f", text, *exact)
            if found := re.search(r"Final estimate: PPL = ([\d.]+)", told):
                return float(found[1])
            print(f"nothing found, once more: {told[-200:]!r}", file=sys.stderr, flush=True)
        sys.exit(f"llama-perplexity did not say what it found:\n{told}")

    print("| model | recipe | perplexity, ours | llama.cpp's | apart | bytes that differ |\n|---|---|--:|--:|--:|--:|", flush=True)
    with tempfile.TemporaryDirectory() as scratch, asked.out.open("w", newline="") as out:
        table = csv.writer(out, lineterminator="\n")
        table.writerow(["model", "recipe", "ours", "llama_cpp", "apart", "bytes_that_differ"])
        scratch = Path(scratch)
        text = asked.text.read_text()
        middle = text.index("\n", len(text) // 2)
        first, second = scratch / "first.txt", scratch / "second.txt"
        first.write_text(text[:middle])
        second.write_text(text[middle:])
        for name, folder in (model.split("=") for model in asked.models):
            whole, own, other = (scratch / f"{name}-{which}.gguf" for which in ("fp32", "ours", "theirs"))
            run(asked.roofline, "quantize", folder, "--plan", "fp32", "--as", "gguf", "--to", whole)
            run(asked.roofline, "imatrix", folder, "--data", first, "-o", own)
            run(asked.llama / "llama-imatrix", "-m", whole, "-f", first, "-o", other, *exact)
            base = perplexity(whole, second)
            print(f"| {name} | fp32 | {base:.4f} | | | |", flush=True)
            table.writerow([name, "fp32", f"{base:.4f}", "", "", ""])
            for recipe in [*asked.recipes, *asked.pure]:
                pure = recipe in asked.pure
                plan = f"attention={recipe},ffn={recipe},embedding={recipe}" if pure else recipe
                ours, theirs = scratch / "ours.gguf", scratch / "theirs.gguf"
                run(asked.roofline, "quantize", folder, "--plan", plan, "--imatrix", own, "--to", ours, "--force")
                more = ["--pure"] if pure else []
                run(asked.llama / "llama-quantize", *more, "--imatrix", other, whole, theirs, recipe.upper(), asked.threads)
                differ = apart(tensors(ours), tensors(theirs))
                found = perplexity(ours, second), perplexity(theirs, second)
                change = found[0] / found[1] - 1
                told = "other types" if differ is None else f"{100 * differ:.3f} %"
                label = recipe + (" throughout" if pure else "")
                print(f"| {name} | {label} | {found[0]:.4f} | {found[1]:.4f} | {100 * change:+.3f} % | {told} |", flush=True)
                table.writerow([name, label, f"{found[0]:.4f}", f"{found[1]:.4f}", f"{change:.6f}", "" if differ is None else f"{differ:.6f}"])
                out.flush()


main()
