"""CPU seconds of the node by stage of work.

The event loop's time counts for the component whose task ran, by the task's name. Work that a component does for
another stage, and all work in worker threads, is measured at the call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from threading import Lock, get_ident
from time import thread_time
from typing import Final, TypeVar

import trio

__all__ = ["STAGES", "CpuAccounting"]

_T = TypeVar("_T")

STAGES: Final = ("network", "consensus", "rpc", "admit", "decode", "build", "check", "execute", "commit", "other")
"""network: channels and gossip; rpc: answers to the gateway; admit: into the mempool. The others are stages of a
block."""
_OF_MODULE: Final = {"p2p": "network", "relay": "network", "consensus": "consensus", "rpc": "rpc"}
_OF_PART: Final = {
    "network": "network", "transaction gossip": "network", "consensus": "consensus", "rpc backend": "rpc",
}  # fmt: skip


class CpuAccounting(trio.abc.Instrument):
    """Sums CPU seconds by stage; pass it to ``trio.run`` as an instrument.

    The clock is read once per step, because reading costs as much as a short step. The loop's own work between two
    steps counts for the second one.
    """

    def __init__(self) -> None:
        self._on_loop = dict.fromkeys(STAGES, 0.0)  # written by the loop's thread alone
        self._beside = dict.fromkeys(STAGES, 0.0)
        self._lock = Lock()
        self._loop_thread = 0
        self._last = 0.0

    def seconds(self) -> dict[str, float]:
        """Return the current sums."""
        with self._lock:
            return {stage: self._on_loop[stage] + self._beside[stage] for stage in STAGES}

    @contextmanager
    def measure(self, stage: str) -> Iterator[None]:
        """Count this thread's CPU time in the block for ``stage``. The block must not await."""
        begun = thread_time()
        try:
            yield
        finally:
            spent = thread_time() - begun
            if get_ident() == self._loop_thread:
                self._on_loop[stage] += spent
                self._last += spent  # not of the task's own stage
            else:
                with self._lock:
                    self._beside[stage] += spent

    def call(self, stage: str, function: Callable[..., _T], *arguments: object) -> _T:
        """Call ``function``, count its CPU time for ``stage``, and return its result."""
        with self.measure(stage):
            return function(*arguments)

    # The instrument's side: all on the event loop's thread.

    def before_run(self) -> None:
        """Note the loop's thread."""
        self._loop_thread = get_ident()
        self._last = thread_time()

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        """Count the step for the component that owns the task."""
        now = thread_time()
        self._on_loop[_stage_of(task.name)] += now - self._last
        self._last = now


@lru_cache(maxsize=512)
def _stage_of(task_name: str) -> str:
    return _OF_PART.get(task_name) or _OF_MODULE.get(task_name.partition(".")[0], "other")
