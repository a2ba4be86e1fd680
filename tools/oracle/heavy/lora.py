"""Proves that adapters merged on the way are those that PEFT merges.

    python lora.py BINARY FOLDER

Random adapters of every kind that is merged, trained by nobody, are saved by PEFT, merged by `merge_and_unload`, and merged by the program as it
writes FP32. In an FP32 model sums differ by the order in which a matrix product is added up; in BF16 PEFT rounds what it adds, and the sum
again. Both bounds are stated with each check, and how many numbers are equal to the bit.
"""

import shutil
import sys
from pathlib import Path

import common  # noqa: F401
from checks import Checks, quantize

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

LINEAR = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
CASES = {
    "plain": dict(r=8, lora_alpha=12, target_modules=LINEAR),
    "rslora": dict(r=16, lora_alpha=8, use_rslora=True, target_modules=["q_proj", "down_proj"]),
    "patterns": dict(
        r=4,
        lora_alpha=4,
        target_modules=["q_proj", "v_proj", "up_proj"],
        rank_pattern={"layers.1.self_attn.q_proj": 2, "up_proj": 6},
        alpha_pattern={"v_proj": 32},
    ),
    "embedding": dict(r=3, lora_alpha=5, target_modules=["q_proj", "embed_tokens"]),
    "saved": dict(r=2, lora_alpha=2, target_modules=["q_proj"], modules_to_save=["lm_head", "norm"]),
    "biases": dict(r=2, lora_alpha=2, target_modules=["q_proj"], bias="all"),
}


def llama(dtype):
    settings = LlamaConfig(
        vocab_size=96, hidden_size=128, intermediate_size=256, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        attention_bias=True,
    )
    return LlamaForCausalLM(settings).to(dtype)


def gpt2(dtype):
    return GPT2LMHeadModel(GPT2Config(vocab_size=96, n_embd=64, n_layer=2, n_head=4)).to(dtype)


def saved(model, folder, **more):
    shutil.rmtree(folder, ignore_errors=True)
    model.save_pretrained(folder, **more)
    return folder


def adapter(base, name, folder, settings, seed):
    """A random adapter, as PEFT saves it."""
    torch.manual_seed(seed)
    wrapped = get_peft_model(AutoModelForCausalLM.from_pretrained(base, dtype="auto"), LoraConfig(**settings))
    with torch.no_grad():
        for parameter_name, parameter in wrapped.named_parameters():
            if parameter.requires_grad:
                parameter.copy_(torch.randn(parameter.shape) * (0.1 if "lora_" in parameter_name else 0.02))
    return saved(wrapped, folder / name)


def merged(base, adapters):
    """What PEFT makes of a model and adapters, one after the other, each with a scale; and how large what was rounded on the way was."""
    model = AutoModelForCausalLM.from_pretrained(base, dtype="auto")
    sizes = {name: tensor.float().abs() for name, tensor in model.state_dict().items()}
    for path, scale in adapters:
        wrapped = PeftModel.from_pretrained(model, path)
        if scale != 1:
            for module in wrapped.modules():
                if hasattr(module, "scale_layer"):
                    module.scale_layer(scale)
        model = wrapped.merge_and_unload()
        sizes = {name: size + model.state_dict()[name].float().abs() for name, size in sizes.items()}
    return model.state_dict(), sizes


def compare(checks, binary, name, base, adapters, work, exact):
    ours = work / "ours"
    shutil.rmtree(ours, ignore_errors=True)
    loras = [part for path, scale in adapters for part in ("--lora", f"{path}={scale}")]
    done = quantize(binary, base, "fp32", ours, *loras)
    if not checks.check(f"{name}: merges", done.code == 0, done.err.strip()[:300] if done.code else ""):
        return
    ours, (theirs, sizes) = load_file(ours / "model.safetensors"), merged(base, adapters)
    worst, equal, count, wrong = 0.0, 0, 0, sorted(ours.keys() - theirs.keys())
    for tensor_name, tensor in ours.items():
        other = theirs[tensor_name].float()
        error = (tensor - other).abs()
        # FP32: a few units in the last place of the sum's terms, which are below one. BF16: what is added is rounded to 8 bits, and every sum.
        allowed = 4e-7 if exact else 2 * sizes[tensor_name] / 256 + 1e-30
        worst = max(worst, (error / allowed).max().item())
        equal, count = equal + (tensor == other).sum().item(), count + tensor.numel()
        if (error > allowed).any():
            wrong.append(tensor_name)
    detail = f"{100 * equal / count:.1f} % equal to the bit, worst {worst:.2f} of what is allowed"
    checks.check(f"{name}: the sums are PEFT's", not wrong, "; ".join(wrong[:3]) or detail)
    changed = {weight for report in done.report["adapters"] for weight in report["weights"] + report["replaced"]}
    plain = AutoModelForCausalLM.from_pretrained(base, dtype="auto").state_dict()
    # A module that is saved whole may be as it was.
    differ = {weight for weight, tensor in plain.items() if not torch.equal(tensor, theirs[weight])}
    checks.check(f"{name}: the report names what was changed", differ <= changed, f"{len(changed)} tensors")


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    binary, work = Path(sys.argv[1]).resolve(), Path(sys.argv[2])
    checks = Checks()
    for dtype in (torch.float32, torch.bfloat16):
        torch.manual_seed(0)
        kind, exact = str(dtype).removeprefix("torch."), dtype == torch.float32
        base = saved(llama(dtype), work / f"llama-{kind}")
        for at, (name, settings) in enumerate(CASES.items()):
            path = adapter(base, f"{kind}-{name}", work, settings, at)
            compare(checks, binary, f"{kind} {name}", base, [(path, 1)], work, exact)
        plain, other = (work / f"{kind}-{name}" for name in ("plain", "rslora"))
        compare(checks, binary, f"{kind}, a scale", base, [(plain, 0.3)], work, exact)
        compare(checks, binary, f"{kind}, two adapters", base, [(plain, 1), (other, -0.5)], work, exact)
        # Both as PyTorch's files.
        state = AutoModelForCausalLM.from_pretrained(base, dtype="auto").state_dict()
        torch.save(state, base / "pytorch_model.bin")
        (base / "model.safetensors").rename(base / "elsewhere")
        torch.save(load_file(plain / "adapter_model.safetensors"), plain / "adapter_model.bin")
        (plain / "adapter_model.safetensors").unlink()
        compare(checks, binary, f"{kind}, PyTorch's files", base, [(plain, 1)], work, exact)
        turned = saved(gpt2(dtype), work / f"gpt2-{kind}")
        settings = dict(r=4, lora_alpha=6, target_modules=["c_attn", "c_proj"], fan_in_fan_out=True)
        path = adapter(turned, f"{kind}-gpt2", work, settings, 9)
        compare(checks, binary, f"{kind}, weights the other way", turned, [(path, 1)], work, exact)
    checks.finish()


if __name__ == "__main__":
    main()
