"""Errors of models; their codes are stable."""

from __future__ import annotations

from typing import Self

from state.primitives.errors import ProtocolError
from tasks.engines.errors import EngineMissing

__all__ = ["FolderInvalid", "ModelError", "ModelInvalid", "ModelUnsupported", "RowsInvalid", "TokenizersMissing"]


class ModelError(ProtocolError):
    """What is wrong with a model's file; ``file`` and ``remedy`` say where and what to do, as far as is known."""

    def __init__(self, text: str, *, file: str = "", remedy: str = "") -> None:
        super().__init__((f"{file}: " if file else "") + text + (f". {remedy}" if remedy else ""))
        self.text, self.file, self.remedy = text, file, remedy

    def within(self, file: str) -> Self:
        """Return the same error with the file's name, if it has none yet."""
        return self if self.file else type(self)(self.text, file=file, remedy=self.remedy)


class ModelInvalid(ModelError):
    """A model's file that breaks its own format, or weights that are not finite or too large."""

    code = "model_invalid"


class ModelUnsupported(ModelError):
    """A model of an architecture, a storage type or a setting that no program here computes."""

    code = "model_unsupported"


class FolderInvalid(ModelError):
    """A folder of a result whose files do not agree with each other or with what the chain has."""

    code = "folder_invalid"


class RowsInvalid(ProtocolError):
    """A file of rows that breaks its format; ``line`` and ``column`` say where, as far as it is one place."""

    code = "rows_invalid"

    def __init__(self, text: str, line: int | None = None, column: int | None = None) -> None:
        place = "" if line is None else f"line {line}: " if column is None else f"line {line}, column {column}: "
        super().__init__(place + text)
        self.text, self.line, self.column = text, line, column
        self.is_validation = False
        """Whether it is about the file of validation rows."""


class TokenizersMissing(EngineMissing):
    """The extra ``models`` is not installed."""

    code = "tokenizers_missing"
