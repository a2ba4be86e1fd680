"""PyTorch under the roof: traces of a profiler, blocks that are timed, and models of `transformers`.

torch is stood in for where a test is about what it is asked; where it is installed, a small model is profiled and timed.
"""

from __future__ import annotations

import gzip
import json
import pathlib
import sys
import types
from typing import Any, Dict, List

import pytest

import roofline

SHAPES = {
    "Input Dims": [[4096, 4096], [4096, 4096]],
    "Input type": ["c10::BFloat16", "c10::BFloat16"],
    "Concrete Inputs": ["", ""],
}


def event(kind: str, name: str, start: float, length: float, **args: Any) -> Dict[str, Any]:
    return {"ph": "X", "cat": kind, "name": name, "pid": 1, "tid": 1, "ts": start, "dur": length, "args": args}


TRACE = {
    "deviceProperties": [{"id": 0, "name": "NVIDIA H200"}],
    "traceEvents": [
        event("cpu_op", "aten::mm", 0, 50, **SHAPES),
        event("cuda_runtime", "cudaLaunchKernel", 10, 5, correlation=3),
        event("kernel", "gemm", 100, 278, correlation=3, device=0),
        event("kernel", "lonely", 478, 22, device=0),
    ],
}


class Profiler:
    """A profiler that has stopped."""

    def export_chrome_trace(self, path: str) -> None:
        self.path = path
        pathlib.Path(path).write_text(json.dumps(TRACE), encoding="utf-8")


def judged(answer: Any) -> None:
    mm = answer.operators[0]
    assert (mm.operator, mm.calls, mm.bound, answer.device) == ("aten::mm", 1, "compute", "h200_sxm")
    # 2 * 4096^3 operations take 139 us at the peak.
    assert mm.of_roof == pytest.approx(0.5, abs=0.005)
    assert (answer.unattributed.kernels, answer.unattributed.names) == (1, ["lonely"])
    assert answer.occupations[0].idle_us == pytest.approx(100)
    assert "aten::mm" in answer.first[0]


def test_a_trace_packed_or_not(tmp_path: pathlib.Path) -> None:
    plain, packed = tmp_path / "trace.json", tmp_path / "trace.json.gz"
    plain.write_text(json.dumps(TRACE), encoding="utf-8")
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    judged(roofline.torch.profile(plain))
    judged(roofline.torch.profile(str(packed), on="h200"))
    rows = roofline.torch.profile(plain).to_rows()
    assert [row["operator"] for row in rows] == ["aten::mm", "lonely"]


def test_a_live_profiler_is_exported_and_nothing_stays() -> None:
    profiler = Profiler()
    judged(roofline.torch.profile(profiler, on="h200"))
    assert not pathlib.Path(profiler.path).exists()


def test_a_profiler_that_gave_its_trace_away() -> None:
    def refuse(path: str) -> None:
        raise RuntimeError("Trace is already saved.")

    with pytest.raises(roofline.RooflineError, match="already saved") as raised:
        roofline.torch.profile(types.SimpleNamespace(export_chrome_trace=refuse), on="h200")
    assert "once" in raised.value.hint


def test_compare_has_the_same_trace(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(TRACE), encoding="utf-8")
    answer = roofline.compare(trace=path, on="h200")
    judged(answer.trace)
    assert [row.shape for row in answer.comparisons] == ["aten::mm 4096 x 4096 x 4096"]
    with pytest.raises(roofline.RooflineError, match="two questions"):
        roofline.compare(trace=path, measured=path, on="h200")


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "empty"),
        (b'{"traceEvents": [', "ends in the middle"),
        (gzip.compress(b'{"traceEvents": [{}]}' * 99)[:40], "trace"),
        (b'[{"ph":"X","cat":"kernel","name":"k","ts":1,"dur":-1}]', "dur"),
        (b"\xff\xfe\x00\x01", "neither"),
    ],
)
def test_what_is_no_trace_is_an_error(tmp_path: pathlib.Path, content: bytes, why: str) -> None:
    path = tmp_path / "trace.json"
    path.write_bytes(content)
    with pytest.raises(roofline.RooflineError, match=why):
        roofline.torch.profile(path, on="h200")


