"""Makes the small files that the unit tests of the readers hold themselves to, with the libraries that define them.

    python source_fixtures.py ../../../crates/roofline-quant/tests/golden

Nothing in them is chosen by hand: run again, they are the same but for the keys of `old.bin`.
"""

import collections
import io
import json
import sys
from pathlib import Path

import torch
from compressed_tensors.quantization import QuantizationArgs
from compressed_tensors.quantization.lifecycle.forward import dequantize
from transformers.integrations.mxfp4 import convert_moe_packed_tensors


def raw(tensor):
    """A tensor's bytes, in words that a test reads."""
    return tensor.detach().contiguous().flatten().view(torch.uint8).numpy().tobytes().hex()


def described(tensors):
    return {name: {"dtype": str(one.dtype), "shape": list(one.shape), "bytes": raw(one)} for name, one in tensors.items()}


def pytorch(folder):
    """State dicts as `torch.save` writes them: every type, a parameter, tied tensors, a part of a larger one, wrapped, and in the old way."""
    generator = torch.Generator().manual_seed(1)
    wide = torch.arange(12, dtype=torch.float32).reshape(3, 4)
    state = collections.OrderedDict(
        bf16=torch.randn(2, 3, generator=generator).bfloat16(),
        f16=torch.nn.Parameter(torch.randn(2, 2, generator=generator).half()),
        f64=torch.randn(2, generator=generator, dtype=torch.float64),
        f8=torch.randn(2, 2, generator=generator).to(torch.float8_e4m3fn),
        i64=torch.arange(3),
        u8=torch.arange(4, dtype=torch.uint8),
        mask=torch.tensor([True, False]),
        scalar=torch.tensor(2.5),
        part=wide[1:],
        row=wide[:1, 1:3],
        empty=torch.zeros(0, 4),
    )
    state["tied"] = state["bf16"]
    state["linear.weight"] = torch.nn.Linear(2, 2).state_dict()["weight"].fill_(0.5)
    # Versions of modules, as every state dict of a module has them.
    state._metadata = torch.nn.Linear(2, 2).state_dict()._metadata
    (folder / "pytorch").mkdir(exist_ok=True)

    def save(name, content, **more):
        buffer = io.BytesIO()
        torch.save(content, buffer, **more)
        (folder / "pytorch" / name).write_bytes(buffer.getvalue())

    save("state.bin", state)
    save("protocol4.bin", state, pickle_protocol=4)
    save("wrapped.pt", {"epoch": 3, "optimizer": {"lr": 0.1}, "state_dict": {"bf16": state["bf16"]}})
    save("old.bin", {"bf16": state["bf16"]}, _use_new_zipfile_serialization=False)
    save("tied.bin", {"model.embed_tokens.weight": wide, "lm_head.weight": wide})
    save("transposed.bin", {"turned": wide.t()})
    (folder / "pytorch" / "state.json").write_text(json.dumps(described(state), indent=1) + "\n")


def codes(folder):
    """Weights in codes, and what the libraries decode them to."""
    generator = torch.Generator().manual_seed(2)

    def integers(*shape, low=0, high=256):
        return torch.randint(low, high, shape, generator=generator, dtype=torch.int32).to(torch.uint8)

    # gpt-oss: two experts of 96 inputs and 20 outputs.
    blocks, scales = integers(2, 20, 3, 16), integers(2, 20, 3, low=100, high=140)
    experts = {"blocks": blocks, "scales": scales, "decoded": convert_moe_packed_tensors(blocks, scales)}
    # FP8 with one scale, as compressed-tensors stores it; no code is NaN.
    eight = (integers(6, 40) & 0xBF).view(torch.float8_e4m3fn)
    scale = torch.tensor([0.0123]).bfloat16()
    arguments = QuantizationArgs(num_bits=8, type="float", strategy="tensor", symmetric=True)
    tensor = {"weight": eight, "scale": scale, "decoded": dequantize(eight, scale, args=arguments)}
    # ModelOpt's NVFP4: the scale of a block times that of the tensor, both before the code, in FP32.
    table = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])
    packed, block = integers(5, 32), integers(5, 4, high=0x7F).view(torch.float8_e4m3fn)
    whole = torch.tensor(0.00371)
    pairs = torch.stack([packed & 15, packed >> 4], dim=-1).flatten(1)
    four = table[pairs.long()] * (block.float() * whole).repeat_interleave(16, dim=1)
    nvfp4 = {"weight": packed, "scale": block, "scale_2": whole, "decoded": four}
    made = {"mxfp4": described(experts), "fp8": described(tensor), "nvfp4": described(nvfp4)}
    (folder / "codes.json").write_text(json.dumps(made, indent=1) + "\n")


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    folder = Path(sys.argv[1])
    pytorch(folder)
    codes(folder)


if __name__ == "__main__":
    main()
