"""Trie nodes on disk, written some blocks late: most nodes change again before they must be written.

Writing every changed node with its block is most of what a busy chain writes, and twice as much again to compact.
So changed nodes are kept in memory, and each block writes those of the next few of 256 parts: a part is what lies
below one pair of nibbles. What each part lacks on disk can be made again after a crash, because a trie depends on
its content alone: the undo records name the keys that changed since the part was written, and the flat state has
their values. While the trie is so small that its top two levels are not all inner nodes, nothing is late.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple

import plyvel

from state.store.cache import Cache
from state.store.errors import StoreDamaged
from state.store.library_errors import typed
from state.store.records import NODE
from state.trie import BUCKET_ENTRIES_MAX, update_below
from state.trie.trie import child_count, child_hash, is_inner, node_hash

__all__ = ["Flush", "SnapshotNodes", "StoredNodes", "decode_flushed", "encode_flushed", "put_nodes"]

PARTS: Final = tuple(b"%02x" % number for number in range(256))
_PART_NIBBLES: Final = 2
_HEIGHT_BYTES: Final = 6
_ABSENT: Final = object()
_LIBRARY_ERRORS: Final = (plyvel.Error, RuntimeError)


class Flush(NamedTuple):
    """A batch of trie nodes: nodes by path (None: delete), and the parts that it brings up to date."""

    writes: dict[bytes, bytes | None]
    parts: frozenset[bytes]
    spread: bool


def encode_flushed(flushed: Mapping[bytes, int]) -> bytes:
    """Return the record of the height as of which each part is on disk."""
    return b"".join([flushed[part].to_bytes(_HEIGHT_BYTES, "big") for part in PARTS])


def decode_flushed(data: bytes | None) -> dict[bytes, int]:
    """Return the heights of a record. Raises StoreDamaged."""
    if data is None or len(data) != len(PARTS) * _HEIGHT_BYTES:
        raise StoreDamaged("the record of the trie's parts is absent or not one")
    return {
        part: int.from_bytes(data[at : at + _HEIGHT_BYTES], "big")
        for part, at in zip(PARTS, range(0, len(data), _HEIGHT_BYTES), strict=True)
    }


def _is_spread(root: bytes | None) -> bool:
    """Tell whether the nodes of the top two levels are all inner, so that each part is a subtree of its own."""
    return (
        root is not None and is_inner(root) and all(child_count(root, n) > BUCKET_ENTRIES_MAX for n in range(16))
    )


class StoredNodes:
    """The finalised trie's nodes: a NodeReader. Written by the store's one writer, read from any thread."""

    __slots__ = ("_db", "_late", "_late_max", "_next", "_spread", "_step", "cache", "flushed")

    def __init__(
        self, db: Any, flushed: dict[bytes, int], *, cache_entries: int, period: int, late_max: int
    ) -> None:
        """``period``: each part is written at least once in so many blocks; 0 or 1: with every block.

        ``late_max``: with more late nodes than that, parts are written faster.
        """
        self._db = db
        self.cache = Cache(cache_entries)
        self.flushed = flushed
        self._step = -(-len(PARTS) // max(1, period))
        self._late_max = late_max
        self._late: dict[bytes, dict[bytes, bytes | None]] = {part: {} for part in PARTS}
        self._next = min(range(len(PARTS)), key=lambda number: flushed[PARTS[number]])
        self._spread = _is_spread(self.get(b""))

    def get(self, path: bytes) -> bytes | None:
        """Return the node at ``path``, or None."""
        cache = self.cache
        try:
            return cache.young[path]
        except KeyError:
            pass
        version = cache.version
        node: Any = cache.old.get(path, _ABSENT)
        if node is _ABSENT:
            node = self._late[path[:_PART_NIBBLES]].get(path, _ABSENT) if len(path) >= _PART_NIBBLES else _ABSENT
        if node is _ABSENT:
            try:
                node = self._db.get(NODE + path, verify_checksums=True)
            except _LIBRARY_ERRORS as error:
                raise typed(error) from None
        cache.offer(path, node, version)
        found: bytes | None = node
        return found

    def plan(self, nodes: Mapping[bytes, bytes | None]) -> Flush:
        """Return what the batch of a block that changes ``nodes`` writes; changes nothing here."""
        spread = _is_spread(nodes[b""] if b"" in nodes else self.get(b""))
        if not (spread and self._spread) or self._step >= len(PARTS):
            return self.plan_all(nodes, spread=spread)
        late = sum(map(len, self._late.values()))
        step = len(PARTS) // 4 if late > self._late_max else self._step
        parts = frozenset(PARTS[(self._next + number) % len(PARTS)] for number in range(step))
        writes: dict[bytes, bytes | None] = {}
        for part in parts:
            writes.update(self._late[part])
        writes.update(
            (path, node)
            for path, node in nodes.items()
            if len(path) < _PART_NIBBLES or path[:_PART_NIBBLES] in parts
        )
        return Flush(writes, parts, spread)

    def plan_all(self, nodes: Mapping[bytes, bytes | None], *, spread: bool | None = None) -> Flush:
        """Return a batch that writes all late nodes."""
        writes: dict[bytes, bytes | None] = {}
        for late in self._late.values():
            writes.update(late)
        writes.update(nodes)
        return Flush(writes, frozenset(PARTS), self._spread if spread is None else spread)

    def written(self, nodes: Mapping[bytes, bytes | None], flush: Flush, height: int) -> None:
        """Take in that the batch of ``flush``, with a block that changes ``nodes``, is on disk."""
        self.cache.replace(nodes)
        parts, late = flush.parts, self._late
        if len(parts) < len(PARTS):
            for path, node in nodes.items():
                part = path[:_PART_NIBBLES]
                if len(path) >= _PART_NIBBLES and part not in parts:
                    late[part][path] = node
        for part in parts:
            late[part] = {}
            self.flushed[part] = height
        self._next = (self._next + len(parts)) % len(PARTS)
        self._spread = flush.spread

    def flushed_after(self, flush: Flush, height: int) -> bytes:
        """Return the record of the parts' heights that belongs in the batch of ``flush``."""
        if len(flush.parts) == len(PARTS):  # while a trie is small, with each block
            return len(PARTS) * height.to_bytes(_HEIGHT_BYTES, "big")
        return encode_flushed({**self.flushed, **dict.fromkeys(flush.parts, height)})

    def late_nodes(self) -> dict[bytes, bytes | None]:
        """Return a copy of what is not on disk yet."""
        return {path: node for late in self._late.values() for path, node in late.items()}

    def catch_up(
        self, height: int, changed_keys: Callable[[int], Iterable[bytes]], place: Callable[[bytes], bytes],
        entry: Callable[[bytes], bytes],
    ) -> int:  # fmt: skip
        """Make what was late when the process ended, and check it; return how many keys that took.

        ``changed_keys`` are those of one height, ``place`` the hash of a key, ``entry`` the item for
        ``update_below`` with its present value. Raises StoreDamaged.
        """
        lowest = min(self.flushed.values())
        if lowest > height:
            raise StoreDamaged("the trie is ahead of the chain")
        newest: dict[bytes, int] = {}
        for above in range(lowest + 1, height + 1):
            newest.update(dict.fromkeys(changed_keys(above), above))
        items: dict[bytes, list[bytes]] = {}
        for key, changed_at in newest.items():
            part = place(key)[:1].hex().encode()
            if changed_at > self.flushed[part]:
                items.setdefault(part, []).append(entry(key))
        for part, changes in items.items():
            self._late[part].update(update_below(self, part, sorted(changes)))
        self.cache = Cache(self.cache.entries_max)
        if self._spread:
            self._check_parts()
        return sum(map(len, items.values()))

    def _check_parts(self) -> None:
        for number in range(16):
            nibble = b"%x" % number
            above = self.get(nibble)
            if above is None or not is_inner(above):
                raise StoreDamaged(f"the trie's node at '{nibble.decode()}' is absent")
            for below in range(16):
                part = nibble + b"%x" % below
                node = self.get(part)
                if (bytes(32) if node is None else node_hash(node)) != child_hash(above, below):
                    raise StoreDamaged(f"the trie's part '{part.decode()}' is not that of the newest height")


def put_nodes(batch: Any, nodes: Mapping[bytes, bytes | None]) -> None:
    """Write nodes by path; None deletes."""
    put, delete = batch.put, batch.delete
    for path, node in nodes.items():
        if node is None:
            delete(NODE + path)
        else:
            put(NODE + path, node)


class SnapshotNodes:
    """The trie's nodes at one moment: a database snapshot and what was late then."""

    __slots__ = ("_late", "_snapshot")

    def __init__(self, snapshot: Any, late: Mapping[bytes, bytes | None]) -> None:
        self._snapshot = snapshot
        self._late = late

    def get(self, path: bytes) -> bytes | None:
        """Return the node at ``path``, or None."""
        if path in self._late:
            return self._late[path]
        try:
            node: bytes | None = self._snapshot.get(NODE + path, verify_checksums=True)
        except _LIBRARY_ERRORS as error:
            raise typed(error) from None
        return node
