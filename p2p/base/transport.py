"""The seam for ways to reach a peer: direct sockets here, circuits through relays in the package ``relay``.

A way carries bytes only. Whatever it is, the peer handshake runs inside, so its two ends are authenticated and
nothing between them can read or change what passes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final, Protocol, runtime_checkable

import trio

from state.primitives.errors import DecodeError

__all__ = [
    "ENDPOINT_CHARACTERS_MAX", "Acceptance", "Acceptor", "Dialer", "Doubt", "Endpoint", "Estimator", "Fanout",
    "Wary",
]  # fmt: skip

ENDPOINT_CHARACTERS_MAX: Final = 128
_TEXT: Final = re.compile(
    r"(?:tcp|relay:(?P<relay>[0-9a-f]{40})):"
    r"(?P<host>[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?|\[(?=[0-9a-f.]*:)[0-9a-f:.]{2,45}\])"
    r":(?P<port>[1-9][0-9]{0,4})"
)


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where a node can be reached: ``tcp:host:port``, or ``relay:<relay address, hex>:host:port``.

    With ``relay`` set, host and port are the relay's; IPv6 hosts stand in brackets in text only. ``via`` is
    another relay's endpoint, through which that relay is reached: a path of two, or of three where ``via`` has one
    of its own. Such a path is made by its dialler and stands in no record, so no text means it.
    """

    host: str
    port: int
    relay: bytes | None = None
    via: Endpoint | None = None
    is_punched: bool = False
    """A direct connection that both ends agree on (``p2p.path.hole_punch``); host and port then mean nothing."""

    @property
    def scheme(self) -> str:
        """The key of the dialer that serves this endpoint: ``tcp``, ``relay`` or ``punch``."""
        if self.is_punched:
            return "punch"
        return "tcp" if self.relay is None else "relay"

    @classmethod
    def parse(cls, text: str) -> Endpoint:
        """Return the endpoint of its one spelling. Raises DecodeError."""
        found = _TEXT.fullmatch(text) if len(text) <= ENDPOINT_CHARACTERS_MAX else None
        if found is None or int(found["port"]) > 65535:
            raise DecodeError("not an endpoint: tcp:host:port or relay:<address>:host:port expected")
        relay = None if found["relay"] is None else bytes.fromhex(found["relay"])
        return cls(found["host"].strip("[]"), int(found["port"]), relay)

    @classmethod
    def named(cls, text: str) -> Endpoint:
        """Return the endpoint that a person named, who may leave ``tcp:`` out. Raises DecodeError."""
        return cls.parse(text if text.startswith(("tcp:", "relay:")) else f"tcp:{text}")

    def __str__(self) -> str:
        if self.is_punched:
            return "punch"
        host = f"[{self.host}]" if ":" in self.host else self.host
        way = "tcp" if self.relay is None else f"relay:{self.relay.hex()}"
        text = f"{way}:{host}:{self.port}"
        return text if self.via is None else f"{text} via {self.via}"

    @property
    def hops(self) -> tuple[Endpoint, ...]:
        """The relays of the path, the dialler's own first; none for a direct endpoint."""
        if self.relay is None:
            return ()
        last = replace(self, via=None)
        return (last,) if self.via is None else (*self.via.hops, last)


class Dialer(Protocol):
    """A way out: opens byte streams to endpoints of one scheme."""

    async def dial(self, endpoint: Endpoint, target: bytes | None) -> trio.abc.Stream:
        """Return a stream to the node ``target`` (an address; None: whoever answers, where the scheme allows).

        Raises OSError or a DekubeError when there is none; the caller sets the time limit.
        """
        ...


class Doubt(Enum):
    """What a node has found about how a stream was carried, with the other end alive by another way."""

    CHANGED = "changed"
    """What came was not what the other end has sealed."""
    SILENT = "silent"
    """It took what was sent and brought nothing."""
    SLOW = "slow"
    """It took far longer than it once did, and than another way takes now."""


@runtime_checkable
class Wary(Protocol):
    """A dialer that holds things against ways."""

    def is_avoided(self, endpoint: Endpoint) -> bool:
        """Tell whether a way is not to be taken while there is another."""
        ...


@runtime_checkable
class Estimator(Protocol):
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
