"""How fast a language model can run, how fast it does run, which number format to use, and what that costs.

    import roofline
    roofline.predict("gemv", n=4096, k=4096, on="h200", precision=["bf16", "w4a16"])

Every verb of the command line is a function here, with the same arguments and the same answers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from . import answers as answers
from ._native import __version__ as __version__
from .answers import Answer as Answer
from .errors import RooflineError as RooflineError
from .verbs import (
    analyze as analyze,
    ask as ask,
    calibrate as calibrate,
    compare as compare,
    devices as devices,
    evaluate as evaluate,
    formats as formats,
    generate as generate,
    inspect as inspect,
    measure as measure,
    models as models,
    monitor as monitor,
    pipeline as pipeline,
    plot as plot,
    precisions as precisions,
    predict as predict,
    quantize as quantize,
    recommend as recommend,
    sweep as sweep,
    tiling as tiling,
)

if TYPE_CHECKING:
    from . import torch as torch
    from .analyzer import *  # noqa: F403
    from .batch import *  # noqa: F403
    from .benchmark import *  # noqa: F403
    from .callables import *  # noqa: F403
    from .configs import *  # noqa: F403
    from .hardware import *  # noqa: F403
    from .quantization import *  # noqa: F403
    from .watching import *  # noqa: F403


def __getattr__(name: str) -> Any:
    """The analyzer, quantization of live models and their like, imported when they are asked for."""
    from ._names import find

    return find(name)
