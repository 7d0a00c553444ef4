"""Event files of TensorBoard: the losses of a task as scalars, written without its package.

A file is records of TFRecord, each one message ``Event`` (protocol buffers). The same numbers give the same bytes:
the time of an event is its step in seconds, for no record of the chain has a clock.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable
from typing import Final, NamedTuple

from state.primitives.crc32c import masked_crc32c

__all__ = ["FILE", "Scalar", "event_file"]

FILE: Final = "events.out.tfevents.0.dekube"
"""Name of a file. TensorBoard reads files with ``tfevents`` in their names."""
VERSION: Final = b"brain.Event:2"
_LARGEST: Final = (2.0 - 2.0**-23) * 2.0**127
"""The largest number of a curve: a container may report any float64."""


class Scalar(NamedTuple):
    """A number of a curve ``tag`` at a step."""

    tag: str
    step: int
    value: float


def event_file(scalars: Iterable[Scalar]) -> bytes:
    """Return the file of scalars in their order; numbers that are not finite as float32 are left out."""
    events = [_event(0, _field(3, VERSION))]
    events += [
        _event(
            one.step, _field(5, _field(1, _field(1, one.tag.encode()) + b"\x15" + struct.pack("<f", one.value)))
        )
        for one in scalars
        if math.isfinite(one.value) and abs(one.value) <= _LARGEST
    ]
    return b"".join(map(_record, events))


def _event(step: int, content: bytes) -> bytes:
    return b"\x09" + struct.pack("<d", float(step)) + b"\x10" + _varint(step) + content


def _field(number: int, content: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(content)) + content


def _varint(value: int) -> bytes:
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*found, value))


def _record(event: bytes) -> bytes:
    size = struct.pack("<Q", len(event))
    return size + _checksum(size) + event + _checksum(event)


def _checksum(data: bytes) -> bytes:
    return struct.pack("<I", masked_crc32c(data))
