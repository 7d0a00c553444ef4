"""What lies in custody is not the result: shown in one move, that is a proven lie (market.md R39, R40).

A proof is noted when it comes and settled at the end of the block, as for a game: it may void as many windows as
are open.
"""

from __future__ import annotations

from billing.escrow import Pool, Purpose
from tasks.custody.chunks import ChunkProof, is_garbage
from tasks.custody.errors import ChunkInvalid
from tasks.custody.keys import KeyProof, check_key, window_key_name
from tasks.custody.layout import LeafEvidence, PlainChunk, StateLayout, check_mismatch
from tasks.dispute.clock import Clock
from tasks.dispute.game import Side
from tasks.errors import CustodyOff, CustodyRefused
from tasks.ledger import reputation
from tasks.ledger.custody import part_with, settle, step_custody, void_costs, waits_unkept
from tasks.ledger.custody_records import (
    CustodyPhase,
    CustodyRecord,
    find_custody,
    find_terms,
    load_custody,
    save_custody,
)
from tasks.ledger.disputes import Challenger, DisputeEnding, DisputePhase, DisputeRecord
from tasks.ledger.endings import reject, void_unkept
from tasks.ledger.lifecycle import ENDED, Reason, WindowEvent
from tasks.ledger.open_task import Case
from tasks.ledger.records import WindowRecord
from tasks.ledger.settlement import forfeit_hold
from tasks.ledger.stakes import burn_rest, share_lie

__all__ = ["on_custody_due", "reveal_garbage", "reveal_mismatch"]

NO_GAME = -1
"""Number and segment of what proves a lie without a game: no challenge is about the same."""
PROOF_MOVES = 2
"""A proof costs as much as one move of each side of a game."""


def reveal_garbage(
    case: Case, number: int, sender: bytes, key: bytes, key_proof: KeyProof, chunk: ChunkProof
) -> None:  # fmt: skip
    """Take a window's key that shows that a chunk in custody is not the one its worker committed to.

    Raises CustodyOff, CustodyUnknown, CustodyRefused, KeyInvalid, ChunkInvalid.
    """
    record = _provable(case, number)
    terms = find_terms(case.state, case.record.id)
    if terms is None:
        raise CustodyOff("the task has no custody")
    check_key(terms.key_root, terms.inputs, terms.windows, window_key_name(number), key, key_proof)
    if not is_garbage(record.blob, key, chunk):
        raise ChunkInvalid("the chunk is the one that its worker committed to")
    save_custody(case.state, record._replace(prover=sender), case.now)


def reveal_mismatch(
    case: Case, number: int, sender: bytes, chunk: PlainChunk, evidence: LeafEvidence | None
) -> None:  # fmt: skip
    """Take a plain chunk under a worker's root that is not what the state under its state root has there.

    Raises CustodyUnknown, CustodyRefused, ChunkInvalid.
    """
    record = _provable(case, number)
    proof = case.window(number).proof
    layout = StateLayout(case.spec.plan(), proof.result_step)
    check_mismatch(layout, proof.result_root, record.blob, chunk, evidence)
    save_custody(case.state, record._replace(prover=sender), case.now)


def _provable(case: Case, number: int) -> CustodyRecord:
    record = load_custody(case.state, case.record.id, number)
    if record.prover or record.phase is CustodyPhase.VOID:
        raise CustodyRefused("a lie was shown already, or the window is void")
    return record


def on_custody_due(case: Case, number: int, due_ms: int) -> None:
    """Do what is due of the custody of a window, if that still stands."""
    record = find_custody(case.state, case.record.id, number)
    if record is None or record.deadline_ms != due_ms:
        return
    record = record._replace(deadline_ms=0)
    if record.prover:
        _prove_lie(case, record)
    elif record.phase is CustodyPhase.UNKEPT:
        _step_unkept(case, record)
    else:
        step_custody(case, record)


def _step_unkept(case: Case, record: CustodyRecord) -> None:
    """Void the window of an output that no custodian has, or look at it again later (R90)."""
    if waits_unkept(case, record):
        step_ms = min(record.until_ms, case.now + case.parameters.draw_retry_ms)
        save_custody(case.state, record._replace(step_ms=step_ms), case.now)
        return
    save_custody(case.state, record, case.now)
    void_unkept(case, case.window(record.window))


def _prove_lie(case: Case, record: CustodyRecord) -> None:
    """Share the liar's bond and void its windows that are not final; one that is final stays paid."""
    window = case.window(record.window)
    lie = _lie_of(case, window, record.prover)
    own = [one for one in case.open_windows() if one.worker == record.author]
    void = [one for one in case.open_windows() if own and one.number >= own[0].number]
    fees = sum(one.fee * sum(seat.findings is not None for seat in one.verifiers) for one in void)
    fees += void_costs(case, void)
    share_lie(case, window, lie, (), record.prover, fees, void)
    if own:
        reject(case, own[0], WindowEvent.DROP, Reason.LIE_PROVEN, blamed=record.author, lie=lie)
    else:
        _blame(case, window)
    settle(case, record)  # last: until then its author's bond is not released


def _blame(case: Case, window: WindowRecord) -> None:
    """Take what else is the liar's in the task, where no window of it is open."""
    author = window.worker
    burn_rest(case, window)
    if case.record.phase in ENDED:  # nobody works for what was held any more
        held = case.vault.held(Pool.HOLD, author)
        case.vault.burn(Pool.HOLD, held, Purpose.LIE_PROVEN, owner=author)
    else:
        forfeit_hold(case, author)
    reputation.mark_failure(case.state, author, case.now, case.scope.emit, case.parameters)
    part_with(case, author, Reason.LIE_PROVEN)


def _lie_of(case: Case, window: WindowRecord, prover: bytes) -> DisputeRecord:
    """Return the proof in the form of a dispute that an outsider has won without a game."""
    return DisputeRecord(
        window.task, window.number, NO_GAME, Challenger.OUTSIDER, prover, NO_GAME, NO_GAME, b"", b"", 0, None,
        DisputePhase.OVER, DisputeEnding.COMMITMENT_BROKEN, b"", PROOF_MOVES,
        Clock(Side.ACCUSED, case.now, 0, 0), 0, 0, case.scope.block.height, case.now, case.now,
        case.scope.block.base_fee,
    )  # fmt: skip
