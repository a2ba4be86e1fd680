"""Holds GPTQ's and AWQ's packings, fine-grained FP8 and what compressed-tensors stores of ranges to the libraries.

    python packings.py golden VECTORS GOLDEN       # makes the file that the unit tests compare with
    python packings.py BINARY FOLDER [NAME ...]    # quantizes, loads, compares logits

Needs gptqmodel and optimum beside what `requirements-heavy.txt` names; neither needs a GPU. `golden` stores the libraries' own tensors, as
hashes, for a matrix of 32 x 256: the one in VECTORS four times below itself, times 256, 512, 128 and -256: larger, so that no scale is subnormal in FP16. The packings are those of GPTQModel's RTN and
`pack_original`/`pack`, fine-grained FP8 is transformers' `Fp8Quantize`, static FP8 is compressed-tensors' `calculate_qparams` and `quantize`.
The other way loads every checkpoint with transformers and compares its logits with those of the plain checkpoint that `--plan bf16` decodes it
to; a name restricts the cases to those that begin with it.
"""

import json
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace

from common import logits, relative

import torch
from checks import Checks, quantize, read_folder
from compressed_tensors.quantization import preset_name_to_scheme
from compressed_tensors.quantization.lifecycle.forward import quantize as compress
from compressed_tensors.quantization.utils import calculate_qparams, generate_gparam
from transformers import AutoModelForCausalLM, Qwen2Config, Qwen2ForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM
from transformers.integrations.finegrained_fp8 import Fp8Quantize

import models

WIDTHS, GROUPS = (2, 3, 4, 8), (32, 64, 128, -1)
INTEGERS = [(bits, group, sym) for bits in WIDTHS for group in GROUPS for sym in (True, False)]


def name_of(bits, group, sym):
    """Ours for a scheme of integers."""
    span = "channel" if group == -1 else f"g{group}"
    known = {(4, 128, True): "w4a16", (8, -1, True): "w8a16", (3, 64, True): "int3", (2, 64, True): "int2"}
    return known.get((bits, group, sym), f"int{bits}-{span}{'' if sym else '-zp'}")


def rounded(weight, bits, group, sym):
    """GPTQModel's RTN: the weights as they decode, in their own type, with FP32 scales and zero points."""
    from gptqmodel.quantization.config import RTNConfig
    from gptqmodel.quantization.rtn import RTN

    linear = torch.nn.Linear(weight.shape[1], weight.shape[0], bias=False)
    linear.weight = torch.nn.Parameter(weight.clone(), requires_grad=False)
    found, scales, zeros, index, *_ = RTN(linear, RTNConfig(bits=bits, group_size=group, sym=sym)).quantize()
    linear.weight.data = found
    return linear, scales, zeros, index


def gptq(weight, bits, group, sym):
    """The tensors of a weight; symmetric ones with the first format's zero points, as GPTQModel saves it."""
    from gptqmodel.nn_modules.qlinear.torch import TorchLinear
    from gptqmodel.utils.model import convert_gptq_v2_to_v1_format_module

    linear, scales, zeros, index = rounded(weight, bits, group, sym)
    packed = TorchLinear(bits, group, sym, False, weight.shape[1], weight.shape[0], False, register_buffers=False)
    packed.pack_original(linear, scales, zeros, index)
    if sym:
        convert_gptq_v2_to_v1_format_module(packed, SimpleNamespace(bits=bits, pack_dtype=torch.int32))
    return {part: getattr(packed, part) for part in ("qweight", "qzeros", "scales", "g_idx")}


def awq(weight, group):
    from gptqmodel.nn_modules.qlinear.torch_awq import AwqTorchLinear

    linear, scales, zeros, _ = rounded(weight, 4, group, False)
    packed = AwqTorchLinear(4, group, False, False, weight.shape[1], weight.shape[0], False, register_buffers=False)
    packed.pack(linear, scales, zeros)
    return {part: getattr(packed, part) for part in ("qweight", "qzeros", "scales")}


