"""The log of a running container by entries: read from a place on, bounded, and taken up after a cut.

An engine keeps the log. Each entry has the engine's time of it and is a line, or a part of a long one. A reader
names the last entry that it has, as time and number among entries of that time. Clocks may be set back, so what
follows is what stands behind that entry, not what is newer.
"""

from __future__ import annotations

from struct import Struct
from typing import Final, NamedTuple

from state.primitives.errors import DecodeError

__all__ = [
    "ENTRY_BYTES_MAX",
    "NS_MAX",
    "NUMBER_MAX",
    "STREAMS",
    "LogEntry",
    "LogPart",
    "LogPlace",
    "LogSelector",
    "pack_entries",
    "select_entries",
    "unpack_entries",
]

ENTRY_BYTES_MAX: Final = 64 << 10
"""A longer entry is cut."""
NS_MAX: Final = 1 << 63
NUMBER_MAX: Final = 1 << 31
STREAMS: Final = (1, 2)
"""Standard output and standard error."""
CLOCK_BACK_S: Final = 60
"""A clock may have been set back by so much between two entries."""
_HEAD: Final = Struct(">QBI")


class LogPlace(NamedTuple):
    """Where a reader is: ``number`` entries of the time ``ns`` are read, and all that stands before them.

    With a ``number`` of 0 reading begins at the first entry of that time or later.
    """

    ns: int = 0
    number: int = 0

    @property
    def since_s(self) -> int:
        """The second from which a log is read: ``CLOCK_BACK_S`` early where an entry is to be found again."""
        return max(0, self.ns // 10**9 - CLOCK_BACK_S * bool(self.number))


class LogEntry(NamedTuple):
    """What a container wrote: nanoseconds since 1970 by the engine's clock, stream (1 output, 2 errors), bytes."""

    ns: int
    stream: int
    text: bytes


class LogPart(NamedTuple):
    """Entries after a place, and the place after them.

    ``is_cut``: the engine no longer has what stood before them. ``has_more``: there are further ones already.
    """

    entries: tuple[LogEntry, ...]
    place: LogPlace
    is_cut: bool = False
    has_more: bool = False


class LogSelector:
    """Takes the entries of a log in their order, and keeps those after a place, ``limit_bytes`` at most.

    Where the place is not found, what is newer than it is kept instead.
    """

    def __init__(self, after: LogPlace, limit_bytes: int) -> None:
        self._after, self._limit = after, limit_bytes
        self._is_found = after.number == 0
        self._place = after
        self._kept: list[LogEntry] = []
        self._size = 0
        self._times: dict[int, int] = {}
        """How many entries of each time were looked at: a log of an engine has 30,000 at most."""
        self._is_full = False

    def add(self, entry: LogEntry) -> bool:
        """Take an entry; return whether more are wanted."""
        self._times[entry.ns] = self._times.get(entry.ns, 0) + 1
        if self._after.number == 0:
            if not self._kept and entry.ns < self._after.ns:
                return True
            return self._keep(entry)
        if self._is_found:
            return self._keep(entry)
        if entry.ns == self._after.ns and self._times[entry.ns] == self._after.number:
            self._is_found = True
            self._forget()
        elif entry.ns > self._after.ns and not self._is_full:
            self._keep(entry)
        return True

    def _forget(self) -> None:
        self._kept, self._size, self._is_full = [], 0, False
        self._place = self._after

    def _keep(self, entry: LogEntry) -> bool:
        size = len(entry.text) + _HEAD.size
        if self._is_full or (self._kept and self._size + size > self._limit):
            self._is_full = True
            return not self._is_found
        self._kept.append(entry)
        self._size += size
        self._place = LogPlace(entry.ns, self._times[entry.ns])
        return True

    def part(self) -> LogPart:
        """Return what was selected."""
        return LogPart(tuple(self._kept), self._place, not self._is_found, self._is_full)


def select_entries(entries: tuple[LogEntry, ...], after: LogPlace, limit_bytes: int) -> LogPart:
    """Return the entries of a whole log after a place (``LogSelector``)."""
    selector = LogSelector(after, limit_bytes)
    for entry in entries:
        if not selector.add(entry):
            break
    return selector.part()


def pack_entries(entries: tuple[LogEntry, ...]) -> bytes:
    """Return entries as bytes: of each its time, stream and length, then its bytes."""
    return b"".join(_HEAD.pack(entry.ns, entry.stream, len(entry.text)) + entry.text for entry in entries)


def unpack_entries(data: bytes) -> tuple[LogEntry, ...]:
    """Return the entries of packed bytes. Raises DecodeError."""
    found: list[LogEntry] = []
    at = 0
    while at < len(data):
        if len(data) - at < _HEAD.size:
            raise DecodeError("half an entry of a log")
        ns, stream, size = _HEAD.unpack_from(data, at)
        at += _HEAD.size
        if stream not in STREAMS or size > ENTRY_BYTES_MAX or size > len(data) - at or ns >= NS_MAX:
            raise DecodeError("not an entry of a log")
        found.append(LogEntry(ns, stream, data[at : at + size]))
        at += size
    return tuple(found)
