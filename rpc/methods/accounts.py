"""Methods about accounts: balance, nonce, stake, jail and slashes."""

from __future__ import annotations

from typing import Any, Final

from rpc.methods.heights import AT_HEIGHT, stamp, state_height
from rpc.methods.method import Json, Method, NodeApi
from rpc.methods.queues import QueueKind
from rpc.methods.render import ADDRESS_OUT, AMOUNT_OUT, AT, HASH_OUT, address, hexed
from rpc.methods.schema import ADDRESS, NUMBER, Param, array, nullable, obj
from rpc.methods.validators import JAIL_OUT, jail_json
from state.transition.jail import load_jail
from state.transition.staking import load_stake, unbondings_of
from state.view import Reader
from state.view.accounts import BALANCE_MASK, account_key

__all__ = ["ACCOUNT_METHODS", "ACCOUNT_PARAM", "PARTY_PARAM", "nonce_and_balance"]


def nonce_and_balance(record: bytes | None) -> tuple[int, int]:
    """Return nonce and balance of an account's record; None: there is none."""
    packed = 0 if record is None else int.from_bytes(record, "big")
    return packed >> 128, packed & BALANCE_MASK


async def get_balance(node: NodeApi, who: bytes, height: int | None) -> Json:
    """Answer ``dekube_getBalance``."""
    number = state_height(node, height)
    [record] = await node.read(number, account_key(who))
    return {"at": await stamp(node, number), "balance": str(nonce_and_balance(record)[1])}


async def get_nonce(node: NodeApi, who: bytes) -> Json:
    """Answer ``dekube_getNonce``."""
    number = node.head.height
    [record] = await node.read(number, account_key(who))
    nonce, _ = nonce_and_balance(record)
    return {
        "at": await stamp(node, number),
        "nonce": nonce,
        "pending_nonce": max(nonce, await node.pending_nonce(who)),
    }


async def get_account(node: NodeApi, who: bytes, height: int | None) -> Json:
    """Answer ``dekube_getAccount``."""
    number = state_height(node, height)
    [record] = await node.read(number, account_key(who))
    nonce, balance = nonce_and_balance(record)
    stake, unbonding, jail = await node.query(number, _stake_of, who)
    return {
        "at": await stamp(node, number),
        "address": address(who),
        "balance": str(balance),
        "nonce": nonce,
        "pending_nonce": max(nonce, await node.pending_nonce(who)),
        "stake": None
        if stake is None
        else {
            "amount": str(stake.amount),
            "vote_key": hexed(stake.vote_key),
            "vrf_key": hexed(stake.vrf_key),
        },
        "jail": jail_json(jail),
        "unbonding": [{"amount": str(item.amount), "release_time_ms": item.time_ms} for item in unbonding],
    }


def _stake_of(reader: Reader, who: bytes) -> Any:
    return load_stake(reader, who), unbondings_of(reader, who), load_jail(reader, who)


ACCOUNT_PARAM: Final = Param("address", ADDRESS, "The account.")
PARTY_PARAM: Final = Param("address", ADDRESS, "The node's or account's address.")

ACCOUNT_METHODS: Final[tuple[Method, ...]] = (
    Method(
        "dekube_getBalance",
        "The free balance of an account",
        get_balance,
        obj({"at": AT, "balance": AMOUNT_OUT}),
        (ACCOUNT_PARAM, AT_HEIGHT),
        group="accounts",
        routes=(),
    ),
    Method(
        "dekube_getNonce",
        "Next nonce of an account: from the state, and including pending transactions",
        get_nonce,
        obj({"at": AT, "nonce": NUMBER, "pending_nonce": NUMBER}),
        (ACCOUNT_PARAM,),
        group="accounts",
        routes=(),
    ),
    Method(
        "dekube_getAccount",
        "Balance, nonces, stake and unbonding of an account",
        get_account,
        obj(
            {
                "at": AT,
                "address": ADDRESS_OUT,
                "balance": AMOUNT_OUT,
                "nonce": NUMBER,
                "pending_nonce": NUMBER,
                "stake": nullable(obj({"amount": AMOUNT_OUT, "vote_key": HASH_OUT, "vrf_key": HASH_OUT})),
                "jail": JAIL_OUT,
                "unbonding": array(obj({"amount": AMOUNT_OUT, "release_time_ms": NUMBER})),
            }
        ),
        (ACCOUNT_PARAM, AT_HEIGHT),
        cost=10,
        group="accounts",
        queue=QueueKind.VIEW,
        routes=("/v1/accounts/{address}",),
    ),
)
