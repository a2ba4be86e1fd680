"""The questions: one function for each verb, with the arguments that the command line and the JSON have.

A field is a keyword argument; what the command line takes without a flag may be given without a name. `as` and `from`, which
Python keeps for itself, are `as_` and `from_`. Nothing is computed here.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, Mapping, Tuple

from . import _native
from .answers import Answer
from .progress import Bar, watcher

__all__ = [
    "analyze",
    "ask",
    "calibrate",
    "compare",
    "devices",
    "evaluate",
    "formats",
    "generate",
    "inspect",
    "measure",
    "models",
    "monitor",
    "pipeline",
    "plot",
    "precisions",
    "predict",
    "quantize",
    "recommend",
    "sweep",
    "tiling",
]


def ask(verb: str, fields: Mapping[str, Any], progress: Any = None) -> Answer:
    """Asks any verb with the fields of its request.

    `progress` is a function that is told how far long work is, `False` for silence, or `None` for a bar where standard error
    is a terminal and `tqdm` is installed. Ctrl-C ends the work before its next kernel, or its next block of rows; what was measured or written stays on disk, and `resume=True` goes on with it.
    """
    watch = watcher(progress)
    try:
        reply = _native.ask(verb, dict(fields), watch)
    finally:
        if isinstance(watch, Bar):
            watch.close()
    return Answer(reply.fields(), reply)


def _verb(name: str, usual: Tuple[str, ...], about: str, **special: Tuple[str, ...]) -> Callable[..., Any]:
    def function(*values: Any, progress: Any = None, **fields: Any) -> Answer:
        # Some subjects have other arguments without a name.
        subject = values[0] if values else fields.get("subject")
        places = special.get(subject, usual) if isinstance(subject, str) else usual
        request: Dict[str, Any] = {_field(field): value for field, value in fields.items()}
        named = dict(zip(places, values))
        if len(values) > len(places):
            if not places or not places[-1].startswith("*"):
                raise TypeError(f"{name}() takes {len(places)} arguments without a name, and {len(values)} were given")
        if places and places[-1].startswith("*"):
            named = {places[-1][1:]: list(values)} if values else {}
        for field, value in named.items():
            if field in request:
                raise TypeError(f"{name}() got `{field}` twice")
            request[field] = value
        return ask(name, request, progress)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = about
    function.__module__ = __name__
    return function


def _field(name: str) -> str:
    return name[:-1] if name.endswith("_") and not name.endswith("__") else name


predict = _verb("predict", ("subject", "model"), "How fast it can run: time, bound and reason, from theory.")
measure = _verb(
    "measure",
    ("subject", "model"),
    "How fast it does run: kernels of this machine, checked and then timed.",
    kernel=("subject", "manifest"),
)
compare = _verb("compare", ("subject", "model"), "Theory against measurement: error, speed-ups, and what explains the rest.")
calibrate = _verb("calibrate", (), "What this machine really does, for `predict` to use.")
sweep = _verb("sweep", ("models",), "How fast it would run over ranges of batch, context, precision and device.")
recommend = _verb("recommend", ("subject", "model"), "Which precision to use: every plan predicted, ranked by a goal.")
quantize = _verb("quantize", ("model",), "Writes a checkpoint in narrow formats that runtimes load.")
evaluate = _verb("evaluate", ("model",), "How well a model predicts a text, and what it lost against its original.")
generate = _verb("generate", ("model",), "Text from a model that runs on this machine, and how fast.")
pipeline = _verb("pipeline", ("model",), "All of it in a row: recommend, quantize, measure and evaluate.")
analyze = _verb("analyze", ("model",), "What a measured run achieved: rates, utilisation, distance to the roof.")
inspect = _verb("inspect", ("path",), "What a checkpoint holds: tensors, formats, bits per weight, what is suspicious.")
plot = _verb("plot", ("kind", "models"), "Pictures: the roofline, time against batch or context, shares of the time.")
tiling = _verb("tiling", (), "How a matrix product cuts into tiles on a device.")
devices = _verb("devices", ("*names",), "Devices: rates with their sources.")
models = _verb("models", ("*names",), "Models: dimensions, parameters, cache.")
formats = _verb("formats", ("*names",), "Number formats: size, range, error, who supports them.")
precisions = _verb("precisions", (), "Named precisions: which format at which place, and which unit multiplies.")
monitor = _verb("monitor", (), "What a GPU does now: clocks, power, temperature, memory.")
