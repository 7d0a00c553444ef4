"""Dials peers: the endpoints of an address, back-off, and several paths tried side by side."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

import trio

from p2p.base.endpoint import Endpoint
from p2p.base.limits import NetworkLimits
from p2p.base.randomness import RandomSource
from p2p.base.transport import AvoidingDialer, Dialer, EstimatingDialer
from p2p.path.paths import PathTable, PathTables
from p2p.records.addrbook import AddressBook
from p2p.secure.handshake import Session
from p2p.secure.identity import Purpose
from p2p.session.connection import Connection
from state.primitives.errors import DekubeError

__all__ = ["DialState", "Dialling", "PathMaker"]

EXPECTED_ERRORS: Final = (OSError, ValueError, DekubeError, trio.BrokenResourceError, trio.ClosedResourceError)
"""ValueError: a host name from another node that cannot be encoded."""
_ENDPOINTS_MAX: Final = 8

PathMaker = Callable[[bytes, "tuple[Endpoint, ...]"], Iterable[Endpoint]]
"""Makes additional paths to an address from the known ones, for example through an own relay."""
HandshakeRunner = Callable[[trio.abc.Stream, Purpose, "bytes | None"], Awaitable["Session | None"]]


@dataclass(slots=True)
class DialState:
    """The state of dialling one address, or one endpoint whose address is not known yet."""

    target: bytes | None
    endpoints: tuple[Endpoint, ...] = ()
    """Fixed by configuration; those of the address's record come after them."""
    is_dialling: bool = False
    delay_s: float = 0.0
    next_at: float = 0.0
    found: bytes | None = None
    """The address that answered at an endpoint without a known address."""

    def is_open(self, now: float) -> bool:
        """Whether it may be dialled now."""
        return not self.is_dialling and now >= self.next_at

    def ended(
        self, now: float, *, is_settled: bool, limit_s: float, limits: NetworkLimits, random: RandomSource
    ) -> None:
        """Note the end of an attempt or of its connection; after a short one the next attempt is delayed."""
        self.is_dialling = False
        self.delay_s = 0.0 if is_settled else min(max(2 * self.delay_s, limits.redial_min_s), limit_s)
        self.next_at = now + self.delay_s * random.uniform(0.75, 1.25)


class Dialling:
    """Dials for one node. ``handshake`` completes a handshake on a stream, or returns None."""

    def __init__(
        self,
        *,
        limits: NetworkLimits,
        dialers: Mapping[str, Dialer],
        book: AddressBook,
        counters: Counter[str],
        handshake: HandshakeRunner,
        log: Callable[..., None],
    ) -> None:
        self.states: dict[object, DialState] = {}
        self.paths = PathTables()
        self._limits = limits
        self._dialers = dialers
        self._book = book
        self._counters = counters
        self._handshake = handshake
        self._log = log
        self._makers: list[PathMaker] = []

    def on_paths(self, maker: PathMaker) -> None:
        """Call ``maker`` for additional paths whenever those to an address are looked up."""
        self._makers.append(maker)

    def state_of(self, address: bytes) -> DialState:
        """Return the state of dialling an address, created on first use."""
        return self.states.setdefault(address, DialState(address))

    def add_endpoint(self, address: bytes, endpoint: Endpoint) -> None:
        """Add a caller's endpoint of an address; peer records add more."""
        state = self.state_of(address)
        if endpoint not in state.endpoints:
            state.endpoints = (endpoint, *state.endpoints)[:_ENDPOINTS_MAX]

    def forget(self, count_max: int, now: float) -> None:
        """Drop states that contain only an old back-off, if there are more than ``count_max``."""
        if len(self.states) <= count_max:
            return
        for key, state in list(self.states.items()):
            if not state.endpoints and not state.is_dialling and state.next_at < now:
                del self.states[key]

    def table(self, address: bytes) -> PathTable:
        """Return the currently known paths to an address."""
        table = self.paths.table(address)
        known = self._known(self.states.get(address) or DialState(address))
        # What is avoided is dialled in need, by ``endpoints_of``, and is no choice.
        known = [endpoint for endpoint in known if not self.is_avoided(endpoint)] or known
        table.offer(known)
        for endpoint in known:
            dialer = self._dialers[endpoint.scheme]
            if isinstance(dialer, EstimatingDialer):
                table.guessed_rtt(endpoint, dialer.estimate(endpoint))
        return table

    def endpoints_of(self, state: DialState) -> list[Endpoint]:
        """Return the endpoints to try, best first. Without measurements, direct ones come before relays."""
        if state.target is None:
            return self._known(state)
        ordered = self.table(state.target).order(trio.current_time())
        found = [path for path in ordered if isinstance(path, Endpoint)]
        avoided = [endpoint for endpoint in self._known(state) if self.is_avoided(endpoint)]
        return list(dict.fromkeys(found + avoided))

    def is_avoided(self, endpoint: Endpoint) -> bool:
        """Whether a path should be used only if there is no other."""
        dialer = self._dialers.get(endpoint.scheme)
        return isinstance(dialer, AvoidingDialer) and dialer.is_avoided(endpoint)

    def _known(self, state: DialState) -> list[Endpoint]:
        record = None if state.target is None else self._book.get(state.target)
        known = dict.fromkeys((*state.endpoints, *(() if record is None else record.endpoints)))
        if state.target is not None:
            for maker in self._makers:
                known.update(dict.fromkeys(maker(state.target, tuple(known))))
        return sorted((e for e in known if e.scheme in self._dialers), key=lambda e: len(e.hops))

    async def open(self, target: bytes | None, endpoints: Iterable[Endpoint]) -> Connection | None:
        """Return the first connection that is established; each path gets a head start over the next.

        Only the handshake has run on it. The other attempts are cancelled.
        """
        won: Connection | None = None

        async def attempt(endpoint: Endpoint, failed: trio.Event) -> None:
            nonlocal won
            connection = await self.open_one(target, endpoint)
            if connection is None:
                failed.set()
            elif won is None:
                won = connection
                nursery.cancel_scope.cancel()
            else:
                await connection.aclose()

        async with trio.open_nursery() as nursery:
            for endpoint in endpoints:
                failed = trio.Event()
                nursery.start_soon(attempt, endpoint, failed)
                with trio.move_on_after(self._limits.dial_stagger_s):
                    await failed.wait()
        return won

    async def open_one(self, target: bytes | None, endpoint: Endpoint) -> Connection | None:
        """Return a connection over one path, or None; the path table notes the result."""
        self._counters["dials"] += 1
        stream: trio.abc.Stream | None = None
        session: Session | None = None
        began = 0.0
        with trio.move_on_after(self._limits.dial_timeout_s):
            try:
                stream = await self._dialers[endpoint.scheme].dial(endpoint, target)
            except EXPECTED_ERRORS as error:
                self._log("a dial failed", endpoint=str(endpoint), error=str(error))
        if stream is not None:
            try:
                purpose = Purpose.PEER if endpoint.scheme == "tcp" else Purpose.CIRCUIT
                began = trio.current_time()
                session = await self._handshake(stream, purpose, target)
            finally:
                if session is None:
                    await trio.aclose_forcefully(stream)
        table = None if target is None else self.paths.table(target)
        if session is None or stream is None:
            self._counters["dials_failed"] += 1
            if table is not None:
                table.failed(endpoint, trio.current_time())
            return None
        if table is not None:
            table.worked(endpoint)
            now = trio.current_time()
            table.shook_hands(endpoint, now - began, now)
        return Connection(
            session, stream, remote=str(endpoint), endpoint=endpoint, is_direct=endpoint.scheme == "tcp"
        )
