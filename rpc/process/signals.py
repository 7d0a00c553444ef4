"""Ignores the signals of log rotation from the start of a service.

Log rotation sends SIGHUP, SIGUSR1 or SIGUSR2 to make a program reopen its log file; a service writes to standard
error and has none. By default each of the three ends a process at once, without removing its files, and a service
manager takes an end by SIGHUP for a clean one.
"""

from __future__ import annotations

import os
import signal
from types import FrameType
from typing import Final

import structlog

from rpc.process.log_output import LOG_OUTPUT

__all__ = ["ignore_log_signals"]

_log = structlog.get_logger("signals")

IGNORED: Final = (signal.SIGUSR1, signal.SIGUSR2)


def ignore_log_signals() -> None:
    """Ignore SIGUSR1 and SIGUSR2 with a line in the log, and SIGHUP unless a terminal sent it.

    A service that was started at a terminal ends in order when that is closed, as by SIGTERM, unless SIGHUP was
    already ignored (``nohup``). Call it first of all in the main thread. Handlers are used and not SIG_IGN,
    because a child process would inherit what this one ignores.
    """
    for number in IGNORED:
        signal.signal(number, _ignore)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        signal.signal(signal.SIGHUP, _stop if _has_terminal() else _ignore)


def _has_terminal() -> bool:
    return any(os.isatty(descriptor) for descriptor in (0, 2))


def _ignore(number: int, _frame: FrameType | None) -> None:
    _say("ignored a signal: logs go to standard error, there is no file to reopen", signal.Signals(number))


def _stop(number: int, _frame: FrameType | None) -> None:
    _say("the terminal was closed", signal.Signals(number))
    signal.raise_signal(signal.SIGTERM)


def _say(text: str, number: signal.Signals) -> None:
    if structlog.is_configured():
        _log.info(text, signal=number.name)
    else:  # the service has not read its options yet
        LOG_OUTPUT.write(f"{text} ({number.name})\n")
