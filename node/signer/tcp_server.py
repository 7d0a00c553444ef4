"""The signer's TCP listener: accepts the nodes on its list and bounds the cost of all other connections."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable
from random import Random
from typing import Final, NamedTuple

import structlog
import trio

from node.signer.channel import SealedStream, secured
from p2p.base.netgroups import block_of, site_of
from p2p.base.sockets import tune
from p2p.secure.identity import Identity
from state.primitives.errors import DekubeError

__all__ = ["HalfOpenSlots", "SignerTcpServer"]

_log = structlog.get_logger("signer")

HANDSHAKE_S: Final = 5.0
HALF_OPEN_MAX: Final = 256
"""Connections in the middle of a handshake. One more replaces another."""
HALF_OPEN_OF_KNOWN_MAX: Final = HALF_OPEN_MAX // 2
"""Of these, slots for addresses from which a listed node connected before. Others cannot take them."""
KNOWN_MAX: Final = 64
"""Addresses remembered for that."""


class _Place(NamedTuple):
    """A connection that is not authenticated yet."""

    site: str
    block: str
    lose: Callable[[], None]


class HalfOpenSlots:
    """Slots for connections in the middle of a handshake.

    When all are taken, a random connection of the address block with most of them is closed. So a flood mostly
    replaces its own connections, and a node in the same block still gets through sometimes. It never would if the
    oldest were always closed. Slots of addresses from which a listed node connected before are never taken.
    """

    def __init__(self, draw: Random | None = None) -> None:
        self._draw = draw or Random()
        self._places: dict[int, _Place] = {}
        self._known: OrderedDict[str, None] = OrderedDict()
        self._number = 0

    def __len__(self) -> int:
        return len(self._places)

    def prove(self, host: str) -> None:
        """Note that a listed node connected from an address."""
        self._known[site_of(host)] = None
        self._known.move_to_end(site_of(host))
        while len(self._known) > KNOWN_MAX:
            self._known.popitem(last=False)

    def enter(self, host: str, lose: Callable[[], None]) -> int:
        """Return the number of a new connection's slot. ``lose`` is called when it must be closed."""
        while len(self._places) >= HALF_OPEN_MAX:
            self._make_room()
        self._number += 1
        self._places[self._number] = _Place(site_of(host), block_of(host), lose)
        return self._number

    def leave(self, number: int) -> None:
        """Release a slot. A slot that was lost already is ignored."""
        self._places.pop(number, None)

    def _make_room(self) -> None:
        known = [number for number, place in self._places.items() if place.site in self._known]
        if len(known) > HALF_OPEN_OF_KNOWN_MAX:
            candidates = known
        else:
            blocks = Counter(place.block for place in self._places.values() if place.site not in self._known)
            [(largest, _)] = blocks.most_common(1)
            candidates = [
                number
                for number, place in self._places.items()
                if place.block == largest and place.site not in self._known
            ]
        self._places.pop(self._draw.choice(candidates)).lose()


class SignerTcpServer:
    """Accepts the nodes on the list and bounds the cost of all other connections."""

    def __init__(
        self,
        serve: Callable[[SealedStream], Awaitable[None]],
        make_identity: Callable[[], Identity],
        *,
        clients: frozenset[bytes],
        connections_of_one: int,
    ) -> None:
        self._serve = serve
        self._make_identity = make_identity
        self._clients = clients
        self._connections_of_one = connections_of_one
        self._half_open = HalfOpenSlots()
        self._inside: dict[bytes, int] = {}

    async def enter(self, stream: trio.SocketStream) -> None:
        """Serve a connection until it ends, if it comes from a listed node and a slot is free."""
        sealed = await self._shake_hands(stream)
        if sealed is None:
            return
        address = sealed.address
        if self._inside.get(address, 0) >= self._connections_of_one:
            await trio.aclose_forcefully(stream)
            return
        self._inside[address] = self._inside.get(address, 0) + 1
        _log.info("a node is connected", address=address)
        try:
            await self._serve(sealed)
        finally:
            self._inside[address] -= 1
            _log.info("a node disconnected", address=address)

    async def _shake_hands(self, stream: trio.SocketStream) -> SealedStream | None:
        try:
            host = str(stream.socket.getpeername()[0])
        except OSError:  # gone before it came
            await trio.aclose_forcefully(stream)
            return None
        tune(stream.socket)
        scope = trio.CancelScope(deadline=trio.current_time() + HANDSHAKE_S)
        place = self._half_open.enter(host, scope.cancel)
        try:
            with scope:
                sealed = await secured(stream, self._make_identity(), is_initiator=False)
                if sealed.address in self._clients:
                    self._half_open.prove(host)
                    return sealed
                _log.warning("a node that is not in `clients` was refused", address=sealed.address)
                await trio.aclose_forcefully(stream)
        except DekubeError as error:
            _log.debug("a handshake failed; the connection was closed", reason=str(error))
        finally:
            self._half_open.leave(place)
        return None
