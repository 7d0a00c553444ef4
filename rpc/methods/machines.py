"""Methods about registered machines: their registration, their record, and their current duties."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from billing.prices import hour_price
from rpc.methods.accounts import PARTY_PARAM
from rpc.methods.heights import stamp
from rpc.methods.method import Json, Method, NodeApi
from rpc.methods.names import roles, word, words_of
from rpc.methods.pages import CURSOR_PARAM, LIMIT_PARAM, NEXT_OUT, cursor_of, start_of_page
from rpc.methods.parameters import parameters_of
from rpc.methods.queues import QueueKind
from rpc.methods.render import ADDRESS_OUT, AMOUNT_OUT, AT, BOOLEAN_OUT, HASH_OUT, address, hexed
from rpc.methods.schema import NUMBER, STRING, Schema, array, nullable, obj, ref
from state.view import Reader
from tasks.ledger.parameters import TaskParameters
from tasks.ledger.queries import find_node, list_nodes, verification_duties, work_duties
from tasks.ledger.registry import NodeRecord, NodeStatus, is_limited, is_present
from tasks.ledger.reputation import reputation_milli
from tasks.ledger.tampering import TamperRecord, load_tamper
from tasks.ledger.trials import TrialPhase, TrialRecord, asks_from_ms, find_trial, measured_rate, rounds_behind

__all__ = ["MACHINE_COMPONENTS", "MACHINE_METHODS"]


class _Shown(NamedTuple):
    """A machine, its speed trial, the rate that counts now, and rounds since the last one that it went through."""

    record: NodeRecord
    trial: TrialRecord | None
    rate: int | None
    behind: int
    tamper: TamperRecord | None


def _shown(
    reader: Reader, records: Sequence[NodeRecord], now_ms: int, parameters: TaskParameters
) -> tuple[_Shown, ...]:  # fmt: skip
    trials = ((each, find_trial(reader, each.address)) for each in records)
    return tuple(
        _Shown(
            each, trial, measured_rate(reader, each, now_ms, parameters),
            0 if trial is None else rounds_behind(reader, trial), load_tamper(reader, each.address),
        )
        for each, trial in trials
    )  # fmt: skip


def _trial(shown: _Shown, parameters: TaskParameters) -> Json | None:
    trial = shown.trial
    if trial is None:
        return None
    return {
        "phase": word(trial.phase),
        "begun_ms": trial.begun_ms or None,
        "due_ms": trial.due_ms or None,
        "verifier": address(trial.verifier) if trial.verifier else None,
        "rate": trial.rate,
        "measured_ms": trial.measured_ms or None,
        "checked": bool(trial.is_checked),
        "round_rate": max(trial.cap, trial.cap_before),
        "rounds_missed": trial.misses,
        "rounds_behind": shown.behind,
        "ask_from_ms": asks_from_ms(trial, parameters) or None,
    }


def _hour_rate(shown: _Shown) -> int:
    """Return the rate by which an hour is priced: what a trial measured while that counts, else the claim."""
    return shown.record.profile.rate if shown.trial is None or shown.rate is None else shown.trial.rate


def _tampering(found: TamperRecord | None) -> Json | None:
    if found is None:
        return None
    return {
        "sign": word(found.sign),
        "task": hexed(found.task),
        "reported_ms": found.reported_ms,
        "until_ms": found.until_ms,
        "reports": found.reports,
    }


def _node(shown: _Shown, node: NodeApi) -> Json:
    now_ms, parameters = node.head.steady_ms, parameters_of(node.description.parameters).tasks
    record = shown.record
    profile = record.profile
    return {
        "address": address(record.address),
        "operator": address(profile.operator),
        "payout": address(record.payout),
        "status": word(record.status),
        "roles": roles(profile.roles),
        "limited": is_limited(profile),
        "gpus": [{"model": gpu.model, "memory_mib": gpu.memory_mib} for gpu in profile.gpus],
        "cores": profile.cores,
        "memory_mib": profile.memory_mib,
        "pcie_lanes": profile.pcie_lanes,
        "price_per_tera_unit": str(profile.price_per_tera_unit),
        "rate": profile.rate,
        "measured_rate": shown.rate,
        "trial": _trial(shown, parameters),
        "price_per_device_hour": str(hour_price(_hour_rate(shown), profile.price_per_tera_unit)),
        "slots": profile.slots,
        "busy_slots": record.busy_slots,
        "owed_ms": record.owed_ms,
        "notice_ms": profile.notice_ms,
        "until_ms": profile.until_ms or None,
        "egress": list(profile.egress),
        "endpoints": list(profile.endpoints),
        "version": profile.version,
        "registered_height": record.registered_height,
        "seen_ms": record.seen_ms,
        "renewed_ms": record.renewed_ms,
        "present": is_present(record, now_ms, parameters),
        "bond": str(record.bond),
        "backing": str(record.backing),
        "sponsor": address(record.sponsor) if any(record.sponsor) else None,
        "sponsored": str(record.sponsored),
        "sponsor_leaving": str(record.leaving),
        "sponsor_leaves_ms": record.leaves_ms,
        "sponsor_share_bps": record.share_bps,
        "withhold_bps": record.withhold_bps,
        "withhold_until": str(record.withhold_to),
        "withheld": str(record.withheld),
        "failures": record.failures,
        "cool_down_until_ms": record.cool_down_until_ms,
        "good": record.good,
        "bad": record.bad,
        "valid_streak": record.valid_streak,
        "proved": str(record.proved),
        "declines": record.declines,
        "match_from_ms": record.match_from_ms,
        "doubts": record.doubts,
        "reputation_milli": reputation_milli(record),
        "tampering": _tampering(shown.tamper),
    }


async def get_node(node: NodeApi, who: bytes) -> Json:
    """Answer ``dekube_getNode``."""
    height = node.head.height
    found = await node.query(height, _find_shown, who, *_now(node))
    return {"at": await stamp(node, height), "node": _node(found[0], node) if found else None}


async def get_nodes(node: NodeApi, cursor: list[Any] | None, limit: int) -> Json:
    """Answer ``dekube_getNodes``."""
    height, after = start_of_page(node, b"nodes", cursor)
    items, after = await node.query(height, _list_shown, after, limit, *_now(node))
    return {
        "at": await stamp(node, height),
        "items": [_node(shown, node) for shown in items],
        "next": cursor_of(height, b"nodes", after),
    }


def _now(node: NodeApi) -> tuple[int, TaskParameters]:
    return node.head.steady_ms, parameters_of(node.description.parameters).tasks


def _find_shown(reader: Reader, who: bytes, now_ms: int, parameters: TaskParameters) -> tuple[_Shown, ...]:
    record = find_node(reader, who)
    return () if record is None else _shown(reader, (record,), now_ms, parameters)


def _list_shown(
    reader: Reader, after: bytes | None, limit: int, now_ms: int, parameters: TaskParameters
) -> tuple[tuple[_Shown, ...], bytes | None]:
    page = list_nodes(reader, after, limit)
    return _shown(reader, page.items, now_ms, parameters), page.next_cursor


async def get_duties(node: NodeApi, who: bytes) -> Json:
    """Answer ``dekube_getDuties``."""
    height = node.head.height
    work, checks = await node.query(height, _duties, who, parameters_of(node.description.parameters).tasks)
    return {
        "at": await stamp(node, height),
        "work": [
            {
                "task": hexed(duty.task),
                "action": duty.action.value,
                "window": duty.window,
                "deadline_ms": duty.deadline_ms or None,
                "bond": str(duty.bond),
                "segments": list(duty.segments),
                "blocked": duty.blocked,
            }
            for duty in work
        ],
        "checks": [
            {
                "task": hexed(duty.task),
                "action": duty.action.value,
                "window": duty.window,
                "deadline_ms": duty.deadline_ms or None,
                "segments": list(duty.segments),
                "jury": duty.is_jury,
            }
            for duty in checks
        ],
    }


def _duties(reader: Reader, who: bytes, parameters: TaskParameters) -> Any:
    return work_duties(reader, who, parameters), verification_duties(reader, who)


_TEXTS: Final = array(STRING)

MACHINE_COMPONENTS: Final[dict[str, Schema]] = {
    "Node": obj(
        {
            "address": ADDRESS_OUT,
            "operator": ADDRESS_OUT,
            "payout": ADDRESS_OUT,
            "status": words_of(NodeStatus),
            "roles": _TEXTS,
            "limited": BOOLEAN_OUT,
            "gpus": array(obj({"model": STRING, "memory_mib": NUMBER})),
            "cores": NUMBER,
            "memory_mib": NUMBER,
            "pcie_lanes": NUMBER,
            "price_per_tera_unit": AMOUNT_OUT,
            "rate": NUMBER,
            "measured_rate": nullable(NUMBER),
            "trial": nullable(
                obj(
                    {
                        "phase": words_of(TrialPhase),
                        "begun_ms": nullable(NUMBER),
                        "due_ms": nullable(NUMBER),
                        "verifier": nullable(ADDRESS_OUT),
                        "rate": NUMBER,
                        "measured_ms": nullable(NUMBER),
                        "checked": BOOLEAN_OUT,
                        "round_rate": NUMBER,
                        "rounds_missed": NUMBER,
                        "rounds_behind": NUMBER,
                        "ask_from_ms": nullable(NUMBER),
                    },
                    description="Its speed trial: where it stands, and what the last one measured. "
                    "`rounds_behind`: rounds over since the last one that it went through; each halves its rate. "
                    "`round_rate` 0: no round has measured it; an eighth of it counts, if the chain says so.",
                )
            ),
            "price_per_device_hour": AMOUNT_OUT,
            "slots": NUMBER,
            "busy_slots": NUMBER,
            "owed_ms": NUMBER,
            "notice_ms": NUMBER,
            "until_ms": nullable(NUMBER),
            "egress": _TEXTS,
            "endpoints": _TEXTS,
            "version": STRING,
            "registered_height": NUMBER,
            "seen_ms": NUMBER,
            "renewed_ms": NUMBER,
            "present": BOOLEAN_OUT,
            "bond": AMOUNT_OUT,
            "backing": AMOUNT_OUT,
            "sponsor": nullable(ADDRESS_OUT),
            "sponsored": AMOUNT_OUT,
            "sponsor_leaving": AMOUNT_OUT,
            "sponsor_leaves_ms": NUMBER,
            "sponsor_share_bps": NUMBER,
            "withhold_bps": NUMBER,
            "withhold_until": AMOUNT_OUT,
            "withheld": AMOUNT_OUT,
            "failures": NUMBER,
            "cool_down_until_ms": NUMBER,
            "good": NUMBER,
            "bad": NUMBER,
            "valid_streak": NUMBER,
            "proved": AMOUNT_OUT,
            "declines": NUMBER,
            "match_from_ms": NUMBER,
            "doubts": NUMBER,
            "reputation_milli": NUMBER,
            "tampering": nullable(
                obj(
                    {
                        "sign": STRING,
                        "task": HASH_OUT,
                        "reported_ms": NUMBER,
                        "until_ms": NUMBER,
                        "reports": NUMBER,
                    }
                )
            ),
        },
        description="A registered machine: what it says of itself, its bond, its record of verified work.",
    ),
}

_DUTY: Final[dict[str, Schema]] = {
    "task": HASH_OUT,
    "action": STRING,
    "window": NUMBER,
    "deadline_ms": nullable(NUMBER),
    "segments": array(NUMBER),
}

MACHINE_METHODS: Final[tuple[Method, ...]] = (
    Method(
        "dekube_getNode",
        "A registered machine",
        get_node,
        obj({"at": AT, "node": nullable(ref("Node"))}),
        (PARTY_PARAM,),
        cost=2,
        group="nodes",
        queue=QueueKind.VIEW,
        routes=("/v1/nodes/{address}",),
    ),
    Method(
        "dekube_getNodes",
        "Registered machines, by address",
        get_nodes,
        obj({"at": AT, "items": array(ref("Node"), maximum=100), "next": NEXT_OUT}),
        (CURSOR_PARAM, LIMIT_PARAM),
        cost=10,
        group="nodes",
        queue=QueueKind.VIEW,
        routes=("/v1/nodes",),
    ),
    Method(
        "dekube_getDuties",
        "Current duties of a machine as worker and verifier",
        get_duties,
        obj(
            {
                "at": AT,
                "work": array(obj(_DUTY | {"bond": AMOUNT_OUT, "blocked": BOOLEAN_OUT})),
                "checks": array(obj(_DUTY | {"jury": BOOLEAN_OUT})),
            }
        ),
        (PARTY_PARAM,),
        cost=10,
        group="nodes",
        queue=QueueKind.VIEW,
        routes=("/v1/nodes/{address}/duties",),
    ),
)
