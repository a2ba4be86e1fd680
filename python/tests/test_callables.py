"""Kernels of one's own: right ones are timed beside the roof and ours, wrong ones are refused."""

from __future__ import annotations

import os
import pathlib
import re
import signal
import subprocess
import sys
import time
import types
from typing import Any, Dict, List

import pytest

import roofline

numpy = pytest.importorskip("numpy")

SMALL: Dict[str, Any] = {"n": 96, "k": 64, "precision": "fp32", "quick": True, "seconds": 0.05, "arrays": "numpy"}


def gemv(x: Any, w: Any) -> Any:
    return w @ x


def measured(fn: Any = gemv, op: str = "gemv", **fields: Any) -> Any:
    return roofline.measure_callable(fn, op, **{**SMALL, **fields})


def test_a_function_stands_between_the_roof_and_ours() -> None:
    answer = measured()
    own = answer.own[0]
    yours, ours = answer.measurements
    assert (own.kernel, own.timer, own.bound, answer.backend) == ("gemv", "clock", "memory", "cpu")
    assert (yours.kernel, yours.kernel_path) == ("gemv", "unknown") and ours.kernel == own.ours != "gemv"
    assert own.measured_time_us == yours.measured_time_us and own.ours_time_us == ours.measured_time_us
    assert own.speedup_over_ours == pytest.approx(ours.measured_time_us / yours.measured_time_us)
    assert own.of_roof == pytest.approx(own.ideal_time_us / own.measured_time_us)
    assert own.ideal_time_us > 0 and own.lo_us < own.expected_time_us < own.hi_us
    # 96 numbers were compared, and samples were taken until the time was up or the median known.
    assert yours.check_error <= yours.check_limit and yours.samples >= 3
    # 64 + 96 * 64 numbers in, 96 out.
    assert (yours.residency, yours.bytes) == ("cold", 4 * (64 + 96 * 64 + 96))
    assert "the memory roof" in own.verdict
    assert "gemv" in repr(answer) and answer.to_rows()[0]["speedup_over_ours"] == own.speedup_over_ours


def test_the_block_of_the_page(root: pathlib.Path, tmp_path: pathlib.Path) -> None:
    page = (root / "docs/guide/python.md").read_text(encoding="utf-8")
    (code,) = [code for code in re.findall(r"^```py\n(.*?)^```", page, re.S | re.M) if "measure_callable" in code]
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "the memory roof" in done.stdout, done.stderr


def test_our_kernel_may_be_left_out() -> None:
    answer = measured(ours=False)
    assert len(answer.measurements) == 1 and answer.own[0].ours is None
    assert answer.own[0].ours_missing == "it was not asked for"


def test_products_of_many_rows_and_a_place_for_the_result() -> None:
    seen: List[Any] = []

    def gemm(x: Any, w: Any, out: Any) -> None:
        seen.append((x.shape, w.shape, out.shape, out.dtype))
        numpy.matmul(x, w.T, out=out)

    answer = measured(gemm, "gemm", m=5)
    assert seen[0] == ((5, 64), (96, 64), (5, 96), numpy.float32)
    assert answer.own[0].shape == "gemm 5 x 96 x 64"


def test_calls_are_cold_unless_they_are_to_be_warm() -> None:
    """Every call reads another copy of the weights, and the same inputs."""

    def copies(**fields: Any) -> int:
        weights: Dict[int, Any] = {}
        inputs: Dict[int, Any] = {}

        def noted(x: Any, w: Any) -> Any:
            weights[id(w)], inputs[id(x)] = w, x
            assert numpy.any(w != 0) and numpy.any(x != 0)
            return w @ x

        answer = measured(noted, n=512, k=512, ours=False, **fields)
        assert len(inputs) == 1
        first = next(iter(weights.values()))
        assert all(numpy.array_equal(first, other) for other in weights.values())
        assert answer.residency == ("warm" if fields.get("warm") else "cold")
        return len(weights)

    assert copies(warm=True) == 1
    assert copies() > 1


