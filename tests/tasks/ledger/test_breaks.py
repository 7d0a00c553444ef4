"""Leaves of a window that do not fit each other: whoever holds them shows it in one transaction (R28)."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Final

import pytest

from billing.escrow import Movement, Purpose
from billing.prices import share
from state.primitives.codec import Value
from state.primitives.merkle import MerkleTree
from tasks.ledger import queries
from tasks.ledger.audits import check_floor
from tasks.ledger.dispute_transitions import SHOW_BREAK
from tasks.ledger.disputes import SHOW_GAS, Challenger, DisputeEnding, load_docket
from tasks.ledger.lifecycle import Phase, Reason, WindowPhase
from tasks.ledger.queries import Action
from tasks.ledger.registry import NodeRole, require_node
from tasks.ledger.transitions import OPEN_WINDOW, REVEAL_VERDICT, SEAL_VERDICT
from tasks.proofs import (
    Break,
    Code,
    Finding,
    LeavesBroken,
    SegmentLeaf,
    ShownLeaf,
    WindowProof,
    break_from_value,
    break_to_value,
    check_leaves,
    encode_leaf,
    find_break,
    findings_to_value,
    is_break,
    make_opening,
    opening_to_value,
    verdict_seal,
)
from tests.tasks.ledger.test_disputes import OUTSIDERS, bond_of, endings, lines, market, until, window_of
from tests.tasks.world import HONEST, QUICK, Manners, World, leaves_of, proof_of, salt, spec, work_of

CARELESS: Final = Manners(careless=True)
NO_OPENING: Final = frozenset({Action.OPEN})
JOB: Final = spec(total=20)
NOBODY: Final = OUTSIDERS[0]


def with_gap(
    *verifiers: Manners, is_drawn: bool, silent: frozenset[Action] = frozenset()
) -> tuple[World, bytes, bytes]:  # fmt: skip
    """A market whose worker has a gap in a segment that is drawn or not, up to the seals; with worker and task."""
    gap = -1
    for _ in range(2):
        manners = Manners(gap=gap, silent=silent)
        world, liar, _, task = market(manners, *verifiers, final_ms=100_000, final_ms_min=100_000)
        window = until(world, task, lambda window: window.phase == WindowPhase.SEALING)
        gap = next(at for at in range(1, 4) if (at in window.sampled) == is_drawn)
    return world, liar, task


def proven(world: World, task: bytes) -> bool:
    world.run(task, until=lambda record: bool(record.excluded) or record.final_windows > 0)
    return world.task(task).reason == Reason.LIE_PROVEN


@pytest.mark.parametrize("gap", [0, 1, 3])
def test_a_segment_that_starts_where_none_ended_is_a_proven_lie(gap: int) -> None:
    world, liar, (verifier,), task = market(Manners(gap=gap), HONEST)
    assert proven(world, task)
    assert liar in world.task(task).excluded and require_node(world.state, liar).bad == 1
    bond = bond_of(world, task, liar)
    shares = lines(world, task, Purpose.LIE_PROVEN)
    fees = sum(line.amount for line in lines(world, task, Purpose.VERIFIER_FEE))
    assert sum(line.amount for line in shares) + fees == bond and fees
    gas = SHOW_GAS * queries.disputes(world.state, task, 0)[0].base_fee
    paid = sum(line.amount for line in shares if (line.party, line.movement) == (verifier, Movement.PAID))
    assert paid == share(bond, 3_500) + gas
    assert sum(line.amount for line in shares if line.movement == Movement.REFUNDED) == share(bond, 1_000)


def test_verifiers_that_had_sealed_it_share_however_many_show_it() -> None:
    world, liar, verifiers, task = market(Manners(gap=2), *[HONEST] * 3)
    assert proven(world, task)
    paid = {line.party for line in lines(world, task, Purpose.LIE_PROVEN) if line.movement == Movement.PAID}
    assert paid == set(verifiers) and endings(world, task) == [DisputeEnding.COMMITMENT_BROKEN]
    (dispute,) = queries.disputes(world.state, task, 0)
    assert (dispute.kind, dispute.segment, dispute.opened) == (Challenger.WITNESS, 2, None)
    assert queries.dispute_duties(world.state, liar, world.parameters) == []


def test_who_did_not_look_whether_the_leaves_fit_agreed_with_the_lie() -> None:
    world, _, (friend, honest), task = market(Manners(gap=2), CARELESS, HONEST, dispute_equal_fees=1_000)
    before = require_node(world.state, friend).bond
    assert proven(world, task)
    assert before - require_node(world.state, friend).bond == 1_000 * check_floor(world.task(task).base_fee, QUICK)
    parties = {line.party for line in queries.bill(world.state, task).lines if line.movement == Movement.PAID}
    assert honest in parties and friend not in parties


def test_nobody_seals_after_it_was_shown_and_nothing_else_counts_as_shown() -> None:
    world, _, (verifier,), task = market(Manners(gap=2), HONEST)
    window = until(world, task, lambda window: window.phase == WindowPhase.SEALING)
    assert world.show_break(NOBODY, task, 0) == "wrong_phase"
    findings = tuple(Finding(at, Code.BROKEN, bytes(32), bytes(32), 0) for at in window.sampled)
    sealed = verdict_seal(task, 0, verifier, findings, world.nonce_of_verdict)
    assert world.send(verifier, SEAL_VERDICT, [task, 0, sealed]) is None
    reveal: list[Value] = [task, 0, findings_to_value(findings), world.nonce_of_verdict]
    assert world.send(verifier, REVEAL_VERDICT, reveal) == "bad_evidence"
    leaves = world.published[task, 0]
    good = leaf_at(leaves, 1), leaf_at(leaves, 0)
    assert show(world, NOBODY, task, Break(1, *good)) == "bad_evidence"
    assert show(world, NOBODY, task, Break(2, leaf_at(leaves, 2), None)) == "bad_evidence"
    assert show(world, NOBODY, task, Break(2, leaf_at(leaves, 2), leaf_at(leaves, 0))) == "bad_evidence"
    assert show(world, NOBODY, task, Break(3, leaf_at(leaves, 2), leaf_at(leaves, 1))) == "bad_evidence"
    assert world.show_break(NOBODY, task, 0) is None
    assert world.show_break(verifier, task, 0) == "challenge_closed"
    assert window_of(world, task).phase == WindowPhase.REVEALING  # it waits for those that had sealed it
    assert world.send(verifier, REVEAL_VERDICT, reveal) is None
    world.block()
    assert world.task(task).reason == Reason.LIE_PROVEN
    mine = paid_to(world, task)
    gas = SHOW_GAS * queries.disputes(world.state, task, 0)[0].base_fee
    bond = bond_of(world, task, window.worker)
    assert (mine[verifier], mine[NOBODY]) == (share(bond, 3_500), share(bond, 500) + gas)


def paid_to(world: World, task: bytes) -> Counter[bytes]:
    """What the liar's bond paid to each."""
    paid: Counter[bytes] = Counter()
    for line in lines(world, task, Purpose.LIE_PROVEN):
        paid[line.party] += line.amount * (line.movement == Movement.PAID)
    return paid


