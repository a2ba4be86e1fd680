"""A function with arrays of a library, called as the native part says.

What is made, how often and on which copy it is called, and what the result should be, is decided there.
"""

from __future__ import annotations

import inspect
import sys
from contextlib import contextmanager
from typing import Any, Callable, Dict, Iterator, List, Optional, Tuple

from .errors import RooflineError

#: What arrays are made of.
LIBRARIES = ("numpy", "torch", "cupy")

Told = Tuple[str, Tuple[int, ...], bytes]


def runner_of(
    fn: Callable[..., Any], arrays: Optional[str], device: Optional[str], name: Optional[str], graph: bool
) -> "Runner":
    """A function that takes arrays of a library which lie on a device."""
    if arrays is None:
        arrays = "torch" if "torch" in sys.modules else "numpy"
    if arrays not in LIBRARIES:
        raise RooflineError(f"`arrays` is {arrays!r}", f"one of {', '.join(LIBRARIES)}")
    try:
        if arrays == "torch":
            return _Torch(fn, name, device, graph)
        if arrays == "cupy":
            return _Cupy(fn, name, device)
        return _Numpy(fn, name, device)
    except ImportError as error:
        raise RooflineError(f"arrays of {arrays} need {arrays}, which is not here: {error}", f"pip install {arrays}") from error


def _takes_out(fn: Callable[..., Any]) -> bool:
    """Whether a function says that it has a parameter `out`."""
    try:
        return "out" in inspect.signature(fn).parameters
    except (TypeError, ValueError):
        return False


def _nothing(*arguments: Any, **named: Any) -> None:
    """A call that does nothing, to know what a call takes."""


class Runner:
    """A function with its arrays. The native part says what to make and when to call."""

    #: Whether the processor's clock tells its time.
    processor = True
    #: Which GPU, as the driver counts them.
    index: Optional[int] = None

    def __init__(self, fn: Callable[..., Any], name: Optional[str]) -> None:
        self.function = fn
        self.nothing = _nothing
        self.name = name or getattr(fn, "__name__", None) or type(fn).__name__
        #: What is said beside the answer.
        self.said: List[str] = []
        self._operands: List[List[Any]] = []
        self._places: List[Tuple[Any, ...]] = []
        self._named: Optional[Dict[str, Any]] = None
        self._dtype = ""

    def operand(self, name: str, dtype: str, shape: Tuple[int, ...], data: bytes, copies: int) -> None:
        """Makes an array, `copies` times where every call gets another."""
        first = self._array(dtype, shape, data)
        self._operands.append([first, *(self._copy(first) for _ in range(copies - 1))])

    def arguments(
        self, copies: int, dtype: str, shape: Tuple[int, ...]
    ) -> Tuple[List[Tuple[Any, ...]], Optional[Dict[str, Any]]]:
        """What the function is called with, for each copy, and by name."""
        self._dtype = dtype
        self._named = {"out": self._empty(dtype, shape)} if _takes_out(self.function) else None
        self._places = [tuple(arrays[at % len(arrays)] for arrays in self._operands) for at in range(copies)]
        return self._places, self._named

    def written(self) -> Told:
        """What the function writes, called on the first copy."""
        returned = self._call(0)
        if self._named is not None and returned is None:
            returned = self._named["out"]
        told = _told(returned, self.name)
        if told[0] != self._dtype:
            self.said.append(f"the result is {told[0]}; {self._dtype} is what the roof counts")
        return told

    @contextmanager
    def surroundings(self) -> Iterator[None]:
        """What calls are made in."""
        yield

    def release(self) -> None:
        """Lets go of the arrays."""
        self._operands, self._places, self._named = [], [], None

    def _call(self, at: int) -> Any:
        return self.function(*self._places[at % len(self._places)], **(self._named or {}))

    def _array(self, dtype: str, shape: Tuple[int, ...], data: bytes) -> Any:
        raise NotImplementedError

    def _copy(self, array: Any) -> Any:
        raise NotImplementedError

    def _empty(self, dtype: str, shape: Tuple[int, ...]) -> Any:
        """An array of numbers that are none, so that what is not written shows."""
        raise NotImplementedError


