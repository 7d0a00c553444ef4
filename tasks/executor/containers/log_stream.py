"""The output of a container: frames of the engine's stream, and its last bytes."""

from __future__ import annotations

from typing import Final

from tasks.executor.containers.errors import EngineError

__all__ = ["LOG_BYTES_MAX", "LogFrames", "LogTail", "RotationWatch"]

LOG_BYTES_MAX: Final = 1 << 20
"""Bytes of a container's output that are kept: the last ones."""
FRAME_BYTES_MAX: Final = 1 << 22
ROTATIONS_MAX: Final = 30
"""Looks in a row that may each find a full log file: then the container writes too much."""
_HEADER_BYTES: Final = 8


class LogFrames:
    """Cuts the engine's stream into frames and returns their contents, standard output and errors alike."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> bytes:
        """Take what arrived and return the contents of the frames that are now whole. Raises EngineError."""
        return b"".join(content for _, content in self.frames(data))

    def frames(self, data: bytes) -> list[tuple[int, bytes]]:
        """Take what arrived and return stream and contents of each frame that is now whole. Raises EngineError."""
        self._buffer += data
        found: list[tuple[int, bytes]] = []
        start = 0
        while len(self._buffer) - start >= _HEADER_BYTES:
            header = self._buffer[start : start + _HEADER_BYTES]
            size = int.from_bytes(header[4:], "big")
            if header[0] > 2 or any(header[1:4]) or size > FRAME_BYTES_MAX:
                raise EngineError(200, "the log is not a stream of frames")
            end = start + _HEADER_BYTES + size
            if end > len(self._buffer):
                break
            found.append((header[0], bytes(self._buffer[start + _HEADER_BYTES : end])))
            start = end
        del self._buffer[:start]
        return found


class LogTail:
    """The last ``limit_bytes`` of what was added; ``dropped`` counts the bytes before them."""

    def __init__(self, limit_bytes: int = LOG_BYTES_MAX) -> None:
        self._limit, self._kept = limit_bytes, bytearray()
        self.dropped = 0

    def add(self, data: bytes) -> None:
        """Add bytes."""
        self._kept += data
        if len(self._kept) > 2 * self._limit:
            self._cut()

    def _cut(self) -> None:
        over = max(0, len(self._kept) - self._limit)
        del self._kept[:over]
        self.dropped += over

    def contents(self) -> bytes:
        """Return what is kept."""
        self._cut()
        return bytes(self._kept)


class RotationWatch:
    """Tells a container that fills a log file between each two looks, for ``limit`` looks in a row."""

    def __init__(self, limit: int = ROTATIONS_MAX) -> None:
        self._limit, self._last, self._in_row = limit, 0, 0

    def is_flood(self, rotated_ns: int) -> bool:
        """Take the time of the last rotation, 0 for none; return whether the limit is reached."""
        self._in_row = self._in_row + 1 if rotated_ns not in (0, self._last) else 0
        self._last = rotated_ns
        return self._in_row >= self._limit
