"""Makes the small random models of every family that the engine's tests run, and what transformers computes with them.

    python engine_fixtures.py ../../../crates/roofline-engine/tests/data [FAMILY ...]

A family's folder has `config.json`, the weights as bfloat16 in `model.safetensors`, and `expected.safetensors`:

| tensor | what it is |
|---|---|
| `tokens` [2, 24] | two sequences of random tokens |
| `logits` [2, 24, vocabulary] | of the model in FP32: one forward pass, eager attention, no cache |
| `logits_bf16` | the same of the model in BF16, as FP32 numbers |
| `greedy` [12] | what follows the first ten tokens of the first sequence, chosen greedily in FP32 |

For `phi3-longrope` there are also `logits_short` [2, 12, vocabulary] of the first twelve tokens, which are few enough for the short factors, and
`greedy_long` [12], which follows the first twenty. Its `greedy` crosses the border: there, everything before is computed again with the long factors.

The seed of a family is the first with which no greedy choice and no choice of experts is close, so that other orders of summation choose the same,
and with which BF16 rounds and does not choose otherwise.
Then every tensor and every setting of `MATTERS` is changed in turn: what does not move the logits would prove nothing.
"""

import json
import shutil
import sys
import tempfile
from pathlib import Path

import common  # noqa: F401: settings of the libraries

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from engine_families import FAMILIES, MATTERS

LENGTH, PROMPT, LONG_PROMPT, SHORT, GENERATED = 24, 10, 20, 12, 12
# A greedy choice is this much larger than the next, an expert's score this much larger than the first one left out.
MARGIN, EXPERT_MARGIN = 0.02, 0.03
# The most that BF16 moves the logits by, relative root mean square: with more, it chose other experts somewhere.
ROUNDING = 0.035
# What a changed setting or tensor moves the logits by, at least: relative root mean square.
SEEN = 0.01


def start(name, tensor, config):
    """What a tensor's numbers lie around: one or zero for norms, as the family has it, and zero for all else."""
    if "norm" not in name or not name.endswith("weight"):
        return 0.0
    # Attention that looks at some tokens more than at others.
    if config.model_type.startswith("qwen3") and name.endswith(("q_norm.weight", "k_norm.weight")):
        return 1.5
    # Gemma's embeddings are too small for logits of a few.
    return 3.0 if is_gemma(config) and name == "model.norm.weight" else tensor.float()


def is_gemma(config):
    return config.model_type.startswith("gemma")


def spread(name, tensor, config):
    """How far its numbers lie apart: outputs of products are about one, logits a few, scores of attention about two."""
    if "norm" in name or name.endswith("bias"):
        return 0.25
    if name.endswith("sinks"):
        return 1.5
    if name.endswith("embed_tokens.weight"):
        # Gemma multiplies what it looks up by the root of the width.
        return 0.1 if is_gemma(config) else 0.35 if config.tie_word_embeddings else 1.0
    # gpt-oss has inputs before outputs.
    inputs = tensor.shape[1] if config.model_type == "gpt_oss" and tensor.ndim == 3 else tensor.shape[-1]
    gain = 3.0 if "lm_head" in name else 1.5 if any(part in name for part in ("q_proj", "k_proj", "qkv_proj")) else 1.2
    return gain / inputs**0.5


def fill(model, seed):
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, tensor in model.named_parameters():
            noise = torch.randn(tensor.shape, generator=generator, dtype=torch.float32)
            tensor.copy_((start(name, tensor, model.config) + noise * spread(name, tensor, model.config)).to(torch.bfloat16))
    return generator


