"""The kinds of costly calls. The gateway has one fair queue for each of them."""

from __future__ import annotations

from enum import Enum, auto

__all__ = ["QueueKind"]


class QueueKind(Enum):
    """Kinds of costly calls; each kind has its own queue."""

    VIEW = auto()
    """Runs in a thread over the state."""
    BLOCK = auto()
    """Reads a block, which may be large and is decoded as a whole."""
    LOOKUP = auto()
    """Asks the node what a hash names. The node may not know the hash, so the answer cannot be cached."""
    LISTING = auto()
    """Collects a long answer, over many blocks or from the whole mempool."""
