"""Methods over the compute market: machines, tasks, proofs of work, bills. Pure, like those of ``rpc.methods``."""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum, IntFlag
from typing import Any, Final, TypeVar

from billing.escrow import Line, bill_lines, earnings_of, escrow_totals
from billing.prices import Role
from rpc import render
from rpc.errors import RpcError
from rpc.jobs import spec_to_json
from rpc.render import ADDRESS_OUT, AMOUNT_OUT, AT, BYTES_OUT, HASH_OUT, address, hexed
from rpc.schema import (
    ADDRESS,
    CURSOR,
    HASH,
    LIMIT,
    LIMIT_DEFAULT,
    NUMBER,
    STRING,
    Param,
    Schema,
    array,
    choice,
    data,
    make_cursor,
    natural,
    nullable,
    obj,
    ref,
)
from rpc.table import Json, Method, Node
from rpc.turns import Lane
from state.primitives.hashing import HASH_BYTES
from state.view import Reader
from tasks.errors import TaskUnknown
from tasks.lifecycle import Phase, Reason, WindowPhase, group_of
from tasks.parameters import TaskParameters
from tasks.queries import (
    Page,
    find_node,
    list_nodes,
    quote,
    task_history,
    task_windows,
    tasks_by_requester,
    tasks_by_worker,
    verification_duties,
    work_duties,
)
from tasks.records import HistoryEntry, TaskRecord, WindowRecord, by_phase_key, load_spec_bytes, load_task
from tasks.registry import NodeRecord, NodeRole, NodeStatus, is_limited, reputation_milli
from tasks.spec import SPEC_LIMIT_BYTES, decode_spec, spec_hash

__all__ = ["MARKET_COMPONENTS", "MARKET_METHODS"]

_T = TypeVar("_T")

NUMBER_MAX: Final = 2**32 - 1
"""Last number that a change or a window of a task can have."""
_TIME_BYTES: Final = 8
_NONE: Final = bytes(HASH_BYTES)


def _word(item: IntEnum) -> str:
    return item.name.lower()


def _words(*kinds: type[IntEnum]) -> Schema:
    return {"type": "string", "enum": [_word(item) for kind in kinds for item in kind]}


def _roles(value: IntFlag) -> list[str]:
    return [role.name.lower() for role in NodeRole if value & role and role.name]


def _maybe_address(value: bytes) -> str | None:
    return address(value) if value else None


# Machines


def _node(record: NodeRecord) -> Json:
    profile = record.profile
    return {
        "address": address(record.address),
        "operator": address(profile.operator),
        "status": _word(record.status),
        "roles": _roles(profile.roles),
        "limited": is_limited(profile),
        "gpus": [{"model": gpu.model, "memory_mib": gpu.memory_mib} for gpu in profile.gpus],
        "cores": profile.cores,
        "memory_mib": profile.memory_mib,
        "pcie_lanes": profile.pcie_lanes,
        "price_per_gpu_s": str(profile.price_per_gpu_s),
        "score": profile.score,
        "slots": profile.slots,
        "busy_slots": record.busy_slots,
        "notice_ms": profile.notice_ms,
        "endpoints": list(profile.endpoints),
        "version": profile.version,
        "registered_height": record.registered_height,
        "seen_ms": record.seen_ms,
        "bond": str(record.bond),
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
    }


async def get_node(node: Node, who: bytes) -> Json:
    """Answer ``dekube_getNode``."""
    height = node.head.height
    record = await node.query(height, find_node, who)
    return {"at": await _stamp(node, height), "node": None if record is None else _node(record)}


async def get_nodes(node: Node, cursor: list[Any] | None, limit: int) -> Json:
    """Answer ``dekube_getNodes``."""
    height, after = _cursor(node, cursor, b"nodes")
    page = await node.query(height, list_nodes, after, limit)
    return {
        "at": await _stamp(node, height),
        "items": [_node(record) for record in page.items],
        "next": _next(height, b"nodes", page.next_cursor),
    }


# Pages: a cursor names the height that its list is of, so a list never moves under its reader.


def _cursor(node: Node, cursor: list[Any] | None, subject: bytes) -> tuple[int, bytes | None]:
    match cursor:
        case None:
            return node.head.height, None
        case ["market", bytes(of), int(height), bytes(after)] if of == subject and 0 <= height <= node.head.height:
            return height, after  # a height that is gone by now is answered as pruned
        case _:
            raise RpcError("invalid_params", "invalid params: cursor: not one of this method", param="cursor")


