"""What a stranger may cost a node: its own connection, and not much before that."""

from __future__ import annotations

import time
from pathlib import Path
from random import Random

import pytest
import trio
import trio.testing

from p2p.base.endpoint import Endpoint
from p2p.base.errors import FrameInvalid
from p2p.base.limits import NetworkLimits, ReceiveMemory
from p2p.base.netgroups import site_of
from p2p.base.sockets import TcpDialer
from p2p.gossip.core import PAYLOADS_MAX, Gossip, Send, Verdict
from p2p.records.records import sign_record
from p2p.secure.channel import Channel
from p2p.secure.frame import TrafficClass, frame, header
from p2p.secure.record import seal
from p2p.service import Network, NetworkConfig
from p2p.session.mux import Mux
from p2p.session.peer import KIND_GOSSIP
from state.primitives.codec import Value, encode
from tests.p2p.helpers import NOW_MS, identity, sessions
from tests.p2p.test_service import VOTE, Inbox, Wires, in_memory, running

PUBLISH = 1


@pytest.fixture
def wires() -> Wires:
    return Wires()


@pytest.mark.parametrize("host", ["a..b", "x.-y", "a--b.example", "xn--zz-zz"])
async def test_a_record_with_a_name_that_cannot_be_encoded_does_not_end_the_node(
    wires: Wires, host: str, autojump_clock: object
) -> None:
    """Peer records come from strangers, and are dialled."""
    alice = Network(
        NetworkConfig(limits=NetworkLimits(dial_timeout_s=1)),
        identity(0),
        dialers={"tcp": _NoDns(), "relay": wires},
        now_ms=lambda: NOW_MS,
        random=Random(1),
    )
    stranger = sign_record(identity(7), (Endpoint.parse(f"tcp:{host}:80"),), now_ms=NOW_MS)
    async with running(alice, wires=wires):
        assert await alice.parts.records.validate(bytes(20), stranger.data) is Verdict.ACCEPT
        await trio.sleep(5)
        assert alice.counters["dials_failed"] > 0


class _NoDns(TcpDialer):
    """The real dialer for what fails before a question leaves the machine."""

    async def dial(self, endpoint: Endpoint, target: bytes | None) -> trio.abc.Stream:
        try:
            endpoint.host.encode("idna")
        except UnicodeError:
            return await super().dial(endpoint, target)
        raise OSError("no name service in tests")


def test_a_message_of_a_million_empty_payloads_is_refused_before_it_costs_anything() -> None:
    gossip = Gossip(random=Random(1), now=0.0)
    gossip.subscribe("tx", 1024)
    sender = bytes(20)
    gossip.peer_joined(sender, outbound=False)
    body = encode([PUBLISH, "tx", list[Value]([b""] * 250_000)])
    started = time.thread_time()
    gossip.receive(sender, body, 0.0)
    assert time.thread_time() - started < 0.25  # decoded, not looked at one by one
    assert gossip.score(sender) < 0
    gossip.receive(sender, bytes(1024 * 1024), 0.0)
    assert gossip.score(sender) <= -40


def test_many_tiny_payloads_of_our_own_are_sent_in_messages_that_others_take() -> None:
    one, other = Gossip(random=Random(1), now=0.0), Gossip(random=Random(2), now=0.0)
    names = bytes(20), b"\1" * 20
    for gossip, peer in ((one, names[1]), (other, names[0])):
        gossip.subscribe("tx", 1024)
        gossip.peer_joined(peer, outbound=True)
    one.receive(names[1], encode([0, ["tx"]]), 0.0)
    payloads = [number.to_bytes(4, "big") for number in range(3 * PAYLOADS_MAX + 1)]
    taken = 0
    for effect in one.publish("tx", payloads):
        assert isinstance(effect, Send)
        taken += sum(not isinstance(found, Send) for found in other.receive(names[0], effect.body, 0.0))
    assert taken == len(payloads) and other.score(names[0]) == 0


