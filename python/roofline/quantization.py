"""Quantization of live models: a recommendation, what torchao has for it, and a pipeline that never aborts.

torch, torchao and transformers are imported when a function needs them. Without torchao a model stays as it is.
"""

from __future__ import annotations

import copy
import time
import warnings
from functools import partial
from importlib import import_module
from typing import Any, Callable, Dict, Iterable, List, Optional, Sequence, Tuple, Union

from ._result import Result, Rows, ask

__all__ = [
    "Recommendation",
    "apply_quantization",
    "benchmark_transformer",
    "get_quantize_config",
    "map_precision_to_torchao",
    "recommend_quantization",
    "run_pipeline",
]

PROMPT = "Hello, how are you?"
#: Names that people write without the organisation that publishes the model.
PUBLISHERS = {
    "tinyllama-1.1b-chat-v1.0": "TinyLlama/TinyLlama-1.1B-Chat-v1.0",
    "tinyllama-1.1b": "TinyLlama/TinyLlama-1.1B-Chat-v1.0",
    "phi-2": "microsoft/phi-2",
    "mistral-7b-instruct-v0.2": "mistralai/Mistral-7B-Instruct-v0.2",
}
#: Where torchao keeps the 4-bit weights that a processor multiplies, the newest place first.
PROCESSOR_CONFIGS = (
    ("torchao.prototype.quantization.int4", "PrototypeInt4WeightOnlyConfig"),
    ("torchao.prototype.int4_opaque_tensor", "Int4WeightOnlyOpaqueTensorConfig"),
)


class Recommendation(Result):
    """``precision``, ``method``, ``reason`` and ``predicted_speedup``; ``torchao`` is what torchao has for it."""


def recommend_quantization(
    hardware: str = "b10",
    M: Optional[int] = None,  # noqa: N803 - the names of the product's sides
    N: int = 4096,  # noqa: N803
    K: int = 4096,  # noqa: N803
    phase: str = "decode",
    memory_limit_gb: Optional[float] = None,
    tier: str = "ideal",
) -> Recommendation:
    """The format for ``x[M,K] * W[N,K]^T``: the fastest, or with 8 GB of memory or less the smallest.

    ``M`` is 1 in decode and 2048 in prefill when left out. ``tier`` says which times are compared, the roofline's or those
    to expect (``"expected"``).
    """
    answer = ask(
        "quantization", hardware=hardware, m=M, n=N, k=K, phase=phase, memory_limit_gb=memory_limit_gb, tier=tier
    )
    return Recommendation(answer)


def map_precision_to_torchao(precision: str) -> Optional[str]:
    """``"INT4"``, ``"INT8"`` or None: what torchao has for weights of as many bits."""
    mapped: Optional[str] = ask("torchao", precision=precision)["mapped"]
    return mapped


def get_quantize_config(precision: str = "INT4", group_size: int = 128, device: Optional[str] = None) -> Any:
    """torchao's configuration for a precision; None where torchao has none, or is absent.

    The classes of torchao since 0.9 are taken where they are, else the functions before them. ``device`` is where the model
    lives, which decides how 4-bit weights are packed.
    """
    mapped = map_precision_to_torchao(precision)
    if mapped is None:
        return None
    try:
        import torchao.quantization as torchao
    except ImportError:
        return None
    if mapped == "INT8":
        made = getattr(torchao, "Int8WeightOnlyConfig", None) or torchao.int8_weight_only
        return made()
    made = getattr(torchao, "Int4WeightOnlyConfig", None)
    if made is None:
        return torchao.int4_weight_only(group_size=group_size)
    return _first(_four_bits(made, group_size, device))


def _four_bits(made: Callable[..., Any], group_size: int, device: Optional[str]) -> Iterable[Callable[[], Any]]:
    """Ways to ask for 4 bits, the one for the device first: how they are packed changed between versions."""
    if device == "cpu":

        for home, name in PROCESSOR_CONFIGS:
            yield partial(_made_in, home, name, group_size)
        yield lambda: made(group_size=group_size, int4_packing_format="opaque")
    else:
        yield lambda: made(group_size=group_size, int4_packing_format="tile_packed_to_4d")
    yield lambda: made(group_size=group_size)


