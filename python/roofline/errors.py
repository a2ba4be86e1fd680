"""Why a question was not answered."""

from __future__ import annotations

from typing import Optional


class RooflineError(ValueError):
    """A question that got no answer.

    `message` says what is wrong and `hint` what to do about it, in the words that the command line uses. `kind` is a stable
    word for programs: "usage", "unknown", "file", "cancelled" and so on; "internal" is a defect of this library.
    """

    message: str
    hint: Optional[str]
    kind: str

    def __init__(self, message: str, hint: Optional[str] = None, kind: str = "usage") -> None:
        super().__init__(message, hint, kind)
        self.message = message
        self.hint = hint
        self.kind = kind

    def __str__(self) -> str:
        return f"{self.message}\nhint: {self.hint}" if self.hint else self.message
