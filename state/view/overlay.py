"""Reads through layers: an overlay of changes over a reader, which is another overlay or the finalised state."""

from __future__ import annotations

from bisect import bisect_left, insort
from itertools import islice
from typing import Final, Protocol

__all__ = ["EMPTY", "KEY_BYTES_MAX", "VALUE_BYTES_MAX", "Empty", "Overlay", "Reader"]

KEY_BYTES_MAX: Final = 128
VALUE_BYTES_MAX: Final = 64 * 1024
INSERTED_MAX: Final = 64
"""Keys that are inserted one by one into those in order; more of them are sorted with the others."""


class Reader(Protocol):
    """A state that can be read: finalised, at an earlier height, or with changes laid over it."""

    def get(self, key: bytes) -> bytes | None:
        """Return the value of ``key``, or None when it is absent."""
        ...

    def scan(self, start: bytes, stop: bytes, limit: int) -> list[tuple[bytes, bytes]]:
        """Return up to ``limit`` entries with ``start <= key < stop``, in the order of their keys."""
        ...


class Empty:
    """The state before the genesis."""

    def get(self, key: bytes) -> bytes | None:
        """Return None."""
        return None

    def scan(self, start: bytes, stop: bytes, limit: int) -> list[tuple[bytes, bytes]]:
        """Return no entries."""
        return []


EMPTY: Final = Empty()


class _Keys:
    """Changed keys of a table: those ``sorted``, and ``fresh`` ones that came after the last scan."""

    __slots__ = ("fresh", "sorted")

    def __init__(self) -> None:
        self.sorted: list[bytes] = []
        self.fresh: list[bytes] = []

    def between(self, start: bytes, stop: bytes) -> list[bytes]:
        """Return the keys from ``start`` on, below ``stop``, in order."""
        keys, fresh = self.sorted, self.fresh
        if len(fresh) > INSERTED_MAX:
            keys += fresh
            keys.sort()
        else:
            for key in fresh:
                insort(keys, key)
        fresh.clear()
        return keys[bisect_left(keys, start) : bisect_left(keys, stop)]

    def drop(self, key: bytes) -> None:
        """Remove a key, if it is there. Of fresh ones that is the last."""
        if self.fresh and self.fresh[-1] == key:
            self.fresh.pop()
            return
        at = bisect_left(self.sorted, key)
        if at < len(self.sorted) and self.sorted[at] == key:
            del self.sorted[at]


class Overlay:
    """Changes over ``base``; nothing below is touched. ``changes`` holds None for a deleted key.

    ``mark`` and ``revert`` undo everything since the mark, so a transaction applies wholly or not at all.
    """

    __slots__ = ("_indexed", "_journal", "_tables", "base", "changes")

    def __init__(self, base: Reader) -> None:
        self.base = base
        self.changes: dict[bytes, bytes | None] = {}
        self._journal: list[tuple[bytes, bool, bytes | None]] | None = None
        # The changed keys by table, as far as scans needed them: the first ``_indexed`` of ``changes``, which
        # keeps the order of insertion. A table that was scanned has them in order. A block changes thousands of
        # accounts, and a scan is never of those.
        self._tables: dict[int, _Keys] = {}
        self._indexed = 0

    def get(self, key: bytes) -> bytes | None:
        """Return the value of ``key`` through the changes, or None."""
        try:
            return self.changes[key]
        except KeyError:
            return self.base.get(key)

    def put(self, key: bytes, value: bytes) -> None:
        """Set ``key`` to ``value``."""
        if self._journal is not None:
            self._journal.append((key, key in self.changes, self.changes.get(key)))
        self.changes[key] = value

    def delete(self, key: bytes) -> None:
        """Remove ``key``; removing an absent key is allowed."""
        if self._journal is not None:
            self._journal.append((key, key in self.changes, self.changes.get(key)))
        self.changes[key] = None

    def scan(self, start: bytes, stop: bytes, limit: int) -> list[tuple[bytes, bytes]]:
        """Return up to ``limit`` entries with ``start <= key < stop`` in order, changes merged in.

        It costs what is found, and what was deleted before the last of that, however much else has changed.
        """
        mine = self._changed(start, stop)
        if not mine:
            return self.base.scan(start, stop, limit)
        changes, found, at, page = self.changes, list[tuple[bytes, bytes]](), 0, max(1, limit)
        while True:
            below = self.base.scan(start, stop, page)
            for key, value in below:
                while at < len(mine) and mine[at] <= key:
                    changed = changes[mine[at]]
                    if changed is not None:
                        found.append((mine[at], changed))
                    at += 1
                if not at or mine[at - 1] != key:
                    found.append((key, value))
                if len(found) >= limit:
                    return found[:limit]
            if len(below) < page:
                break
            start, page = below[-1][0] + b"\0", 2 * page
        while at < len(mine) and len(found) < limit:
            changed = changes[mine[at]]
            if changed is not None:
                found.append((mine[at], changed))
            at += 1
        return found[:limit]

    def _changed(self, start: bytes, stop: bytes) -> list[bytes]:
        """Return the changed keys from ``start`` on, below ``stop``, in order."""
        tables, changes = self._tables, self.changes
        if self._indexed < len(changes):
            # From the end: to pass over those before would cost a step for each change of the block.
            for key in reversed([*islice(reversed(changes), len(changes) - self._indexed)]):
                keys = tables.get(key[0])
                if keys is None:
                    keys = tables[key[0]] = _Keys()
                keys.fresh.append(key)
            self._indexed = len(changes)
        first = start[0] if start else 0
        last = stop[0] if stop else -1
        if first == last:
            return tables[first].between(start, stop) if first in tables else []
        found: list[bytes] = []
        for number in range(first, last + 1):
            if number in tables:
                found += tables[number].between(start, stop)
        return found

    def mark(self) -> None:
        """Start to record how to undo; marks do not nest."""
        if self._journal is not None:
            raise AssertionError("a mark is already set")
        self._journal = []

    def keep(self) -> None:
        """Forget the mark; the changes stay."""
        self._journal = None

    def revert(self) -> None:
        """Undo every change since the mark and forget it."""
        if self._journal is None:
            raise AssertionError("no mark is set")
        for key, was_changed, value in reversed(self._journal):
            if was_changed:
                self.changes[key] = value
            else:
                del self.changes[key]
                keys = self._tables.get(key[0])
                if keys is not None:
                    keys.drop(key)
        self._indexed = min(self._indexed, len(self.changes))
        self._journal = None
