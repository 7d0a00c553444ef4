"""Opens the connections of peers over the selected paths: replaces a lost one, moves to a better one, adds bulk
connections.

``p2p.path.paths`` and ``p2p.path.bulk_plan`` decide; this module carries it out. A conversation migrates to
another connection without loss or duplication (``p2p.session.mux``), so a migration costs one handshake.
"""

from __future__ import annotations

import ipaddress
from collections import Counter
from collections.abc import Callable, Mapping
from math import inf
from typing import Any, Final

import trio

from p2p.base.endpoint import Endpoint
from p2p.base.errors import HandshakeFailed
from p2p.base.limits import NetworkLimits
from p2p.base.randomness import RandomSource
from p2p.base.sockets import is_paced, local_address
from p2p.base.transport import TransportFault
from p2p.path.bulk_plan import BulkPlanner
from p2p.path.dialling import Dialling
from p2p.path.paths import Path, PathTable, shares_hop
from p2p.secure.channel import Hello, HelloKind
from p2p.session.connection import Connection, ConnectionLost
from p2p.session.path_offers import ANY_PATH, OfferedPath, PathNumbers
from p2p.session.peer import Peer
from p2p.session.stall_detection import is_held_up
from state.primitives.errors import ProtocolError
from state.primitives.token_bucket import RateLimiter

__all__ = ["PathSelection"]

_PROBES_MAX: Final = 4
"""Concurrent handshakes that only measure a round trip."""
_PROBES_PER_S: Final = 1.0
"""For all peers together: paths come from the peers' own records."""