def _next(height: int, subject: bytes, after: bytes | None) -> str | None:
    return None if after is None else make_cursor(["market", subject, height, after])


async def _stamp(node: Node, height: int) -> Json:
    head = node.head
    block_hash = head.hash if height == head.height else await node.hash_of(height)
    return {"height": height, "hash": hexed(block_hash)}


# Tasks


def _task(record: TaskRecord) -> Json:
    return {
        "id": hexed(record.id),
        "requester": address(record.requester),
        "phase": _word(record.phase),
        "group": group_of(record.phase),
        "reason": _word(record.reason),
        "created_height": record.created_height,
        "created_ms": record.created_ms,
        "changed_height": record.changed_height,
        "changed_ms": record.changed_ms,
        "deadline_ms": record.deadline_ms or None,
        "match_by_ms": record.match_by_ms,
        "worker": _maybe_address(record.worker),
        "price_per_gpu_s": str(record.price_per_gpu_s),
        "attempts": record.attempts,
        "excluded": [address(item) for item in record.excluded],
        "started_ms": record.started_ms or None,
        "windows": record.target,
        "proved_windows": record.next_window,
        "final_windows": record.final_windows,
        "state_root": hexed(record.state_root),
        "final_root": hexed(record.final_root) if record.final_root else None,
        "history": record.history,
    }


def _spec(raw: bytes) -> Json:
    return {"hash": hexed(spec_hash(raw)), "raw": hexed(raw)} | spec_to_json(decode_spec(raw))


def _find_task(reader: Reader, task_id: bytes) -> tuple[TaskRecord, bytes] | None:
    try:
        return load_task(reader, task_id), load_spec_bytes(reader, task_id)
    except TaskUnknown:
        return None


async def get_task(node: Node, task: bytes) -> Json:
    """Answer ``dekube_getTask``."""
    height = node.head.height
    found = await node.query(height, _find_task, task)
    return {
        "at": await _stamp(node, height),
        "task": None if found is None else _task(found[0]) | {"spec": _spec(found[1])},
    }


async def get_tasks(
    node: Node,
    phase: str | None,
    requester: bytes | None,
    worker: bytes | None,
    cursor: list[Any] | None,
    limit: int,
) -> Json:
    """Answer ``dekube_getTasks``."""
    if sum(item is not None for item in (phase, requester, worker)) > 1:
        raise RpcError(
            "invalid_params", "invalid params: one of phase, requester and worker at most", param="phase"
        )
    if requester is not None:
        subject = b"requester" + requester
        height, after = _cursor(node, cursor, subject)
        page = await node.query(height, tasks_by_requester, requester, after, limit)
    elif worker is not None:
        subject = b"worker" + worker
        height, after = _cursor(node, cursor, subject)
        page = await node.query(height, tasks_by_worker, worker, after, limit)
    else:
        phases = tuple(Phase) if phase is None else (Phase[phase.upper()],)
        subject = b"phase" + bytes(phases)
        height, after = _cursor(node, cursor, subject)
        page = await node.query(height, _tasks_of_phases, phases, after, limit)
    return {
        "at": await _stamp(node, height),
        "items": [_task(record) for record in page.items],
        "next": _next(height, subject, page.next_cursor),
    }


def _tasks_of_phases(
    reader: Reader, phases: tuple[Phase, ...], after: bytes | None, limit: int
) -> Page[TaskRecord]:
    """Return tasks in any of ``phases``, the newest last; ``after`` is time and id of the last one before."""
    places: list[bytes] = []
    for phase in phases:
        first = by_phase_key(int(phase))[:-_TIME_BYTES]
        start = first + (b"" if after is None else after + b"\0")
        stop = first + b"\xff" * (_TIME_BYTES + HASH_BYTES + 1)
        places += [key[len(first) :] for key, _ in reader.scan(start, stop, limit + 1)]
    places.sort()
    tasks = tuple(load_task(reader, place[_TIME_BYTES:]) for place in places[:limit])
    return Page(tasks, places[limit - 1] if len(places) > limit else None)


