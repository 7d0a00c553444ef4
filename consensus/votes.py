"""Sets of votes, certificates and their checks (consensus.md 3.2); votes themselves are state.primitives.votes."""

from __future__ import annotations

from typing import Final, NamedTuple, Protocol

from state.primitives.committee import Committee
from state.primitives.errors import DecodeError
from state.primitives.keys import VOTE_SIGNATURE_BYTES, verify_vote
from state.primitives.votes import (
    FINALIZE,
    NOTARIZE,
    NULLIFY,
    Candidate,
    Equivocation,
    Vote,
    vote_digest,
)

__all__ = [
    "Added",
    "Certificate",
    "Check",
    "Signer",
    "Verifier",
    "VoteSet",
    "certificate_checks",
    "verify_checks",
    "vote_check",
]

_Key = tuple[int, int, bytes]


class Check(NamedTuple):
    """One signature to verify: x-only key, 32-byte digest, signature."""

    vote_key: bytes
    digest: bytes
    signature: bytes


class Signer(Protocol):
    """Whoever holds the vote key; the guard stands in front of it."""

    @property
    def vote_key(self) -> bytes:
        """The x-only public key."""
        ...

    def sign_vote(self, digest: bytes) -> bytes:
        """Return the deterministic signature of a digest."""
        ...

    def prove(self, alpha: bytes) -> bytes:
        """Return the VRF proof (80 bytes) for the input of a view."""
        ...


class Verifier(Protocol):
    """Verifies signatures; ``verify_checks`` is the real one."""

    def __call__(self, checks: tuple[Check, ...]) -> bool:
        """Tell whether every check passes."""
        ...


class Certificate(NamedTuple):
    """A quorum of agreeing votes: bit i of ``bitmap`` (little-endian) is seat i, signatures in seat order."""

    kind: int
    epoch: int
    view: int
    parent_view: int
    block_hash: bytes
    bitmap: bytes
    signatures: bytes

    @property
    def candidate(self) -> Candidate:
        """What the votes agree on."""
        return Candidate(self.epoch, self.view, self.parent_view, self.block_hash)

    @classmethod
    def of(cls, committee: Committee, votes: list[Vote]) -> Certificate:
        """Join agreeing votes of distinct seats; the caller has counted their weight."""
        votes.sort(key=lambda vote: vote.seat)
        kind, epoch, view, parent_view, block_hash, _, _ = votes[0]
        bits = 0
        for vote in votes:
            bits |= 1 << vote.seat
        return cls(
            kind,
            epoch,
            view,
            parent_view,
            block_hash,
            bits.to_bytes((committee.size + 7) // 8, "little"),
            b"".join([vote.signature for vote in votes]),
        )

    def votes(self) -> tuple[Vote, ...]:
        """Return the votes inside, which prove an equivocation where two certificates conflict."""
        bits = int.from_bytes(self.bitmap, "little")
        seats = [seat for seat in range(bits.bit_length()) if bits >> seat & 1]
        size = VOTE_SIGNATURE_BYTES
        return tuple(
            Vote(*self[:5], seat, self.signatures[at * size : (at + 1) * size]) for at, seat in enumerate(seats)
        )


class Added(NamedTuple):
    """What a vote brought about: whether it was new, a certificate, a proof of a fault."""

    is_new: bool
    certificate: Certificate | None = None
    equivocation: Equivocation | None = None


_OLD: Final = Added(False)
_NEW: Final = Added(True)


class VoteSet:
    """The votes of one view: the first of each seat and kind counts, one conflicting copy is kept as evidence."""

    __slots__ = ("_committee", "_conflicting", "_first", "_weights")

    def __init__(self, committee: Committee) -> None:
        self._committee = committee
        self._first: dict[tuple[int, int], Vote] = {}
        self._conflicting: dict[tuple[int, int], Vote] = {}
        self._weights: dict[_Key, int] = {}

    def is_wanted(self, vote: Vote) -> bool:
        """Tell whether the vote could change anything, before its signature is verified."""
        slot = (vote[0], vote[5])
        first = self._first.get(slot)
        if first is None:
            return True
        return first[:5] != vote[:5] and slot not in self._conflicting

    def get(self, kind: int, seat: int) -> Vote | None:
        """Return the first vote of that kind by that seat."""
        return self._first.get((kind, seat))

    def add(self, vote: Vote) -> Added:
        """Count a verified vote; the vote that completes a quorum returns the certificate, later ones do not."""
        kind, _, _, parent_view, block_hash, seat, _ = vote
        slot = (kind, seat)
        first = self._first.get(slot)
        if first is not None:
            if first[:5] == vote[:5] or slot in self._conflicting:
                return _OLD
            self._conflicting[slot] = vote
            return Added(True, None, Equivocation(first, vote))
        self._first[slot] = vote
        equivocation = None
        if kind != NOTARIZE:
            other = self._first.get((NULLIFY + FINALIZE - kind, seat))
            if other is not None:
                equivocation = Equivocation(other, vote)
        key = (kind, parent_view, block_hash)
        own = self._committee.weights[seat]
        weight = self._weights.get(key, 0) + own
        self._weights[key] = weight
        quorum = self._committee.quorum
        if weight < quorum or weight - own >= quorum:
            return _NEW if equivocation is None else Added(True, None, equivocation)
        agreeing = [v for v in self._first.values() if v[0] == kind and v[4] == block_hash and v[3] == parent_view]
        return Added(True, Certificate.of(self._committee, agreeing), equivocation)

    def all(self) -> list[Vote]:
        """Return every vote kept, conflicting copies last."""
        return [*self._first.values(), *self._conflicting.values()]


def vote_check(committee: Committee, genesis_hash: bytes, vote: Vote) -> Check:
    """Return the signature check of a vote. Raises DecodeError for a seat outside the committee."""
    if vote.seat >= committee.size:
        raise DecodeError("a vote of no seat")
    return Check(
        committee.seats[vote.seat].vote_key, vote_digest(genesis_hash, vote.kind, vote.candidate), vote.signature
    )


def certificate_checks(committee: Committee, genesis_hash: bytes, certificate: Certificate) -> tuple[Check, ...]:
    """Return every signature check of a certificate whose shape and weight are right.

    Raises DecodeError for a bitmap of another length, bits of no seat, a missing or extra signature, or less
    weight than a quorum; a seat cannot appear twice, because it has one bit.
    """
    bits = int.from_bytes(certificate.bitmap, "little")
    if len(certificate.bitmap) != (committee.size + 7) // 8 or bits >> committee.size:
        raise DecodeError("a bitmap of another committee")
    if bits.bit_count() * VOTE_SIGNATURE_BYTES != len(certificate.signatures):
        raise DecodeError("a certificate has one signature for each of its seats")
    if committee.weight_of(certificate.bitmap) < committee.quorum:
        raise DecodeError("a certificate of less weight than a quorum")
    signed = vote_digest(genesis_hash, certificate.kind, certificate.candidate)
    signatures, seats = certificate.signatures, committee.seats
    checks, at = [], 0
    for seat in range(committee.size):
        if bits >> seat & 1:
            checks.append(Check(seats[seat].vote_key, signed, signatures[at : at + VOTE_SIGNATURE_BYTES]))
            at += VOTE_SIGNATURE_BYTES
    return tuple(checks)


def verify_checks(checks: tuple[Check, ...]) -> bool:
    """Tell whether every signature is valid (BIP340)."""
    return all(verify_vote(*check) for check in checks)
