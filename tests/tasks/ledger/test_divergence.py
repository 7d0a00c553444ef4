"""A claim that a job diverges: a true one ends the task and is paid, a false one costs its maker a bond."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from billing.escrow import Purpose, escrow_totals
from billing.prices import work_price
from state.primitives.codec import decode, encode
from state.view.accounts import balance_of
from tasks.kinds.verifiers import Verifiers
from tasks.ledger import queries
from tasks.ledger.check_fund import FUND_ADDRESS
from tasks.ledger.claim_transitions import CLAIM_DIVERGED
from tasks.ledger.claims import load_claim
from tasks.ledger.disputes import DisputeEnding, load_dispute
from tasks.ledger.lifecycle import Phase, Reason, WindowPhase
from tasks.ledger.parameters import TaskParameters
from tasks.ledger.queries import Action
from tasks.ledger.records import load_spec_bytes, load_window
from tasks.ledger.registry import NodeRole, require_node
from tasks.ledger.settlement import preparation_units
from tasks.ledger.transitions import CANCEL_TASK, SUBMIT_WINDOW
from tasks.programs.divergence import diverged_root
from tasks.proofs import Code, window_proof_from_value, window_proof_to_value
from tasks.spec import JobSpec, spec_hash
from tests.tasks.toywork import STORE, diverging_root
from tests.tasks.world import HONEST, QUICK, REQUESTER, WORTH, Manners, World, found, proof_of, spec, work_of

COMPUTE, VERIFY = NodeRole.COMPUTE, NodeRole.VERIFY
STEP = 6
"""The second segment of the first window has steps 5 to 9; in the toy's second step of it the job diverges."""
TRUE = Manners(claims=STEP)
FORGER = Manners(claims=STEP, forges=True)
ONE, TWO = QUICK, replace(QUICK, verifiers_sure=2)


def diverging(**options: Any) -> JobSpec:
    """A job that diverges in step 6: three toy steps are of the first segment, and one before it of the second."""
    return spec(**options)._replace(init_root=diverging_root(4))


