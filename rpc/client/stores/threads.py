"""Transfers in several threads: the first failure stops the others, and is the one that is told."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, wait
from typing import Any

from state.primitives.errors import StoreError

__all__ = ["Stopped", "settle"]


class Stopped(StoreError):
    """Another part of the transfer failed, and this one stopped for it."""

    code = "store_stopped"


def settle(futures: Sequence[Future[Any]]) -> None:
    """Wait until all are done or one failed; raise the failure that made others stop."""
    wait(futures, return_when=FIRST_EXCEPTION)
    failed = _failures(futures)
    if failed and all(isinstance(error, Stopped) for error in failed):
        wait(futures)  # who has made them stop is about to fail
        failed = _failures(futures)
    for error in failed:
        if not isinstance(error, Stopped):
            raise error
    if failed:
        raise failed[0]


def _failures(futures: Sequence[Future[Any]]) -> list[BaseException]:
    done = [future for future in futures if future.done() and not future.cancelled()]
    return [error for future in done if (error := future.exception()) is not None]
