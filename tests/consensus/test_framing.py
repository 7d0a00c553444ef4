"""An honest guard can never be framed: what it released, whatever it was asked, proves no fault.

The machine below drives the real guard with real signatures as a hostile core would, over crashes that lose or
tear what was not synced, compactions, commits, and moves of the key between two machines by an exported watermark.
All that was ever released is what an accuser has: no two votes of it, and no relabelling of them, are evidence.
"""

from __future__ import annotations

import itertools

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from consensus.guard import Guard, GuardMissing, GuardRefused
from state.primitives.committee import Committee, Seat
from state.primitives.errors import DecodeError
from state.primitives.genesis import ChainParameters
from state.primitives.hashing import ZERO_HASH
from state.primitives.keys import SecretKey
from state.primitives.votes import FINALIZE, NOTARIZE, NULLIFY, Candidate, Equivocation, Vote, vote_digest
from state.primitives.votes import evidence_type as fault_of
from state.transition.evidence import Evidence, EvidenceSignatureInvalid, prove
from state.transition.staking import save_committee
from state.view import EMPTY, Overlay

GENESIS = b"g" * 32
KEY = SecretKey(b"k" * 32)
OTHERS = [SecretKey(bytes([number]) * 32) for number in (1, 2, 3)]
EPOCHS, VIEWS = 3, 4
EVERYBODY = [KEY, *OTHERS]
CHAIN = ChainParameters()


def state_with_committees() -> Overlay:
    """Return a state in which the key has another seat in each epoch."""
    state = Overlay(EMPTY)
    for epoch in range(EPOCHS):
        members = EVERYBODY[-epoch:] + EVERYBODY[:-epoch] if epoch else EVERYBODY
        seats = (Seat(key.address, key.vote_key, bytes(32), 1) for key in members)
        save_committee(state, epoch, Committee(seats))
    return state


STATE = state_with_committees()


class Machine:
    """A computer with a guard: what is on its disk, and what its page cache holds that was not synced."""

    def __init__(self) -> None:
        self.disk = b""
        self.unsynced = b""
        self.guard: Guard | None = None

    def create(self, epoch: int = 0, view: int = 0) -> None:
        self.guard = Guard(GENESIS, KEY.vote_key, epoch=epoch, view=view)
        self.disk = self.guard.image()

    def crash(self, kept: int, zeros: int) -> None:
        """Lose power: of the unsynced bytes a part is kept, and perhaps zeros behind it."""
        kept = min(kept, len(self.unsynced))
        tail = self.unsynced[:kept] + bytes(min(zeros, len(self.unsynced) - kept))
        data = self.disk + tail
        self.unsynced = b""
        self.guard, whole = Guard.load(data, GENESIS, KEY.vote_key)
        self.disk = data[:whole]


class Framing(RuleBasedStateMachine):
    """Every rule is something an attacker, an operator or fate may do to an honest validator."""

    def __init__(self) -> None:
        super().__init__()
        self.released: set[Vote] = set()
        self.machines = [Machine(), Machine()]
        self.active = 0

    @initialize()
    def first_start(self) -> None:
        self.machines[0].create()

    @rule(
        kind=st.sampled_from([NOTARIZE, NULLIFY, FINALIZE]), epoch=st.integers(0, EPOCHS - 1),
        view=st.integers(1, VIEWS), name=st.sampled_from(b"ab"), back=st.integers(1, 2),
        fate=st.sampled_from(["release", "release", "release", "unsynced", "synced"]),
    )  # fmt: skip
    def request(self, kind: int, epoch: int, view: int, name: int, back: int, fate: str) -> None:
        machine = self.machines[self.active]
        assert machine.guard is not None
        candidate = Candidate(epoch, view, max(0, view - back), bytes([name]) * 32)
        if kind == NULLIFY:
            candidate = Candidate(epoch, view, 0, ZERO_HASH)
        try:
            vote = machine.guard.check(kind, candidate)
        except GuardRefused:
            return
        if vote is None:
            seat = epoch % len(EVERYBODY)
            signature = KEY.sign_vote(vote_digest(GENESIS, kind, candidate))
            vote = Vote(kind, *candidate, seat, signature)
            machine.unsynced += machine.guard.record(vote)
        if fate != "unsynced":
            machine.disk += machine.unsynced
            machine.unsynced = b""
        if fate == "release":  # only what is on the disk leaves
            self.released.add(vote)

    @rule(kept=st.integers(0, 3_000), zeros=st.integers(0, 3_000))
    def crash(self, kept: int, zeros: int) -> None:
        self.machines[self.active].crash(kept, zeros)

    @rule(epoch=st.integers(0, EPOCHS - 1), view=st.integers(0, VIEWS))
    def commit(self, epoch: int, view: int) -> None:
        guard = self.machines[self.active].guard
        assert guard is not None
        guard.raise_floor(epoch, view)

    @rule()
    def compact(self) -> None:
        machine = self.machines[self.active]
        assert machine.guard is not None
        machine.disk, machine.unsynced = machine.guard.image(), b""

    @rule()
    def move(self) -> None:
        """Stop here, export, import there, go on there; a record that is there already only rises."""
        here, there = self.machines[self.active], self.machines[1 - self.active]
        here.crash(len(here.unsynced), 0)
        assert here.guard is not None
        mark = here.guard.watermark()
        try:
            there.crash(0, 0)
        except GuardMissing:
            there.create(mark.epoch, mark.view)
        assert there.guard is not None
        there.guard.raise_floor(mark.epoch, mark.view)
        there.disk = there.guard.image()
        self.active = 1 - self.active

    @invariant()
    def no_two_votes_are_a_fault(self) -> None:
        for first, second in itertools.combinations(self.released, 2):
            assert fault_of(first, second) is None

    def teardown(self) -> None:
        for first, second in itertools.islice(itertools.permutations(self.released, 2), 60):
            for seat in {first.seat, second.seat}:
                accuse(first, second, seat)


def accuse(first: Vote, second: Vote, seat: int) -> None:
    """Relabel two votes so that they look like a fault of ``seat``: they must not verify."""
    for relabelled in (
        second._replace(epoch=first.epoch, view=first.view),
        second._replace(epoch=first.epoch, view=first.view, kind=first.kind, block_hash=b"z" * 32, parent_view=0),
    ):
        try:
            evidence = Evidence.of(
                Equivocation(first._replace(seat=seat), relabelled._replace(seat=seat)), OTHERS[0].address
            )
        except DecodeError:
            continue
        with pytest.raises(EvidenceSignatureInvalid):
            prove(STATE, evidence, epoch_now=EPOCHS, chain=CHAIN, genesis_hash=GENESIS)


TestFraming = Framing.TestCase
TestFraming.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)


def test_the_accuser_would_find_a_fault_if_there_were_one() -> None:
    """The test of the test: a key without a guard is convicted by the same check."""
    votes = []
    for name in (b"a", b"b"):
        candidate = Candidate(1, 2, 1, name * 32)
        signature = KEY.sign_vote(vote_digest(GENESIS, NOTARIZE, candidate))
        votes.append(Vote(NOTARIZE, *candidate, 1, signature))
    evidence = Evidence.of(Equivocation(votes[1], votes[0]), OTHERS[0].address)
    offence = prove(STATE, evidence, epoch_now=EPOCHS, chain=CHAIN, genesis_hash=GENESIS)
    assert (offence.operator, offence.weight, offence.committee_weight) == (KEY.address, 1, 4)
