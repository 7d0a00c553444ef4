"""A line of an engine's log with its time, as an entry."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import lru_cache
from typing import Final

from tasks.executor.containers.errors import EngineError
from tasks.executor.containers.log_entries import ENTRY_BYTES_MAX, STREAMS, LogEntry

__all__ = ["parse_entry"]

_STAMP_LETTERS: Final = 30
_SECOND_LETTERS: Final = 19
_NS: Final = 10**9


@lru_cache(maxsize=64)
def _seconds(text: bytes) -> int:
    return int(datetime.fromisoformat(text.decode("ascii")).replace(tzinfo=UTC).timestamp())


def parse_entry(stream: int, line: bytes) -> LogEntry:
    """Return the entry of a line that begins with its time, as ``2025-01-31T10:00:00.123456789Z text``.

    Raises EngineError.
    """
    stamp, space, text = line.partition(b" ")
    second, _, fraction = stamp.removesuffix(b"Z").partition(b".")
    try:
        if not space or len(stamp) > _STAMP_LETTERS or len(second) != _SECOND_LETTERS or stream not in STREAMS:
            raise ValueError
        if fraction and not fraction.isdigit():
            raise ValueError
        ns = _seconds(bytes(second)) * _NS + int(fraction.ljust(9, b"0") or 0)
    except ValueError:
        raise EngineError(200, "an entry of the log without a time") from None
    return LogEntry(max(0, ns), stream, bytes(text[:ENTRY_BYTES_MAX]))
