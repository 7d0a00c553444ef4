"""Votes: the signed content, and pairs of votes that prove a fault (consensus.md 3.1, 8.1)."""

from __future__ import annotations

from functools import lru_cache
from typing import Final, NamedTuple

from state.primitives.hashing import ZERO_HASH, digest
from state.primitives.keys import SecretKey
from state.primitives.vrf import vrf_key_of

__all__ = [
    "FINALIZE",
    "KINDS",
    "NOTARIZE",
    "NULLIFY",
    "Candidate",
    "Equivocation",
    "Vote",
    "VoteKey",
    "evidence_type",
    "pid",
    "vote_digest",
    "vrf_alpha",
]

NOTARIZE: Final = 1
NULLIFY: Final = 2
FINALIZE: Final = 3
KINDS: Final = {NOTARIZE: "notarize", NULLIFY: "nullify", FINALIZE: "finalize"}

_DOMAIN: Final = b"SDBFT/1"


class Candidate(NamedTuple):
    """What a NOTARIZE or FINALIZE names: a block in a view, above the block certified in ``parent_view``."""

    epoch: int
    view: int
    parent_view: int
    block_hash: bytes


class Vote(NamedTuple):
    """A seat's signed vote; a NULLIFY has ``parent_view`` 0 and a zero hash."""

    kind: int
    epoch: int
    view: int
    parent_view: int
    block_hash: bytes
    seat: int
    signature: bytes

    @property
    def candidate(self) -> Candidate:
        """The candidate of the vote."""
        return Candidate(self.epoch, self.view, self.parent_view, self.block_hash)


@lru_cache(maxsize=4096)
def pid(candidate: Candidate) -> bytes:
    """Return the identity of a candidate, which its votes sign."""
    epoch, view, parent_view, block_hash = candidate
    return digest(
        b"pid", epoch.to_bytes(4, "big") + view.to_bytes(8, "big") + parent_view.to_bytes(8, "big") + block_hash
    )


@lru_cache(maxsize=4096)
def vote_digest(genesis_hash: bytes, kind: int, candidate: Candidate) -> bytes:
    """Return what a vote signs: domain, chain, kind, epoch, view, identity of the candidate (NULLIFY: zero)."""
    identity = ZERO_HASH if kind == NULLIFY else pid(candidate)
    return digest(
        b"vote",
        _DOMAIN
        + genesis_hash
        + bytes((kind,))
        + candidate.epoch.to_bytes(4, "big")
        + candidate.view.to_bytes(8, "big")
        + identity,
    )


def vrf_alpha(genesis_hash: bytes, randomness: bytes, epoch: int, view: int) -> bytes:
    """Return the VRF input of a view; ``randomness`` is what the chain had gathered before the epoch.

    See consensus.md 11.1.
    """
    return digest(b"vrf", genesis_hash + randomness + epoch.to_bytes(4, "big") + view.to_bytes(8, "big"))


class VoteKey:
    """A validator's vote key and the VRF key from the same secret."""

    __slots__ = ("_secret", "_vrf", "vote_key", "vrf_key")

    def __init__(self, secret: SecretKey) -> None:
        self._secret = secret
        self._vrf = vrf_key_of(secret)
        self.vote_key: bytes = secret.vote_key
        self.vrf_key: bytes = self._vrf.public

    def sign_vote(self, digest: bytes) -> bytes:
        """Return the deterministic BIP340 signature of a digest."""
        return self._secret.sign_vote(digest)

    def prove(self, alpha: bytes) -> bytes:
        """Return the VRF proof (80 bytes) for ``alpha``."""
        return self._vrf.prove(alpha)


class Equivocation(NamedTuple):
    """Two signed votes of one seat where one is allowed, in the order they were seen."""

    first: Vote
    second: Vote

    @property
    def type(self) -> str:
        """E1, E2 or E3 of consensus.md 8.1."""
        return evidence_type(self.first, self.second) or ""


def evidence_type(first: Vote, second: Vote) -> str | None:
    """Return the fault that two votes prove, or None; signatures are checked elsewhere."""
    if (first.seat, first.epoch, first.view) != (second.seat, second.epoch, second.view):
        return None
    kinds = {first.kind, second.kind}
    if kinds == {NULLIFY, FINALIZE}:
        return "E3"
    if len(kinds) == 1 and first.candidate != second.candidate:
        return {NOTARIZE: "E1", FINALIZE: "E2"}.get(first.kind)
    return None
