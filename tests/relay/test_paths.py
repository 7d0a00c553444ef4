"""Paths of several relays, over real daemons: the ends meet as if there were one relay, or none."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

import pytest
import trio

from p2p.base.endpoint import Endpoint
from relay.protocol.errors import Refusal, RelayRefused
from relay.protocol.route import Route
from relay.protocol.wire import Extend, Offered, Refused
from relay.server.daemon import RelayDaemon, RelayOptions
from tests.relay.daemon_process import DaemonProcess, account_of, identity_of
from tests.relay.nodes import Node, Sealed, run_handshake, wait_until
from tests.relay.test_circuits import QUICK, running
from tests.relay.test_hostile import RawClient

StartRelay = Callable[..., DaemonProcess]


def path(*relays: DaemonProcess) -> Endpoint:
    """Return the path through these relays, the dialler's own first."""
    endpoint = relays[0].endpoint
    for relay in relays[1:]:
        endpoint = replace(relay.endpoint, via=endpoint)
    return endpoint


async def talk(alice: Node, bob: Node, way: Endpoint) -> tuple[Sealed, Sealed]:
    """Dial, shake hands end to end and say something both ways."""
    stream = await alice.client.dial(way, bob.address)
    sides: list[Sealed] = []

    async def answer() -> None:
        sides.append(await run_handshake(bob, await bob.arrived.receive(), None))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(answer)
        out = await run_handshake(alice, stream, bob.address)
    back = sides[0]
    await out.send(b"over the hills")
    assert await back.receive() == b"over the hills"
    await back.send(b"and far away")
    assert await out.receive() == b"and far away"
    return out, back


@pytest.mark.slow
@pytest.mark.parametrize("count", [2, 3])
async def test_a_circuit_passes_several_relays(start_relay: StartRelay, count: int) -> None:
    relays = [start_relay(name=f"relay {n}") for n in range(count)]
    alice, bob = Node("alice", relays[0].endpoint), Node("bob", relays[-1].endpoint)
    async with running(alice, bob):
        await alice.client.wait_reserved()
        await bob.client.wait_reserved()
        out, back = await talk(alice, bob, path(*relays))
        for relay in relays:
            assert relay.metrics()["dekube_relay_circuits"] == 1
        sent = bytes(range(256)) * 20_000

        async def send() -> None:
            for at in range(0, len(sent), 50_000):
                await out.send(sent[at : at + 50_000])

        async with trio.open_nursery() as nursery:
            nursery.start_soon(send)
            received = b""
            while len(received) < len(sent):
                received += await back.receive()
        assert received == sent
        await out.stream.aclose()
        assert await back.receive() == b""
        await back.stream.aclose()
        for relay in relays:
            await wait_until(lambda relay=relay: relay.metrics()["dekube_relay_circuits"] == 0)  # type: ignore[misc]


async def test_connections_that_wait_make_the_next_circuit_nearer(start_relay: StartRelay) -> None:
    first, last = start_relay(name="relay 1"), start_relay(name="relay 2")
    alice, bob = Node("alice", first.endpoint), Node("bob", last.endpoint)
    async with running(alice, bob):
        await alice.client.wait_reserved()
        await bob.client.wait_reserved()
        for _ in range(8):
            out, back = await talk(alice, bob, path(first, last))
            # Two of the first relay and two of the target wait at the last one.
            await wait_until(lambda: last.metrics()["dekube_relay_parked_connections"] == 4)
            await out.stream.aclose()
            await back.stream.aclose()
        assert last.metrics()["dekube_relay_next_hop_links"] == 0
        assert first.metrics()["dekube_relay_next_hop_links"] == 1


async def test_refusals_further_along_reach_the_dialler(start_relay: StartRelay) -> None:
    first, last = start_relay(name="relay 1"), start_relay(name="relay 2")
    alice = Node("alice", first.endpoint)
    async with running(alice):
        with pytest.raises(RelayRefused) as refused:
            await alice.client.dial(path(first, last), account_of("nobody").address)
        assert refused.value.refusal is Refusal.NO_RESERVATION
        last.kill()
        with suppress(RelayRefused):  # the warm link may break only now
            await alice.client.dial(path(first, last), account_of("nobody").address)
        with pytest.raises(RelayRefused) as refused:
            await alice.client.dial(path(first, last), account_of("nobody").address)
        assert refused.value.refusal is Refusal.NEXT_UNREACHABLE


async def test_the_loss_of_a_relay_in_the_middle_ends_the_circuit_at_both_ends(start_relay: StartRelay) -> None:
    first, last = start_relay(name="relay 1"), start_relay(name="relay 2")
    alice, bob = Node("alice", options=QUICK), Node("bob", last.endpoint, options=QUICK)
    async with running(alice, bob):
        await bob.client.wait_reserved()
        out, back = await talk(alice, bob, path(first, last))
        first.kill()
        for side in (out, back):
            with suppress(trio.BrokenResourceError):
                assert await side.receive() == b""
        again = start_relay(name="relay 1", port=first.port)
        await talk(alice, bob, path(again, last))


