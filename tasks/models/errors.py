"""Errors of models; their codes are stable."""

from __future__ import annotations

from state.primitives.errors import ProtocolError
from tasks.engines.errors import EngineMissing

__all__ = ["ModelInvalid", "ModelUnsupported", "RowsInvalid", "TokenizersMissing"]


class ModelInvalid(ProtocolError):
    """A model's file that breaks its own format, or weights that are not finite or too large."""

    code = "model_invalid"


class ModelUnsupported(ProtocolError):
    """A model of an architecture, a storage type or a setting that no program here computes."""

    code = "model_unsupported"


class RowsInvalid(ProtocolError):
    """A file of rows that breaks its format; ``line`` and ``column`` say where, as far as it is one place."""

    code = "rows_invalid"

    def __init__(self, text: str, line: int | None = None, column: int | None = None) -> None:
        place = "" if line is None else f"line {line}: " if column is None else f"line {line}, column {column}: "
        super().__init__(place + text)
        self.line, self.column = line, column


class TokenizersMissing(EngineMissing):
    """The extra ``models`` is not installed."""

    code = "tokenizers_missing"