def test_operands_are_the_same_every_time_and_in_the_formats_of_the_precision() -> None:
    def seen(**fields: Any) -> List[Any]:
        kept: List[Any] = []

        def noted(*arrays: Any) -> Any:
            kept.append([array.copy() for array in arrays])
            return numpy.zeros(96, numpy.float32)

        with pytest.raises(roofline.RooflineError, match="computes something else"):
            measured(noted, **fields)
        assert len(kept) == 1, "what is wrong is called once"
        return kept[0]

    one, other = seen(), seen()
    assert all(numpy.array_equal(a, b) for a, b in zip(one, other))
    assert [array.dtype for array in seen(precision="fp16/fp16")] == [numpy.float16] * 2
    x, w, scales = seen(precision="int8/fp32")[:3] if _has_bf16() else (one[0], one[1], None)
    if scales is not None:
        assert (w.dtype, w.shape, scales.shape, str(scales.dtype)) == (numpy.int8, (96, 64), (96,), "bfloat16")


def _has_bf16() -> bool:
    try:
        import ml_dtypes  # noqa: F401
    except ImportError:
        return False
    return True


def test_attention_as_the_page_says() -> None:
    def attention(q: Any, k: Any, v: Any) -> Any:
        batch, queries, heads, width = q.shape
        group = heads // k.shape[1]
        keys, values = numpy.repeat(k, group, 1), numpy.repeat(v, group, 1)
        scores = numpy.einsum("bqhd,bhcd->bhqc", q, keys) / numpy.sqrt(width)
        seen = numpy.arange(k.shape[2])[None, :] <= numpy.arange(queries)[:, None] + k.shape[2] - queries
        scores = numpy.where(seen, scores, -numpy.inf)
        weights = numpy.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        return numpy.einsum("bhqc,bhcd->bqhd", weights, values).astype(q.dtype)

    shape: Dict[str, Any] = {"heads": 4, "kv_heads": 2, "head_dim": 16, "context": 33, "queries": 3, "batch": 2}
    fields: Dict[str, Any] = {"precision": "fp32", "quick": True, "seconds": 0.05, "arrays": "numpy"}
    answer = roofline.measure_callable(attention, "attention", **shape, **fields)
    assert answer.own[0].kernel == "attention" and answer.measurements[0].check_error < 1e-5
    with pytest.raises(roofline.RooflineError, match="computes something else"):
        roofline.measure_callable(attention, "attention", no_causal=True, **shape, **fields)


