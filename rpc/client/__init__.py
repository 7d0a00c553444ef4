"""A typed client of the gateway: ``Client`` blocks, ``AsyncClient`` runs on trio and on asyncio (docs/sdk.md).

Neither needs the node: a key, a gateway's URL, and what is imported here.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rpc.client.aio import AsyncClient
    from rpc.client.core import Call, ClientOptions
    from rpc.client.errors import (
        AnswerMalformed,
        ArgumentInvalid,
        ClientClosed,
        ClientError,
        GatewayUnreachable,
        JobRefused,
        NoResult,
        OtherChain,
        ResultMismatch,
        TaskEnded,
        TransactionRefused,
        WebhookInvalid,
        WebhookUndelivered,
    )
    from rpc.client.sync import Client
    from rpc.client.tasks import CreatedTask, TaskResult, TaskUpdate

__all__ = [
    "AnswerMalformed",
    "ArgumentInvalid",
    "AsyncClient",
    "Call",
    "Client",
    "ClientClosed",
    "ClientError",
    "ClientOptions",
    "CreatedTask",
    "GatewayUnreachable",
    "JobRefused",
    "NoResult",
    "OtherChain",
    "ResultMismatch",
    "TaskEnded",
    "TaskResult",
    "TaskUpdate",
    "TransactionRefused",
    "WebhookInvalid",
    "WebhookUndelivered",
]

_ELSEWHERE = {
    "AsyncClient": "aio",
    "Call": "core",
    "Client": "sync",
    "ClientOptions": "core",
    "CreatedTask": "tasks",
    "TaskResult": "tasks",
    "TaskUpdate": "tasks",
}


def __getattr__(name: str) -> Any:
    """Load a name where it is used: the control socket needs no client, and a blocking one no HTTP library."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_ELSEWHERE.get(name, 'errors')}"), name)
