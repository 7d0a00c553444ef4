"""Builds methods of the Ethereum namespace: without ``min_height``, under one heading."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rpc.methods.method import Method, Submission
from rpc.methods.queues import QueueKind
from rpc.methods.schema import Param, Schema

__all__ = ["method"]


def method(
    name: str,
    summary: str,
    handle: Any,
    result: Schema,
    *params: Param,
    cost: int = 1,
    caller: bool = False,
    weigh: Callable[..., int] | None = None,
    queue: QueueKind | None = None,
    submission: Submission | None = None,
    may_revert: bool = False,
) -> Method:
    """Return the line; ``caller`` says whether ``handle`` gets the name of the caller's budget."""
    return Method(
        name,
        summary,
        handle,
        result,
        params,
        cost,
        has_min_height=False,
        needs_caller=caller,
        weigh=weigh,
        group="ethereum",
        queue=queue,
        may_revert=may_revert,
        submission=submission,
    )
