"""An ordered database in memory with the part of plyvel's interface that the store uses, for simulated disks.

As with LevelDB's log, batches become durable in their order, each wholly or not at all, and at the latest with the
next synced one: ``lose_power`` takes back some of the newest that were not.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterator, Mapping
from random import Random
from types import TracebackType
from typing import Any, Final

import plyvel

__all__ = ["MemoryDatabase"]

_Undo = list[tuple[bytes, bytes | None]]
_UNSYNCED_MAX: Final = 100_000


class MemoryDatabase:
    """What ``plyvel.DB`` is to the store. ``closed`` databases can be used again after ``reopen``."""

    def __init__(self) -> None:
        self._values: dict[bytes, bytes] = {}
        self._keys: list[bytes] = []
        self._unsynced: list[_Undo] = []
        self.closed = False
        self.ignores_syncs = False
        """Whether synced writes are kept in memory alone, as a disk does that lies."""
        self.before_write: Callable[[bool], None] = lambda is_sync: None
        """Called before each batch is written, with whether it is synced; what it raises, the disk has refused."""

    # What the store calls.

    def get(self, key: bytes, default: bytes | None = None, **_options: bool) -> bytes | None:
        """Return the value of a key."""
        self._check_open()
        return self._values.get(key, default)

    def put(self, key: bytes, value: bytes, *, sync: bool = False) -> None:
        """Set one key."""
        self._apply({key: value}, is_sync=sync)

    def delete(self, key: bytes, *, sync: bool = False) -> None:
        """Remove one key."""
        self._apply({key: None}, is_sync=sync)

    def write_batch(self, *, transaction: bool = False, sync: bool = False) -> _Batch:
        """Begin a batch."""
        self._check_open()
        return _Batch(self._apply, is_sync=sync, is_transaction=transaction)

    def iterator(self, **options: Any) -> _Iterator:
        """Return entries in the order of their keys, as of now."""
        self._check_open()
        return _Iterator(self._values, self._keys, **options)

    def snapshot(self) -> _Snapshot:
        """Return a view that later writes do not change."""
        self._check_open()
        return _Snapshot(dict(self._values), list(self._keys))

    def approximate_size(self, start: bytes, stop: bytes) -> int:
        """Return the bytes of keys and values from ``start`` up to ``stop``."""
        keys = self._keys[bisect_left(self._keys, start) : bisect_left(self._keys, stop)]
        return sum(len(key) + len(self._values[key]) for key in keys)

    def compact_range(self, **_options: Any) -> None:
        """Nothing to do."""

    def close(self) -> None:
        """Refuse everything until it is opened again."""
        self.closed = True

    # What the simulation calls.

    def reopen(self) -> None:
        """Open what was closed: the next process on the same disk."""
        self.closed = False

    def lose_power(self, rng: Random) -> None:
        """Take back some of the newest batches that no synced one came after."""
        for _ in range(rng.randrange(len(self._unsynced) + 1)):
            for key, value in reversed(self._unsynced.pop()):
                self._set(key, value)
        self._unsynced.clear()

    # The parts.

    def _check_open(self) -> None:
        if self.closed:
            raise RuntimeError("Database is closed")

    def _apply(self, writes: Mapping[bytes, bytes | None], *, is_sync: bool) -> None:
        self._check_open()
        try:
            self.before_write(is_sync)
        except OSError as error:
            raise plyvel.IOError(str(error)) from None
        undo: _Undo = [(key, self._values.get(key)) for key in writes]
        for key, value in writes.items():
            self._set(key, value)
        self._unsynced.append(undo)
        if (is_sync and not self.ignores_syncs) or len(self._unsynced) > _UNSYNCED_MAX:
            self._unsynced.clear()

    def _set(self, key: bytes, value: bytes | None) -> None:
        if value is None:
            if self._values.pop(key, None) is not None:
                del self._keys[bisect_left(self._keys, key)]
        else:
            if key not in self._values:
                insort(self._keys, key)
            self._values[key] = value


class _Batch:
    """Writes that happen together; as a context they are written at its end, also when it ends with an error."""

    def __init__(self, apply: Callable[..., None], *, is_sync: bool, is_transaction: bool) -> None:
        self._apply = apply
        self._is_sync = is_sync
        self._is_transaction = is_transaction
        self._writes: dict[bytes, bytes | None] = {}

    def put(self, key: bytes, value: bytes) -> None:
        """Set a key."""
        self._writes[key] = value

    def delete(self, key: bytes) -> None:
        """Remove a key."""
        self._writes[key] = None

    def clear(self) -> None:
        """Forget the writes so far."""
        self._writes.clear()

    def write(self) -> None:
        """Write all of it, or nothing."""
        self._apply(self._writes, is_sync=self._is_sync)
        self._writes = {}

    def __enter__(self) -> _Batch:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        if kind is None or not self._is_transaction:
            self.write()


class _Iterator:
    """Entries of a range in order; a context, as plyvel's is."""

    def __init__(
        self,
        values: Mapping[bytes, bytes],
        keys: list[bytes],
        *,
        start: bytes | None = None,
        stop: bytes | None = None,
        prefix: bytes | None = None,
        reverse: bool = False,
        include_start: bool = True,
        include_stop: bool = False,
        include_key: bool = True,
        include_value: bool = True,
        **_options: bool,
    ) -> None:
        if prefix is not None:
            start, stop = prefix, _after(prefix)
        first = 0 if start is None else bisect_left(keys, start)
        last = len(keys) if stop is None else bisect_left(keys, stop)
        if start is not None and not include_start and first < len(keys) and keys[first] == start:
            first += 1
        if stop is not None and include_stop and last < len(keys) and keys[last] == stop:
            last += 1
        chosen = keys[first:last]
        if reverse:
            chosen.reverse()
        found: list[Any]
        if include_key and include_value:
            found = [(key, values[key]) for key in chosen]
        elif include_key:
            found = chosen
        else:
            found = [values[key] for key in chosen]
        self._found = iter(found)

    def __iter__(self) -> Iterator[Any]:
        return self._found

    def __next__(self) -> Any:
        return next(self._found)

    def close(self) -> None:
        """Nothing to release."""

    def __enter__(self) -> _Iterator:
        return self

    def __exit__(self, *_: object) -> None:
        return


class _Snapshot:
    """The database at one moment."""

    def __init__(self, values: dict[bytes, bytes], keys: list[bytes]) -> None:
        self._values = values
        self._keys = keys

    def get(self, key: bytes, default: bytes | None = None, **_options: bool) -> bytes | None:
        """Return the value of a key then."""
        return self._values.get(key, default)

    def iterator(self, **options: Any) -> _Iterator:
        """Return entries as of then."""
        return _Iterator(self._values, self._keys, **options)

    def close(self) -> None:
        """Nothing to release."""

    def __enter__(self) -> _Snapshot:
        return self

    def __exit__(self, *_: object) -> None:
        return


def _after(prefix: bytes) -> bytes | None:
    """The first key above all that begin with ``prefix``; None when there is none."""
    kept = prefix.rstrip(b"\xff")
    return kept[:-1] + bytes((kept[-1] + 1,)) if kept else None
