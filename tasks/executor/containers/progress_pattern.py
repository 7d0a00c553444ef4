"""The counter of a container's progress in what it prints: a literal text, followed by a number (market.md R108).

No regular expressions: a line is searched once for the text, whatever a container prints.
"""

from __future__ import annotations

from typing import Final

__all__ = ["COUNTER_MAX", "ProgressPattern"]

COUNTER_MAX: Final = 1 << 53
LINE_BYTES_MAX: Final = 4_096
"""Of a longer line only the beginning is searched."""
DIGITS_MAX: Final = 15
SPACES_MAX: Final = 16


class ProgressPattern:
    """Finds the last counter in output that arrives in pieces."""

    def __init__(self, text: str) -> None:
        self._text = text.encode()
        self._line = bytearray()
        self._is_skipping = False

    def feed(self, data: bytes) -> int | None:
        """Take output; return the counter of the last whole line that has one."""
        found: int | None = None
        *lines, rest = data.replace(b"\r", b"\n").split(b"\n")  # a bar of progress goes back to its line
        for line in lines:
            self._add(line)
            counter = self._counter(bytes(self._line))
            found = found if counter is None else counter
            self._line.clear()
            self._is_skipping = False
        self._add(rest)
        return found

    def _add(self, data: bytes) -> None:
        room = LINE_BYTES_MAX - len(self._line)
        if not self._is_skipping:
            self._line += data[:room]
            self._is_skipping = len(data) > room

    def _counter(self, line: bytes) -> int | None:
        """Return the number after the first place of the text in a line."""
        _, found, rest = line.partition(self._text)
        if not found:
            return None
        rest = rest[: SPACES_MAX + DIGITS_MAX + 1].lstrip(b" \t=:")
        digits = rest[: len(rest) - len(rest.lstrip(b"0123456789"))]
        return int(digits) if 0 < len(digits) <= DIGITS_MAX else None
