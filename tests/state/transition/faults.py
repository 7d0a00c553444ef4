"""Validators that equivocate, and the state that judges them."""

from __future__ import annotations

from dataclasses import replace

from state.primitives.committee import Committee, Seat
from state.primitives.genesis import GenesisValidator
from state.primitives.keys import SecretKey
from state.primitives.votes import FINALIZE, NOTARIZE, NULLIFY, Candidate, Equivocation, Vote, vote_digest
from state.primitives.vrf import vrf_key_of
from state.transition.evidence import Evidence
from state.transition.rules import BlockContext
from state.transition.runtime import Runtime
from state.transition.slashing import Offence
from state.transition.staking import save_committee
from state.view import Overlay
from tests.state.transition.chain import COIN, Memory, genesis

EPOCH_BLOCKS = 10
EVIDENCE_EPOCHS = 6
MEMBERS = [SecretKey(bytes([number]) * 32) for number in range(1, 31)]
REPORTER = b"\xaa" * 20
NOBODY = bytes(20)


class Court:
    """A chain's state over time, without blocks: operators are slashed by the real rules."""

    def __init__(self, stakes: list[int]) -> None:
        founders = [
            GenesisValidator(key.address, key.vote_key, vrf_key_of(key).public, stake * COIN)
            for key, stake in zip(MEMBERS, stakes, strict=False)
        ]
        parameters = genesis(epoch_blocks=EPOCH_BLOCKS, evidence_epochs=EVIDENCE_EPOCHS)
        self.runtime = Runtime(replace(parameters, validators=tuple(founders)), check_invariants=True)
        self.memory = Memory(self.runtime.genesis_changes())
        self.state = Overlay(self.memory)
        self.members = MEMBERS[: len(stakes)]
        self.committee = Committee(
            Seat(key.address, key.vote_key, vrf_key_of(key).public, stake)
            for key, stake in zip(MEMBERS, stakes, strict=False)
        )

    def seat_all(self, *epochs: int) -> None:
        """Let the founders sit in these epochs too."""
        for epoch in epochs:
            save_committee(self.state, epoch, self.committee)

    def block(self, epoch: int, *, offset: int = 1) -> BlockContext:
        """Return the context of a block of ``epoch``; ``offset`` EPOCH_BLOCKS is its last."""
        height = epoch * EPOCH_BLOCKS + offset
        return BlockContext(
            height, 1, 1, REPORTER, bytes(32), self.runtime.chain, self.runtime.genesis.chain_id,
            self.runtime.genesis_hash, epoch, 1,
        )  # fmt: skip

    def offence(self, member: int, epoch: int, *, reporter: bytes = REPORTER) -> Offence:
        """Return what a fault of a founder in ``epoch`` proves."""
        seat = self.committee.seats[member]
        return Offence(seat.address, 1, epoch, 7, seat.weight, self.committee.weight, reporter)

    def check_supply(self) -> None:
        """Raise AssertionError when money was made or lost."""
        self.runtime.check_whole_supply(self.state)


def vote(
    key: SecretKey, seat: int, kind: int, name: bytes, *, epoch: int, genesis_hash: bytes, view: int = 7
) -> Vote:
    """Return a signed vote; ``name`` one byte that stands for a block."""
    candidate = (
        Candidate(epoch, view, view - 1, name * 32) if kind != NULLIFY else Candidate(epoch, view, 0, bytes(32))
    )
    return Vote(kind, *candidate, seat, key.sign_vote(vote_digest(genesis_hash, kind, candidate)))


FAULTY_KINDS = {"E1": (NOTARIZE, NOTARIZE), "E2": (FINALIZE, FINALIZE), "E3": (NULLIFY, FINALIZE)}


def evidence(
    court: Court, member: int, epoch: int, *, fault: str = "E1", seat: int | None = None, view: int = 7,
    reporter: bytes = REPORTER,
) -> Evidence:  # fmt: skip
    """Return real evidence of a founder's fault."""
    place = member if seat is None else seat
    one, other = FAULTY_KINDS[fault]
    chain = court.runtime.genesis_hash
    first = vote(court.members[member], place, one, b"a", epoch=epoch, genesis_hash=chain, view=view)
    second = vote(court.members[member], place, other, b"b", epoch=epoch, genesis_hash=chain, view=view)
    return Evidence.of(Equivocation(first, second), reporter)
