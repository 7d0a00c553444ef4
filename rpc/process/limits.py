"""Limits of a process: how many files it may open, and how often Python looks for reference cycles."""

from __future__ import annotations

import contextlib
import gc
import resource
from typing import Final

__all__ = ["raise_descriptor_limit", "tune_collector"]

COLLECTOR_THRESHOLDS: Final = (20_000, 10, 20)


def raise_descriptor_limit(wanted: int) -> int:
    """Raise the limit of open files towards ``wanted``; return how many may be open now, at most ``wanted``."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return wanted
    limit = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
        return limit
    return soft


def tune_collector() -> None:
    """Make the garbage collector run less often, and exclude what exists now from its runs.

    Requests create no cycles, but thousands of pending requests make each run long.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*COLLECTOR_THRESHOLDS)
