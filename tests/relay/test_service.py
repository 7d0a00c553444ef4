"""What a relay does for and with its clients beside circuits: accounts, draining, pacing, the choice of relays."""

from __future__ import annotations

import signal
import socket
import struct
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest
import trio

from relay.client.circuit_stream import CircuitStream
from relay.client.options import RelayClientOptions
from relay.client.reputation import Fault
from relay.payment.receipts import ReceiptStore
from relay.protocol.errors import Refusal, RelayRefused, RelayUnreachable
from relay.protocol.limits import RelayLimits, pacing_rates
from relay.protocol.wire import Connect, Refused, Reserve, Terms
from tests.relay.daemon_process import DaemonProcess, account_of
from tests.relay.nodes import Node, wait_until
from tests.relay.test_circuits import QUICK, running
from tests.relay.test_hostile import RawClient
from tests.relay.test_paths import path, talk

StartRelay = Callable[..., DaemonProcess]
MIB = 2**20
PRICED = {"price_per_gib": 10**16, "free_bytes": MIB, "unpaid_bytes_max": 8 * MIB}


async def pour(out: trio.abc.Stream, back: trio.abc.Stream, size: int) -> None:
    async def send() -> None:
        for _ in range(size // MIB):
            await out.send_all(bytes(MIB))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(send)
        left = size
        while left:
            data = await back.receive_some()
            assert data, f"ended with {left} bytes to come"
            left -= len(data)


def is_even(relay: DaemonProcess) -> bool:
    metrics = relay.metrics()
    return metrics["dekube_relay_receipts_total"] > 0 and metrics["dekube_relay_unpaid_bytes"] < MIB


async def test_bulk_through_two_relays_is_paid_to_both(start_relay: StartRelay, tmp_path: Path) -> None:
    first, last = (
        start_relay(name=f"relay {n}", tariff=PRICED, options={"receipts": str(tmp_path / str(n))}) for n in (1, 2)
    )
    alice, bob = Node("alice"), Node("bob", last.endpoint)
    async with running(alice, bob):
        await bob.client.wait_reserved()
        out = await alice.client.dial(path(first, last), bob.address)
        back = await bob.arrived.receive()
        await pour(out, back, 24 * MIB)  # far beyond what either carries unpaid
        for relay in (first, last):
            await wait_until(partial(is_even, relay))
        await out.aclose()
        await back.aclose()
    for relay in (first, last):
        assert relay.stop() == 0
    for n, relay in ((1, first), (2, last)):
        (stored,) = ReceiptStore(tmp_path / str(n)).load()
        assert (stored.receipt.relay, stored.receipt.payer) == (relay.address, alice.address)
        assert 22 * MIB <= stored.receipt.size_bytes <= 24 * MIB


async def test_who_does_not_pay_stands_still_and_is_then_ended(start_relay: StartRelay) -> None:
    daemon = start_relay(tariff={**PRICED, "unpaid_ms_max": 1_000})
    alice, bob = Node("alice"), Node("bob", daemon.endpoint)
    async with running(alice, bob):
        await bob.client.wait_reserved()
        out = await alice.client.dial(daemon.endpoint, bob.address)
        back = await bob.arrived.receive()
        alice.client.payments.meters.clear()  # she forgets what she owes
        alice.client.payments.pay = lambda link: None  # type: ignore[method-assign]
        with pytest.raises((trio.BrokenResourceError, AssertionError, ExceptionGroup)):
            await pour(out, back, 256 * MIB)
        assert daemon.metrics()['dekube_relay_drops_total{reason="circuit_unpaid"}'] == 1
        with pytest.raises(RelayRefused) as refused:
            await alice.client.dial(daemon.endpoint, bob.address)
        assert refused.value.refusal is Refusal.UNPAID


async def test_a_relay_that_ends_sends_its_clients_away_first(start_relay: StartRelay) -> None:
    first = start_relay(name="relay 1", options={"drain_s_max": 20})
    second = start_relay(name="relay 2")
    options = RelayClientOptions(reservations=1, backoff_s_min=0.01, choose_s=0.1)
    alice, bob = Node("alice", options=options), Node("bob", first.endpoint, second.endpoint, options=options)
    left: list[object] = []
    alice.client.on_leaving(left.append)
    async with running(alice, bob):
        await bob.client.wait_reserved()
        used = bob.client.reservations[0].endpoint
        if used == second.endpoint:  # have the one with a long goodbye in use
            bob.client.known.reputation.blame(second.address, Fault.PROTOCOL_VIOLATION, trio.current_time())
            bob.client.reserving.choose_again()
            await wait_until(lambda: [r.endpoint for r in bob.client.reservations] == [first.endpoint])
        out, back = await talk(alice, bob, first.endpoint)
        first.process.send_signal(signal.SIGTERM)
        await wait_until(lambda: left == [first.endpoint])
        await wait_until(lambda: [r.endpoint for r in bob.client.reservations] == [second.endpoint])
        await out.send(b"still carried")
        assert await back.receive() == b"still carried"
        with pytest.raises(RelayRefused) as refused:
            await alice.client.dial(first.endpoint, bob.address)
        assert refused.value.refusal is Refusal.RESTARTING
        await talk(alice, bob, second.endpoint)
        assert first.process.poll() is None
        await out.stream.aclose()
        await back.stream.aclose()
        assert await trio.to_thread.run_sync(first.process.wait, 20) == 0, "it ends when it is empty"
        assert first.address not in [f.relay for f in bob.client.links]
        assert not bob.client.known.reputation.is_avoided(first.address, trio.current_time())


async def test_draining_ends_at_its_deadline(start_relay: StartRelay) -> None:
    daemon = start_relay(options={"drain_s_max": 1})
    with trio.fail_after(120):
        lazy = await RawClient.connect(daemon, "lazy")
        await lazy.say(Reserve(1, 60))
        await lazy.hear()
        daemon.process.send_signal(signal.SIGTERM)
        assert await trio.to_thread.run_sync(daemon.process.wait, 40) == 0


async def test_a_full_relay_names_others(start_relay: StartRelay) -> None:
    other = start_relay(name="relay 2")
    full = start_relay(name="relay 1", reservations_max=1, options={"peers": [str(other.endpoint)]})
    await wait_until(lambda: full.metrics()["dekube_relay_next_hop_links"] == 1)
    alice = Node("alice", full.endpoint)
    bob = Node("bob", full.endpoint, options=QUICK)
    async with running(alice):
        await alice.client.wait_reserved()
        async with running(bob):
            await bob.client.wait_reserved()  # at one that he has never heard of
            assert [r.endpoint for r in bob.client.reservations] == [other.endpoint]


async def test_a_dead_sender_is_noticed_though_its_reader_stands_still(start_relay: StartRelay) -> None:
    daemon = start_relay(circuit_linger_ms_max=300)
    alice, bob = Node("alice"), Node("bob", daemon.endpoint)
    async with running(alice, bob):
        await bob.client.wait_reserved()
        out = await alice.client.dial(daemon.endpoint, bob.address)
        unread = await bob.arrived.receive()
        with trio.move_on_after(1):
            await out.send_all(bytes(64 * MIB))  # until nothing moves
        assert isinstance(out, CircuitStream)
        out.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        await out.aclose()
        await wait_until(lambda: daemon.metrics()["dekube_relay_circuits"] == 0)
        assert daemon.metrics()['dekube_relay_drops_total{reason="circuit_lingered"}'] == 1
        await unread.aclose()


@pytest.mark.slow
async def test_of_many_relays_some_are_chosen_and_a_bad_one_is_left(start_relay: StartRelay) -> None:
    relays = [start_relay(name=f"relay {n}") for n in range(4)]
    options = RelayClientOptions(reservations=2, backoff_s_min=0.01, choose_s=0.1)
    bob = Node("bob", *(relay.endpoint for relay in relays), options=options)
    async with running(bob):
        await bob.client.wait_reserved(2)
        before = [r.endpoint for r in bob.client.reservations]
        assert before[0].relay is not None
        bob.client.known.blame(before[0], Fault.PROTOCOL_VIOLATION)
        await wait_until(
            lambda: (
                len(now := [r.endpoint for r in bob.client.reservations]) == 2
                and before[0] not in now
                and before[1] in now
            )
        )
        killed = next(relay for relay in relays if relay.endpoint == before[1])
        killed.kill()
        for _ in range(3):
            bob.client.known.blame(before[1], Fault.LOST)  # as it would be found again and again
        await wait_until(
            lambda: len(now := [r.endpoint for r in bob.client.reservations]) == 2 and not {*before[:2]} & {*now}
        )


async def test_relays_that_are_heard_of_later_are_used(start_relay: StartRelay) -> None:
    daemon = start_relay()
    bob = Node("bob")
    async with running(bob):
        bob.client.offer([daemon.endpoint])
        await bob.client.wait_reserved()


async def test_who_is_reached_otherwise_keeps_only_the_reservations_that_its_owner_asked_for(
    start_relay: StartRelay,
) -> None:
    own, heard = start_relay(), start_relay(name="another relay")
    bob = Node("bob", own.endpoint)
    async with running(bob):
        bob.client.offer([heard.endpoint])
        await bob.client.wait_reserved(2)
        bob.client.need(False)
        await wait_until(lambda: [r.endpoint for r in bob.client.reservations] == [own.endpoint])
        bob.client.need(True)
        await bob.client.wait_reserved(2)


def test_the_line_and_each_clients_part_of_it_are_shared_by_those_that_move() -> None:
    alice, bob = b"a" * 20, b"b" * 20
    limits = RelayLimits(line_bytes_per_s=1_000, client_bytes_per_s_max=300, circuit_bytes_per_s_max=250)
    assert pacing_rates(limits, {}) == {}
    assert pacing_rates(limits, {1: alice}) == {1: 250}
    assert pacing_rates(limits, {1: alice, 2: alice, 3: bob}) == {1: 150, 2: 150, 3: 250}
    assert pacing_rates(limits, dict.fromkeys(range(10), alice)) == dict.fromkeys(range(10), 30)
    assert pacing_rates(RelayLimits(), {1: alice}) == {1: 0}


async def test_a_paced_client_gets_its_pace(start_relay: StartRelay) -> None:
    daemon = start_relay(client_bytes_per_s_max=4 * MIB)
    alice, bob = Node("alice"), Node("bob", daemon.endpoint)
    async with running(alice, bob):
        await bob.client.wait_reserved()
        out = await alice.client.dial(daemon.endpoint, bob.address)
        back = await bob.arrived.receive()
        with trio.move_on_after(1.5):
            await pour(out, back, 4_096 * MIB)  # paced from the first look on
        began_s = trio.current_time()
        before = daemon.metrics()["dekube_relay_bytes_total"]
        with trio.move_on_after(2) as scope:
            await pour(out, back, 4_096 * MIB)
        assert scope.cancelled_caught
        moved = daemon.metrics()["dekube_relay_bytes_total"] - before
        seconds = trio.current_time() - began_s  # on a busy machine more than it was to take
        assert moved <= (4 * seconds + 16) * MIB  # what lay in buffers, too; unpaced it is a gigabyte


async def test_a_client_whose_request_is_refused_hears_how_full_the_relay_is(shared_relay: DaemonProcess) -> None:
    with trio.fail_after(120):
        client = await RawClient.connect(shared_relay, "asker")
        await client.say(Connect(7, account_of("nobody").address))
        assert await client.hear() == Refused(7, Refusal.NO_RESERVATION, 0, 0, ())


async def test_nothing_is_signed_at_a_price_above_what_the_node_pays_and_terms_do_not_change_on_the_way(
    start_relay: StartRelay,
) -> None:
    daemon = start_relay(tariff=PRICED)
    options = RelayClientOptions(price_per_gib_max=PRICED["price_per_gib"] - 1)
    alice, bob = Node("alice", options=options), Node("bob", daemon.endpoint)
    async with running(alice, bob):
        await bob.client.wait_reserved()
        with suppress(RelayUnreachable):
            await alice.client.dial(daemon.endpoint, bob.address)  # its terms may not have come yet
        await wait_until(lambda: daemon.address in alice.client.payments.meters)
        link, owed = alice.client.control_links.get(daemon.endpoint), alice.client.payments.meters[daemon.address]
        assert link is not None
        owed.size_bytes += 2**30
        alice.client.payments.pay(link)
        assert owed.due(alice.client._make_identity(), 0, 0) is not None, "it would have been time to sign"
        with pytest.raises(RelayUnreachable):
            await alice.client.dial(daemon.endpoint, bob.address)
        alice.client.terms(link, Terms(1, 0, 0, 0))
        assert link.fault is Fault.PROTOCOL_VIOLATION and owed.tariff is not None
        assert owed.tariff.price_per_gib == PRICED["price_per_gib"]
