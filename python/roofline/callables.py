"""A kernel of one's own, measured as ours are.

    def gemv(x, w):
        return w @ x

    answer = roofline.measure_callable(gemv, "gemv", n=4096, k=4096, precision="fp32")
    answer.own[0].of_roof, answer.own[0].speedup_over_ours

The operands are made by the native part, which also checks the result, decides how often it is called, and does all the
arithmetic. What is here gives arrays to a library and calls the function.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Callable, Dict, Iterator, Optional

from . import _native
from ._runners import Runner, runner_of
from .answers import Answer
from .errors import RooflineError

if TYPE_CHECKING:
    from .answers import MeasureAnswer

__all__ = ["measure_callable"]

def measure_callable(
    fn: Callable[..., Any],
    op: str,
    *,
    precision: str,
    m: Optional[int] = None,
    n: Optional[int] = None,
    k: Optional[int] = None,
    batch: Optional[int] = None,
    heads: Optional[int] = None,
    kv_heads: Optional[int] = None,
    head_dim: Optional[int] = None,
    queries: Optional[int] = None,
    context: Optional[int] = None,
    no_causal: Optional[bool] = None,
    arrays: Optional[str] = None,
    device: Optional[str] = None,
    name: Optional[str] = None,
    warm: bool = False,
    quick: bool = False,
    seconds: Optional[float] = None,
    graph: bool = True,
    ours: bool = True,
) -> "MeasureAnswer":
    """Checks a function against the reference, times it, and sets it beside the roof and our own kernel.

    ``op`` is ``"gemv"`` (``fn(x, w)`` with ``x[k]``, ``w[n, k]`` gives ``y[n]``), ``"gemm"`` (``x[m, k]`` gives ``y[m, n]``)
    or ``"attention"`` (``fn(q, k, v)`` with ``q[batch, queries, heads, head_dim]`` and ``k``, ``v`` of ``[batch, kv_heads,
    context, head_dim]``). Where a precision has scales they follow their array: ``fn(x, w, w_scales)``. A function that has a
    parameter ``out`` is given the place of its result.

    ``arrays`` says which library's arrays it takes (``"torch"`` where torch is imported, else ``"numpy"``; or ``"cupy"``) and
    ``device`` where they lie (``"cuda"`` where torch has one, else ``"cpu"``). On a GPU calls are recorded as a CUDA graph
    unless ``graph=False`` or the function cannot be recorded; the answer says which. ``ours=False`` leaves our kernel out.

    A wrong result is a ``RooflineError``, and nothing is timed. What the function raises is raised as it is.
    """
    if not callable(fn):
        raise RooflineError(f"`fn` is of type {type(fn).__name__}, which cannot be called", "give a function of arrays")
    runner: Runner = runner_of(fn, arrays, device, name, graph)
    fields: Dict[str, Any] = {
        "subject": op,
        "precision": precision,
        "m": m,
        "n": n,
        "k": k,
        "batch": batch,
        "heads": heads,
        "kv_heads": kv_heads,
        "head_dim": head_dim,
        "queries": queries,
        "context": context,
        "no_causal": no_causal,
        "warm": warm or None,
        "quick": quick or None,
        "seconds": seconds,
        "backend": "cpu" if runner.processor else "cuda",
        "gpu": runner.index,
    }
    request = {field: value for field, value in fields.items() if value is not None}
    try:
        with _uncollected(), runner.surroundings():
            reply = _native.measure_callable(request, runner, bool(ours))
    finally:
        runner.release()
    made: Any = Answer
    answer: "MeasureAnswer" = made(reply.fields(), reply)
    return answer


@contextmanager
def _uncollected() -> Iterator[None]:
    """No garbage is collected meanwhile: that would be in the time of whichever call it falls into."""
    import gc

    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()
