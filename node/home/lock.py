"""Living in a home: one process at a time, with the folders that a restored one lacks."""

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
"""How often it is looked whether the lock file is still there."""


class HomeInUse(DekubeError):
    """Another process lives in the home."""

    code = "home_in_use"


@contextmanager
def live_in(home: Home) -> Iterator[None]:
    """Be the one process that lives in ``home``; a back-up has neither ``data`` nor ``run``, which are made.

    A lock file that is removed meanwhile is created again. If another process was faster, this one ends.
    Raises HomeInUse before anything of the other process is touched.
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
    """Take the lock of a home and write this process into it; return its descriptor. Raises HomeInUse."""
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
    """Look whether the lock file is still the one that was locked, until ``ended``; ``locks`` gets a new one."""
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
                "the lock file was removed and another process has taken this home: ends", error=str(error)
            )
            os.kill(os.getpid(), signal.SIGTERM)
            return
        except OSError as error:  # the folder is gone too, or the disk refuses
            if not was_refused:
                log.error("the lock file was removed and cannot be created again", error=str(error))
            was_refused = True
            continue
        was_refused = False
        log.warning(
            "the lock file was removed; it is created again. Do not remove it", path=str(home.root / LOCK_FILE)
        )


def _is_there(home: Home, lock: int) -> bool:
    try:
        return os.path.samestat(os.stat(home.root / LOCK_FILE), os.fstat(lock))
    except OSError:
        return False


@contextmanager
def look_into(home: Home) -> Iterator[None]:
    """Read in a home on a disk that may not be written, where nothing can be locked. Raises HomeInUse."""
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
