"""What the analyzer's answers have in common."""

from __future__ import annotations

from typing import Any, Dict, Iterator, List, Mapping, Optional


def ask(subject: str, *places: Mapping[str, Any], **fields: Any) -> Dict[str, Any]:
    """Asks the analyzer; every number is made by the native part."""
    from . import _native

    request: Dict[str, Any] = {"subject": subject}
    for place in places:
        request.update(place)
    request.update(fields)
    answer: Dict[str, Any] = _native.call("analyzer", {key: value for key, value in request.items() if value is not None})
    return answer


class Result(Mapping[str, Any]):
    """An answer: its fields are attributes and items."""

    def __init__(self, fields: Mapping[str, Any]) -> None:
        self._fields = dict(fields)

    def __getattr__(self, name: str) -> Any:
        fields = self.__dict__.get("_fields", {})
        if name in fields:
            return fields[name]
        raise AttributeError(f"{type(self).__name__} has no `{name}`; it has {', '.join(fields)}")

    def __getitem__(self, name: str) -> Any:
        return self._fields[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._fields)

    def __len__(self) -> int:
        return len(self._fields)

    def __dir__(self) -> List[str]:
        return [*super().__dir__(), *self._fields]

    def to_dict(self) -> Dict[str, Any]:
        """The fields as a dictionary."""
        return dict(self._fields)

    def __repr__(self) -> str:
        short = ((key, value) for key, value in self._fields.items() if not isinstance(value, (dict, list)))
        return f"{type(self).__name__}({', '.join(f'{key}={value!r}' for key, value in short if key != 'svg')})"


class Rows(Result):
    """An answer that is a table: iterate over ``rows``, print it, or have it as a data frame."""

    @property
    def rows(self) -> List[Dict[str, Any]]:
        """The rows as dictionaries."""
        rows: List[Dict[str, Any]] = self._fields["rows"]
        return rows

    def to_pandas(self) -> Any:
        """The rows as a data frame; needs pandas."""
        import pandas

        return pandas.DataFrame(self.rows)

    def __str__(self) -> str:
        text = self._fields.get("text")
        return text if text is not None else table(self.rows)

    def _repr_html_(self) -> str:
        return html(self.rows)


class Chart(Result):
    """A picture; a notebook shows it."""

    def _repr_svg_(self) -> Optional[str]:
        return self._fields.get("svg")

    def __repr__(self) -> str:
        return f"<{self._fields.get('title', type(self).__name__)}>"


class Sheet:
    """A name, or rates or dimensions of one's own, and the facts that follow."""

    def __init__(self, place: Mapping[str, Any]) -> None:
        self.place = {key: value for key, value in place.items() if value is not None}
        self._known: Optional[Dict[str, Any]] = None

    def _facts(self) -> Dict[str, Any]:
        raise NotImplementedError

    def to_dict(self) -> Dict[str, Any]:
        """Everything that is known."""
        if self._known is None:
            self._known = self._facts()
        return dict(self._known)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name == "place":
            raise AttributeError(name)
        facts = self.to_dict()
        if name in facts:
            return facts[name]
        raise AttributeError(f"{type(self).__name__} has no `{name}`; it has {', '.join(facts)}")

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.to_dict()['name']!r})"


def cell(value: Any) -> str:
    """A value as a table shows it."""
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.4g}"
    return str(value)


def columns(rows: List[Dict[str, Any]]) -> List[str]:
    """Columns that say something in at least one row."""
    names = list(rows[0]) if rows else []
    return [name for name in names if any(row.get(name) is not None for row in rows)]


def table(rows: List[Dict[str, Any]]) -> str:
    """Rows as text."""
    names = columns(rows)
    lines = [names, *([cell(row.get(name)) for name in names] for row in rows)]
    widths = [max(len(line[at]) for line in lines) for at in range(len(names))]
    return "\n".join("  ".join(text.rjust(width) for text, width in zip(line, widths)) for line in lines)


def html(rows: List[Dict[str, Any]]) -> str:
    """Rows as HTML."""
    from html import escape

    names = columns(rows)
    head = "".join(f"<th>{escape(name)}</th>" for name in names)
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(cell(row.get(name)))}</td>" for name in names) + "</tr>" for row in rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
