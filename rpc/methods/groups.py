"""The method about groups of tasks: what a group's seats do."""

from __future__ import annotations

from typing import Final

from rpc.methods.heights import stamp
from rpc.methods.method import Json, Method, NodeApi
from rpc.methods.names import word, words_of
from rpc.methods.queues import QueueKind
from rpc.methods.render import ADDRESS_OUT, AT, BOOLEAN_OUT, HASH_OUT, address, hexed
from rpc.methods.schema import HASH, NUMBER, Param, Schema, array, nullable, obj, ref
from state.view import Reader
from tasks.errors import GroupUnknown
from tasks.ledger.group_records import (
    GROUP_HISTORY_MAX,
    SEATS_MAX,
    GroupPhase,
    GroupRecord,
    load_group,
    seat_of_task,
    seat_task,
)
from tasks.ledger.lifecycle import Phase, Reason
from tasks.ledger.records import TaskRecord, load_task

__all__ = ["GROUP_COMPONENTS", "GROUP_METHODS"]


async def get_group(node: NodeApi, group: bytes) -> Json:
    """Answer ``dekube_getGroup``."""
    height = node.head.height
    found = await node.query(height, _find, group)
    return {"at": await stamp(node, height), "group": None if found is None else _group(*found)}


def _find(reader: Reader, group: bytes) -> tuple[GroupRecord, list[TaskRecord]] | None:
    try:
        record = load_group(reader, group)
    except GroupUnknown:
        return None
    return record, [load_task(reader, seat_task(group, seat)) for seat in range(record.seats)]


def _group(record: GroupRecord, seats: list[TaskRecord]) -> Json:
    return {
        "id": hexed(record.id),
        "requester": address(record.requester),
        "specification": hexed(record.specification),
        "phase": word(record.phase),
        "reason": word(record.reason),
        "created_height": record.created_height,
        "created_ms": record.created_ms,
        "changed_height": record.changed_height,
        "changed_ms": record.changed_ms,
        "members": record.members,
        "spares": record.spares,
        "rate_min": record.band or None,
        "rate_max": record.rate_max or None,
        "lost": record.lost,
        "paused": record.paused,
        "ended": record.ended,
        "standby": record.standby,
        "final_windows": record.final,
        "history": [
            {
                "height": change.height,
                "time_ms": change.time_ms,
                "phase": word(change.phase),
                "reason": word(change.reason),
            }
            for change in record.history
        ],
        "seats": [_seat(record, task) for task in seats],
    }


def _seat(group: GroupRecord, task: TaskRecord) -> Json:
    return {
        "seat": seat_of_task(task),
        "is_spare": seat_of_task(task) >= group.members,
        "task": hexed(task.id),
        "phase": word(task.phase),
        "reason": word(task.reason),
        "worker": address(task.worker) if task.worker else None,
        "windows": task.target,
        "proved_windows": task.next_window,
        "final_windows": task.final_windows,
    }


GROUP_COMPONENTS: Final[dict[str, Schema]] = {
    "Group": obj(
        {
            "id": HASH_OUT,
            "requester": ADDRESS_OUT,
            "specification": HASH_OUT,
            "phase": words_of(GroupPhase),
            "reason": words_of(Reason),
            "created_height": NUMBER,
            "created_ms": NUMBER,
            "changed_height": NUMBER,
            "changed_ms": NUMBER,
            "members": NUMBER,
            "spares": NUMBER,
            "rate_min": nullable(NUMBER),
            "rate_max": nullable(NUMBER),
            "lost": NUMBER,
            "paused": NUMBER,
            "ended": NUMBER,
            "standby": NUMBER,
            "final_windows": NUMBER,
            "history": array(
                obj(
                    {
                        "height": NUMBER,
                        "time_ms": NUMBER,
                        "phase": words_of(GroupPhase),
                        "reason": words_of(Reason),
                    }
                ),
                maximum=GROUP_HISTORY_MAX,
            ),
            "seats": array(
                obj(
                    {
                        "seat": NUMBER,
                        "is_spare": BOOLEAN_OUT,
                        "task": HASH_OUT,
                        "phase": words_of(Phase),
                        "reason": words_of(Reason),
                        "worker": nullable(ADDRESS_OUT),
                        "windows": NUMBER,
                        "proved_windows": NUMBER,
                        "final_windows": NUMBER,
                    }
                ),
                maximum=SEATS_MAX,
            ),
        },
        description="A group of tasks. `rate_min` and `rate_max`: the band of speed of its machines, once it is "
        "matched. `lost`: members that look for a machine. `final_windows`: of all members.",
    ),
}

GROUP_METHODS: Final[tuple[Method, ...]] = (
    Method(
        "dekube_getGroup",
        "A group of tasks, with what each of its seats does",
        get_group,
        obj({"at": AT, "group": nullable(ref("Group"))}),
        (Param("group", HASH, "The group's id."),),
        cost=20,
        group="tasks",
        queue=QueueKind.VIEW,
        routes=("/v1/groups/{group}",),
    ),
)
