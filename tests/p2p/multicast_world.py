"""Multicast cores joined by lines with a rate and a delay, in one heap of events: one seed, one course."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from random import Random

from p2p.multicast.core import Multicast
from p2p.multicast.wire import (
    TICK_S,
    Deliver,
    Effect,
    Finished,
    Member,
    MulticastParameters,
    Publish,
    ReportFault,
    SendControl,
    SendPiece,
)

FRAME_BYTES = 60
"""What a control message costs beside its body: header, seal, packet."""


def address(number: int) -> bytes:
    return number.to_bytes(20, "big")


@dataclass
class Relay:
    """A relay and how it behaves."""

    address: bytes
    rate: float
    dies_at: float = float("inf")
    is_silent: bool = False
    censors: frozenset[bytes] = frozenset()
    loses: float = 0.0
    forges: float = 0.0
    waiting: frozenset[bytes] | None = None
    """Who waits there; None: everybody."""
    free_at: float = 0.0
    copies: int = 0


@dataclass
class Node:
    """A node, its line, and what it has been handed."""

    address: bytes
    core: Multicast
    rate: float
    delay_s: float
    is_mute: bool = False
    """Hands nothing on and answers nobody but takes what it gets."""
    is_away: bool = False
    free_at: float = 0.0
    sent_bytes: int = 0
    heard: list[tuple[float, bytes, int, bytes]] = field(default_factory=list)
    blamed: list[bytes] = field(default_factory=list)
    finished: list[Finished] = field(default_factory=list)


class World:
    """Nodes 0 to count-1 and relays from 1000 on."""

    def __init__(
        self,
        count: int,
        *,
        seed: int = 0,
        rate: float = 5e6,
        delay_s: float = 0.02,
        jitter_s: float = 0.0,
        parameters: MulticastParameters | None = None,
    ) -> None:
        self.random = Random(seed)
        self.now = 0.0
        self.jitter_s = jitter_s
        self.busy_until: dict[bytes, float] = {}
        self.nodes: dict[bytes, Node] = {}
        self.relays: dict[bytes, Relay] = {}
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._number = 0
        self._last: dict[tuple[bytes, bytes], float] = {}
        everybody = frozenset(address(number) for number in range(count))
        for one in sorted(everybody):
            core = Multicast(one, random=Random(f"{seed}:{one.hex()}"), parameters=parameters)
            core.trusted = everybody - {one}
            self.nodes[one] = Node(one, core, rate, delay_s)

    def add_relay(self, **options: object) -> Relay:
        relay = Relay(address(1000 + len(self.relays)), rate=50e6)
        for name, value in options.items():
            setattr(relay, name, value)
        self.relays[relay.address] = relay
        return relay

    def at(self, when: float, do: Callable[[], None]) -> None:
        self._number += 1
        heapq.heappush(self._heap, (when, self._number, do))

    def send(self, sender: int, kind: int, body: bytes, *, may_wait: Sequence[int] = ()) -> None:
        node = self.nodes[address(sender)]
        receivers = [a for a in self.nodes if a != node.address]
        members = [
            Member(
                a,
                2 * (node.delay_s + self.nodes[a].delay_s),
                not self.nodes[a].is_away,
                a in map(address, may_wait),
            )
            for a in receivers
        ]
        everybody = frozenset(self.nodes)
        routes = {a: everybody if relay.waiting is None else relay.waiting for a, relay in self.relays.items()}
        key = self.random.randbytes(32)
        self._do(node, node.core.send(kind, body, members, routes, key=key, now=self.now))

    def run(self, until_s: float) -> None:
        for step in range(int(self.now / TICK_S) + 1, int(until_s / TICK_S) + 1):
            for node in self.nodes.values():
                self.at(step * TICK_S, partial(self._tick, node))
        while self._heap and self._heap[0][0] <= until_s:
            self.now, _, do = heapq.heappop(self._heap)
            do()
        self.now = until_s

    def stand_still(self, number: int, until_s: float) -> None:
        """Let a node take and do nothing; what comes meanwhile waits in its sockets."""
        self.busy_until[address(number)] = until_s

    def _is_busy(self, node: Node, later: Callable[[], None]) -> bool:
        until_s = self.busy_until.get(node.address, 0.0)
        if until_s > self.now:
            self.at(until_s, later)
            return True
        return False

    def _tick(self, node: Node) -> None:
        if self.busy_until.get(node.address, 0.0) > self.now:
            return
        self._do(node, node.core.tick(self.now))

    def join(self, number: int) -> None:
        """Bring a node back: everybody is connected to it again."""
        newcomer = self.nodes[address(number)]
        newcomer.is_away = False
        for node in self.nodes.values():
            if node is not newcomer:
                self._do(node, node.core.peer_joined(newcomer.address, self.now))

    def leave(self, number: int) -> None:
        self.nodes[address(number)].is_away = True
        for node in self.nodes.values():
            node.core.peer_left(address(number))

    # What the shells do.

    def _do(self, node: Node, effects: Sequence[Effect]) -> None:
        for effect in effects:
            match effect:
                case SendControl(to, data):
                    if not node.is_mute:
                        self._carry(node, to, data, is_piece=False)
                case SendPiece(to, frame):
                    if not node.is_mute:
                        self._carry(node, to, frame, is_piece=True)
                case Publish():
                    self._publish(node, effect, 0)
                case Deliver(sender, kind, body):
                    node.heard.append((self.now, sender, kind, body))
                case ReportFault(blamed):
                    node.blamed.append(blamed)
                case Finished():
                    node.finished.append(effect)

    def _carry(self, node: Node, to: bytes, data: bytes, *, is_piece: bool) -> None:
        target = self.nodes.get(to)
        if target is None or target.is_away or node.is_away:
            return
        size = len(data) + FRAME_BYTES
        node.sent_bytes += size
        node.free_at = max(node.free_at, self.now) + size / node.rate
        left = node.free_at if is_piece else self.now  # control overtakes
        arrival = left + node.delay_s + target.delay_s + self.random.uniform(0, self.jitter_s)
        if not is_piece:  # one connection keeps the order of what it carries
            arrival = self._last[node.address, to] = max(arrival, self._last.get((node.address, to), 0.0))
        self.at(arrival, partial(self._arrive, target, node.address, data, is_piece))

    def _arrive(self, target: Node, sender: bytes, data: bytes, is_piece: bool) -> None:
        if target.is_away or self._is_busy(target, partial(self._arrive, target, sender, data, is_piece)):
            return
        take = target.core.peer_piece if is_piece else target.core.control
        self._do(target, take(sender, data, self.now))

    def _publish(self, node: Node, publish: Publish, at: int) -> None:
        relay = self.relays[publish.relay]
        while at < len(publish.parts) and not node.core.is_wanted(
            publish.root, relay.address, publish.parts[at][0]
        ):
            at += 1
        if at == len(publish.parts):
            return
        members, frame = publish.parts[at]
        node.sent_bytes += len(frame)
        node.free_at = max(node.free_at, self.now) + len(frame) / node.rate

        def left() -> None:
            if self.now >= relay.dies_at:
                self._do(node, node.core.publish_failed(publish.root, relay.address, self.now))
                return
            node.core.published(publish.root, relay.address, members, self.now)
            self.at(self.now + node.delay_s, lambda: self._copy(relay, node.address, members, frame))
            self._publish(node, publish, at + 1)

        self.at(node.free_at, left)

    def _copy(self, relay: Relay, publisher: bytes, members: frozenset[bytes], frame: bytes) -> None:
        for member in sorted(members):
            target = self.nodes[member]
            if target.is_away or relay.is_silent or self.now >= relay.dies_at or member in relay.censors:
                continue
            if self.random.random() < relay.loses:
                continue
            data = frame
            if self.random.random() < relay.forges:
                data = frame[:-1] + bytes((frame[-1] ^ 1,))
            relay.copies += 1
            relay.free_at = max(relay.free_at, self.now) + len(frame) / relay.rate
            arrival = relay.free_at + target.delay_s + self.random.uniform(0, self.jitter_s)
            self.at(arrival, partial(self._arrive_by, relay, target, publisher, data))

    def _arrive_by(self, relay: Relay, target: Node, publisher: bytes, data: bytes) -> None:
        if target.is_away or self._is_busy(target, partial(self._arrive_by, relay, target, publisher, data)):
            return
        self._do(target, target.core.relay_piece(relay.address, publisher, data, self.now))
