"""Kernels of others beside ours on a GPU, as one JSON of figures.

    PYTHONPATH=wheel python docs/results/h200_own_kernel.py [--binary roofline] [--manifest FILE] [--seconds 1] [--out FILE]

It measures `torch.matmul` and `torch.mv`, a GEMV and a few rows in Triton, and `examples/kernels/gemv_bf16.cu` by its manifest,
through the Python package and through the program. Each part stands alone: what fails is told in its place, and the others go on.
It needs torch and a GPU; Triton is used where it is there.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any, Callable, Dict, List

import torch

import roofline

ROOT = Path(__file__).resolve().parents[2]

TRITON = '''
import triton
import triton.language as tl


@triton.jit
def gemv(x, w, y, n, k, ROWS: tl.constexpr, STEP: tl.constexpr):
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    sums = tl.zeros((ROWS, STEP), dtype=tl.float32)
    for start in range(0, k, STEP):
        at = start + tl.arange(0, STEP)
        inputs = tl.load(x + at, mask=at < k, other=0.0).to(tl.float32)
        inside = (rows < n)[:, None] & (at < k)[None, :]
        weights = tl.load(w + rows[:, None] * k + at[None, :], mask=inside, other=0.0).to(tl.float32)
        sums += weights * inputs[None, :]
    tl.store(y + rows, tl.sum(sums, axis=1), mask=rows < n)


@triton.jit
def gemv_int8(x, w, scales, y, n, k, ROWS: tl.constexpr, STEP: tl.constexpr):
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    sums = tl.zeros((ROWS, STEP), dtype=tl.float32)
    for start in range(0, k, STEP):
        at = start + tl.arange(0, STEP)
        inputs = tl.load(x + at, mask=at < k, other=0.0).to(tl.float32)
        inside = (rows < n)[:, None] & (at < k)[None, :]
        weights = tl.load(w + rows[:, None] * k + at[None, :], mask=inside, other=0).to(tl.float32)
        sums += weights * inputs[None, :]
    scale = tl.load(scales + rows, mask=rows < n, other=0.0).to(tl.float32)
    tl.store(y + rows, tl.sum(sums, axis=1) * scale, mask=rows < n)
'''


def kernels() -> Any:
    """The kernels of Triton, which reads their text and so wants a file."""
    path = Path(tempfile.mkdtemp()) / "own_kernels.py"
    path.write_text(TRITON, encoding="utf-8")
    spec = importlib.util.spec_from_file_location("own_kernels", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def told(answer: Any) -> List[Dict[str, Any]]:
    """What matters of an answer: each own kernel, with the spread and the doubts of both."""
    kept = ("kernel", "measured_time_us", "p5_us", "p95_us", "samples", "confidence_pct", "roof_share", "check_error", "check_limit")
    rows = [
        dict({field: row[field] for field in kept}, warnings=[warning["kind"] for warning in row["warnings"]])
        for row in answer["measurements"]
    ]
    return [{"own": answer["own"], "measurements": rows, "notes": answer.get("notes", []), "skipped": answer.get("skipped", [])}]


def attempt(figures: Dict[str, Any], name: str, work: Callable[[], Any]) -> None:
    """One part: what it came to, or why it did not."""
    began = time.perf_counter()
    try:
        figures[name] = {"result": work()}
    except Exception as error:  # A part that fails is a finding, not the end.
        figures[name] = {"error": f"{type(error).__name__}: {error}"[:4000], "trace": traceback.format_exc()[-2000:]}
    figures[name]["took_s"] = round(time.perf_counter() - began, 2)
    said = figures[name].get("error") or "; ".join(one["verdict"] for part in figures[name]["result"] for one in part.get("own", []))
    print(f"{name}: {said}", file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--binary", default=os.environ.get("ROOFLINE_BIN", "roofline"))
    parser.add_argument("--manifest", default=str(ROOT / "examples" / "kernels" / "gemv_bf16.toml"))
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--out")
    asked = parser.parse_args()

    def measured(fn: Any, op: str, **fields: Any) -> List[Dict[str, Any]]:
        answer = roofline.measure_callable(fn, op, arrays="torch", device="cuda", seconds=asked.seconds, **fields)
        return told(answer.to_dict())

    figures: Dict[str, Any] = {"roofline": roofline.__version__, "torch": torch.__version__}
    try:
        figures["gpu"] = torch.cuda.get_device_name()
        figures["cuda"] = torch.version.cuda
    except Exception as error:
        figures["gpu"] = f"{type(error).__name__}: {error}"

    def matmul(x: Any, w: Any) -> Any:
        return torch.matmul(x, w.T)

    def mv(x: Any, w: Any) -> Any:
        return torch.mv(w, x)

    def waits(x: Any, w: Any) -> Any:
        # What waits for the GPU cannot be recorded: the answer must say so, and be slower.
        y = torch.mv(w, x)
        torch.cuda.synchronize()
        return y

    def off(x: Any, w: Any) -> Any:
        # A kernel that is a percent off, which must be refused.
        return torch.mv(w, x) * 1.01

    aside: List[Any] = []

    def elsewhere(x: Any, w: Any) -> Any:
        # Work on another stream: a graph of this one does not hold it, and a record of nothing must not be believed.
        if not aside:
            aside.append(torch.cuda.Stream())
        with torch.cuda.stream(aside[0]):
            y = torch.mv(w, x)
        aside[0].synchronize()
        return y

    attempt(figures, "torch_mv_4096", lambda: measured(mv, "gemv", n=4096, k=4096, precision="bf16"))
    attempt(figures, "torch_mv_14336", lambda: measured(mv, "gemv", n=14336, k=4096, precision="bf16"))
    attempt(figures, "torch_mv_warm", lambda: measured(mv, "gemv", n=4096, k=4096, precision="bf16", warm=True))
    attempt(figures, "torch_mv_events", lambda: measured(mv, "gemv", n=4096, k=4096, precision="bf16", graph=False))
    attempt(figures, "torch_matmul_16", lambda: measured(matmul, "gemm", m=16, n=4096, k=4096, precision="bf16"))
    attempt(figures, "torch_matmul_4096", lambda: measured(matmul, "gemm", m=4096, n=4096, k=4096, precision="bf16"))
    attempt(figures, "torch_waits", lambda: measured(waits, "gemv", n=4096, k=4096, precision="bf16"))
    attempt(figures, "torch_elsewhere", lambda: measured(elsewhere, "gemv", n=4096, k=4096, precision="bf16"))
    attempt(figures, "torch_off", lambda: measured(off, "gemv", n=4096, k=4096, precision="bf16"))

    def sdpa(q: Any, k: Any, v: Any) -> Any:
        out = torch.nn.functional.scaled_dot_product_attention(q.transpose(1, 2), k, v, enable_gqa=True)
        return out.transpose(1, 2)

    attention: Dict[str, Any] = {"heads": 32, "kv_heads": 8, "head_dim": 128, "context": 8192, "batch": 4}
    attempt(figures, "torch_attention", lambda: measured(sdpa, "attention", precision="bf16", **attention))

    def triton_gemv(rows: int, step: int, **shape: Any) -> List[Dict[str, Any]]:
        import triton

        gemv = kernels().gemv

        def triton_mv(x: Any, w: Any, out: Any) -> None:
            gemv[(triton.cdiv(w.shape[0], rows),)](x, w, out, w.shape[0], w.shape[1], ROWS=rows, STEP=step)

        return measured(triton_mv, "gemv", precision="bf16", name=f"triton {rows} x {step}", **shape)

    for rows, step in ((1, 1024), (4, 512), (8, 1024), (16, 256)):
        attempt(figures, f"triton_{rows}x{step}", lambda rows=rows, step=step: triton_gemv(rows, step, n=4096, k=4096))
    attempt(figures, "triton_14336", lambda: triton_gemv(4, 512, n=14336, k=4096))

    def triton_w8() -> List[Dict[str, Any]]:
        import triton

        gemv = kernels().gemv_int8

        def triton_int8(x: Any, w: Any, w_scales: Any, out: Any) -> None:
            gemv[(triton.cdiv(w.shape[0], 4),)](x, w, w_scales, out, w.shape[0], w.shape[1], ROWS=4, STEP=1024)

        return measured(triton_int8, "gemv", n=14336, k=4096, precision="w8a16")

    attempt(figures, "triton_w8a16", triton_w8)
    attempt(figures, "manifest_python", lambda: told(roofline.measure("kernel", asked.manifest, seconds=asked.seconds).to_dict()))

    def program(manifest: str) -> Any:
        command = [asked.binary, "measure", "kernel", manifest, "--json", "--seconds", str(asked.seconds)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
        if done.returncode != 0:
            raise RuntimeError(f"exit code {done.returncode}: {done.stderr[-3000:]}")
        return told(json.loads(done.stdout))

    attempt(figures, "manifest_program", lambda: program(asked.manifest))

    # What is wrong is refused with the reason: a result, a text that does not compile, a signature, a block that is too large.
    folder = Path(tempfile.mkdtemp())
    manifest = Path(asked.manifest)
    text, source = manifest.read_text(encoding="utf-8"), (manifest.parent / "gemv_bf16.cu").read_text(encoding="utf-8")
    broken = {
        "refused_result": (text, source.replace("sum += __shfl_down_sync(0xffffffffu, sum, half)", "sum += 0")),
        "refused_text": (text, source.replace("float sum = 0;", "float sum = nothing;")),
        "refused_signature": (text.replace('"n", "k"]', '"n"]'), source),
        "refused_block": (text.replace("block = 256", "block = 2048"), source),
        "refused_address": (text, source.replace("const bf16* line = w +", "const bf16* line = w + (1ll << 60) +")),
    }
    for name, (described, program_text) in broken.items():
        place = folder / name
        place.mkdir()
        (place / "gemv_bf16.toml").write_text(described, encoding="utf-8")
        (place / "gemv_bf16.cu").write_text(program_text, encoding="utf-8")
        # By the program, in a process of its own: one of them breaks the GPU's context.
        attempt(figures, name, lambda place=place: program(str(place / "gemv_bf16.toml")))

    written = json.dumps(figures, indent=1)
    if asked.out:
        Path(asked.out).write_text(written + "\n", encoding="utf-8")
    print(written)


if __name__ == "__main__":
    main()