@pytest.mark.parametrize(("count", "kept"), [(1, 5_000), (2, 5_000)])
def test_who_has_friends_show_its_own_break_loses_half_of_its_bond(count: int, kept: int) -> None:
    """Its verifiers, an outsider and the requester are friends. With two verifiers no outsider has a part."""
    world, liar, verifiers, task = market(Manners(gap=2), *[HONEST] * count)
    until(world, task, lambda window: window.phase == WindowPhase.REVEALING)
    assert world.show_break(NOBODY, task, 0) is None
    assert proven(world, task)
    bond, paid = bond_of(world, task, liar), paid_to(world, task)
    gas = SHOW_GAS * queries.disputes(world.state, task, 0)[0].base_fee
    returned = sum(
        line.amount for line in lines(world, task, Purpose.LIE_PROVEN) if line.movement == Movement.REFUNDED
    )
    assert paid[NOBODY] - gas == share(bond, 500) * (count == 1)
    assert sum(paid.values()) + returned == gas + share(bond, kept)
    assert set(paid) >= {NOBODY, *verifiers}


@pytest.mark.parametrize("by", ["worker", "verifier"])
def test_neither_the_worker_nor_a_seat_has_the_part_of_an_outsider(by: str) -> None:
    world, liar, (verifier,), task = market(Manners(gap=2), HONEST)
    until(world, task, lambda window: window.phase == WindowPhase.REVEALING)
    sender = liar if by == "worker" else verifier
    assert world.show_break(sender, task, 0) is None
    assert proven(world, task)
    bond, paid = bond_of(world, task, liar), paid_to(world, task)
    gas = SHOW_GAS * queries.disputes(world.state, task, 0)[0].base_fee
    assert paid[verifier] == share(bond, 3_500) + gas * (by == "verifier") and not paid[liar]


