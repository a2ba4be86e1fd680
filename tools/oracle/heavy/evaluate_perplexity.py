"""Proves that perplexities of `roofline evaluate` are those of transformers and of llama.cpp, for the same file.

    python evaluate_perplexity.py BINARY FOLDER [--model CHECKPOINT] [--text FILE] [--formats w4a16 q4_0 ...] [--out FILE.json]

Every format is quantized once with `roofline quantize` into FOLDER. Then the same file goes through `roofline evaluate` and through
its own library, over the same windows: transformers for folders, in FP32 and in BF16, with activations rounded as the checkpoint
says; llama.cpp for GGUF files, in chunks of which the second half is scored, as its `perplexity` tool does. The original goes through
both libraries, too, so that divergences compare. The perplexity may differ by 0.5 %.

BINARY may be `-` to see what the libraries say alone.
"""

import argparse
import ctypes
import json
import math
import subprocess
import sys
import time
from pathlib import Path

from common import torch
from checks import Checks

import llama_cpp
import numpy as np
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM

DEMO = Path(__file__).resolve().parents[3] / "crates/roofline-verbs/data/demo"
FOLDERS = ["bf16", "w4a16", "int8", "fp8", "nvfp4a16"]
FILES = ["q8_0", "q4_0", "q4_k_m"]
NUMBERS = {"FP32": torch.float32, "BF16": torch.bfloat16}
# Share by which perplexities may differ.
BOUND = 0.005
# Whose activations are rounded, too.
ACTIVATIONS = {"int8", "fp8"}


def windows(ids, begin, window, stride):
    """Token ids of each window, which positions of it are scored, and whether it is one of llama.cpp's chunks."""
    for at in range(0, len(ids) - window + 1, stride):
        own = list(ids[at : at + window])
        if begin is not None:
            own[0] = begin
        first = 1 if at == 0 else max(window - stride, 1)
        yield own, first, at % window == 0 and 2 * stride == window


class Scores:
    """Sums over scored tokens, and over those of llama.cpp's chunks."""

    def __init__(self):
        self.loss = self.chunk_loss = self.divergence = 0.0
        self.tokens = self.chunk_tokens = self.same = 0

    def add(self, logits, own, first, is_chunk, original=None):
        """Logits of a window: row i says what follows token i."""
        logs = torch.log_softmax(logits.double(), -1)
        target = torch.tensor(own[1:])
        losses = -logs[:-1].gather(1, target[:, None])[:, 0]
        scored = slice(first - 1, len(own) - 1)
        self.loss += losses[scored].sum().item()
        self.tokens += losses[scored].numel()
        if is_chunk:
            chunk = losses[len(own) // 2 :]
            self.chunk_loss += chunk.sum().item()
            self.chunk_tokens += chunk.numel()
        if original is not None:
            before = torch.log_softmax(original.double(), -1)
            divergence = (before.exp() * (before - logs)).sum(-1)[:-1]
            self.divergence += divergence[scored].sum().item()
            self.same += (logs.argmax(-1) == before.argmax(-1))[:-1][scored].sum().item()

    def told(self, with_original):
        told = {"perplexity": math.exp(self.loss / self.tokens), "tokens": self.tokens}
        if self.chunk_tokens:
            told["llama_cpp_perplexity"] = math.exp(self.chunk_loss / self.chunk_tokens)
        if with_original:
            told |= {"kl_divergence": self.divergence / self.tokens, "top1_agreement": self.same / self.tokens}
        return told


def rounds_inputs(model):
    """Whether a product of the model rounds what enters it: its output is not that of its weights alone. Eight bits move it by half a
    percent and more, weights that the library rounds to BF16 on the way by a fifth."""
    layer = model.model.layers[0].self_attn.q_proj
    x = torch.randn(4, layer.in_features, generator=torch.Generator().manual_seed(1)).to(layer.weight.dtype)
    with torch.no_grad():
        plain = torch.nn.functional.linear(x, layer.weight)
        return ((layer(x) - plain).norm() / plain.norm()).item() > 3e-3


def by_transformers(folder, dtype, spans):
    """Logits of every window; a first pass decompresses what is stored."""
    # compressed-tensors makes BF16 of four-bit floats, whatever it is asked for.
    four = "nvfp4" in str(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16 if four else dtype, device_map="cpu").eval()
    with torch.no_grad():
        model(torch.tensor([spans[0][0][:8]]))
        model = model.to(dtype)
        yield rounds_inputs(model)
        for own, *_ in spans:
            yield model(torch.tensor([own])).logits[0].float()


def quiet():
    callback = llama_cpp.llama_log_callback(lambda *_: None)
    llama_cpp.llama_log_set(callback, ctypes.c_void_p(0))
    return callback


class LlamaCpp:
    """A GGUF file in llama.cpp, by its C interface: logits of all tokens of a window."""

    def __init__(self, path, window):
        parameters = llama_cpp.llama_model_default_params()
        # Weights as they lie in the file: repacked ones use instructions that some virtual machines announce and then refuse.
        parameters.use_extra_bufts = False
        parameters.n_gpu_layers = 0
        self.model = llama_cpp.llama_model_load_from_file(str(path).encode(), parameters)
        self.vocabulary = llama_cpp.llama_model_get_vocab(self.model)
        settings = llama_cpp.llama_context_default_params()
        settings.n_ctx = settings.n_batch = settings.n_ubatch = window
        settings.n_threads = settings.n_threads_batch = 2
        self.context = llama_cpp.llama_init_from_model(self.model, settings)
        self.size = llama_cpp.llama_vocab_n_tokens(self.vocabulary)

    def tokens(self, text):
        data = text.encode()
        room = (llama_cpp.llama_token * (len(data) + 8))()
        count = llama_cpp.llama_tokenize(self.vocabulary, data, len(data), room, len(room), True, False)
        return list(room[:count])

    def logits(self, own):
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self.context), True)
        batch = llama_cpp.llama_batch_init(len(own), 0, 1)
        batch.n_tokens = len(own)
        for at, token in enumerate(own):
            batch.token[at], batch.pos[at], batch.n_seq_id[at], batch.logits[at] = token, at, 1, 1
            batch.seq_id[at][0] = 0
        code = llama_cpp.llama_decode(self.context, batch)
        assert code == 0, f"llama_decode: {code}"
        found = np.ctypeslib.as_array(llama_cpp.llama_get_logits(self.context), (len(own), self.size)).copy()
        llama_cpp.llama_batch_free(batch)
        return torch.from_numpy(found)

    def close(self):
        llama_cpp.llama_free(self.context)
        llama_cpp.llama_model_free(self.model)