def _history(entry: HistoryEntry) -> Json:
    return {
        "number": entry.number,
        "height": entry.height,
        "time_ms": entry.time_ms,
        "before": _word(Phase(entry.before)) if entry.before else None,
        "after": _word(entry.after),
        "reason": _word(entry.reason),
        "actor": _maybe_address(entry.actor),
        "evidence": hexed(entry.evidence) if entry.evidence not in (b"", _NONE) else None,
    }


def _numbered(cursor: bytes | None) -> int:
    # A cursor comes from outside: one that nobody made names what is not there.
    return 0 if cursor is None else min(int.from_bytes(cursor[:8], "big"), NUMBER_MAX)


async def get_task_history(node: Node, task: bytes, cursor: list[Any] | None, limit: int, first: int) -> Json:
    """Answer ``dekube_getTaskHistory``."""
    return await _numbered_page(node, b"history" + task, cursor, limit, first, _known_history, task, _history)


async def _numbered_page(
    node: Node, name: bytes, cursor: list[Any] | None, limit: int, first: int,
    find: Callable[[Reader, bytes, int, int], list[_T]], task: bytes, show: Callable[[_T], Json],
) -> Json:  # fmt: skip
    """Return a page of what of a task has numbers, from ``first`` on or where the page before ended."""
    height, after = _cursor(node, cursor, name)
    start = first if after is None else _numbered(after)
    found = await node.query(height, find, task, start, limit + 1)
    more = (start + limit).to_bytes(8, "big") if len(found) > limit else None
    return {
        "at": await _stamp(node, height),
        "items": [show(item) for item in found[:limit]],
        "next": _next(height, name, more),
    }


def _known_history(reader: Reader, task_id: bytes, start: int, limit: int) -> list[HistoryEntry]:
    load_task(reader, task_id)
    return task_history(reader, task_id, start=start, limit=limit)


def _seats(seats: Any) -> Json:
    return [
        {
            "address": address(seat.address),
            "seal": hexed(seat.seal) if seat.seal else None,
            "findings": None
            if seat.findings is None
            else [
                {
                    "segment": finding.segment,
                    "code": _word(finding.code),
                    "probe_root": hexed(finding.probe_root),
                    "state_root_after": hexed(finding.state_root_after),
                }
                for finding in seat.findings
            ],
        }
        for seat in seats
    ]


def _window(record: WindowRecord) -> Json:
    proof = record.proof
    return {
        "number": record.number,
        "phase": _word(record.phase),
        "reason": _word(record.reason),
        "worker": address(record.worker),
        "height": record.height,
        "deadline_ms": record.deadline_ms or None,
        "proof": {
            "step_from": proof.step_from,
            "step_to": proof.step_to,
            "state_root_in": hexed(proof.state_root_in),
            "state_root_out": hexed(proof.state_root_out),
            "segment_root": hexed(proof.segment_root),
            "segments": proof.segments,
            "leaves_blob": hexed(proof.leaves_blob),
            "output_blob": hexed(proof.output_blob),
            "meter": proof.meter._asdict(),
        },
        "sampled": list(record.sampled),
        "verifiers": _seats(record.verifiers),
        "opened": [
            {
                "segment": item.segment,
                "probe_root": hexed(item.probe_root),
                "state_root_after": hexed(item.state_root_after),
            }
            for item in record.opened
        ],
        "disputed": record.disputed if record.disputed >= 0 else None,
        "jurors": _seats(record.jurors),
        "draws": record.draws,
        "charge": str(record.charge),
        "verifier_fee": str(record.fee),
    }


async def get_task_windows(node: Node, task: bytes, cursor: list[Any] | None, limit: int, first: int) -> Json:
    """Answer ``dekube_getTaskWindows``."""
    return await _numbered_page(node, b"windows" + task, cursor, limit, first, _windows, task, _window)


def _windows(reader: Reader, task_id: bytes, start: int, limit: int) -> list[WindowRecord]:
    return task_windows(reader, task_id, start=start, limit=limit)