def fine_grained(weight):
    settings = SimpleNamespace(weight_block_size=(128, 128), scale_fmt="float")
    made = Fp8Quantize(SimpleNamespace(quantization_config=settings)).convert({"weight": weight})
    return {"weight": made["weight"], "weight_scale_inv": made["weight_scale_inv"]}


def static(weight):
    arguments = preset_name_to_scheme("FP8", ["Linear"]).weights
    scale, zero = calculate_qparams(weight.min(), weight.max(), arguments)
    codes = compress(weight, scale, zero, arguments, dtype=torch.float8_e4m3fn)
    return {"weight": codes, "weight_scale": scale}


def seen(kind, peak, dtype):
    """What compressed-tensors stores for inputs, keys or values up to `peak`."""
    largest = torch.tensor(peak, dtype=torch.float32).to(dtype)
    if kind == "nvfp4":
        return generate_gparam(-largest, largest)
    return calculate_qparams(-largest, largest, preset_name_to_scheme("FP8", ["Linear"]).input_activations)[0]


def raw(tensor):
    return tensor.contiguous().view(torch.uint8).numpy().tobytes()


def fnv(data):
    found = 0xCBF29CE484222325
    for byte in data:
        found = ((found ^ byte) * 0x100000001B3) % 2**64
    return f"{found:016x}"