def market(
    worker: Manners, *verifiers: Manners, parameters: TaskParameters = TWO, others: tuple[Manners, ...] = ()
) -> World:
    """One cheap worker with these manners, verifiers, and other workers that ask for more."""
    world = World(parameters)
    world.add_machine(1, roles=COMPUTE, manners=worker, price=WORTH // 4000)
    for name, manners in enumerate(verifiers or (HONEST, HONEST, HONEST), 100):
        world.add_machine(name, roles=VERIFY, manners=manners)
    for name, manners in enumerate(others, 2):
        world.add_machine(name, roles=COMPUTE, manners=manners)
    return world


def claimed(world: World, job: JobSpec | None = None) -> bytes:
    """Return a task whose worker has just claimed that it diverges."""
    task = world.create(job or diverging())
    world.run_to(task, Phase.OUTPUT)
    return task


def lines(world: World, task: bytes, purpose: Purpose) -> list[tuple[bytes, int]]:
    return [(line.party, line.amount) for line in queries.bill(world.state, task).lines if line.purpose == purpose]


def settled(world: World, task: bytes, *phases: Phase) -> None:
    world.run_to(task, *phases)
    for _ in range(3):
        world.block(world.parameters.bond_release_ms)
    assert escrow_totals(world.state, task).locked == 0


def test_a_true_claim_ends_the_task_with_the_state_before_the_step() -> None:
    world = market(TRUE)
    task = claimed(world)
    record = world.task(task)
    window = load_window(world.state, task, 0)
    claim = window.proof.diverged
    assert claim is not None and (claim.step, claim.store, claim.row, claim.column) == (STEP, STORE, 0, 0)
    assert (window.proof.step_to, window.proof.segments) == (STEP + 1, 2)
    assert window.proof.state_root_out == diverged_root(claim)
    assert (record.target, Phase(record.ending), record.reason) == (1, Phase.FAILED, Reason.JOB_DIVERGED)
    assert load_claim(world.state, task) is None, "nothing is upheld yet"
    assert queries.report_on(world.state, spec_hash(load_spec_bytes(world.state, task))) is None
    node = require_node(world.state, record.worker)
    record = world.run_to(task, Phase.FAILED)
    assert (record.reason, record.final_windows, record.final_root) == (
        Reason.JOB_DIVERGED, 1, claim.state_before,
    )  # fmt: skip
    upheld = load_claim(world.state, task)
    assert upheld == (Reason.JOB_DIVERGED, 0, (STORE, 0, 0), STEP)
    report = queries.report_on(world.state, spec_hash(load_spec_bytes(world.state, task)))
    assert report is not None and (report.reason, report.worker) == (Reason.JOB_DIVERGED, b"\1" * 20)
    after = require_node(world.state, b"\1" * 20)
    for count in ("good", "bad", "proved", "failures", "declines", "doubts"):
        assert getattr(after, count) == getattr(node, count), count
    assert all(require_node(world.state, bytes([name]) * 20).good == 0 for name in (100, 101, 102))


def test_the_steps_that_were_done_and_the_preparation_are_paid_and_the_check_by_the_task() -> None:
    world = market(TRUE)
    job = diverging()
    fund = balance_of(world.state, FUND_ADDRESS)
    task = claimed(world, job)
    price = world.task(task).price_per_tera_unit
    window = load_window(world.state, task, 0)
    assert window.charge == work_price((STEP + 1) * job.step_units, price)
    settled(world, task, Phase.FAILED)
    (prepared,) = [amount for party, amount in lines(world, task, Purpose.PREPARATION) if party != REQUESTER]
    exact = work_price(preparation_units(job, world.parameters), price)
    assert 0 <= exact - prepared <= 1 + exact // ((STEP + 1) * job.step_units)
    paid = sum(amount for _, amount in lines(world, task, Purpose.WINDOW_PAY))
    held = sum(amount for _, amount in lines(world, task, Purpose.HOLD_RELEASE))
    assert paid + held == window.charge
    fees = lines(world, task, Purpose.VERIFIER_FEE)
    assert len(fees) == 2 and len({party for party, _ in fees}) == 2
    assert sum(amount for _, amount in lines(world, task, Purpose.CLAIM_CHECK)) == sum(fee for _, fee in fees)
    assert lines(world, task, Purpose.CHECK_FUND) == []
    assert balance_of(world.state, FUND_ADDRESS) == fund, "the fund gains nothing and loses nothing"


def test_what_the_task_cannot_pay_of_the_check_is_the_claimants() -> None:
    """Otherwise a requester and its friends drew the float of the fund by jobs that cost nothing."""
    world = market(TRUE, parameters=replace(TWO, check_fee_min=10**16, audit_bps=0))
    job = diverging(total=10, window=10, price=WORTH // 1_000_000)
    fund = balance_of(world.state, FUND_ADDRESS)
    world.add_machine(9, roles=COMPUTE, manners=TRUE, price=1)
    task = claimed(world, job)
    locked = sum(amount for _, amount in lines(world, task, Purpose.WORKER_BOND))
    settled(world, task, Phase.FAILED)
    assert balance_of(world.state, FUND_ADDRESS) == fund
    returned = sum(amount for _, amount in lines(world, task, Purpose.BOND_RETURN))
    assert 0 < locked - returned <= 2 * 10**16 + 10**15


@pytest.mark.parametrize("others", [(), (HONEST,)])
@pytest.mark.parametrize("liar", [Manners(claims=STEP), FORGER], ids=["value below", "made up"])
def test_a_false_claim_costs_the_bond_and_the_task_goes_on(liar: Manners, others: tuple[Manners, ...]) -> None:
    """A2, N12: it ended any task for the gas of two declines."""
    world = market(liar, others=others)
    task = world.create(spec())
    worker = world.run_to(task, Phase.OUTPUT).worker
    assert worker == b"\1" * 20
    world.run(task, until=lambda record: worker in record.excluded)
    record = world.task(task)
    assert record.phase is Phase.DEGRADED
    assert (record.ending, record.ending_reason, record.target) == (0, 0, spec().windows)
    assert (record.next_window, record.state_root) == (0, spec().init_root)
    game = load_dispute(world.state, task, 0, 0)
    expected = DisputeEnding.ELEMENT_WRONG if liar.forges else DisputeEnding.COMMITMENT_BROKEN
    assert (game.ending, game.segment) == (expected, 1)
    shares = sum(amount for _, amount in lines(world, task, Purpose.LIE_PROVEN))
    assert shares > 0 and require_node(world.state, worker).bad == 1
    assert load_claim(world.state, task) is None
    if others:
        world.run_to(task, Phase.SETTLED)
        assert world.task(task).final_windows == spec().windows


def test_an_honest_verifier_is_enough_beside_one_that_agrees_with_the_liar() -> None:
    """It gives the liar's own result: the other one's game decides all the same, and it loses fees."""
    world = market(FORGER, HONEST, HONEST, others=(HONEST,))
    friend, honest_findings = b"\x64" * 20, world.findings

    def findings(duty: Any, manners: Manners) -> Any:
        if manners is not friendly:
            return honest_findings(duty, manners)
        leaves = world.published[duty.task, duty.window]
        return tuple(
            found(leaves[at])._replace(
                code=Code.COMPUTED, work_digest=work_of(leaves[at]), state_root_after=leaves[at].state_root_after,
                loss_bits=leaves[at].loss_bits,
            )
            for at in duty.segments
        )  # fmt: skip

    friendly = Manners()
    world.machines[friend] = friendly
    world.findings = findings  # type: ignore[method-assign]
    task = world.create(spec())
    world.run_to(task, Phase.SETTLED)
    assert require_node(world.state, friend).bad == 1
    assert load_dispute(world.state, task, 0, 0).ending is DisputeEnding.ELEMENT_WRONG


def test_an_outsider_may_challenge_a_false_claim_that_bribed_verifiers_let_pass() -> None:
    world = market(FORGER, Manners(silent=frozenset({Action.SEAL})), others=(HONEST,))
    outsider = b"o" * 20
    world.fund(outsider, 10**24)
    task = claimed(world, spec())
    assert world.challenge(outsider, task, 0, 1) is None
    world.machines[b"\x64" * 20] = Manners()
    world.run_to(task, Phase.SETTLED, blocks=800)
    assert world.task(task).final_windows == spec().windows


def test_a_false_challenge_of_a_true_claim_is_lost() -> None:
    world = market(TRUE)
    outsider = b"o" * 20
    world.fund(outsider, 10**24)
    task = claimed(world)
    assert world.challenge(outsider, task, 0, 1, root=(b"w" * 32, b"s" * 32)) is None
    record = world.run_to(task, Phase.FAILED, blocks=800)
    assert record.reason is Reason.JOB_DIVERGED
    assert load_dispute(world.state, task, 0, 0).ending.is_refuted


def test_a_claim_that_was_not_opened_is_taken_back_and_another_machine_ends_the_task() -> None:
    world = market(replace(TRUE, silent=frozenset({Action.OPEN})), others=(TRUE,))
    task = claimed(world, diverging())
    first = world.task(task).worker
    record = world.run_to(task, Phase.FAILED, blocks=800)
    assert record.reason is Reason.JOB_DIVERGED and first in record.excluded
    assert load_window(world.state, task, 0).worker == b"\2" * 20


@pytest.mark.parametrize("windows", [1, 2])
def test_a_later_window_is_claimed_with_earlier_ones_open_and_all_are_paid(windows: int) -> None:
    step = 20 * windows + 2
    world = market(Manners(claims=step))
    job = spec()._replace(init_root=diverging_root(12 * windows + 2))
    task = claimed(world, job)
    assert load_window(world.state, task, windows).proof.segments == 1
    record = world.run_to(task, Phase.FAILED)
    assert (record.final_windows, record.reason) == (windows + 1, Reason.JOB_DIVERGED)
    assert require_node(world.state, b"\1" * 20).good == windows


def test_the_segment_that_is_claimed_is_always_run_again() -> None:
    step = 17
    for seed in range(8):
        world = market(Manners(claims=step), parameters=replace(TWO, audit_bps=0, samples=4))
        world.seed = seed
        task = claimed(world, spec()._replace(init_root=diverging_root(11)))
        window = load_window(world.state, task, 0)
        assert (window.chance, window.wanted) == (10**18, 2)
        while not load_window(world.state, task, 0).sampled:
            world.block()
        window = load_window(world.state, task, 0)
        assert window.sampled[-1] == window.proof.segments - 1 == 3
        assert len(set(window.sampled)) == len(window.sampled) == 2
        assert list(window.sampled) == sorted(window.sampled)
        assert len(window.verifiers) == 2
        assert world.run_to(task, Phase.FAILED).reason is Reason.JOB_DIVERGED


def test_a_task_that_is_being_cancelled_stays_so() -> None:
    world = market(replace(TRUE, silent=frozenset({Action.COMPUTE})))
    task = world.create(diverging())
    world.run_to(task, Phase.RUNNING)
    assert world.send(REQUESTER, CANCEL_TASK, [task]) is None
    world.machines[b"\1" * 20] = TRUE
    record = world.run_to(task, Phase.CANCELLED)
    assert (record.final_windows, record.reason) == (1, Reason.REQUESTER_CANCELLED)
    assert load_claim(world.state, task) is not None


def due(world: World, task: bytes) -> Any:
    (duty,) = queries.work_duties(world.state, world.task(task).worker, world.parameters)
    return duty


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"diverged": None}, "proof_mismatch"),
        ({"step_from": 1}, "proof_mismatch"),
        ({"step_to": STEP + 2}, "proof_mismatch"),
        ({"segments": 1}, "proof_mismatch"),
        ({"segments": 3}, "proof_mismatch"),
        ({"state_root_out": b"x" * 32}, "proof_mismatch"),
        ({"state_root_in": b"x" * 32}, "proof_mismatch"),
        ({"window": 1}, "proof_mismatch"),
        ({"task": b"?" * 32}, "task_unknown"),
    ],
)
def test_a_claim_of_another_form_changes_nothing(changes: dict[str, Any], code: str) -> None:
    world = market(replace(TRUE, silent=frozenset({Action.COMPUTE})))
    task = world.create(diverging())
    worker = world.run_to(task, Phase.RUNNING).worker
    before = world.task(task)
    assert world.claim(worker, due(world, task), TRUE, **changes) == code
    assert world.task(task) == before
    assert world.claim(worker, due(world, task), TRUE) is None
    assert world.task(task).phase is Phase.OUTPUT


