"""What is told: one class for every answer, since what an answer holds is said by the type that gave it.

Fields are attributes, in the names of the JSON that the command line prints. `answers.pyi` says which there are.
"""

from __future__ import annotations

from typing import Any, Dict, Iterator, List, Mapping, Optional, Tuple

_ROWS = (
    "estimates",
    "comparisons",
    "own",
    "measurements",
    "passes",
    "points",
    "outcomes",
    "ranked",
    "runs",
    "plans",
    "devices",
    "models",
    "formats",
    "precisions",
    "schemes",
    "tilings",
    "weights",
    "tensors",
    "operators",
)
"""Lists that are what an answer is about, the first that is there."""

_COLUMNS = (
    "key",
    "name",
    "kernel",
    "operator",
    "calls",
    "time_us",
    "share",
    "of_roof",
    "bound",
    "model",
    "device",
    "shape",
    "site",
    "phase",
    "batch",
    "context",
    "precision",
    "plan",
    "format",
    "basis",
    "ideal_time_us",
    "expected_time_us",
    "measured_time_us",
    "roof_share",
    "ours_time_us",
    "speedup_over_ours",
    "error_pct",
    "tokens_per_s",
    "speedup",
    "bottleneck",
    "fits",
    "bits_per_weight",
    "relative_error",
    "perplexity",
)
"""Columns of a short table, those that are there."""

_HEADINGS = ("subject", "model_name", "model", "device_name", "device", "kind", "verdict")
_MOST_ROWS = 20


