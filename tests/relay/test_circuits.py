"""Two nodes that accept no connection talk through a real daemon process."""

from __future__ import annotations

import socket
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
import trio

from p2p.base.endpoint import Endpoint
from p2p.base.errors import WrongPeer
from relay.client.circuit_stream import CircuitStream
from relay.client.options import RelayClientOptions
from relay.protocol.errors import Refusal, RelayRefused, RelayUnreachable
from tests.relay.daemon_process import DaemonProcess, account_of
from tests.relay.nodes import Node, Sealed, run_handshake, wait_until

TIME_LIMIT_S = 120
QUICK = RelayClientOptions(backoff_s_min=0.02, backoff_s_max=0.1, connect_s_max=5, answer_s_max=5)


@asynccontextmanager
async def running(*nodes: Node) -> AsyncIterator[None]:
    with trio.fail_after(TIME_LIMIT_S):
        async with trio.open_nursery() as nursery:
            for node in nodes:
                nursery.start_soon(node.run)
            yield
            nursery.cancel_scope.cancel()


async def connect(alice: Node, bob: Node, endpoint: Endpoint) -> tuple[Sealed, Sealed]:
    sides: list[Sealed] = []

    async def answer() -> None:
        sides.append(await run_handshake(bob, await bob.arrived.receive(), None))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(answer)
        stream = await alice.client.dial(endpoint, bob.address)
        dialler = await run_handshake(alice, stream, bob.address)
    return dialler, sides[0]


async def test_two_nodes_without_listeners_talk_and_the_relay_learns_nothing(
    start_relay: Callable[..., DaemonProcess], tmp_path: Path
) -> None:
    capture = tmp_path / "capture"
    daemon = start_relay(capture=capture)
    alice, bob = Node("alice"), Node("bob", daemon.endpoint)
    secret = b"the plaintext of two nodes that trust no relay"
    async with running(alice, bob):
        await bob.client.wait_reserved()
        assert bob.advertised == {str(daemon.endpoint): (daemon.endpoint,)}
        out, back = await connect(alice, bob, daemon.endpoint)
        assert (out.session.address, back.session.address) == (bob.address, alice.address)
        await out.send(secret)
        assert await back.receive() == secret
        await back.send(secret[::-1])
        assert await out.receive() == secret[::-1]
        # Closing one end ends the other, with nothing lost before the end.
        await out.send(b"last words")
        await out.stream.aclose()
        assert await back.receive() == b"last words"
        assert await back.receive() == b""
        await back.stream.aclose()
    carried = capture.read_bytes()
    assert len(carried) > 3 * len(secret)
    for plain in (secret, secret[::-1], b"last words", bob.identity.certificate.encode(), bob.address):
        assert plain not in carried


