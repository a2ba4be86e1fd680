"""A checkpoint quantized in parts on the nodes of a Ray cluster, and joined: the bytes that one machine would write.

    python examples/ray_quantize.py ./Llama-3.1-8B w4a16 ./Llama-3.1-8B-W4A16
    python examples/ray_quantize.py /shared/Llama-3.1-405B fp8 /shared/Llama-3.1-405B-FP8 --address auto --parts 16

Checkpoint and target lie on a file system that every node has at the same path. A node that is lost costs its part alone:
Ray starts it again elsewhere, where it goes on from what is on disk.
"""

from __future__ import annotations

import argparse
import os
from typing import Any, Dict, List, Optional

import ray

import roofline


def part(model: str, plan: str, to: str, which: str, threads: Optional[int]) -> Dict[str, Any]:
    """Makes one part; one that is there already, from an earlier try, stays as it is."""
    told = roofline.quantize(model, plan=plan, to=to, part=which, resume=True, threads=threads, progress=False)
    return {"part": which, "tensors": told["tensors"], "bytes": told["bytes_before"]}


def join(model: str, plan: str, to: str, verify: bool) -> Dict[str, Any]:
    return roofline.quantize(model, plan=plan, to=to, join=True, verify=verify, progress=False).to_dict()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="the checkpoint")
    parser.add_argument("plan", help="what its weights become")
    parser.add_argument("to", help="where the result goes")
    parser.add_argument("--parts", type=int, help="how many; one for each node when left out")
    parser.add_argument("--threads", type=int, help="threads of a part; all cores of its node when left out")
    parser.add_argument("--address", help="a cluster; one on this machine when left out")
    parser.add_argument("--verify", action="store_true", help="read the result back before it gets its name")
    asked = parser.parse_args()
    model, to = os.path.abspath(asked.model), os.path.abspath(asked.to)
    ray.init(address=asked.address, log_to_driver=False, include_dashboard=False if asked.address is None else None)

    nodes: List[Dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call,unused-ignore]
    count = asked.parts or len([node for node in nodes if node["Alive"]])
    # A part that failed was refused for a reason, and would be again; one whose node is lost is tried once more.
    task = ray.remote(part).options(scheduling_strategy="SPREAD", num_cpus=asked.threads or 1, max_retries=3)
    pending = [task.remote(model, asked.plan, to, f"{number}/{count}", asked.threads) for number in range(1, count + 1)]
    while pending:
        done, pending = ray.wait(pending)
        for told in ray.get(done):
            print(f"part {told['part']}: {told['tensors']} tensors, {told['bytes'] / 1e9:.3f} GB", flush=True)
    report = ray.get(ray.remote(join).remote(model, asked.plan, to, asked.verify))
    before, after = report["bytes_before"], report["bytes_after"]
    print(f"{report['target']}: {before / 1e9:.3f} GB before, {after / 1e9:.3f} GB after")
    print(f"relative error {report['relative_squared_error'] ** 0.5:.5f} over the model's products")


if __name__ == "__main__":
    main()
