"""What a node registers of itself, and when it writes again: its speed, its bond, and that it is on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import structlog.testing
import trio

import node.market.duties
from node.home.options import ExecutorOptions, RegistryOptions
from node.market.duties import DutyService
from node.market.machine import Rate
from state.primitives.codec import Value
from state.primitives.receipts import Receipt
from state.transition.transfer import TRANSFER_KIND
from tasks.ledger.parameters import TaskParameters
from tasks.ledger.registry import NodeStatus, load_node, require_node
from tasks.ledger.transitions import HEARTBEAT, REGISTER_NODE, UPDATE_NODE
from tests.node.world import COIN, PARAMETERS, Machine, World, world_with


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    made = world_with(tmp_path, monkeypatch, {})
    yield made
    made.store.close()


async def test_a_node_registers_itself_once_and_again_when_what_it_offers_changed(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    rates = iter(Rate(milli, is_steady=True) for milli in (1_000, 1_080, 1_300))
    monkeypatch.setattr(node.market.duties, "known_rate", lambda _path: next(rates))
    machine = Machine(world, 1, "compute")
    nonces = []
    async with trio.open_nursery() as nursery:
        await nursery.start(machine.network.run)
        for price in (10**14, 10**14, 2 * 10**14):
            machine.options = replace(machine.options, registry=RegistryOptions(price_per_tera_unit=price))
            await nursery.start(machine.run)
            wanted = price

            def is_registered(wanted: int = wanted) -> bool:
                known = load_node(world.store, machine.wallet.address)
                return known is not None and known.profile.price_per_tera_unit == wanted

            await world.mint_until(is_registered)
            for _ in range(10):
                world.mint()
                await trio.sleep(0.02)
            machine.stop()
            nonces.append(world.ledger.pending_nonce(machine.wallet.address))
        nursery.cancel_scope.cancel()
    # The rate differs a little at each start: no reason to write.
    assert nonces == [1, 1, 2]


async def test_a_speed_that_was_measured_beside_other_work_is_measured_again_and_registered(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stood as it happened to be at the start: 3.9, 11.1 or 199 steps a second of one machine."""
    left = [Rate(5_200, is_steady=True), Rate(5_000, is_steady=False)]

    def measured() -> Rate:
        if not speed():
            return Rate(900, is_steady=False)
        return left.pop() if left else Rate(5_200, is_steady=True)

    monkeypatch.setattr(node.market.duties, "known_rate", lambda _path: Rate(1_000, is_steady=False))
    monkeypatch.setattr(node.market.duties, "renewed_rate", lambda _path: measured())
    monkeypatch.setattr(node.market.duties, "MEASURE_AGAIN_S", 0.05)
    machine = Machine(world, 1, "compute", alone=True)
    machine.options = replace(machine.options, registry=RegistryOptions())

    def speed() -> int:
        known = load_node(world.store, machine.wallet.address)
        return 0 if known is None else known.profile.rate

    async with trio.open_nursery() as nursery:
        await nursery.start(machine.run)
        await world.mint_until(lambda: speed() == 1_000)
        await world.mint_until(lambda: speed() == 5_000)
        await world.mint_until(lambda: not left)
        for _ in range(10):
            world.mint()
            await trio.sleep(0.02)
        assert speed() == 5_000, "a difference of a few per cent is none"
        machine.stop()
        # A start beside other work does not take the place of what is known to be faster.
        monkeypatch.setattr(node.market.duties, "known_rate", lambda _path: Rate(700, is_steady=False))
        machine.options = replace(machine.options, registry=RegistryOptions(price_per_tera_unit=7))
        await nursery.start(machine.run)
        await world.mint_until(
            lambda: (
                (known := load_node(world.store, machine.wallet.address)) is not None
                and known.profile.price_per_tera_unit == 7
            )
        )
        assert speed() == 5_000
        nursery.cancel_scope.cancel()


