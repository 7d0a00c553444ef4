"""Restores a database from pieces of a state; each piece is checked against the root and written durably.

The database is built beside the node's own path. It has no tip until it is complete, and is then moved by one
rename. After an interruption the next process continues.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from state.primitives.genesis import Genesis, genesis_hash
from state.primitives.hashing import HASH_BYTES, ZERO_HASH
from state.store.database import check_format, open_database
from state.store.errors import StoreDamaged, StoreUnavailable
from state.store.first_height import put_first
from state.store.library_errors import reported
from state.store.options import StoreOptions
from state.store.records import (
    BLOCK_HASH,
    EPOCH,
    NODE,
    RECORD_LIMIT_BYTES,
    RESTORED,
    RESTORING,
    STATE,
    TIP,
    Tip,
    decode_tip,
    encode_tip,
    height_key,
)
from state.trie import decode_range, entry_of, verify_range
from state.trie.trie import node_hash

__all__ = ["Restore", "install"]

_WIPE_ENTRIES: Final = 20_000
_END: Final = b"\xff" * (HASH_BYTES + 1)
"""Above every place: how the end of the last piece is kept."""


class Restore:
    """A restore in progress. Raises only StoreError, and RangeInvalid for an invalid piece.

    ``target`` is the height whose state is being taken in, as the tip it will be; None before ``begin``.
    """

    def __init__(self, db: Any, target: Tip | None, is_whole: bool) -> None:
        """Use ``Restore.open``."""
        self._db = db
        self.target = target
        self.is_whole = is_whole
        """Whether the restore is complete except for ``install``."""
        self._done: dict[bytes, bytes] = {}
        self._spans: list[tuple[bytes, bytes]] | None = None

    @classmethod
    def open(cls, path: Path, genesis: Genesis, options: StoreOptions | None = None) -> Restore:
        """Begin in the directory ``path``, or go on with what an earlier process has left there.

        Raises StoreLocked, StoreOfAnotherChain, StoreIncompatible, StoreDamaged, StoreUnavailable.
        """
        return cls.over(open_database(path, options or StoreOptions()), genesis)

    @classmethod
    def over(cls, db: Any, genesis: Genesis) -> Restore:
        """Do what ``open`` does with a database that is open already."""
        try:
            with reported():
                check_format(db, genesis_hash(genesis))
                tip, target = db.get(TIP, verify_checksums=True), db.get(RESTORING, verify_checksums=True)
                if target is None and tip is None:
                    db.put(RESTORING, b"", sync=True)
                target = tip or target
                restore = cls(db, decode_tip(target) if target else None, tip is not None)
                restore._load_done()
        except BaseException:
            db.close()
            raise
        return restore

    def _load_done(self) -> None:
        with self._db.iterator(prefix=RESTORED, verify_checksums=True) as entries:
            for key, stop in entries:
                if len(key) != 1 + HASH_BYTES or len(stop) not in (HASH_BYTES, len(_END)):
                    raise StoreDamaged("the record of a restored piece is not one")
                self._done[key[1:]] = stop

    def close(self) -> None:
        """Close the files."""
        self._db.close()

    # Records of epochs, which lead to the state.

    def keep_record(self, epoch: int, record: bytes) -> None:
        """Keep the record of an epoch, checked by the caller; of what is not durable, only the newest are lost."""
        with reported():
            self._db.put(height_key(EPOCH, epoch), record)

    def records(self) -> Iterator[tuple[int, bytes]]:
        """Yield the epochs whose records are here, in order."""
        with reported(), self._db.iterator(prefix=EPOCH, verify_checksums=True) as entries:
            for key, record in entries:
                if len(record) > RECORD_LIMIT_BYTES:
                    raise StoreDamaged("the record of an epoch is not one")
                yield int.from_bytes(key[1:], "big"), record

    # The state.

    def begin(self, target: Tip) -> None:
        """Take in the state of ``target``; pieces of another state that are here already are removed."""
        if self.target == target:
            return
        assert not self.is_whole
        with reported():
            for prefix in (RESTORED, STATE, NODE):  # first what says that the rest is there
                self._wipe(prefix)
            self._db.put(RESTORING, encode_tip(target), sync=True)
        self.target = target
        self._done, self._spans = {}, None

    def _wipe(self, prefix: bytes) -> None:
        while True:
            with self._db.iterator(prefix=prefix, include_value=False) as keys:
                chunk = [key for key, _ in zip(keys, range(_WIPE_ENTRIES), strict=False)]
            if not chunk:
                return
            with self._db.write_batch(sync=True) as batch:
                for key in chunk:
                    batch.delete(key)

    def has(self, start: bytes, stop: bytes | None) -> bool:
        """Tell whether all that is at ``start <= place < stop`` is here."""
        if self.is_whole:
            return True
        spans = self._spans
        if spans is None:
            spans = self._spans = []
            for first, after in sorted(self._done.items()):
                if spans and first <= spans[-1][1]:
                    spans[-1] = (spans[-1][0], max(after, spans[-1][1]))
                else:
                    spans.append((first, after))
        at = bisect_right(spans, start, key=lambda span: span[0])
        return at > 0 and (stop or _END) <= spans[at - 1][1]

    def add(self, start: bytes, stop: bytes | None, data: bytes) -> int:
        """Take in a piece; when this returns it is on the disk. Returns how many entries it has.

        Raises RangeInvalid or DecodeError unless the piece is exactly what the target's state has in the range;
        then nothing has changed. One caller at a time.
        """
        assert self.target is not None and not self.is_whole
        content = decode_range(data)
        entries = [entry_of(key, value) for key, value in content.items]
        nodes = verify_range(self.target.state_root, start, stop, entries, content.nodes)
        with reported():
            batch = self._db.write_batch(sync=True)
            for key, value in content.items:
                batch.put(STATE + key, value)
            for path, node in nodes.items():
                batch.put(NODE + path, node)
            batch.put(RESTORED + start, stop or _END)
            batch.write()
        self._done[start], self._spans = stop or _END, None
        return len(entries)

    def finish(self) -> None:
        """Make it the database of a node whose newest block is the target's. Raises StoreDamaged."""
        target = self.target
        assert target is not None
        with reported():
            if not self.is_whole:
                top: bytes | None = self._db.get(NODE, verify_checksums=True)
                if not self.has(bytes(HASH_BYTES), None) or target.state_root != (
                    ZERO_HASH if top is None else node_hash(top)
                ):
                    raise StoreDamaged(f"the state of height {target.height} is not wholly here")
                with self._db.write_batch(sync=True) as batch:
                    batch.put(BLOCK_HASH + target.block_hash, target.height.to_bytes(8, "big"))
                    put_first(batch, target)
                self.is_whole = True
            self._wipe(RESTORED)
            self._db.delete(RESTORING, sync=True)


def install(path: Path, place: Path) -> None:
    """Move the complete, closed database to ``place``, which must not exist. Raises StoreUnavailable."""
    try:
        if place.exists():
            place.rmdir()  # an empty directory alone
        path.rename(place)
        for directory in {path.parent, place.parent}:
            descriptor = os.open(directory, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
    except OSError as error:
        raise StoreUnavailable(f"{place}: {error.strerror}") from None
