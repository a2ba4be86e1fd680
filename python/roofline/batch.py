"""Many whole-model forecasts at once: columns in, columns out. Nothing is computed here."""

from __future__ import annotations

import os
from array import array
from typing import Any, Dict, List, Mapping, NoReturn, Optional, Tuple

from . import _native
from .answers import Answer
from .errors import RooflineError

__all__ = ["BatchAnswer", "predict_batch"]

_NUMBERS = ("expected_time_us", "lo_us", "hi_us", "ideal_time_us", "tokens_per_s", "memory_bytes")
_LISTS = ("fits", "basis", "error")
_MOST_ROWS = 20


class BatchAnswer(Answer):
    """The forecasts of `predict_batch`, a column each.

    Columns of numbers are `array.array('d')`: `memoryview(answer.lo_us)` and `numpy.asarray(answer.lo_us)` copy nothing. A row
    that could not be predicted has a text in `error`, NaN for its numbers, and `None` in `fits` and `basis`.
    """

    __slots__ = ()

    @property
    def expected_time_us(self) -> "array[float]":
        """The time that is likely."""
        return self._array("expected_time_us")

    @property
    def lo_us(self) -> "array[float]":
        """The lower end of the range that nine of ten measurements should lie in."""
        return self._array("lo_us")

    @property
    def hi_us(self) -> "array[float]":
        """The upper end of that range."""
        return self._array("hi_us")

    @property
    def ideal_time_us(self) -> "array[float]":
        """The least time: the ideal roofline."""
        return self._array("ideal_time_us")

    @property
    def tokens_per_s(self) -> "array[float]":
        """Tokens per second, in the tier that was asked for."""
        return self._array("tokens_per_s")

    @property
    def memory_bytes(self) -> "array[float]":
        """Weights, cache and what is in flight."""
        return self._array("memory_bytes")

    @property
    def fits(self) -> List[Optional[bool]]:
        """Whether the device has as much memory; `None` where nobody said how much it has."""
        fits: List[Optional[bool]] = self._columns()["fits"]
        return fits

    @property
    def basis(self) -> List[Optional[str]]:
        """Where the expected time comes from."""
        return self._texts("basis")

    @property
    def error(self) -> List[Optional[str]]:
        """Why a row has no forecast."""
        return self._texts("error")

    @property
    def notes(self) -> List[Dict[str, str]]:
        """What is said beside it."""
        notes: List[Dict[str, str]] = self._columns()["notes"]
        return notes

    def _array(self, name: str) -> "array[float]":
        numbers: "array[float]" = self._columns()[name]
        return numbers

    def _texts(self, name: str) -> List[Optional[str]]:
        texts: List[Optional[str]] = self._columns()[name]
        return texts

    def _columns(self) -> Dict[str, Any]:
        fields: Dict[str, Any] = object.__getattribute__(self, "_fields")
        return fields

    def __getitem__(self, name: str) -> Any:
        return self._columns()[name]

    def get(self, name: str, default: Any = None) -> Any:
        """A column, or `default` where there is none of that name."""
        return self._columns().get(name, default)

    def __reduce__(self) -> Tuple[Any, ...]:
        return (BatchAnswer, (self._columns(),))

    def to_dict(self) -> Dict[str, Any]:
        """The columns as lists, to keep and to change."""
        return {name: list(self._columns()[name]) for name in (*_NUMBERS, *_LISTS)}

    def to_json(self, indent: Optional[int] = None) -> str:
        """The columns as JSON, which has `null` where a row has no number."""
        import json

        columns = self.to_dict()
        for name in _NUMBERS:
            columns[name] = [None if value != value else value for value in columns[name]]
        return json.dumps(columns, indent=indent, ensure_ascii=False, allow_nan=False)

    def to_rows(self) -> List[Dict[str, Any]]:
        """A dictionary for each row."""
        columns = self.to_dict()
        return [dict(zip(columns, row)) for row in zip(*columns.values())]

    def to_pandas(self) -> Any:
        """The columns as a `pandas.DataFrame`."""
        try:
            import numpy
            import pandas
        except ImportError as error:
            raise ImportError("to_pandas() needs pandas: pip install pandas") from error
        numbers = {name: numpy.asarray(self._columns()[name]) for name in _NUMBERS}
        return pandas.DataFrame({**numbers, **{name: self._columns()[name] for name in _LISTS}})

    def to_arrow(self) -> Any:
        """The columns as a `pyarrow.Table`, whose numbers are those of this answer and no copy."""
        try:
            import pyarrow
        except ImportError as error:
            raise ImportError("to_arrow() needs pyarrow: pip install pyarrow") from error
        rows = len(self._columns()["error"])
        columns = {
            name: pyarrow.Array.from_buffers(pyarrow.float64(), rows, [None, pyarrow.py_buffer(self._columns()[name])])
            for name in _NUMBERS
        }
        types = {"fits": pyarrow.bool_(), "basis": pyarrow.string(), "error": pyarrow.string()}
        columns.update({name: pyarrow.array(self._columns()[name], types[name]) for name in _LISTS})
        return pyarrow.table(columns)

    def __repr__(self) -> str:
        return "\n".join("  ".join(row).rstrip() for row in self._short())

    def _repr_html_(self) -> str:
        import html

        return f"<pre>{html.escape(repr(self))}</pre>"

    def _short(self) -> List[List[str]]:
        names = ("expected_time_us", "lo_us", "hi_us", "tokens_per_s", "fits", "basis", "error")
        count = len(self._columns()["error"])
        rows = [list(names)]
        for row in range(min(count, _MOST_ROWS)):
            rows.append([_cell(self._columns()[name][row]) for name in names])
        widths = [max(len(row[at]) for row in rows) for at in range(len(names))]
        table = [[cell.ljust(width) for cell, width in zip(row, widths)] for row in rows]
        return [[f"{count} forecasts"], *table, *([[f"... {count - _MOST_ROWS} more"]] if count > _MOST_ROWS else [])]


