"""Proves that GGUF files are what llama.cpp writes and loads.

    python llamacpp.py BINARY FOLDER [MODEL ...]

For every model: llama.cpp loads each type, and its logits are those of transformers with the same, decoded weights, when what enters a
product is rounded as llama.cpp rounds it; texts become the tokens of the Hugging Face tokenizer; and `llama_model_quantize`, given our
BF16 or F16 file, writes the same tensors, byte by byte, that we write from safetensors. Models with tied embeddings and Llama 3's rope
are among them.
"""

import ctypes
import json
import shutil
import sys
import tempfile
from pathlib import Path

from common import relative, token_ids
from checks import Checks, Tensor, quantize

import gguf_cases
import llama_cpp
import numpy as np
import torch
from gguf import GGMLQuantizationType as Type
from gguf import GGUFReader
from transformers import AutoModelForCausalLM, AutoTokenizer

import models

TYPES = ["fp32", "fp16", "bf16", "q8_0", "q6_k", "q5_1", "q5_k_m", "q5_k_s", "q5_0", "q4_1", "q4_k_m", "q4_k_s", "q4_0"]
TYPES += ["iq4_nl", "iq4_xs", "q3_k_l", "q3_k_m", "q3_k_s", "q2_k", "mxfp4a16", "nvfp4a16"]
# What llama_model_quantize makes, by its number.
REQUANTIZED = {"q8_0": 7, "q4_0": 2, "q6_k": 18, "q4_k_s": 14, "q4_k_m": 15, "q5_0": 8, "q5_k_s": 16, "q5_k_m": 17}
REQUANTIZED |= {"iq4_nl": 25, "iq4_xs": 30, "q5_1": 9, "q4_1": 3, "q3_k_l": 13, "q3_k_m": 12, "q3_k_s": 11, "q2_k": 10}
# Rounding amplifies: noise of 1e-4 in what is rounded, as other orders of summation give, moves these logits by 2 to 4 %. Two rows
# of values swapped in one layer move them by 35 %, queries in the wrong order by 119 %. What is stored is compared byte by byte.
BOUND = 0.05
TEXTS = [
    "The quick brown fox jumps over the lazy dog.",
    "def walk(top, topdown=True, onerror=None):\n    yield top, dirs, nondirs\n",
    "  leading spaces, 12345 and 3.14159; it's we'll they're",
    "naïve café — Größe 東京 🙂 ½",
    "\t\ttabs\n\n\nlines   \n",
    "",
]

_quiet = llama_cpp.llama_log_callback(lambda *_: None)
llama_cpp.llama_log_set(_quiet, ctypes.c_void_p(0))

_defaults = llama_cpp.llama_model_default_params


def _plain_defaults():
    """Weights as they lie in the file: repacked ones use matrix instructions that some virtual machines announce and then refuse."""
    parameters = _defaults()
    parameters.use_extra_bufts = False
    return parameters


llama_cpp.llama_model_default_params = _plain_defaults
llama_cpp.llama_cpp.llama_model_default_params = _plain_defaults


def open_model(path):
    return llama_cpp.Llama(str(path), n_ctx=512, n_threads=2, n_threads_batch=2, logits_all=True, verbose=False)


def llama_logits(model):
    """What llama.cpp computes for the sequences of `token_ids`."""
    found = []
    for sequence in token_ids().tolist():
        model.reset()
        model.eval(sequence)
        found.append(np.array(model.scores[: len(sequence)], np.float32))
    return torch.from_numpy(np.stack(found))


def rounded(x, kind):
    """What enters a product with weights of this type, as llama.cpp rounds it."""
    if kind == Type.F32:
        return x
    if kind in (Type.F16, Type.BF16):
        return x.to(torch.float16 if kind == Type.F16 else torch.bfloat16).float()
    size = 256 if kind.name.endswith("_K") or kind == Type.IQ4_XS else 32
    blocks = x.unflatten(-1, (-1, size))
    scale = blocks.abs().amax(-1, keepdim=True) / 127
    codes = torch.where(scale > 0, blocks / scale, 0.0).round()
    # Blocks of 256 have an FP32 scale, blocks of 32 an FP16 one.
    return (codes * (scale if size == 256 else scale.half().float())).flatten(-2)


