"""GPUs for the analyzer: those of the registry by name, and your own by their rates.

The numbers of a registered device are read from the registry, dense and sourced; a class here is a name and nothing else.
"""

from __future__ import annotations

from typing import Any, Dict, Optional

from ._result import Sheet, ask

__all__ = [
    "A100Specs",
    "A100_40GBSpecs",
    "A100_80GBSpecs",
    "CustomGPUSpecs",
    "GPUSpecs",
    "H100Specs",
    "H200Specs",
    "L4Specs",
    "RTX4090Specs",
    "T4Specs",
    "V100Specs",
    "get_gpu_specs",
]


class GPUSpecs(Sheet):
    """A GPU.

    ``GPUSpecs(key="h200")`` is one of the registry, ``GPUSpecs("Mine", peak_fp16_tflops=100, memory_bandwidth_gb_s=800)``
    one of your own. What follows from the rates, ``ridge_point`` among it, is an attribute.
    """

    registered: Optional[str] = None

    def __init__(
        self,
        name: Optional[str] = None,
        *,
        peak_fp16_tflops: Optional[float] = None,
        memory_bandwidth_gb_s: Optional[float] = None,
        peak_fp32_tflops: Optional[float] = None,
        peak_int8_tops: Optional[float] = None,
        memory_gb: Optional[float] = None,
        key: Optional[str] = None,
    ) -> None:
        rates = {"fp16": peak_fp16_tflops, "fp32": peak_fp32_tflops, "int8": peak_int8_tops}
        peaks = {unit: f"{rate!r}TFLOP/s" for unit, rate in rates.items() if rate is not None}
        own = bool(peaks) or memory_bandwidth_gb_s is not None
        place: Dict[str, Any] = {"on": key or self.registered or (None if own else name)}
        if own:
            place["peak"] = peaks
            place["device_name"] = name or "custom GPU"
            if memory_bandwidth_gb_s is not None:
                place["bandwidth"] = f"{memory_bandwidth_gb_s!r}GB/s"
        if memory_gb is not None:
            place["memory"] = f"{memory_gb!r}GB"
        super().__init__(place)

    def _facts(self) -> Dict[str, Any]:
        facts: Dict[str, Any] = ask("sheet", self.place)["device"]
        return facts


class T4Specs(GPUSpecs):
    """Tesla T4."""

    registered = "t4"


class V100Specs(GPUSpecs):
    """Tesla V100 SXM2."""

    registered = "v100"


class A100Specs(GPUSpecs):
    """A100 with 80 GB."""

    registered = "a100_80gb"


class A100_40GBSpecs(GPUSpecs):
    """A100 with 40 GB."""

    registered = "a100_40gb"


class A100_80GBSpecs(A100Specs):
    """A100 with 80 GB."""


class H100Specs(GPUSpecs):
    """H100 SXM."""

    registered = "h100_sxm"


class H200Specs(GPUSpecs):
    """H200 SXM."""

    registered = "h200_sxm"


class L4Specs(GPUSpecs):
    """L4."""

    registered = "l4"


class RTX4090Specs(GPUSpecs):
    """GeForce RTX 4090."""

    registered = "rtx_4090"


class CustomGPUSpecs(GPUSpecs):
    """A GPU of your own: a name, a peak and a bandwidth."""


def get_gpu_specs(name: str) -> GPUSpecs:
    """The GPU of the registry that is called so, exactly; an unknown name is an error with the nearest one."""
    specs = GPUSpecs(key=name)
    specs.to_dict()
    return specs
