"""What of a transfer is done, so that an interrupted one goes on: notes beside the file, and part sizes. Pure.

A note belongs to one version of one object. Of another version nothing is taken over.
"""

from __future__ import annotations

import json
from typing import Final, NamedTuple

__all__ = [
    "PART_BYTES", "SENT_BYTES_MIN", "SENT_NOTE_BYTES_MAX", "Note", "Sent", "bounds", "part_bytes_of", "parts_of",
]  # fmt: skip

PART_BYTES: Final = 8 << 20
"""Bytes that are requested at once."""
SENT_BYTES_MIN: Final = 16 << 20
"""Least bytes of a part of an upload; smaller files are sent at once."""
PARTS_MAX: Final = 9_000
"""Parts of an upload: S3 takes 10,000."""
NOTE_BYTES_MAX: Final = 4 << 20
TEXT_CHARS_MAX: Final = 2_048
SENT_NOTE_BYTES_MAX: Final = 4 * TEXT_CHARS_MAX
"""Bytes of the note of an upload."""


def parts_of(size_bytes: int, part_bytes: int) -> int:
    """Return the number of parts."""
    return -(-size_bytes // part_bytes)


def bounds(number: int, size_bytes: int, part_bytes: int) -> tuple[int, int]:
    """Return the first byte of a part and the byte after its last one."""
    return number * part_bytes, min((number + 1) * part_bytes, size_bytes)


def part_bytes_of(size_bytes: int) -> int:
    """Return the part size of an upload: whole MiB, so that no upload has too many parts."""
    return max(SENT_BYTES_MIN, -(-size_bytes // PARTS_MAX // (1 << 20)) * (1 << 20) + (1 << 20))


class Note(NamedTuple):
    """What of one version of an object is on disk."""

    etag: str
    size_bytes: int
    done: frozenset[int]

    @property
    def head(self) -> bytes:
        """The first line of the file of notes; a line with its number follows for each part."""
        return json.dumps([self.etag, self.size_bytes, PART_BYTES]).encode() + b"\n"

    @classmethod
    def read(cls, data: bytes, etag: str, size_bytes: int) -> Note:
        """Return what the notes say of this version: nothing if they are of another one, or damaged."""
        fresh = cls(etag, size_bytes, frozenset())
        if not data.startswith(fresh.head) or len(data) > NOTE_BYTES_MAX:
            return fresh
        most, done = parts_of(size_bytes, PART_BYTES), set()
        for line in data[len(fresh.head) :].splitlines(keepends=True):
            digits = line[:-1]
            if not line.endswith(b"\n") or not digits.isdigit() or len(digits) > 9:
                break  # it stopped while it wrote this line
            if int(digits) < most:
                done.add(int(digits))
        return fresh._replace(done=frozenset(done))


class Sent(NamedTuple):
    """An upload that was begun: the store's name for it, and the content that it is of."""

    upload: str
    sha256: str
    size_bytes: int

    def encode(self) -> bytes:
        """Return the bytes of the note."""
        return json.dumps(list(self)).encode()

    @classmethod
    def read(cls, data: bytes) -> Sent | None:
        """Return the upload that a note names; None if the note is damaged."""
        if len(data) > SENT_NOTE_BYTES_MAX:
            return None
        try:
            document = json.loads(data)
        except (ValueError, RecursionError):
            return None
        match document:
            case [str(upload), str(sha256), int(size)] if 0 < len(upload) <= TEXT_CHARS_MAX:
                return cls(upload, sha256, size)
            case _:
                return None
