"""Stops a service in order at SIGTERM or SIGINT."""

from __future__ import annotations

import signal
from collections.abc import Callable

import structlog
import trio

__all__ = ["stop_on_signal"]


async def stop_on_signal(
    log: structlog.typing.FilteringBoundLogger, stop: Callable[[], None],
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:  # fmt: skip
    """Call ``stop`` at each SIGTERM and SIGINT of this process until cancelled."""
    with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        task_status.started()
        async for _ in signals:
            log.info("a stop signal arrived: the service ends")
            stop()
