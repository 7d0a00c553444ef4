"""Bounded reads and durable writes of files in a home, and of files that a user names.

Reads are bounded explicitly: devices and pipes have no size, and a file may grow while it is read. Opening a pipe
blocks until a writer opens it.
"""

from __future__ import annotations

import errno
import os
import select
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from state.primitives.errors import ConfigError

__all__ = ["read_bounded", "sync_folder", "write_private", "write_whole"]

WRITER_S: Final = 2.0
"""Time to wait for a pipe's writer. A shell may start it after the reader."""
WRITER_LOOK_S: Final = 0.02
CHUNK_BYTES: Final = 1 << 16
"""A read allocates this much, even for a small file."""


def read_bounded(path: Path, limit_bytes: int) -> bytes:
    """Return the content of ``path``; of a longer file, the first ``limit_bytes + 1`` bytes.

    A pipe is read until its writer closes it. Raises OSError, also for a pipe without a writer for WRITER_S. Such
    a pipe must not count as an empty file, because an empty configuration means the defaults.
    """
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOCTTY | os.O_NONBLOCK)
    try:
        return _read(handle, limit_bytes + 1)
    finally:
        os.close(handle)


def _read(handle: int, size_bytes: int) -> bytes:
    data = bytearray()
    may_have_writer = stat.S_ISFIFO(os.fstat(handle).st_mode)
    ends = time.monotonic() + WRITER_S
    while len(data) < size_bytes:
        try:
            chunk = os.read(handle, min(CHUNK_BYTES, size_bytes - len(data)))
        except BlockingIOError:  # there is a writer: a password manager may ask its owner first
            select.select([handle], [], [])
            may_have_writer = False
            continue
        if not chunk:
            if data or not may_have_writer:
                break
            if time.monotonic() >= ends:
                raise OSError(errno.EPIPE, "this pipe has no writer")
            time.sleep(WRITER_LOOK_S)
        data += chunk
    return bytes(data)


def write_whole(path: Path, content: str | bytes) -> None:
    """Write or replace a file durably. After a crash it has the old or the new content, never a part."""
    temporary = path.with_name(path.name + ".new")
    with _removed_if_cut_off(temporary), temporary.open("wb") as file:
        file.write(content.encode() if isinstance(content, str) else content)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    sync_folder(path.parent)


def write_private(path: Path, text: str) -> None:
    """Write a new file with mode 0600, durably and atomically. Raises ConfigError if it exists."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise ConfigError(f"{path}: exists already; nothing was changed") from None
    with _removed_if_cut_off(path), os.fdopen(handle, "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def sync_folder(path: Path) -> None:
    """Sync a folder, so that its entries are durable."""
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def _removed_if_cut_off(path: Path) -> Iterator[None]:
    """Remove a partly written new file when writing fails, and name it in the error: a full disk names none."""
    try:
        yield
    except OSError as error:
        with suppress(OSError):
            path.unlink(missing_ok=True)
        raise OSError(error.errno, error.strerror, str(path)) from None