class _Numpy(Runner):
    def __init__(self, fn: Callable[..., Any], name: Optional[str], device: Optional[str]) -> None:
        import numpy

        super().__init__(fn, name)
        self._numpy: Any = numpy
        if device not in (None, "cpu"):
            raise RooflineError(f"`device` is {device!r}", 'arrays of NumPy lie on "cpu"')

    def _array(self, dtype: str, shape: Tuple[int, ...], data: bytes) -> Any:
        return self._numpy.frombuffer(data, dtype=_numpy_type(self._numpy, dtype)).reshape(shape).copy()

    def _copy(self, array: Any) -> Any:
        return array.copy()

    def _empty(self, dtype: str, shape: Tuple[int, ...]) -> Any:
        return self._numpy.full(shape, float("nan"), dtype=_numpy_type(self._numpy, dtype))


class _Gpu(Runner):
    """What runners of a GPU have in common: samples of many calls, timed by its events."""

    processor = False

    def __init__(self, fn: Callable[..., Any], name: Optional[str]) -> None:
        super().__init__(fn, name)
        self._calls = 1
        self._next = 0

    def gather(self, calls: int) -> bool:
        """Gets ready for samples of so many calls; whether they are recorded."""
        self._calls = calls
        return False

    def replayed(self) -> Optional[Told]:
        """What recorded calls write when they are made again."""
        return None

    def forget(self, reason: str) -> None:
        """Makes calls from now on instead of replaying them."""
        self.said.append(f"calls are timed with their launches: {reason}")

    def _all(self) -> None:
        for _ in range(self._calls):
            self._call(self._next)
            self._next += 1


class _Torch(_Gpu):
    def __init__(self, fn: Callable[..., Any], name: Optional[str], device: Optional[str], graph: bool) -> None:
        import torch

        super().__init__(fn, name)
        self._torch: Any = torch
        wanted = device or ("cuda" if torch.cuda.is_available() else "cpu")
        try:
            self._device = torch.device(wanted)
        except (RuntimeError, TypeError) as error:
            raise RooflineError(f"`device` is {wanted!r}: {error}", '"cpu", "cuda" or "cuda:1"') from error
        if self._device.type not in ("cpu", "cuda"):
            raise RooflineError(f"`device` is {wanted!r}", '"cpu", "cuda" or "cuda:1"')
        self.processor = self._device.type == "cpu"
        if not self.processor:
            if not torch.cuda.is_available():
                raise RooflineError("torch has no CUDA here", 'leave `device` out, or say device="cpu"')
            self.index = torch.cuda.current_device() if self._device.index is None else int(self._device.index)
        self._wants_graph = graph and not self.processor
        self._graph: Any = None
        self._last: Any = None

    def _array(self, dtype: str, shape: Tuple[int, ...], data: bytes) -> Any:
        array = self._torch.frombuffer(bytearray(data), dtype=getattr(self._torch, dtype)).reshape(shape)
        return array.to(self._device)

    def _copy(self, array: Any) -> Any:
        return array.clone()

    def _empty(self, dtype: str, shape: Tuple[int, ...]) -> Any:
        return self._torch.full(shape, float("nan"), dtype=getattr(self._torch, dtype), device=self._device)

    @contextmanager
    def surroundings(self) -> Iterator[None]:
        # No record for gradients: kernels are asked for what they compute.
        with self._torch.no_grad():
            if self.processor:
                yield
            else:
                with self._torch.cuda.device(self.index):
                    yield

    def gather(self, calls: int) -> bool:
        super().gather(calls)
        self._graph = self._last = None
        if not self._wants_graph:
            return False
        cuda = self._torch.cuda
        try:
            aside = cuda.Stream()
            aside.wait_stream(cuda.current_stream())
            with cuda.stream(aside):
                for at in range(3):
                    self._call(at)
            cuda.current_stream().wait_stream(aside)
            cuda.synchronize()
            graph = cuda.CUDAGraph()
            with cuda.graph(graph):
                for at in range(calls):
                    returned = self._call(at)
        except KeyboardInterrupt:
            raise
        except Exception as error:
            cuda.synchronize()
            self._wants_graph = False
            self.forget(f"they cannot be recorded as a graph ({type(error).__name__}: {str(error).splitlines()[0][:200]})")
            return False
        self._graph = graph
        self._last = self._named["out"] if self._named is not None and returned is None else returned
        return True

    def replayed(self) -> Optional[Told]:
        if self._graph is None:
            return None
        self._last.fill_(float("nan"))
        self._graph.replay()
        self._torch.cuda.synchronize()
        return _told(self._last, self.name)

    def forget(self, reason: str) -> None:
        super().forget(reason)
        self._wants_graph = False
        self._graph = self._last = None

    def sample(self) -> float:
        """Seconds of all gathered calls, by events on the current stream."""
        cuda = self._torch.cuda
        start, end = cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)
        start.record()
        if self._graph is not None:
            self._graph.replay()
        else:
            self._all()
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end)) / 1e3

    def release(self) -> None:
        super().release()
        self._graph = self._last = None
        if not self.processor:
            self._torch.cuda.empty_cache()


