"""Bytes of a model's file, of which readers take a piece at a time."""

from __future__ import annotations

from typing import Protocol

__all__ = ["Content"]


class Content(Protocol):
    """Bytes with a length, of which slices are taken: ``bytes``, a view of memory, or a file."""

    def __len__(self) -> int: ...

    def __getitem__(self, part: slice, /) -> bytes | memoryview: ...
