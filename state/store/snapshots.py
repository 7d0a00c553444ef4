"""A whole state cut into pieces that prove themselves: made beside a running node, in bounded memory.

See chain.md 10.1.

The flat state is in the order of its keys, the pieces are in that of the key hashes. So all of it is first dealt
out to files by the first byte of the key hash, each of which is then sorted in memory. How a state is cut depends
on the state alone: every node cuts the same pieces, so that a receiver may take them from several.
"""

from __future__ import annotations

import shutil
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple

from state.primitives.hashing import HASH_BYTES
from state.store.errors import StoreDamaged, StoreUnavailable
from state.store.readers import StateView
from state.trie import RANGE_LIMIT_BYTES, RangeOfMap, encode_range, prove_range
from state.trie.trie import key_hash

__all__ = ["PIECE_BYTES", "START_BYTES", "Piece", "cut_state", "piece_key"]

PIECE_BYTES: Final = 1000 * 1024
"""Keys and values of a piece; with its proof it stays below 1 MiB, unless a single value is larger."""
START_BYTES: Final = 8
"""A piece starts at a place of which all but the first bytes are zero, so that a list of them is short."""
_ITEM_OVERHEAD_BYTES: Final = 6
"""Lengths of a key and a value as they are encoded, at most for all but large values."""
_PARTS_MAX: Final = 256
_PART_ENTRIES: Final = 50_000
_PAUSE_ENTRIES: Final = 2_000
_LENGTHS: Final = struct.Struct(">II")


class Piece(NamedTuple):
    """The entries at ``start <= place < stop`` with their proof; ``stop`` is None in the last piece."""

    start: bytes
    stop: bytes | None
    data: bytes


def piece_key(start: bytes) -> bytes:
    """Return the key hash at which a piece starts, from its short form."""
    return start.ljust(HASH_BYTES, b"\0")


def cut_state(
    view: StateView, scratch: Path, *, piece_bytes: int = PIECE_BYTES, pause: Callable[[], None] = lambda: None
) -> Iterator[Piece]:
    """Yield the pieces of a state in the order of their places.

    ``scratch`` is a directory for this alone; it is made and removed. ``pause`` is called every few thousand
    entries, so that a busy node can have its turn. Raises StoreDamaged, StoreUnavailable.
    """
    try:
        shutil.rmtree(scratch, ignore_errors=True)
        scratch.mkdir(parents=True)
        try:
            yield from _pieces(view, _deal(view, scratch, pause), piece_bytes, pause)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
    except OSError as error:
        raise StoreUnavailable(f"{scratch}: {error.strerror}") from None


def _deal(view: StateView, scratch: Path, pause: Callable[[], None]) -> list[Path]:
    """Write the entries to files by the beginning of their places; return the files in order."""
    parts = 1
    while parts < _PARTS_MAX and view.trie.count > parts * _PART_ENTRIES:
        parts *= 2
    width = _PARTS_MAX // parts  # of a file, in first bytes
    paths = [scratch / f"{number:02x}" for number in range(parts)]
    files: list[BinaryIO] = []
    try:
        files += [path.open("wb") for path in paths]
        for number, (key, value) in enumerate(view.entries()):
            file = files[key_hash(key)[0] // width]
            file.write(_LENGTHS.pack(len(key), len(value)) + key + value)
            if number % _PAUSE_ENTRIES == 0:
                pause()
    finally:
        for file in files:
            file.close()
    return paths


def _pieces(view: StateView, paths: list[Path], piece_bytes: int, pause: Callable[[], None]) -> Iterator[Piece]:
    start, size, previous = bytes(HASH_BYTES), 0, b""
    held: list[tuple[bytes, bytes]] = []
    for path in paths:
        for number, (place, key, value) in enumerate(sorted(_read(path))):
            # Two keys whose places begin alike stay together: a piece cannot start between them.
            item_bytes = len(key) + len(value) + _ITEM_OVERHEAD_BYTES
            if size + item_bytes > piece_bytes and held and place[:START_BYTES] > previous:
                stop = piece_key(place[:START_BYTES])
                yield _piece(view, start, stop, held)
                start, size, held = stop, 0, []
            held.append((key, value))
            size += item_bytes
            previous = place[:START_BYTES]
            if number % _PAUSE_ENTRIES == 0:
                pause()
        path.unlink()
    yield _piece(view, start, None, held)


def _piece(view: StateView, start: bytes, stop: bytes | None, held: list[tuple[bytes, bytes]]) -> Piece:
    data = encode_range(RangeOfMap(tuple(held), prove_range(view.trie, start, stop)))
    if len(data) > RANGE_LIMIT_BYTES:
        raise StoreDamaged(f"a piece of {len(data)} bytes: no value of a state is so large")
    return Piece(start, stop, data)


def _read(path: Path) -> Iterator[tuple[bytes, bytes, bytes]]:
    data = path.read_bytes()
    at = 0
    while at < len(data):
        key_bytes, value_bytes = _LENGTHS.unpack_from(data, at)
        at += _LENGTHS.size
        key, value = data[at : at + key_bytes], data[at + key_bytes : at + key_bytes + value_bytes]
        at += key_bytes + value_bytes
        yield key_hash(key), key, value
