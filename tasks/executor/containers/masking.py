"""Secrets in what a container prints: replaced by ``***`` before a byte of it is kept or sent (R101).

A value is found as it is, in base64 (alone, or inside a longer text), in hexadecimal digits, broken into lines,
and across pieces of the log. A container that wants to show its secret can do so in other ways: it is the
requester's own program.
"""

from __future__ import annotations

from base64 import b64encode, urlsafe_b64encode
from collections.abc import Iterable, Sequence
from typing import Final

__all__ = ["MASK", "MASKED_BYTES_MIN", "Masker", "masked", "masked_parts"]

MASK: Final = b"***"
MASKED_BYTES_MIN: Final = 4
"""A shorter value would be found in any text; it is not masked."""
LINE_BYTES_MIN: Final = 16
"""Lines of a value that are so long are masked each for itself."""
PATTERNS_MAX: Final = 1_024
"""Texts that are searched for; what is beyond them are single lines of long values."""
BLANKS_MAX: Final = 64
"""Blanks in a row inside of a value: more of them are taken for the end of it."""
CHAIN_LENGTHS_MAX: Final = 8
REPEATS_MAX: Final = 4
PART_BYTES_MIN: Final = 4
"""So many last bytes of a value are masked where a log begins in the middle of it."""
_BLANKS: Final = b" \t\r\n"
_NO_BLANKS: Final = bytes.maketrans(b"", b"")


def _squeezed(data: bytes) -> bytes:
    return data.translate(_NO_BLANKS, _BLANKS)


def _patterns(values: Iterable[bytes]) -> tuple[bytes, ...]:
    """Return what is searched for, without blanks, the longest first."""
    wholes, lines = set[bytes](), set[bytes]()
    for value in values:
        if len(_squeezed(value)) < MASKED_BYTES_MIN:
            continue
        wholes |= {_squeezed(form) for form in (value, value.hex().encode(), value.hex().upper().encode())}
        wholes |= _base64_forms(value)
        lines |= {_squeezed(line) for line in value.splitlines() if len(_squeezed(line)) >= LINE_BYTES_MIN}
    kept = [*sorted(wholes), *sorted(lines - wholes, key=len, reverse=True)][:PATTERNS_MAX]
    return tuple(sorted(kept, key=len, reverse=True))


def _base64_forms(value: bytes) -> set[bytes]:
    """Return what base64 makes of a value at each of three places in a longer text.

    The first and last letters depend on what stands beside it there, and are left out.
    """
    forms = set[bytes]()
    for encoder in (b64encode, urlsafe_b64encode):
        for before in range(3):
            text = encoder(bytes(before) + value).rstrip(b"=")
            first = (0, 2, 3)[before]
            last = len(text) if not (before + len(value)) % 3 else len(text) - 1
            forms.add(text[first:last])
    return {form for form in forms if len(form) >= MASKED_BYTES_MIN}


