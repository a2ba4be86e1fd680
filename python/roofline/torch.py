"""PyTorch programs under the roof: what `torch.profiler` recorded, by operator.

    with torch.profiler.profile(record_shapes=True) as profiler:
        model(tokens)
    roofline.torch.profile(profiler, on="h200")

torch itself is never imported here: a trace is a file, and a profiler writes its own.
"""

from __future__ import annotations

import os
import tempfile
from typing import Any, Optional

from .answers import Answer
from .errors import RooflineError
from .verbs import ask

__all__ = ["profile"]


def profile(trace: Any, on: Optional[str] = None, *, progress: Any = None) -> Answer:
    """Kernels by operator, what each reached of its roof, and what to do first.

    ``trace`` is a file (JSON, .json.gz, or an export of ``ncu --csv``) or a ``torch.profiler.profile`` that has stopped.
    ``on`` is the device it was made on; left out, the one that the trace names. ``record_shapes=True`` gives operators a
    roof. A profiler gives its trace away once: to keep it, export it and name the file. The answer has ``operators``,
    ``occupations``, ``unattributed`` and ``first``.
    """
    if isinstance(trace, (str, bytes, os.PathLike)):
        return _asked(os.fspath(trace), on, progress)
    export = getattr(trace, "export_chrome_trace", None)
    if not callable(export):
        kind = type(trace).__name__
        raise TypeError(f"profile() takes the path of a trace or a torch.profiler.profile, not {kind}")
    with tempfile.TemporaryDirectory(prefix="roofline-") as folder:
        path = os.path.join(folder, "trace.json")
        try:
            export(path)
        except (AssertionError, RuntimeError) as error:
            hint = "a profiler writes its trace once, when it has stopped; name the file where it is written already"
            why = str(error) or "it has not stopped"
            raise RooflineError(f"the profiler does not give its trace: {why}", hint) from error
        return _asked(path, on, progress)


def _asked(path: Any, on: Optional[str], progress: Any) -> Answer:
    fields = {"trace": os.fsdecode(path)}
    if on is not None:
        fields["on"] = on
    return ask("trace", fields, progress)
