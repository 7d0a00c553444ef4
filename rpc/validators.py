"""Who has stake: the keys, the amount, and what is held against each."""

from __future__ import annotations

from typing import Any, Final

from rpc.heights import AT_HEIGHT, stamp, state_height
from rpc.render import ADDRESS_OUT, AMOUNT_OUT, AT, HASH_OUT, address, hexed
from rpc.schema import NUMBER, Schema, array, nullable, obj
from rpc.table import Json, Method, Node
from rpc.turns import Lane
from state.transition.jail import FOREVER, JailRecord, list_jails
from state.transition.staking import list_stakes
from state.view import Reader

__all__ = ["FOUNDER_OUT", "JAIL_OUT", "VALIDATOR_METHODS", "jail_json"]

STAKES_MAX: Final = 1024


def jail_json(record: JailRecord | None) -> Json:
    """Return what is held against an operator; ``until_epoch`` is null where that is for ever."""
    if record is None:
        return None
    return {"until_epoch": None if record.until_epoch == FOREVER else record.until_epoch, "times": record.times}


async def get_validators(node: Node, height: int | None) -> Json:
    """Answer ``dekube_getValidators``."""
    number = state_height(node, height)
    stakes, jails = await node.query(number, _stakes)
    return {
        "at": await stamp(node, number),
        "validators": [
            {
                "address": address(who),
                "vote_key": hexed(record.vote_key),
                "vrf_key": hexed(record.vrf_key),
                "stake": str(record.amount),
                "jail": jail_json(jails.get(who)),
            }
            for who, record in stakes
        ],
    }


def _stakes(reader: Reader) -> Any:
    return list_stakes(reader)[:STAKES_MAX], dict(list_jails(reader))


JAIL_OUT: Final[dict[str, Any]] = nullable(obj({"until_epoch": nullable(NUMBER), "times": NUMBER}))
_STAKER: Final[dict[str, Schema]] = {
    "address": ADDRESS_OUT,
    "vote_key": HASH_OUT,
    "vrf_key": HASH_OUT,
    "stake": AMOUNT_OUT,
}
FOUNDER_OUT: Final = obj(_STAKER)
"""A validator of the genesis."""

VALIDATOR_METHODS: Final[tuple[Method, ...]] = (
    Method(
        "dekube_getValidators",
        "All that have stake, with their keys and what is held against them",
        get_validators,
        obj({"at": AT, "validators": array(obj(_STAKER | {"jail": JAIL_OUT}), maximum=STAKES_MAX)}),
        (AT_HEIGHT,),
        cost=5,
        group="network",
        lane=Lane.VIEW,
    ),
)
