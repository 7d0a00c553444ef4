"""The nursery of a relay client: all its parts start their tasks in it, and it is open while the client runs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVarTuple, Unpack

import trio

__all__ = ["BackgroundTasks"]

Arguments = TypeVarTuple("Arguments")


class BackgroundTasks:
    """Starts tasks that are cancelled together when the client stops."""

    def __init__(self) -> None:
        self.started = trio.Event()
        """Set when the client begins to run; it stays set."""
        self._nursery: trio.Nursery | None = None

    @property
    def is_running(self) -> bool:
        """Whether tasks can be started now."""
        return self._nursery is not None

    def attach(self, nursery: trio.Nursery) -> None:
        """Start tasks in ``nursery`` from now on."""
        self._nursery = nursery
        self.started.set()

    def detach(self) -> None:
        """Start no more tasks."""
        self._nursery = None

    def start(self, function: Callable[[Unpack[Arguments]], Awaitable[object]], *arguments: *Arguments) -> bool:
        """Start a task; False: the client does not run, and nothing was started."""
        if self._nursery is None:
            return False
        self._nursery.start_soon(function, *arguments)
        return True
