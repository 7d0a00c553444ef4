"""Bulk between two peers over several ways in virtual time: the real queue, windows and planner, modelled flows.

They begin slowly, share lines, fill a socket's buffer, pause and stumble as those of a kernel do.
"""

from __future__ import annotations

import heapq
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from math import inf
from random import Random
from typing import Final

from p2p.base.endpoint import Endpoint
from p2p.base.limits import ReceiveMemory
from p2p.path.bulk_plan import BulkPlanner
from p2p.path.paths import Path, PathTable
from p2p.secure.frame import frames
from p2p.session.bulk_streams import BulkIn, BulkOut, WindowLimits

MBIT: Final = 125_000
MIB: Final = 1024 * 1024
STEP_S: Final = 0.01
TICK_S: Final = 0.25
SAMPLE_S: Final = 5.0
BUFFER_BYTES: Final = 640 * 1024
"""What a socket and the writer before it take beyond what is in flight."""
MESSAGE_BYTES: Final = 64 * 1024
FIRST_FLIGHT_BYTES: Final = 14_600
PROBE_EVERY_S, PROBE_S = 10.0, 0.2
"""A paced flow falls nearly silent for a moment to see the empty line's round trip."""


@dataclass(frozen=True)
class Road:
    """A way as the flows on it find it."""

    segments: tuple[str, ...]
    rtt_s: float
    flow: float = 1e12
    """Bytes a second that one flow on it reaches at most."""
    opens_s: float = 0.0
    """Beyond three round trips, how long a bulk connection takes to open."""


@dataclass(eq=False)
class _Flow:
    road: Road
    path: Path
    opened_at: float
    rate: float = 0.0
    queue: deque[tuple[int, bytes]] = field(default_factory=deque)
    unsent: int = 0
    is_draining: bool = False
    has_filled: bool = False
    """Whether it has ever met the bound of its way."""
    budget: float = 0.0
    luck: float = 1.0
    probes_at: float = 0.0


