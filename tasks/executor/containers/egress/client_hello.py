"""The server name in the first bytes of a TLS connection (RFC 8446, 4.1.2; RFC 6066, 3), read within bounds."""

from __future__ import annotations

from typing import Final

from state.primitives.errors import DecodeError
from tasks.kinds.egress import NAME_LENGTH_MAX

__all__ = ["HELLO_BYTES_MAX", "HelloReader"]

HELLO_BYTES_MAX: Final = 16 << 10
"""Bytes of a ClientHello with its records: those with post-quantum keys have some two KiB."""
_RECORD_BYTES: Final = 5
_HANDSHAKE: Final = 22
_CLIENT_HELLO: Final = 1
_SERVER_NAME: Final = 0
_HOST_NAME: Final = 0


class _Reader:
    """Takes fields from bytes that must be there."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    @property
    def has_more(self) -> bool:
        """Whether anything is left."""
        return self._at < len(self._data)

    def take(self, count: int) -> bytes:
        """Take so many bytes. Raises DecodeError."""
        end = self._at + count
        if end > len(self._data):
            raise DecodeError("not a ClientHello: a field is longer than what is around it")
        found, self._at = self._data[self._at : end], end
        return found

    def number(self, count: int) -> int:
        """Take a number of so many bytes. Raises DecodeError."""
        return int.from_bytes(self.take(count), "big")

    def inner(self, count: int) -> _Reader:
        """Take a field behind its length of so many bytes. Raises DecodeError."""
        return _Reader(self.take(self.number(count)))


class HelloReader:
    """Reads a ClientHello as its bytes come, each record once: a client may send them one by one."""

    def __init__(self) -> None:
        self.data = bytearray()
        """All bytes so far."""
        self._message, self._at = bytearray(), 0

    def feed(self, data: bytes) -> str | None:
        """Return the server name that a client asks for, in lower case; None where more bytes are needed.

        Raises DecodeError for what is no ClientHello, names no server or several, or has too many bytes.
        """
        self.data += data
        if len(self.data) >= HELLO_BYTES_MAX:
            raise DecodeError(f"not a ClientHello: {HELLO_BYTES_MAX} bytes and more")
        message = self._message
        while len(message) < 4 or len(message) < 4 + int.from_bytes(message[1:4], "big"):
            if message and message[0] != _CLIENT_HELLO:
                raise DecodeError("not a ClientHello: another message of a handshake")
            if not self._take_record():
                return None
        if message[0] != _CLIENT_HELLO:
            raise DecodeError("not a ClientHello: another message of a handshake")
        return _name_in(_Reader(bytes(message[4 : 4 + int.from_bytes(message[1:4], "big")])))

    def _take_record(self) -> bool:
        """Add the content of the next record to the message; False where more bytes are needed."""
        data, at = self.data, self._at
        if data[at : at + 1] not in (b"", bytes([_HANDSHAKE])):
            raise DecodeError("not a ClientHello: not a handshake of TLS")
        if len(data) < at + _RECORD_BYTES:
            return False
        size = int.from_bytes(data[at + 3 : at + _RECORD_BYTES], "big")
        if data[at + 1] != 3 or not size:
            raise DecodeError("not a ClientHello: a record of another version, or an empty one")
        end = at + _RECORD_BYTES + size
        if end >= HELLO_BYTES_MAX:
            raise DecodeError(f"not a ClientHello: {HELLO_BYTES_MAX} bytes and more")
        if len(data) < end:
            return False
        self._message += data[at + _RECORD_BYTES : end]
        self._at = end
        return True


def _name_in(hello: _Reader) -> str:
    hello.take(2 + 32)
    for length_bytes in (1, 2, 1):  # the session, the ciphers, the compressions
        hello.inner(length_bytes)
    extensions = hello.inner(2)
    names: list[str] = []
    while extensions.has_more:
        kind, content = extensions.number(2), extensions.inner(2)
        if kind == _SERVER_NAME:
            names += _names(content)
    if len(names) != 1 or hello.has_more:
        raise DecodeError(f"a ClientHello with {len(names)} server names, one expected")
    return names[0]


def _names(content: _Reader) -> list[str]:
    listed, found = content.inner(2), []
    while listed.has_more:
        kind, name = listed.number(1), listed.inner(2)
        text = name.take(len(name._data))
        if kind != _HOST_NAME or not text.isascii() or not 0 < len(text) <= NAME_LENGTH_MAX:
            raise DecodeError("a ClientHello whose server name is none")
        found.append(text.decode("ascii").lower())
    if content.has_more:
        raise DecodeError("not a ClientHello: bytes after the server names")
    return found
