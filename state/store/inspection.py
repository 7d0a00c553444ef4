"""Reads the database of a stopped node, also one that the node could not open."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from state.primitives.blocks import decode_header
from state.primitives.errors import DecodeError, StoreError
from state.store.database import open_database
from state.store.errors import StoreDamaged, StoreLocked
from state.store.library_errors import reported
from state.store.options import StoreOptions
from state.store.records import (
    BOUNDS,
    EPOCH,
    FORMAT,
    HEIGHT,
    RESTORING,
    TABLES,
    TIP,
    UNDO,
    Bounds,
    Tip,
    decode_bounds,
    decode_epoch,
    decode_tip,
    height_key,
)

__all__ = ["Inspection", "inspect_database"]

_T = TypeVar("_T")


class Inspection(NamedTuple):
    """What could be read; None for what could not. ``damage`` has one line for each finding."""

    format: int | None
    genesis_hash: bytes | None
    tip: Tip | None
    bounds: Bounds | None
    target: Tip | None
    """The block whose state an unfinished sync was fetching."""
    boundary: Tip | None
    """The newest block that ended an epoch and whose record is here."""
    epochs: tuple[int, int] | None
    """The first and the last epoch with a record."""
    undo: tuple[int, int] | None
    """The lowest and the highest height that a rollback can take back."""
    sizes: dict[str, int]
    damage: tuple[str, ...]


def inspect_database(path: Path, options: StoreOptions | None = None) -> Inspection:
    """Inspect the database in ``path``.

    Raises StoreLocked while a node uses it, StoreUnavailable; damage is part of the result.
    """
    damage: list[str] = []
    try:
        db = open_database(path, options or StoreOptions())
    except StoreLocked:
        raise
    except StoreDamaged as error:
        return Inspection(None, None, None, None, None, None, None, None, {}, (str(error),))

    def looked(what: str, look: Callable[[], _T]) -> _T | None:
        try:
            with reported():
                return look()
        except StoreError as error:
            damage.append(f"{what}: {error}")
            return None

    def record(key: bytes) -> bytes | None:
        found: bytes | None = db.get(key, verify_checksums=True)
        return found

    try:
        form = looked("format", lambda: record(FORMAT)) or b""
        raw_target = looked("unfinished sync", lambda: record(RESTORING))
        tip = looked("tip", lambda: _tip(record(TIP)))
        return Inspection(
            format=form[0] if form else None,
            genesis_hash=form[1:] or None,
            tip=tip,
            bounds=looked("bounds", lambda: decode_bounds(record(BOUNDS))) if tip is not None else None,
            target=looked("unfinished sync", lambda: _tip(raw_target)),
            boundary=looked("epoch records", lambda: _boundary(db)),
            epochs=looked("epoch records", lambda: _ends(db, EPOCH)),
            undo=looked("undo records", lambda: _ends(db, UNDO)),
            sizes=looked("sizes", lambda: _sizes(db)) or {},
            damage=tuple(damage),
        )
    finally:
        db.close()


def _tip(data: bytes | None) -> Tip | None:
    return decode_tip(data) if data else None


def _boundary(db: Any) -> Tip | None:
    ends = _ends(db, EPOCH)
    record = None if ends is None else db.get(height_key(EPOCH, ends[1]), verify_checksums=True)
    if record is None:
        return None
    try:
        height = decode_header(decode_epoch(record)[0]).height
    except DecodeError as error:
        raise StoreDamaged(f"the record of an epoch has no header: {error}") from None
    return _tip(db.get(height_key(HEIGHT, height), verify_checksums=True))


def _ends(db: Any, prefix: bytes) -> tuple[int, int] | None:
    found = []
    for reverse in (False, True):
        with db.iterator(prefix=prefix, include_value=False, reverse=reverse) as keys:
            key = next(keys, None)
        if key is None:
            return None
        found.append(int.from_bytes(key[1:], "big"))
    return found[0], found[1]


def _sizes(db: Any) -> dict[str, int]:
    return {name: db.approximate_size(prefix, bytes([prefix[0] + 1])) for prefix, name in TABLES.items()}
