"""Proves that GGUF files of every family are what llama.cpp's converter writes, and that llama.cpp computes with them what
transformers computes.

    python gguf_families.py BINARY FOLDER LLAMA_CPP [FAMILY ...]

LLAMA_CPP is the folder of llama.cpp's source, whose `convert_hf_to_gguf.py` converts every family of `families.py` to BF16 beside
ours: names, shapes, types, bytes and metadata are the same. Then the logits of llama.cpp are compared with those of transformers, for
F32, BF16, Q8_0 and Q4_K_M: the first two within rounding, the others within what the type loses in transformers' own layers. At last the
BF16 file is made a folder of safetensors again, which transformers loads with the logits and the tokens of the model it came from.

Accepted differences, each with its reason, are in `ACCEPTED`.
"""

import os
import shutil
import sys
from pathlib import Path

from common import logits_of, relative, token_ids
from checks import Checks, quantize

LLAMA_CPP = sys.argv[3]
sys.path.insert(0, str(Path(LLAMA_CPP) / "gguf-py"))
sys.path.insert(0, LLAMA_CPP)
os.environ["NO_LOCAL_GGUF"] = "1"

import gguf  # noqa: E402
import numpy as np  # noqa: E402
import torch  # noqa: E402
from conversion import ModelBase, ModelType, get_model_architecture, get_model_class  # noqa: E402
from conversion.base import TextModel  # noqa: E402
from transformers import AutoModelForCausalLM, AutoModelForImageTextToText, AutoTokenizer  # noqa: E402

import families  # noqa: E402
import llamacpp  # noqa: E402

# The converter knows tokenizers by the hash of a text's tokens; those of these models are in no list.
TextModel.get_vocab_base_pre = lambda self, tokenizer: "gpt-2"
_load = ModelBase.load_hparams


def _hparams(folder, is_mistral_format=False):
    """The configuration with the name that the converter knows NeoX's share of turned rows by."""
    found = _load(folder, is_mistral_format)
    if found.get("model_type") == "gpt_neox":
        found.setdefault("rotary_pct", (found.get("rope_parameters") or {}).get("partial_rotary_factor"))
    return found


ModelBase.load_hparams = staticmethod(_hparams)

# Keys that may differ: what they are, and why.
ACCEPTED = {
    "general.name": "made of the folder's name, with capitals there",
    "general.basename": "guessed from the folder's name there",
    "general.finetune": "guessed from the folder's name there",
    "general.version": "guessed from the folder's name there",
    "general.size_label": "counts what is stored here",
    "general.file_type": "left out for NeoX there, until its quantizer adds it",
}
# How far the logits of the median token may be, relative to their spread.
BOUNDS = {"fp32": 5e-3, "bf16": 2e-2, "q8_0": 6e-2, "q4_k_m": 0.5}
SEEING = {"gemma3", "qwen2-5-vl", "llava", "llama4"}


def convert(source, target):
    """What llama.cpp's converter makes of a model, in BF16."""
    architecture = get_model_architecture(ModelBase.load_hparams(source), ModelType.TEXT)
    with torch.inference_mode():
        get_model_class(architecture)(source, gguf.LlamaFileType.MOSTLY_BF16, target, eager=True).write()


def read(path):
    reader = gguf.GGUFReader(path)
    keys = {name: field.contents() for name, field in reader.fields.items() if not name.startswith("GGUF.")}
    tensors = {
        tensor.name: (tensor.tensor_type.name, tuple(int(n) for n in tensor.shape), np.ascontiguousarray(tensor.data).tobytes())
        for tensor in reader.tensors
    }
    return keys, tensors


def compare(checks, family, ours, theirs):
    """Names, shapes, types and bytes of all tensors, and all the metadata."""
    (our_keys, our_tensors), (their_keys, their_tensors) = read(ours), read(theirs)
    checks.check(f"{family} names", sorted(our_tensors) == sorted(their_tensors), str(set(our_tensors) ^ set(their_tensors)))
    common = our_tensors.keys() & their_tensors.keys()
    different = [name for name in sorted(common) if our_tensors[name] != their_tensors[name]]
    if "rope_freqs.weight" in different:
        # Powers in single precision, by another library.
        ours, theirs = (np.frombuffer(of["rope_freqs.weight"][2], np.float32) for of in (our_tensors, their_tensors))
        if np.allclose(ours, theirs, rtol=2e-6, atol=0):
            different.remove("rope_freqs.weight")
    told = [(name, our_tensors[name][:2], their_tensors[name][:2]) for name in different[:4]]
    checks.check(f"{family} {len(common)} tensors", not different, f"{len(different)}: {told}")
    keys = (our_keys.keys() | their_keys.keys()) - ACCEPTED.keys()
    different = [key for key in sorted(keys) if our_keys.get(key) != their_keys.get(key)]
    told = [(key, str(our_keys.get(key))[:60], str(their_keys.get(key))[:60]) for key in different]
    checks.check(f"{family} {len(keys)} keys", not different, str(told))