class Masker:
    """Masks a log that comes in pieces. Values may lie across them; so the last bytes are held back.

    Each byte is searched a few times for ``PATTERNS_MAX`` texts at most. What is held back is a few times as long
    as the longest value in its longest form, and ``BLANKS_MAX`` times that where a log is of blanks.
    """

    def __init__(self, values: Iterable[bytes]) -> None:
        self._patterns = tuple((pattern, _step(pattern)) for pattern in _patterns(values))
        self._longest = max((len(pattern) for pattern, _ in self._patterns), default=0)
        self._held = bytearray()
        self._is_begun = False
        self._wanted = 2 * self._longest
        """Bytes that are waited for before the next search."""

    def feed(self, data: bytes) -> bytes:
        """Take a piece and return what is masked and complete of all so far."""
        if not self._patterns:
            return data
        self._held += data
        if len(self._held) < self._wanted:
            return b""
        found = self._take(is_end=False)
        self._wanted = 2 * max(len(self._held), self._longest)
        return found

    def finish(self) -> bytes:
        """Return the rest."""
        return self._take(is_end=True) if self._patterns else b""

    def _take(self, *, is_end: bool) -> bytes:
        held = bytes(self._held)
        kept, places = _places(held)
        spans = self.spans(kept)
        end = len(kept) if is_end else self._end(kept, spans)
        if not end and not is_end:
            return b""
        found, at = bytearray(), 0
        for first, last in spans:
            if last > end:
                break
            found += held[at : places[first]] + MASK
            at = places[last - 1] + 1
        upto = len(held) if is_end else places[end - 1] + 1
        found += held[at:upto]
        del self._held[:upto]
        self._is_begun = True
        return bytes(found)

    def _end(self, kept: bytes, spans: list[tuple[int, int]]) -> int:
        """Return up to where nothing that comes later changes what is found."""
        end = max(0, len(kept) - self._longest + 1)
        for first, last in spans:
            if first < end < last:  # others may begin in it; a chain of them without an end is cut
                return first if last - first < CHAIN_LENGTHS_MAX * self._longest else last
        return end

    def spans(self, kept: bytes, *, is_cut: bool = False) -> list[tuple[int, int]]:
        """Return where values lie in a text without blanks: sorted, none overlapping another.

        With ``is_cut`` also the beginning of a value at its end.
        """
        found: list[tuple[int, int]] = []
        if not self._is_begun:
            found += self._cut_value(kept)
        if is_cut:
            size = max((_common(kept[::-1], pattern[::-1]) for pattern, _ in self._patterns), default=0)
            found += [(len(kept) - size, len(kept))] if size >= PART_BYTES_MIN else []
        for pattern, step in self._patterns:
            at = kept.find(pattern)
            while at >= 0:
                found.append((at, at + len(pattern)))
                at = kept.find(pattern, at + step)
        merged: list[tuple[int, int]] = []
        for first, last in sorted(found):
            if merged and first < merged[-1][1]:
                merged[-1] = merged[-1][0], max(merged[-1][1], last)
            else:
                merged.append((first, last))
        return merged

    def _cut_value(self, kept: bytes) -> list[tuple[int, int]]:
        """Return the end of a value that a log begins with: the engine keeps the last bytes of a log alone."""
        size = max((_common(kept, pattern) for pattern, _ in self._patterns), default=0)
        return [(0, size)] if size >= PART_BYTES_MIN else []


def _borders(text: Sequence[int]) -> list[int]:
    """Return for each prefix of a text its longest proper border (Knuth, Morris, Pratt)."""
    borders = [0] * len(text)
    for at in range(1, len(text)):
        size = borders[at - 1]
        while size and text[at] != text[size]:
            size = borders[size - 1]
        borders[at] = size + (text[at] == text[size])
    return borders


def _step(pattern: bytes) -> int:
    """Return how far from one occurrence the next may begin; if a value repeats itself at once, its length."""
    period = len(pattern) - _borders(pattern)[-1]
    return period if REPEATS_MAX * period > len(pattern) else len(pattern)


def _common(text: bytes, pattern: bytes) -> int:
    """Return the length of the longest proper end of ``pattern`` that ``text`` begins with."""
    head = text[: len(pattern) - 1]
    return _borders([*head, -1, *pattern[1:]])[-1]


def _places(held: bytes) -> tuple[bytes, list[int]]:
    """Return a text without blanks, and where each of its bytes was. Of a long run of blanks some stay."""
    kept, places, run = bytearray(), list[int](), 0
    for place, byte in enumerate(held):
        if byte in _BLANKS:
            run += 1
            if run < BLANKS_MAX:
                continue
        run = 0
        kept.append(byte)
        places.append(place)
    return bytes(kept), places


def masked_parts(values: Iterable[bytes], parts: Sequence[bytes]) -> list[bytes]:
    """Return parts of a log, one after the other, with the values masked; they may lie across parts.

    The first and the last part may begin and end inside of a value: what is before and after them is not known.
    """
    masker, log = Masker(values), b"".join(parts)
    kept, places = _places(log)
    spans = [(places[first], places[last - 1] + 1) for first, last in masker.spans(kept, is_cut=True)]
    found, start = list[bytes](), 0
    for part in parts:
        text, at = bytearray(), start
        for first, last in spans:
            if first < start + len(part) and last > start:
                text += log[at : max(at, first)] + (MASK if first >= start else b"")
                at = min(last, start + len(part))
        found.append(bytes(text) + log[at : start + len(part)])
        start += len(part)
    return found


def masked(values: Iterable[bytes], log: bytes) -> bytes:
    """Return a whole log with the values masked."""
    masker = Masker(values)
    return masker.feed(log) + masker.finish()