def packed(tensors, generator):
    """Random MXFP4 blocks in place of every expert, and the same tensors with what the blocks stand for."""
    blocks, decoded = {}, dict(tensors)
    for name, tensor in tensors.items():
        if not name.endswith(("gate_up_proj", "down_proj")):
            blocks[name] = tensor
            continue
        count, inputs, outputs = tensor.shape
        codes = torch.randint(0, 256, (count, outputs, inputs // 32, 16), generator=generator, dtype=torch.uint8)
        # Codes have a spread of 3 or so; 2^-5 and 2^-4 of it make outputs about one.
        scales = torch.randint(122, 124, (count, outputs, inputs // 32), generator=generator, dtype=torch.uint8)
        blocks |= {f"{name}_blocks": codes, f"{name}_scales": scales}
        decoded[name] = convert_moe_packed_tensors(codes, scales, dtype=torch.bfloat16).contiguous()
    return blocks, decoded


def write(folder, config, seed):
    """The checkpoint: its configuration as it is given, its weights as transformers saves them. A folder of its own has what transformers loads."""
    plain = folder / "plain"
    plain.mkdir()
    unpacked = {name: value for name, value in config.items() if name != "quantization_config"}
    (plain / "config.json").write_text(json.dumps(unpacked))
    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(plain), dtype=torch.float32)
    generator = fill(model, seed)
    model.to(torch.bfloat16).save_pretrained(plain)
    # Transformers writes its own words for the configuration.
    (plain / "config.json").write_text(json.dumps(unpacked))
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    tensors = load_file(plain / "model.safetensors")
    if "quantization_config" in config:
        blocks, tensors = packed(tensors, generator)
        save_file(tensors, plain / "model.safetensors", {"format": "pt"})
        save_file(blocks, folder / "model.safetensors", {"format": "pt"})
    else:
        shutil.copy(plain / "model.safetensors", folder)
    return plain, torch.randint(0, config["vocab_size"], (2, LENGTH), generator=generator)


def load(folder, dtype=torch.float32):
    model, report = AutoModelForCausalLM.from_pretrained(
        folder, dtype=dtype, attn_implementation="eager", experts_implementation="eager", output_loading_info=True
    )
    wrong = [name for kind in ("missing_keys", "unexpected_keys", "mismatched_keys") for name in report[kind]]
    if wrong:
        sys.exit(f"{folder}: transformers does not find {wrong[:3]}")
    return model.eval()


def logits(model, tokens):
    with torch.no_grad():
        return model(tokens, use_cache=False).logits.float()


def greedy(model, prompt, cached):
    """Twelve tokens, and by how much each was the largest. Without a cache, every step computes all again."""
    tokens, cache, margins = prompt[None], None, []
    with torch.no_grad():
        for _ in range(GENERATED):
            given = tokens[:, -1:] if cache is not None else tokens
            found = model(given, past_key_values=cache, use_cache=cached)
            cache = found.past_key_values if cached else None
            top = found.logits[0, -1].topk(2)
            margins.append((top.values[0] - top.values[1]).item())
            tokens = torch.cat([tokens, top.indices[None, :1]], 1)
    return tokens[0, len(prompt) :], min(margins)


def expert_margin(model, tokens):
    """By how much the last expert chosen scores above the first one left out, at the closest."""
    margins = []

    def see(module, inputs, _):
        scores = torch.nn.functional.linear(inputs[0].reshape(-1, module.weight.shape[1]), module.weight, getattr(module, "bias", None))
        ordered = scores.float().sort(-1, descending=True).values
        count = model.config.num_experts_per_tok
        margins.append((ordered[:, count - 1] - ordered[:, count]).min().item())

    hooks = [
        module.register_forward_hook(see)
        for name, module in model.named_modules()
        if name.endswith((".mlp.gate", ".mlp.router", ".block_sparse_moe.gate")) and getattr(module, "weight", None) is not None
    ]
    logits(model, tokens)
    for hook in hooks:
        hook.remove()
    if hasattr(model.config, "num_experts_per_tok") and not margins:
        sys.exit(f"{model.config.model_type}: no choice of experts was seen")
    return min(margins, default=float("inf"))


def expected(plain, tokens):
    """What transformers computes, or nothing where a choice is close."""
    model = load(plain)
    # Where long sequences are scaled otherwise, what is in the cache has the wrong scale beyond the border.
    crosses = getattr(model.config, "rope_parameters", {}).get("rope_type") == "longrope"
    # What rounding to BF16 moves must not reach the next expert.
    if expert_margin(model, tokens) < EXPERT_MARGIN:
        return None
    chosen, margin = greedy(model, tokens[0, :PROMPT], not crosses)
    # A continuation that only repeats itself would be easy to meet, and one that ends would be cut.
    easy = len(set(chosen.tolist())) < GENERATED // 2 or model.config.eos_token_id in chosen.tolist()
    if easy or margin < MARGIN:
        return None
    found = {"tokens": tokens, "logits": logits(model, tokens), "greedy": chosen}
    if crosses:
        found["logits_short"] = logits(model, tokens[:, :SHORT])
        found["greedy_long"], margin = greedy(model, tokens[0, :LONG_PROMPT], True)
        if margin < MARGIN:
            return None
    found["logits_bf16"] = logits(load(plain, torch.bfloat16), tokens)
    if common.relative(found["logits_bf16"], found["logits"]) > ROUNDING:
        return None
    return {name: tensor.contiguous() for name, tensor in found.items()}


def unseen(family, plain, found):
    """The tensors and settings whose change the logits do not show."""
    model, wanted, hidden = load(plain), found["logits"], []
    with torch.no_grad():
        for name, tensor in model.named_parameters():
            kept = tensor.clone()
            tensor.copy_(tensor.roll(1, -1))
            moved = common.relative(logits(model, found["tokens"]), wanted)
            tensor.copy_(kept)
            if moved < SEEN:
                hidden.append(f"{name} ({moved:.4f})")
    config = json.loads((plain / "config.json").read_text())
    for name, value in MATTERS.get(family, {}).items():
        with tempfile.TemporaryDirectory() as changed:
            shutil.copy(plain / "model.safetensors", changed)
            (Path(changed) / "config.json").write_text(json.dumps(config | {name: value}))
            moved = common.relative(logits(load(changed), found["tokens"]), wanted)
        if moved < SEEN:
            hidden.append(f"{name} = {value} ({moved:.4f})")
    return hidden


def make(folder, family):
    """One family's folder; a line that says how it went."""
    for seed in range(10000):
        with tempfile.TemporaryDirectory() as work:
            work = Path(work)
            plain, tokens = write(work, FAMILIES[family], seed)
            found = expected(plain, tokens)
            if found is None:
                continue
            if hidden := unseen(family, plain, found):
                sys.exit(f"{family}: not seen in the logits: {', '.join(hidden)}")
            folder.mkdir(parents=True, exist_ok=True)
            for name in ("config.json", "model.safetensors"):
                shutil.copy(work / name, folder)
            save_file(found, folder / "expected.safetensors")
            size = sum((folder / name).stat().st_size for name in ("config.json", "model.safetensors", "expected.safetensors"))
            apart = common.relative(found["logits_bf16"], found["logits"])
            return f"{family}: seed {seed}, {size // 1000} KB, logits {found['logits'].std():.2f} apart, BF16 differs by {apart:.4f}"
    sys.exit(f"{family}: a choice is close with every seed")


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    torch.set_num_threads(1)
    for family in sys.argv[2:] or FAMILIES:
        print(make(Path(sys.argv[1]) / family, family), flush=True)
