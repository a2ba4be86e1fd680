"""A block of code, timed and placed under the roof.

    with roofline.watch("prefill", flops=2 * parameters * tokens, bytes=weights, on="h200") as region:
        model(tokens)
    region.of_roof, region.bound

On a GPU the time is that of the current CUDA stream, between two of its events; elsewhere it is the clock's. Rates and
shares are computed by the native part.
"""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Any, Dict, Mapping, Optional, Type

from .answers import Answer
from .errors import RooflineError
from .verbs import ask

__all__ = ["Region", "from_transformers", "watch"]


class Region:
    """A block that is timed. What it came to is there when the block has ended without an exception."""

    def __init__(
        self,
        name: str,
        flops: Optional[float] = None,
        bytes: Optional[float] = None,
        on: Optional[str] = None,
        precision: Optional[str] = None,
    ) -> None:
        counts = {"flops": flops, "bytes": bytes, "on": on, "precision": precision}
        self.name = name
        self.clock = "processor"
        self._fields: Dict[str, Any] = {field: value for field, value in counts.items() if value is not None}
        self._answer: Optional[Answer] = None
        self._cuda: Any = None
        self._began: Any = None
        self._energy: Optional[float] = None

    def __enter__(self) -> "Region":
        self._answer = None
        self._cuda = _cuda()
        self.clock = "processor" if self._cuda is None else "cuda"
        if self._cuda is None:
            self._began = time.perf_counter()
            return self
        # What was started before is not part of it, nor of its energy.
        self._cuda.synchronize()
        self._energy = _energy(self._cuda)
        self._began = self._cuda.Event(enable_timing=True)
        self._began.record()
        return self

    def __exit__(
        self,
        kind: Optional[Type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        if self._cuda is None:
            seconds = time.perf_counter() - self._began
        elif kind is None:
            ended = self._cuda.Event(enable_timing=True)
            ended.record()
            ended.synchronize()
            seconds = self._began.elapsed_time(ended) / 1e3
        if kind is not None:
            return
        fields = dict(self._fields, name=str(self.name), seconds=seconds)
        if self._cuda is not None:
            fields.setdefault("on", _device_name(self._cuda))
            after = _energy(self._cuda)
            if self._energy is not None and after is not None and after > self._energy:
                fields["joules"] = after - self._energy
        self._answer = _placed(fields, "on" in self._fields)

    @property
    def answer(self) -> Answer:
        """All that is known of it."""
        if self._answer is None:
            raise RooflineError("the block has not ended", "a region has figures behind its `with`")
        return self._answer

    @property
    def seconds(self) -> float:
        """How long it took."""
        return float(self.answer["seconds"])

    @property
    def tflops(self) -> Optional[float]:
        """Tera-operations per second; none where nobody said how many there are."""
        return _number(self.answer["tflops"])

    @property
    def gbps(self) -> Optional[float]:
        """Gigabytes per second; none where nobody said how many there are."""
        return _number(self.answer["gb_s"])

    @property
    def of_roof(self) -> Optional[float]:
        """The least time over the measured one: 1 is the roof."""
        return _number(self.answer["of_roof"])

    @property
    def bound(self) -> Optional[str]:
        """`memory` or `compute`, by the roof."""
        bound: Optional[str] = self.answer["bound"]
        return bound

    @property
    def watts(self) -> Optional[float]:
        """Mean power, where NVML counts energy."""
        return _number(self.answer["watts"])

    @property
    def joules(self) -> Optional[float]:
        """Energy, where NVML counts it; it does so about every 100 ms, so that short blocks have none."""
        return _number(self.answer["joules"])

    def to_dict(self) -> Dict[str, Any]:
        """All of it as a dictionary."""
        return dict(self.answer.to_dict(), clock=self.clock)

    def __repr__(self) -> str:
        if self._answer is None:
            return f"<region {self.name!r}, not timed>"
        verdict = self._answer["verdict"]
        return f"<region {self.name!r}: {self.seconds * 1e3:.4g} ms, {verdict}>"

    def _repr_html_(self) -> str:
        import html

        if self._answer is None:
            return f"<p>{html.escape(repr(self))}</p>"
        rows = [(name, value) for name, value in self.to_dict().items() if value is not None and name != "notes"]
        cells = "".join(
            f"<tr><th>{html.escape(name)}</th><td>{html.escape(_shown(value))}</td></tr>" for name, value in rows
        )
        return f"<table>{cells}</table>"


def watch(
    name: str = "region",
    flops: Optional[float] = None,
    bytes: Optional[float] = None,
    on: Optional[str] = None,
    precision: Optional[str] = None,
) -> Region:
    """Times the block of a ``with`` and places it under the roof.

    ``flops`` and ``bytes`` are what the block has to compute and to move; with one of them it has half a roof, and without
    ``on`` a GPU is looked up by its name. ``precision`` names the unit that multiplies: 16 bit when left out.
    """
    return Region(name, flops, bytes, on, precision)


def from_transformers(model: Any) -> Dict[str, Any]:
    """A `transformers` model, or its configuration, as every function here takes a model.

    The result is what its ``config.json`` holds. Of a live model the weights' own type counts, not what the configuration
    says of it.
    """
    from .configs import _is_plain

    config = getattr(model, "config", model)
    told = config if isinstance(config, Mapping) else getattr(config, "to_dict", dict)()
    fields: Dict[str, Any] = {str(name): value for name, value in dict(told).items() if _is_plain(value)}
    if not fields:
        kind = type(model).__name__
        raise RooflineError(f"{kind} has no configuration", "give a `transformers` model, its `config`, or a dictionary")
    weights = _weights(model)
    if weights is not None:
        # The name that a configuration has for it changed.
        fields["torch_dtype"] = weights
        if "dtype" in fields:
            fields["dtype"] = weights
    return fields


def _weights(model: Any) -> Optional[str]:
    """The type that most weights of a live model have."""
    parameters = getattr(model, "parameters", None)
    if not callable(parameters):
        return None
    counted: Dict[str, int] = {}
    for parameter in parameters():
        name = str(parameter.dtype).replace("torch.", "")
        counted[name] = counted.get(name, 0) + int(parameter.numel())
    return max(counted, key=lambda name: counted[name]) if counted else None


def _cuda() -> Any:
    """`torch.cuda` where a program has imported torch and there is a GPU; a block without torch starts nothing on one."""
    torch = sys.modules.get("torch")
    cuda = getattr(torch, "cuda", None)
    return cuda if cuda is not None and cuda.is_available() else None


def _device_name(cuda: Any) -> str:
    name = str(cuda.get_device_name())
    return name[len("NVIDIA ") :] if name.startswith("NVIDIA ") else name


def _energy(cuda: Any) -> Optional[float]:
    """Joules that the GPU has used since its driver was loaded; none where it does not say."""
    try:
        look = ask("monitor", {"gpu": int(cuda.current_device())}, False)
    except RooflineError:
        return None
    return _number(look.get("total_energy_j"))


def _placed(fields: Dict[str, Any], named: bool) -> Answer:
    try:
        return ask("region", fields, False)
    except RooflineError:
        # A GPU that nobody named and the registry does not know has no roof; one that somebody named is a mistake.
        if named or "on" not in fields:
            raise
    return ask("region", {name: value for name, value in fields.items() if name not in ("on", "precision")}, False)


def _number(value: Any) -> Optional[float]:
    return None if value is None else float(value)


def _shown(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
