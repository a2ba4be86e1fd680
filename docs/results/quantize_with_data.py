"""Methods that go by data, ours and llm-compressor's, on the same samples of the same text: perplexity and time.

    python docs/results/quantize_with_data.py target/release/roofline --data calibration.txt --text evaluation.txt --out 2026-11-17-quantize-data.csv MODEL...

Each MODEL is a folder with a checkpoint and its tokenizer. Every variant is quantized to four bits in groups of 128, written as
compressed-tensors and judged by `roofline evaluate` over the same text, against the original. llm-compressor (pip install llmcompressor datasets) gets the very
token ids that ours takes; its time is that of `oneshot`, with the model loaded and without saving it, ours that of the whole command. Processor
time, of all threads, counts what others on the machine leave out.
"""

import argparse
import contextlib
import csv
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

# Processors whose virtual machine hides instructions that oneDNN finds.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE")
# PyTorch's threads spin while they wait for each other. Where another program has one of the cores, every small product then takes a slice of the
# scheduler's instead of microseconds: 80 times as long. Threads that sleep compute the same.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

SYMMETRIC, SHIFTED = ("w4a16", "W4A16"), ("w4a16-asym", "W4A16_ASYM")


def fnv1a(data):
    value = 0xCBF29CE484222325
    for byte in data:
        value = (value ^ byte) * 0x100000001B3 % 2**64
    return value


def samples(ids, first, count, length, seed):
    """As `roofline_engine::samples` takes them."""
    own = length - (first is not None)
    pieces = len(ids) // own
    order = sorted(range(pieces), key=lambda at: (fnv1a(f"{seed} {at}".encode()), at))[:count]
    head = [] if first is None else [first]
    return [head + ids[at * own : (at + 1) * own] for at in sorted(order)]


