"""Methods about disputes: games about windows, and their moves."""

from __future__ import annotations

from functools import partial
from typing import Any, Final

from rpc.methods.heights import stamp
from rpc.methods.method import Json, Method, NodeApi
from rpc.methods.names import word, words_of
from rpc.methods.pages import CURSOR_PARAM, FIRST_PARAM, LIMIT_PARAM, NEXT_OUT, numbered_page
from rpc.methods.queues import QueueKind
from rpc.methods.render import ADDRESS_OUT, AT, HASH_OUT, address, hexed
from rpc.methods.schema import NUMBER, STRING, Param, Schema, array, natural, nullable, obj, ref
from rpc.methods.tasks import TASK_ID
from state.view import Reader
from tasks.dispute.game import Side
from tasks.errors import DisputeUnknown
from tasks.ledger.disputes import Challenger, DisputeEnding, DisputePhase, DisputeRecord, load_dispute
from tasks.ledger.queries import MOVES_PAGE_MAX, dispute_moves, disputes

__all__ = ["DISPUTE_COMPONENTS", "DISPUTE_METHODS"]

NUMBER_MAX: Final = 2**32 - 1
_WINDOW: Final = Param("window", natural(0, NUMBER_MAX), "Number of the window, from 0.")
_GAME: Final = Param("game", natural(0, NUMBER_MAX), "Number of the dispute of the window, from 0.")
_FIRST_MOVE: Final = Param(
    "first", natural(0, NUMBER_MAX), f"First move; {MOVES_PAGE_MAX} at most are shown.", required=False, default=0
)


def _dispute(dispute: DisputeRecord) -> Json:
    clock, opened = dispute.clock, dispute.opened
    is_over = dispute.phase is DisputePhase.OVER
    return {
        "number": dispute.number,
        "kind": word(dispute.kind),
        "challenger": address(dispute.challenger),
        "segment": dispute.segment,
        "work_digest": hexed(dispute.work_digest),
        "state_root_after": hexed(dispute.state_root_after),
        "opened": None
        if opened is None
        else {
            "work_digest": hexed(opened.work_digest),
            "state_root_before": hexed(opened.state_root_before),
            "state_root_after": hexed(opened.state_root_after),
        },
        "phase": word(dispute.phase),
        "ending": word(dispute.ending) if is_over else None,
        "moves": dispute.moves,
        "turn": None if is_over else word(clock.side),
        "deadline_ms": dispute.deadline_ms or None,
        "accused_left_ms": clock.accused_left_ms,
        "challenger_left_ms": clock.challenger_left_ms,
        "opened_ms": dispute.opened_ms,
        "ended_ms": dispute.ended_ms or None,
    }


async def get_disputes(
    node: NodeApi, task: bytes, window: int, cursor: list[Any] | None, limit: int, first: int
) -> Json:
    """Answer ``dekube_getDisputes``."""
    subject = b"disputes" + task + window.to_bytes(4, "big")
    return await numbered_page(node, subject, cursor, limit, first, partial(_disputes, window), task, _dispute)


def _disputes(window: int, reader: Reader, task_id: bytes, start: int, limit: int) -> list[DisputeRecord]:
    return disputes(reader, task_id, window, start=start, limit=limit)


async def get_dispute(node: NodeApi, task: bytes, window: int, game: int, first: int) -> Json:
    """Answer ``dekube_getDispute``."""
    height = node.head.height
    found = await node.query(height, _whole, task, window, game, first)
    return {"at": await stamp(node, height), "dispute": found and _dispute(found[0]), "moves": _moves(found)}


def _whole(
    reader: Reader, task: bytes, window: int, game: int, first: int
) -> tuple[DisputeRecord, list[bytes]] | None:  # fmt: skip
    try:
        return load_dispute(reader, task, window, game), dispute_moves(reader, task, window, game, start=first)
    except DisputeUnknown:
        return None


def _moves(found: tuple[DisputeRecord, list[bytes]] | None) -> list[Json]:
    return [] if found is None else [hexed(move) for move in found[1]]


DISPUTE_COMPONENTS: Final[dict[str, Schema]] = {
    "Dispute": obj(
        {
            "number": NUMBER,
            "kind": words_of(Challenger),
            "challenger": ADDRESS_OUT,
            "segment": NUMBER,
            "work_digest": HASH_OUT,
            "state_root_after": HASH_OUT,
            "opened": nullable(
                obj({"work_digest": HASH_OUT, "state_root_before": HASH_OUT, "state_root_after": HASH_OUT})
            ),
            "phase": words_of(DisputePhase),
            "ending": nullable(words_of(DisputeEnding)),
            "moves": NUMBER,
            "turn": nullable(words_of(Side)),
            "deadline_ms": nullable(NUMBER),
            "accused_left_ms": NUMBER,
            "challenger_left_ms": NUMBER,
            "opened_ms": NUMBER,
            "ended_ms": nullable(NUMBER),
        },
        description="A dispute about a segment: its challenger, what both sides found, clocks and how it ended.",
    ),
}

DISPUTE_METHODS: Final[tuple[Method, ...]] = (
    Method(
        "dekube_getDisputes",
        "Disputes about a window of a task",
        get_disputes,
        obj({"at": AT, "items": array(ref("Dispute"), maximum=100), "next": NEXT_OUT}),
        (TASK_ID, _WINDOW, CURSOR_PARAM, LIMIT_PARAM, FIRST_PARAM),
        cost=10,
        group="tasks",
        queue=QueueKind.VIEW,
        routes=("/v1/tasks/{task}/windows/{window}/disputes",),
    ),
    Method(
        "dekube_getDispute",
        "A dispute with its moves, which are kept until it is over",
        get_dispute,
        obj({"at": AT, "dispute": nullable(ref("Dispute")), "moves": array(STRING, maximum=MOVES_PAGE_MAX)}),
        (TASK_ID, _WINDOW, _GAME, _FIRST_MOVE),
        cost=10,
        group="tasks",
        queue=QueueKind.VIEW,
        routes=("/v1/tasks/{task}/windows/{window}/disputes/{game}",),
    ),
)
