"""Interrupting the processes of jobs for a while: a speed trial has the machine to itself (market.md R76)."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

import trio

__all__ = ["Pausable", "Pauses"]


class Pausable(Protocol):
    """A process that can be sent a signal."""

    def signal(self, number: int) -> None:
        """Send a signal to it and what it started; nothing if it has ended."""


class Pauses:
    """The processes that stand still while somebody holds them. Time that they stand still is not theirs."""

    def __init__(self) -> None:
        self._processes: set[Pausable] = set()
        self._holders = 0
        self._since = self._before = 0.0

    @property
    def is_held(self) -> bool:
        """Whether they stand still now."""
        return self._holders > 0

    @property
    def total_s(self) -> float:
        """How long they stood still, all in all."""
        return self._before + (trio.current_time() - self._since if self._holders else 0.0)

    @contextmanager
    def joined(self, process: Pausable) -> Iterator[None]:
        """Count a process in; it stands still at once if the others do."""
        self._processes.add(process)
        try:
            if self._holders:
                process.signal(signal.SIGSTOP)
            yield
        finally:
            self._processes.discard(process)

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Have all stand still meanwhile."""
        if not self._holders:
            self._since = trio.current_time()
            for process in self._processes:
                process.signal(signal.SIGSTOP)
        self._holders += 1
        try:
            yield
        finally:
            self._holders -= 1
            if not self._holders:
                self._before += trio.current_time() - self._since
                for process in self._processes:
                    process.signal(signal.SIGCONT)
