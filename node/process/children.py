"""Child processes that end with their parent, even if it is killed."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import IO, Final

import trio

__all__ = ["Child", "die_with_parent"]

_PR_SET_PDEATHSIG: Final = 1
_LIBC: Final = ctypes.CDLL(None, use_errno=True)


def die_with_parent(parent: int) -> None:
    """Let the kernel end this process when the thread that forked it ends (Linux ``prctl(2)``).

    ``parent`` is the process that forked. If it ended before this call, this process ends at once.
    """
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


class Child:
    """A running child in a session of its own, so that a terminal's Ctrl-C reaches only the parent.

    The calling thread forks on purpose: the death signal follows the forking *thread*, and a worker thread of the
    event loop may end long before the process.
    """

    def __init__(
        self, argv: Sequence[str], *, log: IO[bytes] | int | None = None, cwd: Path | None = None,
        environment: dict[str, str] | None = None, stdin: int = subprocess.DEVNULL, pass_fds: Sequence[int] = (),
    ) -> None:  # fmt: skip
        self._process = subprocess.Popen(
            list(argv),
            stdin=stdin,
            stdout=log,
            stderr=subprocess.STDOUT if log is not None else None,
            cwd=cwd,
            env=environment,
            start_new_session=True,
            preexec_fn=partial(die_with_parent, os.getpid()),  # two system calls: takes no lock
            pass_fds=tuple(pass_fds),
        )
        self.pid: int = self._process.pid

    @property
    def returncode(self) -> int | None:
        """Exit status; minus the signal number after a signal; None while it runs."""
        return self._process.poll()

    async def wait(self) -> int:
        """Wait until the child has ended; return its exit status."""
        if self._process.poll() is None:
            handle = os.pidfd_open(self.pid)
            try:
                await trio.lowlevel.wait_readable(handle)
            finally:
                os.close(handle)
        return self._process.wait()

    def signal(self, number: int) -> None:
        """Send a signal if the child still runs."""
        if self._process.poll() is None:
            self._process.send_signal(number)

    async def stop(self, grace_s: float) -> int:
        """Send SIGTERM; send SIGKILL if the child has not ended within ``grace_s``."""
        with trio.CancelScope(shield=True):
            self.signal(signal.SIGTERM)
            with trio.move_on_after(grace_s) as grace:
                await self.wait()
            if grace.cancelled_caught:
                self.signal(signal.SIGKILL)
                await self.wait()
        return self._process.wait()
