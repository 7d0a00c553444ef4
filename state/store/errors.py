"""What can be wrong with a database, and what it does not hold; no error of the library below leaves the store."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import plyvel

from state.primitives.errors import StoreError

__all__ = [
    "HeightUnknown",
    "Pruned",
    "StoreClosed",
    "StoreDamaged",
    "StoreIncompatible",
    "StoreLocked",
    "StoreOfAnotherChain",
    "StoreUnavailable",
    "reported",
]


class StoreDamaged(StoreError):
    """Something that must be in the database is absent or has other bytes than were written."""

    code = "store_damaged"


class StoreLocked(StoreError):
    """Another process has the database open."""

    code = "store_locked"


class StoreOfAnotherChain(StoreError):
    """The database belongs to another genesis."""

    code = "store_other_chain"


class StoreIncompatible(StoreError):
    """The database has a format that this version does not read."""

    code = "store_incompatible"


class StoreUnavailable(StoreError):
    """The disk refused: full, read-only, no permission, or failing."""

    code = "store_unavailable"


class StoreClosed(StoreError):
    """The store was closed while somebody still read from it."""

    code = "store_closed"


class Pruned(StoreError):
    """This node once held what was asked for and has dropped it since."""

    code = "pruned"

    def __init__(self, height: int, *, oldest: int) -> None:
        super().__init__(f"height {height} is pruned; the oldest kept is {oldest}")
        self.height = height
        self.oldest = oldest


class HeightUnknown(StoreError):
    """A height above the newest finalised one."""

    code = "height_unknown"

    def __init__(self, height: int, *, newest: int) -> None:
        super().__init__(f"height {height} is not finalised yet; the newest is {newest}")
        self.height = height
        self.newest = newest


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
