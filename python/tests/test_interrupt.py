"""Ctrl-C stops work, and what was finished stays."""

from __future__ import annotations

import json
import os
import pathlib
import signal
import subprocess
import sys
import time
from typing import Any, List

import pytest

import roofline

CODE = """
import sys, time, roofline
def told(news):
    if news["kernel"]: print("kernel", news["kernel"][0], flush=True)
try:
    # Ten products of over a second each: a kernel that is small is steady, and done, before anybody can stop it.
    roofline.measure("gemm", m=64, n=4096, k=4096, backend="cpu", seconds=2, out=sys.argv[1], progress=told,
                     precision=["fp32", "bf16", "w8a16", "w4a16", "fp16", "fp8a16", "q8_0", "q4_0", "q4_k_m", "q6_k"])
except KeyboardInterrupt:
    print("interrupted", flush=True)
    # The interpreter is as it was.
    print(roofline.predict("gemv", n=64, k=64, on="h200", precision="bf16").estimates[0].tier, flush=True)
"""


@pytest.mark.skipif(os.name == "nt", reason="signals of POSIX")
def test_ctrl_c_stops_a_measurement_and_keeps_what_was_finished(tmp_path: pathlib.Path) -> None:
    run = tmp_path / "run.jsonl"
    child = subprocess.Popen(
        [sys.executable, "-c", CODE, str(run)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    # The second kernel runs: the first is on disk.
    for line in child.stdout:
        if line.startswith("kernel") and int(line.split()[1]) >= 1:
            break
    child.send_signal(signal.SIGINT)
    said, errors = child.communicate(timeout=120)
    assert child.returncode == 0, errors
    assert [line for line in said.splitlines() if not line.startswith("kernel")] == ["interrupted", "expected"]
    measured = [line for line in map(json.loads, run.read_text().splitlines()) if "measured" in line]
    assert 1 <= len(measured) < 10
    # And the run goes on from there.
    assert len(roofline.compare(from_=run).comparisons) == len(measured)


QUANTIZE = """
import sys, roofline
asked = dict(plan="int4-g128-zp", method="hqq", to=sys.argv[1], threads=1)
done = 0
def told(news):
    global done
    done += news["bytes"]
    if done: print("going", flush=True)
try:
    roofline.quantize("demo", progress=told, **asked)
    print("not interrupted", flush=True)
except KeyboardInterrupt:
    print("interrupted", flush=True)
report = roofline.quantize("demo", resume=True, **asked)
print(len(report.weights), flush=True)
"""


@pytest.mark.skipif(os.name == "nt", reason="signals of POSIX")
def test_ctrl_c_stops_a_quantizer_and_it_goes_on(tmp_path: pathlib.Path) -> None:
    whole, target = tmp_path / "whole", tmp_path / "out"
    weights = len(roofline.quantize("demo", plan="int4-g128-zp", method="hqq", to=whole).weights)
    child = subprocess.Popen(
        [sys.executable, "-c", QUANTIZE, str(target)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "going\n"
    child.send_signal(signal.SIGINT)
    said, errors = child.communicate(timeout=120)
    assert child.returncode == 0, errors
    assert [line for line in said.splitlines() if line != "going"] == ["interrupted", str(weights)]
    for path in whole.iterdir():
        assert path.name == "README.md" or path.read_bytes() == (target / path.name).read_bytes(), path.name
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "whole"]


def test_whoever_is_told_may_stop_it() -> None:
    class Enough(Exception):
        pass

    def told(news: Any) -> None:
        raise Enough

    with pytest.raises(Enough):
        roofline.measure("gemv", n=64, k=64, backend="cpu", seconds=0.2, precision=["fp32", "bf16"], progress=told)


def test_progress_is_told() -> None:
    heard: List[Any] = []
    roofline.measure("gemv", n=64, k=64, backend="cpu", seconds=0.2, precision=["fp32", "bf16"], progress=heard.append)
    kernels = [news["kernel"] for news in heard if news["kernel"]]
    assert kernels and all(count == 2 for _, count, _ in kernels)
    assert heard[-1]["ended"]


def test_the_interpreter_is_free_meanwhile() -> None:
    """A thread counts while another measures, which leaves it some turns on a machine with few cores. The products are large: a
    kernel that is small is steady, and done, before anybody has counted far."""
    import threading

    counted = 0
    going = True

    def count() -> None:
        nonlocal counted
        while going:
            counted += 1
            time.sleep(0.001)

    thread = threading.Thread(target=count)
    thread.start()
    start = time.monotonic()
    asked = ["fp32", "w8a16", "q6_k"]
    roofline.measure("gemm", m=64, n=4096, k=4096, backend="cpu", seconds=2, precision=asked, progress=False)
    took = time.monotonic() - start
    going = False
    thread.join()
    # It would count on for as long as a look at signals takes, twenty times a second, if it had its turns then alone.
    assert took > 0.5 and counted > 50 * took, f"{counted} in {took:.2f} s"
