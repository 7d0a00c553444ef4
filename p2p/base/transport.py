"""The seam for ways to reach a peer: direct sockets here, circuits through relays in the package ``relay``.

A way carries bytes only. Whatever it is, the peer handshake runs inside, so its two ends are authenticated and
nothing between them can read or change what passes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from enum import Enum
from typing import Protocol, runtime_checkable

import trio

from p2p.base.endpoint import Endpoint

__all__ = ["Acceptance", "Acceptor", "AvoidingDialer", "Dialer", "EstimatingDialer", "Fanout", "TransportFault"]


class Dialer(Protocol):
    """A way out: opens byte streams to endpoints of one scheme."""

    async def dial(self, endpoint: Endpoint, target: bytes | None) -> trio.abc.Stream:
        """Return a stream to the node ``target`` (an address; None: whoever answers, where the scheme allows).

        Raises OSError or a DekubeError when there is none; the caller sets the time limit.
        """
        ...


class TransportFault(Enum):
    """What a node has found about how a stream was carried, with the other end alive by another path."""

    CHANGED = "changed"
    """What came was not what the other end has sealed."""
    SILENT = "silent"
    """It took what was sent and brought nothing."""
    SLOW = "slow"
    """It took far longer than it once did, and than another path takes now."""


@runtime_checkable
class AvoidingDialer(Protocol):
    """A dialer that holds things against ways."""

    def is_avoided(self, endpoint: Endpoint) -> bool:
        """Tell whether a way is not to be taken while there is another."""
        ...


@runtime_checkable
class EstimatingDialer(Protocol):
    """A dialer that has heard something of ways which were never tried."""

    def estimate(self, endpoint: Endpoint) -> float | None:
        """Return the round trip in seconds, as far as it is known; others may have said so, and may have lied."""
        ...


class Acceptance(Protocol):
    """What the network gives an acceptor."""

    def accept(self, stream: trio.abc.Stream, remote: str) -> None:
        """Take over a stream on which a peer will shake hands; ``remote`` is who brought it, for limits."""
        ...

    def advertise(self, source: str, endpoints: tuple[Endpoint, ...]) -> None:
        """Say where this node can be reached by way of ``source``, replacing what that source said before."""
        ...


class Acceptor(Protocol):
    """A way in other than this node's own listening socket, for example a reservation at a relay."""

    async def run(self, acceptance: Acceptance) -> None:
        """Bring streams until cancelled."""
        ...


class Fanout(Protocol):
    """One upload, many copies: relays hand on to whom they know what they are given once."""

    async def run(self, receive: Callable[[bytes, bytes, bytes], None]) -> None:
        """Serve until cancelled; ``receive(relay address, publisher address, piece)`` for what others published.

        The publisher is the relay's word, so a piece has to prove itself.
        """
        ...

    def subscribe(self, relays: Collection[Endpoint], publishers: Collection[bytes]) -> None:
        """Say where to wait for pieces, and from whom they are taken; replaces what was said before."""
        ...

    async def publish(self, relay: Endpoint, members: Collection[bytes], piece: bytes) -> None:
        """Give a relay one piece for those of ``members`` that wait there; returns when it has left this process.

        Raises a DekubeError or OSError when the relay cannot be reached or does not take it; the caller sets the
        time limit. Whether anybody got it, it does not tell.
        """
        ...