@pytest.mark.parametrize(
    "change", [{"store": 3}, {"store": 1}, {"store": 99}, {"row": 1}, {"column": 2}, {"step": 20}],
)  # fmt: skip
def test_what_is_no_value_of_a_store_cannot_be_claimed(change: dict[str, int]) -> None:
    world = market(replace(TRUE, silent=frozenset({Action.COMPUTE})))
    task = world.create(diverging())
    worker = world.run_to(task, Phase.RUNNING).worker
    duty = due(world, task)
    sound = world.proof
    claims: list[Any] = []

    def proof(_job: JobSpec, made: Any) -> Any:
        claim = made.diverged._replace(**change)
        claims.append(claim)
        return made._replace(diverged=claim, state_root_out=diverged_root(claim))

    world.proof = proof  # type: ignore[method-assign, assignment]
    assert world.claim(worker, duty, TRUE) == "proof_mismatch" and claims
    world.proof = sound  # type: ignore[method-assign]
    assert world.claim(worker, duty, TRUE) is None


def test_only_the_worker_of_a_running_task_claims() -> None:
    world = market(replace(TRUE, silent=frozenset({Action.COMPUTE, Action.START})))
    task = world.create(diverging())
    worker = world.run_to(task, Phase.PREPARING).worker
    duty = due(world, task)
    assert world.claim(b"x" * 20, duty, TRUE) == "not_yours"
    assert world.claim(worker, duty._replace(state_root=diverging_root(4)), TRUE) == "wrong_phase"


