"""The interface of transports: direct sockets here, circuits through relays in the package ``relay``.

A transport carries bytes only. The peer handshake runs inside it, so both ends are authenticated and nothing
between them can read or change the bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from enum import Enum
from typing import Protocol, runtime_checkable

import trio

from p2p.base.endpoint import Endpoint

__all__ = ["Acceptance", "Acceptor", "AvoidingDialer", "Dialer", "EstimatingDialer", "Fanout", "TransportFault"]


class Dialer(Protocol):
    """Opens byte streams to endpoints of one scheme."""

    async def dial(self, endpoint: Endpoint, target: bytes | None) -> trio.abc.Stream:
        """Return a stream to the node ``target``: an address, or None for any node that answers, if the scheme
        allows that.

        Raises OSError or a DekubeError on failure; the caller sets the time limit.
        """
        ...


class TransportFault(Enum):
    """Faults of a stream that a node found while the peer answered over another path."""

    CHANGED = "changed"
    """The received bytes were not those that the other end sealed."""
    SILENT = "silent"
    """It accepted bytes and delivered none."""
    SLOW = "slow"
    """It took far longer than before, and than another path takes now."""


@runtime_checkable
class AvoidingDialer(Protocol):
    """A dialer that knows of paths that should be avoided."""

    def is_avoided(self, endpoint: Endpoint) -> bool:
        """Whether a path should be used only if there is no other."""
        ...


@runtime_checkable
class EstimatingDialer(Protocol):
    """A dialer that can estimate the round trip of paths that were never tried."""

    def estimate(self, endpoint: Endpoint) -> float | None:
        """Return the round trip in seconds, if known. Others reported it and may have lied."""
        ...


class Acceptance(Protocol):
    """The network's interface for an acceptor."""

    def accept(self, stream: trio.abc.Stream, remote: str) -> None:
        """Take over a stream on which a peer will start a handshake.

        Limits apply to ``remote``, which carried it.
        """
        ...

    def advertise(self, source: str, endpoints: tuple[Endpoint, ...]) -> None:
        """Set the endpoints at which this node is reachable by way of ``source``."""
        ...


class Acceptor(Protocol):
    """A source of inbound streams beside this node's listening socket, for example a reservation at a relay."""

    async def run(self, acceptance: Acceptance) -> None:
        """Accept streams until cancelled."""
        ...


class Fanout(Protocol):
    """Sends one upload to many peers: relays copy it to the members that they know."""

    async def run(self, receive: Callable[[bytes, bytes, bytes], None]) -> None:
        """Serve until cancelled; ``receive(relay address, publisher address, piece)`` is called for others'
        pieces.

        Only the relay names the publisher, so each piece must be verified.
        """
        ...

    def subscribe(self, relays: Collection[Endpoint], publishers: Collection[bytes]) -> None:
        """Set the relays at which to receive pieces, and the publishers to accept."""
        ...

    async def publish(self, relay: Endpoint, members: Collection[bytes], piece: bytes) -> None:
        """Send a relay one piece for those of ``members`` that are subscribed there; return when it has left this
        process.

        Raises a DekubeError or OSError if the relay cannot be reached or refuses. It does not tell whether any
        member received it. The caller sets the time limit.
        """
        ...
