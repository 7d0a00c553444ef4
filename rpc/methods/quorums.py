"""What ``dekube_getTask`` says of the quorum of a container: which machines agree, and whose result differs."""

from __future__ import annotations

from typing import Final, NamedTuple

from rpc.methods.method import Json
from rpc.methods.names import word, words_of
from rpc.methods.render import ADDRESS_OUT, AMOUNT_OUT, HASH_OUT, address, hexed
from rpc.methods.schema import NUMBER, Schema, array, nullable, obj, ref
from state.view import Reader
from tasks.ledger.lifecycle import Phase, Reason
from tasks.ledger.meter_records import MeterRecord, load_meter
from tasks.ledger.quorum_records import (
    QuorumPhase,
    QuorumRecord,
    SeatState,
    find_quorum,
    quorum_seat_task,
    seat_number,
)
from tasks.ledger.records import load_task

__all__ = ["QUORUM_COMPONENTS", "FoundQuorum", "find_quorum_of", "quorum_to_json"]


class FoundQuorum(NamedTuple):
    """A quorum, the seat that was asked for, the workers of its seats now, and their meters."""

    record: QuorumRecord
    seat: int
    workers: tuple[bytes, ...]
    meters: tuple[MeterRecord, ...]


def find_quorum_of(reader: Reader, task: bytes) -> FoundQuorum | None:
    """Return the quorum that a task is a seat of, or None."""
    record = find_quorum(reader, task)
    if record is None:
        return None
    tasks = [quorum_seat_task(record.id, seat) for seat in range(len(record.seats))]
    workers = tuple(load_task(reader, each).worker for each in tasks)
    meters = tuple(load_meter(reader, each) for each in tasks)
    return FoundQuorum(record, seat_number(reader, task), workers, meters)


def quorum_to_json(found: FoundQuorum | None) -> Json:
    """Return a quorum as it is told."""
    if found is None:
        return None
    record = found.record
    return {
        "id": hexed(record.id),
        "seat": found.seat,
        "phase": word(record.phase),
        "until_ms": record.until_ms or None,
        "result": hexed(record.result) if record.result else None,
        "ending": word(Phase(record.ending)) if record.ending else None,
        "reason": word(Reason(record.ending_reason)) if record.ending_reason else None,
        "seats": [
            {
                "seat": at,
                "task": hexed(quorum_seat_task(record.id, at)),
                "state": word(seat.state),
                "worker": address(worker) if (worker := seat.machine or found.workers[at]) else None,
                "seal": hexed(seat.seal) if seat.seal else None,
                "result": hexed(seat.result) if seat.result else None,
                "span_s": seat.span_s,
                "seconds": found.meters[at].seconds,
                "paid": str(found.meters[at].paid),
            }
            for at, seat in enumerate(record.seats)
        ],
    }


QUORUM_COMPONENTS: Final[dict[str, Schema]] = {
    "Quorum": obj(
        {
            "id": HASH_OUT,
            "seat": NUMBER,
            "phase": words_of(QuorumPhase),
            "until_ms": nullable(NUMBER),
            "result": nullable(HASH_OUT),
            "ending": nullable(words_of(Phase)),
            "reason": nullable(words_of(Reason)),
            "seats": array(ref("QuorumSeat")),
        },
        description="Machines that run one container. `id`: the task of seat 0, which stands for the whole. "
        "`seat`: that of the task that was asked for. `until_ms`: until when what it waits for may come (steady "
        "time). `result`: that of most machines. `ending`, `reason`: how it ends.",
    ),
    "QuorumSeat": obj(
        {
            "seat": NUMBER,
            "task": HASH_OUT,
            "state": words_of(SeatState),
            "worker": nullable(ADDRESS_OUT),
            "seal": nullable(HASH_OUT),
            "result": nullable(HASH_OUT),
            "span_s": NUMBER,
            "seconds": NUMBER,
            "paid": AMOUNT_OUT,
        },
        description="A machine of a quorum. `result`: the hash of how its container ended and of what it left. "
        "`span_s`: from the start to the seal, by the chain's clock. Nothing is paid before results are compared.",
    ),
}
