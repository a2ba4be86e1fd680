"""The examples for Ray, on a cluster of two nodes on this machine."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
from typing import Iterator

import pytest

import roofline

pytest.importorskip("ray", reason="ray is not installed: the examples for a cluster are NOT tested")
pytest.importorskip("numpy")

ROOT = pathlib.Path(os.environ.get("ROOFLINE_ROOT", pathlib.Path(__file__).parents[2]))


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    """The address of two nodes with a core each."""
    from ray.cluster_utils import Cluster

    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    made = Cluster()
    try:
        for _ in range(2):
            made.add_node(num_cpus=1, num_gpus=0, object_store_memory=100 << 20, include_dashboard=False)
        made.wait_for_nodes()
        yield made.address
    finally:
        made.shutdown()


def run(name: str, *words: str) -> str:
    script = str(ROOT / "examples" / name)
    done = subprocess.run([sys.executable, script, *words], capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_sweep(cluster: str, tmp_path: pathlib.Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    folder = tmp_path / "points"
    said = run("ray_sweep.py", "--address", cluster, "--points", "20000", "--chunk", "6000", "--to", str(folder))
    assert said.startswith("20000 points on 2 nodes in ")
    files = sorted(folder.iterdir())
    assert len(files) == 4
    rows = [row for path in files for row in parquet.read_table(path).to_pylist()]
    assert len(rows) == 20000 and len({(row["model"], row["on"], row["precision"], row["batch"], row["context"]) for row in rows}) == 20000
    for row in rows[:: len(rows) // 20]:
        point = {name: row[name] for name in ("on", "precision", "batch", "context")}
        if row["error"] is not None:
            with pytest.raises(roofline.RooflineError):
                roofline.predict("model", row["model"], phase="decode", **point)
            continue
        assert roofline.predict("model", row["model"], phase="decode", **point).estimates[0].tokens_per_s == row["tokens_per_s"]
    fits = [row for row in rows if row["model"] == "llama-3-8b" and row["fits"]]
    best = max(fits, key=lambda row: float(row["tokens_per_s"]))
    line = next(line for line in said.splitlines() if line.startswith("llama-3-8b"))
    assert line.split()[1:3] == [f"{best['tokens_per_s']:.0f}", best["on"]]


def test_a_fleet(cluster: str, tmp_path: pathlib.Path) -> None:
    said = run("ray_fleet.py", "--address", cluster, "--backend", "null", "--on", "h200", "--quick", "--keep", str(tmp_path))
    lines = said.splitlines()
    assert lines[0].startswith("node") and len([line for line in lines if "H200 SXM5" in line]) == 2
    # Exact fake times: the nodes are equal.
    assert lines[-1] == "All 2 are within 5 % of their kind's median."
    assert [sorted(path.name for path in folder.iterdir() if path.suffix == ".jsonl") for folder in tmp_path.iterdir()] == [["run.jsonl"]] * 2
    sys.path.insert(0, str(ROOT / "examples"))
    try:
        import ray_fleet
    finally:
        sys.path.pop(0)
    node = {"device": "GPU", "error": 0.0}
    times = [("a", 10.0, 20.0), ("b", 10.1, 20.0), ("c", 12.5, 26.0), ("d", 9.9, 20.2)]
    nodes = [{**node, "node": name, "times": {"gemv": one, "gemm": two}} for name, one, two in times]
    ray_fleet.judge(nodes)
    assert ray_fleet.outliers(nodes, 0.05) == ["c is 21 % slower than the median of its kind"]
    assert (nodes[2]["worst"], round(nodes[2]["worst_speed"], 3)) == ("gemm", 0.773)


def test_a_checkpoint_in_parts(cluster: str, tmp_path: pathlib.Path) -> None:
    source, one, many = tmp_path / "source", tmp_path / "one", tmp_path / "many"
    roofline.quantize("demo", plan="bf16", as_="safetensors", to=source, max_shard_size="4MB")
    report = roofline.quantize(source, plan="w4a16", to=one)
    said = run("ray_quantize.py", str(source), "w4a16", str(many), "--address", cluster, "--parts", "3", "--verify")
    assert said.count("part ") == 3
    assert f"relative error {report.relative_squared_error ** 0.5:.5f} over the model's products" in said
    written = {path.name: path.read_bytes() for path in one.iterdir()}
    assert {path.name: path.read_bytes() for path in many.iterdir()} == written
    assert sorted(path.name for path in tmp_path.iterdir()) == ["many", "one", "source"]