def test_a_proof_with_a_claim_is_not_submitted_and_one_without_is_not_claimed() -> None:
    world = market(replace(TRUE, silent=frozenset({Action.COMPUTE})))
    task = world.create(diverging())
    worker = world.run_to(task, Phase.RUNNING).worker
    sent: list[Any] = []
    world.proof = lambda _job, made: sent.append(made) or made  # type: ignore[method-assign, assignment, func-returns-value]
    world.rules[CLAIM_DIVERGED], kept = world.rules[SUBMIT_WINDOW], world.rules[CLAIM_DIVERGED]
    assert world.claim(worker, due(world, task), TRUE) == "proof_mismatch"
    world.rules[CLAIM_DIVERGED] = kept
    (proof,) = sent
    value: Any = decode(encode(window_proof_to_value(proof)), limit_bytes=4096)
    assert window_proof_from_value(value) == proof
    leaves = world.published[task, 0]
    plain = proof_of(diverging(), task, 0, leaves)
    assert world.send(worker, CLAIM_DIVERGED, [window_proof_to_value(plain)]) == "proof_mismatch"


@pytest.mark.parametrize("chosen", [Verifiers(), Verifiers(0, (REQUESTER,))])
def test_a_claim_that_nobody_can_check_ends_the_task_without_blame(chosen: Verifiers) -> None:
    world = market(FORGER, Manners(silent=frozenset({Action.SEAL})), parameters=replace(TWO, draws_max=1))
    task = claimed(world, diverging().changed(verifiers=chosen))
    record = world.run_to(task, Phase.FAILED, blocks=800)
    assert record.reason is Reason.NO_VERIFIER
    assert load_window(world.state, task, 0).phase is WindowPhase.VOID
    assert load_claim(world.state, task) is None