def decoded_logits(source, path):
    """What transformers computes in FP32 with the weights that a GGUF file stands for: with inputs of products as they are, and rounded."""
    model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32).eval()
    tensors = {tensor.name: tensor for tensor in GGUFReader(path).tensors}
    config = model.config
    for name, parameter in model.named_parameters():
        target = gguf_cases.target(name)
        scale = tensors.get(target.removesuffix(".weight") + ".scale")
        values = gguf_cases.decode(tensors[target], float(scale.data[0]) if scale is not None else 1.0)
        heads = config.num_attention_heads if "q_proj" in name else config.num_key_value_heads if "k_proj" in name else None
        if heads:
            rows, columns = values.shape
            values = values.reshape(heads, rows // heads // 2, 2, columns).swapaxes(1, 2)
        parameter.data.copy_(torch.from_numpy(np.ascontiguousarray(values)).reshape(parameter.shape))
    with torch.no_grad():
        plain = model(token_ids()).logits
        for name, module in model.named_modules():
            if isinstance(module, torch.nn.Linear):
                target = gguf_cases.target(f"{name}.weight")
                kind = tensors[target if target in tensors else "token_embd.weight"].tensor_type
                module.register_forward_pre_hook(lambda _, inputs, kind=kind: (rounded(inputs[0], kind),))
        return plain, model(token_ids()).logits


def raw(path):
    return {
        tensor.name: Tensor(tensor.tensor_type.name, tuple(int(n) for n in tensor.shape), np.ascontiguousarray(tensor.data).tobytes())
        for tensor in GGUFReader(path).tensors
    }


def without_undefined(tensors, plain):
    """The tensors, with zeros for the codes of those Q8_0 blocks that C leaves undefined: weights so small that the reciprocal of their
    scale is infinite."""
    changed = dict(tensors)
    for name, tensor in tensors.items():
        if tensor.dtype == "Q8_0":
            scale = np.abs(np.frombuffer(plain[name].data, np.float32)).reshape(-1, 32).max(1) / np.float32(127)
            blocks = np.frombuffer(tensor.data, np.uint8).reshape(-1, 34).copy()
            blocks[(scale > 0) & np.isinf(np.float32(1) / scale), 2:] = 0
            changed[name] = tensor._replace(data=blocks.tobytes())
    return changed


def requantize(source, to, kind, threads=2):
    parameters = llama_cpp.llama_model_quantize_default_params()
    parameters.nthread, parameters.ftype = threads, kind
    return llama_cpp.llama_model_quantize(str(source).encode(), str(to).encode(), ctypes.byref(parameters))


def compare(checks, binary, name, source, work):
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir()
    original = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32)
    with torch.no_grad():
        exact = original.eval()(token_ids()).logits
    for kind in TYPES:
        path = work / f"{kind}.gguf"
        done = quantize(binary, source, kind, path)
        if not checks.check(f"{name} {kind}: quantizes", done.code == 0, done.err.strip()[:300] if done.code else ""):
            continue
        try:
            model = open_model(path)
        except Exception as error:
            checks.check(f"{name} {kind}: llama.cpp loads it", False, f"{type(error).__name__}: {error}"[:200])
            continue
        found = llama_logits(model)
        plain, alike = decoded_logits(source, path)
        detail = f"rel. rms {relative(found, alike):.4f} to transformers with the decoded weights and rounded inputs, "
        detail += f"{relative(found, plain):.4f} with inputs as they are, {relative(found, exact):.4f} to the original"
        checks.check(f"{name} {kind}: logits", relative(found, alike) < BOUND, detail)
        if kind == "q8_0":
            tokens(checks, name, source, model)
        model.close()
    stored = json.loads((source / "config.json").read_text())["dtype"]
    base = work / ("fp16.gguf" if stored == "float16" else "bf16.gguf")
    plain = raw(work / "fp32.gguf") if base.exists() else {}
    for kind, number in REQUANTIZED.items() if base.exists() else ():
        path = work / f"{kind}-by-llamacpp.gguf"
        code = requantize(base, path, number)
        if checks.check(f"{name} {kind}: llama_model_quantize", code == 0):
            ours, theirs = (without_undefined(raw(one), plain) for one in (work / f"{kind}.gguf", path))
            checks.same_tensors(f"{name} {kind}: tensors as llama_model_quantize makes them", ours, theirs)


def tokens(checks, name, source, model):
    """Texts become the same tokens, and tokens the same texts."""
    tokenizer = AutoTokenizer.from_pretrained(source)
    wrong = []
    for text in TEXTS:
        wanted = tokenizer(text, add_special_tokens=False)["input_ids"]
        found = model.tokenize(text.encode(), add_bos=False, special=False)
        if found != wanted:
            wrong.append(f"{text!r}: {found} instead of {wanted}")
        elif model.detokenize(found).decode(errors="replace") != text:
            wrong.append(f"{text!r} comes back as {model.detokenize(found)!r}")
    checks.check(f"{name}: the tokenizer", not wrong, "; ".join(wrong[:2])[:400] or f"{len(TEXTS)} texts")
    special = (model.token_bos(), model.token_eos())
    checks.check(f"{name}: first and last token", special == (tokenizer.bos_token_id, tokenizer.eos_token_id), f"{special}")


def main():
    binary, folder, *chosen = sys.argv[1:]
    np.seterr(all="ignore")
    checks = Checks()
    with tempfile.TemporaryDirectory(dir=folder) as work:
        for model in chosen or ["tiny", "tiny-f16", "tiny-tied", "tiny-sharded", "tiny-edge"]:
            compare(checks, binary, model, models.ensure(folder, model), Path(work) / "files")
    checks.finish()


if __name__ == "__main__":
    main()
