"""``eth_subscribe`` over a WebSocket: new heads and logs in order and without gaps, and pending transactions.

See rpc.md 7.1.

Pending transactions are sent only as fast as the client reads them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from rpc.ethereum import render
from rpc.ethereum.logs import logs_in
from rpc.ethereum.params import TOPIC_FILTER
from rpc.gateway.node.client import NodeClient
from rpc.gateway.subscriptions import Selector, Session
from rpc.methods.log_filter import LogFilter
from rpc.methods.method import Json, Method
from rpc.methods.schema import STRING, Param, choice, text
from rpc.protocol.blocks import LoadedBlock
from rpc.protocol.errors import RpcError

__all__ = ["SESSION_METHODS"]

ENVELOPE: Final = "eth_subscription"
EVERYTHING: Final = LogFilter(frozenset(), ())


@dataclass(frozen=True, slots=True)
class NewHeads:
    """Selects every header."""

    envelope: str = ENVELOPE

    def __call__(self, loaded: LoadedBlock, node: NodeClient) -> list[Json]:
        """Return the header."""
        return [render.header(loaded, node.description)]


@dataclass(frozen=True, slots=True)
class Logs:
    """Selects logs by a filter, one notification for each."""

    logs: LogFilter
    envelope: str = ENVELOPE

    def __call__(self, loaded: LoadedBlock, _node: NodeClient) -> list[Json]:
        """Return the logs of a block."""
        return logs_in(loaded, self.logs)


async def _subscribe(session: Session, kind: str, wanted: LogFilter | bool | None) -> Json:
    """Answer ``eth_subscribe``."""
    select: Selector
    if kind == "newPendingTransactions":
        if wanted is True:
            raise _refuse("whole transactions are not told, ask for them by their hashes")
        if wanted not in (None, False):
            raise _refuse(f"not with {kind}")
        return (await session.start_of_pool(ENVELOPE)).identifier
    if kind == "newHeads":
        select = NewHeads()
    else:
        select = Logs(wanted if isinstance(wanted, LogFilter) else EVERYTHING)
    if isinstance(wanted, bool) if kind == "logs" else wanted not in (None, False, EVERYTHING):
        raise _refuse(f"not with {kind}")
    return session.start(select, None, select.logs.weight if isinstance(select, Logs) else 1).identifier


def _refuse(why: str) -> RpcError:
    return RpcError("invalid_params", f"invalid params: filter: {why}", param="filter")


async def _unsubscribe(session: Session, identifier: str) -> Json:
    """Answer ``eth_unsubscribe``."""
    return session.unsubscribe(identifier)


SESSION_METHODS: Final = (
    Method(
        "eth_subscribe",
        "Subscribes to heads, logs or pending transactions; sends `eth_subscription` notifications (WebSocket)",
        _subscribe,
        STRING,
        (
            Param("kind", choice("newHeads", "logs", "newPendingTransactions"), "Kind of notifications."),
            Param("filter", TOPIC_FILTER, "logs: address and topics.", required=False),
        ),
        cost=10,
        has_min_height=False,
        needs_session=True,
        group="ethereum",
    ),
    Method(
        "eth_unsubscribe",
        "Ends a subscription (WebSocket)",
        _unsubscribe,
        {"type": "boolean"},
        (Param("subscription", text(18), "What eth_subscribe returned."),),
        has_min_height=False,
        needs_session=True,
        group="ethereum",
    ),
)
