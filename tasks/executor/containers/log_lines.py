"""A line of an engine's log with its time, as an entry."""

from __future__ import annotations

import re
from datetime import datetime
from functools import lru_cache
from typing import Final

from tasks.executor.containers.errors import EngineError
from tasks.executor.containers.log_entries import ENTRY_BYTES_MAX, STREAMS, LogEntry

__all__ = ["parse_entry"]

_STAMP: Final = re.compile(rb"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(Z|[+-]\d\d:\d\d)")
_NS: Final = 10**9


@lru_cache(maxsize=64)
def _seconds(second: bytes, zone: bytes) -> int:
    return int(datetime.fromisoformat((second + zone).decode("ascii")).timestamp())


def parse_entry(stream: int, line: bytes) -> LogEntry:
    """Return the entry of a line that begins with its time, as ``2025-01-31T10:00:00.123456789Z text``.

    The machines of a cluster write the offset of their own time zone in place of ``Z``. Raises EngineError.
    """
    stamp, space, text = line.partition(b" ")
    found = _STAMP.fullmatch(stamp)
    try:
        if not space or found is None or stream not in STREAMS:
            raise ValueError
        second, fraction, zone = found.groups(b"")
        ns = _seconds(bytes(second), bytes(zone)) * _NS + int(fraction.ljust(9, b"0"))
    except (ValueError, OverflowError):
        raise EngineError(200, "an entry of the log without a time") from None
    return LogEntry(max(0, ns), stream, bytes(text[:ENTRY_BYTES_MAX]))