def _made_in(home: str, name: str, group_size: int) -> Any:
    return getattr(import_module(home), name)(group_size=group_size)


def _first(ways: Iterable[Callable[[], Any]]) -> Any:
    """What the first way gives that this version knows."""
    last: Optional[Exception] = None
    for way in ways:
        try:
            return way()
        except (AttributeError, ImportError, TypeError, ValueError) as error:
            last = error
    raise TypeError(f"this torchao takes no such configuration: {last}")


def apply_quantization(model: Any, precision: str = "INT4", group_size: int = 128) -> bool:
    """Quantizes the linear layers of a live model in place, by torchao.

    False, with a warning, where torchao is absent, has nothing for the precision or cannot store it; nothing is raised.
    """
    mapped = map_precision_to_torchao(precision)
    if mapped is None:
        warnings.warn(f"torchao has no weight-only format for {precision}; the model stays as it is", stacklevel=2)
        return False
    try:
        from torchao.quantization import quantize_
    except ImportError:
        warnings.warn("torchao is not installed (`pip install torchao`); the model stays as it is", stacklevel=2)
        return False
    try:
        quantize_(model, get_quantize_config(precision, group_size, device=_place_of(model)))
    except Exception as error:  # noqa: BLE001 - whatever torchao cannot do, the caller goes on without
        reason = f"{type(error).__name__}: {error}"
        warnings.warn(f"torchao could not quantize to {mapped}, in part or at all ({reason})", stacklevel=2)
        return False
    return True


def _place_of(model: Any) -> Optional[str]:
    """The kind of device that a model lives on."""
    try:
        parameter = next(iter(model.parameters()))
    except (AttributeError, StopIteration):
        return None
    return getattr(getattr(parameter, "device", None), "type", None)


def _best_place() -> Tuple[Any, str]:
    """torch, and the device that models run on."""
    import torch

    return torch, "cuda" if torch.cuda.is_available() else "cpu"


