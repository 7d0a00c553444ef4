"""Turns errors of the database library (plyvel) into errors of the store."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import plyvel

from state.primitives.errors import StoreError
from state.store.errors import StoreClosed, StoreDamaged, StoreLocked, StoreUnavailable

__all__ = ["reported", "typed"]


def typed(error: Exception) -> StoreError:
    """Return the error of this package for one of the library's."""
    text = str(error.args[0] if error.args else error)
    text = text.removeprefix("b'").removesuffix("'")[:300]
    if isinstance(error, RuntimeError):
        return StoreClosed(text)
    if isinstance(error, plyvel.CorruptionError) or "Corruption" in text or "Invalid argument" in text:
        return StoreDamaged(text)
    if "lock " in text.lower() and "LOCK" in text:
        return StoreLocked(text)
    if "No such file" in text:  # a table that the manifest names
        return StoreDamaged(text)
    return StoreUnavailable(text)


@contextmanager
def reported() -> Iterator[None]:
    """Turn the library's errors inside the block into those of this package."""
    try:
        yield
    except (plyvel.Error, RuntimeError) as error:
        raise typed(error) from None
