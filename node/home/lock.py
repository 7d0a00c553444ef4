"""The lock of a home: one process at a time uses it. Missing folders are created."""

from __future__ import annotations

import fcntl
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from node.home.paths import Home
from state.primitives.errors import DekubeError

__all__ = ["HomeInUse", "live_in", "look_into"]

LOCK_FILE: Final = "run/lock"
PROCESS_LIMIT_BYTES: Final = 32
LOOK_S: Final = 2.0
"""Interval of the check that the lock file still exists."""


class HomeInUse(DekubeError):
    """Another process uses the home."""

    code = "home_in_use"


@contextmanager
def live_in(home: Home) -> Iterator[None]:
    """Hold the lock of ``home``. Creates ``data`` and ``run``, which a backup does not contain.

    A lock file that is removed meanwhile is created again. If another process got it first, this process ends.
    Raises HomeInUse before it touches any file of the other process.
    """
    for folder in ("data", "run"):
        (home.root / folder).mkdir(parents=True, exist_ok=True, mode=0o700)
    locks = [_lock(home)]
    ended = threading.Event()
    watching = threading.Thread(target=_keep, args=(home, locks, ended), daemon=True, name="home lock")
    watching.start()
    try:
        yield
    finally:
        ended.set()
        watching.join()
        for lock in locks:
            os.close(lock)


def _lock(home: Home) -> int:
    """Take the lock of a home and write this process id into it; return its descriptor. Raises HomeInUse."""
    lock = os.open(home.root / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        process = os.read(lock, PROCESS_LIMIT_BYTES).decode(errors="replace").strip() or "not known yet"
        os.close(lock)
        raise HomeInUse(
            f"{home.root}: a running process (pid {process}) uses this home. Stop it first. A second node, "
            "signer or relay needs another --home"
        ) from None
    os.ftruncate(lock, 0)
    os.write(lock, b"%d\n" % os.getpid())
    return lock


def _keep(home: Home, locks: list[int], ended: threading.Event) -> None:
    """Check until ``ended`` that the lock file is the locked one. A new descriptor is added to ``locks``."""
    was_refused = False
    while not ended.wait(LOOK_S):
        if _is_there(home, locks[-1]):
            continue
        import structlog  # few commands live in a home for so long

        log = structlog.get_logger("home")
        try:
            locks.append(_lock(home))
        except HomeInUse as error:
            log.critical(
                "the lock file was removed and another process has taken this home: this process ends",
                error=str(error),
            )
            os.kill(os.getpid(), signal.SIGTERM)
            return
        except OSError as error:  # the folder is gone too, or the disk refuses
            if not was_refused:
                log.error(
                    "the lock file was removed and cannot be created again: check the disk",
                    error=str(error),
                )
            was_refused = True
            continue
        was_refused = False
        log.warning(
            "the lock file was removed and is created again. Do not remove it while the node runs",
            path=str(home.root / LOCK_FILE),
        )


def _is_there(home: Home, lock: int) -> bool:
    try:
        return os.path.samestat(os.stat(home.root / LOCK_FILE), os.fstat(lock))
    except OSError:
        return False


@contextmanager
def look_into(home: Home) -> Iterator[None]:
    """Read a home on a read-only disk, where no lock can be taken. Raises HomeInUse."""
    try:
        lock = os.open(home.root / LOCK_FILE, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        yield
        return
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        raise HomeInUse(f"{home.root}: a running process uses this home. Stop it first") from None
    else:
        yield
    finally:
        os.close(lock)