def _cell(value: Any) -> str:
    if value is None or value != value:
        return ""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def predict_batch(
    model: Any,
    on: Any,
    precision: Any = None,
    batch: Any = 1,
    context: Any = 4096,
    phase: Any = "decode",
    tier: Any = None,
) -> BatchAnswer:
    """A whole-model forecast for each row of columns, equal to what `predict("model", ...)` says of it.

    Each argument is one value for every row, or a column: a list, a tuple, an array, a column of pandas, Polars or Arrow.
    Columns have one length. A row that cannot be predicted has a text in `error`; only what is no column of its kind, and
    columns of different lengths, are exceptions.
    """
    names = {"model": model, "on": on, "precision": precision, "phase": phase, "tier": tier}
    numbers = {"batch": batch, "context": context}
    columns: Dict[str, Any] = {name: _names(name, value) for name, value in names.items()}
    columns.update({name: _numbers(name, value) for name, value in numbers.items()})
    told = _native.predict_batch(columns)
    fields: Dict[str, Any] = {}
    for name in _NUMBERS:
        fields[name] = array("d")
        fields[name].frombytes(told[name])
    for name in _LISTS:
        texts, codes = told[name]
        fields[name] = list(map(texts.__getitem__, memoryview(codes).cast("I") if name == "error" else codes))
    fields["notes"] = told["notes"]
    return BatchAnswer(fields)


def _refuse(name: str, value: Any, what: str) -> NoReturn:
    raise RooflineError(f"`{name}` is of type {type(value).__name__}", f"give {what}, or a column of them", "usage")


def _listed(value: Any) -> Any:
    """A column as a list; what is none as it is, or as the plain value that it stands for."""
    if isinstance(value, (list, tuple, range)):
        return list(value)
    if isinstance(value, (str, bytes, bytearray, Mapping, os.PathLike)):
        return value
    for method in ("to_pylist", "tolist", "to_list"):
        if hasattr(value, method):
            return getattr(value, method)()
    return value


def _is_missing(value: Any) -> bool:
    """What tables have where nothing is: `None`, NaN, and what pandas has of its own."""
    return value is None or type(value).__name__ == "NAType" or (isinstance(value, float) and value != value)


def _names(name: str, value: Any) -> Tuple[List[Any], Optional[bytes]]:
    """The names that there are, and which of them each row has."""
    items = _listed(value)
    if not isinstance(items, list):
        return [_name(name, items)], None
    try:
        places = {item: place for place, item in enumerate(dict.fromkeys(items))}
        rows = array("I", map(places.__getitem__, items)).tobytes()
    except TypeError:
        raise RooflineError(f"`{name}` has rows that are no texts", "give one text, or a column of them", "usage") from None
    return [None if _is_missing(item) else _name(name, item) for item in places], rows


def _name(name: str, value: Any) -> Any:
    if value is None or isinstance(value, str) or (name == "model" and isinstance(value, dict)):
        return value
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    _refuse(name, value, "a text")


def _numbers(name: str, value: Any) -> Tuple[str, int, bytes, bool]:
    """The bytes of numbers, of which kind they are, and whether they are a column."""
    if isinstance(value, (str, bytes, bytearray, bool)):
        _refuse(name, value, "a number")
    view = _view(name, value)
    if view is not None:
        if view.ndim > 1:
            raise RooflineError(f"`{name}` has {view.ndim} dimensions", "a column has one", "usage")
        return view.format, view.itemsize, view.tobytes(), view.ndim == 1
    items = _listed(value)
    many = isinstance(items, list)
    if not many:
        items = [items]
    try:
        # Truth values are numbers to Python, and no dimensions.
        if bool in set(map(type, items)):
            _refuse(name, True, "a number")
        numbers = array("d", items)
    except (TypeError, OverflowError):
        numbers = array("d", (_number(name, item) for item in items))
    return "d", 8, numbers.tobytes(), many


def _number(name: str, value: Any) -> float:
    if isinstance(value, (str, bytes, bytearray, bool)):
        _refuse(name, value, "a number")
    if _is_missing(value):
        return float("nan")
    try:
        return float(value)
    except OverflowError:
        return float("inf") if value > 0 else float("-inf")
    except (TypeError, ValueError):
        _refuse(name, value, "a number")


def _view(name: str, value: Any) -> Optional[memoryview]:
    """The memory of a column of plain numbers, where it has some that can be looked at."""
    if isinstance(value, (int, float, list, tuple, range)):
        return None
    for whole in (True, False):
        try:
            view = memoryview(value if whole else value.to_numpy())
        except Exception:  # noqa: BLE001 - whatever a library says, the column is then read as a list
            continue
        if view.format in _PLAIN:
            return view
        if view.format == "?":
            raise RooflineError(f"`{name}` has truth values", "give a number, or a column of them", "usage")
    return None


_PLAIN = frozenset("dfbBhHiIlLqQnN")
