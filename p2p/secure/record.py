"""Records: the unit of one socket write, a u16 length and one sealed message of the Noise session.

Sealing once per write instead of once per message makes small messages cheap (network.md 3.2).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from p2p.base.errors import RecordDamaged
from p2p.secure.noise import MESSAGE_BYTES_MAX, TAG_BYTES, CipherState

__all__ = ["RECORD_PLAINTEXT_BYTES_MAX", "RecordReader", "seal", "seal_into"]

RECORD_PLAINTEXT_BYTES_MAX: Final = MESSAGE_BYTES_MAX - TAG_BYTES


def seal(cipher: CipherState, plaintext: bytes) -> bytes:
    """Return the record of ``plaintext``, at most RECORD_PLAINTEXT_BYTES_MAX long."""
    sealed = cipher.encrypt(plaintext)
    return len(sealed).to_bytes(2, "big") + sealed


def seal_into(cipher: CipherState, plaintext: bytes, buffer: memoryview) -> int:
    """Write the record of ``plaintext`` to the front of ``buffer``; return its length."""
    size = len(plaintext) + TAG_BYTES
    buffer[0], buffer[1] = size >> 8, size & 0xFF
    cipher.encrypt_into(plaintext, buffer[2 : 2 + size])
    return 2 + size


class RecordReader:
    """Decrypts the bytes of one direction; holds at most one unfinished record."""

    __slots__ = ("_at", "_buffer", "_cipher", "_split", "_view")

    def __init__(self, cipher: CipherState) -> None:
        self._cipher = cipher
        self._split = b""
        """The beginning of a record; its rest is in ``_buffer`` or has not arrived."""
        self._buffer = b""
        self._view = memoryview(b"")
        self._at = 0

    def feed(self, data: bytes) -> None:
        """Add bytes from the wire; ``next_plaintext`` returns the completed records."""
        left = self._split + self._buffer[self._at :]
        if len(left) > 2 and len(left) >= 2 + (left[0] << 8 | left[1]):
            data, left = left + data, b""  # whole records that nobody has asked for yet
        # Only the record that was cut by the end of a read is put together; the others stay where they are.
        self._split = left
        self._buffer, self._view, self._at = data, memoryview(data), 0

    @property
    def lacking(self) -> int:
        """Missing bytes of the current record; 0 if none has begun or its length is unknown.

        Valid after ``next_plaintext`` has returned None.
        """
        begun = self._split or self._buffer[self._at : self._at + 2]
        if len(begun) < 2:
            return 0
        have = len(self._split) or len(self._buffer) - self._at
        return 2 + (begun[0] << 8 | begun[1]) - have

    def next_plaintext(self) -> bytes | None:
        """Return the next whole plaintext, or None. Raises RecordDamaged; the stream is then unusable."""
        if self._split:
            return self._next_split()
        buffer, at = self._buffer, self._at
        if at + 2 > len(buffer):
            return None
        end = at + 2 + (buffer[at] << 8 | buffer[at + 1])
        if end - at - 2 < TAG_BYTES:
            raise RecordDamaged("a record is shorter than its tag")
        if end > len(buffer):
            return None
        self._at = end
        return self._cipher.decrypt(self._view[at + 2 : end])

    def _next_split(self) -> bytes | None:
        for size in (2, None):
            if size is None:
                size = 2 + (self._split[0] << 8 | self._split[1])
                if size - 2 < TAG_BYTES:
                    raise RecordDamaged("a record is shorter than its tag")
            lacking = size - len(self._split)
            if lacking > 0:
                found = self._buffer[self._at : self._at + lacking]
                self._split += found
                self._at += len(found)
                if len(found) < lacking:
                    return None
        whole, self._split = self._split, b""
        return self._cipher.decrypt(memoryview(whole)[2:])

    def receive(self, data: bytes) -> Iterator[bytes]:
        """Yield the plaintext of each record that ``data`` completes.

        Raises RecordDamaged; then the stream cannot be used any more. The generator must be run to its end.
        """
        self.feed(data)
        while (plaintext := self.next_plaintext()) is not None:
            yield plaintext