def _load(model_name: str) -> Tuple[Any, Any]:
    """A model of `transformers` in 16 bit, and its tokenizer."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    torch, place = _best_place()
    name = PUBLISHERS.get(model_name.lower(), model_name)
    tokenizer = AutoTokenizer.from_pretrained(name)
    model = AutoModelForCausalLM.from_pretrained(name)
    return model.to(device=place, dtype=torch.bfloat16).eval(), tokenizer


def _prompt(model: Any, tokenizer: Any, text: str) -> Dict[str, Any]:
    """The inputs for a text; a model without a tokenizer gets a few tokens of its vocabulary."""
    import torch

    place = next(iter(model.parameters())).device
    if tokenizer is None:
        last = min(int(model.config.vocab_size), 32)
        ids = torch.arange(1, last, device=place).unsqueeze(0)
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    return dict(tokenizer(text, return_tensors="pt").to(place))


def _generate(model: Any, inputs: Dict[str, Any], tokens: int) -> Tuple[int, float]:
    """Tokens that came out, and the seconds that took; greedy, and as many as are asked for."""
    import torch

    cuda = inputs["input_ids"].is_cuda
    if cuda:
        torch.cuda.synchronize()
    start = time.perf_counter()
    with torch.no_grad():
        out = model.generate(**inputs, max_new_tokens=tokens, min_new_tokens=tokens, do_sample=False)
    if cuda:
        torch.cuda.synchronize()
    seconds = time.perf_counter() - start
    return int(out.shape[-1] - inputs["input_ids"].shape[-1]), seconds


def run_pipeline(
    model_name: str = "TinyLlama-1.1B-Chat-v1.0",
    memory_limit_gb: float = 8.0,
    phase: str = "decode",
    num_tokens: int = 10,
    *,
    hardware: Optional[str] = None,
    model: Any = None,
    tokenizer: Any = None,
) -> Dict[str, Any]:
    """Recommends a format, loads a model, quantizes it and times it.

    The result has ``recommendation`` (``precision``, ``method``, ``reason``, ``predicted_speedup``), ``quantized``,
    ``tokens_per_sec`` and ``error``. Nothing is raised: what fails is told in ``error``, and what came before it stays. The
    hardware is a Jetson Orin Nano where memory is 8 GB or less, else a GB10. A live ``model`` is taken instead of loading
    one; it is changed in place.
    """
    result: Dict[str, Any] = {"recommendation": None, "quantized": False, "tokens_per_sec": None, "error": None}
    try:
        place = hardware or ("jetson_orin_nano" if memory_limit_gb <= 8 else "b10")
        advice = recommend_quantization(place, phase=phase, memory_limit_gb=memory_limit_gb)
        kept = ("precision", "method", "reason", "predicted_speedup")
        result["recommendation"] = {field: advice[field] for field in kept}
        if model is None:
            model, tokenizer = _load(model_name)
        result["quantized"] = apply_quantization(model, advice["precision"])
        inputs = _prompt(model, tokenizer, PROMPT)
        _generate(model, inputs, 1)
        tokens, seconds = _generate(model, inputs, num_tokens)
        runs = [{"label": "run", "tokens": tokens, "times": [seconds]}]
        result["tokens_per_sec"] = ask("speed", runs=runs)["rows"][0]["tokens_per_sec"]
    except Exception as error:  # noqa: BLE001 - a pipeline tells what failed
        result["error"] = f"{type(error).__name__}: {error}"
    return result


def benchmark_transformer(
    model: Union[str, Any] = "TinyLlama-1.1B-Chat-v1.0",
    precisions: Sequence[str] = ("FP16", "INT8", "INT4"),
    num_tokens: int = 32,
    *,
    tokenizer: Any = None,
    prompt: str = PROMPT,
    runs: int = 3,
    baseline: str = "FP16",
) -> Rows:
    """Times a `transformers` model, live or by name, in several precisions.

    Every precision gets a copy of its own. A row has ``label``, ``tokens_per_sec``, ``avg_time``, ``std_time``, ``speedup``
    over ``baseline`` and ``error``; what torchao cannot do has an error and no time.
    """
    if isinstance(model, str):
        model, tokenizer = _load(model)
    timed: List[Dict[str, Any]] = []
    errors: Dict[str, Optional[str]] = {}
    for precision in precisions:
        tokens, times, errors[precision] = _timed(model, tokenizer, precision, (prompt, num_tokens, runs))
        timed.append({"label": precision, "tokens": tokens, "times": times})
    rows = ask("speed", runs=timed, baseline=baseline)["rows"]
    return Rows({"rows": [{**row, "error": errors[row["label"]]} for row in rows], "baseline": baseline})


def _timed(
    model: Any, tokenizer: Any, precision: str, how: Tuple[str, int, int]
) -> Tuple[int, List[float], Optional[str]]:
    """Tokens, times, and why there are none."""
    prompt, num_tokens, runs = how
    tokens, times = 0, []
    try:
        own = copy.deepcopy(model)
        if map_precision_to_torchao(precision) is not None:
            with warnings.catch_warnings(record=True) as said:
                warnings.simplefilter("always")
                done = apply_quantization(own, precision)
            if not done:
                return 0, [], str(said[-1].message) if said else "torchao could not quantize"
        else:
            own = _cast(own, precision)
        inputs = _prompt(own, tokenizer, prompt)
        _generate(own, inputs, 1)
        for _ in range(runs):
            tokens, seconds = _generate(own, inputs, num_tokens)
            times.append(seconds)
    except Exception as error:  # noqa: BLE001 - one precision that fails leaves the others
        return 0, [], f"{type(error).__name__}: {error}"
    return tokens, times, None


def _cast(model: Any, precision: str) -> Any:
    """The model in a format that torch computes in."""
    import torch

    formats = {"FP32": torch.float32, "FP16": torch.float16, "BF16": torch.bfloat16}
    wanted = formats.get(precision.strip().upper())
    if wanted is None:
        raise ValueError(f"neither torch nor torchao stores weights as {precision}")
    return model.to(dtype=wanted)
