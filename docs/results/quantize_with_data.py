"""Methods that go by data, ours and llm-compressor's, on the same samples of the same text: perplexity and time.

    python docs/results/quantize_with_data.py target/release/roofline --data calibration.txt --text evaluation.txt MODEL...

Each MODEL is a folder with a checkpoint and its tokenizer. Every variant is quantized to four bits in groups of 128, written as
compressed-tensors and judged by `roofline evaluate` over the same text, against the original. llm-compressor (pip install llmcompressor datasets) gets the very
token ids that ours takes; its time is that of `oneshot`, with the model loaded and without saving it, ours that of the whole command.
"""

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

# Processors whose virtual machine hides instructions that oneDNN finds.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE")

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
    start = time.time()
    subprocess.run(list(map(str, command)), check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return time.time() - start


def theirs(asked, model, scheme, method, to):
    import torch
    from datasets import Dataset
    from llmcompressor import oneshot
    from llmcompressor.modifiers.quantization import GPTQModifier
    from transformers import AutoModelForCausalLM, AutoTokenizer

    torch.set_num_threads(asked.threads)
    if not torch.cuda.is_available():
        # Its AWQ pins memory for a GPU whether there is one or not.
        torch.Tensor.pin_memory = lambda tensor, *_: tensor
    tokenizer = AutoTokenizer.from_pretrained(model)
    ids = tokenizer(asked.data.read_text(), add_special_tokens=False)["input_ids"]
    rows = samples(ids, tokenizer.bos_token_id, asked.samples, asked.length, 0)
    data = Dataset.from_dict({"input_ids": rows, "attention_mask": [[1] * asked.length] * len(rows)})
    loaded = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32 if asked.float else torch.bfloat16)
    if method == "gptq":
        recipe = GPTQModifier(targets="Linear", scheme=scheme, ignore=["lm_head"], dampening_frac=0.01, actorder="static")
    else:
        try:
            from llmcompressor.modifiers.awq import AWQModifier
        except ImportError:
            from llmcompressor.modifiers.transform.awq import AWQModifier
        recipe = [AWQModifier(targets="Linear", scheme=scheme, ignore=["lm_head"])]
    start = time.time()
    oneshot(model=loaded, dataset=data, recipe=recipe, max_seq_length=asked.length, num_calibration_samples=len(rows))
    seconds = time.time() - start
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
    parser.add_argument("--float", action="store_true", help="llm-compressor computes in FP32")
    parser.add_argument("--without-theirs", action="store_true")
    asked = parser.parse_args()
    print("| model | by | method | plan | seconds | perplexity | change | KL, nats | same first token |\n|---|---|---|---|--:|--:|--:|--:|--:|", flush=True)
    for model in asked.models:
        base = judged(asked, model, None)["perplexity"]
        print(f"| {model.name} | | none | bf16 | | {base:.3f} | | | |", flush=True)
        runs = [(ours, "ours", method, SYMMETRIC[0]) for method in ("rtn", "mse", "gptq", "awq")]
        runs += [(ours, "ours", method, SHIFTED[0]) for method in ("gptq", "awq")]
        if not asked.without_theirs:
            runs += [(theirs, "llm-compressor", "gptq", SYMMETRIC[1]), (theirs, "llm-compressor", "awq", SHIFTED[1])]
        for make, who, method, plan in runs:
            with tempfile.TemporaryDirectory() as folder:
                to = Path(folder) / "out"
                try:
                    # What a library says of itself is no row of the table.
                    with contextlib.redirect_stdout(sys.stderr):
                        seconds = make(asked, model, plan, method, to)
                    found = judged(asked, to, model)
                except Exception as error:  # What fails is a row of the table, too.
                    print(f"| {model.name} | {who} | {method} | {plan} | | failed: {str(error)[:80]} | | | |", flush=True)
                    print(error, file=sys.stderr)
                    continue
                change, same = 100 * (found["perplexity"] / base - 1), 100 * found["top1_agreement"]
                figures = f"{seconds:.1f} | {found['perplexity']:.3f} | {change:+.2f} % | {found['kl_divergence']:.5f} | {same:.1f} %"
                print(f"| {model.name} | {who} | {method} | {plan} | {figures} |", flush=True)


if __name__ == "__main__":
    main()
