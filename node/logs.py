"""Structured logs: one line for one event, with fields; text on a terminal, JSON for machines."""

from __future__ import annotations

import logging
import sys
from typing import Any

import structlog

from node.config import LogOptions

__all__ = ["configure_logs"]


def configure_logs(options: LogOptions) -> None:
    """Set up logging of this process once, at its start, onto standard error."""
    as_text = options.format == "text" or (options.format == "auto" and sys.stderr.isatty())
    level = getattr(logging, options.level.upper())
    renderer: Any = structlog.dev.ConsoleRenderer() if as_text else structlog.processors.JSONRenderer()
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            _hex_bytes,
            structlog.processors.format_exc_info,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr, format="%(levelname)s %(name)s %(message)s")


def _hex_bytes(_logger: Any, _method: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    for name, value in event.items():
        if isinstance(value, bytes):
            event[name] = "0x" + value.hex()
    return event
