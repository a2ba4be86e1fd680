"""Calibrates every node of a Ray cluster and compares them: one table, and the nodes that are not like the others.

    python examples/ray_fleet.py --address auto                  # the GPUs, or processors, of a cluster
    python examples/ray_fleet.py --address auto --quick --keep /shared/calibrations
    python examples/ray_fleet.py --backend null --on h200        # exact fake times, to see what it looks like

A node is compared with the median of those that have the same device. With `--keep DIR` each node's calibration stays in a
folder of its own, DIR/NODE, which `ROOFLINE_CONFIG_DIR` names for whoever predicts with it; without, nothing is kept.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import tempfile
from typing import Any, Dict, List, Tuple

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

import roofline

# What nodes are compared by: rates, of memory and of units that multiply. Times of a launch vary from run to run.
RATES = ("GB/s", "TFLOP/s", "GFLOP/s", "B/s", "FLOP/s")


def calibrate(node: str, asked: Dict[str, Any], temporary: bool) -> Dict[str, Any]:
    """What a node really does, measured there."""
    folder = os.environ["ROOFLINE_CONFIG_DIR"]
    os.makedirs(folder, exist_ok=True)
    try:
        answer = roofline.calibrate(**asked, out=os.path.join(folder, "run.jsonl"), progress=False)
        terms = {term["name"]: (term["value"], term["unit"]) for term in answer.to_dict()["rows"]}
        return {"node": node, "device": answer.device_name, "terms": terms, "error": answer.quality.mean}
    finally:
        if temporary:
            shutil.rmtree(folder, ignore_errors=True)


def outliers(nodes: List[Dict[str, Any]], tolerance: float) -> List[str]:
    """Sentences about nodes whose rates are further from the median of their kind than `tolerance`."""
    kinds: Dict[Tuple[str, str], List[Dict[str, Any]]] = {}
    for node in nodes:
        for name, (_, unit) in node["terms"].items():
            if unit in RATES:
                kinds.setdefault((node["device"], name), []).append(node)
    told: List[str] = []
    for (_, name), alike in kinds.items():
        middle = statistics.median(node["terms"][name][0] for node in alike)
        for node in alike:
            value, unit = node["terms"][name]
            if middle > 0 and abs(value / middle - 1) > tolerance:
                where = "above" if value > middle else "below"
                share = f"{100 * abs(value / middle - 1):.0f} % {where} the median"
                told.append(f"{node['node']}: {name} is {value:.4g} {unit}, {share}")
    return told


def table(nodes: List[Dict[str, Any]]) -> List[List[str]]:
    names = list(dict.fromkeys(name for node in nodes for name, (_, unit) in node["terms"].items() if unit in RATES))
    rows = [["node", "device", "held-out error", *names]]
    for node in nodes:
        cells = [node["terms"].get(name) for name in names]
        shown = ["" if cell is None else f"{cell[0]:.4g} {cell[1]}" for cell in cells]
        rows.append([node["node"], node["device"], f"{100 * node['error']:.1f} %", *shown])
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--address", help="a cluster; one on this machine when left out")
    parser.add_argument("--backend", choices=["cpu", "cuda", "null"], help="who runs the kernels")
    parser.add_argument("--on", help="the device, with `--backend null`")
    parser.add_argument("--quick", action="store_true", help="fewer shapes, and a quarter of a second for each")
    parser.add_argument("--tolerance", type=float, default=0.05, help="how far from the median is worth a word")
    parser.add_argument("--keep", help="a folder for the calibrations")
    options = parser.parse_args()
    asked = {name: value for name in ("backend", "on", "quick") if (value := getattr(options, name))}
    ray.init(address=options.address, log_to_driver=False, include_dashboard=False if options.address is None else None)

    pending = []
    for node in ray.nodes():
        if not node["Alive"]:
            continue
        name = f"{node['NodeManagerHostname']}-{node['NodeID'][:6]}"
        folder = os.path.abspath(options.keep) if options.keep else os.path.join(tempfile.gettempdir(), "roofline-fleet")
        # A worker of its own for each, which knows no other home; and the whole node, for who measures must be alone.
        task = ray.remote(calibrate).options(
            num_cpus=node["Resources"].get("CPU", 1),
            num_gpus=node["Resources"].get("GPU", 0),
            scheduling_strategy=NodeAffinitySchedulingStrategy(node["NodeID"], soft=False),
            runtime_env={"env_vars": {"ROOFLINE_CONFIG_DIR": os.path.join(folder, name)}},
        )
        pending.append(task.remote(name, asked, options.keep is None))
    nodes = sorted(ray.get(pending), key=lambda node: str(node["node"]))

    rows = table(nodes)
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip())
    print()
    told = outliers(nodes, options.tolerance)
    print("\n".join(told) if told else f"All {len(nodes)} are within {100 * options.tolerance:g} % of their kind's median.")


if __name__ == "__main__":
    main()
