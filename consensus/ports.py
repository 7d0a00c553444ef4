"""Interfaces that consensus needs from the node: the chain, the network, and a listener for verified votes."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from consensus.events import Epoch
from consensus.votes import Certificate
from state.primitives.blocks import Block
from state.primitives.votes import Candidate, Vote

__all__ = ["BuildRequest", "ChainPort", "Listener", "NetworkPort"]


class BuildRequest(NamedTuple):
    """What a leader's block must contain beside its transactions.

    ``time_ms`` is its earliest time. ``voters_bitmap`` names the seats whose FINALIZE for the parent's parent was
    seen; empty if they are too few.
    """

    parent_hash: bytes
    epoch: int
    view: int
    seat: int
    time_ms: int
    voters_bitmap: bytes
    committee_hash: bytes
    vrf_proof: bytes


class ChainPort(Protocol):
    """The chain, as consensus needs it. Long work belongs in worker threads; one call of a kind runs at a time."""

    async def build(self, request: BuildRequest) -> Block | None:
        """Return a block on an executed parent, or None when none can be built."""
        ...

    async def check(self, block: Block) -> None:
        """Check a block on an executed parent without executing it. Raises InvalidBlock."""
        ...

    async def execute(self, block_hash: bytes, block: Block) -> tuple[bytes, bytes]:
        """Execute a block on an executed parent; return the roots of state and receipts after it."""
        ...

    async def commit(self, block_hash: bytes, certificate: bytes, views: tuple[Certificate, ...]) -> None:
        """Make an executed block and its executed ancestors final and durable.

        ``views`` are certificates of the views up to it, NULLIFY of skipped ones and NOTARIZE of others. They are
        kept for the evidence age.
        """
        ...

    async def drop(self, block_hashes: tuple[bytes, ...]) -> None:
        """Drop blocks that can no longer become final."""
        ...

    async def block(self, block_hash: bytes) -> bytes | None:
        """Return a final block by its hash."""
        ...

    async def blocks(self, from_height: int, count_max: int) -> list[tuple[bytes, bytes, bytes | None]]:
        """Return final blocks of consecutive heights: hash, bytes, and the certificate stored with each.

        A window is proven by a certificate inside it, so a chain that serves blocks keeps their certificates.
        """
        ...

    def oldest_height(self) -> int:
        """Return the lowest height from which on all final blocks are kept."""
        ...

    async def epoch(self, number: int) -> Epoch:
        """Return an epoch with a known committee: the next one, once the last block of this one is committed.

        Raises a DekubeError if this node cannot follow there; its code becomes the reason of the halt.
        """
        ...

    def time_ahead_ms_max(self) -> int:
        """Return how far the time of a block may be ahead of this node's clock (``chain.time_ahead_ms_max``)."""
        ...

    def time_ms(self, block_hash: bytes) -> int:
        """Return the time of an executed block or the tip; 0 if unknown."""
        ...


class NetworkPort(Protocol):
    """The peers. Neither call waits for delivery; a message that cannot be sent is lost."""

    async def send(self, address: bytes, data: bytes, is_bulk: bool) -> None:
        """Send to one address."""
        ...

    async def broadcast(self, data: bytes, is_bulk: bool) -> None:
        """Send to every other seat, and to the nodes that follow."""
        ...

    def blame(self, address: bytes, reason: str) -> None:
        """Report that an address sent data that only a faulty node sends."""
        ...

    def ban(self, address: bytes, reason: str) -> None:
        """Report that an address answered a request for blocks with false ones."""
        ...


class Listener(Protocol):
    """Receives verified messages, to forward them. Called inside a step: it only records them."""

    def entered(self, epoch: Epoch, view: int) -> None:
        """Note the current epoch and view."""
        ...

    def heard(self, vote: Vote, sender: bytes) -> None:
        """Note a verified vote of this epoch and the peer that sent it."""
        ...

    def certified(self, certificate: Certificate) -> None:
        """Note a verified certificate."""
        ...

    def proposed(self, candidate: Candidate, data: bytes) -> None:
        """Note a verified proposal, and the message that contained it."""
        ...
