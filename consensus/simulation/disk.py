"""A simulated disk: what was not synced is lost when power fails, and each durable operation may go wrong."""

from __future__ import annotations

import random
from dataclasses import dataclass
from enum import Enum

__all__ = ["DiskFailed", "Fault", "PowerFailed", "SimulatedLog"]


class Fault(Enum):
    """What happens in the place of a durable operation."""

    TAIL = "lost tail"
    """Power fails: what was not synced is lost."""
    TORN = "torn record"
    """Power fails: of what was not synced some bytes stay, or zeros in their place."""
    GUARD_FLIP = "bit flip in the guard"
    """Power fails, and one bit of the guard's record is another one afterwards."""
    JOURNAL_FLIP = "bit flip in the journal"
    FULL = "disk full"
    """The write fails after some of its bytes; the process ends with a StoreError."""
    SYNC_ERROR = "fsync error"
    """The sync fails, and nobody can say what of it reached the disk; the process ends with a StoreError."""


class PowerFailed(Exception):
    """The node loses power inside a durable operation."""


class DiskFailed(Exception):
    """A write or a sync failed: the process must end, and nothing it does afterwards counts."""


@dataclass(slots=True)
class SimulatedLog:
    """A log that loses at a power failure what was not synced, but for a torn piece of its beginning."""

    durable: bytes = b""
    pending: bytes = b""

    def lose_power(self, rng: random.Random, *, is_torn: bool) -> None:
        """Lose the tail; ``is_torn`` leaves some bytes of it, or zeros in their place, as file systems do."""
        if is_torn and self.pending:
            kept = rng.randrange(len(self.pending) + 1)
            tail = bytes(rng.randrange(len(self.pending) - kept + 1)) if rng.random() < 0.5 else b""
            if not (tail and self.pending[kept:].startswith(tail)):
                self.durable += self.pending[:kept] + tail
            else:
                self.durable += self.pending[:kept]
        self.pending = b""

    def end_process(self, rng: random.Random, failed: bytes | None, *, is_sync: bool) -> None:
        """The process ends and the machine lives on: ``failed`` is what a refused write has written in part.

        After a failed sync the kernel may have kept or dropped any of the pages; from the first dropped one on,
        nothing of use stays.
        """
        if is_sync:
            self.pending = self.pending[: rng.randrange(len(self.pending) + 1)]
        elif failed is not None:
            self.pending += failed[: rng.randrange(len(failed) + 1)]
        self.durable += self.pending
        self.pending = b""

    def flip(self, rng: random.Random) -> None:
        """Change one bit of what is on the disk."""
        if self.durable:
            damaged = bytearray(self.durable)
            damaged[rng.randrange(len(damaged))] ^= 1 << rng.randrange(8)
            self.durable = bytes(damaged)
