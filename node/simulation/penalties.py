"""The expected penalties of the evidence in a chain, computed from its blocks alone.

The state forgets the committee of an epoch once no evidence of it counts any more, and a chain may go on for
longer than that. So the judge takes committees from what the node knew when it entered each epoch. It works out
the penalties block by block, because faults that are too far apart do not raise each other's rate.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Final, NamedTuple

from node.simulation.world import WholeMachine, WholeWorld
from state.primitives.blocks import decode_block, decode_header, evidence_root
from state.transition.epochs import epoch_of
from state.transition.evidence import decode_evidence

__all__ = ["Due", "dues"]

RATE_MIN: Final = Fraction(1, 20)
TIMES: Final = 3
"""The rate is so many times the share of weight that faulted within the window."""
_NONE: Final = evidence_root(())


class Due(NamedTuple):
    """What one account has to pay: its worst fault on the chain, and the highest rate that applied to it."""

    epoch: int
    share: Fraction
    rate: Fraction


def dues(machine: WholeMachine, world: WholeWorld) -> dict[int, Due]:
    """Return what each account has to pay that the final blocks of a chain prove faulty."""
    store, chain = machine.store, world.runtime.chain
    found: dict[int, Due] = {}
    for height in range(1, store.tip.height + 1):
        record, raw = store.height(height), store.block(height)
        assert record is not None and raw is not None, "a simulated node keeps all blocks"
        if decode_header(record.header).evidence_root == _NONE:
            continue
        added: set[int] = set()
        for proof in decode_block(raw).evidence:
            account, epoch, share = _fault(machine, world, proof)
            known = found.get(account)
            if known is None or share > known.share:
                found[account] = Due(epoch, share, known.rate if known is not None else Fraction(0))
                added.add(account)
        oldest = epoch_of(height, chain) - chain.evidence_epochs
        counted = {account for account, due in found.items() if due.epoch >= oldest}
        share = sum((found[account].share for account in counted), Fraction(0))
        rate = min(Fraction(1), max(RATE_MIN, TIMES * share))
        for account in counted | added:
            found[account] = found[account]._replace(rate=max(rate, found[account].rate))
    return found


def _fault(machine: WholeMachine, world: WholeWorld, proof: bytes) -> tuple[int, int, Fraction]:
    vote = decode_evidence(proof).first
    epoch_view = machine.epoch_view(vote.epoch)
    assert epoch_view is not None, "a node has entered every epoch of its chain"
    seat = epoch_view.committee.seats[vote.seat]
    return world.account_of(seat.address), vote.epoch, Fraction(seat.weight, epoch_view.committee.weight)