def test_what_is_no_profiler_is_a_type_error() -> None:
    with pytest.raises(TypeError, match="not int"):
        roofline.torch.profile(5)
    with pytest.raises(roofline.RooflineError):
        roofline.torch.profile("/nowhere/trace.json", on="h200")


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> List[str]:
    """A torch with a GPU whose events are 2 ms apart."""
    said: List[str] = []

    class Event:
        def __init__(self, enable_timing: bool) -> None:
            assert enable_timing

        def record(self) -> None:
            said.append("record")

        def synchronize(self) -> None:
            said.append("wait")

        def elapsed_time(self, end: "Event") -> float:
            return 2.0

    cuda = types.SimpleNamespace(
        is_available=lambda: True,
        synchronize=lambda: said.append("synchronize"),
        Event=Event,
        current_device=lambda: 0,
        get_device_name=lambda: "NVIDIA H200",
    )
    monkeypatch.setitem(sys.modules, "torch", types.SimpleNamespace(cuda=cuda))
    return said


def test_a_region_of_a_gpu_is_timed_by_its_events(gpu: List[str]) -> None:
    with roofline.watch("prefill", flops=989.4e9, bytes=0.96e9) as region:
        gpu.append("block")
    assert gpu == ["synchronize", "record", "block", "record", "wait"]
    assert (region.seconds, region.clock, region.bound) == (0.002, "cuda", "compute")
    assert region.tflops == pytest.approx(494.7)
    assert region.gbps == pytest.approx(480)
    assert region.of_roof == pytest.approx(0.5, abs=0.001)
    assert region.answer.device == "h200_sxm"
    assert "compute-bound, at 50 % of the roof" in repr(region)
    assert "prefill" in region._repr_html_() and "<table>" in region._repr_html_()


def test_a_region_of_the_processor_is_timed_by_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    times = iter([10.0, 10.5])
    monkeypatch.setattr("roofline.watching.time.perf_counter", lambda: next(times))
    with roofline.watch("block", bytes=1e9) as region:
        with pytest.raises(roofline.RooflineError, match="has not ended"):
            _ = region.seconds
    assert (region.seconds, region.gbps, region.of_roof, region.clock) == (0.5, 2.0, None, "processor")


def test_an_exception_goes_on_and_leaves_no_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    region = roofline.watch("block", on="h200")
    with pytest.raises(ZeroDivisionError), region:
        _ = 1 / 0
    with pytest.raises(roofline.RooflineError):
        _ = region.seconds
    assert "not timed" in repr(region) and "not timed" in region._repr_html_()


@pytest.mark.parametrize("wrong", [{"flops": -1}, {"bytes": 0}, {"on": "h20O"}, {"on": "h200", "precision": "q"}])
def test_counts_that_are_none_are_errors(monkeypatch: pytest.MonkeyPatch, wrong: Dict[str, Any]) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(roofline.RooflineError), roofline.watch("block", **wrong):
        pass


CONFIG = {
    "model_type": "llama",
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_hidden_layers": 2,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 1024,
    "torch_dtype": "float32",
}


class Parameter:
    def __init__(self, dtype: str, count: int) -> None:
        self.dtype, self.count = dtype, count

    def numel(self) -> int:
        return self.count


def test_a_model_of_transformers_is_a_model() -> None:
    config = types.SimpleNamespace(to_dict=lambda: dict(CONFIG, unplain=object()))
    parameters = [Parameter("torch.float32", 5), Parameter("torch.bfloat16", 500)]
    live = types.SimpleNamespace(config=config, parameters=lambda: iter(parameters))
    model = roofline.from_transformers(live)
    assert model["torch_dtype"] == "bfloat16" and "unplain" not in model
    assert roofline.from_transformers(config)["torch_dtype"] == "float32"
    assert roofline.from_transformers(CONFIG) == CONFIG
    answer = roofline.predict("model", model, on="h200", precision="bf16", phase="decode")
    plain = roofline.predict("model", CONFIG, on="h200", precision="bf16", phase="decode")
    assert answer.estimates[0].flops == plain.estimates[0].flops > 0
    with pytest.raises(roofline.RooflineError, match="no configuration"):
        roofline.from_transformers(5)


def test_torch_itself() -> None:
    torch = pytest.importorskip("torch")
    layer, rows = torch.nn.Linear(64, 128), torch.randn(32, 64)
    with torch.no_grad(), torch.profiler.profile(record_shapes=True) as profiler:
        layer(rows)
    answer = roofline.torch.profile(profiler, on="h200")
    shapes = [shape.shape for row in answer.operators for shape in row.shapes]
    assert "aten::addmm 32 x 128 x 64" in shapes
    with roofline.watch("layer", flops=2 * 32 * 64 * 128, on="h200", precision="fp32") as region:
        layer(rows)
    assert region.seconds > 0 and region.of_roof is not None
