"""A relay that asks a price, as a process: what fresh identities get of it, and what publishers owe."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
import trio

from relay.client.publisher import FanoutClient
from relay.protocol.errors import RelayRefused, RelayUnreachable
from relay.server.splice import UNFUNDED_CHECK_BYTES
from state.primitives.address import format_address
from tests.relay.daemon_process import DaemonProcess, account_of
from tests.relay.nodes import Node, wait_until
from tests.relay.test_circuits import running
from tests.relay.test_service import pour

StartRelay = Callable[..., DaemonProcess]
MIB = 2**20
PRICED = {"price_per_gib": 10**16, "free_bytes": MIB, "unpaid_bytes_max": 8 * MIB, "unpaid_ms_max": 500}
CREDIT: dict[str, Any] = {
    "unfunded_bytes_per_payer": MIB, "unfunded_bytes_per_network_day": 6 * MIB, "unfunded_bytes_per_day": 64 * MIB,
}  # fmt: skip
FLOOD = 6


async def pour_what_goes(out: trio.abc.Stream, back: trio.abc.Stream) -> int:
    """Send for ever and read for as long as something comes; returns how much did."""
    received = 0

    async def send() -> None:
        with suppress(trio.BrokenResourceError):
            while True:
                await out.send_all(bytes(64 * 1024))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(send)
        with suppress(trio.BrokenResourceError):
            while data := await back.receive_some():
                received += len(data)
        nursery.cancel_scope.cancel()
    return received


async def test_a_flood_of_fresh_identities_gets_what_its_network_may_have_and_no_more(
    start_relay: StartRelay,
) -> None:
    daemon = start_relay(tariff=PRICED, trusted_networks=[], options={"credit": CREDIT})
    bob = Node("bob", daemon.endpoint)
    got: list[int] = []
    async with running(bob):
        await bob.client.wait_reserved()
        for n in range(FLOOD):
            fresh = Node(f"fresh {n}")
            async with running(fresh):
                with suppress(RelayRefused, RelayUnreachable):
                    out = await fresh.client.dial(daemon.endpoint, bob.address)
                    got.append(await pour_what_goes(out, await bob.arrived.receive()))
    metrics = daemon.metrics()
    limit = CREDIT["unfunded_bytes_per_network_day"]
    # Looked at after so much, and one read may come on top: one circuit passes the bound by it, the others wait.
    assert metrics["dekube_relay_bytes_total"] <= limit + 2 * UNFUNDED_CHECK_BYTES
    assert sum(got) <= metrics["dekube_relay_bytes_total"] and metrics["dekube_relay_receipts_total"] >= 0
    assert metrics["dekube_relay_unfunded_bytes"] >= limit, "or it would say little"
    assert len(got) < FLOOD, "the last were refused at once"


async def test_whom_the_operator_allows_is_carried_beside_the_flood(start_relay: StartRelay) -> None:
    allowed = {**CREDIT, "allowed": [format_address(account_of("alice").address)], "unfunded_bytes_per_day": 0}
    daemon = start_relay(tariff=PRICED, trusted_networks=[], options={"credit": allowed})
    alice, bob, carol = Node("alice"), Node("bob", daemon.endpoint), Node("carol")
    async with running(alice, bob, carol):
        await bob.client.wait_reserved()
        with pytest.raises(RelayRefused):
            await carol.client.dial(daemon.endpoint, bob.address)
        out = await alice.client.dial(daemon.endpoint, bob.address)
        back = await bob.arrived.receive()
        await pour(out, back, 4 * MIB)


async def test_a_publisher_owes_for_every_copy_and_pays_what_it_is_asked_for(start_relay: StartRelay) -> None:
    daemon = start_relay(tariff={**PRICED, "unpaid_ms_max": 30_000})
    alice, bob, carol = Node("alice"), Node("bob", daemon.endpoint), Node("carol", daemon.endpoint)
    fanouts = {
        node: FanoutClient(lambda node=node: node.identity, on_published=node.client.published)  # type: ignore[misc]
        for node in (alice, bob, carol)
    }
    got: dict[Node, int] = dict.fromkeys(fanouts, 0)
    piece = bytes(64 * 1024)

    async with running(alice, bob, carol), trio.open_nursery() as nursery:
        for node, fanout in fanouts.items():

            def receive(_relay: bytes, _publisher: bytes, data: bytes, node: Node = node) -> None:
                got[node] += len(data)

            nursery.start_soon(fanout.run, receive)
            if node is not alice:
                fanout.subscribe([daemon.endpoint], [alice.address])
        for node in (bob, carol):
            await node.client.wait_reserved()
        await wait_until(lambda: all(fanouts[node].waiting_at for node in (bob, carol)))
        absent = account_of("absent").address
        for _ in range(24 * MIB // len(piece)):  # 48 MiB of copies: six times what is carried unpaid
            before = dict(got)
            while got[bob] == before[bob] or got[carol] == before[carol]:
                await fanouts[alice].publish(daemon.endpoint, [bob.address, carol.address, absent], piece)
                with trio.move_on_after(0.3):
                    await wait_until(lambda before=before: all(got[n] > before[n] for n in (bob, carol)))  # type: ignore[misc]
        nursery.cancel_scope.cancel()
    metrics = daemon.metrics()
    assert metrics["dekube_relay_receipts_total"] > 0
    assert metrics["dekube_relay_unpaid_bytes"] < 8 * MIB + 2 * len(piece)
    meter = alice.client.payments.meters[daemon.address]
    copied = metrics['dekube_relay_fanout_total{what="bytes_out"}']
    assert copied >= 48 * MIB and meter._published >= 3 * copied / 2, "one of three was never there"
    assert copied - 8 * MIB - 2 * len(piece) < meter._signed <= copied, "all copies, and no others"
