"""Sealed streams: content of any size that opens chunk by chunk, and only whole (R99).

The construction is STREAM (Hoang, Reyhanitabar, Rogaway, Vizar 2015) over ChaCha20-Poly1305 (RFC 8439). A chunk
that was changed, moved, left out or cut off does not open. A fresh salt gives each stream a key of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand

from state.primitives.codec import encode
from tasks.custody.errors import StreamInvalid
from tasks.custody.keys import KEY_BYTES

__all__ = ["SALT_BYTES", "open_stream", "plain_size", "seal_stream", "stream_size"]

SALT_BYTES: Final = 32
STREAM_CHUNK_BYTES: Final = 64 * 1024
TAG_BYTES: Final = 16
COUNTER_BYTES: Final = 11
_SEALED_CHUNK: Final = STREAM_CHUNK_BYTES + TAG_BYTES


def stream_size(size: int) -> int:
    """Return the bytes of a sealed stream of ``size`` plain bytes."""
    return SALT_BYTES + size + TAG_BYTES * max(1, -(-size // STREAM_CHUNK_BYTES))


def plain_size(sealed: int) -> int:
    """Return the most plain bytes whose sealed stream has ``sealed`` bytes at most; 0 if there are none."""
    whole, rest = divmod(sealed - SALT_BYTES, _SEALED_CHUNK)
    return max(0, whole * STREAM_CHUNK_BYTES + max(0, rest - TAG_BYTES))


def seal_stream(key: bytes, salt: bytes, content: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the sealed form of ``content``. ``salt`` is fresh for each content. Raises StreamInvalid."""
    cipher = _cipher(key, salt)
    yield salt
    for number, (chunk, is_last) in enumerate(_chunks(content, STREAM_CHUNK_BYTES)):
        yield cipher.encrypt(_nonce(number, is_last=is_last), chunk, None)


def open_stream(key: bytes, sealed: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the plain content. What came before an error is not the whole. Raises StreamInvalid."""
    parts = iter(sealed)
    head = b""
    while len(head) < SALT_BYTES:
        part = next(parts, None)
        if part is None:
            raise StreamInvalid("the sealed stream is shorter than its salt")
        head += part
    cipher = _cipher(key, head[:SALT_BYTES])
    for number, (chunk, is_last) in enumerate(_chunks(_after(head[SALT_BYTES:], parts), _SEALED_CHUNK)):
        try:
            yield cipher.decrypt(_nonce(number, is_last=is_last), chunk, None)
        except InvalidTag:
            raise StreamInvalid(f"chunk {number} of a sealed stream does not open with this key") from None


def _after(first: bytes, rest: Iterable[bytes]) -> Iterator[bytes]:
    yield first
    yield from rest


def _cipher(key: bytes, salt: bytes) -> ChaCha20Poly1305:
    if len(key) != KEY_BYTES or len(salt) != SALT_BYTES:
        raise StreamInvalid(f"a key of {KEY_BYTES} bytes and a salt of {SALT_BYTES} bytes expected")
    info = encode(["dekube stream", salt])
    return ChaCha20Poly1305(HKDFExpand(algorithm=SHA256(), length=KEY_BYTES, info=info).derive(key))


def _nonce(number: int, *, is_last: bool) -> bytes:
    return number.to_bytes(COUNTER_BYTES, "big") + bytes([is_last])


def _chunks(parts: Iterable[bytes], size: int) -> Iterator[tuple[bytes, bool]]:
    """Yield chunks of ``size`` bytes, and whether each is the last one; the last may be shorter, or empty."""
    held = bytearray()
    for part in parts:
        held += part
        while len(held) > size:
            yield bytes(held[:size]), False
            del held[:size]
    yield bytes(held), True
