"""Heads of archives in bounded memory: an archive of a stranger can say that a head has gigabytes.

``tarfile`` reads extended heads and maps of sparse files whole, before its caller sees the entry.
"""

from __future__ import annotations

import io
from typing import IO, Final

from state.primitives.errors import DekubeError

__all__ = ["HEAD_BYTES_MAX", "ArchiveInvalid", "HeadReader"]

HEAD_BYTES_MAX: Final = 1 << 16
"""Bytes of all heads of one entry: a path and a link of 4096 bytes each, with what stands around them."""


class ArchiveInvalid(DekubeError):
    """A folder cannot be packed, or an archive is none that may be unpacked."""

    code = "archive_invalid"


class HeadReader(io.RawIOBase):
    """A file of which ``tarfile`` reads no more than ``HEAD_BYTES_MAX`` for one entry; contents are not read here.

    The caller says with ``next_entry`` that it has seen one.
    """

    def __init__(self, file: IO[bytes]) -> None:
        self._file, self._left = file, HEAD_BYTES_MAX

    def next_entry(self) -> None:
        """Begin to count for the entry that follows."""
        self._left = HEAD_BYTES_MAX

    def readable(self) -> bool:
        """Whether it can be read."""
        return True

    def seekable(self) -> bool:
        """Whether places can be chosen."""
        return True

    def read(self, size: int = -1) -> bytes:
        """Return the bytes at the place. Raises ArchiveInvalid beyond the limit."""
        self._left -= size
        if size < 0 or self._left < 0:
            raise ArchiveInvalid(f"an entry with more than {HEAD_BYTES_MAX} bytes of heads")
        return self._file.read(size)

    def seek(self, offset: int, whence: int = 0) -> int:
        """Choose a place. Raises OverflowError, OSError, ValueError."""
        return self._file.seek(offset, whence)

    def tell(self) -> int:
        """Return the place."""
        return self._file.tell()