async def test_bulk_passes_whole_both_ways_at_once_and_its_bytes_are_counted(
    start_relay: Callable[..., DaemonProcess],
) -> None:
    daemon = start_relay()
    alice, bob = Node("alice"), Node("bob", daemon.endpoint)
    size = 6_000_000
    sums: dict[str, int] = {}

    async def send(stream: trio.abc.Stream, byte: int) -> None:
        block = bytes((byte,)) * 100_000
        for _ in range(size // len(block)):
            await stream.send_all(block)

    async def receive(stream: trio.abc.Stream, name: str) -> None:
        total = 0
        while total < size:
            data = await stream.receive_some()
            assert data and set(data) == {data[0]}
            total += len(data)
        sums[name] = total

    async with running(alice, bob):
        await bob.client.wait_reserved()
        out = await alice.client.dial(daemon.endpoint, bob.address)
        back = await bob.arrived.receive()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(send, out, 1)
            nursery.start_soon(send, back, 2)
            nursery.start_soon(receive, out, "out")
            nursery.start_soon(receive, back, "back")
        metrics = daemon.metrics()
        assert metrics["dekube_relay_bytes_total"] == 2 * size
        assert metrics["dekube_relay_circuits"] == 1
        assert metrics["dekube_relay_reservations"] == 1
    assert sums == {"out": size, "back": size}


async def test_a_reader_that_stands_still_holds_up_its_sender_and_costs_the_relay_little(
    start_relay: Callable[..., DaemonProcess],
) -> None:
    daemon = start_relay(circuit_buffer_bytes_max=65_536)
    alice, bob = Node("alice"), Node("bob", daemon.endpoint)
    sent = 0
    async with running(alice, bob):
        await bob.client.wait_reserved()
        out = await alice.client.dial(daemon.endpoint, bob.address)
        back = await bob.arrived.receive()
        with trio.move_on_after(1):
            while sent < 2**30:
                await out.send_all(bytes(65_536))
                sent += 65_536
        # The rest is in the kernels' buffers; what the relay itself took in and could not pass on is bounded.
        assert sent < 64 * 2**20
        assert daemon.rss_kib() < 200_000
        received = 0
        while received < sent:
            received += len(await back.receive_some())


async def test_a_circuit_is_held_to_its_pace_by_the_kernel(start_relay: Callable[..., DaemonProcess]) -> None:
    daemon = start_relay(circuit_bytes_per_s_max=1_500_000)
    alice, bob = Node("alice"), Node("bob", daemon.endpoint)
    async with running(alice, bob):
        await bob.client.wait_reserved()
        out = await alice.client.dial(daemon.endpoint, bob.address)
        back = await bob.arrived.receive()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(out.send_all, bytes(2_400_000))
            started, received = trio.current_time(), 0
            while received < 2_400_000:
                received += len(await back.receive_some())
        # The kernel lets the first ten segments go unpaced, 650 kB on loopback: the rest takes 1.16 s.
        assert trio.current_time() - started > 0.8


async def test_one_direction_may_end_before_the_other(shared_relay: DaemonProcess) -> None:
    alice, bob = Node("alice"), Node("bob", shared_relay.endpoint)
    async with running(alice, bob):
        await bob.client.wait_reserved()
        out = await alice.client.dial(shared_relay.endpoint, bob.address)
        back = await bob.arrived.receive()
        assert isinstance(out, CircuitStream) and isinstance(back, CircuitStream)
        await out.send_all(b"question")
        await out.send_eof()
        assert await back.receive_some() == b"question"
        assert await back.receive_some() == b""
        await back.send_all(b"answer")
        await back.send_eof()
        assert await out.receive_some() == b"answer"
        assert await out.receive_some() == b""


async def test_who_does_not_read_what_is_left_holds_a_dead_circuit_only_so_long(
    start_relay: Callable[..., DaemonProcess],
) -> None:
    # With so large a buffer the relay goes on reading from the sender, and so hears of its end at once.
    daemon = start_relay(circuit_linger_ms_max=300, circuit_buffer_bytes_max=2**28)
    alice, bob = Node("alice"), Node("bob", daemon.endpoint)
    async with running(alice, bob):
        await bob.client.wait_reserved()
        out = await alice.client.dial(daemon.endpoint, bob.address)
        unread = await bob.arrived.receive()
        await out.send_all(bytes(32 * 2**20))
        assert isinstance(out, CircuitStream)
        out.socket.setsockopt(
            socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
        )  # a reset, as of a dead host
        await out.aclose()
        await wait_until(lambda: daemon.metrics()["dekube_relay_circuits"] == 0)
        assert daemon.metrics()['dekube_relay_drops_total{reason="circuit_lingered"}'] == 1
        await unread.aclose()


async def test_an_address_without_reservation_is_refused(shared_relay: DaemonProcess) -> None:
    alice = Node("alice")
    async with running(alice):
        with pytest.raises(RelayRefused) as refused:
            await alice.client.dial(shared_relay.endpoint, account_of("nobody").address)
        assert refused.value.refusal is Refusal.NO_RESERVATION


async def test_a_relay_that_is_someone_else_gets_no_reservation(shared_relay: DaemonProcess) -> None:
    impostor = Endpoint("127.0.0.1", shared_relay.port, account_of("another relay").address)
    alice = Node("alice")
    async with running(alice):
        with pytest.raises(RelayUnreachable, match="expected 0x"):
            await alice.client.dial(impostor, account_of("bob").address)


async def test_whoever_answers_a_circuit_must_be_the_address_that_was_dialled(
    shared_relay: DaemonProcess,
) -> None:
    alice, bob = Node("alice"), Node("bob", shared_relay.endpoint)
    mallory = Node("mallory")
    async with running(alice, bob):
        await bob.client.wait_reserved()
        stream = await alice.client.dial(shared_relay.endpoint, bob.address)
        stolen = await bob.arrived.receive()  # as if the relay had joined another client to the circuit

        async def answer() -> None:
            with pytest.raises(AssertionError, match="ended during the handshake"):
                await run_handshake(mallory, stolen, None)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(answer)
            with pytest.raises(WrongPeer):
                await run_handshake(alice, stream, bob.address)
            await stream.aclose()


async def test_many_dial_at_once(shared_relay: DaemonProcess) -> None:
    bob = Node("bob", shared_relay.endpoint)
    diallers = [Node(f"dialler {i}") for i in range(12)]
    async with running(bob, *diallers):
        await bob.client.wait_reserved()
        found: set[bytes] = set()

        async def answer() -> None:
            async for stream in bob.arrived:
                found.add((await run_handshake(bob, stream, None)).session.address)
                if len(found) == len(diallers):
                    return

        async def call(node: Node) -> None:
            stream = await node.client.dial(shared_relay.endpoint, bob.address)
            await run_handshake(node, stream, bob.address)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(answer)
            for node in diallers:
                nursery.start_soon(call, node)
        assert found == {node.address for node in diallers}


async def test_the_newest_connection_of_an_address_has_the_reservation(shared_relay: DaemonProcess) -> None:
    alice, old = Node("alice"), Node("bob", shared_relay.endpoint)
    patient = RelayClientOptions(backoff_s_min=5)
    async with running(alice, old):
        await old.client.wait_reserved()
        new = Node("bob", shared_relay.endpoint, options=patient)
        async with running(new):
            await new.client.wait_reserved()
            await alice.client.dial(shared_relay.endpoint, new.address)
            await new.arrived.receive()


async def test_kill_9_and_restart_of_the_relay(start_relay: Callable[..., DaemonProcess]) -> None:
    daemon = start_relay()
    alice, bob = Node("alice", options=QUICK), Node("bob", daemon.endpoint, options=QUICK)
    async with running(alice, bob):
        await bob.client.wait_reserved()
        out, back = await connect(alice, bob, daemon.endpoint)
        daemon.kill()
        for side in (out, back):  # the circuit ends at both nodes, neither hangs
            with suppress(trio.BrokenResourceError):
                assert await side.receive() == b""
        await wait_until(lambda: not bob.advertised[str(daemon.endpoint)])
        with pytest.raises(RelayUnreachable):
            await alice.client.dial(daemon.endpoint, bob.address)
        again = start_relay(port=daemon.port)
        assert again.endpoint == daemon.endpoint
        await bob.client.wait_reserved()
        out, back = await connect(alice, bob, daemon.endpoint)
        await out.send(b"still here")
        assert await back.receive() == b"still here"


async def test_with_two_relays_the_loss_of_one_leaves_the_other(start_relay: Callable[..., DaemonProcess]) -> None:
    first, second = start_relay(name="relay"), start_relay(name="second relay")
    alice = Node("alice", options=QUICK)
    bob = Node("bob", first.endpoint, second.endpoint, options=QUICK)
    async with running(alice, bob):
        await bob.client.wait_reserved(2)
        assert [r.endpoint for r in bob.client.reservations] == [first.endpoint, second.endpoint]
        first.kill()
        out, back = await connect(alice, bob, second.endpoint)
        await out.send(b"by the other")
        assert await back.receive() == b"by the other"


async def test_sigterm_ends_the_daemon_cleanly(start_relay: Callable[..., DaemonProcess]) -> None:
    daemon = start_relay()
    alice, bob = Node("alice", options=QUICK), Node("bob", daemon.endpoint, options=QUICK)
    async with running(alice, bob):
        await bob.client.wait_reserved()
        await connect(alice, bob, daemon.endpoint)
        assert await trio.to_thread.run_sync(daemon.stop) == 0


async def test_a_reservation_is_renewed_before_it_expires(start_relay: Callable[..., DaemonProcess]) -> None:
    daemon = start_relay(reservation_s_max=1)
    alice, bob = Node("alice"), Node("bob", daemon.endpoint)
    async with running(alice, bob):
        await bob.client.wait_reserved()
        first = bob.client.reservations[0].voucher
        await wait_until(lambda: bob.client.reservations[0].voucher != first)
        await trio.sleep(0.7)  # past the first one's end
        await alice.client.dial(daemon.endpoint, bob.address)


async def test_links_to_foreign_relays_are_closed_when_idle_and_ours_are_kept(
    start_relay: Callable[..., DaemonProcess],
) -> None:
    daemon = start_relay()
    brief = RelayClientOptions(ping_s=0.05, link_idle_s=0.1)
    alice, bob = Node("alice", options=brief), Node("bob", daemon.endpoint, options=brief)
    async with running(alice, bob):
        await bob.client.wait_reserved()
        stream = await alice.client.dial(daemon.endpoint, bob.address)
        other = await bob.arrived.receive()
        await trio.sleep(0.5)
        assert alice.client.links == (daemon.endpoint,)  # a circuit runs
        await stream.aclose()
        await wait_until(lambda: not alice.client.links)
        assert bob.client.links == (daemon.endpoint,)
        await other.aclose()
