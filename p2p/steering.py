"""Which connections carry a peer: another one for a lost one, a better one, lanes for bulk.

The decisions are those of ``p2p.paths``; here they are carried out. A conversation moves to another connection
without losing or doubling anything (``p2p.mux``), so moving costs a handshake and no more.
"""

from __future__ import annotations

import ipaddress
from collections import Counter
from collections.abc import Callable, Mapping

import trio

from p2p.channel import Hello, Opening
from p2p.dialling import Dialling
from p2p.errors import HandshakeFailed
from p2p.limits import NetworkLimits, RateLimiter
from p2p.link import Link, LinkLost
from p2p.paths import BulkPlanner
from p2p.peer import Peer
from p2p.sockets import is_paced, local_address
from p2p.transport import Endpoint
from state.primitives.errors import ProtocolError

__all__ = ["Steering"]


class Steering:
    """Brings and changes the connections of live peers; ``run`` while the network runs."""

    def __init__(
        self,
        dialling: Dialling,
        peers: Mapping[bytes, Peer],
        *,
        limits: NetworkLimits,
        counters: Counter[str],
        log: Callable[..., None],
        own_hosts: Callable[[], tuple[str, ...]] = local_address,
    ) -> None:
        self._dialling = dialling
        self._peers = peers
        self._limits = limits
        self._counters = counters
        self._log = log
        self._own_hosts = own_hosts
        self._nursery: trio.Nursery | None = None
        self._planners: dict[Peer, BulkPlanner] = {}
        self._answers = RateLimiter(per_s=limits.lane_answers_per_s, burst=2)
        self._opening: Counter[tuple[Peer, Endpoint]] = Counter()

    async def run(self) -> None:
        """Watch peers and our own address until cancelled."""
        try:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                nursery.start_soon(self._roam)
                nursery.start_soon(self._choose)
        finally:
            self._nursery = None

    # -- the control connection ------------------------------------------------------------------------------

    def find_way(self, peer: Peer) -> None:
        """Bring another connection for a peer that has lost its own or hears nothing on it."""
        if self._nursery is not None and not peer.is_finding_way:
            peer.is_finding_way = True
            self._nursery.start_soon(self._seek, peer)

    async def _seek(self, peer: Peer) -> None:
        try:
            present = peer.last.endpoint
            table = self._dialling.table(peer.address)
            if present is not None and not peer.is_attached:
                table.failed(present, trio.current_time())
            # Whatever failed last comes last, and is tried all the same: it may be all there is.
            endpoints = sorted(table.order(trio.current_time()), key=lambda endpoint: endpoint == present)
            if not endpoints:
                return
            link = await self._dialling.open(peer.address, endpoints)
            if link is not None:
                await self._move_to(peer, link)
        finally:
            peer.is_finding_way = False

    def leave(self, relay: Endpoint) -> None:
        """Bring everything that runs through a relay, which is about to end, over other ways."""
        for peer in list(self._peers.values()):
            control = peer.control
            if control is not None and control.endpoint is not None and relay in control.endpoint.hops:
                self._dialling.table(peer.address).failed(control.endpoint, trio.current_time())
                self.find_way(peer)
            for lane in list(peer.lanes):
                if lane.endpoint is not None and relay in lane.endpoint.hops:
                    peer.close_lane(lane)

    async def move(self, peer: Peer, endpoint: Endpoint) -> bool:
        """Let the conversation go on over another path; the present one carries it until the other is there."""
        link = await self._dialling.open_one(peer.address, endpoint)
        return link is not None and await self._move_to(peer, link)

    async def _move_to(self, peer: Peer, link: Link) -> bool:
        is_moved = False
        try:
            hello = peer.resuming()
            with trio.move_on_after(self._limits.handshake_timeout_s):
                await link.say_hello(hello, timeout_s=self._limits.handshake_timeout_s)
                answer = await link.hear_hello()
                if answer.opening is Opening.GONE:
                    if not peer.is_attached:
                        peer.close("connection_lost")
                elif (
                    answer.opening is Opening.RESUME
                    and answer.generation == hello.generation
                    and peer.may_move(answer, link)
                ):
                    peer.attach(link, answer)
                    is_moved = True
        except (LinkLost, trio.TooSlowError, ProtocolError):
            self._counters["handshake_failed"] += 1
        finally:
            if not is_moved:
                await link.aclose()
        if is_moved:
            self._counters["moves"] += 1
            self._log("peer moved", peer=peer.address.hex(), path=str(link.endpoint))
        return is_moved

    async def take_move(self, peer: Peer | None, hello: Hello, link: Link) -> bool:
        """Answer a peer that wants to go on over ``link``; whether it does."""
        if peer is None or peer.conversation != hello.conversation or peer.closed_for is not None:
            await link.say_hello(Hello(Opening.GONE), timeout_s=self._limits.handshake_timeout_s)
            return False
        if not peer.may_move(hello, link):
            return False
        answer = Hello(Opening.RESUME, hello.conversation, hello.generation, peer.mux.received)
        await link.say_hello(answer, timeout_s=self._limits.handshake_timeout_s)
        if not peer.may_move(hello, link):
            return False
        peer.attach(link, hello)
        self._counters["moves"] += 1
        self._log("peer moved", peer=peer.address.hex(), path=link.remote)
        return True

    async def _roam(self) -> None:
        """Notice that this machine's own address has changed, and bring its connections along."""
        known = self._own_hosts()
        while True:
            await trio.sleep(self._limits.roam_check_s)
            hosts = self._own_hosts()
            if hosts == known or not hosts:
                continue
            gone = {ipaddress.ip_address(host) for host in known} - {ipaddress.ip_address(host) for host in hosts}
            known = hosts
            self._counters["roamed"] += 1
            self._log("own address changed", now=", ".join(hosts))
            for peer in list(self._peers.values()):
                for link in [peer.control, *peer.lanes]:
                    host = None if link is None else link.local_host
                    if link is None or host is None or ipaddress.ip_address(host.partition("%")[0]) not in gone:
                        continue
                    if link is peer.control:
                        self.find_way(peer)
                    else:
                        link.retire()

    async def _choose(self) -> None:
        sampled_at = trio.current_time()
        while True:
            await trio.sleep(self._limits.plan_interval_s)
            now = trio.current_time()
            is_sample = now - sampled_at >= self._limits.ping_interval_s
            if is_sample:
                sampled_at = now
            for peer in list(self._peers.values()):
                if is_sample:
                    self._sample(peer, now)
                if peer in self._planners:
                    self._plan(peer, now)
            for peer in [peer for peer in self._planners if peer.closed_for is not None]:
                del self._planners[peer]

    def _sample(self, peer: Peer, now: float) -> None:
        """Note round trips; move control where another path has been better for long enough."""
        control = peer.control
        if control is None or control.endpoint is None:
            return
        table = self._dialling.table(peer.address)
        for link in (control, *peer.lanes):
            if link.endpoint is not None and link.rtt_s is not None:
                table.measured_rtt(link.endpoint, link.rtt_s, now)
        better = table.better_control(control.endpoint, now)
        if better is not None and not peer.is_finding_way and self._nursery is not None:
            self._nursery.start_soon(self.move, peer, better)

    # -- lanes -----------------------------------------------------------------------------------------------

    def open_lanes(self, peer: Peer) -> bool:
        """Bring lanes for bulk that waits; whether that is tried."""
        if self._nursery is None:
            return False
        now = trio.current_time()
        table = self._dialling.table(peer.address)
        planner = self._planners.get(peer)
        if planner is None:
            planner = self._planners[peer] = BulkPlanner(table, is_paced=is_paced())
        planner.start(peer.mux.bulk_out.waiting_bytes, now)
        if not planner.plan:
            del self._planners[peer]
            if not peer.last.is_outbound:
                peer.ask_for_lanes(1)
                return True
            return False
        peer.mux.bulk_out.carried.clear()
        self._plan(peer, now)
        return True

    def answer_lanes(self, peer: Peer, count: int) -> None:
        """Open lanes for a peer that cannot reach us, on the path that its control connection has."""
        if self._nursery is None or len(peer.lanes) + peer.lanes_opening >= count:
            return
        if not self._answers.allows(peer.address, trio.current_time()):
            return
        path = peer.last.endpoint or self._dialling.table(peer.address).best_bulk(trio.current_time())
        if path is not None:
            for _ in range(count - len(peer.lanes) - peer.lanes_opening):
                self._open(peer, path)

    def _plan(self, peer: Peer, now: float) -> None:
        """Bring a peer's lanes closer to what is planned for it."""
        planner = self._planners[peer]
        bulk = peer.mux.bulk_out
        carried: Counter[Endpoint] = Counter()
        for link, lane in peer.lanes.items():
            if link.endpoint is not None:
                carried[link.endpoint] += bulk.carried.pop(lane, 0)
        planner.tick(carried, bulk.waiting_bytes > 0, now)
        own = [link for link, lane in peer.lanes.items() if link.endpoint is not None and not lane.is_draining]
        if not own and not peer.lanes_opening and not bulk.waiting_bytes:
            planner.stop()
            del self._planners[peer]
            return
        if not bulk.waiting_bytes:
            return  # what idles closes by itself
        for path, count in planner.plan.items():
            have = sum(link.endpoint == path for link in own) + self._opening[peer, path]
            for _ in range(min(count, self._limits.lanes_max - len(peer.lanes) - peer.lanes_opening) - have):
                self._open(peer, path)
        for found in {link.endpoint for link in own if link.endpoint is not None}:
            links = [link for link in own if link.endpoint == found]
            for link in links[planner.plan.get(found, 0) :]:
                peer.close_lane(link)

    def _open(self, peer: Peer, path: Endpoint) -> None:
        assert self._nursery is not None
        peer.lanes_opening += 1
        self._opening[peer, path] += 1
        self._nursery.start_soon(self._open_lane, peer, path)

    async def _open_lane(self, peer: Peer, path: Endpoint) -> None:
        link: Link | None = None
        try:
            try:
                link = await self._dialling.open_one(peer.address, path)
                if link is not None:
                    hello = Hello(Opening.LANE, peer.conversation)
                    if not peer.may_add_lane(hello, link):
                        return
                    await link.say_hello(hello, timeout_s=self._limits.handshake_timeout_s)
            finally:
                peer.lanes_opening -= 1
                self._opening[peer, path] -= 1
                if not self._opening[peer, path]:
                    del self._opening[peer, path]
            if link is None:
                self._lane_failed(peer, path)
            elif peer.may_add_lane(hello, link):
                self._counters["lanes_opened"] += 1
                await peer.carry_lane(link)
                if link.is_broken:
                    self._lane_failed(peer, path)
        except (LinkLost, trio.TooSlowError, HandshakeFailed):
            self._lane_failed(peer, path)
        finally:
            if link is not None:
                await link.aclose()

    def _lane_failed(self, peer: Peer, path: Endpoint) -> None:
        planner = self._planners.get(peer)
        if planner is not None:
            planner.lost(path, trio.current_time())
        if not peer.lanes and not peer.lanes_opening and (planner is None or not planner.plan):
            if not peer.last.is_outbound:
                peer.ask_for_lanes(1)  # it reaches us, and we not it
            peer.lanes_failed()
