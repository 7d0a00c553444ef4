"""Detects that the committee signals a protocol version that this release does not know.

A node that does not know an epoch's version ends before its first block (docs/operations.md, "Upgrading"). Its
owner is warned before: the seats' signals are on the chain (consensus.md 12.3).
"""

from __future__ import annotations

from typing import Final, NamedTuple

from state.primitives.genesis import ChainParameters
from state.transition.epochs import SIGNAL_SHARE, epoch_of, last_height, load_tally
from state.transition.staking import load_committee
from state.view import Reader

__all__ = ["LOOK_BLOCKS", "PendingUpgrade", "UpgradeWatch", "pending_upgrade"]

LOOK_BLOCKS: Final = 16
"""Interval of the check in blocks; it also runs at the beginning of each epoch."""
WARNING_SHARE: Final = (1, 3)
"""The share of the weight that must signal more than this; a smaller share may be faulty."""


class PendingUpgrade(NamedTuple):
    """A protocol version that this release does not know."""

    version: int
    percent: int
    """Share of the committee's weight that signals it, rounded down."""
    last_height: int | None
    """The last block before the version applies; None while it is not scheduled."""


class _Signalled(NamedTuple):
    weight: int
    of: int

    def is_part(self, part: tuple[int, int]) -> bool:
        return self.weight * part[1] >= self.of * part[0]


def pending_upgrade(state: Reader, height: int, chain: ChainParameters, known: int) -> PendingUpgrade | None:
    """Return the version after ``known`` if more than a third of a committee's weight signals it at ``height``.

    The epoch before counts too, because at the beginning of an epoch few seats have led a block. Raises
    RecordDamaged.
    """
    epoch = epoch_of(max(height, 1), chain)
    now = _signalled(state, epoch, known + 1)
    before = _signalled(state, epoch - 1, known + 1)
    # What held for the whole epoch before was scheduled by its last block, for the epoch after this one.
    is_scheduled = before.of > 0 and before.is_part(SIGNAL_SHARE)
    most = max(now, before, key=lambda one: (one.weight / one.of) if one.of else 0.0)
    if most.weight * WARNING_SHARE[1] <= most.of * WARNING_SHARE[0]:
        return None
    return PendingUpgrade(
        known + 1, most.weight * 100 // most.of, last_height(epoch, chain) if is_scheduled else None
    )


def _signalled(state: Reader, epoch: int, version: int) -> _Signalled:
    if epoch < 0:
        return _Signalled(0, 0)
    committee, tally = load_committee(state, epoch), load_tally(state, epoch)
    if committee is None or tally is None:
        return _Signalled(0, 0)
    weights = zip(committee.weights, tally.signals, strict=True)
    return _Signalled(sum(weight for weight, signal in weights if signal >= version), committee.weight)


class UpgradeWatch:
    """Checks ``state`` periodically for a version after ``known``."""

    def __init__(self, state: Reader, chain: ChainParameters, known: int) -> None:
        self._state = state
        self._chain = chain
        self._known = known
        self._looked_at: tuple[int, int] | None = None
        self._told: tuple[int, bool] | None = None
        self.pending: PendingUpgrade | None = None

    def note(self, height: int) -> bool:
        """Process a final block; return whether to inform the owner: once an epoch, and when the version is
        scheduled.

        Raises RecordDamaged.
        """
        epoch, before = epoch_of(max(height, 1), self._chain), self._looked_at
        if before is not None and epoch == before[0] and height < before[1] + LOOK_BLOCKS:
            return False
        self._looked_at = epoch, height
        self.pending = pending_upgrade(self._state, height, self._chain, self._known)
        if self.pending is None:
            return False
        told = epoch, self.pending.last_height is not None
        is_news, self._told = told != self._told, told
        return is_news