def test_a_false_word_of_a_broken_chain_cannot_be_revealed() -> None:
    world, worker, (verifier,), task = market(HONEST, Manners(silent=frozenset({Action.SEAL})))
    window = until(world, task, lambda window: window.phase == WindowPhase.SEALING)
    findings = tuple(Finding(at, Code.BROKEN, bytes(32), bytes(32), 0) for at in window.sampled)
    world.sealed[verifier, task, 0, False] = findings
    sealed = verdict_seal(task, 0, verifier, findings, world.nonce_of_verdict)
    assert world.send(verifier, SEAL_VERDICT, [task, 0, sealed]) is None
    payload: list[Value] = [task, 0, findings_to_value(findings), world.nonce_of_verdict]
    assert world.send(verifier, REVEAL_VERDICT, payload) == "bad_evidence"
    world.machines[verifier] = Manners(silent=frozenset({Action.REVEAL}))
    world.run(task, until=lambda record: record.phase == Phase.FAILED)
    assert require_node(world.state, verifier).bad == 1 and not world.task(task).excluded
    assert worker and not lines(world, task, Purpose.LIE_PROVEN)


@pytest.mark.parametrize("phase", [WindowPhase.OPENING, WindowPhase.ACCEPTED, WindowPhase.DISPUTED])
def test_an_outsider_shows_it_when_all_verifiers_are_friends(phase: WindowPhase) -> None:
    """Also of a worker that knows it and does not open."""
    silent = NO_OPENING if phase == WindowPhase.OPENING else frozenset[Action]()
    world, liar, task = with_gap(CARELESS, is_drawn=False, silent=silent)
    if phase == WindowPhase.DISPUTED:
        assert world.challenge(OUTSIDERS[1], task, 0, 0, is_opened=False) is None
    until(world, task, lambda window: window.phase == phase)
    assert world.show_break(NOBODY, task, 0) is None
    world.block()
    assert world.task(task).reason == Reason.LIE_PROVEN and liar in world.task(task).excluded
    shares = lines(world, task, Purpose.LIE_PROVEN)
    assert {line.party for line in shares if line.movement == Movement.PAID} == {NOBODY}
    gas = SHOW_GAS * queries.disputes(world.state, task, 0)[0].base_fee
    assert paid_to(world, task)[NOBODY] == share(bond_of(world, task, liar), 500) + gas
    assert world.show_break(NOBODY, task, 0) == "wrong_phase"
    docket = load_docket(world.state, task, 0)
    assert docket.is_idle
    returned = [line.party for line in lines(world, task, Purpose.BOND_RETURN)]
    assert returned == [OUTSIDERS[1]] * (phase == WindowPhase.DISPUTED)


