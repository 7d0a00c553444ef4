"""Methods about committees and epochs, from the state."""

from __future__ import annotations

from typing import Final, NamedTuple

from rpc.methods.method import Json, Method, NodeApi
from rpc.methods.parameters import parameters_of
from rpc.methods.queues import QueueKind
from rpc.methods.render import ADDRESS_OUT, AMOUNT_OUT, AT, HASH_OUT, address, at, hexed
from rpc.methods.schema import NUMBER, Param, array, natural, nullable, obj
from rpc.protocol.errors import RpcError
from state.primitives.committee import Committee
from state.primitives.genesis import ChainParameters
from state.primitives.heads import Head
from state.transition.epochs import EpochInfo, Tally, epoch_of, first_height, load_epoch, load_tally
from state.transition.staking import load_committee
from state.view import Reader

__all__ = ["EPOCH_LIMIT", "EPOCH_METHODS"]

EPOCH_LIMIT: Final = 2**32
"""Epochs stay below."""


class _Epoch(NamedTuple):
    """``info`` is None for the epoch after the current one, ``tally`` where no block of it was made."""

    committee: Committee
    info: EpochInfo | None
    tally: Tally | None


async def get_committee(node: NodeApi, epoch: int | None) -> Json:
    """Answer ``dekube_getCommittee``."""
    asked_at, number, chain, found = await _find(node, epoch)
    committee = found.committee
    return {
        "at": at(asked_at),
        "epoch": number,
        "first_height": first_height(number, chain),
        "last_height": first_height(number + 1, chain) - 1,
        "quorum": str(committee.quorum),
        "weight": str(committee.weight),
        "hash": hexed(committee.hash),
        "seats": [
            {
                "seat": number,
                "address": address(seat.address),
                "vote_key": hexed(seat.vote_key),
                "vrf_key": hexed(seat.vrf_key),
                "weight": str(seat.weight),
            }
            for number, seat in enumerate(committee.seats)
        ],
        "order": list(committee.order),
    }


async def get_epoch(node: NodeApi, epoch: int | None) -> Json:
    """Answer ``dekube_getEpoch``."""
    asked_at, number, chain, found = await _find(node, epoch)
    committee, info, tally = found
    return {
        "at": at(asked_at),
        "epoch": number,
        "first_height": first_height(number, chain),
        "last_height": first_height(number + 1, chain) - 1,
        "version": None if info is None else info.version,
        "committee_hash": hexed(committee.hash),
        "weight": str(committee.weight),
        "lottery_weight": None if info is None else str(info.lottery_weight),
        "randomness_before": None if info is None else hexed(info.randomness),
        "randomness": None if tally is None else hexed(tally.randomness),
        "counted_blocks": 0 if tally is None else tally.blocks,
        "seats": [] if tally is None else _tallies(committee, tally),
    }


def _tallies(committee: Committee, tally: Tally) -> Json:
    rows = zip(committee.seats, tally.finalised, tally.led, tally.missed, tally.signals, strict=True)
    return [
        {
            "seat": number, "address": address(seat.address), "finalised": finalised, "led": led, "missed": missed,
            "signal": signal,
        }
        for number, (seat, finalised, led, missed, signal) in enumerate(rows)
    ]  # fmt: skip


async def _find(node: NodeApi, epoch: int | None) -> tuple[Head, int, ChainParameters, _Epoch]:
    head, chain = node.head, parameters_of(node.description.parameters).chain
    number = epoch_of(head.height + 1, chain) if epoch is None else epoch
    found = await node.query(head.height, _epoch_of, number, chain)
    if found is None:
        raise RpcError("not_found", f"epoch {number} is not selected yet, or forgotten", epoch=number)
    return head, number, chain, found


def _epoch_of(reader: Reader, epoch: int, chain: ChainParameters) -> _Epoch | None:
    committee = load_committee(reader, epoch)
    if committee is None:
        return None
    return _Epoch(committee, load_epoch(reader, epoch, chain), load_tally(reader, epoch))


_SEAT: Final = {"seat": NUMBER, "address": ADDRESS_OUT, "vote_key": HASH_OUT, "vrf_key": HASH_OUT}
_PLACE: Final = {"at": AT, "epoch": NUMBER, "first_height": NUMBER, "last_height": NUMBER}
_EPOCH: Final = Param(
    "epoch", natural(0, EPOCH_LIMIT - 1), "The epoch, from 0; absent: the epoch of the next block.", required=False
)

EPOCH_METHODS: Final = (
    Method(
        "dekube_getCommittee",
        "Committee of an epoch: current, next, or past within the evidence period",
        get_committee,
        obj(
            _PLACE
            | {
                "quorum": AMOUNT_OUT,
                "weight": AMOUNT_OUT,
                "hash": HASH_OUT,
                "seats": array(obj(_SEAT | {"weight": AMOUNT_OUT})),
                "order": array(NUMBER),
            }
        ),
        (_EPOCH,),
        cost=2,
        group="network",
        queue=QueueKind.VIEW,
        routes=("/v1/committee", "/v1/epochs/{epoch}/committee"),
    ),
    Method(
        "dekube_getEpoch",
        "Statistics of an epoch: version, randomness, and votes, led and missed views of each seat",
        get_epoch,
        obj(
            _PLACE
            | {
                "version": nullable(NUMBER),
                "committee_hash": HASH_OUT,
                "weight": AMOUNT_OUT,
                "lottery_weight": nullable(AMOUNT_OUT),
                "randomness_before": nullable(HASH_OUT),
                "randomness": nullable(HASH_OUT),
                "counted_blocks": NUMBER,
                "seats": array(
                    obj(
                        {
                            "seat": NUMBER,
                            "address": ADDRESS_OUT,
                            "finalised": NUMBER,
                            "led": NUMBER,
                            "missed": NUMBER,
                            "signal": NUMBER,
                        }
                    )
                ),
            }
        ),
        (_EPOCH,),
        cost=2,
        group="network",
        queue=QueueKind.VIEW,
        routes=("/v1/epochs/{epoch}",),
    ),
)
