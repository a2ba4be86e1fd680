"""Regions, traces and quantization of a live model on a GPU, as one JSON of figures.

    PYTHONPATH=wheel python docs/results/h200_python.py [--on h200] [--layers 16] [--prompt 2048] [--out figures.json]

It needs torch and transformers, and means a GPU, though it runs without; torchao is used where it is there. The model is a Llama of about a billion
parameters with random weights, so that nothing is downloaded.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import tempfile
import time
import warnings
from typing import Any, Dict, List

import torch
from transformers import LlamaConfig, LlamaForCausalLM

import roofline

PLACE = "cuda" if torch.cuda.is_available() else "cpu"
REPEATS = 5


def model_of(layers: int) -> Any:
    """A Llama 3.2 1B in its dimensions."""
    config = LlamaConfig(
        hidden_size=2048,
        intermediate_size=8192,
        num_hidden_layers=layers,
        num_attention_heads=32,
        num_key_value_heads=8,
        head_dim=64,
        vocab_size=128256,
        max_position_embeddings=8192,
        tie_word_embeddings=True,
    )
    torch.manual_seed(0)
    with torch.device(PLACE):
        return LlamaForCausalLM(config).to(torch.bfloat16).eval()


def counts(model: Any, on: str, phase: str, prompt: int) -> Dict[str, float]:
    """What a pass has to compute and to move, by `roofline predict`."""
    answer = roofline.predict(
        "model", roofline.from_transformers(model), on=on, precision="bf16", phase=phase, batch=1, context=prompt
    )
    estimate = answer.estimates[0]
    return {"flops": float(estimate.flops), "bytes": float(estimate.bytes)}


def settle() -> None:
    """Waits for all that was started."""
    if PLACE == "cuda":
        torch.cuda.synchronize()


def watched(name: str, run: Any, on: str, **work: float) -> Dict[str, Any]:
    """The fastest of a few regions, after a first that is not counted."""
    run()
    regions: List[Any] = []
    for _ in range(REPEATS):
        with roofline.watch(name, on=on, precision="bf16", **work) as region:
            run()
        regions.append(region)
    best = min(regions, key=lambda region: region.seconds)
    print(best)
    return dict(best.to_dict(), seconds_of_each=[region.seconds for region in regions])


def steady(name: str, run: Any, on: str, seconds: float = 1.5) -> Dict[str, Any]:
    """Long enough for the counter of energy, which moves every 100 ms or so."""
    passes = 0
    with roofline.watch(name, on=on) as region:
        until = time.perf_counter() + seconds
        while time.perf_counter() < until:
            run()
            settle()
            passes += 1
    return dict(region.to_dict(), passes=passes)


def traced(run: Any, on: str) -> Dict[str, Any]:
    """One pass under `torch.profiler`: by the live profiler, and by its file."""
    def profiled() -> Any:
        with torch.profiler.profile(record_shapes=True) as profiler:
            run()
            settle()
        return profiler

    profiled()
    live = roofline.torch.profile(profiled(), on=on)
    profiler = profiled()
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "trace.json.gz")
        profiler.export_chrome_trace(path)
        began = time.perf_counter()
        answer = roofline.torch.profile(path, on=on)
        read = time.perf_counter() - began
        size = os.path.getsize(path)
    kept = ("operator", "attributed", "calls", "kernels", "time_us", "share", "of_roof", "bound", "tflops", "gb_s")
    rows = [{field: row[field] for field in kept} for row in answer.to_dict()["operators"][:12]]
    return {
        "trace_bytes": size,
        "live": {"time_us": live.time_us, "operators": len(live.operators)},
        "read_s": read,
        "time_us": answer.time_us,
        "known_share": answer.known_share,
        "unattributed": answer.unattributed.to_dict(),
        "occupations": [gpu.to_dict() for gpu in answer.occupations],
        "first": list(answer.first),
        "operators": rows,
    }


def quantized(layers: int, tokens: Any, on: str) -> Dict[str, Any]:
    """torchao on the live model: whether it took it, and what a pass takes then."""
    figures: Dict[str, Any] = {}
    for precision in ("INT8", "INT4"):
        model = model_of(layers)
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            done = roofline.apply_quantization(model, precision)
        told: Dict[str, Any] = {"applied": done, "warnings": [str(one.message)[:300] for one in said][:4]}
        if done:
            try:
                told["decode"] = watched(f"decode {precision}", lambda: model(tokens[:, :1]), on)
            except Exception as error:  # A kernel that this machine lacks is a finding, not the end.
                told["error"] = f"{type(error).__name__}: {error}"[:300]
        figures[precision] = told
        del model
        gc.collect()
    return figures


@torch.no_grad()
def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--on", default="h200")
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--prompt", type=int, default=2048)
    parser.add_argument("--out")
    asked = parser.parse_args()
    model = model_of(asked.layers)
    tokens = torch.randint(0, 128256, (1, asked.prompt), device=PLACE)
    cache = model(tokens, use_cache=True).past_key_values

    def prefill() -> None:
        model(tokens, use_cache=False, logits_to_keep=1)

    def decode() -> None:
        model(tokens[:, :1], past_key_values=cache, use_cache=True)
        cache.crop(-1)

    figures: Dict[str, Any] = {
        "roofline": roofline.__version__,
        "torch": torch.__version__,
        "place": torch.cuda.get_device_name() if PLACE == "cuda" else PLACE,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "dtype": roofline.from_transformers(model).get("torch_dtype"),
    }
    for name, run in (("prefill", prefill), ("decode", decode)):
        figures[name] = {
            "region": watched(name, run, asked.on, **counts(model, asked.on, name, asked.prompt)),
            "steady": steady(name, run, asked.on),
            "trace": traced(run, asked.on),
        }
    del model, cache
    gc.collect()
    figures["quantization"] = quantized(asked.layers, tokens, asked.on)
    text = json.dumps(figures, indent=1)
    if asked.out:
        with open(asked.out, "w", encoding="utf-8") as file:
            file.write(text + "\n")
    print(text)


if __name__ == "__main__":
    main()
