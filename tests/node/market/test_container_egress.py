"""A machine whose owner lets containers reach a name, on a chain: a container from its match to its pay (R131)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import trio
import trio.testing

from tasks.executor.containers.egress import proxy
from tasks.kinds.container import ExitKind
from tasks.ledger.lifecycle import Phase
from tests.node.market.test_containers import Lending
from tests.node.world import World, world_with
from tests.tasks.executor.containers.machine import running_machine
from tests.tasks.executor.containers.public_server import CONTENT, public_server

pytestmark = pytest.mark.slow

GET = (
    "printf 'GET http://plain.example.net/ HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n' | nc -w 9 127.0.0.1 3128 | tail -n 1"
)


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    made = world_with(tmp_path, monkeypatch, {})
    yield made
    made.store.close()


async def test_a_container_reaches_a_name_before_and_after_a_restart_of_its_node(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = f"{GET}; sleep 4; until {GET} | grep public; do sleep 0.2; done"
    with running_machine(tmp_path / "lent") as lent, public_server(tmp_path / "server") as server:
        monkeypatch.setattr(proxy, "look_up", lambda _name: [server.address])
        lending = Lending(world, lent, egress=("*:80",))
        async with trio.open_nursery() as nursery:
            blob = await lending.start(nursery)
            await nursery.start(lending.machine.run)
            task = await lending.post(script, blob, egress=("plain.example.net:80",))
            await world.mint_until(lambda: first(lending), timeout_s=60)
            lending.machine.stop()
            await trio.testing.wait_all_tasks_blocked(0.1)
            await nursery.start(lending.machine.run)
            await world.mint_until(lambda: lending.record(task).phase is Phase.SETTLED, timeout_s=120)
            end = lending.meter(task).end
            assert end is not None and (end.kind, end.code) == (ExitKind.EXITED, 0)
            assert lending.read(end.logs).decode() == CONTENT * 2
            await world.mint_until(lambda: not list(tmp_path.glob("node */data/containers/*/disk.img")))
            nursery.cancel_scope.cancel()


def first(lending: Lending) -> bool:
    """Whether the container has said that it has reached the name."""
    return CONTENT.strip() in "".join(
        lending.lent.engine.docker("logs", name, check=False) for name in lending.names(running=True)
    )
