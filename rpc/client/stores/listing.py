"""Which objects are taken, and under which names: a store is not trusted. Pure.

Keys become paths below one folder. A key that no machine can have as a file is refused, as are two keys that
differ by case alone: on some disks they would be one file.
"""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Final, NamedTuple

from rpc.client.stores.errors import StoreRefused, StoreTooLarge
from tasks.kinds.folders import ENTRIES_MAX, ArchiveInvalid, check_name

__all__ = ["FETCHED_BYTES_MAX", "Listing", "Stored", "path_of_key"]

FETCHED_BYTES_MAX: Final = 1 << 40
"""Bytes of all objects that are fetched for one source."""
EMPTY_PAGES_MAX: Final = 100
TOKEN_CHARS_MAX: Final = 8_192


class Stored(NamedTuple):
    """An object: its path below the prefix, key, size and version (``etag``)."""

    path: PurePosixPath
    key: str
    size_bytes: int
    etag: str


def path_of_key(prefix: str, key: str) -> PurePosixPath:
    """Return the path of an object below a prefix, which is empty or ends with a slash. Raises StoreRefused."""
    if not key.startswith(prefix) or len(key) == len(prefix):
        raise StoreRefused(f"an object outside of the prefix is listed: {key[:80]!r}")
    inner = key[len(prefix) :]
    if any(part in ("", ".", "..") for part in inner.split("/")):
        raise StoreRefused(f"{key[:80]!r}: not the path of a file below the prefix")
    path = PurePosixPath(inner)
    try:
        check_name(path)
    except ArchiveInvalid as error:
        raise StoreRefused(str(error)) from None
    return path


class Listing:
    """Collects the pages of a listing, within limits. Raises StoreRefused, StoreTooLarge."""

    def __init__(self, prefix: str, *, limit_bytes: int = FETCHED_BYTES_MAX) -> None:
        self._prefix, self._limit_bytes = prefix, limit_bytes
        self._found: dict[str, Stored] = {}
        self._folders: set[str] = set()
        self._tokens: set[str] = set()
        self._empty = 0
        self.size_bytes = 0

    @property
    def objects(self) -> list[Stored]:
        """The objects, sorted by path."""
        return sorted(self._found.values(), key=lambda stored: stored.path.parts)

    def add(self, key: str, size_bytes: int, etag: str) -> None:
        """Take an object. Markers of folders, which are empty and end with a slash, are left out."""
        if key.endswith("/") and size_bytes == 0 and key.startswith(self._prefix):
            return
        path = path_of_key(self._prefix, key)
        if size_bytes < 0 or not etag:
            raise StoreRefused(f"{key[:80]!r}: listed without a size or version")
        folded = str(path).casefold()
        if folded in self._found:
            other = str(self._found[folded].path)
            raise StoreRefused(f"{str(path)[:80]!r} and {other[:80]!r} are one file on some disks")
        parents = {str(parent).casefold() for parent in path.parents if parent.parts}
        if folded in self._folders or parents & self._found.keys():
            raise StoreRefused(f"{str(path)[:80]!r} is both a file and a folder")
        if len(self._found) >= ENTRIES_MAX:
            raise StoreTooLarge(f"more than {ENTRIES_MAX} objects")
        self.size_bytes += size_bytes
        if self.size_bytes > self._limit_bytes:
            raise StoreTooLarge(f"more than {self._limit_bytes} bytes")
        self._folders |= parents
        self._found[folded] = Stored(path, key, size_bytes, etag)

    def turn(self, token: str, count: int) -> None:
        """Check the token of the next page, after one with ``count`` objects."""
        self._empty = 0 if count else self._empty + 1
        if token in self._tokens or self._empty > EMPTY_PAGES_MAX or len(token) > TOKEN_CHARS_MAX:
            raise StoreRefused("the listing has no end")
        if len(self._tokens) > ENTRIES_MAX:
            raise StoreTooLarge(f"more than {ENTRIES_MAX} pages")
        self._tokens.add(token)
