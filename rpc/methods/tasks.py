"""Methods about tasks: the job, its progress, and each change of its phase."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from rpc.methods.heights import stamp
from rpc.methods.jobs import spec_to_json
from rpc.methods.method import Json, Method, NodeApi
from rpc.methods.names import word, words_of
from rpc.methods.pages import (
    CURSOR_PARAM,
    FIRST_PARAM,
    LIMIT_PARAM,
    NEXT_OUT,
    cursor_of,
    numbered_page,
    start_of_page,
)
from rpc.methods.parameters import parameters_of
from rpc.methods.queues import QueueKind
from rpc.methods.quorums import QUORUM_COMPONENTS, FoundQuorum, find_quorum_of, quorum_to_json
from rpc.methods.render import ADDRESS_OUT, AMOUNT_OUT, AT, BOOLEAN_OUT, BYTES_OUT, HASH_OUT, address, hexed
from rpc.methods.schema import ADDRESS, HASH, NUMBER, STRING, Param, Schema, array, choice, nullable, obj, ref
from rpc.protocol.errors import RpcError
from state.primitives.hashing import HASH_BYTES
from state.view import Reader
from tasks.claims import Fault, say_divergence, say_fault
from tasks.engines.dataset_layout import NodePlace
from tasks.errors import TaskUnknown
from tasks.kinds.container import ExitKind
from tasks.kinds.finetune import BaseModel
from tasks.ledger.checkpoint_records import Checkpoints, Stored, load_checkpoints
from tasks.ledger.claims import UpheldClaim, load_claim
from tasks.ledger.complaints import aside_until_ms
from tasks.ledger.group_records import group_of_task, seat_of_task
from tasks.ledger.lifecycle import Phase, Reason, stage_of
from tasks.ledger.meter_records import MeterRecord, load_meter
from tasks.ledger.parameters import TaskParameters
from tasks.ledger.queries import Page, task_history, tasks_by_requester, tasks_by_worker
from tasks.ledger.records import HistoryEntry, TaskRecord, by_phase_key, load_spec_bytes, load_task
from tasks.spec import decode_spec, spec_hash

__all__ = ["TASK_COMPONENTS", "TASK_ID", "TASK_METHODS", "unknown_task"]

_TIME_BYTES: Final = 8
_NONE: Final = bytes(HASH_BYTES)


def unknown_task(task_id: bytes) -> RpcError:
    """Return the refusal of an id that no task has."""
    return RpcError("task_unknown", f"no task has the id {hexed(task_id)}")


def _maybe_address(value: bytes) -> str | None:
    return address(value) if value else None


def _task(record: TaskRecord) -> Json:
    return {
        "id": hexed(record.id),
        "requester": address(record.requester),
        "phase": word(record.phase),
        "stage": stage_of(record.phase),
        "reason": word(record.reason),
        "created_height": record.created_height,
        "created_ms": record.created_ms,
        "changed_height": record.changed_height,
        "changed_ms": record.changed_ms,
        "deadline_ms": record.deadline_ms or None,
        "match_by_ms": record.match_by_ms,
        "worker": _maybe_address(record.worker),
        "parked": record.parked > 0,
        "price_per_tera_unit": str(record.price_per_tera_unit),
        "rate": record.rate,
        "attempts": record.attempts,
        "excluded": [address(item) for item in record.excluded],
        "started_ms": record.started_ms or None,
        "windows": record.target,
        "proved_windows": record.next_window,
        "final_windows": record.final_windows,
        "open_charge": str(record.open_charge),
        "state_root": hexed(record.state_root),
        "final_root": hexed(record.final_root) if record.final_root else None,
        "history": record.history,
        "group": hexed(group_of_task(record)) if record.group else None,
        "seat": seat_of_task(record) if record.group else None,
    }


def _spec(raw: bytes) -> Json:
    spec = decode_spec(raw)
    named = {"hash": hexed(spec_hash(raw)), "raw": hexed(raw), "step_units": spec.step_units}
    return named | spec_to_json(spec)


def _stored(found: Stored | None) -> Json:
    if found is None:
        return None
    return {
        "blob": hexed(found.blob) if found.blob else None,
        "bytes": found.size_bytes,
        "seconds": found.seconds,
        "worker": address(found.worker),
    }


def _meter(meter: MeterRecord | None, stored: Checkpoints) -> Json:
    if meter is None:
        return None
    end = meter.end
    return {
        "seconds": meter.seconds,
        "paid": str(meter.paid),
        "own_seconds": meter.own_seconds,
        "began_ms": meter.began_ms or None,
        "stop_ms": meter.stop_ms or None,
        "until_ms": stored.until_ms or None,
        "checkpoint": _stored(stored.latest),
        "checkpoint_before": _stored(stored.before),
        "checkpoint_begun": _stored(stored.base),
        "waiting": str(stored.waits),
        "machines": [
            {"worker": address(run.worker), "seconds": run.seconds, "lost": run.lost} for run in stored.runs
        ],
        "exit": None
        if end is None
        else {
            "kind": word(end.kind),
            "code": end.code,
            "output": hexed(end.output) if end.output else None,
            "output_bytes": end.output_bytes,
            "logs": hexed(end.logs) if end.logs else None,
            "logs_bytes": end.logs_bytes,
            "worker": address(end.worker),
        },
    }


def _claim(claim: UpheldClaim | None, raw: bytes) -> Json:
    if claim is None:
        return None
    spec = decode_spec(raw)
    if claim.reason is Reason.JOB_DIVERGED:
        return {
            "reason": word(claim.reason),
            "fault": None,
            "text": say_divergence(spec, claim.size, *claim.place),
        }
    fault = Fault(claim.fault)
    text = say_fault(spec, fault, NodePlace(*claim.place), claim.size)
    return {"reason": word(claim.reason), "fault": word(fault), "text": text}


class _Found(NamedTuple):
    """A task with its job, the claim that ended it, until when it waits (R53), and the meter of a container."""

    record: TaskRecord
    spec: bytes
    claim: UpheldClaim | None
    aside_until_ms: int
    meter: MeterRecord | None
    stored: Checkpoints
    quorum: FoundQuorum | None


def _find_task(reader: Reader, task_id: bytes, now_ms: int, parameters: TaskParameters) -> _Found | None:
    try:
        record = load_task(reader, task_id)
    except TaskUnknown:
        return None
    until_ms = aside_until_ms(reader, record, now_ms, parameters)
    meter = load_meter(reader, task_id) if record.is_metered else None
    stored = load_checkpoints(reader, task_id) if record.is_metered else Checkpoints()
    quorum = find_quorum_of(reader, task_id) if record.is_metered else None
    spec, claim = load_spec_bytes(reader, task_id), load_claim(reader, task_id)
    return _Found(record, spec, claim, until_ms, meter, stored, quorum)


async def get_task(node: NodeApi, task: bytes) -> Json:
    """Answer ``dekube_getTask``."""
    height = node.head.height
    now_ms, parameters = node.head.steady_ms, parameters_of(node.description.parameters).tasks
    found = await node.query(height, _find_task, task, now_ms, parameters)
    return {
        "at": await stamp(node, height),
        "task": None
        if found is None
        else _task(found.record)
        | {
            "spec": _spec(found.spec),
            "claim": _claim(found.claim, found.spec),
            "complaints": [address(machine) for machine in found.record.complaints],
            "aside_until_ms": found.aside_until_ms or None,
            "meter": _meter(found.meter, found.stored),
            "quorum": quorum_to_json(found.quorum),
        },
    }


async def get_tasks(
    node: NodeApi,
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
        height, after = start_of_page(node, subject, cursor)
        page = await node.query(height, tasks_by_requester, requester, after, limit)
    elif worker is not None:
        subject = b"worker" + worker
        height, after = start_of_page(node, subject, cursor)
        page = await node.query(height, tasks_by_worker, worker, after, limit)
    else:
        phases = tuple(Phase) if phase is None else (Phase[phase.upper()],)
        subject = b"phase" + bytes(phases)
        height, after = start_of_page(node, subject, cursor)
        page = await node.query(height, _tasks_of_phases, phases, after, limit)
    return {
        "at": await stamp(node, height),
        "items": [_task(record) for record in page.items],
        "next": cursor_of(height, subject, page.next_cursor),
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
        "before": word(Phase(entry.before)) if entry.before else None,
        "after": word(entry.after),
        "reason": word(entry.reason),
        "actor": _maybe_address(entry.actor),
        "evidence": hexed(entry.evidence) if entry.evidence not in (b"", _NONE) else None,
    }


async def get_task_history(node: NodeApi, task: bytes, cursor: list[Any] | None, limit: int, first: int) -> Json:
    """Answer ``dekube_getTaskHistory``."""
    return await numbered_page(node, b"history" + task, cursor, limit, first, _known_history, task, _history)


def _known_history(reader: Reader, task_id: bytes, start: int, limit: int) -> list[HistoryEntry]:
    try:
        load_task(reader, task_id)
    except TaskUnknown:
        raise unknown_task(task_id) from None
    return task_history(reader, task_id, start=start, limit=limit)


TASK_ID: Final = Param("task", HASH, "The task's id.")
_TASK_FIELDS: Final[dict[str, Schema]] = {
    "id": HASH_OUT,
    "requester": ADDRESS_OUT,
    "phase": words_of(Phase),
    "stage": {"type": "string", "enum": ["create", "run", "output", "ended"]},
    "reason": words_of(Reason),
    "created_height": NUMBER,
    "created_ms": NUMBER,
    "changed_height": NUMBER,
    "changed_ms": NUMBER,
    "deadline_ms": nullable(NUMBER),
    "match_by_ms": NUMBER,
    "worker": nullable(ADDRESS_OUT),
    "parked": BOOLEAN_OUT,
    "price_per_tera_unit": AMOUNT_OUT,
    "rate": NUMBER,
    "attempts": NUMBER,
    "excluded": array(ADDRESS_OUT),
    "started_ms": nullable(NUMBER),
    "windows": NUMBER,
    "proved_windows": NUMBER,
    "final_windows": NUMBER,
    "open_charge": AMOUNT_OUT,
    "state_root": HASH_OUT,
    "final_root": nullable(HASH_OUT),
    "history": NUMBER,
    "group": nullable(HASH_OUT),
    "seat": nullable(NUMBER),
}

_TUNED: Final = obj(
    {
        "blob": HASH_OUT,
        "root": HASH_OUT,
        "rank": NUMBER,
        "alpha": NUMBER,
        "targets": array(STRING),
        "step": NUMBER,
        "layout": NUMBER,
    },
    description="A state that another task has left, after so many steps.",
)
_MODEL: Final[dict[str, Schema]] = {
    "name": STRING,
    "widths": array(NUMBER),
    "activation": STRING,
    "blob": HASH_OUT,
    "root": HASH_OUT,
    **dict.fromkeys(BaseModel._fields[3:], NUMBER),
}
"""Of a classifier the first three; of a decoder all but the widths and the activation."""
_STORED: Final = obj({"blob": nullable(HASH_OUT), "bytes": NUMBER, "seconds": NUMBER, "worker": ADDRESS_OUT})
"""A checkpoint of a container; `seconds` of the task are in it."""
TASK_COMPONENTS: Final[dict[str, Schema]] = {
    **QUORUM_COMPONENTS,
    "Task": obj(
        _TASK_FIELDS,
        description="A task. `parked`: it waits for a machine that changes. `open_charge`: the price of the "
        "worker's windows that are proved and not final. `stage`: the part of the life cycle that `phase` is in. "
        "`group`, `seat`: of a task that is a seat of a group (`dekube_getGroup`), else null.",
    ),
    "TaskWithSpec": obj(
        _TASK_FIELDS
        | {
            "spec": ref("Spec"),
            "claim": nullable(
                obj({"reason": words_of(Reason), "fault": nullable(words_of(Fault)), "text": STRING})
            ),
            "complaints": array(ADDRESS_OUT),
            "aside_until_ms": nullable(NUMBER),
            "meter": nullable(ref("Meter")),
            "quorum": nullable(ref("Quorum")),
        },
        description="A task with its job. `claim`: what its worker proved, which ended it. `complaints`: machines "
        "that could not have its inputs. `aside_until_ms`: until when (steady time) it is out of the book for it. "
        "`meter`: of a container, else null. `quorum`: of a container that several machines run, else null.",
    ),
    "Meter": obj(
        {
            "seconds": NUMBER,
            "paid": AMOUNT_OUT,
            "own_seconds": NUMBER,
            "began_ms": nullable(NUMBER),
            "stop_ms": nullable(NUMBER),
            "until_ms": nullable(NUMBER),
            "checkpoint": nullable(_STORED),
            "checkpoint_before": nullable(_STORED),
            "checkpoint_begun": nullable(_STORED),
            "waiting": AMOUNT_OUT,
            "machines": array(obj({"worker": ADDRESS_OUT, "seconds": NUMBER, "lost": NUMBER})),
            "exit": nullable(
                obj(
                    {
                        "kind": words_of(ExitKind),
                        "code": NUMBER,
                        "output": nullable(HASH_OUT),
                        "output_bytes": NUMBER,
                        "logs": nullable(HASH_OUT),
                        "logs_bytes": NUMBER,
                        "worker": ADDRESS_OUT,
                    }
                )
            ),
        },
        description="The seconds of a container that were paid, those of its present machine, when that began, "
        "from when on it is to stop (steady time), and how it ended, as its machine says. Nobody checks that.",
    ),
    "Spec": obj(
        {
            "hash": HASH_OUT,
            "raw": BYTES_OUT,
            "step_units": NUMBER,
            "kind": STRING,
            "level": NUMBER,
            "profile": STRING,
            "model": obj(_MODEL, optional=[name for name in _MODEL if name != "name"]),
            "dataset": obj(
                {
                    "blob": HASH_OUT,
                    "root": HASH_OUT,
                    "rows": NUMBER,
                    "samples": NUMBER,
                    "shift": NUMBER,
                    "length": NUMBER,
                    "slots": NUMBER,
                },
                optional=("samples", "shift", "length", "slots"),
            ),
            "decoding": obj(
                {
                    "name": STRING,
                    "new_tokens": NUMBER,
                    "ends": array(NUMBER),
                    "temperature": NUMBER,
                    "top_p": NUMBER,
                    "top_k": NUMBER,
                },
                description="Temperature and `top_p` are in units of 10^-9. The last three are 0 in a greedy job.",
            ),
            "by_row": nullable(obj({"stop_columns": NUMBER})),
            "adapters": obj({"rank": NUMBER, "alpha": NUMBER, "targets": array(STRING)}),
            "adapter": nullable(_TUNED),
            "start": nullable(_TUNED),
            "preference": nullable(obj({"beta_nano": NUMBER})),
            "recompute": nullable(obj({"layers": NUMBER})),
            "packing": nullable(obj({"packed": NUMBER})),
            "pooling": obj({"name": STRING, "normalised": NUMBER}),
            "rates": obj({"name": STRING, "warmup_steps": NUMBER, "clip_nano": NUMBER}),
            "loop": obj(
                {"accumulate": NUMBER, "evaluate_every": NUMBER, "keeps_best": NUMBER, "patience": NUMBER}
            ),
            "batch": NUMBER,
            "image": obj(
                {"repository": STRING, "digest": HASH_OUT, "blob": BYTES_OUT, "size_bytes": NUMBER},
                description="The last two are empty and 0 unless the image comes as a blob.",
            ),
            "process": obj(
                {
                    "command": array(STRING),
                    "environment": array(STRING),
                    "user": NUMBER,
                    "egress": array(STRING),
                }
            ),
            "storage": obj(
                {
                    "mounts": array(obj({"path": STRING, "blob": HASH_OUT, "size_bytes": NUMBER, "form": NUMBER})),
                    "output": STRING,
                    "output_bytes_max": NUMBER,
                    "disk_mib": NUMBER,
                }
            ),
            "cores": NUMBER,
            "metering": obj(
                {
                    "name": STRING,
                    "grace_s": NUMBER,
                    "retries": NUMBER,
                    "idle_s": NUMBER,
                    "pattern": STRING,
                    "again": array(NUMBER),
                }
            ),
            "checkpoint": nullable(obj({"path": STRING, "every_s": NUMBER, "bytes_max": NUMBER})),
            "sealed": nullable(
                obj(
                    {
                        "salt": HASH_OUT,
                        "key_hash": HASH_OUT,
                        "results_key": HASH_OUT,
                        "is_private": NUMBER,
                        "blob": HASH_OUT,
                        "size_bytes": NUMBER,
                    }
                )
            ),
            "allows": NUMBER,
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
            "max_price_per_tera_unit": AMOUNT_OUT,
            "requirements": obj(
                {
                    "gpus": NUMBER,
                    "memory_mib": NUMBER,
                    "rate_min": NUMBER,
                    "gpu_words": array(STRING),
                    "gpu_memory_mib": NUMBER,
                },
                description="The last two are empty and 0 where any GPU does.",
            ),
            "match_ms": NUMBER,
            "verifiers": obj(
                {"bond_min": AMOUNT_OUT, "names": array(ADDRESS_OUT)},
                description="Who may verify; absent where anybody may.",
            ),
        },
        optional=(
            "verifiers",
            "adapters",
            "adapter",
            "start",
            "preference",
            "recompute",
            "packing",
            "pooling",
            "rates",
            "loop",
            "optimiser",
            "by_row",
            "decoding",
            "model",
            "dataset",
            "batch",
            "image",
            "process",
            "storage",
            "cores",
            "metering",
            "checkpoint",
            "sealed",
            "allows",
        ),
        description="The job; `raw` is what it was created with. Other fields depend on its kind.",
    ),
    "TaskChange": obj(
        {
            "number": NUMBER,
            "height": NUMBER,
            "time_ms": NUMBER,
            "before": nullable(words_of(Phase)),
            "after": words_of(Phase),
            "reason": words_of(Reason),
            "actor": nullable(ADDRESS_OUT),
            "evidence": nullable(HASH_OUT),
        }
    ),
}

TASK_METHODS: Final[tuple[Method, ...]] = (
    Method(
        "dekube_getTask",
        "A task with its job specification",
        get_task,
        obj({"at": AT, "task": nullable(ref("TaskWithSpec"))}),
        (TASK_ID,),
        cost=2,
        group="tasks",
        queue=QueueKind.VIEW,
        routes=("/v1/tasks/{task}",),
    ),
    Method(
        "dekube_getTasks",
        "Tasks, oldest first, filtered by phase, requester or worker",
        get_tasks,
        obj({"at": AT, "items": array(ref("Task"), maximum=100), "next": NEXT_OUT}),
        (
            Param("phase", choice(*(word(phase) for phase in Phase)), "Only in this phase.", required=False),
            Param("requester", ADDRESS, "Only tasks of this requester.", required=False),
            Param("worker", ADDRESS, "Only tasks that were assigned to this machine at any time.", required=False),
            CURSOR_PARAM,
            LIMIT_PARAM,
        ),
        cost=20,
        group="tasks",
        queue=QueueKind.VIEW,
        routes=("/v1/tasks",),
    ),
    Method(
        "dekube_getTaskHistory",
        "Phase changes of a task with time, reason and author",
        get_task_history,
        obj({"at": AT, "items": array(ref("TaskChange"), maximum=100), "next": NEXT_OUT}),
        (TASK_ID, CURSOR_PARAM, LIMIT_PARAM, FIRST_PARAM),
        cost=5,
        group="tasks",
        queue=QueueKind.VIEW,
        routes=("/v1/tasks/{task}/history",),
    ),
)
