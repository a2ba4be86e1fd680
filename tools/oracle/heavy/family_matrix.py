"""Loads what the program writes, family by family, in transformers, and compares logits.

    python family_matrix.py BINARY FOLDER [--families a,b] [--layouts x,y] [--plans p,q] [--method M --data TEXT] [--table FILE]

For every family of `families.py`, layout and plan: the program quantizes, or refuses before it writes a byte; transformers loads the result and
tells which weights it missed; its logits are held against those of the source with every weight replaced by what its codes stand for. A cell is

    ok 0.0000 / 0.0421   what is loaded is what was written (first number: against the decoded weights; second: against the source)
    refused              with the program's words
    alike                the loader fails with what it quantized itself, in the same words
    WRONG                anything else: weights that are missing, numbers that differ, errors of the loader

With `--method` weights are rounded by it, by data where it goes by data: files must load all the same.

The end is an error if any cell is wrong. Models and results lie under FOLDER; a table goes to FILE. GPTQ and AWQ need gptqmodel and optimum, as
`packings.py` does. GGUF and MLX have scripts of their own: `gguf_families.py`, `mlx_checkpoints.py`.
"""

import argparse
import re
import shutil
import sys
from pathlib import Path

from common import logits_of, relative, token_ids  # noqa: F401
from checks import quantize

import torch
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText, BitsAndBytesConfig

import families

PLANS = {
    "compressed-tensors": [
        "w4a16",
        "int4-g32-zp",
        "int4-channel",
        "w8a16",
        "int8",
        "fp8",
        "fp8-block",
        "nvfp4a16",
        "mxfp4a16",
        "mxfp8",
        "w4a16,attention=fp8",
        "fp8,down=w8a16",
        "w4a16,experts=keep",
        "w4a16,layers.0=keep",
    ],
    "torchao": ["w8a16", "fp8a16", "int4-g32", "w8a16,experts=keep", "w8a16,layers.0=keep,experts=keep"],
    "safetensors": ["fp32"],
    "bitsandbytes": ["nf4", "bnb-fp4", "nf4-dq", "int8", "nf4,experts=keep", "nf4,layers.0=keep"],
    "fp8": ["fp8-block", "fp8-block,layers.0=keep"],
    "gptq": ["w4a16", "int4-g32-zp", "w8a16", "w4a16,layers.0=keep"],
    "awq": ["int4-g128-zp", "int4-g128-zp,layers.0=keep"],
}
# Rounding what enters a product moves these logits by 3 to 26 %, most where it changes which experts are chosen; experts of random numbers move them by
# 70 % and more.
EXACT, ROUNDED = 0.004, 0.35
NARROW_ACTIVATIONS = ("int8", "fp8", "mxfp8", "mxfp4", "nvfp4", "w4a8")


def bound(layout, plan):
    words = plan.replace("=", ",").split(",")
    # torchao applies scales to the product, not to the weights; the others compute in a type of their own.
    if layout == "torchao" and words[0] in ("w8a16", "fp8a16") or layout in ("bitsandbytes", "fp8", "gptq", "awq"):
        return ROUNDED
    return ROUNDED if any(word in NARROW_ACTIVATIONS or word.startswith("fp8-block") for word in words) else EXACT


def open_model(folder, dtype="auto"):
    """The model as transformers loads it by default, and what it said about the weights."""
    config = AutoConfig.from_pretrained(folder)
    kind = AutoModelForImageTextToText if hasattr(config, "vision_config") else AutoModelForCausalLM
    return kind.from_pretrained(folder, dtype=dtype, device_map="cpu", output_loading_info=True)


def seen(model):
    """What goes into a model that sees: a picture of noise among tokens, with as many places as its patches take."""
    kind, generator = model.config.model_type, torch.Generator().manual_seed(5)
    picture = torch.randn(1, 3, 56, 56, generator=generator).to(model.dtype)
    words, places = token_ids()[:1], 16 if kind == "llava" else 4
    tokens = torch.cat([words[:, :4], torch.full((1, places), families.IMAGE), words[:, 4:]], 1)
    inputs = {"input_ids": tokens, "pixel_values": picture}
    if kind == "gemma3":
        inputs["token_type_ids"] = (tokens == families.IMAGE).long()
    if kind == "qwen2_5_vl":
        # 4 x 4 patches of two frames each.
        inputs["pixel_values"] = torch.randn(16, 3 * 2 * 14 * 14, generator=generator).to(model.dtype)
        inputs |= {"image_grid_thw": torch.tensor([[1, 4, 4]]), "mm_token_type_ids": (tokens == families.IMAGE).long()}
    return inputs


def outcome(model):
    """The logits of two texts, or of a text with a picture in it."""
    if not hasattr(model.config, "vision_config"):
        return logits_of(model)
    with torch.no_grad():
        return model.eval()(**seen(model)).logits.float()


def complaints(info):
    """What was not loaded as it lies there."""
    said = []
    for key in ("missing_keys", "unexpected_keys", "mismatched_keys", "error_msgs", "conversion_errors"):
        found = info.get(key)
        if found:
            said.append(f"{len(found)} {key.replace('_', ' ')}, such as {sorted(map(str, found))[0]}")
    return said


