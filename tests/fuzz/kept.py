"""The corpus: inputs that once made a decoder fail, or led it further, kept in the repository."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Final

CORPUS: Final = Path(__file__).parent / "corpus"


def corpus_of(name: str) -> list[bytes]:
    """Return the inputs that are kept for a decoder."""
    return [bytes.fromhex(line) for at, line in _corpus() if at == name]


@cache
def _corpus() -> tuple[tuple[str, str], ...]:
    files = [file.read_text().splitlines() for file in sorted(CORPUS.glob("*.hex"))]
    return tuple((name, line) for name, *lines in files for line in lines)


def add_to_corpus(name: str, found: tuple[str, ...], each_max: int, bytes_max: int) -> int:
    """Write the shortest of what was found for a decoder into the repository; return how many are new."""
    known = {data.hex() for data in corpus_of(name)}
    chosen = sorted((one for one in found if one not in known and len(one) <= 2 * bytes_max), key=len)[:each_max]
    if not chosen:
        return 0
    file = CORPUS / f"kept-{''.join(c if c.isalnum() else '-' for c in name)}.hex"
    old = file.read_text().splitlines()[1:] if file.exists() else []
    file.write_text("\n".join([name, *old, *chosen]) + "\n")
    return len(chosen)
