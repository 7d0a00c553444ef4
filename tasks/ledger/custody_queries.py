"""What custody asks of a machine now, read from the state (market.md 11.5, 11.6)."""

from __future__ import annotations

from collections.abc import Iterator
from enum import IntEnum
from itertools import islice
from typing import Final, NamedTuple

from state.primitives.hashing import HASH_BYTES
from state.view import Reader
from tasks.ledger.custody_records import INPUT_WINDOW, CustodyPhase, CustodyRecord, find_custody
from tasks.ledger.records import Asked, by_custodian_key

__all__ = ["CustodyAction", "CustodyDuty", "custody_duties", "input_holders", "inputs_kept", "outputs_kept"]

DUTIES_MAX: Final = 4_096
"""Demands of a machine, and outputs that it was drawn for, that one look returns."""
PAGE: Final = 1_024
"""Entries of the index that one scan reads."""


class CustodyAction(IntEnum):
    """What is asked of a machine about an output."""

    SIGN = 1
    """Fetch it and sign for it."""
    ANSWER = 2
    """Post the demanded chunk."""
    RECEIVE = 3
    """Fetch it from its custodian, and sign for that."""


class CustodyDuty(NamedTuple):
    """One action that is due until ``deadline_ms``: ``chunk`` is the demanded one, ``bond`` what signing locks.

    ``window`` is ``INPUT_WINDOW`` for the input of a task.
    """

    action: CustodyAction
    task: bytes
    window: int
    chunk: int
    bond: int
    deadline_ms: int


def _places(state: Reader, machine: bytes, asked: Asked) -> Iterator[tuple[bytes, int]]:
    """Yield task and window of the outputs that ask something of a machine, a page at a time."""
    first = by_custodian_key(machine, asked)
    start, stop = first, first + b"\xff" * (HASH_BYTES + 5)
    while keys := [key for key, _ in state.scan(start, stop, PAGE)]:
        yield from ((key[len(first) : -4], int.from_bytes(key[-4:], "big")) for key in keys)
        start = keys[-1] + b"\x00"


def _asking(state: Reader, machine: bytes, asked: Asked) -> Iterator[CustodyRecord]:
    for place in islice(_places(state, machine, asked), DUTIES_MAX):
        record = find_custody(state, *place)
        if record is not None and record.phase is not CustodyPhase.VOID:
            yield record


def custody_duties(state: Reader, machine: bytes) -> list[CustodyDuty]:
    """Return what custody asks of a machine now. What it keeps and what it was drawn for hide no demand.

    Raises RecordDamaged.
    """
    duties = []
    for record in _asking(state, machine, Asked.DEMAND):
        asked = record.demand
        if asked is None:
            continue
        if asked.receiver == machine:
            action, chunk = CustodyAction.RECEIVE, -1
        else:
            action, chunk = CustodyAction.ANSWER, asked.chunk
        duties.append(CustodyDuty(action, record.task, record.window, chunk, 0, asked.deadline_ms))
    duties += [
        CustodyDuty(CustodyAction.SIGN, record.task, record.window, -1, record.bond, record.step_ms)
        for record in _asking(state, machine, Asked.RECEIPT)
    ]
    return duties


def outputs_kept(state: Reader, machine: bytes) -> list[tuple[bytes, int]]:
    """Return task and window of the outputs that a machine has signed for: its bonds bound their number."""
    return [place for place in _places(state, machine, Asked.KEPT) if place[1] != INPUT_WINDOW]


def input_holders(state: Reader, task: bytes) -> list[bytes]:
    """Return the machines that have signed for the input of a task."""
    record = find_custody(state, task, INPUT_WINDOW)
    return [] if record is None else [holder.address for holder in record.holders]


def inputs_kept(state: Reader, machine: bytes) -> list[bytes]:
    """Return the tasks whose inputs a machine has signed for."""
    return [task for task, window in _places(state, machine, Asked.KEPT) if window == INPUT_WINDOW]