class BulkWorld:
    """One sender with more to send than it can, one receiver that is done with what comes at once."""

    def __init__(
        self,
        segments: Mapping[str, float],
        roads: Mapping[Endpoint, Road],
        *,
        seed: int = 0,
        noise: float = 0.1,
        control_rtt_s: float = 0.16,
        is_paced: bool = True,
    ) -> None:
        self.random = Random(seed)
        self.segments, self.roads, self.noise = dict(segments), dict(roads), noise
        self.control_rtt_s = control_rtt_s
        self.table = PathTable()
        self.table.offer(roads)
        self.planner = BulkPlanner(self.table, is_paced=is_paced)
        self.out = BulkOut(
            queue_bytes_max=16 * MIB, message_bytes_max=MIB, window_bytes=WindowLimits().first_bytes
        )
        account = ReceiveMemory(1024 * MIB).open(64 * MIB, lambda: None)
        self.into = BulkIn(account, message_bytes_max=MIB, limits=WindowLimits())
        self.now = 0.0
        self.flows: list[_Flow] = []
        self.arrived: Counter[int] = Counter()
        """Bytes by whole second."""
        self.plans: list[tuple[float, dict[Path, int]]] = []
        self._body = bytes(MESSAGE_BYTES)
        self._events: list[tuple[float, int, tuple[object, ...]]] = []
        self._order = count()

    def rate(self, since: int, until: int) -> float:
        """Return the mean rate over whole seconds."""
        return sum(self.arrived[second] for second in range(since, until)) / (until - since)

    def run(self, until: float, *, waits: bool = True) -> None:
        """Let time pass under backlog."""
        ticked_at, sampled_at = self.now, self.now
        while self.now < until:
            self.now += STEP_S
            while waits and self.out.queue(1, self._body):
                pass
            while self._events and self._events[0][0] <= self.now:
                self._happen(heapq.heappop(self._events)[2])
            self._flow()
            if self.now - sampled_at >= SAMPLE_S:
                sampled_at = self.now
                for flow in self.flows:
                    if flow.opened_at <= self.now:
                        self.table.measured_rtt(flow.path, self._rtt_s(flow), self.now)
            if self.now - ticked_at >= TICK_S:
                ticked_at = self.now
                self._tick()

    def _at(self, when: float, *what: object) -> None:
        heapq.heappush(self._events, (when, next(self._order), what))

    def _rtt_s(self, flow: _Flow) -> float:
        """As a bulk connection measures it: behind what waits in its socket."""
        return flow.road.rtt_s + flow.unsent / max(flow.rate, 1_000.0)

    def _tick(self) -> None:
        carried: Counter[Path] = Counter()
        for flow in self.flows:
            if flow.opened_at <= self.now:
                carried[flow.path] += self.out.carried.pop(flow, 0)
        before = dict(self.planner.plan)
        self.planner.tick(carried, self.out.waiting_bytes, self.now, grain_bytes=self.out.grain_bytes)
        if before != self.planner.plan:
            self.plans.append((self.now, dict(self.planner.plan)))
        for path, wanted in self.planner.plan.items():
            have = [flow for flow in self.flows if flow.path == path and not flow.is_draining]
            assert isinstance(path, Endpoint)
            road = self.roads[path]
            for _ in range(wanted - len(have)):
                opens_s = 3 * road.rtt_s + road.opens_s * self.random.uniform(0.5, 1.5)
                self.flows.append(_Flow(road, path, self.now + opens_s, FIRST_FLIGHT_BYTES / road.rtt_s))
                self.flows[-1].probes_at = self.now + PROBE_EVERY_S * self.random.uniform(0.5, 1.0)
            for flow in have[wanted:]:
                flow.is_draining = True
        for flow in self.flows:
            if flow.path not in self.planner.plan:
                flow.is_draining = True
        for flow in [flow for flow in self.flows if flow.is_draining and not flow.queue]:
            if not self.out.has_under_way(flow):
                self.flows.remove(flow)
        self._share()

    def _share(self) -> None:
        self.out.stream_count = sum(not flow.is_draining and flow.opened_at <= self.now for flow in self.flows)

    def _flow(self) -> None:
        """Move the bytes of one step."""
        moving = []
        self._share()
        for flow in self.flows:
            if flow.opened_at > self.now:
                continue
            parts: list[bytes | memoryview] = []
            while flow.unsent < BUFFER_BYTES and (
                taken := self.out.take(flow, parts, 65_000, may_begin=not flow.is_draining)
            ):
                data = b"".join(parts)
                parts = []
                flow.queue.append((taken, data))
                flow.unsent += taken
            if flow.unsent:
                moving.append(flow)
        streams = Counter(flow.path for flow in moving if not flow.is_draining)
        held = {
            id(flow): self.planner.caps[flow.path] / streams[flow.path]
            for flow in moving
            if not flow.is_draining and flow.path in self.planner.caps
        }
        wanted = {
            id(flow): min(min(flow.rate, flow.road.flow) * flow.luck, held.get(id(flow), inf)) for flow in moving
        }
        given = self._fair(moving, wanted)
        for flow in moving:
            if self.random.random() < STEP_S / 0.1:
                flow.luck = 1 - self.random.random() * 2 * self.noise
            rate = given[id(flow)]
            if id(flow) in held and rate >= 0.9 * held[id(flow)]:
                flow.rate = min(flow.rate, held[id(flow)])  # it sees no more of the line than its sender lets it
            elif rate >= 0.9 * wanted[id(flow)]:
                # Each round trip twofold while nothing has held it yet; later by a quarter in eight, as it probes.
                growth = 1.25 ** (1 / 8) if flow.has_filled else 2
                flow.rate = min(flow.rate * growth ** (STEP_S / flow.road.rtt_s), flow.road.flow, 1e10)
            else:
                flow.has_filled = True
                flow.rate = max(1.25 * rate, FIRST_FLIGHT_BYTES / flow.road.rtt_s)
            if self.now > flow.probes_at:
                rate *= 0.1
                if self.now > flow.probes_at + PROBE_S:
                    flow.probes_at += PROBE_EVERY_S
            flow.budget = min(flow.budget + rate * STEP_S, flow.unsent)
            while flow.queue and flow.budget >= flow.queue[0][0]:
                size, data = flow.queue.popleft()
                flow.budget -= size
                flow.unsent -= size
                self._at(self.now + flow.road.rtt_s / 2, "arrives", flow, data)

    def _fair(self, flows: Sequence[_Flow], wanted: Mapping[int, float]) -> dict[int, float]:
        """All rates rise together; each stops where it has what it wants or a line is full."""
        given = {id(flow): 0.0 for flow in flows}
        left = dict(self.segments)
        alive = list(flows)
        while alive:
            users = Counter(segment for flow in alive for segment in flow.road.segments)
            step = min(
                min(wanted[id(flow)] - given[id(flow)] for flow in alive),
                min((left[segment] / users[segment] for segment in users), default=1e12),
            )
            for flow in alive:
                given[id(flow)] += step
                for segment in flow.road.segments:
                    left[segment] -= step
            full = {segment for segment in users if left[segment] <= 1.0}
            alive = [
                flow for flow in alive
                if wanted[id(flow)] - given[id(flow)] > 1.0 and full.isdisjoint(flow.road.segments)
            ]  # fmt: skip
        return given

    def _happen(self, what: tuple[object, ...]) -> None:
        match what:
            case "arrives", _Flow() as flow, bytes(data):
                for _cls, kind, number, body in frames(memoryview(data)):
                    message = self.into.take(flow, kind, number, body)
                    if message is not None:
                        self.arrived[int(self.now)] += len(message.body)
                        slowest_s = max(
                            (self._rtt_s(f) for f in self.flows if f.opened_at <= self.now), default=0.0
                        )
                        self.into.release(number, self.now, max(slowest_s, self.control_rtt_s))
                while self.into.wants_to_tell:
                    self._at(self.now + self.control_rtt_s / 2, "done", tuple(self.into.take_done()))
                if self.into.wants_grant:
                    self.into.wants_grant = False
                    self._at(self.now + self.control_rtt_s / 2, "grant", self.into.granted_bytes)
            case "done", tuple(numbers):
                self.out.done(numbers)
            case "grant", int(window):
                self.out.grant(window)
            case _:
                raise AssertionError(what)
