"""The end of a LevelDB log after a power loss: where the last whole record ends. Pure, but for ``cut_tail``.

A file may have grown on the disk although its last pages were never written; they read as zeros then. LevelDB
takes a log that is cut short for what it is, but a record that ends in zeros for damage. Only that one case is
told apart here: a record is not whole, and from somewhere inside it to the end of the file all is zero. How many
records stood in those zeros cannot be told: a disk that loses what it has called durable leaves the same, and then
records go that were synced. So what is cut is said aloud.

A log is made of blocks of 32 KiB. In a block stand pieces: masked CRC-32C (4 bytes, over kind and content), length
(2), kind (1: a record in one piece, 2, 3, 4: its first, a middle, its last), content; fewer than seven bytes at a
block's end stay unused. All numbers are little-endian.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Final

from state.primitives.crc32c import masked_crc32c

__all__ = ["cut_tail", "torn_at"]

BLOCK_BYTES: Final = 32 * 1024
HEADER_BYTES: Final = 7
FULL, FIRST, MIDDLE, LAST = 1, 2, 3, 4
_log = logging.getLogger(__name__)  # also of commands that set up no log: a line on standard error


def _is_whole(data: bytes, at: int, end: int) -> bool:
    """Tell whether a piece that is as it was written stands at ``at`` and ends no later than ``end``."""
    stop = at + HEADER_BYTES + int.from_bytes(data[at + 4 : at + 6], "little")
    return (
        stop <= end
        and data[at + 6] in (FULL, FIRST, MIDDLE, LAST)
        and masked_crc32c(data[at + 6 : stop]) == int.from_bytes(data[at : at + 4], "little")
    )


def torn_at(data: bytes) -> int | None:
    """Return where the last whole record of a log ends, if what follows turns into zeros inside the next one.

    None for a log that is whole, and for one with any other damage.
    """
    zeros_from = len(data.rstrip(b"\0"))  # what stands before was written
    record = at = 0  # where the record begins that the piece at ``at`` belongs to
    while True:
        block_end = at - at % BLOCK_BYTES + BLOCK_BYTES
        if block_end - at < HEADER_BYTES:
            at = block_end
            continue
        if at + HEADER_BYTES > zeros_from:
            break
        kind, stop = data[at + 6], at + HEADER_BYTES + int.from_bytes(data[at + 4 : at + 6], "little")
        if kind not in (FULL, FIRST, MIDDLE, LAST) or stop > block_end:
            return None
        end = min(block_end, len(data))
        if stop > zeros_from and not _is_whole(data, at, end):
            # Were it a length that is wrong, there could be whole records behind it.
            if any(_is_whole(data, other, end) for other in range(at + 1, end - HEADER_BYTES)):
                return None
            break
        at = stop
        if kind in (FULL, LAST):
            record = at
    # Without zeros the file was cut short, which LevelDB knows.
    return record if max(record, zeros_from) < len(data) else None


def cut_tail(folder: Path) -> bool:
    """Cut a torn record, and the zeros behind it, off the newest log in a database's directory.

    Return whether there was one, and log its size. If the newest logs are empty, the log before them is checked.
    Raises OSError.
    """
    has_cut = False
    for log in sorted(folder.glob("*.log"), key=lambda file: int(file.stem) if file.stem.isdigit() else -1)[::-1]:
        data = log.read_bytes()
        torn = torn_at(data)
        if torn is not None:
            with log.open("r+b") as file:
                file.truncate(torn)
                os.fsync(file.fileno())
            written = len(data.rstrip(b"\0"))
            _log.warning(
                "a torn end of the log was cut off file=%s kept_bytes=%d cut_bytes=%d zero_bytes=%d",
                log, torn, len(data) - torn, len(data) - max(written, torn),
            )  # fmt: skip
            has_cut = True
        if data.rstrip(b"\0"):
            break
    return has_cut
