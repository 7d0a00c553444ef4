"""Methods about windows of work: proofs, verifiers, the segments that they re-ran, and verdicts."""

from __future__ import annotations

from typing import Any, Final

from rpc.methods.method import Json, Method, NodeApi
from rpc.methods.names import word, words_of
from rpc.methods.pages import CURSOR_PARAM, FIRST_PARAM, LIMIT_PARAM, NEXT_OUT, numbered_page
from rpc.methods.queues import QueueKind
from rpc.methods.render import ADDRESS_OUT, AMOUNT_OUT, AT, BOOLEAN_OUT, BYTES_OUT, HASH_OUT, address, hexed
from rpc.methods.schema import NUMBER, STRING, Schema, array, nullable, obj, ref
from rpc.methods.tasks import TASK_ID, unknown_task
from state.view import Reader
from tasks.errors import TaskUnknown
from tasks.ledger.lifecycle import Reason, WindowPhase
from tasks.ledger.queries import task_windows
from tasks.ledger.records import WindowRecord
from tasks.programs.divergence import Divergence

__all__ = ["WINDOW_COMPONENTS", "WINDOW_METHODS"]


def _bits(loss_bits: int) -> str:
    """Return a binary64 number, given by its bits, as 8 bytes: JSON has neither NaN nor infinity."""
    return hexed(loss_bits.to_bytes(8, "big"))


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
                    "code": word(finding.code),
                    "work_digest": hexed(finding.work_digest),
                    "state_root_after": hexed(finding.state_root_after),
                    "loss_bits": _bits(finding.loss_bits),
                }
                for finding in seat.findings
            ],
        }
        for seat in seats
    ]


def _diverged(claim: Divergence) -> Json:
    return {"step": claim.step, "store": claim.store, "row": claim.row, "column": claim.column}


def _window(record: WindowRecord) -> Json:
    proof = record.proof
    return {
        "number": record.number,
        "phase": word(record.phase),
        "reason": word(record.reason),
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
            "custody": None
            if not proof.custody
            else {
                "size_bytes": proof.custody[0],
                "plain_root": hexed(proof.custody[1]),
                "cipher_root": hexed(proof.custody[2]),
            },
            "result_step": proof.result_step,
            "result_root": hexed(proof.result_root),
            "diverged": None if proof.diverged is None else _diverged(proof.diverged),
            "losses": None if proof.losses is None else hexed(proof.losses.content),
        },
        "sampled": list(record.sampled),
        "verifiers": _seats(record.verifiers),
        "opened": [
            {
                "segment": item.segment,
                "work_digest": hexed(item.work_digest),
                "state_root_after": hexed(item.state_root_after),
                "loss_bits": _bits(item.loss_bits),
            }
            for item in record.opened
        ],
        "missed": list(record.missed),
        "unserved": bool(record.unserved),
        "jurors": _seats(record.jurors),
        "draws": record.draws,
        "charge": str(record.charge),
        "verifier_fee": str(record.fee),
        "audit_cost": str(record.due),
    }


async def get_task_windows(node: NodeApi, task: bytes, cursor: list[Any] | None, limit: int, first: int) -> Json:
    """Answer ``dekube_getTaskWindows``."""
    return await numbered_page(node, b"windows" + task, cursor, limit, first, _windows, task, _window)


def _windows(reader: Reader, task_id: bytes, start: int, limit: int) -> list[WindowRecord]:
    try:
        return task_windows(reader, task_id, start=start, limit=limit)
    except TaskUnknown:
        raise unknown_task(task_id) from None


_RESULT: Final[dict[str, Schema]] = {
    "work_digest": HASH_OUT,
    "state_root_after": HASH_OUT,
    "loss_bits": BYTES_OUT,
}
_FINDING: Final = obj(
    {"segment": NUMBER, "code": STRING} | _RESULT,
    description="`loss_bits` is the sum of the losses of the segment's steps: a binary64 number, big-endian.",
)

WINDOW_COMPONENTS: Final[dict[str, Schema]] = {
    "Verdict": obj({"address": ADDRESS_OUT, "seal": nullable(HASH_OUT), "findings": nullable(array(_FINDING))}),
    "Window": obj(
        {
            "number": NUMBER,
            "phase": words_of(WindowPhase),
            "reason": words_of(Reason),
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
                    "custody": nullable(
                        obj({"size_bytes": NUMBER, "plain_root": HASH_OUT, "cipher_root": HASH_OUT})
                    ),
                    "result_step": NUMBER,
                    "result_root": HASH_OUT,
                    "diverged": nullable(obj({"step": NUMBER, "store": NUMBER, "row": NUMBER, "column": NUMBER})),
                    "losses": nullable(BYTES_OUT),
                },
                description="`losses`: of all evaluations that the job has, little-endian binary32 numbers.",
            ),
            "sampled": array(NUMBER),
            "verifiers": array(ref("Verdict")),
            "opened": array(obj({"segment": NUMBER} | _RESULT)),
            "missed": array(NUMBER),
            "unserved": BOOLEAN_OUT,
            "jurors": array(ref("Verdict")),
            "draws": NUMBER,
            "charge": AMOUNT_OUT,
            "verifier_fee": AMOUNT_OUT,
            "audit_cost": AMOUNT_OUT,
        },
        description="A window of work from its proof on: the segments drawn, who re-ran them, what they found.",
    ),
}

WINDOW_METHODS: Final[tuple[Method, ...]] = (
    Method(
        "dekube_getTaskWindows",
        "Proved windows of a task with verifiers and verdicts",
        get_task_windows,
        obj({"at": AT, "items": array(ref("Window"), maximum=100), "next": NEXT_OUT}),
        (TASK_ID, CURSOR_PARAM, LIMIT_PARAM, FIRST_PARAM),
        cost=10,
        group="tasks",
        queue=QueueKind.VIEW,
        routes=("/v1/tasks/{task}/windows",),
    ),
)
