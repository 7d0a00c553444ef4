"""Methods about the network: peers, known nodes, and how this node is reached."""

from __future__ import annotations

from typing import Any, Final

from rpc.methods import render
from rpc.methods.method import Json, Method, NodeApi
from rpc.methods.names import roles
from rpc.methods.pages import CURSOR_PARAM, LIMIT_PARAM, NEXT_OUT, cursor_mismatch
from rpc.methods.queues import QueueKind
from rpc.methods.render import ADDRESS_OUT, AMOUNT_OUT, AT, BOOLEAN_OUT, address, at
from rpc.methods.schema import NUMBER, STRING, array, make_cursor, nullable, obj, ref
from rpc.protocol.records import KnownNode
from rpc.protocol.requests import LiveRequests
from state.primitives.address import ADDRESS_BYTES
from state.transition.staking import load_stake
from state.view import Reader
from tasks.ledger.queries import find_node

__all__ = ["NETWORK_METHODS"]


def _registered(reader: Reader, addresses: list[bytes]) -> list[Json]:
    found = []
    for who in addresses:
        stake, record = load_stake(reader, who), find_node(reader, who)
        registered = [] if record is None else roles(record.profile.roles)
        found.append({"stake": None if stake is None else str(stake.amount), "registered_roles": registered})
    return found


def _node(item: KnownNode) -> Json:
    relays = [endpoint.split(":", 2) for endpoint in item.endpoints if endpoint.startswith("relay:")]
    return {
        "address": address(item.address),
        "connected": bool(item.is_connected),
        "roles": list(item.roles),
        "endpoints": [endpoint for endpoint in item.endpoints if not endpoint.startswith("relay:")],
        "relays": [
            {"address": address(bytes.fromhex(who)), "endpoint": f"tcp:{place}"} for _, who, place in relays
        ],
        "signed_ms": item.signed_ms,
        "expires_ms": item.expires_ms,
    }


async def get_peers(node: NodeApi) -> Json:
    """Answer ``dekube_getPeers``."""
    return {"at": at(node.head), "peers": [render.peer(peer) for peer in await node.request(LiveRequests.peers)]}


async def get_network(node: NodeApi, cursor: list[Any] | None, limit: int) -> Json:
    """Answer ``dekube_getNetwork``."""
    match cursor:
        case None:
            after = b""
        case ["network", bytes(after)] if len(after) == ADDRESS_BYTES:
            pass
        case _:
            raise cursor_mismatch()
    head = node.head
    found = await node.request(LiveRequests.network, after, limit + 1)
    items = found.nodes[:limit]
    said = await node.query(head.height, _registered, [item.address for item in items])
    return {
        "at": at(head),
        "reachability": {
            "how": found.how,
            "why": found.why,
            "endpoints": [{"endpoint": endpoint, "verdict": verdict} for endpoint, verdict in found.endpoints],
            "relays": list(found.relays),
        },
        "known": found.known,
        "items": [_node(item) | chain for item, chain in zip(items, said, strict=True)],
        "next": make_cursor(["network", items[-1].address]) if len(found.nodes) > limit else None,
    }


_REACHED: Final = obj(
    {
        "how": STRING,
        "why": STRING,
        "endpoints": array(obj({"endpoint": STRING, "verdict": STRING})),
        "relays": array(STRING),
    }
)
_KNOWN: Final = obj(
    {
        "address": ADDRESS_OUT,
        "connected": BOOLEAN_OUT,
        "roles": array(STRING),
        "endpoints": array(STRING),
        "relays": array(obj({"address": ADDRESS_OUT, "endpoint": STRING})),
        "signed_ms": NUMBER,
        "expires_ms": NUMBER,
        "stake": nullable(AMOUNT_OUT),
        "registered_roles": array(STRING),
    }
)

NETWORK_METHODS: Final = (
    Method(
        "dekube_getPeers",
        "Connected peers",
        get_peers,
        obj({"at": AT, "peers": array(ref("Peer"))}),
        cost=5,
        group="network",
        routes=("/v1/peers",),
    ),
    Method(
        "dekube_getNetwork",
        "Known nodes with endpoints, relays, stake and registered roles",
        get_network,
        obj({"at": AT, "reachability": _REACHED, "known": NUMBER, "items": array(_KNOWN), "next": NEXT_OUT}),
        (CURSOR_PARAM, LIMIT_PARAM),
        cost=10,
        group="network",
        queue=QueueKind.VIEW,
        routes=("/v1/network",),
    ),
)
