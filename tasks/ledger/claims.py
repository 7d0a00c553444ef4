"""Claims that end a task: what was proven against its inputs, and what its worker is paid then (market.md 5.5)."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from state.primitives.codec import Value, encode
from state.primitives.receipts import EventType
from state.view import Overlay, Reader, Table
from state.view.records import items_of, read_record
from tasks.claims import InputClaim, check_claim
from tasks.errors import CustodyRefused, NotYours, WrongPhase
from tasks.ledger.custody_records import find_terms
from tasks.ledger.lifecycle import Phase, Reason
from tasks.ledger.open_task import LEDGER_ADDRESS, Case
from tasks.ledger.progress import report, wind_up
from tasks.ledger.records import WindowRecord
from tasks.ledger.settlement import pay_claim_gas, pay_preparation
from tasks.programs.divergence import Divergence

__all__ = [
    "CLAIM_EVENTS",
    "CLAIM_INPUT_GAS",
    "DIVERGENCE_CLAIMED",
    "UpheldClaim",
    "claim_input",
    "end_by_claim",
    "load_claim",
    "save_claim",
    "uphold_divergence",
]

CLAIM_INPUT_GAS: Final = 5_000_000
"""Weight of a claim about an input: its bytes, judging it, and the end of the task."""
ACCEPT_GAS: Final = 280_000
"""What accepting the task has cost its worker."""
CLAIM_LIMIT_BYTES: Final = 64
_TASK: Final = bytes([Table.TASK])
_CLAIM_PART: Final = b"\x03"

CLAIM_UPHELD: Final = EventType(
    LEDGER_ADDRESS,
    "ClaimUpheld(bytes32 indexed task, address indexed claimant, uint256 reason, uint256 fault)",
)
DIVERGENCE_CLAIMED: Final = EventType(
    LEDGER_ADDRESS,
    "DivergenceClaimed(bytes32 indexed task, address indexed worker, uint256 window, uint256 step, uint256 store)",
)
CLAIM_EVENTS: Final = (CLAIM_UPHELD, DIVERGENCE_CLAIMED)


class UpheldClaim(NamedTuple):
    """What was proven against a task, for its requester. ``fault``, ``place`` and ``size`` are those of the claim.

    Of a job that diverges ``fault`` is 0, ``place`` are store, row and column, and ``size`` is the step.
    """

    reason: Reason
    fault: int
    place: tuple[int, int, int]
    size: int


def load_claim(state: Reader, task: bytes) -> UpheldClaim | None:
    """Return what was proven against a task, or None. Raises RecordDamaged."""
    data = state.get(_TASK + task + _CLAIM_PART)
    if data is None:
        return None

    def make(value: Any) -> UpheldClaim:
        reason, fault, tensor, stage, number, size = items_of(value, *[int] * 6)
        return UpheldClaim(Reason(reason), fault, (tensor, stage, number), size)

    return read_record(data, make, what="a claim against a task", limit_bytes=CLAIM_LIMIT_BYTES)


def save_claim(state: Overlay, task: bytes, claim: UpheldClaim) -> None:
    """Write what was proven against a task."""
    value: list[Value] = [int(claim.reason), claim.fault, *claim.place, claim.size]
    state.put(_TASK + task + _CLAIM_PART, encode(value))


def claim_input(case: Case, claim: InputClaim, sender: bytes) -> None:
    """End a task whose worker proves that the blob is not its data set (R32).

    Where the task has inputs with keys its blob is a cipher: nothing about the data set follows from it.
    Raises NotYours, WrongPhase, CustodyRefused, ClaimUnproven.
    """
    record = case.record
    if sender != record.worker:
        raise NotYours("the sender is not the task's worker")
    if record.phase not in (Phase.PREPARING, Phase.RUNNING):
        raise WrongPhase(record.phase.name.lower())
    terms = find_terms(case.state, record.id)
    if terms is not None and terms.inputs:
        raise CustodyRefused("the blob of the data set is a cipher")
    check_claim(case.spec, claim)
    end_by_claim(case, UpheldClaim(Reason.INPUT_INVALID, int(claim.fault), claim.place, claim.size))


def end_by_claim(case: Case, claim: UpheldClaim, gas: int = CLAIM_INPUT_GAS) -> None:
    """End a task by what its worker has proven, with ``gas`` beside that of accepting it.

    The worker is paid its preparation and gas; nothing is counted against it or for it.
    """
    record = case.record
    pay_preparation(case)
    pay_claim_gas(case, ACCEPT_GAS + gas)
    save_claim(case.state, record.id, claim)
    case.scope.emit(CLAIM_UPHELD(record.id, record.worker, claim.reason, claim.fault))
    report(case, claim.reason)
    wind_up(case, Phase.FAILED, claim.reason)


def uphold_divergence(case: Case, window: WindowRecord, found: Divergence) -> None:
    """Note that a claim of divergence stands: its window is final, and the task ends with it."""
    place = found.store, found.row, found.column
    save_claim(case.state, case.record.id, UpheldClaim(Reason.JOB_DIVERGED, 0, place, found.step))
    case.scope.emit(CLAIM_UPHELD(case.record.id, window.worker, Reason.JOB_DIVERGED, 0))
    report(case, Reason.JOB_DIVERGED, window.worker)
