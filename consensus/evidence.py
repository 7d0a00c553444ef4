"""Evidence from two conflicting certificates: one proof for each seat that voted in both (consensus.md 8.1)."""

from __future__ import annotations

from consensus.votes import Certificate
from state.primitives.votes import Equivocation, evidence_type

__all__ = ["evidence_of_certificates"]


def evidence_of_certificates(first: Certificate, second: Certificate) -> tuple[Equivocation, ...]:
    """Return what two verified certificates of one committee prove: a fault of each seat that signed both.

    They conflict if one view has two NOTARIZE or two FINALIZE quorums for different candidates, or both a NULLIFY
    and a FINALIZE quorum. Any two quorums share more than W/3, so that much weight is convicted. Certificates that
    do not conflict prove nothing.
    """
    mine = {vote.seat: vote for vote in first.votes()}
    return tuple(
        Equivocation(mine[vote.seat], vote)
        for vote in second.votes()
        if vote.seat in mine and evidence_type(mine[vote.seat], vote) is not None
    )