async def test_a_relay_leads_clients_nowhere_but_into_the_world(start_relay: StartRelay) -> None:
    careful = start_relay(name="relay 1", trusted_networks=[])
    last = start_relay(name="relay 2")
    alice = Node("alice")
    async with running(alice):
        with pytest.raises(RelayRefused) as refused:
            await alice.client.dial(path(careful, last), account_of("bob").address)
        assert refused.value.refusal is Refusal.NEXT_UNREACHABLE


async def ask(client: RawClient, route: bytes) -> Refusal | None:
    """Return why a relay refuses a route; None: it takes it."""
    await client.say(Extend(1, route))
    match await client.hear():
        case Refused(_, refusal, _):
            return refusal
        case Offered():
            return None
        case other:
            raise AssertionError(other)


async def test_a_route_serves_once_and_only_whoever_signed_it(shared_relay: DaemonProcess) -> None:
    with trio.fail_after(120):
        now_ms = time.time_ns() // 1_000_000
        alice, bob = identity_of("alice"), account_of("bob").address
        hops = (shared_relay.endpoint, Endpoint("127.0.0.1", 9, account_of("relay 2").address))
        hers = await RawClient.connect(shared_relay, "alice")
        nonces = (number.to_bytes(16, "big") for number in range(1, 100))
        good = Route.sign(alice, hops, bob, now_ms=now_ms, nonce=next(nonces))
        assert await ask(hers, good.encode()) is None
        assert await ask(hers, good.encode()) is Refusal.BAD_ROUTE, "replayed"
        assert await ask(hers, b"not a route") is Refusal.BAD_ROUTE
        stolen = Route.sign(alice, hops, bob, now_ms=now_ms, nonce=next(nonces)).encode()
        his = await RawClient.connect(shared_relay, "mallory")
        assert await ask(his, stolen) is Refusal.BAD_ROUTE
        for wrong in (
            replace(good, nonce=bytes(16)),
            replace(good, target=account_of("carol").address),
            replace(good, hops=(hops[0], replace(hops[1], port=10))),
            Route.sign(alice, hops[::-1], bob, now_ms=now_ms, nonce=next(nonces)),
            Route.sign(alice, hops, bob, now_ms=now_ms - 3_600_000, nonce=next(nonces)),
            Route.sign(alice, hops, bob, now_ms=now_ms + 3_600_000, nonce=next(nonces)),
            replace(
                Route.sign(identity_of("mallory"), hops, bob, now_ms=now_ms, nonce=next(nonces)),
                certificate=alice.certificate,
            ),
        ):
            assert await ask(hers, wrong.encode()) is Refusal.BAD_ROUTE


async def test_paths_of_two_come_from_own_reservations_and_the_targets_relays(start_relay: StartRelay) -> None:
    first, second = start_relay(name="relay 1"), start_relay(name="relay 2")
    alice = Node("alice", first.endpoint, second.endpoint)
    async with running(alice):
        await alice.client.wait_reserved(2)
        direct = Endpoint("192.0.2.1", 7)
        foreign = Endpoint("192.0.2.2", 7, account_of("relay 3").address)
        assert alice.client.two_relay_paths([direct, first.endpoint, foreign]) == (
            replace(first.endpoint, via=second.endpoint),
            replace(foreign, via=first.endpoint),
            replace(foreign, via=second.endpoint),
        )


async def test_what_relays_say_of_their_links_is_learnt(start_relay: StartRelay) -> None:
    last = start_relay(name="relay 2")
    first = start_relay(name="relay 1", options={"peers": [str(last.endpoint)]})
    way = path(first, last)
    await wait_until(lambda: first.metrics()["dekube_relay_next_hop_links"] == 1)
    alice = Node("alice", first.endpoint)
    async with running(alice):
        await alice.client.wait_reserved()
        await wait_until(lambda: alice.client.estimate(way) is not None)
        estimate = alice.client.estimate(way)
        assert estimate is not None and 0 < estimate < 5
    state = alice.client.link_states.by_relay[first.address]
    assert [address for address, _ in state.links] == [last.address]


def test_strangers_are_connected_to_the_world_and_to_nothing_of_the_relays_own() -> None:
    async def look() -> dict[str, tuple[bool, bool]]:
        daemon = RelayDaemon(RelayOptions(), lambda: identity_of("relay"))
        ips = ("127.0.0.1", "::1", "10.0.0.1", "192.168.1.1", "169.254.169.254", "224.0.0.1", "8.8.8.8")
        return {ip: (daemon.may_reach(ip, is_trusted=False), daemon.may_reach(ip, is_trusted=True)) for ip in ips}

    may = asyncio.run(look())
    assert may.pop("8.8.8.8") == (True, True)
    assert may.pop("127.0.0.1") == may.pop("::1") == (False, True)
    assert set(may.values()) == {(False, False)}
