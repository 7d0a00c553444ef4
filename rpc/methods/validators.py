"""Methods about validators: keys, stake, jail and slashes."""

from __future__ import annotations

from typing import Any, Final

from rpc.methods.heights import AT_HEIGHT, stamp, state_height
from rpc.methods.method import Json, Method, NodeApi
from rpc.methods.parameters import parameters_of
from rpc.methods.queues import QueueKind
from rpc.methods.render import ADDRESS_OUT, AMOUNT_OUT, AT, HASH_OUT, address, hexed
from rpc.methods.schema import NUMBER, Schema, array, nullable, obj
from state.primitives.committee import SEATS_MAX
from state.primitives.genesis import ChainParameters
from state.transition.epochs import epoch_of, last_height
from state.transition.jail import FOREVER, JailRecord, list_jails
from state.transition.staking import (
    NOTICE_EPOCHS,
    list_stakes,
    load_committee,
    load_stake,
    unbondings_of,
    withdrawable,
)
from state.view import Reader

__all__ = ["FOUNDER_OUT", "JAIL_OUT", "VALIDATOR_METHODS", "jail_json"]

STAKES_MAX: Final = 1024


def jail_json(record: JailRecord | None) -> Json:
    """Return the jail of an operator as JSON; ``until_epoch`` is null if it is permanent."""
    if record is None:
        return None
    return {"until_epoch": None if record.until_epoch == FOREVER else record.until_epoch, "times": record.times}


async def get_validators(node: NodeApi, height: int | None) -> Json:
    """Answer ``dekube_getValidators``."""
    number = state_height(node, height)
    chain = parameters_of(node.description.parameters).chain
    stakes, jails, leaving, left = await node.query(number, _stakes, number, chain)
    return {
        "at": await stamp(node, number),
        "withdrawable": str(left),
        "leaving": [
            {"address": address(who), "last_epoch": epoch, "last_height": last_height(epoch, chain)}
            for who, epoch in leaving
        ],
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


def _stakes(reader: Reader, height: int, chain: ChainParameters) -> Any:
    leaving = _leaving(reader, epoch_of(height + 1, chain))
    return list_stakes(reader)[:STAKES_MAX], dict(list_jails(reader)), leaving, withdrawable(reader, chain)


def _leaving(reader: Reader, epoch: int) -> list[tuple[bytes, int]]:
    """Return genesis validators that vote without stake in this or the next epoch, with their last epoch."""
    found: dict[bytes, int] = {}
    for known in (epoch, epoch + 1):
        committee = load_committee(reader, known)
        for seat in committee.seats if committee is not None else ():
            if load_stake(reader, seat.address) is None:
                found[seat.address] = known
    for who, last in found.items():
        withdrawn = [item.epoch for item in unbondings_of(reader, who)]
        if withdrawn:
            found[who] = max(last, max(withdrawn) + NOTICE_EPOCHS - 1)
    return sorted(found.items())


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
        "Validators with stake, keys, jail and slashing record; genesis validators that still vote without stake; "
        "stake that can still be withdrawn in this epoch",
        get_validators,
        obj(
            {
                "at": AT,
                "withdrawable": AMOUNT_OUT,
                "leaving": array(
                    obj({"address": ADDRESS_OUT, "last_epoch": NUMBER, "last_height": NUMBER}),
                    maximum=2 * SEATS_MAX,
                ),
                "validators": array(obj(_STAKER | {"jail": JAIL_OUT}), maximum=STAKES_MAX),
            }
        ),
        (AT_HEIGHT,),
        cost=5,
        group="network",
        queue=QueueKind.VIEW,
        routes=("/v1/validators",),
    ),
)