async def get_duties(node: Node, who: bytes) -> Json:
    """Answer ``dekube_getDuties``."""
    height = node.head.height
    work, checks = await node.query(height, _duties, who, _parameters(node))
    return {
        "at": await _stamp(node, height),
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


def _parameters(node: Node) -> TaskParameters:
    prefix = "tasks."
    numbers = {
        name.removeprefix(prefix): number
        for name, number in node.description.parameters
        if name.startswith(prefix)
    }
    return TaskParameters(**numbers)


# Money


def _line(line: Line) -> Json:
    return {
        "number": line.number,
        "height": line.height,
        "movement": _word(line.movement),
        "purpose": _word(line.purpose),
        "pool": _word(line.pool),
        "party": address(line.party) if any(line.party) else None,
        "amount": str(line.amount),
        "window": line.subject,
    }


async def get_bill(node: Node, task: bytes, cursor: list[Any] | None, limit: int) -> Json:
    """Answer ``dekube_getBill``; the totals are of the whole bill, whatever page is shown."""
    height, after = _cursor(node, cursor, b"bill" + task)
    start = _numbered(after)
    totals, lines = await node.query(height, _bill, task, start, limit + 1)
    more = (start + limit).to_bytes(8, "big") if len(lines) > limit else None
    return {
        "at": await _stamp(node, height),
        "totals": {name: str(amount) for name, amount in totals._asdict().items()},
        "items": [_line(line) for line in lines[:limit]],
        "next": _next(height, b"bill" + task, more),
    }


def _bill(reader: Reader, escrow_id: bytes, start: int, limit: int) -> Any:
    return escrow_totals(reader, escrow_id), bill_lines(reader, escrow_id, start=start, limit=limit)


async def get_earnings(node: Node, who: bytes) -> Json:
    """Answer ``dekube_getEarnings``."""
    height = node.head.height
    earned = await node.query(height, earnings_of, who)
    return {
        "at": await _stamp(node, height),
        "earnings": {_word(role): str(earned.get(role, 0)) for role in Role},
        "total": str(sum(earned.values())),
    }


async def quote_task(node: Node, spec: bytes) -> Json:
    """Answer ``dekube_quoteTask``."""
    budget = quote(decode_spec(spec), _parameters(node))
    return {
        "at": render.at(node.head),
        "price": str(budget.price),
        "verification": str(budget.verification),
        "fee": str(budget.fee),
        "total": str(budget.total),
    }


# The table

_CURSOR: Final = Param("cursor", CURSOR, "`next` of the page before.", required=False)
_LIMIT: Final = Param("limit", LIMIT, "Items of a page.", required=False, default=LIMIT_DEFAULT)
_FIRST: Final = Param(
    "first", natural(0, NUMBER_MAX), "Number to begin with, where no cursor says.", required=False, default=0
)
_TASK_ID: Final = Param("task", HASH, "The task's id.")
_ADDRESS: Final = Param("address", ADDRESS, "The node's or account's address.")
_NEXT: Final = nullable(STRING)
_TEXTS: Final = array(STRING)
_BOOLEAN: Final[Schema] = {"type": "boolean"}

_FINDING: Final = obj(
    {"segment": NUMBER, "code": STRING, "probe_root": HASH_OUT, "state_root_after": HASH_OUT},
)
_TASK_FIELDS: Final[dict[str, Schema]] = {
    "id": HASH_OUT,
    "requester": ADDRESS_OUT,
    "phase": _words(Phase),
    "group": {"type": "string", "enum": ["create", "run", "output", "ended"]},
    "reason": _words(Reason),
    "created_height": NUMBER,
    "created_ms": NUMBER,
    "changed_height": NUMBER,
    "changed_ms": NUMBER,
    "deadline_ms": nullable(NUMBER),
    "match_by_ms": NUMBER,
    "worker": nullable(ADDRESS_OUT),
    "price_per_gpu_s": AMOUNT_OUT,
    "attempts": NUMBER,
    "excluded": array(ADDRESS_OUT),
    "started_ms": nullable(NUMBER),
    "windows": NUMBER,
    "proved_windows": NUMBER,
    "final_windows": NUMBER,
    "state_root": HASH_OUT,
    "final_root": nullable(HASH_OUT),
    "history": NUMBER,
}

MARKET_COMPONENTS: Final[dict[str, Schema]] = {
    "Node": obj(
        {
            "address": ADDRESS_OUT,
            "operator": ADDRESS_OUT,
            "status": _words(NodeStatus),
            "roles": _TEXTS,
            "limited": _BOOLEAN,
            "gpus": array(obj({"model": STRING, "memory_mib": NUMBER})),
            "cores": NUMBER,
            "memory_mib": NUMBER,
            "pcie_lanes": NUMBER,
            "price_per_gpu_s": AMOUNT_OUT,
            "score": NUMBER,
            "slots": NUMBER,
            "busy_slots": NUMBER,
            "notice_ms": NUMBER,
            "endpoints": _TEXTS,
            "version": STRING,
            "registered_height": NUMBER,
            "seen_ms": NUMBER,
            "bond": AMOUNT_OUT,
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
        },
        description="A registered machine: what it says of itself, its bond, its record of verified work.",
    ),
    "Task": obj(_TASK_FIELDS),
    "TaskWithSpec": obj(_TASK_FIELDS | {"spec": ref("Spec")}),
    "Spec": obj(
        {
            "hash": HASH_OUT,
            "raw": BYTES_OUT,
            "kind": STRING,
            "level": NUMBER,
            "profile": STRING,
            "model": obj({"name": STRING, "widths": array(NUMBER), "activation": STRING}),
            "dataset": obj({"blob": HASH_OUT, "root": HASH_OUT, "samples": NUMBER}),
            "batch": NUMBER,
            "optimiser": obj(
                {
                    "name": STRING,
                    "learning_rate_nano": NUMBER,
                    "beta1_nano": NUMBER,
                    "beta2_nano": NUMBER,
                    "epsilon_nano": NUMBER,
                    "weight_decay_nano": NUMBER,
                }
            ),
            "seed": HASH_OUT,
            "init_root": HASH_OUT,
            "schedule": obj({"total_steps": NUMBER, "segment_steps": NUMBER, "window_steps": NUMBER}),
            "price": obj({"max_price_per_gpu_s": AMOUNT_OUT, "gpu_ms_per_step_max": NUMBER}),
            "requirements": obj({"gpus": NUMBER, "memory_mib": NUMBER, "score_min": NUMBER}),
            "match_ms": NUMBER,
        },
        description="The job; `raw` is what it was created with.",
    ),
    "TaskChange": obj(
        {
            "number": NUMBER,
            "height": NUMBER,
            "time_ms": NUMBER,
            "before": nullable(_words(Phase)),
            "after": _words(Phase),
            "reason": _words(Reason),
            "actor": nullable(ADDRESS_OUT),
            "evidence": nullable(HASH_OUT),
        }
    ),
    "Verdict": obj({"address": ADDRESS_OUT, "seal": nullable(HASH_OUT), "findings": nullable(array(_FINDING))}),
    "Window": obj(
        {
            "number": NUMBER,
            "phase": _words(WindowPhase),
            "reason": _words(Reason),
            "worker": ADDRESS_OUT,
            "height": NUMBER,
            "deadline_ms": nullable(NUMBER),
            "proof": obj(
                {
                    "step_from": NUMBER,
                    "step_to": NUMBER,
                    "state_root_in": HASH_OUT,
                    "state_root_out": HASH_OUT,
                    "segment_root": HASH_OUT,
                    "segments": NUMBER,
                    "leaves_blob": HASH_OUT,
                    "output_blob": HASH_OUT,
                    "meter": obj({"gpu_ms": NUMBER, "steps": NUMBER, "samples": NUMBER}),
                }
            ),
            "sampled": array(NUMBER),
            "verifiers": array(ref("Verdict")),
            "opened": array(obj({"segment": NUMBER, "probe_root": HASH_OUT, "state_root_after": HASH_OUT})),
            "disputed": nullable(NUMBER),
            "jurors": array(ref("Verdict")),
            "draws": NUMBER,
            "charge": AMOUNT_OUT,
            "verifier_fee": AMOUNT_OUT,
        },
        description="A window of work from its proof on: the segments drawn, who re-ran them, what they found.",
    ),
    "BillLine": obj(
        {
            "number": NUMBER,
            "height": NUMBER,
            "movement": STRING,
            "purpose": STRING,
            "pool": STRING,
            "party": nullable(ADDRESS_OUT),
            "amount": AMOUNT_OUT,
            "window": nullable(NUMBER),
        }
    ),
}

_DUTY: Final[dict[str, Schema]] = {
    "task": HASH_OUT,
    "action": STRING,
    "window": NUMBER,
    "deadline_ms": nullable(NUMBER),
    "segments": array(NUMBER),
}

MARKET_METHODS: Final[tuple[Method, ...]] = (
    Method(
        "dekube_getNode",
        "A registered machine",
        get_node,
        obj({"at": AT, "node": nullable(ref("Node"))}),
        (_ADDRESS,),
        cost=2,
        group="nodes",
        lane=Lane.VIEW,
    ),
    Method(
        "dekube_getNodes",
        "Registered machines in the order of their addresses",
        get_nodes,
        obj({"at": AT, "items": array(ref("Node"), maximum=100), "next": _NEXT}),
        (_CURSOR, _LIMIT),
        cost=10,
        group="nodes",
        lane=Lane.VIEW,
    ),
    Method(
        "dekube_getDuties",
        "What is asked of a machine now, as a worker and as a verifier",
        get_duties,
        obj(
            {
                "at": AT,
                "work": array(obj(_DUTY | {"bond": AMOUNT_OUT, "blocked": _BOOLEAN})),
                "checks": array(obj(_DUTY | {"jury": _BOOLEAN})),
            }
        ),
        (_ADDRESS,),
        cost=10,
        group="nodes",
        lane=Lane.VIEW,
    ),
    Method(
        "dekube_getTask",
        "A task with its job",
        get_task,
        obj({"at": AT, "task": nullable(ref("TaskWithSpec"))}),
        (_TASK_ID,),
        cost=2,
        group="tasks",
        lane=Lane.VIEW,
    ),
    Method(
        "dekube_getTasks",
        "Tasks, the oldest first: all, or those of a phase, a requester or a worker",
        get_tasks,
        obj({"at": AT, "items": array(ref("Task"), maximum=100), "next": _NEXT}),
        (
            Param("phase", choice(*(_word(phase) for phase in Phase)), "Only in this phase.", required=False),
            Param("requester", ADDRESS, "Only created by this account.", required=False),
            Param("worker", ADDRESS, "Only ever given to this machine.", required=False),
            _CURSOR,
            _LIMIT,
        ),
        cost=20,
        group="tasks",
        lane=Lane.VIEW,
    ),
    Method(
        "dekube_getTaskHistory",
        "Every change of a task's phase: when, why, by whom",
        get_task_history,
        obj({"at": AT, "items": array(ref("TaskChange"), maximum=100), "next": _NEXT}),
        (_TASK_ID, _CURSOR, _LIMIT, _FIRST),
        cost=5,
        group="tasks",
        lane=Lane.VIEW,
    ),
    Method(
        "dekube_getTaskWindows",
        "Proofs of work of a task, who checked them and what they found",
        get_task_windows,
        obj({"at": AT, "items": array(ref("Window"), maximum=100), "next": _NEXT}),
        (_TASK_ID, _CURSOR, _LIMIT, _FIRST),
        cost=10,
        group="tasks",
        lane=Lane.VIEW,
    ),
    Method(
        "dekube_quoteTask",
        "What creating a task would lock: its price, its checks (each has a least fee), the fee",
        quote_task,
        obj({"at": AT, "price": AMOUNT_OUT, "verification": AMOUNT_OUT, "fee": AMOUNT_OUT, "total": AMOUNT_OUT}),
        (Param("spec", data(SPEC_LIMIT_BYTES), "The job specification, canonical CBOR."),),
        cost=2,
        group="billing",
    ),
    Method(
        "dekube_getBill",
        "The bill of a task line by line, and its sums",
        get_bill,
        obj(
            {
                "at": AT,
                "totals": obj(
                    {
                        "deposited": AMOUNT_OUT,
                        "locked": AMOUNT_OUT,
                        "paid": AMOUNT_OUT,
                        "refunded": AMOUNT_OUT,
                        "burned": AMOUNT_OUT,
                    }
                ),
                "items": array(ref("BillLine"), maximum=100),
                "next": _NEXT,
            }
        ),
        (_TASK_ID, _CURSOR, _LIMIT),
        cost=10,
        group="billing",
        lane=Lane.VIEW,
    ),
    Method(
        "dekube_getEarnings",
        "What an account was ever paid by the market, by role",
        get_earnings,
        obj(
            {
                "at": AT,
                "earnings": obj({_word(role): AMOUNT_OUT for role in Role}),
                "total": AMOUNT_OUT,
            }
        ),
        (_ADDRESS,),
        cost=2,
        group="billing",
        lane=Lane.VIEW,
    ),
)
