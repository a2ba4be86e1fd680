"""Whatever is handed in, an exception comes out: no abort, no hang, and no answer to another question."""

from __future__ import annotations

import collections
import os
import subprocess
import sys
import tempfile
import threading
from typing import Any, Dict, List

import pytest

import roofline
from roofline import _native

GEMV: Dict[str, Any] = {"subject": "gemv", "n": 4096, "k": 4096, "on": "h200", "precision": "bf16"}


class Hostile:
    """Fails wherever it is looked at."""

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError("do not look")


class Endless:
    """Says that it is a list of itself."""

    def tolist(self) -> Any:
        return [self]


def nested(depth: int) -> List[Any]:
    value: List[Any] = []
    for _ in range(depth):
        value = [value]
    return value


def closed_file() -> Any:
    file = tempfile.TemporaryFile()
    file.close()
    return file


def cyclic() -> Dict[str, Any]:
    value: Dict[str, Any] = {}
    value["itself"] = value
    return value


@pytest.mark.parametrize("field", ["n", "on", "precision", "peak", "tier", "bandwidth"])
@pytest.mark.parametrize(
    "make",
    [
        lambda: float("nan"),
        lambda: float("inf"),
        lambda: -1,
        lambda: 10**30,
        lambda: 10**5000,
        lambda: -(10**400),
        lambda: object(),
        lambda: b"h200",
        lambda: "\ud800",
        lambda: "h200\0",
        lambda: {1: 2},
        lambda: {"\udfff": 1},
        lambda: nested(100_000),
        lambda: cyclic(),
        lambda: Endless(),
        lambda: closed_file(),
        lambda: lambda: None,
        lambda: {1, 2},
        lambda: 1j,
        lambda: iter([1]),
        lambda: type,
        lambda: "x" * 1_000_000,
    ],
)
def test_values_that_are_none(field: str, make: Any) -> None:
    with pytest.raises(roofline.RooflineError) as caught:
        _native.call("predict", {**GEMV, field: make()})
    assert len(str(caught.value)) < 10_000


def test_an_object_that_fails_says_so_itself() -> None:
    with pytest.raises(RuntimeError, match="do not look"):
        _native.call("predict", {**GEMV, "on": Hostile()})


@pytest.mark.parametrize("verb", _native.verbs_known())
def test_every_verb_refuses_what_it_does_not_know(verb: str) -> None:
    with pytest.raises(roofline.RooflineError, match="unknown field `nonsense`|`subject` is"):
        _native.call(verb, {"nonsense": 1})


@pytest.mark.parametrize("request_", [None, [], "gemv", 1, collections.OrderedDict])
def test_a_request_is_a_dictionary(request_: Any) -> None:
    with pytest.raises(TypeError):
        _native.call("predict", request_)


def test_names() -> None:
    with pytest.raises(roofline.RooflineError, match="did you mean `predict`"):
        _native.call("predct", {})
    with pytest.raises(roofline.RooflineError) as caught:
        roofline.predict("gemv", n=4096, k=4096, on="h20O")
    error = caught.value
    assert "did you mean `h200`" in error.message
    # Hints are written for whoever calls.
    assert error.hint is not None and "roofline.devices()" in error.hint and 'on="' in error.hint and "--" not in error.hint
    assert isinstance(error, ValueError) and error.kind == "unknown"
    assert str(error) == f"{error.message}\nhint: {error.hint}"
    with pytest.raises(TypeError, match="twice"):
        roofline.predict("gemv", subject="gemm", n=1, k=1)
    with pytest.raises(TypeError, match="without a name"):
        roofline.tiling(1, 2, 3)


def test_files_that_are_none(tmp_path: Any) -> None:
    missing = tmp_path / "missing"
    for ask in (
        lambda: roofline.inspect(missing),
        lambda: roofline.quantize(missing, plan="w4a16", to=tmp_path / "out"),
        lambda: roofline.evaluate(missing, text=missing),
        lambda: roofline.compare(from_=missing),
        lambda: roofline.predict("model", str(missing), on="h200"),
    ):
        with pytest.raises(roofline.RooflineError):
            ask()
    rubbish = tmp_path / "model.safetensors"
    rubbish.write_bytes(b"\xff" * 64)
    with pytest.raises(roofline.RooflineError):
        roofline.inspect(rubbish)


def test_threads() -> None:
    expected = _native.call("predict", GEMV)
    wrong: List[Any] = []

    def ask() -> None:
        for _ in range(20):
            if _native.call("predict", GEMV) != expected:
                wrong.append(1)
            with pytest.raises(roofline.RooflineError):
                _native.call("predict", {**GEMV, "n": 0})

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_fork_asks_on() -> None:
    """While other threads of the parent are at work, too. A child that hangs is ended, and fails."""
    code = """
import os, threading, roofline
ask = lambda: roofline.predict("model", "llama-3.2-1b", on="h200", precision="bf16").estimates[0].expected_time_us
first = ask()
going = True
def work():
    while going: ask()
threads = [threading.Thread(target=work) for _ in range(2)]
for thread in threads: thread.start()
for _ in range(10):
    child = os.fork()
    if child == 0:
        same = ask() == first and roofline.measure("gemv", n=64, k=64, on="h200", backend="null").measurements
        os._exit(0 if same else 1)
    assert os.waitpid(child, 0)[1] == 0
going = False
for thread in threads: thread.join()
print("done")
"""
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, timeout=240)
    assert (done.stdout, done.returncode) == ("done\n", 0), done.stderr
