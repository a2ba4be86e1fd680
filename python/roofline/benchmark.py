"""Inference of live models, timed: prompts of several lengths, and batches.

torch and transformers are imported when a benchmark runs. Rates, operations and pictures come from the native part.
"""

from __future__ import annotations

import time
from typing import Any, Dict, List, Optional, Sequence, Tuple

from ._result import Chart, Rows
from .analyzer import RooflineAnalyzer
from .configs import ModelConfig

__all__ = ["BenchmarkResults", "InferenceBenchmark"]


class BenchmarkResults(Rows):
    """Rows with ``prompt_len``, ``avg_time``, ``tokens_per_sec``, ``achieved_tflops`` and more; ``plot()`` draws them."""

    def __init__(self, analyzer: RooflineAnalyzer, runs: List[Dict[str, Any]]) -> None:
        super().__init__(analyzer.benchmark_table(runs).to_dict())
        self.analyzer = analyzer
        self.runs = runs

    def measured_points(self) -> List[Dict[str, Any]]:
        """The runs as points for ``RooflineAnalyzer.plot_roofline``: all passes of a run, and the rate they reached."""
        rows = [row for row in self.rows if row["achieved_tflops"] is not None]
        return [
            {"name": self._label(row), "oi": row["operational_intensity"], "tflops": row["achieved_tflops"]} for row in rows
        ]

    @staticmethod
    def _label(row: Dict[str, Any]) -> str:
        batch = "" if row["batch_size"] == 1 else f" x {row['batch_size']}"
        return f"prompt {row['prompt_len']}{batch}"

    def plot(self, **options: Any) -> Chart:
        """Four panels; options are those of ``RooflineAnalyzer.plot_benchmark``."""
        return self.analyzer.plot_benchmark(self.runs, **options)


class InferenceBenchmark:
    """A model that generates.

    ``model`` is a name or path for `transformers`, or a live model; ``load_in_4bit`` and ``load_in_8bit`` load a named one
    with bitsandbytes. ``gpu_specs`` is the GPU whose roof counts; left out, this machine's where the registry knows it, else
    a T4.
    """

    def __init__(
        self,
        model: Any = "mistralai/Mistral-7B-Instruct-v0.2",
        *,
        load_in_4bit: bool = False,
        load_in_8bit: bool = False,
        gpu_specs: Any = None,
        name: Optional[str] = None,
    ) -> None:
        if load_in_4bit and load_in_8bit:
            raise ValueError("weights have 4 bit or 8, not both")
        self.precision = "nf4" if load_in_4bit else "w8a16" if load_in_8bit else None
        self.model = self._load(model, load_in_4bit, load_in_8bit) if isinstance(model, str) else model
        config = ModelConfig.from_transformers(self.model, name or (model if isinstance(model, str) else None))
        self.analyzer = RooflineAnalyzer(gpu_specs, config, self.precision)

    @staticmethod
    def _load(name: str, four: bool, eight: bool) -> Any:
        import torch
        from transformers import AutoModelForCausalLM

        options: Dict[str, Any] = {}
        if four or eight:
            from transformers import BitsAndBytesConfig

            options["quantization_config"] = BitsAndBytesConfig(
                load_in_4bit=four, load_in_8bit=eight, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=torch.float16
            )
            options["device_map"] = "auto"
        model = AutoModelForCausalLM.from_pretrained(name, **options)
        if not options:
            model = model.to("cuda" if torch.cuda.is_available() else "cpu", torch.float16)
        return model.eval()

    def run(
        self,
        prompt_lengths: Sequence[int] = (64, 128, 256, 512),
        gen_tokens: int = 32,
        batch_size: int = 1,
        warmup: int = 2,
        runs: int = 5,
    ) -> BenchmarkResults:
        """Times prompts of several lengths."""
        shapes = [(length, gen_tokens, batch_size) for length in prompt_lengths]
        return self._results(shapes, warmup, runs)

    def batch_scaling(
        self,
        batch_sizes: Sequence[int] = (1, 2, 4),
        prompt_len: int = 128,
        gen_tokens: int = 16,
        warmup: int = 1,
        runs: int = 3,
    ) -> BenchmarkResults:
        """Times batches. One that does not fit the memory has an ``error`` and no time; the others go on."""
        return self._results([(prompt_len, gen_tokens, size) for size in batch_sizes], warmup, runs)

    def _results(self, shapes: Sequence[Tuple[int, int, int]], warmup: int, runs: int) -> BenchmarkResults:
        return BenchmarkResults(self.analyzer, [self._timed(shape, warmup, runs) for shape in shapes])

    def _timed(self, shape: Tuple[int, int, int], warmup: int, runs: int) -> Dict[str, Any]:
        prompt_len, gen_tokens, batch_size = shape
        run: Dict[str, Any] = {"prompt_len": prompt_len, "gen_tokens": gen_tokens, "batch_size": batch_size}
        before = self._memory(reset=True)
        try:
            ids = self._prompt(prompt_len, batch_size)
            for _ in range(warmup):
                self._once(ids, gen_tokens)
            run["times"] = [self._once(ids, gen_tokens) for _ in range(runs)]
        except (MemoryError, RuntimeError) as error:
            if not _is_out_of_memory(error):
                raise
            run["error"] = "out of memory"
            self._release()
        after = self._memory()
        if before is not None and after is not None:
            run["memory"] = [before[0], after[0], after[1]]
        return run

    def _prompt(self, length: int, batch: int) -> Any:
        """Tokens of the vocabulary, the same for everybody who asks."""
        import torch

        place = next(iter(self.model.parameters())).device
        generator = torch.Generator().manual_seed(0)
        last = int(self.model.config.get_text_config().vocab_size)
        return torch.randint(0, last, (batch, length), generator=generator).to(place)

    def _once(self, ids: Any, tokens: int) -> float:
        """Seconds of one generation, greedy, of as many tokens as are asked for."""
        import torch

        self._finish(ids)
        start = time.perf_counter()
        with torch.no_grad():
            mask = torch.ones_like(ids)
            self.model.generate(
                input_ids=ids, attention_mask=mask, max_new_tokens=tokens, min_new_tokens=tokens, do_sample=False
            )
        self._finish(ids)
        return time.perf_counter() - start

    @staticmethod
    def _finish(ids: Any) -> None:
        if ids.is_cuda:
            import torch

            torch.cuda.synchronize()

    @staticmethod
    def _memory(reset: bool = False) -> Optional[Tuple[int, int]]:
        """Bytes in use on the GPU now, and at most since the last reset."""
        import torch

        if not torch.cuda.is_available():
            return None
        if reset:
            torch.cuda.reset_peak_memory_stats()
        return int(torch.cuda.memory_allocated()), int(torch.cuda.max_memory_allocated())

    @staticmethod
    def _release() -> None:
        import gc

        import torch

        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


def _is_out_of_memory(error: BaseException) -> bool:
    """torch says it by a type of its own on a GPU, and by words elsewhere."""
    said = str(error).lower()
    return isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError" or (
        "out of memory" in said or "can't allocate memory" in said or "not enough memory" in said
    )
