"""How fast a language model can run, how fast it does run, which number format to use, and what that costs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ._native import __version__
from .errors import RooflineError

__all__ = ["RooflineError", "__version__"]

if TYPE_CHECKING:
    from .analyzer import *  # noqa: F403
    from .benchmark import *  # noqa: F403
    from .configs import *  # noqa: F403
    from .hardware import *  # noqa: F403
    from .quantization import *  # noqa: F403


def __getattr__(name: str) -> Any:
    """The analyzer, quantization of live models and their like, imported when they are asked for."""
    from ._names import find

    return find(name)
