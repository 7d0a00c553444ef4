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

    __slots__ = ("_buffer", "_cipher")

    def __init__(self, cipher: CipherState) -> None:
        self._cipher = cipher
        self._buffer = b""

    def receive(self, data: bytes) -> Iterator[bytes]:
        """Yield the plaintext of each record that ``data`` completes.

        Raises FrameInvalid; then the stream cannot be used any more. The generator must be run to its end.
        """
        buffer = self._buffer + data if self._buffer else data
        view = memoryview(buffer)
        at = 0
        while at + 2 <= len(buffer):
            end = at + 2 + (buffer[at] << 8 | buffer[at + 1])
            if end - at - 2 < TAG_BYTES:
                raise FrameInvalid("a record shorter than its tag")
            if end > len(buffer):
                break
            yield self._cipher.decrypt(view[at + 2 : end])
            at = end
        self._buffer = buffer[at:]
