"""The chain over the steps of a segment: what a worker commits to beside the state at its end (market.md 4.6).

The chain covers the probe and the sum of losses after each step. It needs no hash of a whole state. Only a machine
that did the work knows its end.
"""

from __future__ import annotations

import math
import struct
from typing import Final

from state.primitives.codec import encode
from state.primitives.hashing import ZERO_HASH, digest

__all__ = ["WORK_START", "add_losses", "extend_work"]

WORK_START: Final = ZERO_HASH
"""The chain before the first step of a segment."""
_NAN_BITS: Final = 0x7FF8 << 48


def extend_work(work_digest: bytes, probe_root: bytes, loss_total: int) -> bytes:
    """Return the chain after a step. ``loss_total`` is the sum of losses after it: bits of a binary64."""
    return digest(b"work-step", encode([work_digest, probe_root, loss_total]))


def add_losses(total: int, loss: int) -> int:
    """Return the bits of the sum of two binary64 values given by their bits.

    Bits of a NaN depend on the machine: every sum that is one has the same. Only a liar's sums are.
    """
    left, right = struct.unpack("<2d", struct.pack("<2Q", total, loss))
    (bits,) = struct.unpack("<Q", struct.pack("<d", left + right))
    return _NAN_BITS if math.isnan(left + right) else int(bits)
