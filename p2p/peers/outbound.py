"""Chooses which peers to dial: persistent peers, bootstrap peers, and peers of the address book up to the target.

``p2p.path.dialling`` dials and keeps the back-off, ``p2p.peers.lifecycle`` runs the peer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Collection
from typing import Final

import trio

from p2p.base.endpoint import Endpoint
from p2p.base.errors import PeerUnreachable
from p2p.base.limits import NetworkLimits
from p2p.base.randomness import RandomSource
from p2p.path.dialling import Dialling, DialState
from p2p.peers.roster import Roster
from p2p.records.addrbook import ANCHORS_MAX, AddressBook
from p2p.session.connection import Connection
from p2p.session.peer import Peer

__all__ = ["OutboundPeers", "PersistentPeerDraw"]

_LOOK_INTERVAL_S: Final = 0.25


class PersistentPeerDraw:
    """Draws which persistent peer to dial when a few are enough: one at a time, with back-off; without I/O."""

    def __init__(self, *, limits: NetworkLimits, random: RandomSource) -> None:
        self._limits = limits
        self._random = random
        self._next_at = 0.0
        self._delay_s = 0.0

    def next(self, wanted: Collection[bytes], *, connected: int, enough: int, now: float) -> bytes | None:
        """Return which of the ``wanted`` to dial now, if fewer than ``enough`` are ``connected``."""
        if connected >= enough:
            self._delay_s = 0.0
            return None
        if not wanted or now < self._next_at:
            return None
        limits = self._limits
        limit_s = limits.redial_max_s if connected else limits.redial_persistent_max_s
        self._delay_s = min(max(2 * self._delay_s, limits.redial_min_s), limit_s)
        self._next_at = now + self._delay_s * self._random.uniform(0.75, 1.25)
        return self._random.choice(sorted(wanted))


class OutboundPeers:
    """Dials peers. ``live`` runs a connection to its end and returns whether its peer was admitted."""

    def __init__(
        self,
        roster: Roster,
        dialling: Dialling,
        book: AddressBook,
        *,
        live: Callable[[Connection], Awaitable[bool]],
        limits: NetworkLimits,
        random: RandomSource,
        counters: Counter[str],
    ) -> None:
        self._roster = roster
        self._dialling = dialling
        self._book = book
        self._live = live
        self._limits = limits
        self._random = random
        self._counters = counters
        self._draw = PersistentPeerDraw(limits=limits, random=random)
        self._dialling_now = 0
        self._something = trio.Event()
        self._nursery: trio.Nursery | None = None

    def start(self, nursery: trio.Nursery) -> None:
        """Dial from now on, beginning with the anchors of the last run."""
        self._nursery = nursery
        for anchor in self._book.anchors:
            self.reach(anchor)
        nursery.start_soon(self._keep_peers)

    def stop(self) -> None:
        """Stop dialling."""
        self._nursery = None

    def wake(self) -> None:
        """Check at once whether to dial a peer."""
        self._something.set()

    def on_peer(self, _address: bytes, is_there: bool) -> None:
        """Note that a peer connected or left."""
        self.wake()
        if is_there:
            self._choose_anchors()

    def reach(self, address: bytes) -> None:
        """Dial an address now unless its back-off forbids it."""
        self._dial(self._dialling.state_of(address))

    def retry_until_connected(self, address: bytes) -> None:
        """Dial an address now, regardless of its back-off."""
        state = self._dialling.state_of(address)
        state.next_at = 0.0
        if address not in self._roster.peers and address not in self._roster.bans:
            self._dial(state)

    async def connected(self, address: bytes) -> Peer:
        """Return the peer of an address once it is connected. Raises PeerUnreachable if it cannot be."""
        roster = self._roster
        while True:
            peer = roster.peers.get(address)
            if peer is not None and peer.closed_for is None:
                return peer
            if roster.is_own_or_banned(address):
                what = "banned" if address in roster.bans else "this node"
                raise PeerUnreachable(f"0x{address.hex()} is {what}")
            self.reach(address)
            with trio.move_on_after(_LOOK_INTERVAL_S):
                await roster.changed.wait()

    # -- one address ---------------------------------------------------------------------------------------------

    def _dial(self, state: DialState) -> None:
        if (
            self._nursery is None
            or not state.is_open(trio.current_time())
            or self._dialling_now >= self._dials_max(state)
            or not (endpoints := self._dialling.endpoints_of(state))
        ):
            return
        state.is_dialling = True
        self._dialling_now += 1
        self._nursery.start_soon(self._dial_and_live, state, endpoints)

    def _dials_max(self, state: DialState) -> int:
        """Return the dial limit: dials of unknown peers leave some slots to those that this node needs."""
        is_needed = bool(state.endpoints) or self._roster.is_needed(state.target)
        return self._limits.dials_max - (0 if is_needed else self._limits.dials_reserved)

    async def _dial_and_live(self, state: DialState, endpoints: list[Endpoint]) -> None:
        connection = None
        is_settled = False
        try:
            try:
                connection = await self._dialling.open(state.target, endpoints)
            finally:
                self._dialling_now -= 1
            if connection is not None:
                state.found = connection.session.address
                self._book.succeeded(connection.session.address, connection.endpoint)
                began = trio.current_time()
                if await self._live(connection):
                    is_settled = trio.current_time() - began >= self._limits.settled_s
            elif state.target is not None and self._roster.peers and state.target not in self._roster.persistent:
                self._book.failed(state.target)  # alone, the fault is more likely on our side
        finally:
            state.ended(
                trio.current_time(),
                is_settled=is_settled,
                limit_s=self._redial_max_s(state, is_there=connection is not None),
                limits=self._limits,
                random=self._random,
            )
            if connection is not None:
                await connection.aclose()

    def _redial_max_s(self, state: DialState, *, is_there: bool) -> float:
        """Return the longest back-off of an address."""
        if self._roster.is_needed(state.target):
            return self._limits.redial_persistent_max_s
        if is_there and not state.endpoints:
            return self._limits.redial_refused_max_s  # it has no place for us
        return self._limits.redial_max_s

    # -- all of them -----------------------------------------------------------------------------------------

    async def _keep_peers(self) -> None:
        """Dial persistent peers, bootstrap peers, and others up to the target."""
        felt_at = trio.current_time()
        while True:
            self._something = trio.Event()
            now = trio.current_time()
            self._dialling.forget(2 * self._limits.bans_max, now)
            for address in self._wanted(now):
                self.reach(address)
            outgoing = sum(peer.is_outbound for peer in self._roster.peers.values())
            lacking = self._limits.peers_out_target - outgoing
            if lacking > 0:
                # Without any peer the bootstrap list is the way back in; with some, it fills up what is lacking.
                for state in self._named():
                    self._dial(state)
                others = self._book.candidates(self._random, exclude=self._roster.not_to_dial())
                for address in others[:lacking]:
                    self.reach(address)
            elif now - felt_at >= self._limits.feeler_interval_s:
                felt_at = now
                self._feel()
            with trio.move_on_after(_LOOK_INTERVAL_S):
                await self._something.wait()
            await trio.lowlevel.checkpoint()

    def _wanted(self, now: float) -> list[bytes]:
        """Return which persistent peers to dial."""
        roster = self._roster
        lacking = [a for a in roster.persistent if a not in roster.peers and a not in roster.bans]
        if roster.kept is None:
            return lacking
        connected = sum(address in roster.peers for address in roster.persistent)
        drawn = self._draw.next(lacking, connected=connected, enough=roster.kept, now=now)
        return [] if drawn is None else [drawn]

    def _named(self) -> list[DialState]:
        """Return the dial states with configured endpoints whose peers are not connected."""
        shut = self._roster.not_to_dial()
        return [
            state
            for state in self._dialling.states.values()
            if state.endpoints and ((known := state.target or state.found) is None or known not in shut)
        ]

    def _choose_anchors(self) -> None:
        """Store the outbound peers with the oldest connections as anchors."""
        peers = self._roster.peers.values()
        settled = [peer for peer in peers if peer.is_outbound and peer.address in self._book]
        settled.sort(key=lambda peer: peer.since)
        self._book.set_anchors(peer.address for peer in settled[:ANCHORS_MAX])

    def _feel(self) -> None:
        """Start a feeler: dial an untried address, so that the book keeps many tried ones."""
        address = self._book.untried(self._random, exclude=self._roster.not_to_dial())
        if address is not None and self._nursery is not None:
            self._counters["feelers"] += 1
            self._nursery.start_soon(self._feel_for, address)

    async def _feel_for(self, address: bytes) -> None:
        endpoints = self._dialling.endpoints_of(self._dialling.state_of(address))
        connection = await self._dialling.open(address, endpoints)
        if connection is None:
            self._book.failed(address)
        else:
            self._book.succeeded(address, connection.endpoint)
            await connection.aclose()
