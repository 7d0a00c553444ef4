"""The judge of penalties: chains that go on for longer than evidence counts, faults too far apart to add up."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import pytest

from consensus.simulation.cluster import Cluster, sim_parameters
from node.simulation import above_bound, penalties
from node.simulation.above_bound import run_above
from node.simulation.operators import machine_of
from node.simulation.world import WholeWorld
from state.primitives.hashing import ZERO_HASH
from state.primitives.votes import FINALIZE, NULLIFY, Candidate, Equivocation, Vote, vote_digest
from state.transition.epochs import load_epoch
from state.transition.evidence import Evidence
from state.transition.slashing import SHARE_ONE, load_slash

FOUNDERS = (2, 3, 3, 4)
WINDOW = 2


class Forgetful(WholeWorld):
    """A world whose state keeps committees for a few epochs alone."""

    def __init__(self, founders: Sequence[int], *, spare: int = 0, **options: int) -> None:
        super().__init__(founders, spare=spare, evidence_epochs=WINDOW, **options)


class Chain:
    """Four honest nodes; the test has the keys of their accounts and makes proofs of faults with them."""

    def __init__(self) -> None:
        self.world = WholeWorld(FOUNDERS, epoch_blocks=5, downtime_blocks_min=10**6, evidence_epochs=WINDOW)
        self.cluster = Cluster(3, self.world, frozenset(range(4)), parameters=sim_parameters())
        self.cluster.start_all()
        self.machine = machine_of(self.cluster.nodes[0])

    def run_to(self, epoch: int) -> None:
        nodes = self.cluster.nodes
        assert self.cluster.run(60_000, lambda: min(node.epoch for node in nodes) >= epoch)

    def prove(self, account: int, epoch: int) -> None:
        """Bring every node a proof against an account, and wait until it is in a final block."""
        address = self.world.address(account)
        epoch_view = self.machine.epoch_view(epoch)
        assert epoch_view is not None
        seat = epoch_view.committee.seat_of(address)
        assert seat is not None

        def vote(kind: int, parent_view: int, block_hash: bytes) -> Vote:
            candidate = Candidate(epoch, 900, parent_view, block_hash)
            signed = vote_digest(self.world.genesis_hash, kind, candidate)
            return Vote(kind, *candidate, seat, self.world.signer(account, 0).sign_vote(signed))

        fault = Equivocation(vote(NULLIFY, 0, ZERO_HASH), vote(FINALIZE, 3, b"x" * 32))
        proof = Evidence.of(fault, self.world.address(3)).encode()
        for node in self.cluster.nodes:
            machine_of(node).heard(proof)
        assert self.cluster.run(
            60_000, lambda: all(load_slash(machine_of(node).store, address) for node in self.cluster.nodes)
        )

    def check(self) -> dict[int, penalties.Due]:
        """Compare what the judge works out with what the state says; return it."""
        found = penalties.dues(self.machine, self.world)
        for account, due in found.items():
            record = load_slash(self.machine.store, self.world.address(account))
            assert record is not None and record.epoch == due.epoch
            assert abs(Fraction(record.rate, SHARE_ONE) - due.rate) < Fraction(1, 10**8)
        return found


def test_faults_within_the_window_raise_each_others_rate() -> None:
    chain = Chain()
    chain.run_to(1)
    chain.prove(0, 0)
    chain.prove(1, 1)
    found = chain.check()
    assert found[0].share + found[1].share < 1
    assert found[0].rate == found[1].rate == min(Fraction(1), 3 * (found[0].share + found[1].share))


def test_faults_too_far_apart_do_not_and_their_committees_are_remembered() -> None:
    chain = Chain()
    chain.run_to(1)
    chain.prove(0, 0)
    chain.run_to(WINDOW + 4)
    assert load_epoch(chain.machine.store, 0, chain.world.runtime.chain) is None, "the state has forgotten epoch 0"
    chain.prove(1, WINDOW + 4)
    found = chain.check()
    assert set(found) == {0, 1}
    assert [found[account].rate for account in (0, 1)] == [3 * found[account].share for account in (0, 1)]
    assert 3 * (found[0].share + found[1].share) > max(due.rate for due in found.values())


def test_a_run_that_outlasts_its_evidence_is_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    """The state has forgotten the committees of the faults when the last penalties are checked."""
    monkeypatch.setattr(above_bound, "WholeWorld", Forgetful)
    found = run_above(4)
    assert found.slashed >= 1 and found.epochs > WINDOW + 2


def test_people_decide_soon_after_a_node_halts() -> None:
    """One honest node halts after the heal, and the others go on: nobody waits until evidence is too old."""
    found = run_above(2159)
    assert found.slashed == 3 and found.epochs < 20