def test_an_opening_that_shows_a_gap_is_itself_the_proof() -> None:
    world, liar, task = with_gap(CARELESS, is_drawn=True)
    window = until(world, task, lambda window: window.phase == WindowPhase.OPENING)
    leaves = world.published[task, 0]
    openings: list[Value] = [
        opening_to_value(make_opening(leaves, at, work_of(leaves[at]), salt(leaves[at].step_from)))
        for at in window.sampled
    ]
    assert world.send(liar, OPEN_WINDOW, [task, 0, openings]) is None
    assert world.send(liar, OPEN_WINDOW, [task, 0, openings]) == "wrong_phase"  # one proof is enough
    world.block()
    assert world.task(task).reason == Reason.LIE_PROVEN
    shares = lines(world, task, Purpose.LIE_PROVEN)
    assert liar not in {line.party for line in shares if line.movement == Movement.PAID}


def test_an_opening_shows_the_leaf_before_it() -> None:
    world, worker, _, task = market(HONEST, HONEST)
    window = until(world, task, lambda window: window.phase == WindowPhase.OPENING)
    leaves = world.published[task, 0]
    openings = [make_opening(leaves, at, work_of(leaves[at]), salt(leaves[at].step_from)) for at in window.sampled]
    other = openings[-1]._replace(before=leaf_at(leaves, openings[-1].leaf.segment))
    bad: list[Value] = [opening_to_value(opening) for opening in (*openings[:-1], other)]
    assert world.send(worker, OPEN_WINDOW, [task, 0, bad]) == "bad_evidence"
    without = opening_to_value(openings[-1]._replace(before=None))
    with pytest.raises(Exception, match="leaf before"):
        world.send(worker, OPEN_WINDOW, [task, 0, [*bad[:-1], without]])


def test_the_accused_that_opens_a_segment_with_a_gap_has_lost() -> None:
    world, liar, task = with_gap(CARELESS, is_drawn=False)
    leaves, sampled = world.published[task, 0], window_of(world, task).sampled
    gap = next(at for at in range(1, 4) if at not in sampled)
    assert leaves[gap].state_root_before != leaves[gap - 1].state_root_after
    assert world.challenge(NOBODY, task, 0, gap, root=(b"w" * 32, b"r" * 32)) is None
    assert proven(world, task) and liar in world.task(task).excluded
    assert endings(world, task) == [DisputeEnding.COMMITMENT_BROKEN]


def test_a_juror_that_finds_it_shares() -> None:
    world, _, (blind,), task = market(Manners(gap=2), Manners(blind=True), jury=1)
    until(world, task, lambda window: window.phase == WindowPhase.SEALING)
    juror = world.add_machine(150, roles=NodeRole.VERIFY, manners=HONEST)
    assert proven(world, task)
    paid = {line.party for line in lines(world, task, Purpose.LIE_PROVEN) if line.movement == Movement.PAID}
    assert paid == {juror} and blind != juror


def test_a_broken_window_takes_all_open_ones_of_its_worker_with_it() -> None:
    world = World(parameters=replace(QUICK, final_ms=100_000, final_ms_min=100_000))
    liar = world.add_machine(1, roles=NodeRole.COMPUTE)
    world.add_machine(2, roles=NodeRole.VERIFY, manners=CARELESS)
    world.add_machine(3, roles=NodeRole.VERIFY, manners=CARELESS)
    world.fund(NOBODY, QUICK.node_bond_min)
    task = world.create(spec(total=60))
    world.run(task, until=lambda record: record.next_window == 1)
    world.machines[liar] = Manners(gap=2, silent=NO_OPENING)
    world.run(task, until=lambda record: record.next_window == 2)
    world.run(task, until=lambda _: load_phase(world, task, 1) == WindowPhase.OPENING)
    assert world.show_break(NOBODY, task, 1) is None
    world.block()
    record = world.task(task)
    assert (record.next_window, record.final_windows, record.phase) == (0, 0, Phase.DEGRADED)
    assert sum(line.amount for line in lines(world, task, Purpose.LIE_PROVEN)) > 0


