"""How fast a language model can run, how fast it does run, which number format to use, and what that costs."""

from __future__ import annotations

from ._native import __version__
from .errors import RooflineError

__all__ = ["RooflineError", "__version__"]