async def test_an_idle_node_shows_that_it_is_on_and_asks_for_parked_tasks_after_it_was_away(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node.market.duties, "known_rate", lambda _path: Rate(1_000, is_steady=True))
    machine = Machine(world, 1, "compute")
    machine.options = replace(machine.options, registry=RegistryOptions())
    sent: list[int] = []
    send, presence_ms = machine.wallet.send, PARAMETERS["tasks.presence_ms"]

    async def noted(kind: int, payload: list[Value]) -> Receipt:
        sent.append(kind)
        return await send(kind, payload)

    def is_seen_now() -> bool:
        known = load_node(world.store, machine.wallet.address)
        return known is not None and world.ledger.head().time_ms - known.seen_ms < presence_ms // 2

    monkeypatch.setattr(machine.wallet, "send", noted)
    async with trio.open_nursery() as nursery:
        await nursery.start(machine.network.run)
        await nursery.start(machine.run)
        await world.mint_until(is_seen_now)
        assert sent == [REGISTER_NODE]
        for after_ms, kinds in (
            (presence_ms * 6 // 10, []), (presence_ms // 10, [HEARTBEAT]),
            (presence_ms + 1_000, [HEARTBEAT, UPDATE_NODE]),
        ):  # fmt: skip
            sent.clear()
            world.mint(after_ms=after_ms)
            if kinds:
                await world.mint_until(is_seen_now)
                await world.mint_until(lambda: len(sent) == len(kinds))  # noqa: B023 - within the round
            for _ in range(5):
                world.mint()
                await trio.sleep(0.02)
            assert sent == kinds
        nursery.cancel_scope.cancel()


async def test_a_sponsored_node_registers_without_a_bond(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node.market.duties, "known_rate", lambda _path: Rate(1_000, is_steady=True))
    machine = Machine(world, 1, "verify")
    machine.options = replace(machine.options, registry=RegistryOptions(sponsored=True))
    async with trio.open_nursery() as nursery:
        await nursery.start(machine.run)
        await world.mint_until(lambda: load_node(world.store, machine.wallet.address) is not None)
        for _ in range(5):
            world.mint()
            await trio.sleep(0.02)
        assert require_node(world.store, machine.wallet.address).bond == 0
        assert world.ledger.pending_nonce(machine.wallet.address) == 1, "nothing is added"
        nursery.cancel_scope.cancel()


async def test_a_node_that_cannot_pay_says_so_once_and_registers_when_it_can(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node.market.duties, "known_rate", lambda _path: Rate(1_000, is_steady=True))
    monkeypatch.setattr(node.market.duties, "RETRY_S", 0.02)
    poor = Machine(world, 11, "compute", alone=True)
    poor.options = replace(poor.options, registry=RegistryOptions())
    tries = 0
    send = poor.wallet.send

    async def counted(kind: int, payload: list[Value]) -> Receipt:
        nonlocal tries
        tries += 1
        return await send(kind, payload)

    monkeypatch.setattr(poor.wallet, "send", counted)
    async with trio.open_nursery() as nursery:
        with structlog.testing.capture_logs() as logs:
            await nursery.start(poor.run)
            await world.mint_until(lambda: tries > 5)
            duties = poor.duties
            assert duties is not None
            [trouble] = duties.troubles()
            assert (trouble["duty"], trouble["task"], trouble["code"]) == ("register", None, "insufficient_funds")
            gift: list[Value] = [poor.wallet.address, 1_000 * COIN]
            nursery.start_soon(world.wallet(0).send, TRANSFER_KIND, gift)
            await world.mint_until(lambda: load_node(world.store, poor.wallet.address) is not None)
            await world.mint_until(lambda: not duties.troubles())
        nursery.cancel_scope.cancel()
    assert [line["code"] for line in logs if line["log_level"] == "warning"] == ["insufficient_funds"]


async def test_a_node_adds_to_its_bond_what_it_lacks_to_be_offered_work(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fine takes it there, or its part of a jury's fees; the rest of what it may stake stays with it."""
    monkeypatch.setattr(node.market.duties, "known_rate", lambda _path: Rate(1_000, is_steady=True))
    least = TaskParameters().node_bond_min

    class Fined(DutyService):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            self._parameters = replace(self._parameters, node_bond_min=least + 1)

    machine = Machine(world, 1, "compute")

    async def bond_after_running() -> int:
        await nursery.start(machine.run)
        await world.mint_until(lambda: load_node(world.store, machine.wallet.address) is not None)
        for _ in range(10):
            world.mint()
            await trio.sleep(0.02)
        machine.stop()
        known = load_node(world.store, machine.wallet.address)
        assert known is not None
        return known.bond

    async with trio.open_nursery() as nursery:
        await nursery.start(machine.network.run)
        machine.options = replace(machine.options, registry=RegistryOptions(stake=least))
        assert await bond_after_running() == least
        machine.options = replace(machine.options, registry=RegistryOptions(stake=3 * least))
        assert await bond_after_running() == least
        machine._duties = Fined
        with monkeypatch.context() as poor:  # what it lacks and one unit: nothing to say in time what it owes
            poor.setattr(node.market.duties, "balance_of", lambda *_: 2 * least + 1)
            assert await bond_after_running() == least
        assert await bond_after_running() == 3 * least
        assert await bond_after_running() == 3 * least
        nursery.cancel_scope.cancel()


async def test_a_machine_that_does_not_grant_the_isolation_it_must_leaves_the_market(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would take tasks and fail each of them."""
    monkeypatch.setattr(node.market.duties, "known_rate", lambda _path: Rate(1_000, is_steady=True))
    machine = Machine(world, 1, "compute", alone=True)

    def is_status(wanted: NodeStatus) -> bool:
        known = load_node(world.store, machine.wallet.address)
        return known is not None and known.status is wanted

    async with trio.open_nursery() as nursery:
        for isolation, becomes in (
            (("limits",), NodeStatus.ACTIVE),
            (("limits", "a vault"), NodeStatus.SUSPENDED),
            ((), NodeStatus.ACTIVE),
        ):
            machine.options = replace(
                machine.options, registry=RegistryOptions(), executor=ExecutorOptions(isolation=isolation)
            )
            with structlog.testing.capture_logs() as logs:
                await nursery.start(machine.run)
                await world.mint_until(partial(is_status, becomes))
                machine.stop()
            said = [entry for entry in logs if entry["event"].startswith("no job may run on this machine")]
            assert [entry["error"] for entry in said] == ["not granted here: a vault"] * ("a vault" in isolation)
        nursery.cancel_scope.cancel()
