"""The validity checks of proposed blocks, which the shell performs."""

from __future__ import annotations

from consensus.core.outbox import Outbox
from consensus.events import Check

__all__ = ["ProposalChecks"]


class ProposalChecks:
    """The results of checked blocks, and the blocks whose check is pending."""

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox
        self._is_valid: dict[bytes, bool] = {}
        self._pending: set[bytes] = set()
        self._early: set[bytes] = set()

    def judge(self, block_hash: bytes) -> bool | None:
        """Return whether the block is valid; None while unknown, after requesting the check once."""
        if block_hash not in self._is_valid:
            self._is_valid[block_hash] = False
            self._outbox.emit(Check(block_hash))
            self._pending.add(block_hash)
        if block_hash in self._pending:
            return None
        return self._is_valid[block_hash]

    def accept(self, block_hash: bytes) -> None:
        """Mark a block as valid that this node built."""
        self._is_valid[block_hash] = True

    def mark_early(self, block_hash: bytes) -> bool:
        """Note that this node's clock does not allow the block yet; tell whether the check is still open."""
        if block_hash not in self._pending:
            return False
        self._early.add(block_hash)
        return True

    def is_early(self, block_hash: bytes) -> bool:
        """Tell whether the block has or had to wait for this node's clock."""
        return block_hash in self._early

    def answered(self, block_hash: bytes, *, is_valid: bool | None) -> None:
        """Store the result; None for a block that was dropped meanwhile."""
        self._pending.discard(block_hash)
        if is_valid is not None:
            self._is_valid[block_hash] = is_valid

    def forget(self, block_hash: bytes) -> None:
        """Forget a block that was dropped."""
        self._is_valid.pop(block_hash, None)
        self._pending.discard(block_hash)
        self._early.discard(block_hash)
