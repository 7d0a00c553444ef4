"""Where the node's processor time goes: for each stage of its work, the CPU seconds of the threads that did it.

The event loop's time is attributed to the part whose task ran, by what the task is called; work that a part does
for another stage, and all work in worker threads, is measured where it is called.
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
"""network: channels, gossip; rpc: answers to the gateway; admit: into the mempool; the others are of a block."""
_OF_MODULE: Final = {"p2p": "network", "relay": "network", "consensus": "consensus", "rpc": "rpc"}
_OF_PART: Final = {
    "network": "network", "transaction gossip": "network", "consensus": "consensus", "rpc backend": "rpc",
}  # fmt: skip


class CpuAccounting(trio.abc.Instrument):
    """Adds up CPU seconds by stage; give it to ``trio.run`` as an instrument.

    The clock is read once a step, since that costs as much as a short step: what the loop itself does between two
    steps counts with the second.
    """

    def __init__(self) -> None:
        self._on_loop = dict.fromkeys(STAGES, 0.0)  # written by the loop's thread alone
        self._beside = dict.fromkeys(STAGES, 0.0)
        self._lock = Lock()
        self._loop_thread = 0
        self._last = 0.0

    def seconds(self) -> dict[str, float]:
        """Return the sums until now."""
        with self._lock:
            return {stage: self._on_loop[stage] + self._beside[stage] for stage in STAGES}

    @contextmanager
    def measure(self, stage: str) -> Iterator[None]:
        """Count the CPU time of this thread in the block, which must not await, for ``stage``."""
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
        """Return what ``function`` returns, its CPU time counted for ``stage``."""
        with self.measure(stage):
            return function(*arguments)

    # The instrument's side: all on the event loop's thread.

    def before_run(self) -> None:
        """Note the loop's thread."""
        self._loop_thread = get_ident()
        self._last = thread_time()

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        """Count the step for the part whose task it was."""
        now = thread_time()
        self._on_loop[_stage_of(task.name)] += now - self._last
        self._last = now


@lru_cache(maxsize=512)
def _stage_of(task_name: str) -> str:
    return _OF_PART.get(task_name) or _OF_MODULE.get(task_name.partition(".")[0], "other")