def ours(asked, model, plan, method, to):
    command = [asked.roofline, "quantize", model, "--plan", plan, "--method", method, "--to", to, "--json", "--threads", str(asked.threads)]
    if method not in ("rtn", "mse"):
        command += ["--data", asked.data, "--samples", str(asked.samples), "--length", str(asked.length)]
    spent = lambda: sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2])
    start, before = time.time(), spent()
    subprocess.run(list(map(str, command)), check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return time.time() - start, spent() - before


def theirs(asked, model, scheme, method, to):
    import torch
    from datasets import Dataset
    from llmcompressor import oneshot
    from llmcompressor.modifiers.quantization import GPTQModifier, QuantizationModifier
    from llmcompressor.modifiers.transform.awq import AWQModifier
    from transformers import AutoModelForCausalLM, AutoTokenizer

    torch.set_num_threads(asked.threads)
    if not torch.cuda.is_available():
        # Its AWQ pins memory for a GPU whether there is one or not.
        torch.Tensor.pin_memory = lambda tensor, *_: tensor
    tokenizer = AutoTokenizer.from_pretrained(model)
    ids = tokenizer(asked.data.read_text(), add_special_tokens=False)["input_ids"]
    rows = samples(ids, tokenizer.bos_token_id, asked.samples, asked.length, 0)
    data = Dataset.from_dict({"input_ids": rows, "attention_mask": [[1] * asked.length] * len(rows)})
    loaded = AutoModelForCausalLM.from_pretrained(model, dtype=torch.bfloat16 if asked.bf16 else torch.float32)
    if method == "gptq":
        recipe = GPTQModifier(targets="Linear", scheme=scheme, ignore=["lm_head"], dampening_frac=0.01, actorder="static")
    else:
        recipe = [AWQModifier(), QuantizationModifier(targets="Linear", scheme=scheme, ignore=["lm_head"])]
    start, before = time.time(), time.process_time()
    oneshot(model=loaded, dataset=data, recipe=recipe, max_seq_length=asked.length, num_calibration_samples=len(rows))
    seconds = time.time() - start, time.process_time() - before
    loaded.to(torch.bfloat16).save_pretrained(to, save_compressed=True)
    tokenizer.save_pretrained(to)
    return seconds


def judged(asked, model, original):
    command = [asked.roofline, "evaluate", model, "--text", asked.text, "--json"]
    if original is not None:
        command += ["--against", original]
    told = subprocess.run(list(map(str, command)), check=True, capture_output=True, text=True)
    return json.loads(told.stdout)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("roofline", type=Path)
    parser.add_argument("models", type=Path, nargs="+", metavar="MODEL")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--text", type=Path, required=True)
    parser.add_argument("--samples", type=int, default=64)
    parser.add_argument("--length", type=int, default=256)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--bf16", action="store_true", help="llm-compressor computes in BF16 instead of FP32")
    parser.add_argument("--without-theirs", action="store_true")
    parser.add_argument("--methods", nargs="+", default=["gptq", "awq"], choices=["gptq", "awq"])
    parser.add_argument("--repeats", type=int, default=1, help="of each, for its time: the least is told")
    parser.add_argument("--out", type=Path, help="the table as CSV")
    asked = parser.parse_args()
    runs = [(ours, "ours", method, SYMMETRIC[0]) for method in ("rtn", "mse")]
    for method in asked.methods:
        for plan, scheme in (SYMMETRIC, SHIFTED):
            runs.append((ours, "ours", method, plan))
            if not asked.without_theirs:
                runs.append((theirs, "llm-compressor", method, scheme))
    with contextlib.ExitStack() as open_files:
        kept = csv.writer(open_files.enter_context(asked.out.open("w", newline="")), lineterminator="\n") if asked.out else None
        if kept:
            names = ["model", "by", "method", "plan", "seconds", "processor_seconds", "load", "perplexity", "change", "kl_nats", "top1_agreement"]
            kept.writerow(names)
        heads = ["model", "by", "method", "plan", "seconds", "processor seconds", "perplexity", "change", "KL, nats", "same first token"]
        print("|" + "|".join(f" {head} " for head in heads) + "|\n|---|---|---|---|--:|--:|--:|--:|--:|--:|", flush=True)
        verdicts = []
        for model in asked.models:
            base = judged(asked, model, None)["perplexity"]
            print(f"| {model.name} | | none | bf16 | | | {base:.3f} | | | |", flush=True)
            if kept:
                kept.writerow([model.name, "", "none", "bf16", "", "", "", f"{base:.4f}", "", "", ""])
            found_of = {}
            for make, who, method, plan in runs:
                with tempfile.TemporaryDirectory() as folder:
                    try:
                        # What a library says of itself is no row of the table.
                        with contextlib.redirect_stdout(sys.stderr):
                            tries = [make(asked, model, plan, method, Path(folder) / f"out{at}") for at in range(asked.repeats)]
                        seconds, processor = map(min, zip(*tries))
                        load = os.getloadavg()[0]
                        found = judged(asked, Path(folder) / "out0", model)
                    except Exception as error:  # What fails is a row of the table, too.
                        print(f"| {model.name} | {who} | {method} | {plan} | | | failed: {str(error)[:80]} | | | |", flush=True)
                        print(error, file=sys.stderr)
                        continue
                change, same = found["perplexity"] / base - 1, found["top1_agreement"]
                figures = f"{seconds:.1f} | {processor:.1f} | {found['perplexity']:.3f} | {100 * change:+.2f} % | {found['kl_divergence']:.5f} | {100 * same:.1f} %"
                print(f"| {model.name} | {who} | {method} | {plan} | {figures} |", flush=True)
                if kept:
                    row = [model.name, who, method, plan, f"{seconds:.2f}", f"{processor:.2f}", f"{load:.2f}", f"{found['perplexity']:.4f}"]
                    kept.writerow([*row, f"{change:.5f}", f"{found['kl_divergence']:.6f}", f"{same:.5f}"])
                found_of[who, method, plan.lower().replace("_", "-")] = (found["perplexity"], found["kl_divergence"], seconds, processor)
            for (who, method, plan), own in found_of.items():
                if who == "ours" and (other := found_of.get(("llm-compressor", method, plan))):
                    verdicts.append((model.name, method, plan, own, other))
        if verdicts:
            print("\n| model | method | plan | perplexity, ours to theirs | KL | seconds | processor seconds |\n|---|---|---|--:|--:|--:|--:|")
        for name, method, plan, own, other in verdicts:
            figures = " | ".join(f"{own[at] / other[at]:.3f}" for at in range(1, 4))
            print(f"| {name} | {method} | {plan} | {100 * (own[0] / other[0] - 1):+.2f} % | {figures} |")


if __name__ == "__main__":
    main()
