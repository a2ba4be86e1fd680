"""The roofline analyzer: where a model's passes stand under the roof of a GPU.

>>> analyzer = RooflineAnalyzer(gpu_specs="T4", model_config="mistral-7b")
>>> round(analyzer.get_operational_intensity(seq_len=512, phase="prefill"), 1)
493.9

Nothing is computed here: the native part counts, times and draws.
"""

from __future__ import annotations

import os
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple, Union

from ._result import Chart, Result, Rows, ask
from .configs import MistralConfig, ModelConfig
from .hardware import GPUSpecs

__all__ = ["Analysis", "RooflineAnalyzer", "Summary", "quick_analysis"]

Path = Union[str, "os.PathLike[str]"]


class Analysis(Result):
    """A pass or a run under its roof: ``.bottleneck`` is "memory-bound" or "compute-bound"."""


class Summary(Rows):
    """Passes of several lengths, with ``findings``, ``insights`` and ``recommendations``."""


class RooflineAnalyzer:
    """A model on a GPU.

    ``gpu_specs`` and ``model_config`` take the classes of this package or names of the registry. Left out, the GPU is this
    machine's where the registry knows it, else a T4, and the model is Mistral 7B. ``precision`` is any plan, such as
    ``"w4a16"``; left out, every number has 16 bit.
    """

    def __init__(
        self,
        gpu_specs: Union[GPUSpecs, str, None] = None,
        model_config: Union[ModelConfig, str, None] = None,
        precision: Optional[str] = None,
    ) -> None:
        gpu = GPUSpecs(key=gpu_specs) if gpu_specs is None or isinstance(gpu_specs, str) else gpu_specs
        if model_config is None:
            model_config = MistralConfig()
        model = ModelConfig(key=model_config) if isinstance(model_config, str) else model_config
        if not gpu.place:
            # Looked for once, so that every answer is of the same device.
            gpu = GPUSpecs(key=gpu.key)
        self.gpu_specs = gpu
        self.model_config = model
        self.precision = precision
        self._place: Dict[str, Any] = {**gpu.place, **model.place}

    def _ask(self, subject: str, **fields: Any) -> Dict[str, Any]:
        precision = None if "dtype_bytes" in fields else self.precision
        return ask(subject, self._place, precision=precision, **fields)

    def __repr__(self) -> str:
        return f"RooflineAnalyzer({self.model_config.name!r} on {self.gpu_specs.name!r})"

    @property
    def ridge_point(self) -> float:
        """The intensity, in FLOP/B, from which on the GPU's 16-bit peak can be reached."""
        return float(self.gpu_specs.ridge_point)

    def calculate_prefill_flops(self, seq_len: int, batch: int = 1) -> Dict[str, float]:
        """Operations of a prompt by component, all layers together; logits of every token count."""
        return self._flops("prefill", seq_len, batch)

    def calculate_decode_flops(self, kv_cache_len: int, batch: int = 1) -> Dict[str, float]:
        """Operations of one more token of each sequence, by component."""
        return self._flops("decode", kv_cache_len, batch)

    def _flops(self, phase: str, seq_len: int, batch: int) -> Dict[str, float]:
        flops: Dict[str, float] = self._ask("pass", phase=phase, seq_len=seq_len, batch_size=batch)["flops_by_component"]
        if not flops["other"]:
            del flops["other"]
        return flops

    def calculate_memory_traffic(
        self, seq_len: int, batch: int = 1, dtype_bytes: Optional[float] = None, phase: str = "prefill"
    ) -> Dict[str, float]:
        """Bytes of a pass: ``weights``, ``kv_cache``, ``activations`` and ``total``."""
        more = {} if dtype_bytes is None else {"dtype_bytes": dtype_bytes}
        memory: Dict[str, float] = self._ask("pass", phase=phase, seq_len=seq_len, batch_size=batch, **more)["memory"]
        return memory

    def get_operational_intensity(self, seq_len: int, batch: int = 1, phase: str = "prefill") -> float:
        """Operations per byte of a pass."""
        return float(self._ask("pass", phase=phase, seq_len=seq_len, batch_size=batch)["operational_intensity"])

    def analyze(
        self,
        seq_len: Optional[int] = None,
        batch: int = 1,
        phase: str = "prefill",
        *,
        prompt_len: Optional[int] = None,
        gen_tokens: Optional[int] = None,
        measured_time: Optional[float] = None,
    ) -> Analysis:
        """One pass by its length and phase, or a whole run by its prompt, its answer and the time it took in seconds."""
        if seq_len is not None:
            if prompt_len is not None or gen_tokens is not None:
                raise TypeError("analyze takes `seq_len` of one pass, or `prompt_len` and `gen_tokens` of a run")
            return Analysis(self._ask("pass", phase=phase, seq_len=seq_len, batch_size=batch))
        if prompt_len is None or gen_tokens is None:
            raise TypeError("analyze needs `seq_len`, or `prompt_len` and `gen_tokens`")
        run = self._ask(
            "run", prompt_len=prompt_len, gen_tokens=gen_tokens, batch_size=batch, measured_time=measured_time
        )
        return Analysis(run)

    def is_memory_bound(self, oi: float, dtype: str = "fp16") -> bool:
        """Whether work of that intensity waits for memory."""
        return bool(ask("roof", self.gpu_specs.place, oi=oi, dtype=dtype)["is_memory_bound"])

    def theoretical_performance(self, oi: float, dtype: str = "fp16") -> float:
        """What the roof allows, in TFLOP/s."""
        return float(ask("roof", self.gpu_specs.place, oi=oi, dtype=dtype)["theoretical_tflops"])

    def summary_table(
        self, seq_lengths: Optional[Sequence[int]] = None, batch: int = 1, versus: Union[GPUSpecs, str, None] = None
    ) -> Summary:
        """Prompts and contexts of several lengths; print it, iterate over ``rows``, or ``to_pandas()``."""
        other = versus.key if isinstance(versus, GPUSpecs) else versus
        return Summary(self._ask("table", seq_lengths=_list(seq_lengths), batch_size=batch, versus=other))

    def key_findings(self, batch: int = 1) -> List[Dict[str, Any]]:
        """Short prompts, long prompts and decode: their intensities, what bounds them, and what helps."""
        findings: List[Dict[str, Any]] = self.summary_table(batch=batch)["findings"]
        return findings

    def recommendations(self, context: int = 2048) -> List[Dict[str, str]]:
        """What to do, each with what it would bring for this model on this GPU."""
        advice: List[Dict[str, str]] = self.summary_table([context])["recommendations"]
        return advice

    def batch_scaling(
        self, batch_sizes: Sequence[int] = (1, 2, 4, 8, 16, 32), seq_len: int = 512, phase: str = "decode"
    ) -> Rows:
        """How far batches scale by theory."""
        return Rows(self._ask("batches", batch_sizes=list(batch_sizes), seq_len=seq_len, phase=phase))

    def plot_roofline(
        self,
        measured_points: Optional[Sequence[Mapping[str, Any]]] = None,
        seq_lengths: Optional[Sequence[int]] = None,
        save_path: Optional[Path] = None,
        figsize: Tuple[float, float] = (12, 8),
        batch: int = 1,
        practical: float = 0.7,
        prefill_factor: float = 1.0,
        decode_factor: float = 1.0,
        theme: str = "light",
        overwrite: bool = True,
    ) -> Chart:
        """The roof, its practical part, prompts and tokens of several lengths, and what you measured.

        ``measured_points`` have ``name``, ``oi`` in FLOP/B and ``tflops``. ``save_path`` ends in .png (150 pixels to the
        inch) or .svg. Theory stands on the roof; factors below 1 put it lower.
        """
        chart = self._ask(
            "chart",
            measured_points=[dict(point) for point in measured_points or ()],
            seq_lengths=_list(seq_lengths),
            batch_size=batch,
            practical=practical,
            prefill_factor=prefill_factor,
            decode_factor=decode_factor,
            **_paper(save_path, figsize, theme, overwrite),
        )
        return Chart(chart)

    def benchmark_table(self, runs: Sequence[Mapping[str, Any]]) -> Rows:
        """Times you measured as rates. A run has ``prompt_len``, ``gen_tokens``, ``batch_size`` and its ``times``."""
        return Rows(self._ask("benchmark", runs=[dict(run) for run in runs]))

    def plot_benchmark(
        self,
        runs: Sequence[Mapping[str, Any]],
        save_path: Optional[Path] = None,
        figsize: Tuple[float, float] = (14, 10),
        practical: float = 0.7,
        theme: str = "light",
        overwrite: bool = True,
    ) -> Chart:
        """Four panels: throughput, achieved TFLOP/s under the peak, time with its spread, and operations."""
        paper = _paper(save_path, figsize, theme, overwrite)
        return Chart(self._ask("benchmark", runs=[dict(run) for run in runs], panels=True, practical=practical, **paper))


def _list(values: Optional[Sequence[int]]) -> Optional[List[int]]:
    return None if values is None else list(values)


def _paper(save_path: Optional[Path], figsize: Tuple[float, float], theme: str, overwrite: bool) -> Dict[str, Any]:
    path = None if save_path is None else os.fspath(save_path)
    return {"save_path": path, "figsize": list(figsize), "theme": theme, "force": overwrite}


def quick_analysis(model: str = "mistral-7b", gpu: str = "T4", seq_len: int = 512) -> Summary:
    """Prints the passes of one length, what they mean and the ridge; the table comes back."""
    analyzer = RooflineAnalyzer(gpu_specs=gpu, model_config=model)
    summary = analyzer.summary_table([seq_len])
    print(f"{summary.model_name} on {summary.device_name}, {seq_len} tokens")
    print(summary)
    for insight in summary.insights:
        print(f"- {insight}")
    print(f"Ridge point: {summary.ridge_point:.1f} FLOP/B")
    return summary