WRONG: Dict[str, Any] = {
    "a little off": (lambda x, w: (w @ x) * 1.001, "relative error 1.00e-3 .* where 6e-6 is allowed; y\\[\\d+\\] is"),
    "one value": (lambda x, w: numpy.concatenate([[9.0], (w @ x)[1:]]).astype("f4"), "y\\[0\\] is 9.0+ and should be"),
    "too short": (lambda x, w: (w @ x)[:-1], "shape \\[95\\] where \\[96\\] is expected"),
    "turned": (lambda x, w: w.T @ w @ x, "shape \\[64\\] where \\[96\\]"),
    "no numbers": (lambda x, w: (w @ x) * float("nan"), "96 of 96 values are not finite: y\\[0\\] is NaN"),
    "infinite": (lambda x, w: (w @ x) + float("inf"), "is inf"),
    "zeros": (lambda x, w: numpy.zeros(96, "f4"), "relative error 1.00e0"),
    "whole numbers": (lambda x, w: (w @ x).astype(int), "numbers of type int64"),
    "nothing": (lambda x, w: None, "returned an object of type NoneType"),
    "a list": (lambda x, w: list(w @ x), "returned an object of type list"),
    "nothing in its place": (lambda x, w, out: None, "96 of 96 values are not finite"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_refused_with_the_reason(name: str) -> None:
    fn, reason = WRONG[name]
    with pytest.raises(roofline.RooflineError, match=reason) as raised:
        measured(fn)
    assert raised.value.kind == "wrong_result" and raised.value.hint


def test_what_a_function_raises_is_raised_as_it_is() -> None:
    class Mine(Exception):
        pass

    def fails(x: Any, w: Any) -> Any:
        raise Mine("here")

    with pytest.raises(Mine, match="here") as raised:
        measured(fails)
    assert raised.traceback[-1].name == "fails"

    calls = 0

    def fails_later(x: Any, w: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls > 3:
            raise Mine("later")
        return w @ x

    with pytest.raises(Mine, match="later"):
        measured(fails_later)
    # Wrong numbers of arguments are the interpreter's to name.
    with pytest.raises(TypeError, match="argument"):
        measured(lambda x: x)
    assert measured().own, "nothing is broken after that"


def test_what_cannot_be_asked_is_named() -> None:
    def refused(*args: Any, **fields: Any) -> Any:
        with pytest.raises(roofline.RooflineError) as raised:
            measured(*args, **fields)
        return raised.value

    assert "of type int, which cannot be called" in refused(7).message
    assert "did you mean `gemv`?" in refused(gemv, "gemw").message
    assert "gemv, gemm or attention" in refused(gemv, "model").hint
    assert refused(n=None).message == "`n` is missing"
    assert refused(n=0).hint == "it is a whole number from 1 to 2147483647"
    assert "unknown field `m`" in refused(m=4).message
    assert "more than one precision" in refused(precision="fp32,fp16").message
    assert "did you mean `w4a16`?" in refused(precision="w4a61").message
    assert "no arrays of their own" in refused(precision="q8_0/fp32").message
    assert "one of numpy, torch, cupy" in refused(arrays="jax").hint
    assert "lie on" in refused(device="cuda").hint
    assert refused(seconds=-1).message == "`seconds` is -1"
    with pytest.raises(TypeError, match="precision"):
        roofline.measure_callable(gemv, "gemv", n=4, k=4)  # type: ignore[call-arg]


@pytest.mark.skipif(_has_bf16(), reason="NumPy has it here")
def test_numbers_that_numpy_lacks_are_refused() -> None:
    with pytest.raises(roofline.RooflineError, match="NumPy has no numbers of type bfloat16") as raised:
        measured(precision="bf16")
    assert "ml_dtypes" in str(raised.value.hint)


def test_a_library_that_is_not_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupy", None)
    with pytest.raises(roofline.RooflineError, match="need cupy, which is not here") as raised:
        measured(arrays="cupy")
    assert raised.value.hint == "pip install cupy"


def test_a_slow_function_ends_and_says_how_little_is_known() -> None:
    def slow(x: Any, w: Any) -> Any:
        time.sleep(0.15)
        return w @ x

    began = time.perf_counter()
    answer = measured(slow, ours=False)
    yours = answer.measurements[0]
    # Two calls to warm up, one for the check, three samples: the fewest that there can be. One that ran while the clock fell is
    # not counted.
    assert 0.5 < time.perf_counter() - began < 20
    assert 1 <= yours.samples <= 3 and "few_samples" in [warning["kind"] for warning in yours.warnings]
    assert yours.measured_time_us > 150_000


def test_the_collector_is_as_it_was() -> None:
    import gc

    def seen(x: Any, w: Any) -> Any:
        assert not gc.isenabled()
        return w @ x

    measured(seen, ours=False)
    assert gc.isenabled()
    with pytest.raises(ZeroDivisionError):
        measured(lambda x, w: 1 / 0)
    assert gc.isenabled()


CODE = """
import os, signal, sys, numpy, roofline
calls = 0
def gemv(x, w):
    global calls
    calls += 1
    if calls == 8: print("at work", flush=True)
    return w @ x
try:
    roofline.measure_callable(gemv, "gemv", n=64, k=64, precision="fp32", arrays="numpy", seconds=60)
except KeyboardInterrupt:
    print("interrupted", flush=True)
    print(roofline.predict("gemv", n=64, k=64, on="h200", precision="bf16").estimates[0].tier, flush=True)
"""


@pytest.mark.skipif(os.name == "nt", reason="signals of POSIX")
def test_ctrl_c_ends_it_and_nothing_is_kept(tmp_path: pathlib.Path) -> None:
    code = CODE.replace("return w @ x", "import time; time.sleep(0.02); return w @ x")
    child = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path
    )
    assert child.stdout is not None and child.stdout.readline() == "at work\n"
    runs = pathlib.Path(os.environ["ROOFLINE_CONFIG_DIR"]) / "runs"
    before = sorted(runs.glob("*")) if runs.is_dir() else []
    child.send_signal(signal.SIGINT)
    said, errors = child.communicate(timeout=60)
    assert (child.returncode, said.splitlines()) == (0, ["interrupted", "expected"]), errors
    assert not list(tmp_path.iterdir())
    assert (sorted(runs.glob("*")) if runs.is_dir() else []) == before


class Tensor:
    """As much of a torch tensor as is asked for, over NumPy."""

    def __init__(self, array: Any) -> None:
        self.array = array
        self.dtype = f"torch.{array.dtype}"
        self.shape = array.shape

    def to(self, device: Any) -> "Tensor":
        return self

    def reshape(self, shape: Any) -> "Tensor":
        return Tensor(self.array.reshape(shape))

    def clone(self) -> "Tensor":
        return Tensor(self.array.copy())

    def detach(self) -> "Tensor":
        return self

    contiguous = cpu = detach

    def numel(self) -> int:
        return int(self.array.size)

    def element_size(self) -> int:
        return int(self.array.itemsize)

    def data_ptr(self) -> int:
        return int(self.array.ctypes.data)

    def __matmul__(self, other: "Tensor") -> "Tensor":
        return Tensor(self.array @ other.array)


def _torch() -> Any:
    class NoGrad:
        def __enter__(self) -> None: ...

        def __exit__(self, *about: Any) -> None: ...

    torch = types.ModuleType("torch")
    fields: Dict[str, Any] = {
        "float32": numpy.float32,
        "cuda": types.SimpleNamespace(is_available=lambda: False),
        "device": lambda name: types.SimpleNamespace(type=name.split(":")[0], index=None),
        "frombuffer": lambda data, dtype: Tensor(numpy.frombuffer(bytes(data), dtype=dtype)),
        "full": lambda shape, value, dtype, device: Tensor(numpy.full(shape, value, dtype)),
        "no_grad": NoGrad,
    }
    for name, value in fields.items():
        setattr(torch, name, value)
    return torch


class Graph:
    """A record of products, which are computed again when it is replayed."""

    recording: List["Graph"] = []

    def __init__(self) -> None:
        self.products: List[Any] = []

    def replay(self) -> None:
        for left, right, out in self.products:
            numpy.copyto(out.array, left.array @ right.array)


class Recorded(Tensor):
    """A tensor whose products go into the graph that is being recorded."""

    def __matmul__(self, other: Tensor) -> "Recorded":
        out = Recorded(self.array @ other.array)
        if Graph.recording:
            Graph.recording[-1].products.append((self, other, out))
        return out

    def clone(self) -> "Recorded":
        return Recorded(self.array.copy())

    def reshape(self, shape: Any) -> "Recorded":
        return Recorded(self.array.reshape(shape))

    def fill_(self, value: float) -> None:
        self.array = self.array.copy() if not self.array.flags.writeable else self.array
        self.array.fill(value)


class Still:
    """Something to be within, or to wait for."""

    def __init__(self, *about: Any, **more: Any) -> None: ...

    def __enter__(self) -> None: ...

    def __exit__(self, *about: Any) -> None: ...

    def wait_stream(self, other: Any) -> None: ...

    def record(self) -> None: ...

    def synchronize(self) -> None: ...

    def elapsed_time(self, end: Any) -> float:
        return 2.5


class Recording:
    def __init__(self, graph: Graph) -> None:
        self.graph = graph

    def __enter__(self) -> None:
        Graph.recording.append(self.graph)

    def __exit__(self, *about: Any) -> None:
        Graph.recording.pop()


def _gpu_runner(fn: Any, monkeypatch: pytest.MonkeyPatch, **fields: Any) -> Any:
    """A runner of torch on a GPU that is stood in for, with a product of 6 x 4 on three copies."""
    from roofline._runners import runner_of

    torch = _torch()
    names = ("Stream", "current_stream", "stream", "Event", "device")
    torch.cuda = types.SimpleNamespace(
        is_available=lambda: True,
        current_device=lambda: 1,
        synchronize=lambda: None,
        empty_cache=lambda: None,
        CUDAGraph=Graph,
        graph=Recording,
        **{name: Still for name in names},
    )
    torch.frombuffer = lambda data, dtype: Recorded(numpy.frombuffer(bytes(data), dtype=dtype))
    monkeypatch.setitem(sys.modules, "torch", torch)
    options: Dict[str, Any] = {"arrays": "torch", "device": None, "name": None, "graph": True, **fields}
    runner = runner_of(fn, options["arrays"], options["device"], options["name"], options["graph"])
    assert (runner.processor, runner.index) == (False, 1)
    x, w = numpy.arange(4, dtype="f4"), numpy.arange(24, dtype="f4")
    runner.operand("x", "float32", (4,), x.tobytes(), 1)
    runner.operand("w", "float32", (6, 4), w.tobytes(), 3)
    places, named = runner.arguments(3, "float32", (6,))
    assert len(places) == 3 and named is None
    assert len({id(place[0]) for place in places}) == 1 and len({id(place[1]) for place in places}) == 3
    return runner


RIGHT = (numpy.arange(24, dtype="f4").reshape(6, 4) @ numpy.arange(4, dtype="f4")).tobytes()


def test_calls_on_a_gpu_are_recorded_and_replayed(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = 0

    def gemv(x: Any, w: Any) -> Any:
        nonlocal calls
        calls += 1
        return w @ x

    runner = _gpu_runner(gemv, monkeypatch)
    assert runner.written() == ("float32", (6,), RIGHT) and not runner.said
    assert runner.gather(6) is True
    # Three to warm up, six that are recorded: two rounds over three copies.
    assert calls == 1 + 3 + 6
    assert len(runner._graph.products) == 6 and len({id(product[0]) for product in runner._graph.products}) == 3
    assert runner.replayed() == ("float32", (6,), RIGHT)
    assert runner.sample() == 0.0025 and calls == 10
    runner.forget("for a reason")
    assert runner.gather(6) is False and runner.replayed() is None
    assert runner.sample() == 0.0025 and calls == 16
    assert runner.said == ["calls are timed with their launches: for a reason"]
    runner.release()
    assert not runner._places and runner._graph is None


def test_what_cannot_be_recorded_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    def waits(x: Any, w: Any) -> Any:
        if Graph.recording:
            raise RuntimeError("operation not permitted when stream is capturing\nand more")
        return w @ x

    runner = _gpu_runner(waits, monkeypatch)
    assert runner.gather(3) is False and runner.sample() == 0.0025
    (said,) = runner.said
    assert "cannot be recorded as a graph (RuntimeError: operation not permitted" in said and "more" not in said
    runner = _gpu_runner(waits, monkeypatch, graph=False)
    assert runner.gather(3) is False and not runner.said

    def stopped(x: Any, w: Any) -> Any:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        _gpu_runner(stopped, monkeypatch).gather(3)


def test_a_record_of_nothing_shows_when_it_is_replayed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Work that goes elsewhere is not in the graph, and leaves what was there before."""

    def elsewhere(x: Any, w: Any) -> Any:
        return Recorded(w.array @ x.array)

    runner = _gpu_runner(elsewhere, monkeypatch)
    assert runner.gather(3) is True
    _, _, data = runner.replayed()
    assert numpy.isnan(numpy.frombuffer(data, "f4")).all()


def test_tensors_are_what_torch_programs_get(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where torch is imported its tensors are given; it is stood in for, on the processor."""
    monkeypatch.setitem(sys.modules, "torch", _torch())
    kinds: List[type] = []

    def noted(x: Any, w: Any) -> Any:
        kinds.append(type(w))
        return w @ x

    answer = measured(noted, arrays=None)
    assert set(kinds) == {Tensor} and answer.own[0].timer == "clock"
    with pytest.raises(roofline.RooflineError, match="torch has no CUDA here"):
        measured(arrays="torch", device="cuda")
    with pytest.raises(roofline.RooflineError, match="`device` is 'mps'"):
        measured(arrays="torch", device="mps")


class TestTorch:
    """With torch itself, where it is installed."""

    @pytest.fixture(autouse=True)
    def installed(self) -> None:
        self.torch: Any = pytest.importorskip("torch")

    @pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16", "w8a16", "int8", "fp8a16", "w4a16"])
    def test_operands_mean_what_the_page_says(self, precision: str) -> None:
        torch = self.torch

        def wide(codes: Any, scales: Any = None) -> Any:
            if codes.dtype == torch.uint8:  # two numbers to a byte, the low half first, in two's complement
                halves = torch.stack([codes & 15, codes >> 4], -1).flatten(-2).to(torch.int8)
                codes = torch.where(halves > 7, halves - 16, halves)
            numbers = codes.to(torch.float32)
            if scales is None:
                return numbers
            scales = scales.to(torch.float32)
            if scales.dim() == codes.dim():
                return numbers * scales.repeat_interleave(numbers.shape[-1] // scales.shape[-1], -1)
            return numbers * scales[..., None]

        def fn(*arrays: Any) -> Any:
            if precision == "int8":
                x, x_scales, w, w_scales = arrays
                x = wide(x, x_scales)
            else:
                x, w, *scales = arrays
                w_scales = scales[0] if scales else None
            return wide(w, w_scales) @ wide(x)

        fields: Dict[str, Any] = {"n": 96, "k": 256, "quick": True, "seconds": 0.05, "ours": False, "arrays": "torch"}
        answer = roofline.measure_callable(fn, "gemv", precision=precision, device="cpu", **fields)
        assert answer.measurements[0].check_error < 1e-5

    def test_no_gradients_are_recorded(self) -> None:
        def noted(x: Any, w: Any) -> Any:
            assert not self.torch.is_grad_enabled()
            return w @ x

        assert measured(noted, arrays="torch", device="cpu", ours=False).own


def test_a_manifest_needs_a_gpu(tmp_path: pathlib.Path, root: pathlib.Path, command: Any) -> None:
    manifest = root / "examples" / "kernels" / "gemv_bf16.toml"
    bad = tmp_path / "bad.toml"
    bad.write_text(manifest.read_text(encoding="utf-8").replace("block = 256", "block = 4096"), encoding="utf-8")
    with pytest.raises(roofline.RooflineError, match="`block` is 4096 in x") as raised:
        roofline.measure("kernel", bad)
    assert raised.value.kind == "manifest" and raised.value.hint == "it is from 1 to 1024 there"
    said = command.answer("measure", "kernel", str(bad))["error"]
    assert (said["kind"], said["message"]) == ("manifest", raised.value.message)
    with pytest.raises(roofline.RooflineError) as raised:
        roofline.measure("kernel", manifest="absent.toml")
    assert raised.value.kind == "file"
    if not _gpu():
        with pytest.raises(roofline.RooflineError) as raised:
            roofline.measure("kernel", manifest)
        assert raised.value.kind == "gpu" and "measure_callable" in str(raised.value.hint)


def _gpu() -> bool:
    try:
        roofline.monitor()
    except roofline.RooflineError:
        return False
    return True