def read(folder):
    tensors = {}
    for path in sorted(Path(folder).glob("*.safetensors")):
        tensors |= load_file(path)
    return tensors


def of_the_library(source):
    """Why LLM.int8() of the library's own making fails, if it does."""
    try:
        settings = BitsAndBytesConfig(load_in_8bit=True)
        logits_of(AutoModelForCausalLM.from_pretrained(source, dtype="auto", device_map="cpu", quantization_config=settings))
    except Exception as error:
        return f"{type(error).__name__}: {' '.join(str(error).split())}"[:300]


def decoded(binary, source, made, work):
    """The source's folder with every weight replaced by what its codes stand for."""
    to = work / "decoded"
    shutil.rmtree(to, ignore_errors=True)
    done = quantize(binary, made, "bf16", to, "--as", "safetensors")
    if done.code:
        return None, done.err.strip().splitlines()[0]
    original, tensors = read(source), read(to)
    if {name: tensor.shape for name, tensor in tensors.items()} != {name: tensor.shape for name, tensor in original.items()}:
        return None, f"decoded to other tensors: {sorted(tensors.keys() ^ original.keys())[:2]}"
    shutil.copy(source / "config.json", to / "config.json")
    return to, None


def cell(binary, source, layout, plan, work, exact, more=()):
    made = work / "made"
    shutil.rmtree(made, ignore_errors=True)
    done = quantize(binary, source, plan, made, "--as", layout, *more)
    if done.code:
        words = " ".join(done.err.split())
        left = "" if not made.exists() else " BUT LEFT A FOLDER"
        return ("refused" if done.code in (1, 2) and not left else "WRONG"), words[:300] + left
    try:
        model, info = open_model(made)
        ours = outcome(model)
    except Exception as error:
        words = f"{type(error).__name__}: {' '.join(str(error).split())}"[:300]
        return ("alike" if layout == "bitsandbytes" and words == of_the_library(source) else "WRONG"), words
    said = complaints(info)
    if not torch.isfinite(ours).all():
        said.append("not a number in the logits")
    folder, failure = decoded(binary, source, made, work)
    if failure:
        return "WRONG", f"does not decode: {failure}"[:300]
    model, _ = open_model(folder, model.dtype)
    off, lost = relative(ours, outcome(model)), relative(ours, exact)
    if not off < bound(layout, plan):
        said.append(f"logits differ by {off:.4f} from those of the decoded weights")
    numbers = f"{off:.4f} / {lost:.4f}"
    return ("WRONG" if said else "ok"), numbers + ("; " + "; ".join(said) if said else "")


def tables(rows):
    """A table for every layout, a row for every family; the words of refusals below."""
    lines = []
    for layout in dict.fromkeys(row[1] for row in rows):
        own = [row for row in rows if row[1] == layout]
        plans = list(dict.fromkeys(row[2] for row in own))
        said = {}
        lines += [f"## {layout}", "", "| family | " + " | ".join(plans) + " |", "|---" * (len(plans) + 1) + "|"]
        for family in dict.fromkeys(row[0] for row in own):
            cells = []
            for _, _, _, verdict, words in (row for row in own if row[0] == family):
                if verdict == "refused":
                    message = words.split('"message":"')[-1].split('","hint"')[0]
                    reason = re.sub(r"`[^`]*(layers|model)[^`]*`", "`...`", message)
                    cells.append(f"refused [{said.setdefault(reason, len(said) + 1)}]")
                else:
                    cells.append({"ok": words, "alike": "fails as the library's own"}.get(verdict, f"**WRONG** {words}"))
            lines.append(f"| {family} | " + " | ".join(cell.replace("|", "/") for cell in cells) + " |")
        lines += ["", *(f"{at}. {reason}" for reason, at in said.items()), ""]
    return lines


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("binary", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--families", default=",".join(families.FAMILIES))
    parser.add_argument("--layouts", default=",".join(PLANS))
    parser.add_argument("--plans", help="separated by spaces")
    parser.add_argument("--method")
    parser.add_argument("--data", type=Path, help="the text that a method goes by")
    parser.add_argument("--table", type=Path)
    options = parser.parse_args()
    work = options.folder / "work"
    work.mkdir(parents=True, exist_ok=True)
    more = ["--method", options.method] if options.method else []
    if options.data:
        # These models take 512 tokens, and their tokenizer knows few words.
        more += ["--data", str(options.data), "--samples", "16", "--length", "128"]
    rows, wrong = [], 0
    for family in options.families.split(","):
        source = families.ensure(options.folder / "models", family)
        model, info = open_model(source)
        assert not complaints(info), (family, complaints(info))
        exact = outcome(model)
        for layout in options.layouts.split(","):
            for plan in options.plans.split() if options.plans else PLANS[layout]:
                verdict, words = cell(options.binary, source, layout, plan, work, exact, more)
                wrong += verdict == "WRONG"
                rows.append((family, layout, plan, verdict, words))
                print(f"{verdict:8} {family} {layout} {plan}: {words}", flush=True)
    if options.table:
        options.table.write_text("\n".join(tables(rows)) + "\n")
    print(f"{len(rows)} cells, {wrong} wrong")
    sys.exit(wrong > 0)


if __name__ == "__main__":
    main()