def test_a_record_ends_at_most_one_key() -> None:
    one, other = sessions()
    receiver = Mux(Channel(other))
    rekey = frame(TrafficClass.CONSENSUS, 0xF3, 0, b"")
    with pytest.raises(FrameInvalid, match="follows REKEY"):
        receiver.receive(seal(one.send, rekey * 7_000))


def test_a_message_in_tiny_fragments_takes_no_more_memory_than_its_bytes() -> None:
    one, other = sessions()
    receiver = Mux(Channel(other))
    size = left = 64 * 1024
    fragments = []
    while left:
        left -= 2
        fragments.append(header(TrafficClass.REQUEST, 1, 1, 6) + left.to_bytes(4, "big") + b"ab")
    messages = []
    for at in range(0, len(fragments), 4_000):
        messages += receiver.receive(seal(one.send, b"".join(fragments[at : at + 4_000])))
        partial = next(iter(receiver._partials.values()), None)
        assert partial is None or isinstance(partial.body, bytearray)
    [message] = messages
    assert message.body == b"ab" * (size // 2)


def test_what_is_never_refused_for_want_of_memory_is_one_message_of_each_peer() -> None:
    """128 messages of consensus, begun and left unfinished, were 32 MiB of each peer, whatever the limits say."""
    memory = ReceiveMemory(1024)  # less than any of it
    near, far = sessions()
    sender, receiver = Channel(near), Mux(Channel(far), account=memory.open(1024, lambda: None))
    size = receiver.limits.classes[TrafficClass.CONSENSUS].message_bytes_max

    def piece(stream: int, at: int, body: bytes) -> bytes:
        left = size - at - len(body)
        return sender.seal(
            header(TrafficClass.CONSENSUS, 1, stream, 4 + len(body)) + left.to_bytes(4, "big") + body
        )

    body = bytes(16 * 1024)
    for at in range(0, size - len(body), len(body)):
        assert receiver.receive(piece(1, at, body)) == []
    assert size - len(body) <= memory.used_bytes <= size
    [message] = receiver.receive(piece(1, size - len(body), body))  # whole, however little memory there is
    assert len(message.body) == size and not memory.used_bytes
    receiver.receive(piece(2, 0, body))
    with pytest.raises(FrameInvalid):
        receiver.receive(piece(3, 0, body))


async def test_a_peer_whose_messages_cost_much_is_read_no_faster_than_its_share(
    wires: Wires, autojump_clock: object
) -> None:
    """Time stands still under this clock but for pauses: what passes is what the peer was made to wait."""
    alice, bob = (
        in_memory(0, wires, bootstrap=(1,)),
        in_memory(1, wires, event_loop_percent_max=1, event_loop_burst_s=0.001),
    )
    inbox = Inbox(bob)
    async with running(alice, bob, wires=wires):
        await alice.wait_peers(1)
        await trio.testing.wait_all_tasks_blocked()
        began = trio.current_time()
        [peer] = alice._peers.values()
        costly = encode([3, [bytes(20)] * 5_000])  # a long IWANT
        for _ in range(20):
            peer.queue(TrafficClass.GOSSIP, KIND_GOSSIP, costly)
        alice.send(bob.identity.address, TrafficClass.GOSSIP, VOTE, b"behind them")
        assert (await inbox.receive.receive())[1] == b"behind them"
        assert trio.current_time() - began > 0.05
        assert bob.is_connected(alice.identity.address)


async def test_a_full_disk_does_not_end_the_network(tmp_path: Path, autojump_clock: object) -> None:
    (tmp_path / "file").write_text("not a folder")
    network = Network(
        NetworkConfig(data_dir=tmp_path / "file" / "peers"), identity(0), now_ms=lambda: NOW_MS, random=Random(1)
    )
    async with running(network):
        await trio.sleep(2_000)


def test_a_site_of_ipv6_counts_as_one_address() -> None:
    assert site_of("2001:db8:1:2:aaaa::1") == site_of("2001:db8:1:2:bbbb::2") != site_of("2001:db8:1:3::1")
    assert site_of("::ffff:192.0.2.1") == site_of("192.0.2.1") == "192.0.2.1"
    assert site_of("fe80::1%eth0") == "fe80::"
    assert site_of("::1") == "::1"