TYPES = {"BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32}


def golden(vectors, to):
    """Hashes of the libraries' tensors, by coding and type."""
    given = json.loads(Path(vectors).read_text())
    base = torch.frombuffer(bytearray.fromhex(given["matrix"]), dtype=torch.bfloat16).reshape(given["shape"])
    made = {}
    for name, dtype in TYPES.items():
        matrix = torch.cat([base.float() * factor for factor in (256, 512, 128, -256)]).to(dtype)
        for bits, group, sym in INTEGERS:
            made[f"gptq {name_of(bits, group, sym)} {name}"] = gptq(matrix, bits, group, sym)
        for group in (32, 64, 128):
            made[f"awq {name_of(4, group, False)} {name}"] = awq(matrix, group)
        tall = torch.cat([matrix] * 8)
        made[f"fp8 {name}"] = fine_grained(tall)
        made[f"fp8-static {name}"] = static(matrix)
    hashes = {case: {part: fnv(raw(tensor)) for part, tensor in parts.items()} for case, parts in made.items()}
    peaks = [0.0, 1e-6, 0.37, 1.0, 11.5, 448.0, 70000.0]
    scales = {
        f"{kind} {name}": [raw(seen(kind, peak, dtype)).hex() for peak in peaks]
        for kind in ("fp8", "nvfp4")
        for name, dtype in TYPES.items()
    }
    from importlib.metadata import version

    libraries = ", ".join(f"{one} {version(one)}" for one in ("gptqmodel", "transformers", "compressed-tensors", "torch"))
    about = "FNV-1a, 64 bit, of what the libraries store for 32 x 256 (fp8: 256 x 256) weights; the oracle that made it says of which."
    whole = {"made_by": libraries, "about": about, "hashes": hashes, "peaks": peaks, "scales": scales}
    Path(to).write_text(json.dumps(whole, indent=1) + "\n")


def qwen2(folder):
    """A Qwen2, whose products of attention have biases."""
    torch.manual_seed(2)
    torch.set_default_dtype(torch.bfloat16)
    shape = dict(hidden_size=256, intermediate_size=512, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2)
    model = Qwen2ForCausalLM(Qwen2Config(vocab_size=models.VOCABULARY, max_position_embeddings=512, **shape))
    model.save_pretrained(folder)
    torch.set_default_dtype(torch.float32)


def qwen3_moe(folder):
    """Experts, which transformers stores apart and runs in stacks."""
    torch.manual_seed(3)
    torch.set_default_dtype(torch.bfloat16)
    shape = dict(hidden_size=256, intermediate_size=512, moe_intermediate_size=128, num_hidden_layers=2, num_attention_heads=4)
    more = dict(num_key_value_heads=2, num_experts=4, num_experts_per_tok=2, head_dim=64)
    model = Qwen3MoeForCausalLM(Qwen3MoeConfig(vocab_size=models.VOCABULARY, max_position_embeddings=512, **shape, **more))
    model.save_pretrained(folder)
    torch.set_default_dtype(torch.float32)


def source(folder, name):
    made = {"qwen2": qwen2, "qwen3-moe": qwen3_moe}.get(name)
    path = Path(folder) / name
    if made is None:
        return models.ensure(folder, name)
    if not (path / "config.json").exists():
        made(path)
    return path


def ranges_of(model):
    """What two sequences bring to every product and to the cache: a file of ranges, as a calibration would write it."""
    loaded = AutoModelForCausalLM.from_pretrained(model, dtype="auto")
    found = {"inputs": {}, "keys": {}, "values": {}}

    def keep(kind, name, tensor):
        found[kind][name] = max(found[kind].get(name, 0.0), tensor.abs().max().float().item())

    for name, module in loaded.named_modules():
        if isinstance(module, torch.nn.Linear) and "layers." in name:
            module.register_forward_hook(lambda _, inputs, __, name=name: keep("inputs", name, inputs[0]))
        for last, kind in (("k_proj", "keys"), ("v_proj", "values")):
            if name.endswith(last):
                parent = name.rpartition(".")[0]
                module.register_forward_hook(lambda *a, kind=kind, parent=parent: keep(kind, parent, a[2]))
    from common import logits_of

    logits_of(loaded)
    return found


# Layout, plan, models, and the most that logits may differ from those of the decoded checkpoint: GPTQModel rounds scales to a BF16 model's type
# before it multiplies, and what rounds activations differs from what does not: `fp8-block`, whose bytes are llm-compressor's own, by 0.1, and
# FP4 by more.
CASES = [
    *[("gptq", name_of(*scheme), ("tiny",), 0.03) for scheme in INTEGERS],
    *[("gptq", plan, ("tiny-f16", "qwen2"), 0.03) for plan in ("w4a16", "int4-g128-zp", "int8-g32", "int3-g128-zp")],
    *[("awq", plan, ("tiny", "tiny-f16", "qwen2"), 0.03) for plan in ("int4-g128-zp", "int4-g64-zp", "int4-g32-zp")],
    ("fp8", "fp8-block", ("tiny", "tiny-f16", "qwen2", "qwen3-moe"), 0.02),
    ("gptq", "w4a16,layers.0.ffn=keep,layers.1.attention=keep", ("tiny",), 0.02),
    ("gptq", "ffn=w4a16", ("qwen2",), 0.02),
    ("awq", "int4-g128-zp,layers.0=keep", ("tiny",), 0.02),
    ("fp8", "fp8-block,layers.0=keep,head=fp8-block", ("tiny",), 0.02),
    ("fp8", "fp8-block,experts=keep", ("qwen3-moe",), 0.02),
    *[("compressed-tensors", plan, ("tiny", "qwen2"), 0.15) for plan in ("w4a8", "w4a8-int8", "fp8-static", "fp8-block")],
    ("compressed-tensors", "nvfp4", ("tiny", "qwen2"), 0.4),
    ("compressed-tensors", "fp8,kv=fp8", ("tiny",), 0.15),
    ("compressed-tensors", "nvfp4,down=fp8-static,kv=fp8", ("tiny",), 0.4),
]
NEEDS = ("fp8-static", "nvfp4", "kv=")


def compare(checks, binary, layout, plan, model, most, work, ranges):
    name = f"{layout} {plan} of {model.name}"
    ours, plain = work / "ours", work / "plain"
    for folder in (ours, plain):
        shutil.rmtree(folder, ignore_errors=True)
    more = ("--ranges", str(ranges)) if layout == "compressed-tensors" and any(word in plan for word in NEEDS) else ()
    done = quantize(binary, model, plan, ours, "--as", layout, *more)
    if not checks.check(f"{name}: quantizes", done.code == 0, done.err.strip()[-300:] if done.code else ""):
        return
    plain_type = {"bfloat16": "bf16", "float16": "fp16"}[json.loads((model / "config.json").read_text())["dtype"]]
    done = quantize(binary, ours, plain_type, plain)
    if not checks.check(f"{name}: decodes", done.code == 0, done.err.strip()[-300:] if done.code else ""):
        return
    if more:
        stored(checks, name, ours, json.loads(ranges.read_text()))
    try:
        found, expected = logits(ours), logits(plain)
    except Exception as error:
        checks.check(f"{name}: transformers loads and runs it", False, f"{type(error).__name__}: {error}"[:300])
        return
    off, original = relative(found, expected), relative(found, logits(model))
    detail = f"rel. rms to the decoded {off:.4f}, to the original {original:.4f}"
    # Two bits leave little of random weights.
    checks.check(f"{name}: logits", off < most and (original < 0.9 or "int2" in plan), detail)


def stored(checks, name, ours, ranges):
    """The scales of inputs and of the cache are what compressed-tensors computes from the same ranges."""
    wrong, count = [], 0
    for tensor, (_, shape, data) in read_folder(ours).items():
        module, _, part = tensor.rpartition(".")
        table = {"input_scale": "inputs", "input_global_scale": "inputs", "k_scale": "keys", "v_scale": "values"}.get(part)
        if table is None:
            continue
        count += 1
        kind = "nvfp4" if part == "input_global_scale" else "fp8"
        if data != raw(seen(kind, ranges[table][module], torch.bfloat16)) or tuple(shape) != (1,):
            wrong.append(tensor)
    checks.check(f"{name}: scales of ranges", count and not wrong, ", ".join(wrong[:3]) or f"{count} tensors")


def reordered(checks, binary, folder, work):
    """A GPTQ checkpoint whose channels are in no order, as `desc_act` leaves them: transformers and we decode the same."""
    from safetensors.torch import load_file, save_file

    model = source(folder, "tiny")
    ours, plain = work / "ours", work / "plain"
    for at in (ours, plain):
        shutil.rmtree(at, ignore_errors=True)
    quantize(binary, model, "int4-g64-zp", ours, "--as", "gptq")
    tensors = load_file(ours / "model.safetensors")
    generator = torch.Generator().manual_seed(5)
    for name in [name for name in tensors if name.endswith(".g_idx")]:
        tensors[name] = tensors[name][torch.randperm(len(tensors[name]), generator=generator)].contiguous()
    save_file(tensors, ours / "model.safetensors", {"format": "pt"})
    for file in ("config.json", "quantize_config.json"):
        settings = json.loads((ours / file).read_text())
        settings.get("quantization_config", settings)["desc_act"] = True
        (ours / file).write_text(json.dumps(settings))
    done = quantize(binary, ours, "bf16", plain)
    if checks.check("desc_act: decodes", done.code == 0, done.err.strip()[-300:]):
        off = relative(logits(ours), logits(plain))
        checks.check("desc_act: logits", off < 0.03, f"rel. rms to the decoded {off:.4f}")


def main():
    binary, folder, *chosen = sys.argv[1:]
    checks = Checks()
    work = Path(folder) / "packings"
    work.mkdir(parents=True, exist_ok=True)
    for layout, plan, names, most in CASES:
        for name in names:
            if chosen and not any(f"{layout} {plan} of {name}".startswith(one) for one in chosen):
                continue
            model = source(folder, name)
            ranges = work / f"{name}-ranges.json"
            if not ranges.exists() and layout == "compressed-tensors":
                ranges.write_text(json.dumps(ranges_of(model)))
            compare(checks, binary, layout, plan, model, most, work, ranges)
    if not chosen or "desc_act" in chosen:
        reordered(checks, binary, folder, work)
    checks.finish()


if __name__ == "__main__":
    if sys.argv[1] == "golden":
        golden(*sys.argv[2:])
    else:
        main()
