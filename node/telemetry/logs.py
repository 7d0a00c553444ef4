"""Structured logs: one line for one event, with fields; text on a terminal, JSON for machines."""

from __future__ import annotations

from node.home.options import LogOptions
from rpc.process.log_output import configure_structlog, set_log_level

__all__ = ["configure_logs", "set_log_level"]


def configure_logs(options: LogOptions) -> None:
    """Set up logging of this process once, at its start, onto standard error."""
    configure_structlog(options.level, options.format)
