"""The method about relay payments: an account's deposit for relays, and what it owes them."""

from __future__ import annotations

from typing import Final

from rpc.methods.method import Json, Method, NodeApi
from rpc.methods.parameters import parameters_of
from rpc.methods.queues import QueueKind
from rpc.methods.render import ADDRESS_OUT, AMOUNT_OUT, AT, HASH_OUT, address, at, hexed
from rpc.methods.schema import ADDRESS, NUMBER, Param, array, nullable, obj
from state.view import Reader
from tasks.ledger.carriage import CarriageStanding, carriage_standing
from tasks.ledger.parameters import TaskParameters

__all__ = ["CARRIAGE_METHODS"]


def _standing(reader: Reader, who: bytes, now_ms: int, parameters: TaskParameters) -> CarriageStanding:
    return carriage_standing(reader, who, now_ms, parameters)


async def get_carriage(node: NodeApi, who: bytes) -> Json:
    """Answer ``dekube_getCarriage``."""
    head = node.head
    parameters = parameters_of(node.description.parameters).tasks
    found: CarriageStanding = await node.query(head.height, _standing, who, head.time_ms, parameters)
    deposit = found.deposit
    return {
        "at": at(head),
        "deposit": str(deposit.amount),
        "withdrawing": str(deposit.withdrawing),
        "release_ms": deposit.release_ms or None,
        "earning": found.is_earning,
        "room": found.has_room,
        "due": str(sum(item.due for item in found.relays)),
        "relays": [
            {
                "relay": address(item.relay),
                "channel": hexed(item.channel),
                "opened_ms": item.opened_ms,
                "bytes": item.size_bytes,
                "amount": str(item.amount),
                "due": str(item.due),
            }
            for item in found.relays
        ],
    }


CARRIAGE_METHODS: Final[tuple[Method, ...]] = (
    Method(
        "dekube_getCarriage",
        "Relay deposit of an account and its debt to each relay",
        get_carriage,
        obj(
            {
                "at": AT,
                "deposit": AMOUNT_OUT,
                "withdrawing": AMOUNT_OUT,
                "release_ms": nullable(NUMBER),
                "earning": {"type": "boolean"},
                "room": {"type": "boolean"},
                "due": AMOUNT_OUT,
                "relays": array(
                    obj(
                        {
                            "relay": ADDRESS_OUT,
                            "channel": HASH_OUT,
                            "opened_ms": NUMBER,
                            "bytes": NUMBER,
                            "amount": AMOUNT_OUT,
                            "due": AMOUNT_OUT,
                        }
                    )
                ),
            }
        ),
        (Param("address", ADDRESS, "The account that pays relays."),),
        cost=5,
        group="billing",
        queue=QueueKind.VIEW,
        routes=("/v1/accounts/{address}/carriage",),
    ),
)
