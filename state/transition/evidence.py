"""Evidence: two signed votes of one seat where one is allowed, and its place in a block. Pure.

See consensus.md 8.2, 8.3.

Evidence names the seat, not the key: the committee of the fault's own epoch, which the state keeps, says whose it
was, so that a key that was replaced since leads to its owner, and a vote of another chain, epoch or seat proves
nothing here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple

from state.primitives.address import ADDRESS_BYTES
from state.primitives.codec import Value, decode, encode
from state.primitives.committee import SEATS_MAX
from state.primitives.errors import DecodeError, InvalidBlock, ProtocolError
from state.primitives.genesis import ChainParameters
from state.primitives.hashing import HASH_BYTES, ZERO_HASH
from state.primitives.keys import VOTE_SIGNATURE_BYTES, verify_vote
from state.primitives.receipts import Event
from state.primitives.votes import NULLIFY, Equivocation, Vote, evidence_type, vote_digest
from state.transition.rules import BlockContext
from state.transition.slashing import Offence, is_worse, punish
from state.transition.staking import load_committee
from state.view import Overlay, Reader

__all__ = [
    "BLOCK_EVIDENCE_BYTES_MAX",
    "EVIDENCE_LIMIT_BYTES",
    "FAULTS",
    "BlockEvidenceInvalid",
    "Evidence",
    "EvidenceEpochUnknown",
    "EvidenceFromFuture",
    "EvidenceKnown",
    "EvidenceRefused",
    "EvidenceSeatUnknown",
    "EvidenceSignatureInvalid",
    "EvidenceTooOld",
    "apply_evidence",
    "check_block_evidence",
    "decode_evidence",
    "prove",
    "select_evidence",
]

EVIDENCE_LIMIT_BYTES: Final = 512
BLOCK_EVIDENCE_BYTES_MAX: Final = 64 * 1024
"""Evidence of one block in sum. It weighs no gas and takes nothing from the room of transactions."""
FAULTS: Final = {"E1": 1, "E2": 2, "E3": 3}
"""The numbers of the faults in records and events."""


class EvidenceRefused(ProtocolError):
    """Evidence that is not valid on the present state; subclasses give the reason."""

    code = "evidence_refused"


class EvidenceFromFuture(EvidenceRefused):
    """The fault is of an epoch that has not begun."""

    code = "evidence_from_future"


class EvidenceTooOld(EvidenceRefused):
    """The fault is older than ``chain.evidence_epochs``."""

    code = "evidence_too_old"


class EvidenceEpochUnknown(EvidenceRefused):
    """The state has no committee of that epoch."""

    code = "evidence_epoch_unknown"


class EvidenceSeatUnknown(EvidenceRefused):
    """The committee of that epoch has no such seat."""

    code = "evidence_seat_unknown"


class EvidenceSignatureInvalid(EvidenceRefused):
    """A signature does not verify for the seat's vote key."""

    code = "evidence_signature_invalid"


class EvidenceKnown(EvidenceRefused):
    """The operator was already slashed for this or an equally severe fault."""

    code = "evidence_known"


class BlockEvidenceInvalid(InvalidBlock):
    """The evidence of a block breaks a rule; ``reason`` is the code of the error, ``index`` its place."""

    code = "block_evidence_invalid"

    def __init__(self, reason: str, message: str, *, index: int | None = None) -> None:
        super().__init__(message)
        self.reason = reason
        self.index = index


class Evidence(NamedTuple):
    """Two votes of one seat in one view that are E1, E2 or E3 together; ``reporter`` gets a part of the penalty.

    The votes stand in the order of kind, parent view and block hash: one fault of two votes has one spelling.
    """

    first: Vote
    second: Vote
    reporter: bytes

    @classmethod
    def of(cls, equivocation: Equivocation, reporter: bytes) -> Evidence:
        """Return the evidence of two votes in any order. Raises DecodeError if they prove no fault."""
        first, second = sorted(equivocation, key=_rank)
        if evidence_type(first, second) is None:
            raise DecodeError("two votes that are allowed beside each other")
        return cls(first, second, reporter)

    @property
    def type(self) -> str:
        """E1, E2 or E3."""
        return evidence_type(self.first, self.second) or ""

    def encode(self) -> bytes:
        """Return the canonical bytes, as they stand in a block."""
        first = self.first
        votes: list[Value] = [
            [vote.kind, vote.parent_view, vote.block_hash, vote.signature] for vote in (first, self.second)
        ]
        return encode([first.epoch, first.view, first.seat, *votes, self.reporter])


def _rank(vote: Vote) -> tuple[int, int, bytes]:
    return vote.kind, vote.parent_view, vote.block_hash


def decode_evidence(data: bytes) -> Evidence:
    """Return the evidence of ``data``; its signatures are not checked yet. Raises DecodeError."""
    match decode(data, limit_bytes=EVIDENCE_LIMIT_BYTES):
        case [int(epoch), int(view), int(seat), list(one), list(other), bytes(reporter)] if (
            0 <= epoch < 2**32 and 0 < view < 2**48 and 0 <= seat < SEATS_MAX and len(reporter) == ADDRESS_BYTES
        ):
            first, second = _vote(one, epoch, view, seat), _vote(other, epoch, view, seat)
            if _rank(first) >= _rank(second) or evidence_type(first, second) is None:
                raise DecodeError("two votes that are no fault, or not in their order")
            return Evidence(first, second, reporter)
        case _:
            raise DecodeError("not evidence")


