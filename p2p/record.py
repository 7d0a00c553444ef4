"""Records: what one socket write carries, a u16 length and one sealed message of the Noise session.

Sealing once a write instead of once a message is what makes small messages cheap (NETWORK.md, section 1).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from p2p.errors import FrameInvalid
from p2p.noise import MESSAGE_BYTES_MAX, TAG_BYTES, CipherState

__all__ = ["RECORD_PLAINTEXT_BYTES_MAX", "RecordReader", "seal"]

RECORD_PLAINTEXT_BYTES_MAX: Final = MESSAGE_BYTES_MAX - TAG_BYTES


def seal(cipher: CipherState, plaintext: bytes) -> bytes:
    """Return the record of ``plaintext``, at most RECORD_PLAINTEXT_BYTES_MAX long."""
    sealed = cipher.encrypt(plaintext)
    return len(sealed).to_bytes(2, "big") + sealed


class RecordReader:
    """Turns the bytes of one direction back into plaintexts; never holds more than one unfinished record."""

    __slots__ = ("_at", "_buffer", "_cipher", "_view")

    def __init__(self, cipher: CipherState) -> None:
        self._cipher = cipher
        self._buffer = b""
        self._view = memoryview(b"")
        self._at = 0

    def feed(self, data: bytes) -> None:
        """Take bytes from the wire; ``next_plaintext`` gives what they complete."""
        self._buffer = self._buffer[self._at :] + data if self._at < len(self._buffer) else data
        self._view = memoryview(self._buffer)
        self._at = 0

    def next_plaintext(self) -> bytes | None:
        """Return the next whole plaintext, or None. Raises FrameInvalid; then the stream is of no use."""
        buffer, at = self._buffer, self._at
        if at + 2 > len(buffer):
            return None
        end = at + 2 + (buffer[at] << 8 | buffer[at + 1])
        if end - at - 2 < TAG_BYTES:
            raise FrameInvalid("a record shorter than its tag")
        if end > len(buffer):
            return None
        self._at = end
        return self._cipher.decrypt(self._view[at + 2 : end])

    def receive(self, data: bytes) -> Iterator[bytes]:
        """Yield the plaintext of each record that ``data`` completes.

        Raises FrameInvalid; then the stream cannot be used any more. The generator must be run to its end.
        """
        self.feed(data)
        while (plaintext := self.next_plaintext()) is not None:
            yield plaintext
