"""How many forecasts a core makes in a second, through the package and its columns.

    taskset --cpu-list 0 python docs/results/batch_rate.py [--rows 1000000] [--repeat 5]

Every row has a workload of its own. The time is the processor's, of the whole call - columns in, columns out - and the least of
several, since other programs can only make it longer.
"""

from __future__ import annotations

import argparse
import time
from typing import Any, Dict

import numpy

import roofline


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--repeat", type=int, default=5)
    asked = parser.parse_args()
    row = numpy.arange(asked.rows, dtype=numpy.int64)
    decode = {"batch": row % 64 + 1, "context": row % 131_072 + 1}
    prompts = {"batch": 1, "context": row % 131_072 + 1, "phase": "prefill"}
    cases: Dict[str, Dict[str, Any]] = {
        "prior, bf16": {"model": "llama-3-8b", "on": "h100_sxm", "precision": "bf16", **decode},
        "prior, w4a16": {"model": "llama-3-8b", "on": "h100_sxm", "precision": "w4a16", **decode},
        "prior, q4_k_m": {"model": "llama-3-8b", "on": "h100_sxm", "precision": "q4_k_m", **decode},
        "prior, experts": {"model": "mixtral-8x7b", "on": "h100_sxm", "precision": "bf16", **decode},
        "prior, latent attention": {"model": "deepseek-v3", "on": "h100_sxm", "precision": "bf16", **decode},
        "prior, prompts": {"model": "llama-3-8b", "on": "h100_sxm", "precision": "bf16", **prompts},
        "calibrated, bf16": {"model": "llama-3-8b", "on": "h200", "precision": "bf16", **decode},
        "calibrated, prompts": {"model": "llama-3-8b", "on": "h200", "precision": "bf16", **prompts},
    }
    for name, columns in cases.items():
        times = []
        for _ in range(asked.repeat):
            began = time.process_time()
            told = roofline.predict_batch(**columns)
            times.append(time.process_time() - began)
        assert not any(told.error), told.error[0]
        print(f"{name:<24} {asked.rows / min(times):>12,.0f} rows/s   basis {told.basis[0]}")


if __name__ == "__main__":
    main()
