"""Bytes that are in memory for somebody: bodies that are not whole yet, answers that are not sent yet.

See rpc.md R27.

One ledger counts them by address and in all; whoever would go over a limit is refused or thrown out. Each holder
tells in steps, so that what is small and soon gone, as nearly everything is, costs a comparison.
"""

from __future__ import annotations

from typing import Final

__all__ = ["FREE_BYTES", "HeldBytes", "MemoryQuota", "exact"]

FREE_BYTES: Final = 16 * 1024
"""What one holder may have untold."""
STEP_BYTES: Final = 64 * 1024
EXACT_BYTES_MAX: Final = 1024 * 1024


def exact(encoded: bytes) -> bytes:
    """Return what the JSON encoder has made in memory of its own length.

    The encoder leaves its buffer as long as it grew, 4 KiB at least: a refusal of 150 bytes that waits for its
    client would hold 27 times what is counted.
    """
    return bytes(memoryview(encoded)) if len(encoded) <= EXACT_BYTES_MAX else encoded


class MemoryQuota:
    """Counts held bytes; for either limit, 0 means none."""

    def __init__(self, bytes_max: int = 0, bytes_per_caller_max: int = 0) -> None:
        self._bytes_max = bytes_max
        self._bytes_per_caller_max = bytes_per_caller_max
        self._of: dict[str, int] = {}
        self.bytes = 0
        """Held by all together."""
        self.refused = 0

    def take(self, caller: str, size: int) -> bool:
        """Count ``size`` bytes in for ``caller``, or return False."""
        mine = self._of.get(caller, 0) + size
        if (self._bytes_max and self.bytes + size > self._bytes_max) or (
            self._bytes_per_caller_max and mine > self._bytes_per_caller_max
        ):
            self.refused += 1
            return False
        self._of[caller] = mine
        self.bytes += size
        return True

    def give(self, caller: str, size: int) -> None:
        """Count ``size`` bytes out."""
        self.bytes -= size
        left = self._of[caller] - size
        if left:
            self._of[caller] = left
        else:
            del self._of[caller]


class HeldBytes:
    """What one holder has in memory for ``caller``."""

    __slots__ = ("_caller", "_memory_quota", "counted")

    def __init__(self, memory_quota: MemoryQuota, caller: str) -> None:
        self._memory_quota = memory_quota
        self._caller = caller
        self.counted = 0
        """Bytes that the ledger knows of."""

    @property
    def caller(self) -> str:
        """For whom it is."""
        return self._caller

    def keep(self, size: int) -> bool:
        """Note that ``size`` bytes are held now; False: that is more than may be, and nothing is noted."""
        wanted = -(-size // STEP_BYTES) * STEP_BYTES if size > FREE_BYTES else 0
        if wanted > self.counted:
            if not self._memory_quota.take(self._caller, wanted - self.counted):
                return False
        elif wanted < self.counted:
            self._memory_quota.give(self._caller, self.counted - wanted)
        self.counted = wanted
        return True

    def pass_to(self, caller: str) -> None:
        """Hold for another one from now on; what is held already stays where it was counted."""
        if not self.counted:
            self._caller = caller
