"""Readers of the state at one height: a database snapshot with later changes, unaffected by later commits."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import plyvel

from state.primitives.hashing import HASH_BYTES
from state.store.errors import StoreDamaged
from state.store.library_errors import reported, typed
from state.store.records import NODE, STATE, Undo
from state.trie import RangeInvalid, Trie, entry_of, prove_range, verify_range

__all__ = ["StateView", "StoredReader", "scan_state"]

_LIBRARY_ERRORS: Final = (plyvel.Error, RuntimeError)
_PROGRESS_ENTRIES: Final = 10_000


class StateView:
    """The whole state after one height and its trie: see ``Store.view``."""

    __slots__ = ("_back", "_late", "_snapshot", "height", "trie")

    def __init__(
        self,
        height: int,
        trie: Trie,
        snapshot: Any,
        back: Mapping[bytes, bytes | None],
        late: Mapping[bytes, bytes | None],
    ) -> None:
        self.height = height
        self.trie = trie
        self._snapshot = snapshot
        self._back = back
        self._late = late

    def entries(self) -> Iterator[tuple[bytes, bytes]]:
        """Yield every key with its value, in no order to rely on."""
        back = self._back
        with reported():
            for key, value in _entries(self._snapshot, STATE):
                if key not in back:
                    yield key, value
        for key, earlier in back.items():
            if earlier is not None:
                yield key, earlier

    def verify_part(self, part: bytes, progress: Callable[[int], object]) -> None:
        """Check the newest state's keys whose place begins with the nibbles ``part``. Raises StoreDamaged."""
        assert not self._back, "an earlier height's trie was made from the newest one's"
        start = bytes.fromhex(part.decode().ljust(2 * HASH_BYTES, "0"))
        after = int.from_bytes(start, "big") + (1 << 4 * (2 * HASH_BYTES - len(part)))
        stop = after.to_bytes(HASH_BYTES + 1, "big")[1:] if after < 1 << 8 * HASH_BYTES else None
        entries: list[bytes] = []
        for number, (key, value) in enumerate(self.entries()):
            entry = entry_of(key, value)
            if entry >= start and (stop is None or entry < stop):
                entries.append(entry)
            if number % _PROGRESS_ENTRIES == 0:
                progress(number)
        entries.sort()
        try:
            left = verify_range(self.trie.root, start, stop, entries, prove_range(self.trie, start, stop))
        except RangeInvalid as error:
            raise StoreDamaged(
                f"height {self.height}: the state is not that of root {self.trie.root.hex()}: {error}"
            ) from None
        left = {path: node for path, node in left.items() if path.startswith(part)}
        for path, node in self._stored_nodes(part):
            if left.pop(path, None) != node:
                raise StoreDamaged(f"the trie's node at '{path.decode(errors='replace')}' is not the state's")
        if left:
            raise StoreDamaged(f"{len(left)} nodes of the trie are absent, '{min(left).decode()}' among them")

    def _stored_nodes(self, part: bytes) -> Iterator[tuple[bytes, bytes]]:
        with reported():
            for path, node in _entries(self._snapshot, NODE, part):
                if path not in self._late:
                    yield path, node
        for path, late in self._late.items():
            if late is not None and path.startswith(part):
                yield path, late


class StoredReader:
    """The state after one height: a state.view.Reader that keeps its view until it is dropped."""

    __slots__ = ("_snapshot", "_undos", "height")

    def __init__(self, snapshot: Any, height: int, undos: list[Undo]) -> None:
        self._snapshot = snapshot
        self._undos = undos
        self.height = height

    def get(self, key: bytes) -> bytes | None:
        """Return the value of ``key`` at this height, or None."""
        for undo in self._undos:  # from the next height upwards: the first that changed the key knows
            found = undo.find(key)
            if found:
                return found[0]
        try:
            value: bytes | None = self._snapshot.get(STATE + key, verify_checksums=True)
        except _LIBRARY_ERRORS as error:
            raise typed(error) from None
        return value

    def scan(self, start: bytes, stop: bytes, limit: int) -> list[tuple[bytes, bytes]]:
        """Return up to ``limit`` entries of this height with ``start <= key < stop``, in order."""
        earlier: dict[bytes, bytes | None] = {}
        for undo in reversed(self._undos):
            earlier.update(undo.between(start, stop))
        merged = dict(scan_state(self._snapshot, start, stop, limit + len(earlier)))
        for key, value in earlier.items():
            if value is None:
                merged.pop(key, None)
            else:
                merged[key] = value
        return sorted(merged.items())[:limit]


def scan_state(source: Any, start: bytes, stop: bytes, limit: int) -> list[tuple[bytes, bytes]]:
    """Return up to ``limit`` entries with ``start <= key < stop`` of the state in a database or a snapshot."""
    if limit <= 0 or start >= stop:
        return []
    found = []
    with (
        reported(),
        source.iterator(
            start=STATE + start, stop=STATE + stop, verify_checksums=True, fill_cache=False
        ) as entries,
    ):
        for key, value in entries:
            found.append((key[1:], value))
            if len(found) == limit:
                break
    return found


def _entries(source: Any, prefix: bytes, part: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
    with source.iterator(prefix=prefix + part, verify_checksums=True, fill_cache=False) as entries:
        for key, value in entries:
            yield key[1:], value