def flat(tensors):
    """The tensors without dimensions of one at the end, which llama.cpp drops."""
    return {
        name: tensor._replace(shape=tensor.shape[:-1] if tensor.shape[-1] == 1 and len(tensor.shape) > 1 else tensor.shape)
        for name, tensor in tensors.items()
    }


def typical(found, expected):
    """The median over tokens of how far their logits are: a router that chooses another expert by a hair moves a few of them far."""
    off = (found - expected).pow(2).mean(-1) / expected.pow(2).mean(-1)
    return off.sqrt().median().item()


# What is written back is the language model alone, but for this one, which transformers has no class for without its eyes.
BACK_SEEING = {"qwen2-5-vl"}
# llama.cpp puts a space before a text unless it is told not to, and Phi's converter does not tell.
SPACED = {"phi3"}
TEXT = "def walk(top, topdown=True):\n    yield  top, 12345 na\u00efve \u6771\u4eac"


def back(checks, binary, family, source, path, folder, expected):
    """A GGUF file as a source: the folder made of it is the model again."""
    shutil.rmtree(folder, ignore_errors=True)
    done = quantize(binary, path, "bf16", folder, "--as", "safetensors")
    if not checks.check(f"{family} back: decodes", done.code == 0, done.err.strip()[:400] if done.code else ""):
        return
    loader = AutoModelForImageTextToText if family in BACK_SEEING else AutoModelForCausalLM
    off = relative(logits_of(loader.from_pretrained(folder, dtype=torch.float32)), expected)
    checks.check(f"{family} back: logits", off < 1e-4, f"rel. rms {off:.6f} to the original")
    tokens = [AutoTokenizer.from_pretrained(one)(TEXT, add_special_tokens=False)["input_ids"] for one in (source, folder)]
    if family in SPACED:
        checks.skip(f"{family} back: tokens", "the GGUF file says that a space comes first")
    else:
        checks.check(f"{family} back: tokens", tokens[0] == tokens[1], f"{len(tokens[0])} tokens")


def main(binary, folder, names):
    checks = Checks()
    folder = Path(folder)
    for kind in ("models", "theirs", "ours"):
        (folder / kind).mkdir(parents=True, exist_ok=True)
    for family in names or families.FAMILIES:
        source = families.ensure(folder / "models", family)
        theirs = folder / "theirs" / f"{family}.gguf"
        if not theirs.exists():
            convert(source, theirs)
        loader = AutoModelForImageTextToText if family in SEEING else AutoModelForCausalLM
        expected = logits_of(loader.from_pretrained(source, dtype=torch.float32))
        for plan, bound in BOUNDS.items():
            ours = folder / "ours" / f"{family}-{plan}.gguf"
            ours.unlink(missing_ok=True)
            done = quantize(binary, source, plan, ours)
            if not checks.check(f"{family} {plan}: quantizes", done.code == 0, done.err.strip()[:400] if done.code else ""):
                continue
            if plan == "bf16":
                compare(checks, family, ours, theirs)
                back(checks, binary, family, source, ours, folder / "back", expected)
            try:
                found = llamacpp.llama_logits(llamacpp.open_model(ours))
                off = typical(found, expected)
                detail = f"rel. rms {off:.5f} to transformers in the median token, {relative(found, expected):.5f} in all"
                checks.check(f"{family} {plan}: logits", off < bound, detail)
            except Exception as error:
                checks.check(f"{family} {plan}: llama.cpp loads it", False, f"{type(error).__name__}: {error}"[:300])
            if plan in llamacpp.REQUANTIZED:
                path = folder / "theirs" / f"{family}-{plan}.gguf"
                code = llamacpp.requantize(folder / "ours" / f"{family}-bf16.gguf", path, llamacpp.REQUANTIZED[plan])
                if checks.check(f"{family} {plan}: llama_model_quantize", code == 0):
                    made = [flat(llamacpp.raw(one)) for one in (ours, path)]
                    checks.same_tensors(f"{family} {plan}: as llama_model_quantize makes it", *made)
    checks.finish()


if __name__ == "__main__":
    assert token_ids().max() < families.VOCABULARY
    main(sys.argv[1], sys.argv[2], sys.argv[4:])
