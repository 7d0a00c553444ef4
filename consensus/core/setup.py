"""The constants of one core: the epoch, the own seat, the chain and its parameters."""

from __future__ import annotations

from typing import NamedTuple

from consensus.events import ConsensusParameters, Epoch
from state.primitives.committee import Committee

__all__ = ["Setup"]


class Setup(NamedTuple):
    """One replica in one epoch. ``seat`` is None for an observer, which follows and never votes."""

    epoch: Epoch
    committee: Committee
    genesis_hash: bytes
    seat: int | None
    parameters: ConsensusParameters
