"""Living in a home: one process at a time, with the folders that a restored one lacks."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from node.places import Home
from state.primitives.errors import DekubeError

__all__ = ["HomeInUse", "live_in"]

LOCK_FILE: Final = "run/lock"
PROCESS_LIMIT_BYTES: Final = 32


class HomeInUse(DekubeError):
    """Another process lives in the home."""

    code = "home_in_use"


@contextmanager
def live_in(home: Home) -> Iterator[None]:
    """Be the one process that lives in ``home``; a back-up has neither ``data`` nor ``run``, which are made.

    Raises HomeInUse before anything of the other process is touched.
    """
    for folder in ("data", "run"):
        (home.root / folder).mkdir(parents=True, exist_ok=True, mode=0o700)
    lock = os.open(home.root / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            process = os.read(lock, PROCESS_LIMIT_BYTES).decode(errors="replace").strip() or "not known yet"
            raise HomeInUse(
                f"{home.root}: a process lives here already (number {process}): stop it first; a second node, "
                "signer or relay takes a --home of its own"
            ) from None
        os.ftruncate(lock, 0)
        os.write(lock, b"%d\n" % os.getpid())
        yield
    finally:
        os.close(lock)
