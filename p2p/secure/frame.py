"""Frames inside a record: {class u8, kind u8, stream u32, length u24, body}; a frame never spans two records."""

from __future__ import annotations

from collections.abc import Iterator
from enum import IntEnum
from struct import Struct
from typing import Final, TypeVar

from p2p.base.errors import FrameInvalid

__all__ = ["HEADER_BYTES", "STREAM_MAX", "TrafficClass", "frame", "frames", "header"]

_HEADER: Final = Struct(">BBIBH")
HEADER_BYTES: Final = _HEADER.size
STREAM_MAX: Final = 2**32 - 1


class TrafficClass(IntEnum):
    """Traffic class of a message; lower classes are sent first (network.md 4.2)."""

    CONSENSUS = 0
    BLOCK = 1
    GOSSIP = 2
    REQUEST = 3
    BULK = 4


_CLASSES: Final = tuple(TrafficClass)
Plaintext = TypeVar("Plaintext", bytes, memoryview)


def header(cls: int, kind: int, stream: int, size_bytes: int) -> bytes:
    """Return the header of a frame whose body has ``size_bytes``."""
    return _HEADER.pack(cls, kind, stream, size_bytes >> 16, size_bytes & 0xFFFF)


def frame(cls: int, kind: int, stream: int, body: bytes) -> bytes:
    """Return a whole frame."""
    size = len(body)
    return _HEADER.pack(cls, kind, stream, size >> 16, size & 0xFFFF) + body


def frames(plaintext: Plaintext) -> Iterator[tuple[TrafficClass, int, int, Plaintext]]:
    """Yield (class, kind, stream, body) of each frame of a record; bodies are slices of the input.

    Raises FrameInvalid for an unknown class or a body that exceeds the record. The receiver skips unknown kinds.
    """
    at, end = 0, len(plaintext)
    unpack, classes = _HEADER.unpack_from, _CLASSES
    while at < end:
        body_at = at + HEADER_BYTES
        if body_at > end:
            raise FrameInvalid("a frame header is incomplete")
        cls, kind, stream, high, low = unpack(plaintext, at)
        at = body_at + (high << 16) + low
        if at > end:
            raise FrameInvalid("a frame is longer than its record")
        if cls >= len(classes):
            raise FrameInvalid(f"unknown class {cls}")
        yield classes[cls], kind, stream, plaintext[body_at:at]
