"""Proves that sources of other kinds are read as the libraries that wrote them read them.

    python sources.py BINARY FOLDER

Checkpoints of `torch.save`, in one file, in shards, wrapped and tied, become what the same weights in safetensors become. A gpt-oss with its experts as
they were released becomes the checkpoint that transformers dequantizes it to, with the same logits.
"""

import json
import shutil
import sys
from pathlib import Path

from common import logits, logits_of
from checks import Checks, quantize, read_folder

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, GptOssConfig, GptOssForCausalLM, LlamaConfig, LlamaForCausalLM, Mxfp4Config


def fresh(folder):
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def saved(model, folder):
    model.save_pretrained(fresh(folder))
    return folder


def like(folder, source):
    """A folder with another's configuration and no weights."""
    fresh(folder)
    for path in source.glob("*.json"):
        if not path.name.endswith(".index.json"):
            shutil.copy(path, folder)
    return folder


def shards(folder, state):
    """PyTorch's shards, as transformers wrote them."""
    place, names = {}, sorted(state)
    for shard in range(2):
        file = f"pytorch_model-{shard + 1:05}-of-00002.bin"
        torch.save({name: state[name] for name in names[shard::2]}, folder / file)
        place |= {name: file for name in names[shard::2]}
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps({"metadata": {}, "weight_map": place}))


def pytorch(checks, binary, work):
    torch.manual_seed(1)
    settings = dict(vocab_size=512, hidden_size=128, intermediate_size=256, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2)
    plain = saved(LlamaForCausalLM(LlamaConfig(**settings)).bfloat16(), work / "llama")
    state = load_file(plain / "model.safetensors")
    makers = {
        "one file": lambda folder: torch.save(state, folder / "pytorch_model.bin"),
        "protocol 5": lambda folder: torch.save(state, folder / "pytorch_model.bin", pickle_protocol=5),
        "wrapped": lambda folder: torch.save({"state_dict": state, "epoch": 1, "lr": 0.1}, folder / "checkpoint.pt"),
        "parameters": lambda folder: torch.save(
            {name: torch.nn.Parameter(tensor) for name, tensor in state.items()}, folder / "pytorch_model.bin"
        ),
        "shards": lambda folder: shards(folder, state),
    }
    for plan in ("fp32", "int4-g32", "nvfp4a16"):
        wanted = work / "wanted"
        shutil.rmtree(wanted, ignore_errors=True)
        quantize(binary, plain, plan, wanted)
        for name, make in makers.items():
            folder, ours = like(work / "pytorch", plain), work / "ours"
            shutil.rmtree(ours, ignore_errors=True)
            make(folder)
            done = quantize(binary, folder, plan, ours)
            if checks.check(f"{name} to {plan}: reads", done.code == 0, done.err.strip()[:300] if done.code else ""):
                checks.same_tensors(f"{name} to {plan}: as from safetensors", read_folder(ours), read_folder(wanted))
    tied = LlamaForCausalLM(LlamaConfig(**settings, tie_word_embeddings=True)).bfloat16()
    folder = like(work / "pytorch", saved(tied, work / "tied"))
    torch.save(tied.state_dict(), folder / "pytorch_model.bin")
    ours = work / "ours"
    shutil.rmtree(ours, ignore_errors=True)
    quantize(binary, folder, "fp32", ours)
    found, state = load_file(ours / "model.safetensors"), tied.state_dict()
    same = all(torch.equal(found[name], tensor.float()) for name, tensor in state.items() if name in found)
    # The head is the embedding, and is not written twice.
    checks.check("tied: every tensor", same and set(found) == set(state) - {"lm_head.weight"}, f"{len(found)} tensors")
    wide = AutoModelForCausalLM.from_pretrained(work / "tied", dtype=torch.float32, device_map="cpu")
    checks.check("tied: logits", torch.equal(logits(ours), logits_of(wide)))


def experts(checks, binary, work):
    torch.manual_seed(2)
    settings = GptOssConfig(
        vocab_size=512, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        head_dim=16, num_local_experts=4, num_experts_per_tok=2, max_position_embeddings=128, sliding_window=16, pad_token_id=0,
    )
    plain = saved(GptOssForCausalLM(settings).bfloat16(), work / "gpt-oss")
    state = load_file(plain / "model.safetensors")
    for name in [name for name in state if name.endswith(("gate_up_proj", "down_proj"))]:
        count, inputs, outputs = state.pop(name).shape
        state[f"{name}_blocks"] = torch.randint(0, 256, (count, outputs, inputs // 32, 16), dtype=torch.uint8)
        state[f"{name}_scales"] = torch.randint(116, 122, (count, outputs, inputs // 32), dtype=torch.uint8)
    released = like(work / "released", plain)
    save_file(state, released / "model.safetensors", {"format": "pt"})
    config = json.loads((released / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn", "model.layers.*.mlp.router", "lm_head"]}
    (released / "config.json").write_text(json.dumps(config))
    ours = work / "ours"
    shutil.rmtree(ours, ignore_errors=True)
    done = quantize(binary, released, "bf16", ours)
    if not checks.check("gpt-oss as released: decodes", done.code == 0, done.err.strip()[:300] if done.code else ""):
        return
    theirs = AutoModelForCausalLM.from_pretrained(
        released, dtype=torch.bfloat16, quantization_config=Mxfp4Config(dequantize=True), device_map="cpu"
    )
    found, state = load_file(ours / "model.safetensors"), theirs.state_dict()
    wrong = sorted(found.keys() ^ state.keys()) + [name for name in found if not torch.equal(found[name], state[name])]
    checks.check("gpt-oss as released: what transformers dequantizes", not wrong, "; ".join(wrong[:3]) or f"{len(found)} tensors")
    checks.check("gpt-oss as released: logits", torch.equal(logits(ours), logits_of(theirs)))


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    binary, work = Path(sys.argv[1]).resolve(), Path(sys.argv[2])
    checks = Checks()
    pytorch(checks, binary, work)
    experts(checks, binary, work)
    checks.finish()


if __name__ == "__main__":
    main()