def by_llama_cpp(path, spans, window):
    model = LlamaCpp(path, window)
    try:
        for own, *_ in spans:
            yield model.logits(own)
    finally:
        model.close()


def scored(logits, spans, originals=None):
    scores = Scores()
    for at, (rows, span) in enumerate(zip(logits, spans, strict=True)):
        scores.add(rows, *span, original=None if originals is None else originals[at])
    return scores.told(originals is not None)


def quantized(binary, model, plan, folder):
    """The file of a plan; the model itself where that is 16 bit in a folder."""
    if plan == "bf16":
        return model
    target = folder / (f"{plan}.gguf" if plan in FILES or plan == "gguf-bf16" else plan)
    name = "bf16" if plan == "gguf-bf16" else plan
    subprocess.run([binary, "quantize", model, "--plan", name, "--to", target, "--force"], check=True, capture_output=True)
    return target


def ours(binary, path, model, text, asked):
    """What `roofline evaluate` says of the same file, over the same windows."""
    command = [binary, "evaluate", path, "--against", model, "--text", text, "--json", "--window", str(asked.window)]
    command += ["--stride", str(asked.window // 2)]
    if asked.values:
        command += ["--values", asked.values]
    found = subprocess.run(command, capture_output=True, text=True)
    if found.returncode:
        raise RuntimeError(found.stderr.strip())
    return json.loads(found.stdout)


def row(checks, plan, library, theirs, own):
    """One line of the table: what both say, and whether they agree."""
    key = "perplexity" if library.startswith("transformers") else "llama_cpp_perplexity"
    line = {"format": plan, "library": library, "measure": key, "theirs": theirs[key]}
    line |= {"their_kl": theirs.get("kl_divergence"), "their_top1": theirs.get("top1_agreement")}
    if own is not None:
        line |= {"ours": own[key], "difference": own[key] / theirs[key] - 1}
        line |= {"our_kl": own.get("kl_divergence"), "our_top1": own.get("top1_agreement")}
        checks.check(f"{plan} by {library}", abs(line["difference"]) <= BOUND, f"ours {own[key]:.4f}, theirs {theirs[key]:.4f}")
    return line


def table(lines):
    """The lines in Markdown."""
    number = lambda value, digits: "" if value is None else f"{value:.{digits}f}"  # noqa: E731
    yield "| format | library | measure | ours | theirs | difference | our KL | their KL | our top-1 | their top-1 |"
    yield "|---|---|---|---:|---:|---:|---:|---:|---:|---:|"
    for line in lines:
        difference = line.get("difference")
        cells = [line["format"], line["library"], line["measure"].replace("_", " ")]
        cells += [number(line.get("ours"), 4), number(line["theirs"], 4)]
        cells += ["" if difference is None else f"{100 * difference:+.3f} %"]
        cells += [number(line.get("our_kl"), 5), number(line["their_kl"], 5)]
        cells += [number(line.get("our_top1"), 4), number(line["their_top1"], 4)]
        yield "| " + " | ".join(cells) + " |"


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("binary")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--model", type=Path, default=DEMO, help="a checkpoint with a tokenizer.json; the demo model when left out")
    parser.add_argument("--text", type=Path, default=DEMO / "evaluation.txt")
    parser.add_argument("--formats", nargs="+", default=FOLDERS + FILES)
    parser.add_argument("--window", type=int, default=512)
    parser.add_argument("--bytes", type=int, help="only so much of the text")
    parser.add_argument("--numbers", nargs="+", default=list(NUMBERS), choices=NUMBERS, help="what transformers computes in")
    parser.add_argument("--values", help="the numbers between our kernels: bf16 or fp32")
    parser.add_argument("--quantize", help="the program that quantizes, where BINARY is `-`")
    parser.add_argument("--out", type=Path, help="the same as JSON")
    return parser.parse_args()


def main():
    asked = arguments()
    torch.set_num_threads(2)
    asked.folder.mkdir(parents=True, exist_ok=True)
    alone = asked.binary == "-"
    text = asked.text
    if asked.bytes:
        # Cut where a character ends.
        cut = asked.text.read_bytes()[: asked.bytes].decode(errors="ignore")
        text = asked.folder / "text.txt"
        text.write_text(cut)
    tokenizer = Tokenizer.from_file(str(asked.model / "tokenizer.json"))
    content = text.read_text()
    ids = tokenizer.encode(content).ids
    plain = tokenizer.encode(content, add_special_tokens=False).ids
    begin = ids[0] if len(ids) > len(plain) else None
    spans = list(windows(ids, begin, asked.window, asked.window // 2))
    print(f"{len(ids)} tokens, {len(spans)} windows of {asked.window}, each begins with {begin}", flush=True)
    checks, lines, quietly = Checks(), [], quiet()
    maker = asked.quantize if alone else asked.binary
    originals = {}

    def original(kind, make):
        if kind not in originals:
            originals[kind] = list(make())
        return originals[kind]

    for plan in asked.formats:
        begun = time.time()
        path = quantized(maker, asked.model, plan, asked.folder)
        own = None if alone else ours(asked.binary, path, asked.model, text, asked)
        if plan in FILES:
            wide = quantized(maker, asked.model, "gguf-bf16", asked.folder)
            before = original("llama.cpp", lambda wide=wide: by_llama_cpp(wide, spans, asked.window))
            model = LlamaCpp(path, asked.window)
            same = model.tokens(content) == ids
            checks.check(f"{plan}: tokens of llama.cpp", same, "the tokenizer's" if same else "it cuts the text elsewhere")
            model.close()
            lines.append(row(checks, plan, "llama.cpp", scored(by_llama_cpp(path, spans, asked.window), spans, before), own))
        else:
            for name in asked.numbers:
                dtype = NUMBERS[name]
                before = original(name, lambda dtype=dtype: list(by_transformers(asked.model, dtype, spans))[1:])
                logits = by_transformers(path, dtype, spans)
                rounds = next(logits)
                expected = plan in ACTIVATIONS
                checks.check(f"{plan}: activations in {name}", rounds == expected, "rounded" if rounds else "as they are")
                lines.append(row(checks, plan, f"transformers, {name}", scored(logits, spans, before), own))
        print(f"{plan}: {time.time() - begun:.0f} s", flush=True)
    del quietly
    print("\n".join(table(lines)))
    if asked.out:
        asked.out.write_text(json.dumps({"tokens": len(ids), "window": asked.window, "rows": lines}, indent=1) + "\n")
    checks.finish()


if __name__ == "__main__":
    sys.exit(main())
