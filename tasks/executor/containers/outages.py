"""Waits while an engine or an API server does not answer: its service may be starting again."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

import trio

from tasks.executor.containers.errors import EngineUnavailable

__all__ = ["through_outage"]

T = TypeVar("T")


async def through_outage(
    call: Callable[[], Awaitable[T]], patience_s: float, again_s: float, on_away: Callable[[], None] | None = None
) -> T:
    """Repeat a call every ``again_s`` while nothing answers, after each failure with ``on_away``.

    Raises EngineUnavailable after ``patience_s``, and what else the call raises.
    """
    until = trio.current_time() + patience_s
    while True:
        try:
            return await call()
        except EngineUnavailable:
            if trio.current_time() > until:
                raise
        if on_away is not None:
            on_away()
        await trio.sleep(again_s)
