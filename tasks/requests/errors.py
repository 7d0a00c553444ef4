"""What is wrong with a request, and where."""

from __future__ import annotations

from state.primitives.errors import ConfigError

__all__ = ["RequestInvalid"]


class RequestInvalid(ConfigError):
    """A request that cannot become a job; nothing was sent or paid.

    ``file``, ``line``, ``column`` and ``field`` say where, as far as it is one place. ``code`` is that of the
    error behind it, if there is one (a model, rows or a program).
    """

    code = "request_invalid"

    def __init__(
        self, text: str, *, file: str = "", line: int | None = None, column: int | None = None, field: str = "",
        code: str | None = None,
    ) -> None:  # fmt: skip
        place = "" if line is None else f"line {line}: " if column is None else f"line {line}, column {column}: "
        super().__init__((f"{file}: " if file else "") + place + text)
        self.text, self.file, self.line, self.column, self.field = text, file, line, column, field
        if code is not None:
            self.code = code  # type: ignore[misc]  # that of the error behind it
