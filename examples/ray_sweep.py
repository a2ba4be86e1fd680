"""A design space of millions of points, predicted on the workers of a Ray cluster: what serves each model fastest?

    python examples/ray_sweep.py                        # ten million points on this machine
    python examples/ray_sweep.py --address auto         # on the cluster that this machine belongs to
    python examples/ray_sweep.py --points 100000 --to sweep

A point is a number. Each worker makes the columns of its own points from their numbers and keeps a row for each model, so
that next to nothing travels; with `--to`, it also writes its points into a folder as Parquet.
"""

from __future__ import annotations

import argparse
import os
import time
from typing import Any, Dict, List, Optional, Tuple

import numpy
import ray

import roofline

AXES: Dict[str, List[str]] = {
    "model": ["llama-3-8b", "llama-3.1-70b", "qwen3-32b", "qwen3-30b-a3b", "mixtral-8x7b", "gemma-3-27b", "gpt-oss-120b"],
    "on": ["h200", "h100_sxm", "a100_sxm_80gb", "l40s", "rtx_4090", "mi300x", "b200", "gb10"],
    "precision": ["bf16", "fp8", "int8", "w8a16", "w4a16"],
}
BATCHES = 64

Best = Dict[str, Tuple[float, Dict[str, Any]]]


def columns(first: int, last: int, points: int) -> Dict[str, Any]:
    """The points from `first` to before `last`: names change fastest, then the batch, then the context."""
    number = numpy.arange(first, last, dtype=numpy.int64)
    told: Dict[str, Any] = {}
    for name, values in AXES.items():
        told[name] = numpy.asarray(values)[number % len(values)].tolist()
        number = number // len(values)
    told["batch"] = number % BATCHES + 1
    contexts = points // (BATCHES * product(AXES)) + 1
    # As many lengths as make the number of points, from 128 to 32768 in equal ratios.
    told["context"] = numpy.rint(128.0 * 256.0 ** ((number // BATCHES) / max(contexts - 1, 1))).astype(numpy.int64)
    return told


def product(axes: Dict[str, List[str]]) -> int:
    count = 1
    for values in axes.values():
        count *= len(values)
    return count


def sweep(first: int, last: int, points: int, to: Optional[str]) -> Tuple[int, Best]:
    """The rows without a forecast, and for each model the fastest that fits."""
    asked = columns(first, last, points)
    told = roofline.predict_batch(**asked)
    if to is not None:
        write(asked, told, os.path.join(to, f"{first:012}.parquet"))
    speed = numpy.asarray(told.tokens_per_s)
    fits = numpy.asarray([fits is True for fits in told.fits])
    models = numpy.asarray(asked["model"])
    best: Best = {}
    for model in AXES["model"]:
        able = numpy.flatnonzero(fits & (models == model) & ~numpy.isnan(speed))
        if able.size:
            at = int(able[numpy.argmax(speed[able])])
            point = {name: column[at] for name, column in asked.items()}
            best[model] = (float(speed[at]), {**point, "batch": int(point["batch"]), "context": int(point["context"])})
    refused = sum(error is not None for error in told.error)
    return refused, best


def write(asked: Dict[str, Any], told: roofline.BatchAnswer, path: str) -> None:
    import pyarrow
    import pyarrow.parquet

    table = told.to_arrow()
    for name, column in asked.items():
        table = table.append_column(name, pyarrow.array(column))
    pyarrow.parquet.write_table(table, path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--points", type=int, default=10_000_000, help="how many points")
    parser.add_argument("--chunk", type=int, default=250_000, help="points of a task")
    parser.add_argument("--address", help="a cluster; one on this machine when left out")
    parser.add_argument("--to", help="a folder for all points, on a file system that every node has")
    asked = parser.parse_args()
    ray.init(address=asked.address, log_to_driver=False, include_dashboard=False if asked.address is None else None)
    if asked.to is not None:
        os.makedirs(asked.to, exist_ok=True)
        asked.to = os.path.abspath(asked.to)
    # A task uses every core of its node by itself: the points of a batch are predicted side by side.
    task = ray.remote(sweep).options(scheduling_strategy="SPREAD")
    start = time.perf_counter()
    firsts = range(0, asked.points, asked.chunk)
    pending = [task.remote(first, min(first + asked.chunk, asked.points), asked.points, asked.to) for first in firsts]
    refused = 0
    best: Best = {}
    while pending:
        done, pending = ray.wait(pending)
        for count, own in ray.get(done):
            refused += count
            for model, found in own.items():
                best[model] = max(best.get(model, found), found, key=lambda one: one[0])
    seconds = time.perf_counter() - start
    nodes: List[Dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call,unused-ignore]
    print(f"{asked.points} points on {len(nodes)} nodes in {seconds:.1f} s, {asked.points / seconds:.3g} a second")
    print(f"{refused} have no forecast: their device does not multiply in their format\n")
    print(f"{'model':16} {'tokens/s':>10}  {'device':14} {'plan':6} {'batch':>5} {'context':>8}")
    for model, (speed, point) in sorted(best.items()):
        place = f"{point['on']:14} {point['precision']:6} {point['batch']:5} {point['context']:8}"
        print(f"{model:16} {speed:10.0f}  {place}")


if __name__ == "__main__":
    main()
