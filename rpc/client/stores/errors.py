"""Errors of stores; each has a stable ``code``. No text of them has a key or a password."""

from __future__ import annotations

import errno
from pathlib import Path

from state.primitives.errors import ConfigError, StoreError

__all__ = [
    "StoreChanged", "StoreChecksum", "StoreDenied", "StoreExtraMissing", "StoreFull", "StoreMissing",
    "StoreRefused", "StoreTooLarge", "StoreUnreachable", "of_file",
]  # fmt: skip


class StoreDenied(StoreError):
    """The store does not take the keys, or there are none."""

    code = "store_denied"


class StoreMissing(StoreError):
    """There is no such bucket, object or prefix."""

    code = "store_missing"


class StoreChanged(StoreError):
    """An object or file changed during the transfer: start it again."""

    code = "store_changed"


class StoreFull(StoreError):
    """The disk or the store is full. What was transferred is kept."""

    code = "store_full"


class StoreChecksum(StoreError):
    """Content does not have the checksum that the store or the manifest names."""

    code = "store_checksum"


class StoreUnreachable(StoreError):
    """The store does not answer, or its answers were cut in all tries. What was transferred is kept."""

    code = "store_unreachable"


class StoreRefused(StoreError):
    """An answer of the store that is not taken: a key that is no file name, pages without end, a redirect."""

    code = "store_refused"


class StoreTooLarge(StoreError):
    """More bytes or files than may be transferred at once."""

    code = "store_too_large"


class StoreExtraMissing(ConfigError):
    """The packages for S3 are not installed."""

    code = "store_extra_missing"


_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def of_file(path: Path, error: OSError) -> StoreError:
    """Return the error for a failure of a file of this machine."""
    if error.errno in _FULL:
        return StoreFull(f"{path}: {error.strerror}; free space and run the command again: it goes on")
    return StoreError(f"{path}: {error.strerror}")
