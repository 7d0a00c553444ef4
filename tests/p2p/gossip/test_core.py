from __future__ import annotations

from collections import deque
from collections.abc import Callable
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from p2p.gossip.core import (
    Deliver,
    Disconnect,
    Effect,
    Gossip,
    GossipParameters,
    Send,
    Verdict,
    Withdraw,
    message_id,
)
from state.primitives.codec import Value, encode

TOPIC = "tx"
PUBLISH, IHAVE, IWANT, GRAFT, PRUNE = 1, 2, 3, 4, 5


class Net:
    """Gossip cores joined by queues: no loop, no clock but this one, one seed."""

    def __init__(self, size: int, connections: list[tuple[int, int]], seed: int = 1) -> None:
        self.random = Random(seed)
        self.now = 1000.0
        self.nodes = [Gossip(random=Random(seed + n), now=self.now) for n in range(size)]
        self.names = [bytes([n]) * 20 for n in range(size)]
        self.queue: deque[tuple[int, int, bytes]] = deque()
        self.delivered: list[list[bytes]] = [[] for _ in range(size)]
        self.gone: list[tuple[int, bytes, bool]] = []
        self.sent = 0
        self.judge: Callable[[int, Deliver], Verdict] = lambda _node, _item: Verdict.ACCEPT
        self.lose: Callable[[int, int, bytes], bool] = lambda _a, _b, _body: False
        for node in self.nodes:
            node.subscribe(TOPIC, 100_000)
        for one, other in connections:
            self.apply(one, self.nodes[one].peer_joined(self.names[other], outbound=True))
            self.apply(other, self.nodes[other].peer_joined(self.names[one], outbound=False))
        self.settle()

    def apply(self, node: int, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Send(peer, body):
                    self.queue.append((node, peer[0], body))
                case Deliver():
                    verdict = self.judge(node, effect)
                    if verdict is Verdict.ACCEPT:
                        self.delivered[node].append(effect.payload)
                    self.apply(node, self.nodes[node].verdict([(effect.message_id, verdict)]))
                case Withdraw():
                    raise AssertionError("what is judged at once never has to give way")
                case Disconnect(peer, ban):
                    self.gone.append((node, peer, ban))

    def settle(self) -> None:
        while self.queue:
            sender, receiver, body = self.queue.popleft()
            self.sent += 1
            if not self.lose(sender, receiver, body):
                self.apply(receiver, self.nodes[receiver].receive(self.names[sender], body, self.now))

    def beat(self, times: int = 1) -> None:
        for _ in range(times):
            self.now += 0.7
            for number, node in enumerate(self.nodes):
                self.apply(number, node.heartbeat(self.now))
            self.settle()

    def publish(self, node: int, *payloads: bytes) -> None:
        self.apply(node, self.nodes[node].publish(TOPIC, payloads))
        self.settle()


def complete(size: int) -> list[tuple[int, int]]:
    return [(one, other) for one in range(size) for other in range(one)]


def test_ten_nodes_hear_every_message_once_and_meshes_keep_their_bounds() -> None:
    net = Net(10, complete(10))
    net.beat(5)
    for number in range(20):
        net.publish(number % 10, b"payload %d" % number)
    for node in range(10):
        own = {b"payload %d" % number for number in range(20) if number % 10 == node}
        assert len(net.delivered[node]) == len(set(net.delivered[node]))
        assert set(net.delivered[node]) | own == {b"payload %d" % number for number in range(20)}
        assert 4 <= len(net.nodes[node].mesh(TOPIC)) <= 10
    assert net.gone == []


def test_the_same_seed_gives_the_same_run() -> None:
    def run() -> tuple[list[list[bytes]], int]:
        net = Net(10, complete(10), seed=7)
        net.beat(3)
        net.publish(0, b"a", b"b")
        net.beat(3)
        return net.delivered, net.sent

    assert run() == run()


@settings(max_examples=8, deadline=None)
@given(st.integers(0, 2**32))
def test_what_the_mesh_loses_comes_by_announcement(seed: int) -> None:
    random = Random(seed)
    net = Net(16, complete(16), seed=seed)
    net.beat(3)
    # Every whole message is lost for a while on most links; announcements and answers then repair it.
    net.lose = lambda _a, _b, body: body[1] == PUBLISH and random.random() < 0.8
    net.publish(0, *(b"%d" % n for n in range(10)))
    net.lose = lambda _a, _b, _body: False
    net.beat(6)
    assert [len(delivered) for delivered in net.delivered[1:]] == [10] * 15


def test_nothing_is_forwarded_before_or_without_acceptance() -> None:
    net = Net(3, [(0, 1), (1, 2)])
    net.judge = lambda node, item: Verdict.IGNORE if node == 1 else Verdict.ACCEPT
    net.publish(0, b"payload")
    net.beat(4)
    assert net.delivered == [[], [], []]
    assert net.nodes[1].score(net.names[0]) >= 0


def test_what_was_not_looked_at_may_come_again_by_another() -> None:
    """An ignored one is known for a minute or two; one for which there was no room is not."""
    gossip = Gossip(random=Random(1), now=0.0)
    gossip.subscribe(TOPIC, 1000)
    one, other = b"1" * 20, b"2" * 20
    for peer in (one, other):
        gossip.peer_joined(peer, outbound=False)

    def come(peer: bytes, payload: bytes) -> bool:
        effects = gossip.receive(peer, encode([PUBLISH, TOPIC, [payload]]), 0.0)
        return any(isinstance(effect, Deliver) for effect in effects)

    for payload, verdict in ((b"ignored", Verdict.IGNORE), (b"later", Verdict.LATER)):
        assert come(one, payload)
        assert gossip.verdict([(message_id(TOPIC, payload), verdict)]) == []
        assert come(other, payload) == (verdict is Verdict.LATER)
    assert gossip.score(one) == gossip.score(other) == 0


def test_rejected_payloads_cost_until_the_sender_is_banned() -> None:
    net = Net(2, [(0, 1)])
    net.judge = lambda _node, _item: Verdict.REJECT
    for number in range(12):
        net.publish(0, b"bad %d" % number)
    assert net.nodes[1].score(net.names[0]) <= -100
    assert [ban for node, _, ban in net.gone if node == 1][-1] is True
    assert any(not ban for _, _, ban in net.gone)  # dropped before it was banned


def test_a_bad_score_outlives_the_connection_and_fades() -> None:
    net = Net(2, [(0, 1)])
    bad, node = net.names[0], net.nodes[1]
    node.penalise(bad, 40)
    node.peer_left(bad)
    node.peer_joined(bad, outbound=False)
    assert node.score(bad) == -40
    node.heartbeat(net.now + 1)
    before = node.score(bad)
    node.heartbeat(net.now + 1 + 600)
    assert abs(node.score(bad) - before / 2) < 0.01
    assert node.receive(bad, encode([IHAVE, TOPIC, [bytes(20)]]), net.now) == []  # below 0: no lazy gossip


def test_promises_that_are_not_kept_cost_points() -> None:
    net = Net(2, [(0, 1)])
    node, liar = net.nodes[1], net.names[0]
    (asked,) = node.receive(liar, encode([IHAVE, TOPIC, [b"i" * 20]]), net.now)
    assert asked == Send(liar, encode([IWANT, [b"i" * 20]]))
    node.heartbeat(net.now + 10)
    assert -1.5 < node.score(liar) < 0


def test_one_id_is_answered_three_times_at_most() -> None:
    net = Net(2, [(0, 1)])
    node, greedy = net.nodes[1], net.names[0]
    node.publish(TOPIC, [b"payload"])
    want = encode([IWANT, [message_id(TOPIC, b"payload")]])
    assert [len(node.receive(greedy, want, net.now)) for _ in range(5)] == [1, 1, 1, 0, 0]


def test_large_messages_are_not_sent_to_who_has_them() -> None:
    node = Gossip(random=Random(1), now=0.0)
    node.subscribe(TOPIC, 100_000)
    names = [bytes([n]) * 20 for n in range(4)]
    for name in names:
        node.peer_joined(name, outbound=True)
        node.receive(name, encode([0, [TOPIC]]), 1.0)
    assert node.mesh(TOPIC) == set(names)
    large = bytes(50_000)
    identifier = message_id(TOPIC, large)
    said = encode([6, [identifier]])
    # While it is being validated the mesh hears that we have it; two peers say the same.
    effects = node.receive(names[0], encode([PUBLISH, TOPIC, [large]]), 1.0)
    assert effects == [Deliver(TOPIC, names[0], identifier, large)] + [
        Send(name, said) for name in node.mesh(TOPIC) if name != names[0]
    ]
    node.receive(names[1], said, 1.0)
    node.receive(names[2], encode([PUBLISH, TOPIC, [large]]), 1.0)
    forwarded = node.verdict([(identifier, Verdict.ACCEPT)])
    assert forwarded == [Send(names[3], encode([PUBLISH, TOPIC, [large]]))]


def test_an_overfull_mesh_is_refused_and_cut() -> None:
    parameters = GossipParameters()
    node = Gossip(random=Random(1), now=0.0)
    node.subscribe(TOPIC, 1000)
    names = [n.to_bytes(20, "big") for n in range(40)]
    for name in names:
        node.peer_joined(name, outbound=False)
        node.receive(name, encode([GRAFT, TOPIC]), 1.0)
        assert len(node.mesh(TOPIC)) <= parameters.mesh_max
    pruned = node.receive(names[-1], encode([GRAFT, TOPIC]), 1.0)
    assert pruned == [Send(names[-1], encode([PRUNE, TOPIC, 60]))]
    for name in sorted(node.mesh(TOPIC)):
        node.peer_left(name)
    assert node.mesh(TOPIC) == frozenset()


def test_memory_is_bounded_under_a_flood() -> None:
    parameters = GossipParameters(
        seen_ids_max=100, cache_bytes_max=10_000, pending_bytes_max=5_000, pending_of_peer_max=20
    )
    node = Gossip(random=Random(1), now=0.0, parameters=parameters)
    node.subscribe(TOPIC, 1000)
    node.peer_joined(b"p" * 20, outbound=False)
    delivered = []
    for number in range(1000):
        body = encode([PUBLISH, TOPIC, [number.to_bytes(4, "big") * 25]])
        delivered += node.receive(b"p" * 20, body, 1.0)
    assert len(delivered) == 20  # the rest was not even remembered: it may come again
    for number in range(1000):
        node.publish(TOPIC, [number.to_bytes(4, "big") * 25])
    assert len(node._seen) + len(node._seen_before) <= 200
    assert node._cache_bytes <= 10_000 and sum(len(p) for _, p in node._cache.values()) == node._cache_bytes


def test_who_sends_little_finds_room_in_what_others_have_filled() -> None:
    """Also what is filled by who leaves and comes back; what gives way is no longer known, and may come again."""
    node = Gossip(random=Random(1), now=0.0, parameters=GossipParameters(pending_bytes_max=5_000))
    node.subscribe(TOPIC, 1000)
    hog, other = b"g" * 20, b"o" * 20
    for number in range(30):
        node.peer_joined(hog, outbound=False)
        node.receive(hog, encode([PUBLISH, TOPIC, [number.to_bytes(4, "big") * 125]]), 1.0)
        node.peer_left(hog)
    node.peer_joined(other, outbound=False)
    new = b"new" * 100
    last = message_id(TOPIC, (9).to_bytes(4, "big") * 125)
    assert node.receive(other, encode([PUBLISH, TOPIC, [new]]), 1.0) == [
        Withdraw(TOPIC, last), Deliver(TOPIC, other, message_id(TOPIC, new), new),
    ]  # fmt: skip
    assert node.verdict([(last, Verdict.REJECT)]) == []  # was being judged already
    [again] = node.receive(other, encode([PUBLISH, TOPIC, [(9).to_bytes(4, "big") * 25]]), 1.0)
    assert isinstance(again, Deliver)


TEMPLATES: list[Value] = [
    [0, [TOPIC]],
    [1, TOPIC, [b"x"]],
    [2, TOPIC, [b"i" * 20]],
    [3, [b"i" * 20]],
    [4, TOPIC],
    [5, TOPIC, 9],
    [6, [b"i" * 20]],
]


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_no_bytes_of_a_peer_raise_and_garbage_costs_points(data: st.DataObject) -> None:
    node = Gossip(random=Random(1), now=0.0)
    node.subscribe(TOPIC, 1000)
    peer = b"p" * 20
    node.peer_joined(peer, outbound=False)
    template = data.draw(st.sampled_from(TEMPLATES))
    body = bytearray(encode(template))
    for _ in range(data.draw(st.integers(0, 4))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    for effect in node.receive(peer, bytes(body), 1.0):
        if isinstance(effect, Deliver):
            node.verdict([(effect.message_id, Verdict.ACCEPT)])
    node.receive(peer, data.draw(st.binary(max_size=60)), 1.0)
    node.heartbeat(2.0)
    assert node.score(peer) <= 1


def test_garbage_costs_points() -> None:
    node = Gossip(random=Random(1), now=0.0)
    node.peer_joined(b"p" * 20, outbound=False)
    assert node.receive(b"p" * 20, b"\xff", 1.0) == [] and node.score(b"p" * 20) == -20
    assert node.receive(b"p" * 20, encode([99, "of a later version"]), 1.0) == []
    assert node.score(b"p" * 20) == -20
    assert node.receive(b"stranger", b"\xff", 1.0) == []


def test_a_crowd_from_one_network_is_worth_less_and_only_while_it_is_one() -> None:
    gossip = Gossip(random=Random(1), now=0.0)
    gossip.subscribe("tx", 1024)
    netgroup = [bytes([n]) * 20 for n in range(1, 9)]
    alone = b"a" * 20
    for peer in netgroup:
        gossip.peer_joined(peer, outbound=False, network="198.51.100.0/24")
    gossip.peer_joined(alone, outbound=False, network="203.0.113.0/24")
    assert gossip.score(alone) == 0 > gossip.score(netgroup[0])
    for peer in (*netgroup, alone):
        gossip.receive(peer, encode([0, ["tx"]]), 0.0)
    assert gossip.mesh("tx") == {alone}
    for peer in netgroup[3:]:
        gossip.peer_left(peer)
    assert gossip.score(netgroup[0]) == 0
    gossip.heartbeat(1.0)
    assert gossip.mesh("tx") == {alone, *netgroup[:3]}


def test_more_than_may_wait_costs_a_point_for_each_heartbeat() -> None:
    parameters = GossipParameters(pending_of_peer_max=2)
    gossip = Gossip(random=Random(1), now=0.0, parameters=parameters)
    gossip.subscribe("tx", 1024)
    peer = b"p" * 20
    gossip.peer_joined(peer, outbound=False)
    for beat in range(1, 4):
        for number in range(10):
            gossip.receive(peer, encode([1, "tx", [b"%d %d" % (beat, number)]]), beat - 0.5)
        gossip.heartbeat(float(beat))
        assert gossip.score(peer) == pytest.approx(-beat, abs=0.05)