class Answer:
    """An answer. Its fields are attributes; lists hold answers in turn.

    `to_dict`, `to_json`, `to_pandas` and `to_arrow` give all of it away, and a notebook shows it with its picture.
    """

    __slots__ = ("_fields", "_reply", "__weakref__")
    _fields: Dict[str, Any]

    def __init__(self, fields: Mapping[str, Any], _reply: Any = None) -> None:
        object.__setattr__(self, "_fields", dict(fields))
        object.__setattr__(self, "_reply", _reply)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        fields = object.__getattribute__(self, "_fields")
        if name in fields:
            return _wrapped(fields[name])
        if name == "notes":
            return []
        import difflib

        near = difflib.get_close_matches(name, list(fields), 1)
        meant = f"; did you mean `{near[0]}`?" if near else f"; it has {', '.join(fields)}"
        raise AttributeError(f"this answer has no `{name}`{meant}")

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError("an answer is what it is; `to_dict()` gives a copy to change")

    def __delattr__(self, name: str) -> None:
        raise AttributeError("an answer is what it is; `to_dict()` gives a copy to change")

    def __getitem__(self, name: str) -> Any:
        return _wrapped(self._fields[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self._fields)

    def __len__(self) -> int:
        return len(self._fields)

    def __contains__(self, name: object) -> bool:
        return name in self._fields

    def __dir__(self) -> List[str]:
        return sorted({*super().__dir__(), *self._fields})

    def __eq__(self, other: object) -> bool:
        return self._fields == other._fields if isinstance(other, Answer) else NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def __reduce__(self) -> Tuple[Any, ...]:
        return (Answer, (self._fields,))

    def keys(self) -> List[str]:
        """The names of its fields."""
        return list(self._fields)

    def get(self, name: str, default: Any = None) -> Any:
        """A field, or `default` where there is none of that name."""
        return _wrapped(self._fields[name]) if name in self._fields else default

    def to_dict(self) -> Dict[str, Any]:
        """All of it as dictionaries and lists, to keep and to change."""
        return _copied(self._fields)

    def to_json(self, indent: Optional[int] = None) -> str:
        """All of it as JSON, as `--json` prints it."""
        import json

        return json.dumps(self._fields, indent=indent, ensure_ascii=False, allow_nan=False)

    def to_rows(self) -> List[Dict[str, Any]]:
        """What it is about, one flat dictionary for each estimate, measurement, plan or device."""
        name = _main(self._fields)
        items = self._fields[name] if name else [self._fields]
        return [_flat(item) for item in items]

    def to_pandas(self) -> Any:
        """Its rows as a `pandas.DataFrame`."""
        try:
            import pandas
        except ImportError as error:
            raise ImportError("to_pandas() needs pandas: pip install pandas") from error
        return pandas.DataFrame(self.to_rows())

    def to_arrow(self) -> Any:
        """Its rows as a `pyarrow.Table`."""
        try:
            import pyarrow
        except ImportError as error:
            raise ImportError("to_arrow() needs pyarrow: pip install pyarrow") from error
        return pyarrow.Table.from_pylist(self.to_rows())

    def pictures(self, dark: bool = False) -> List[str]:
        """Its pictures as SVG; none where there is nothing to see."""
        return self._reply.pictures(dark) if self._reply is not None else []

    def save(self, path: Any, dark: bool = False) -> None:
        """Writes its first picture to an SVG file."""
        pictures = self.pictures(dark)
        if not pictures:
            from .errors import RooflineError

            raise RooflineError("this answer has no picture", "`roofline.plot` draws models")
        with open(path, "w", encoding="utf-8") as file:
            file.write(pictures[0])

    def __repr__(self) -> str:
        lines = [_heading(self._fields)]
        table, more = _table(self._fields)
        if table:
            widths = [max(len(row[at]) for row in table) for at in range(len(table[0]))]
            lines += ["  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in table]
        else:
            lines += [f"  {name}: {_cell(value)}" for name, value in _flat(self._fields).items()][:_MOST_ROWS]
        if more:
            lines.append(f"... {more} more")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        import html

        parts = [f"<p><strong>{html.escape(_heading(self._fields))}</strong></p>"]
        table, more = _table(self._fields)
        if table:
            head = "".join(f"<th>{html.escape(name)}</th>" for name in table[0])
            body = "".join(
                "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in table[1:]
            )
            parts.append(f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>")
        else:
            parts.append(f"<pre>{html.escape(repr(self))}</pre>")
        if more:
            parts.append(f"<p>... {more} more</p>")
        return "".join(parts + self.pictures())


def __getattr__(name: str) -> Any:
    # The classes of `answers.pyi` tell answers apart for who checks types; there is one of them when a program runs.
    if name[:1].isupper():
        return Answer
    raise AttributeError(f"module 'roofline.answers' has no attribute {name!r}")


def _wrapped(value: Any) -> Any:
    if isinstance(value, dict):
        return Answer(value)
    if isinstance(value, list):
        return [_wrapped(item) for item in value]
    return value


def _copied(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _copied(item) for name, item in value.items()}
    return [_copied(item) for item in value] if isinstance(value, list) else value


def _is_table(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(item, dict) for item in value)


def _main(fields: Mapping[str, Any]) -> Optional[str]:
    return next((name for name in _ROWS if _is_table(fields.get(name))), None)


def _flat(fields: Mapping[str, Any], within: str = "") -> Dict[str, Any]:
    flat: Dict[str, Any] = {}
    for name, value in fields.items():
        if isinstance(value, dict):
            flat.update(_flat(value, f"{within}{name}."))
        elif not _is_table(value):
            flat[within + name] = value
    return flat


def _heading(fields: Mapping[str, Any]) -> str:
    words = [fields[name] for name in _HEADINGS if isinstance(fields.get(name), str)]
    return ", ".join(dict.fromkeys(words)) or _main(fields) or "answer"


def _table(fields: Mapping[str, Any]) -> Tuple[List[List[str]], int]:
    name = _main(fields)
    if name is None:
        return [], 0
    rows = [_flat(row) for row in fields[name][:_MOST_ROWS]]
    columns = [column for column in _COLUMNS if any(row.get(column) is not None for row in rows)]
    if "plan" in columns and all(row.get("plan") == row.get("precision") for row in rows):
        columns.remove("plan")
    others = (column for column, value in rows[0].items() if column not in columns and _is_short(value))
    while len(columns) < 6:
        column = next(others, None)
        if column is None:
            break
        columns.append(column)
    table = [columns, *([_cell(row.get(column)) for column in columns] for row in rows)]
    return table, len(fields[name]) - len(rows)


def _is_short(value: Any) -> bool:
    return isinstance(value, (bool, int, float)) or (isinstance(value, str) and len(value) <= 30)


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.4g}"
    text = ", ".join(map(_cell, value)) if isinstance(value, list) else str(value)
    return text if len(text) <= 60 else text[:57] + "..."
