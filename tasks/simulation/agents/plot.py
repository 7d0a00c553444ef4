"""What strategic agents of one owner know of each other."""

from __future__ import annotations

from dataclasses import dataclass, field

from tasks.ledger.records import WindowRecord
from tasks.simulation.work import Made

__all__ = ["Plot"]


@dataclass
class Plot:
    """The accounts of one owner, the secrets of their windows, and what they paid off the chain."""

    members: set[bytes] = field(default_factory=set)
    made: dict[tuple[bytes, int], Made] = field(default_factory=dict)
    accused: set[bytes] = field(default_factory=set)
    """Tasks whose results its verifiers call unavailable, wherever they are drawn."""
    bribe_bps: int = 0
    """The most that a verifier of others gets for agreeing with a forgery, as a share of the worker's bond."""
    bribes_paid: int = 0
    ransom: float = 0.0
    """What a requester pays for a result that nobody else gives it, as a part of its value."""

    def made_of(self, window: WindowRecord) -> Made | None:
        """Return the secrets of a window that one of its workers proved; another may have proved it again."""
        made = self.made.get((window.task, window.number))
        return made if made is not None and made.state_root_out == window.proof.state_root_out else None
