"""How far long work is, for whoever waits at a terminal."""

from __future__ import annotations

import sys
from typing import Any, Callable, Dict, Optional, Union

Watch = Callable[[Dict[str, Any]], object]


def watcher(wanted: Union[bool, Watch, None]) -> Optional[Watch]:
    """Who is told: the function that was given, or a bar where there is a terminal and `tqdm` to draw one."""
    if callable(wanted):
        return wanted
    if wanted is False or (wanted is None and not _at_terminal()):
        return None
    try:
        from tqdm.auto import tqdm  # type: ignore[import-untyped,unused-ignore]
    except ImportError:
        return None
    return Bar(tqdm)


def _at_terminal() -> bool:
    try:
        return sys.stderr is not None and sys.stderr.isatty()
    except (OSError, ValueError):
        return False


class Bar:
    """A bar of `tqdm`: kernels one after the other, or bytes that are gone through."""

    def __init__(self, make: Any) -> None:
        self._make = make
        self._bar: Any = None

    def __call__(self, news: Dict[str, Any]) -> None:
        if news["size"] is not None:
            self._start(total=news["size"], unit="B", unit_scale=True)
        if news["kernel"] is not None:
            at, count, words = news["kernel"]
            if self._bar is None or self._bar.total != count:
                self._start(total=count, unit="kernel")
            self._bar.set_description(words, refresh=False)
            self._bar.update(at - self._bar.n)
        if news["bytes"] and self._bar is not None:
            self._bar.update(news["bytes"])
        if news["ended"]:
            self.close()

    def close(self) -> None:
        """Takes the bar away."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None

    def _start(self, **how: Any) -> None:
        self.close()
        self._bar = self._make(leave=False, file=sys.stderr, **how)
