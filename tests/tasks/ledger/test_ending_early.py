"""A job ends when its validation loss gets no better: the ledger says when, and nobody else (market.md R87).

Steps are toys here, so no state has losses. ``tests/tasks/test_evaluations`` is about losses of real states.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import replace

import pytest

from billing.escrow import Purpose, escrow_totals
from billing.prices import work_price
from tasks.kinds.finetune import TrainingLoop
from tasks.ledger import proving, queries
from tasks.ledger.audits import audit_of
from tasks.ledger.claim_transitions import CLAIM_DIVERGED
from tasks.ledger.lifecycle import Phase, Reason, WindowPhase
from tasks.ledger.parameters import TaskParameters
from tasks.ledger.queries import Action, WorkDuty
from tasks.ledger.records import load_window
from tasks.ledger.registry import NodeRole
from tasks.ledger.settlement import audited_charge
from tasks.ledger.transitions import CANCEL_TASK, SUBMIT_WINDOW
from tasks.programs.loop import EVALUATIONS_MAX
from tasks.proofs import ShownLosses, WindowProof, window_proof_to_value
from tasks.spec import JobSpec
from tests.tasks.toywork import INIT_ROOT
from tests.tasks.tuned import tuned
from tests.tasks.world import HONEST, QUICK, REQUESTER, WORTH, Manners, World, claim_leaves, leaves_of, proof_of

COMPUTE, VERIFY = NodeRole.COMPUTE, NodeRole.VERIFY
_SPEC, PLAN, _ = tuned(updates=12, samples=3, loop=TrainingLoop(2, 2, 1, 1), window=10)
SPEC = _SPEC.changed(init_root=INIT_ROOT)
"""Thirty steps in three windows, an evaluation with every fifth of them; one that is no better ends the job."""
WORSE = (2.0, 1.0, 1.5)
"""The third evaluation, which is complete after 15 steps, is no better than the second."""
LIAR = Manners(lies=True)


@pytest.fixture(autouse=True)
def _toy_states_show_their_losses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proving, "shows_losses", lambda _spec, proof: proof.losses is not None)


def shown(losses: Sequence[float]) -> ShownLosses:
    return ShownLosses(struct.pack(f"<{EVALUATIONS_MAX}f", *losses, *[0.0] * (EVALUATIONS_MAX - len(losses))), ())


class Ending(World):
    """A market whose workers know the losses of each evaluation, and end where these end the job."""

    losses: Sequence[float] = WORSE

    def proof(self, job: JobSpec, proof: WindowProof) -> WindowProof:
        return proof._replace(losses=shown(self.losses))

    def made(self, duty: WorkDuty, step_to: int = 0, losses: Sequence[float] | None = None) -> WindowProof:
        """Return the proof of the window that is due; it ends where its losses end the job, or at ``step_to``."""
        job = queries.task_spec(self.state, duty.task)
        lies = self.machines[queries.find_task(self.state, duty.task).worker].lies
        leaves = leaves_of(job, duty.window, duty.state_root, lie=lies)
        known = self.losses if losses is None else losses
        end = step_to or PLAN.loop.ended_by(leaves[-1].step_to, known, PLAN.patience)
        if end and end < leaves[-1].step_to:
            leaves = [leaf for leaf in leaves if leaf.step_from < end]
            last = leaves_of(_cut(job, end), duty.window, duty.state_root, lie=lies)[-1]
            leaves[-1] = last
        self.published[duty.task, duty.window] = leaves
        proof = proof_of(job, duty.task, duty.window, leaves)
        return proof._replace(step_to=leaves[-1].step_to, losses=shown(known))

    def work(self, address: bytes, duty: WorkDuty, manners: Manners) -> None:
        if duty.action is not Action.COMPUTE or duty.blocked:
            super().work(address, duty, manners)
            return
        refusal = self.send(address, SUBMIT_WINDOW, [window_proof_to_value(self.made(duty))])
        assert refusal is None, refusal

    def due(self, task: bytes) -> tuple[bytes, WorkDuty]:
        worker = self.task(task).worker
        (duty,) = [one for one in queries.work_duties(self.state, worker, self.parameters) if one.task == task]
        return worker, duty


def _cut(job: JobSpec, steps: int) -> JobSpec:
    """Return the job with fewer steps: its segments up to there are those of the job."""
    return job._replace(schedule=job.schedule._replace(total_steps=steps))


def market(
    *others: Manners, worker: Manners = HONEST, losses: Sequence[float] = WORSE, parameters: TaskParameters = QUICK
) -> Ending:
    world = Ending(parameters)
    world.losses = losses
    world.add_machine(1, roles=COMPUTE, manners=worker, price=WORTH // 4000)
    for name in (100, 101, 102):
        world.add_machine(name, roles=VERIFY)
    for name, manners in enumerate(others, 2):
        world.add_machine(name, roles=COMPUTE, manners=manners)
    return world


def at_window(world: Ending, window: int, *, job: JobSpec = SPEC) -> bytes:
    """Return a task of which ``window`` is due."""
    task = world.create(job)
    world.run(task, until=lambda record: record.phase is Phase.RUNNING and record.next_window == window)
    return task


def settled(world: World, task: bytes, *phases: Phase) -> None:
    world.run_to(task, *phases)
    for _ in range(3):
        world.block(world.parameters.bond_release_ms)
    assert escrow_totals(world.state, task).locked == 0


def lines(world: World, task: bytes, purpose: Purpose) -> int:
    return sum(line.amount for line in queries.bill(world.state, task).lines if line.purpose == purpose)


def test_a_job_ends_with_the_evaluation_that_is_not_better_and_the_rest_comes_back() -> None:
    world = market()
    task = world.create(SPEC)
    world.run_to(task, Phase.OUTPUT)
    record, window = world.task(task), load_window(world.state, task, 1)
    assert (window.proof.step_from, window.proof.step_to, window.proof.segments) == (10, 15, 3)
    assert (record.target, record.next_window, record.ending) == (2, 2, 0)
    price = record.price_per_tera_unit
    assert window.charge == work_price(5 * SPEC.step_units, price)
    record = world.run_to(task, Phase.SETTLED)
    assert (record.reason, record.final_windows, record.final_root) == (
        Reason.ALL_WINDOWS_FINAL, 2, window.proof.state_root_out,
    )  # fmt: skip
    settled(world, task, Phase.SETTLED)
    earned = lines(world, task, Purpose.WINDOW_PAY) + lines(world, task, Purpose.HOLD_RELEASE)
    assert earned == work_price(10 * SPEC.step_units, price) + window.charge
    assert lines(world, task, Purpose.UNSPENT) > work_price(15 * SPEC.step_units, price), "half of the work"


def test_who_goes_on_or_stops_elsewhere_is_refused() -> None:
    """Neither more pay nor an early way out: one end alone follows from the losses."""
    world = market()
    task = at_window(world, 1)
    worker, duty = world.due(task)
    whole = world.made(duty, step_to=20)
    assert whole.step_to == 20
    for proof in (
        whole, world.made(duty, step_to=14), world.made(duty, step_to=16), world.made(duty, step_to=12),
        world.made(duty, losses=(2.0, 1.0, 0.5), step_to=15),  # it goes on
        world.made(duty, losses=(2.0, 2.0, 0.5), step_to=20),  # it had to end in the window before
        world.made(duty, losses=(2.0, 2.0, 0.5), step_to=15),
        world.made(duty)._replace(losses=None),
    ):  # fmt: skip
        assert world.send(worker, SUBMIT_WINDOW, [window_proof_to_value(proof)]) == "proof_mismatch", proof
        assert world.task(task).target == SPEC.windows
    assert world.send(worker, SUBMIT_WINDOW, [window_proof_to_value(world.made(duty))]) is None


@pytest.mark.parametrize(
    ("losses", "windows", "steps"),
    [
        ((2.0, 3.0), 1, 10),
        ((2.0, 2.0), 1, 10),
        ((2.0, 1.0, 0.5, 0.5), 2, 20),
        ((6.0, 5.0, 4.0, 3.0, 2.0, 9.0), 3, 30),
    ],
)
def test_an_end_may_fall_together_with_that_of_a_window_or_of_the_job(
    losses: tuple[float, ...], windows: int, steps: int
) -> None:
    world = market(losses=losses)
    task = world.create(SPEC)
    record = world.run_to(task, Phase.SETTLED)
    assert record.final_windows == record.target == windows
    last = load_window(world.state, task, windows - 1)
    assert last.proof.step_to == steps
    if steps < 30:
        assert last.proof.segments - 1 in last.sampled


@pytest.mark.parametrize("seed", range(4))
def test_the_segment_that_ends_the_job_is_always_run_again(seed: int) -> None:
    world = market(parameters=replace(QUICK, samples=1))
    world.seed = seed
    task = world.create(SPEC)
    world.run_to(task, Phase.SETTLED)
    assert load_window(world.state, task, 1).sampled == (2,)


def test_a_false_end_is_void_and_the_task_goes_on_to_its_real_one() -> None:
    world = market(HONEST, worker=LIAR, losses=(1.0, 1.5))
    task = world.create(SPEC)
    liar = world.run_to(task, Phase.OUTPUT).worker
    assert world.task(task).target == 1
    world.losses = (6.0, 5.0, 4.0, 3.0, 2.0, 1.0)
    world.run(task, until=lambda record: liar in record.excluded)
    record = world.task(task)
    assert (record.target, record.next_window, record.ending) == (SPEC.windows, 0, 0)
    record = world.run_to(task, Phase.SETTLED)
    assert record.worker != liar and record.final_windows == SPEC.windows
    assert lines(world, task, Purpose.LIE_PROVEN) > 0


def test_a_cancelled_task_stays_cancelled_where_its_last_window_ends_the_job() -> None:
    world = market()
    task = at_window(world, 1)
    assert world.send(REQUESTER, CANCEL_TASK, [task]) is None
    record = world.run_to(task, Phase.CANCELLED)
    assert (record.target, record.final_windows) == (2, 2)
    assert load_window(world.state, task, 1).proof.step_to == 15


def test_a_job_that_ended_cannot_diverge_afterwards() -> None:
    world = market()
    task = at_window(world, 1)
    worker, duty = world.due(task)
    leaves, claim = claim_leaves(SPEC, 1, duty.state_root, 17)
    proof = proof_of(SPEC, task, 1, leaves)._replace(step_to=18, diverged=claim)
    for losses, refusal in ((WORSE, "proof_mismatch"), ((2.0, 1.0, 0.5), None)):
        value = window_proof_to_value(proof._replace(losses=shown(losses)))
        assert world.send(worker, CLAIM_DIVERGED, [value]) == refusal


def test_an_end_at_the_beginning_of_a_window_is_audited_as_the_whole_window() -> None:
    """Else a worker that wants to leave says so by a false loss, for less than its fine for leaving."""
    world = market(losses=(1.0, 1.0), parameters=replace(QUICK, audit_bps=0))
    job = SPEC._replace(schedule=SPEC.schedule._replace(window_steps=30))
    task = at_window(world, 0, job=job)
    worker, duty = world.due(task)
    assert world.send(worker, SUBMIT_WINDOW, [window_proof_to_value(world.made(duty))]) is None
    window = load_window(world.state, task, 0)
    assert window.proof.step_to == 10 and window.phase is WindowPhase.PROVED
    whole = audited_charge(job, window.proof, window.charge)
    assert abs(whole - 3 * window.charge) <= 3
    bond = lines(world, task, Purpose.WORKER_BOND)
    of_whole, of_part = (
        audit_of(charge, bond, is_new=False, parameters=world.parameters).chance
        for charge in (whole, window.charge)
    )
    assert of_part < of_whole <= window.chance


def test_a_job_without_patience_never_ends_early() -> None:
    job = SPEC.changed(loop=TrainingLoop(2, 2, 1))
    assert len(job.part.to_value()[-1]) == 3  # type: ignore[arg-type]
    world = market(losses=(1.0, 2.0, 3.0, 4.0, 5.0, 6.0))

    def made(duty: WorkDuty, step_to: int = 0, losses: Sequence[float] | None = None) -> WindowProof:
        leaves = leaves_of(job, duty.window, duty.state_root)
        world.published[duty.task, duty.window] = leaves
        return proof_of(job, duty.task, duty.window, leaves)._replace(losses=shown(world.losses))

    world.made = made  # type: ignore[method-assign]
    task = world.create(job)
    assert world.run_to(task, Phase.SETTLED).final_windows == 3
