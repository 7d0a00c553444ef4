"""A worker's proof of the window that is due, and its claim that the job diverges there (market.md 7.2, R34)."""

from __future__ import annotations

from billing.escrow import Pool
from state.primitives.hashing import ZERO_HASH
from tasks.errors import NotYours, ProofMismatch, TooManyOpenWindows, WrongPhase
from tasks.evaluations import ended_by, shows_losses
from tasks.ledger.claims import DIVERGENCE_CLAIMED
from tasks.ledger.complaints import refute_complaints
from tasks.ledger.custody import check_custody
from tasks.ledger.lifecycle import Event, Phase, Reason
from tasks.ledger.open_task import Case
from tasks.ledger.progress import arm_running, free_slot
from tasks.ledger.records import Opened
from tasks.ledger.settlement import charge_of, has_standing, may_open
from tasks.ledger.verification import prove
from tasks.programs.divergence import Divergence, diverged_root, is_store
from tasks.proofs import WindowProof

__all__ = ["CLAIM_DIVERGED_GAS", "claim_diverged", "submit_window"]

CLAIM_DIVERGED_GAS = 16_000_000
"""Weight of a claim: that of a proof, and the program of a job that is not in memory, as of a move."""


def submit_window(case: Case, proof: WindowProof) -> None:
    """Take the proof of the window under way. If its losses end the job early, it is the last one (R87).

    Raises WrongPhase, ProofMismatch, TooManyOpenWindows, CustodyRefused.
    """
    if proof.diverged is not None:
        raise ProofMismatch("a window in which the job diverges is claimed, not submitted")
    _, step_to = case.spec.window_range(proof.window)
    ended = ended_by(case.spec, proof)
    if ended:
        step_to = min(step_to, ended)
        case.change(target=proof.window + 1)  # a rule that refuses the proof takes it back
    _take(case, proof, step_to)
    if proof.window + 1 == case.record.target:
        free_slot(case)
        case.advance(Event.LAST_WINDOW, Reason.ALL_WINDOWS_PROVED)
    else:
        arm_running(case)


def claim_diverged(case: Case, proof: WindowProof, sender: bytes) -> None:
    """Take the proof of the window under way up to the step that diverges: the task ends with it (R34).

    That is taken back if the window is void. A task that is being cancelled stays so.
    Raises NotYours, WrongPhase, ProofMismatch, TooManyOpenWindows, CustodyRefused.
    """
    if sender != case.record.worker:
        raise NotYours("the sender is not the task's worker")
    claim = proof.diverged
    if claim is None:
        raise ProofMismatch("the proof does not say what diverges")
    _check_claim(case, proof, claim)
    _take(case, proof, claim.step + 1)
    last = Opened(proof.segments - 1, proof.state_root_in, proof.state_root_out, ZERO_HASH, 0)
    program = case.scope.question_of(case.spec, case.window(proof.window), last).program
    if not is_store(program, claim.store, claim.row, claim.column):
        raise ProofMismatch("the job has no such value of a store")
    case.change(target=proof.window + 1)
    if not case.record.ending:
        case.change(ending=int(Phase.FAILED), ending_reason=int(Reason.JOB_DIVERGED))
    free_slot(case)
    case.advance(Event.LAST_WINDOW, Reason.JOB_DIVERGED)
    case.scope.emit(DIVERGENCE_CLAIMED(proof.task, sender, proof.window, claim.step, claim.store))


def _check_claim(case: Case, proof: WindowProof, claim: Divergence) -> None:
    step_from, step_to = case.spec.window_range(proof.window)
    if not step_from <= claim.step < step_to:
        raise ProofMismatch(f"step {claim.step} is not in the window")
    if ended_by(case.spec, proof):
        raise ProofMismatch("the job ends early, before the step")
    if proof.state_root_out != diverged_root(claim):
        raise ProofMismatch("the window does not end in the claim")
    if claim.step == step_from and claim.state_before != proof.state_root_in:
        raise ProofMismatch("the state before the first step is the one that the window starts at")


def _take(case: Case, proof: WindowProof, step_to: int) -> None:
    """Take the proof of the window under way, which ends before ``step_to``."""
    record, spec = case.record, case.spec
    if record.phase != Phase.RUNNING:
        raise WrongPhase(record.phase.name.lower())
    if proof.window != record.next_window:
        raise ProofMismatch(f"window {record.next_window} is due, not {proof.window}")
    step_from, _ = spec.window_range(proof.window)
    if (proof.step_from, proof.step_to) != (step_from, step_to):
        raise ProofMismatch(f"the window covers steps {step_from} to {step_to}")
    charge = charge_of(case, proof)
    held = case.vault.held(Pool.BOND, record.worker)
    is_open = may_open(record, spec, charge, held, case.parameters)
    if not is_open or not has_standing(held, record, case.parameters):
        raise TooManyOpenWindows(f"{len(record.open_windows)} windows are open, or the bond covers no more")
    if proof.state_root_in != record.state_root:
        raise ProofMismatch("the window does not start at the state that the one before ended in")
    segments = -(-(step_to - step_from) // spec.schedule.segment_steps)
    if proof.segments != segments:
        raise ProofMismatch(f"the window has {segments} segments")
    if not shows_losses(spec, proof):
        raise ProofMismatch("the losses of evaluations are not those of the state that the window leaves")
    check_custody(case, proof)
    prove(case, proof)
    refute_complaints(case)
    case.change(
        next_window=proof.window + 1, state_root=proof.state_root_out, vain_offers=0,
        open_charge=record.open_charge + charge,
    )  # fmt: skip
