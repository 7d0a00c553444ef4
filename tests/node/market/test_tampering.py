"""A machine whose container a stranger reads: killed, wiped, reported by its own key, and off the market."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import trio

import node.market.tampering
import tasks.executor.containers.watchdog
from node.market.tampering import Guard, is_reported
from tasks.executor.containers.watchdog import Policy
from tasks.ledger.lifecycle import Phase, Reason
from tasks.ledger.registry import NodeStatus, require_node
from tasks.ledger.tampering import TamperSign, load_tamper
from tests.node.market.test_containers import Lending
from tests.node.world import World, world_with
from tests.tasks.executor.containers.machine import Machine as EngineMachine
from tests.tasks.executor.containers.machine import running_machine

pytestmark = pytest.mark.slow


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    made = world_with(tmp_path, monkeypatch, {})
    yield made
    made.store.close()


@pytest.fixture
def lent(tmp_path: Path) -> Iterator[EngineMachine]:
    with running_machine(tmp_path / "lent") as machine:
        yield machine


async def docker(lent: EngineMachine, *arguments: str) -> str:
    return await trio.to_thread.run_sync(lambda: lent.engine.docker(*arguments, check=False))


async def test_a_stranger_in_a_container_is_reported_by_the_machine_itself(
    world: World, lent: EngineMachine
) -> None:
    """Monitors look first, and nothing follows. Then somebody starts a program inside."""
    lending = Lending(world, lent)
    address = lending.machine.wallet.address
    async with trio.open_nursery() as nursery:
        blob = await lending.start(nursery)
        await nursery.start(lending.machine.run)
        task = await lending.post("echo begun; while :; do sleep 1; done", blob)
        await world.mint_until(lambda: bool(lending.names(running=True)), timeout_s=60)
        (name,) = lending.names()
        for arguments in (("logs", name), ("stats", "--no-stream"), ("top", name), ("inspect", name)):
            await docker(lent, *arguments)
        await world.mint_until(lambda: lending.meter(task).seconds > 0, timeout_s=60)
        assert load_tamper(world.store, address) is None

        folder = lending.machine.home.jobs.parent / "containers"
        assert list(folder.glob("*/disk.img"))
        await docker(lent, "exec", name, "cat", "/input")
        await world.mint_until(lambda: load_tamper(world.store, address) is not None, timeout_s=60)
        found = load_tamper(world.store, address)
        assert found is not None and (found.sign, found.task, found.reports) == (TamperSign.EXEC, task, 1)
        record = lending.record(task)
        assert (record.phase, record.reason) == (Phase.FAILED, Reason.TAMPERED)
        assert not lending.names() and not list(folder.glob("*/disk.img"))
        assert not list((folder / "tampered").iterdir())

        height = world.ledger.head().height
        await world.mint_until(lambda: world.ledger.head().height > height + 10)
        assert require_node(world.store, address).status is NodeStatus.SUSPENDED, "and it does not come back"
        assert is_reported(world.ledger, address)
        nursery.cancel_scope.cancel()


@pytest.mark.nightly
async def test_a_report_that_was_due_when_the_node_ended_is_made_in_its_next_life(
    world: World, lent: EngineMachine
) -> None:
    lending = Lending(world, lent)
    address = lending.machine.wallet.address
    async with trio.open_nursery() as nursery:
        blob = await lending.start(nursery)
        await nursery.start(lending.machine.run)
        task = await lending.post("echo begun; while :; do sleep 1; done", blob)
        await world.mint_until(lambda: bool(lending.names(running=True)), timeout_s=60)
        lending.machine.stop()
        folder = lending.machine.home.jobs.parent / "containers" / "tampered"
        backend = lent.backend()
        Guard(world.ledger, lending.machine.wallet, backend, folder, Policy())._write(task, TamperSign.COPY)
        await nursery.start(lending.machine.run)
        await world.mint_until(lambda: load_tamper(world.store, address) is not None, timeout_s=60)
        found = load_tamper(world.store, address)
        assert found is not None and (found.sign, found.reports) == (TamperSign.COPY, 1)
        await world.mint_until(lambda: not lending.names() and not list(folder.iterdir()))
        nursery.cancel_scope.cancel()


def sit_down(folder: Path, *, is_there: bool) -> None:
    """Have ``loginctl`` tell of somebody at the machine, or of nobody."""
    session = "Type=wayland\nActive=yes\nIdleHint=no\nRemote=no\nClass=user" if is_there else "Type=tty"
    program = folder / "loginctl"
    program.write_text(f'#!/bin/sh\ncase "$1" in list-sessions) echo 1 0 me;; *) echo "{session}";; esac\n')
    program.chmod(0o755)


@pytest.mark.nightly
@pytest.mark.parametrize("wish", ["yield", "leave"])
async def test_a_job_makes_room_for_its_owner_and_nothing_is_reported(
    world: World, lent: EngineMachine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wish: str
) -> None:
    monkeypatch.setattr(node.market.tampering, "USE_S", 0.2)
    monkeypatch.setattr(tasks.executor.containers.watchdog, "LEAVE_AFTER_S", 1.0)
    monkeypatch.setattr(tasks.executor.containers.watchdog, "CALM_S", 1.0)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    sit_down(tmp_path, is_there=False)
    lending = Lending(world, lent)
    executor = lending.machine.options.executor
    docker_options = replace(executor.docker, on_desktop_use=wish)
    lending.machine.options = replace(lending.machine.options, executor=replace(executor, docker=docker_options))
    async with trio.open_nursery() as nursery:
        blob = await lending.start(nursery)
        await nursery.start(lending.machine.run)
        task = await lending.post("echo begun; while :; do sleep 1; done", blob)
        await world.mint_until(lambda: bool(lending.names(running=True)), timeout_s=60)
        (name,) = lending.names()

        def shares() -> str:
            return lent.engine.docker("inspect", "--format", "{{.HostConfig.CpuShares}}", name).strip()

        sit_down(tmp_path, is_there=True)
        if wish == "yield":
            await world.mint_until(lambda: shares() == "2", timeout_s=60)
            sit_down(tmp_path, is_there=False)
            await world.mint_until(lambda: shares() == "1024", timeout_s=60)
            assert lending.record(task).phase is Phase.RUNNING
        else:
            await world.mint_until(lambda: lending.record(task).phase is not Phase.RUNNING, timeout_s=60)
            assert lending.record(task).reason == Reason.WORKER_LEFT
            await world.mint_until(lambda: not lending.names(), timeout_s=60)
        assert load_tamper(world.store, lending.machine.wallet.address) is None
        nursery.cancel_scope.cancel()
