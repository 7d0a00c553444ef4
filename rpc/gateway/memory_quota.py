"""Limits the memory of incomplete request bodies and unsent answers, in all and for each client address.

See rpc.md R27.

A client that would exceed a limit is refused or disconnected. Sizes are counted in steps of ``STEP_BYTES``, and
small ones not at all, so that a typical request costs one comparison.
"""

from __future__ import annotations

from typing import Final

__all__ = ["MEMORY_EXCEEDED", "UNCOUNTED_BYTES_MAX", "HeldBytes", "MemoryQuota", "shrink_to_fit"]

UNCOUNTED_BYTES_MAX: Final = 16 * 1024
"""Bytes that one holder may have uncounted."""
MEMORY_EXCEEDED: Final = "limit exceeded: too many bytes in requests and answers of this address"
STEP_BYTES: Final = 64 * 1024
EXACT_BYTES_MAX: Final = 1024 * 1024


def shrink_to_fit(encoded: bytes) -> bytes:
    """Copy an answer of the JSON encoder into memory of its own length.

    The encoder leaves its buffer as long as it grew, 4 KiB at least: a refusal of 150 bytes that waits for its
    client would hold 27 times what is counted.
    """
    return bytes(memoryview(encoded)) if len(encoded) <= EXACT_BYTES_MAX else encoded


class MemoryQuota:
    """Counts the bytes in memory, in all and by caller. A limit of 0 means no limit."""

    def __init__(self, bytes_max: int = 0, bytes_per_caller_max: int = 0) -> None:
        self._bytes_max = bytes_max
        self._bytes_per_caller_max = bytes_per_caller_max
        self._of: dict[str, int] = {}
        self.bytes = 0
        """Counted bytes of all callers."""
        self.refused = 0

    def reserve(self, caller: str, size: int) -> bool:
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

    def release(self, caller: str, size: int) -> None:
        """Count ``size`` bytes out."""
        self.bytes -= size
        left = self._of[caller] - size
        if left:
            self._of[caller] = left
        else:
            del self._of[caller]


class HeldBytes:
    """The bytes that one request, connection or session has in memory for ``caller``."""

    __slots__ = ("_caller", "_memory_quota", "counted")

    def __init__(self, memory_quota: MemoryQuota, caller: str) -> None:
        self._memory_quota = memory_quota
        self._caller = caller
        self.counted = 0
        """Bytes that the quota has counted."""

    @property
    def caller(self) -> str:
        """The address that the bytes are counted for."""
        return self._caller

    def resize(self, size: int) -> bool:
        """Count ``size`` bytes from now on; return False and change nothing if that exceeds a limit."""
        wanted = -(-size // STEP_BYTES) * STEP_BYTES if size > UNCOUNTED_BYTES_MAX else 0
        if wanted > self.counted:
            if not self._memory_quota.reserve(self._caller, wanted - self.counted):
                return False
        elif wanted < self.counted:
            self._memory_quota.release(self._caller, self.counted - wanted)
        self.counted = wanted
        return True

    def transfer_to(self, caller: str) -> None:
        """Count for another caller from now on, unless bytes are counted for the present one."""
        if not self.counted:
            self._caller = caller
