"""Errors of the store: damage, another chain or format, a refusing disk, and heights that are not kept."""

from __future__ import annotations

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
]


class StoreDamaged(StoreError):
    """A record of the database is missing or damaged."""

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
    """The disk is full, read-only, not permitted or failing."""

    code = "store_unavailable"


class StoreClosed(StoreError):
    """The store was closed while somebody still read from it."""

    code = "store_closed"


class Pruned(StoreError):
    """This node has pruned the requested data."""

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
