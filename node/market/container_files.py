"""What a machine must remember of its containers across a restart: that one was begun, and how it ended.

Each task has a file, written before what it says is done or sent. The blobs of an end are pinned for a day: the
requester fetches them from this machine. Blocking; the files are small.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final, NamedTuple

from node.market.promises import write_durably
from p2p.blob.store import BlobStore
from state.primitives.codec import Value, decode, encode
from state.primitives.errors import DecodeError
from state.primitives.hashing import HASH_BYTES
from tasks.kinds.container import ExitKind
from tasks.ledger.meter_records import ContainerEnd

__all__ = ["KEPT_MS", "ContainerFiles", "ContainerNote", "decode_container_note", "encode_container_note"]

FILE_LIMIT_BYTES: Final = 1_024
KEPT_MS: Final = 24 * 3_600_000
"""How long after the end of a container its output and its log are kept for its requester."""
_NAME: Final = re.compile(r"[0-9a-f]{64}")


class ContainerNote(NamedTuple):
    """A container was begun; with ``end`` it ended after ``seconds``, at ``ended_ms`` of the chain's time.

    ``salt`` is that of the seal over its result, or empty: nothing of it is sealed.
    """

    seconds: int = 0
    ended_ms: int = 0
    end: ContainerEnd | None = None
    salt: bytes = b""


def encode_container_note(found: ContainerNote) -> bytes:
    """Return a record as bytes."""
    end = found.end
    value: list[Value] = [] if end is None else [int(end.kind), *end[1:-1]]
    return encode([found.seconds, found.ended_ms, value, found.salt])


def decode_container_note(data: bytes) -> ContainerNote:
    """Read a record. Raises DecodeError."""
    match decode(data, limit_bytes=FILE_LIMIT_BYTES):
        case [int(seconds), int(ended_ms), list(end), bytes(salt)] if (
            seconds >= 0 and ended_ms >= 0 and len(salt) in (0, HASH_BYTES)
        ):
            return ContainerNote(seconds, ended_ms, _end(end) if end else None, salt)
        case _:
            raise DecodeError("not the record of a container")


def _end(value: list[Any]) -> ContainerEnd:
    match value:
        case [int(kind), int(code), bytes(output), int(output_bytes), bytes(logs), int(logs_bytes)] if (
            kind in set(ExitKind) and code >= 0 and output_bytes >= 0 and logs_bytes >= 0
            and {len(output), len(logs)} <= {0, HASH_BYTES}
        ):  # fmt: skip
            return ContainerEnd(ExitKind(kind), code, output, output_bytes, logs, logs_bytes, b"")
        case _:
            raise DecodeError("not the end of a container")


class ContainerFiles:
    """The files in one directory, and the pins in ``blobs`` of the blobs that they name."""

    def __init__(self, root: Path, blobs: BlobStore) -> None:
        self._root, self._blobs = root, blobs
        self._known: dict[bytes, ContainerNote] = {}
        root.mkdir(parents=True, exist_ok=True, mode=0o700)
        for path in root.iterdir():
            self._take_up(path)

    def _take_up(self, path: Path) -> None:
        if not _NAME.fullmatch(path.name):
            if path.suffix == ".new":  # half written when the node stopped
                path.unlink(missing_ok=True)
            return
        try:
            found = decode_container_note(path.read_bytes())
        except DecodeError:
            path.unlink(missing_ok=True)
            return
        self._known[bytes.fromhex(path.name)] = found
        self._pin(found)

    def _pin(self, found: ContainerNote) -> None:
        for blob in _blobs_of(found):
            self._blobs.pin(blob)

    def get(self, task: bytes) -> ContainerNote | None:
        """Return what is known of a task's container."""
        return self._known.get(task)

    def tasks(self) -> frozenset[bytes]:
        """Return the tasks of which something is known."""
        return frozenset(self._known)

    def put(self, task: bytes, found: ContainerNote) -> None:
        """Write down what is known; the blobs of an end are kept."""
        self._pin(found)
        self._known[task] = found
        write_durably(self._root / task.hex(), encode_container_note(found))

    def forget(self, task: bytes) -> None:
        """Forget what an earlier run of a task has left here, as it begins again. Blocking."""
        if (found := self._known.pop(task, None)) is not None:
            (self._root / task.hex()).unlink(missing_ok=True)
            self._let_go(found)

    def _let_go(self, found: ContainerNote) -> None:
        kept = {blob for other in self._known.values() for blob in _blobs_of(other)}
        for blob in _blobs_of(found) - kept:
            self._blobs.unpin(blob)

    def tidy(self, now_ms: int, needed: frozenset[bytes]) -> None:
        """Forget tasks that are not ``needed``: without an end at once, with one a day after it."""
        for task, found in list(self._known.items()):
            if task in needed or (found.end is not None and now_ms < found.ended_ms + KEPT_MS):
                continue
            self.forget(task)


def _blobs_of(found: ContainerNote) -> frozenset[bytes]:
    return frozenset() if found.end is None else frozenset({found.end.output, found.end.logs} - {b""})