class _Cupy(_Gpu):
    def __init__(self, fn: Callable[..., Any], name: Optional[str], device: Optional[str]) -> None:
        import cupy
        import numpy

        super().__init__(fn, name)
        self._cupy: Any = cupy
        self._numpy: Any = numpy
        if device not in (None, "cuda"):
            raise RooflineError(f"`device` is {device!r}", 'arrays of CuPy lie on "cuda", the current device')
        self.index = int(cupy.cuda.Device().id)
        self.said.append("calls of CuPy are timed with their launches: they are not recorded as a graph")

    def _array(self, dtype: str, shape: Tuple[int, ...], data: bytes) -> Any:
        array = self._numpy.frombuffer(data, dtype=_numpy_type(self._numpy, dtype)).reshape(shape)
        return self._cupy.asarray(array).copy()

    def _copy(self, array: Any) -> Any:
        return array.copy()

    def _empty(self, dtype: str, shape: Tuple[int, ...]) -> Any:
        return self._cupy.full(shape, float("nan"), dtype=_numpy_type(self._numpy, dtype))

    def sample(self) -> float:
        """Seconds of all gathered calls, by events on the current stream."""
        cuda = self._cupy.cuda
        start, end = cuda.Event(), cuda.Event()
        start.record()
        self._all()
        end.record()
        end.synchronize()
        return float(cuda.get_elapsed_time(start, end)) / 1e3


def _numpy_type(numpy: Any, dtype: str) -> Any:
    """The type of that name; NumPy has none of 16 bit but IEEE's, and none of 8."""
    if hasattr(numpy, dtype):
        return getattr(numpy, dtype)
    try:
        import ml_dtypes
    except ImportError as error:
        hint = 'precision="fp32" or "fp16"; or `pip install ml_dtypes`; or arrays of torch'
        raise RooflineError(f"NumPy has no numbers of type {dtype}", hint) from error
    return getattr(ml_dtypes, dtype)


def _told(returned: Any, name: str) -> Told:
    """A result as the native part reads it: type, shape and bytes."""
    if hasattr(returned, "detach"):
        import ctypes

        tensor = returned.detach().contiguous().cpu()
        dtype, size = str(tensor.dtype).replace("torch.", ""), int(tensor.numel()) * int(tensor.element_size())
        return dtype, tuple(map(int, tensor.shape)), ctypes.string_at(tensor.data_ptr(), size) if size else b""
    if hasattr(returned, "get") and hasattr(returned, "device") and hasattr(returned, "dtype"):
        returned = returned.get()
    if hasattr(returned, "__array__") and hasattr(returned, "dtype"):
        import numpy

        array = numpy.ascontiguousarray(returned)
        return str(array.dtype), tuple(map(int, returned.shape)), array.tobytes()
    kind = type(returned).__name__
    raise RooflineError(
        f"{name} returned an object of type {kind}",
        "it returns an array, or has a parameter `out` that it writes to",
        "wrong_result",
    )
