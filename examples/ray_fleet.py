"""Calibrates every node of a Ray cluster and compares them: one table, and the nodes that are not like the others.

    python examples/ray_fleet.py --address auto                  # the GPUs, or processors, of a cluster
    python examples/ray_fleet.py --address auto --quick --keep /shared/calibrations
    python examples/ray_fleet.py --backend null --on h200        # exact fake times, to see what it looks like

Nodes with the same device are compared kernel by kernel, by the times that were measured: a fitted term may trade with
another, a time is what it is. With `--keep DIR` each node's run and calibration stay in a folder of its own, DIR/NODE, which
`ROOFLINE_CONFIG_DIR` names for whoever predicts with it; without, nothing is kept.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import tempfile
from typing import Any, Dict, List

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

import roofline


def calibrate(node: str, asked: Dict[str, Any], temporary: bool) -> Dict[str, Any]:
    """What a node does, measured there: the time of every kernel of the grid, and how well the fit foretells others."""
    folder = os.environ["ROOFLINE_CONFIG_DIR"]
    os.makedirs(folder, exist_ok=True)
    try:
        run = os.path.join(folder, "run.jsonl")
        answer = roofline.calibrate(**asked, out=run, progress=False)
        measured = roofline.compare(from_=run, progress=False).comparisons
        times = {f"{one.shape} {one.precision}": one.measured_time_us for one in measured}
        return {"node": node, "device": answer.device_name, "times": times, "error": answer.quality.mean}
    finally:
        if temporary:
            shutil.rmtree(folder, ignore_errors=True)


def judge(nodes: List[Dict[str, Any]]) -> None:
    """Adds to each node how fast it is beside the median of those with its device, and its worst kernel."""
    for node in nodes:
        alike = [other for other in nodes if other["device"] == node["device"]]
        speeds: Dict[str, float] = {}
        for kernel, own in node["times"].items():
            usual = statistics.median(other["times"][kernel] for other in alike if kernel in other["times"])
            speeds[kernel] = usual / own
        node["speed"] = statistics.median(speeds.values())
        node["worst"] = min(speeds, key=lambda kernel: speeds[kernel])
        node["worst_speed"] = speeds[node["worst"]]


def outliers(nodes: List[Dict[str, Any]], tolerance: float) -> List[str]:
    """Sentences about nodes that are slower or faster than their kind by more than `tolerance`."""
    told: List[str] = []
    for node in nodes:
        if abs(node["speed"] - 1) > tolerance:
            where = "faster" if node["speed"] > 1 else "slower"
            told.append(f"{node['node']} is {100 * abs(node['speed'] - 1):.0f} % {where} than the median of its kind")
    return told


def table(nodes: List[Dict[str, Any]]) -> List[List[str]]:
    rows = [["node", "device", "kernels", "speed", "worst", "worst kernel", "held-out error"]]
    for node in nodes:
        speeds = [f"{node['speed']:.3f}", f"{node['worst_speed']:.3f}"]
        rows.append([node["node"], node["device"], str(len(node["times"])), *speeds, node["worst"], f"{100 * node['error']:.1f} %"])
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

    folder = os.path.abspath(options.keep) if options.keep else os.path.join(tempfile.gettempdir(), "roofline-fleet")
    pending = []
    known: List[Dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call,unused-ignore]
    for node in known:
        if not node["Alive"]:
            continue
        name = f"{node['NodeManagerHostname']}-{node['NodeID'][:6]}"
        # A worker of its own for each, which knows no other home; and the whole node, for who measures must be alone.
        task = ray.remote(calibrate).options(
            num_cpus=node["Resources"].get("CPU", 1),
            num_gpus=node["Resources"].get("GPU", 0),
            scheduling_strategy=NodeAffinitySchedulingStrategy(node["NodeID"], soft=False),
            runtime_env={"env_vars": {"ROOFLINE_CONFIG_DIR": os.path.join(folder, name)}},
        )
        pending.append(task.remote(name, asked, options.keep is None))
    nodes: List[Dict[str, Any]] = sorted(ray.get(pending), key=lambda node: str(node["node"]))

    judge(nodes)
    rows = table(nodes)
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip())
    print("\nSpeed is the usual time over the node's own, in the median over kernels; worst is its slowest kernel.")
    told = outliers(nodes, options.tolerance)
    print("\n".join(told) if told else f"All {len(nodes)} are within {100 * options.tolerance:g} % of their kind's median.")


if __name__ == "__main__":
    main()