def _vote(value: list[Any], epoch: int, view: int, seat: int) -> Vote:
    match value:
        case [1 | 2 | 3 as kind, int(parent_view), bytes(block_hash), bytes(signature)] if (
            0 <= parent_view < view
            and (len(block_hash), len(signature)) == (HASH_BYTES, VOTE_SIGNATURE_BYTES)
            and (kind != NULLIFY or (parent_view == 0 and block_hash == ZERO_HASH))
        ):
            return Vote(kind, epoch, view, parent_view, block_hash, seat, signature)
        case _:
            raise DecodeError("not a vote of evidence")


def prove(
    state: Reader, evidence: Evidence, *, epoch_now: int, chain: ChainParameters, genesis_hash: bytes
) -> Offence:
    """Return the offence that evidence proves in a block of ``epoch_now`` on top of ``state``.

    Raises a subclass of EvidenceRefused; cheap checks come first.
    """
    first, second, reporter = evidence
    if first.epoch > epoch_now:
        raise EvidenceFromFuture(f"a fault of epoch {first.epoch} in epoch {epoch_now}")
    if first.epoch + chain.evidence_epochs < epoch_now:
        raise EvidenceTooOld(f"a fault of epoch {first.epoch} in epoch {epoch_now}, age {chain.evidence_epochs}")
    committee = load_committee(state, first.epoch)
    if committee is None:
        raise EvidenceEpochUnknown(f"no committee of epoch {first.epoch}")
    if first.seat >= committee.size:
        raise EvidenceSeatUnknown(f"no seat {first.seat} in the committee of epoch {first.epoch}")
    seat = committee.seats[first.seat]
    fault = FAULTS[evidence.type]
    offence = Offence(seat.address, fault, first.epoch, first.view, seat.weight, committee.weight, reporter)
    if not is_worse(state, offence):
        raise EvidenceKnown(f"0x{seat.address.hex()} is out for ever")
    for vote in (first, second):
        if not verify_vote(seat.vote_key, vote_digest(genesis_hash, vote.kind, vote.candidate), vote.signature):
            raise EvidenceSignatureInvalid(f"not signed by seat {vote.seat} of epoch {vote.epoch}")
    return offence


# Evidence in a block


def check_block_evidence(
    state: Reader, raws: Sequence[bytes], *, epoch_now: int, chain: ChainParameters, genesis_hash: bytes
) -> None:
    """Check the evidence of a block of ``epoch_now`` against the state after its parent.

    It is BLOCK_EVIDENCE_BYTES_MAX in sum at most, in ascending order of its bytes, and one for each operator: one
    fault jails an operator permanently, and a more severe one can follow in a later block. Raises
    BlockEvidenceInvalid.
    """
    _offences(state, raws, epoch_now=epoch_now, chain=chain, genesis_hash=genesis_hash)


def select_evidence(
    state: Reader, raws: Iterable[bytes], *, epoch_now: int, chain: ChainParameters, genesis_hash: bytes
) -> tuple[bytes, ...]:
    """Return those of ``raws`` that together pass ``check_block_evidence``, in its order."""
    chosen: list[bytes] = []
    operators: set[bytes] = set()
    room = BLOCK_EVIDENCE_BYTES_MAX
    for raw in sorted(set(raws)):
        if len(raw) > room:
            continue
        try:
            offence = prove(
                state, decode_evidence(raw), epoch_now=epoch_now, chain=chain, genesis_hash=genesis_hash
            )
        except (DecodeError, EvidenceRefused):
            continue
        if offence.operator not in operators:
            operators.add(offence.operator)
            chosen.append(raw)
            room -= len(raw)
    return tuple(chosen)


def apply_evidence(
    state: Overlay, raws: Sequence[bytes], block: BlockContext, emit: Callable[[Event], None]
) -> None:
    """Slash the operators that the evidence of a block convicts, before its transactions.

    Raises BlockEvidenceInvalid for what ``check_block_evidence`` would have refused, and then changes nothing.
    """
    if raws:
        offences = _offences(
            state, raws, epoch_now=block.epoch, chain=block.chain, genesis_hash=block.genesis_hash
        )
        punish(state, offences, block, emit)


def _offences(
    state: Reader, raws: Sequence[bytes], *, epoch_now: int, chain: ChainParameters, genesis_hash: bytes
) -> list[Offence]:
    size = sum(map(len, raws))
    if size > BLOCK_EVIDENCE_BYTES_MAX:
        raise BlockEvidenceInvalid("size", f"evidence of {size} bytes, limit {BLOCK_EVIDENCE_BYTES_MAX}")
    offences: dict[bytes, Offence] = {}
    last = b""
    for index, raw in enumerate(raws):
        if raw <= last:
            raise BlockEvidenceInvalid("order", f"evidence {index} is not in its order", index=index)
        last = raw
        try:
            offence = prove(
                state, decode_evidence(raw), epoch_now=epoch_now, chain=chain, genesis_hash=genesis_hash
            )
        except (DecodeError, EvidenceRefused) as error:
            raise BlockEvidenceInvalid(error.code, f"evidence {index}: {error}", index=index) from None
        if offence.operator in offences:
            raise BlockEvidenceInvalid("twice", f"evidence {index} is a second one of its operator", index=index)
        offences[offence.operator] = offence
    return list(offences.values())
