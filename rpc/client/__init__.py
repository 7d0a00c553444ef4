"""A typed client of the gateway: ``Client`` blocks, ``AsyncClient`` runs on trio and on asyncio (docs/sdk.md).

Neither needs the node: a key, a gateway's URL, and what is imported here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rpc.client.core import Call, ClientOptions
from rpc.client.errors import (
    AnswerMalformed,
    ClientError,
    GatewayUnreachable,
    NoResult,
    ResultMismatch,
    TaskEnded,
    TransactionRefused,
)
from rpc.client.sync import Client
from rpc.client.tasks import CreatedTask, TaskResult, TaskUpdate

if TYPE_CHECKING:
    from rpc.client.aio import AsyncClient

__all__ = [
    "AnswerMalformed",
    "AsyncClient",
    "Call",
    "Client",
    "ClientError",
    "ClientOptions",
    "CreatedTask",
    "GatewayUnreachable",
    "NoResult",
    "ResultMismatch",
    "TaskEnded",
    "TaskResult",
    "TaskUpdate",
    "TransactionRefused",
]


def __getattr__(name: str) -> Any:
    if name == "AsyncClient":  # its HTTP library is not for those that block
        from rpc.client.aio import AsyncClient

        return AsyncClient
    raise AttributeError(name)
