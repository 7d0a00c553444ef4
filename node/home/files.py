"""Files that a person names or that stand in a home: read up to a bound, whatever stands at their path.

The size that the file system tells is no bound: devices and pipes have none, and a file may grow. Opening a pipe
blocks until somebody opens it for writing.
"""

from __future__ import annotations

import errno
import os
import select
import stat
import time
from pathlib import Path
from typing import Final

__all__ = ["read_bounded"]

WRITER_S: Final = 2.0
"""How long to wait for a pipe's writer: a shell may start the writer after the reader."""
WRITER_LOOK_S: Final = 0.02
CHUNK_BYTES: Final = 1 << 20


def read_bounded(path: Path, limit_bytes: int) -> bytes:
    """Return the content of ``path``; of a longer one the first ``limit_bytes + 1`` bytes.

    A pipe is read until its writer closes it. Raises OSError, also for a pipe without a writer for WRITER_S: it
    must not pass for an empty file, which as a configuration would mean the defaults.
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
                raise OSError(errno.EPIPE, "a pipe that nobody writes to")
            time.sleep(WRITER_LOOK_S)
        data += chunk
    return bytes(data)
