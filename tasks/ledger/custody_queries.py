"""What custody asks of a machine now, read from the state (market.md 11.5, 11.6)."""

from __future__ import annotations

from enum import IntEnum
from typing import Final, NamedTuple

from state.primitives.hashing import HASH_BYTES
from state.view import Reader
from tasks.ledger.custody_records import CustodyPhase, CustodyRecord, DemandKind, find_custody
from tasks.ledger.records import by_custodian_key

__all__ = ["CustodyAction", "CustodyDuty", "custody_duties", "outputs_kept"]

OUTPUTS_MAX: Final = 4_096
"""Outputs of a machine that one look returns."""


class CustodyAction(IntEnum):
    """What is asked of a machine about an output."""

    SIGN = 1
    """Fetch it and sign for it."""
    ANSWER = 2
    """Post the demanded chunk."""
    RECEIVE = 3
    """Fetch it from its custodian, and sign for that."""


class CustodyDuty(NamedTuple):
    """One action that is due until ``deadline_ms``: ``chunk`` is the demanded one, ``bond`` what signing locks."""

    action: CustodyAction
    task: bytes
    window: int
    chunk: int
    bond: int
    deadline_ms: int


def _outputs_of(state: Reader, machine: bytes) -> list[CustodyRecord]:
    first = by_custodian_key(machine)
    keys = state.scan(first, first + b"\xff" * (HASH_BYTES + 5), OUTPUTS_MAX)
    places = [(key[len(first) : -4], int.from_bytes(key[-4:], "big")) for key, _ in keys]
    found = [find_custody(state, task, window) for task, window in places]
    return [record for record in found if record is not None]


def custody_duties(state: Reader, machine: bytes) -> list[CustodyDuty]:
    """Return what custody asks of a machine now. Raises RecordDamaged."""
    duties = []
    for record in _outputs_of(state, machine):
        place = record.task, record.window
        if record.phase is CustodyPhase.SIGNING and machine in record.pending:
            duties.append(CustodyDuty(CustodyAction.SIGN, *place, -1, record.bond, record.step_ms))
        asked = record.demand
        if asked is None or record.phase is CustodyPhase.VOID:
            continue
        if asked.kind is DemandKind.CHUNK and asked.holder == machine and asked.chunk >= 0:
            duties.append(CustodyDuty(CustodyAction.ANSWER, *place, asked.chunk, 0, asked.deadline_ms))
        elif asked.receiver == machine:
            duties.append(CustodyDuty(CustodyAction.RECEIVE, *place, -1, 0, asked.deadline_ms))
    return duties


def outputs_kept(state: Reader, machine: bytes) -> list[tuple[bytes, int]]:
    """Return task and window of the outputs that a machine has signed for. Raises RecordDamaged."""
    return [
        (record.task, record.window)
        for record in _outputs_of(state, machine)
        if record.holder(machine) is not None
    ]
