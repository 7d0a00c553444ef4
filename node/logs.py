"""Structured logs: one line for one event, with fields; text on a terminal, JSON for machines."""

from __future__ import annotations

import io
import logging
import re
import sys
from typing import Any, Final, TextIO, cast

import structlog

from node.config import LogOptions

__all__ = ["configure_logs", "set_log_level"]

_METHODS: Final = ("debug", "info", "warning", "warn", "error", "exception", "critical", "fatal", "log", "msg")
_CONTROL: Final = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")


def configure_logs(options: LogOptions) -> None:
    """Set up logging of this process once, at its start, onto standard error."""
    set_log_level(options.level)
    as_text = options.format == "text" or (options.format == "auto" and sys.stderr.isatty())
    renderer: Any = structlog.dev.ConsoleRenderer() if as_text else structlog.processors.JSONRenderer()
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            _plain,
            structlog.processors.format_exc_info,
            renderer,
        ],
        wrapper_class=_Logger,
        logger_factory=structlog.PrintLoggerFactory(cast(TextIO, _Stderr())),
        cache_logger_on_first_use=True,
    )
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr, format="%(levelname)s %(name)s %(message)s")


class _Stderr(io.TextIOBase):
    """Standard error as it is now: a bar on the terminal takes its place for a while, to stay below the lines."""

    def write(self, text: str) -> int:
        return sys.stderr.write(text)

    def flush(self) -> None:
        sys.stderr.flush()


class _Logger(structlog.make_filtering_bound_logger(logging.INFO)):  # type: ignore[misc]
    """A logger whose level may change while it is in use: what is not logged costs one empty call."""

    level = "info"


def set_log_level(level: str) -> str:
    """Log ``level`` and above from now on, and return what was the level before."""
    before, _Logger.level = _Logger.level, level
    filtered = structlog.make_filtering_bound_logger(getattr(logging, level.upper()))
    for name in _METHODS:
        setattr(_Logger, name, getattr(filtered, name))
    return before


def _plain(_logger: Any, _method: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    """Show bytes as hex, and escape what a stranger's text could forge lines or steer a terminal with."""
    for name, value in event.items():
        if isinstance(value, bytes):
            event[name] = "0x" + value.hex()
        elif isinstance(value, str) and not value.isprintable():
            event[name] = _CONTROL.sub(lambda found: ascii(found[0])[1:-1], value)
    return event