class PathSelection:
    """Opens and migrates the connections of live peers; ``run`` while the network runs."""

    def __init__(
        self,
        dialling: Dialling,
        peers: Mapping[bytes, Peer],
        *,
        limits: NetworkLimits,
        random: RandomSource,
        counters: Counter[str],
        log: Callable[..., None],
        own_hosts: Callable[[], tuple[str, ...]] = local_address,
    ) -> None:
        self._dialling = dialling
        self._peers = peers
        self._limits = limits
        self._random = random
        self._counters = counters
        self._log = log
        self._own_hosts = own_hosts
        self._nursery: trio.Nursery | None = None
        self.roam_watchers: list[Callable[[frozenset[str]], None]] = []
        """Watchers of this machine's lost addresses."""
        self._planners: dict[Peer, BulkPlanner] = {}
        self._opening: Counter[tuple[Peer, Endpoint]] = Counter()
        self._offered: dict[Peer, PathTable] = {}
        """The peers' paths to this node, as they offer them."""
        self._asked: dict[Peer, tuple[dict[int, int], float]] = {}
        """The last request to each peer, and its time."""
        self._numbers: dict[Peer, PathNumbers] = {}
        """The own paths offered to peers on request."""
        self._moved_from: dict[Peer, Connection] = {}
        """The connection that was left for a faster one, until that is measured."""
        self._is_voting = False
        """Whether consensus messages were recently sent to any peer."""
        self._probing = 0
        self._probes = RateLimiter(per_s=_PROBES_PER_S, burst=_PROBES_MAX)
        self._granted: Counter[tuple[Peer, Endpoint]] = Counter()
        """Bulk connections that peers requested, from the dial to their end."""
        self._answers = RateLimiter(per_s=limits.bulk_requests_per_s, burst=4)
        self._new_paths = RateLimiter(per_s=limits.bulk_new_paths_per_s, burst=limits.bulk_new_paths_burst)
        self._new_paths_sum = RateLimiter(per_s=limits.bulk_new_paths_sum_per_s, burst=limits.peers_out_target)

    async def run(self) -> None:
        """Watch peers and the own address until cancelled."""
        try:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                nursery.start_soon(self._roam)
                nursery.start_soon(self._choose)
        finally:
            self._nursery = None

    # -- the control connection ------------------------------------------------------------------------------

    def find_path(self, peer: Peer) -> None:
        """Open another connection for a peer that lost its connection or receives nothing on it."""
        if self._nursery is not None and not peer.is_finding_path:
            peer.is_finding_path = True
            self._nursery.start_soon(self._seek, peer)

    async def _seek(self, peer: Peer) -> None:
        try:
            present = peer.last.endpoint
            table = self._dialling.table(peer.address)
            if present is not None and not peer.is_attached:
                table.failed(present, trio.current_time())
            is_suspected = peer.is_attached and peer.is_suspected
            if is_suspected and present is not None:
                table.suspected(present, trio.current_time())
            # Whatever failed last comes last, and is tried all the same: it may be all there is. Before it comes
            # what shares a relay with it.
            known = self._dialling.endpoints_of(self._dialling.state_of(peer.address))
            endpoints = sorted(known, key=lambda e: (e == present, present is not None and shares_hop(e, present)))
            if peer.is_attached and present is not None and self._dialling.is_avoided(present):
                endpoints = [endpoint for endpoint in endpoints if not self._dialling.is_avoided(endpoint)]
            if not endpoints:
                return
            connection = await self._dialling.open(peer.address, endpoints)
            if connection is not None and is_suspected and peer.is_attached and not peer.is_suspected:
                self._counters["suspicions_refuted"] += 1  # the present one has spoken meanwhile
                await connection.aclose()
            elif connection is not None:
                await self._move_to(peer, connection)
        finally:
            peer.is_finding_path = False

    def left_silent(self, peer: Peer, connection: Connection, is_dead: bool) -> None:
        """Note whether a connection that was left for its silence was dead."""
        self._counters["silent_paths" if is_dead else "false_alarms"] += 1
        if is_dead and connection.endpoint is not None:
            self._dialling.table(peer.address).fell_silent(connection.endpoint, trio.current_time())

    def leave(self, relay: Endpoint) -> None:
        """Move everything that uses a relay that is about to end to other paths."""
        for peer in list(self._peers.values()):
            control = peer.control
            if control is not None and control.endpoint is not None and relay in control.endpoint.hops:
                self._dialling.table(peer.address).failed(control.endpoint, trio.current_time())
                self.find_path(peer)
            for connection in list(peer.bulk_connections):
                if connection.endpoint is not None and relay in connection.endpoint.hops:
                    peer.bulk_connections.close(connection)

    async def move(self, peer: Peer, endpoint: Endpoint) -> bool:
        """Migrate the conversation to another path; the current connection carries it until then."""
        connection = await self._dialling.open_one(peer.address, endpoint)
        return connection is not None and await self._move_to(peer, connection)

    async def _move_to(self, peer: Peer, connection: Connection) -> bool:
        is_moved = False
        try:
            hello = peer.migration.next_hello(peer.mux.received)
            with trio.move_on_after(self._limits.handshake_timeout_s):
                await connection.send_hello(hello, timeout_s=self._limits.handshake_timeout_s)
                answer = await connection.receive_hello()
                if answer.opening is HelloKind.GONE:
                    if not peer.is_attached:
                        peer.close("connection_lost")
                elif (
                    answer.opening is HelloKind.RESUME
                    and answer.generation == hello.generation
                    and peer.may_move(answer, connection)
                ):
                    peer.attach(connection, answer)
                    is_moved = True
        except (ConnectionLost, trio.TooSlowError, ProtocolError):
            self._counters["handshake_failed"] += 1
        finally:
            if not is_moved:
                await connection.aclose()
        if is_moved:
            self._counters["moves"] += 1
            self._log("peer migrated", peer=peer.address.hex(), path=str(connection.endpoint))
        return is_moved

    async def take_move(self, peer: Peer | None, hello: Hello, connection: Connection) -> bool:
        """Answer a peer that wants to migrate to ``connection``; return whether it does."""
        if peer is None or peer.conversation != hello.conversation or peer.closed_for is not None:
            await connection.send_hello(Hello(HelloKind.GONE), timeout_s=self._limits.handshake_timeout_s)
            return False
        if not peer.may_move(hello, connection):
            return False
        answer = Hello(HelloKind.RESUME, hello.conversation, hello.generation, peer.mux.received)
        await connection.send_hello(answer, timeout_s=self._limits.handshake_timeout_s)
        if not peer.may_move(hello, connection):
            return False
        peer.attach(connection, hello)
        self._counters["moves"] += 1
        self._log("peer migrated", peer=peer.address.hex(), path=connection.remote)
        return True

    async def _roam(self) -> None:
        """Notice a change of this machine's own address, and replace connections from the old one."""
        known = self._own_hosts()
        while True:
            await trio.sleep(self._limits.roam_check_s)
            hosts = self._own_hosts()
            if hosts == known or not hosts:
                continue
            gone = {ipaddress.ip_address(host) for host in known} - {ipaddress.ip_address(host) for host in hosts}
            known = hosts
            self._counters["roamed"] += 1
            self._log("this machine's own address changed", now=", ".join(hosts))
            for watcher in self.roam_watchers:
                watcher(frozenset(map(str, gone)))
            for peer in list(self._peers.values()):
                for connection in [peer.control, *peer.bulk_connections]:
                    host = None if connection is None else connection.local_host
                    if (
                        connection is None
                        or host is None
                        or ipaddress.ip_address(host.partition("%")[0]) not in gone
                    ):
                        continue
                    if connection is peer.control:
                        self.find_path(peer)
                    else:
                        connection.retire()

    async def _choose(self) -> None:
        # Not all of a committee that began together: each sample may be followed by handshakes.
        sampled_at = trio.current_time() - self._random.uniform(0, self._limits.ping_interval_s)
        while True:
            await trio.sleep(self._limits.plan_interval_s)
            now = trio.current_time()
            is_sample = now - sampled_at >= self._limits.ping_interval_s
            if is_sample:
                sampled_at = now
            # To whomever they go, votes leave by the same line.
            self._is_voting = bool(self._planners) and any(peer.is_voting(now) for peer in self._peers.values())
            for peer in list(self._peers.values()):
                if is_sample:
                    self._sample(peer, now)
                if peer in self._planners:
                    self._plan(peer, now)
            if is_sample:
                for peer in {peer for peer, _ in self._granted}:
                    if peer.closed_for is None:
                        self._offer_paths(peer)  # one that failed may be tried again
            kept: tuple[dict[Peer, Any], ...] = (
                self._planners,
                self._offered,
                self._asked,
                self._numbers,
                self._moved_from,
            )
            for of_peers in kept:
                for peer in [peer for peer in of_peers if peer.closed_for is not None]:
                    del of_peers[peer]

    def _sample(self, peer: Peer, now: float) -> None:
        """Record round trips; migrate if another path was better in enough samples."""
        offered = self._offered.get(peer)
        for connection in peer.bulk_connections if offered is not None else ():
            if connection.offered_path is not None and connection.rtt_s is not None and offered is not None:
                offered.measured_rtt(connection.offered_path, connection.rtt_s, now)
        control = peer.control
        if control is None or control.endpoint is None:
            return
        table = self._dialling.table(peer.address)
        for connection in (control, *peer.bulk_connections):
            if connection.endpoint is not None and connection.rtt_s is not None:
                table.measured_rtt(connection.endpoint, connection.rtt_s, now)
                connection.least_rtt_s = min(connection.least_rtt_s, connection.rtt_s)
        table.measured_loss(control.endpoint, *control.take_losses(), now)
        self._compare(peer, control)
        if self._leave_avoided(peer, control, table, now):
            return
        better = table.better_control(control.endpoint, now)
        if isinstance(better, Endpoint) and not peer.is_finding_path and self._nursery is not None:
            self._moved_from[peer] = control
            self._nursery.start_soon(self.move, peer, better)
            return
        if self._nursery is not None and self._probing < _PROBES_MAX:
            path = table.to_probe(control.endpoint, now)
            if isinstance(path, Endpoint) and self._probes.allows(None, now):
                self._probing += 1
                self._nursery.start_soon(self._probe, peer.address, path)

    def _compare(self, peer: Peer, control: Connection) -> None:
        """Report the path that was left for a faster one if it alone had become slow."""
        left = self._moved_from.pop(peer, None)
        if left is None or left is control or left.rtt_s is None:
            return
        if control.rtt_s is None:
            self._moved_from[peer] = left  # too new to know
        elif is_held_up(left.rtt_s, least_s=left.least_rtt_s, elsewhere_s=control.rtt_s):
            left.report_fault(TransportFault.SLOW)

    def _leave_avoided(self, peer: Peer, control: Connection, table: PathTable, now: float) -> bool:
        """Move a peer away from avoided paths if there is another one; return whether it is tried."""
        if not any(table.is_ready(path, now) for path in table.paths if not self._is_avoided(path)):
            return False
        for connection in list(peer.bulk_connections):
            if connection.endpoint is not None and self._dialling.is_avoided(connection.endpoint):
                peer.bulk_connections.close(connection)
                self._bulk_failed(peer, connection.endpoint)
        if control.endpoint is None or not self._dialling.is_avoided(control.endpoint):
            return False
        self.find_path(peer)
        return True

    def _is_avoided(self, path: Path) -> bool:
        return isinstance(path, Endpoint) and self._dialling.is_avoided(path)

    async def _probe(self, address: bytes, path: Endpoint) -> None:
        """Measure the round trip of a path by a handshake."""
        try:
            connection = await self._dialling.open_one(address, path)
            if connection is not None:
                await connection.aclose()
        finally:
            self._probing -= 1

    # -- bulk connections
    # -----------------------------------------------------------------------------------------------

    def open_bulk_connections(self, peer: Peer) -> bool:
        """Open connections for waiting bulk; return whether that is tried."""
        if self._nursery is None:
            return False
        now = trio.current_time()
        present = self._planners.pop(peer, None)
        tables = [self._dialling.table(peer.address), *([self._offered[peer]] if peer in self._offered else [])]
        # Our own ways first, unless they are mere words and the peer's lead here.
        tables.sort(key=lambda table: not any(table.has_worked(p) and table.is_ready(p, now) for p in table.paths))
        fresh = [BulkPlanner(table, is_paced=is_paced()) for table in tables]
        for planner in fresh if present is None else [present, *fresh]:
            planner.start(peer.mux.bulk_out.waiting_bytes, now)
            if planner.plan:
                self._planners[peer] = planner
                peer.mux.bulk_out.carried.clear()
                self._plan(peer, now)
                return True
        if peer.last.is_outbound:
            return False
        self._ask(peer, {ANY_PATH: 1}, now)
        return True

    def _plan(self, peer: Peer, now: float) -> None:
        """Open and close bulk connections according to the plan."""
        planner = self._planners[peer]
        bulk = peer.mux.bulk_out
        carried: Counter[Path] = Counter()
        own: list[tuple[Connection, Path]] = []
        for connection, stream in peer.bulk_connections.items():
            path = _path_of(connection)
            if stream.is_ours and path is not None:
                carried[path] += bulk.carried.pop(stream, 0)
                if not stream.is_draining:
                    own.append((connection, path))
        planner.tick(carried, bulk.waiting_bytes, now, grain_bytes=bulk.grain_bytes)
        if not own and not peer.bulk_connections.opening and not bulk.waiting_bytes:
            planner.stop()
            del self._planners[peer]
            return
        counts = Counter(path for _, path in own)
        must_yield = self._is_voting and bulk.waiting_bytes > 0
        for connection, path in own:
            bounds = [connection.pacing_rate(now, is_needed=must_yield)]
            if path in planner.caps:
                bounds.append(int(planner.caps[path] / counts[path]))
            connection.pace(min((bound for bound in bounds if bound is not None), default=None))
        if not bulk.waiting_bytes:
            return  # what idles closes by itself
        room = (
            self._limits.bulk_connections_max
            - peer.bulk_connections.count(is_ours=True)
            - peer.bulk_connections.opening
        )
        wishes: dict[int, int] = {}
        for path, count in planner.plan.items():
            have = sum(found == path for _, found in own)
            match path:
                case Endpoint():
                    missing = min(count - have - self._opening[peer, path], room)
                    for _ in range(missing):
                        self._open(peer, path)
                    room -= max(missing, 0)
                case OfferedPath(number) if have < count:
                    wishes[number] = count
                case _:
                    pass
        if wishes:
            self._ask(peer, wishes, now)
        for path in {path for _, path in own}:
            connections = [connection for connection, found in own if found == path]
            for connection in connections[planner.plan.get(path, 0) :]:
                peer.bulk_connections.close(connection)

    def replace_suspected(self, peer: Peer, connection: Connection) -> None:
        """Open a bulk connection on another path beside a stalled one."""
        now = trio.current_time()
        planner, path = self._planners.get(peer), _path_of(connection)
        if planner is not None and path is not None and planner.suspected(path, now):
            self._counters["bulk_connections_suspected"] += 1
            self._plan(peer, now)

    def _open(self, peer: Peer, path: Endpoint) -> None:
        assert self._nursery is not None
        peer.bulk_connections.opening += 1
        self._opening[peer, path] += 1
        self._nursery.start_soon(self._open_bulk, peer, path)

    async def _open_bulk(self, peer: Peer, path: Endpoint) -> None:
        try:
            connection = await self._dialling.open_one(peer.address, path)
        finally:
            peer.bulk_connections.opening -= 1
            self._count_opening(peer, path, -1)
        if connection is None or await self._carry_bulk(
            peer, connection, Hello(HelloKind.BULK, peer.conversation)
        ):
            self._bulk_failed(peer, path)

    async def _carry_bulk(self, peer: Peer, connection: Connection, hello: Hello) -> bool:
        """Run a dialled bulk connection to its end; return whether it broke."""
        try:
            if not peer.bulk_connections.may_add(hello, connection):
                return False
            await connection.send_hello(hello, timeout_s=self._limits.handshake_timeout_s)
            if not peer.bulk_connections.may_add(hello, connection):
                return False
            self._counters["bulk_connections_opened"] += 1
            await peer.bulk_connections.carry(connection, hello)
            self._counters["bulk_connections_stalled"] += connection.is_stalled
            return connection.is_broken
        except (ConnectionLost, trio.TooSlowError, HandshakeFailed):
            return True
        finally:
            await connection.aclose()

    def _count_opening(self, peer: Peer, path: Endpoint, change: int) -> None:
        self._opening[peer, path] += change
        if not self._opening[peer, path]:
            del self._opening[peer, path]

    def _bulk_failed(self, peer: Peer, path: Path) -> None:
        planner = self._planners.get(peer)
        if planner is not None:
            planner.lost(path, trio.current_time())
        if (
            not peer.bulk_connections
            and not peer.bulk_connections.opening
            and (planner is None or not planner.plan)
        ):
            if not peer.last.is_outbound:
                self._ask(peer, {ANY_PATH: 1}, trio.current_time())  # it reaches us, and we not it
            peer.bulk_connections.failed()

    # -- bulk connections that one end asks of the other
    # ------------------------------------------------------------------

    def _ask(self, peer: Peer, wishes: dict[int, int], now: float) -> None:
        last, asked_at = self._asked.get(peer, ({}, -inf))
        if now - asked_at >= self._limits.bulk_request_interval_s * (4 if wishes == last else 1):
            self._asked[peer] = wishes, now
            peer.request_connections(wishes)

    def take_offered_paths(self, peer: Peer, paths: tuple[OfferedPath, ...]) -> None:
        """Store the paths over which the peer can open bulk connections on request."""
        self._offered.setdefault(peer, PathTable()).offer(paths)
        planner = self._planners.get(peer)
        if (planner is None or not planner.plan) and peer.mux.bulk_out.waiting_bytes:
            self.open_bulk_connections(peer)

    def note_requested(self, peer: Peer, hello: Hello, connection: Connection) -> None:
        """Note over which of its paths the peer opened a requested bulk connection."""
        table = self._offered.get(peer)
        for offered_path in () if table is None or not hello.is_asked else table.paths:
            if isinstance(offered_path, OfferedPath) and offered_path.number == hello.generation:
                connection.offered_path = offered_path
                assert table is not None
                table.worked(offered_path)

    def note_ended(self, peer: Peer, connection: Connection) -> None:
        """Note the end of a bulk connection that the peer opened."""
        self._counters["bulk_connections_stalled"] += connection.is_stalled
        was_idle = trio.current_time() - connection.used_at > self._limits.bulk_idle_s / 2
        if (
            connection.offered_path is not None
            and peer.closed_for is None
            and (connection.is_stalled or (connection.is_broken and not was_idle))
        ):
            self._bulk_failed(peer, connection.offered_path)

    def answer_request(self, peer: Peer, wishes: Mapping[int, int]) -> None:
        """Open bulk connections to a peer that cannot reach this node, over own paths and within the limits."""
        now = trio.current_time()
        if self._nursery is None or not self._answers.allows(peer.address, now):
            return
        self._offer_paths(peer)
        numbers = self._numbers[peer]
        for number, count in wishes.items():
            path = numbers.path(numbers.first if number == ANY_PATH else number)
            if path is None:
                continue
            its = sum(granted for (other, _), granted in self._granted.items() if other is peer)
            left = max(
                self._limits.bulk_connections_requested_max - self._granted.total(), 1 - its
            )  # one each, for any request
            room = min(left, self._limits.bulk_connections_max - its)
            for _ in range(min(count - self._granted[peer, path], room)):
                if not self._dialling.table(peer.address).has_worked(path) and not (
                    self._new_paths.allows(peer.address, now) and self._new_paths_sum.allows(None, now)
                ):
                    break
                self._granted[peer, path] += 1
                self._nursery.start_soon(self._grant, peer, path, numbers.number(path))

    def _offer_paths(self, peer: Peer) -> None:
        """Send a peer the paths to it, if they have changed."""
        now = trio.current_time()
        table = self._dialling.table(peer.address)
        paths = [path for path in table.order(now) if isinstance(path, Endpoint) and table.is_ready(path, now)]
        if peer.last.endpoint is not None and peer.last.endpoint not in table.paths:
            paths.insert(0, peer.last.endpoint)
        elif peer.last.endpoint in paths:  # known to be good, and where it is not the best that will be found
            paths.sort(key=lambda path: path != peer.last.endpoint)
        numbers = self._numbers.setdefault(peer, PathNumbers())
        offered = numbers.offer(paths)
        if offered != numbers.told:
            numbers.told = offered
            peer.offer_paths(offered)

    async def _grant(self, peer: Peer, path: Endpoint, number: int) -> None:
        is_dead = True
        try:
            connection = await self._dialling.open_one(peer.address, path)
            if connection is not None:
                await self._carry_bulk(peer, connection, Hello(HelloKind.BULK, peer.conversation, number))
                is_dead = (
                    connection.is_stalled
                )  # the end that requested it closes it; that is no fault of the path
        finally:
            self._granted[peer, path] -= 1
            if not self._granted[peer, path]:
                del self._granted[peer, path]
        if is_dead and peer.closed_for is None:
            self._dialling.table(peer.address).failed(path, trio.current_time())
            self._offer_paths(peer)


def _path_of(connection: Connection) -> Path | None:
    return connection.endpoint if connection.offered_path is None else connection.offered_path