def load_phase(world: World, task: bytes, number: int) -> WindowPhase:
    return queries.task_windows(world.state, task)[number].phase


# What is a break


def leaf_at(leaves: list[SegmentLeaf], at: int) -> ShownLeaf:
    encoded = [encode_leaf(leaf) for leaf in leaves]
    return ShownLeaf(encoded[at], MerkleTree(encoded).siblings(at))


def show(world: World, sender: bytes, task: bytes, shown: Break) -> str | None:
    return world.send(sender, SHOW_BREAK, [task, 0, *break_to_value(shown)])


def proof_over(contents: list[bytes], good: WindowProof) -> tuple[WindowProof, MerkleTree]:
    tree = MerkleTree(contents)
    return good._replace(segment_root=tree.root, segments=len(contents)), tree


def test_leaves_that_fit_cannot_be_shown_as_broken_in_any_way() -> None:
    leaves = leaves_of(JOB, 0, b"i" * 32)
    proof = proof_of(JOB, b"t" * 32, 0, leaves)
    check_leaves(JOB, proof, leaves)
    shown = [leaf_at(leaves, at) for at in range(4)]
    foreign = [leaf_at(leaves_of(JOB, 0, b"j" * 32), at) for at in range(4)]
    for segment in range(6):
        for leaf in (*shown, *foreign):
            for before in (None, *shown, *foreign):
                assert not is_break(JOB, proof, Break(segment, leaf, before))


def test_every_kind_of_a_misfit_is_found_and_proves_itself() -> None:
    good = leaves_of(JOB, 0, b"i" * 32)
    proof = proof_of(JOB, b"t" * 32, 0, good)
    for at, fields in (
        (0, {"state_root_before": b"x" * 32}), (3, {"state_root_after": b"x" * 32}),
        (2, {"state_root_before": b"x" * 32}), (1, {"state_root_after": b"x" * 32}),
        (1, {"step_to": 9}), (2, {"step_from": 9}), (2, {"segment": 1}),
    ):  # fmt: skip
        leaves = [leaf._replace(**fields) if leaf is good[at] else leaf for leaf in good]
        broken, _ = proof_over([encode_leaf(leaf) for leaf in leaves], proof)
        with pytest.raises(LeavesBroken) as caught:
            check_leaves(JOB, broken, leaves)
        shown = caught.value.shown
        assert shown == find_break(JOB, broken, leaves) and is_break(JOB, broken, shown)
        assert break_from_value([shown.segment, break_to_value(shown)[1]]) == shown
        assert not is_break(JOB, proof, shown)


def test_bytes_that_are_no_leaf_are_a_misfit_of_their_segment_and_of_the_next() -> None:
    good = leaves_of(JOB, 0, b"i" * 32)
    contents = [encode_leaf(leaf) for leaf in good]
    contents[1] = b"\xff junk"
    broken, tree = proof_over(contents, proof_of(JOB, b"t" * 32, 0, good))
    junk, after = (ShownLeaf(contents[at], tree.siblings(at)) for at in (1, 2))
    assert is_break(JOB, broken, Break(1, junk, None)) and is_break(JOB, broken, Break(2, after, junk))
    assert not is_break(JOB, broken, Break(2, after, None))


def test_a_challenge_sealed_in_the_block_of_the_proof_does_not_delay_it() -> None:
    world, _, task = with_gap(CARELESS, is_drawn=False)
    assert world.challenge(OUTSIDERS[1], task, 0, 0, is_opened=False) is None
    until(world, task, lambda window: window.phase == WindowPhase.DISPUTED)
    assert world.show_break(NOBODY, task, 0) is None
    assert world.challenge(OUTSIDERS[2], task, 0, 0) is None
    world.block()
    assert world.task(task).reason == Reason.LIE_PROVEN
