"""Containers as the RPC shows them: the quote, the meter, what its machine has to do, and the end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import trio

from rpc.backend.server import Backend
from rpc.protocol.task_views import QUESTION_BYTES_MAX, ViewRefused
from tasks.kinds.container import ExitKind
from tasks.ledger.settlement import budget_of
from tasks.ledger.transitions import ACCEPT_TASK, CANCEL_TASK, START_TASK
from tasks.spec import encode_spec
from tests.rpc.harness import Node, gateway, hexed
from tests.rpc.test_market import WorldNode
from tests.tasks.containers import TICK_S, block_until, container, finish, host, meter
from tests.tasks.world import QUICK, REQUESTER, World


async def test_a_quote_is_time_and_nothing_for_checks_or_custody() -> None:
    world = World()
    node = WorldNode(world)
    job = container()
    raw = hexed(encode_spec(job))
    quoted = await node.call("dekube_quoteTask", raw)
    budget = budget_of(job, QUICK)
    assert (quoted["price"], quoted["total"]) == (str(budget.price), str(budget.total))
    assert (quoted["verification"], quoted["custody"], quoted["custody_lines"]) == ("0", "0", [])
    assert quoted["checks"]["bond"] == quoted["checks"]["bond_new"] == "0"
    codes = [item["code"] for item in quoted["notices"]]
    assert codes == ["no_machine", "mount_not_held"]
    assert [item["code"] for item in quoted["objections"]] == ["no_such_machine"]
    host(world, 1)
    world.block()
    quoted = await node.call("dekube_quoteTask", raw)
    assert quoted["objections"] == []
    assert quoted["machines"]["free"] == 1


async def test_a_machine_without_the_role_or_of_another_speed_is_not_free() -> None:
    world = World()
    world.add_machine(1)
    host(world, 2, rate=10**12)
    world.block()
    quoted = await WorldNode(world).call("dekube_quoteTask", hexed(encode_spec(container())))
    assert quoted["machines"] == {
        "registered": 2, "capable": 0, "affordable": 0, "free": 0, "least_price": None,
    }  # fmt: skip
    assert "have rates from 1000000000000 to 1000000000000" in quoted["objections"][0]["text"]


async def test_short_ticks_of_little_worth_cost_more_gas_than_they_pay() -> None:
    world = World()
    node = WorldNode(world)
    host(world, 1)
    world.block()
    quoted = await node.call("dekube_quoteTask", hexed(encode_spec(container(tick_s=10, price=1))))
    assert "longer ticks" in next(
        item["text"] for item in quoted["objections"] if item["code"] == "costs_exceed_work"
    )


async def test_a_task_shows_its_meter_in_each_phase_and_how_it_ended() -> None:
    world = World()
    node = WorldNode(world)
    worker = host(world, 1)
    task = world.create(container())

    async def seen() -> dict[str, object]:
        found: dict[str, object] = (await node.call("dekube_getTask", hexed(task)))["task"]
        return found

    first = (await seen())["meter"]
    assert first == {
        "seconds": 0, "paid": "0", "own_seconds": 0, "began_ms": None, "stop_ms": None, "until_ms": None,
        "checkpoint": None, "checkpoint_before": None, "checkpoint_begun": None, "waiting": "0", "machines": [],
        "exit": None,
    }  # fmt: skip
    block_until(world, 2_000)
    assert [duty["action"] for duty in (await node.call("dekube_getDuties", hexed(worker)))["work"]] == ["accept"]
    assert world.send(worker, ACCEPT_TASK, [task, 0]) is None
    assert world.send(worker, START_TASK, [task, b"m" * 32]) is None
    assert [duty["action"] for duty in (await node.call("dekube_getDuties", hexed(worker)))["work"]] == ["meter"]
    block_until(world, 1_000 * TICK_S)
    assert meter(world, worker, task, TICK_S) is None
    assert world.send(REQUESTER, CANCEL_TASK, [task]) is None
    shown = (await seen())["meter"]
    assert isinstance(shown, dict) and shown["seconds"] == TICK_S and shown["stop_ms"] and not shown["exit"]
    assert finish(world, worker, task, TICK_S, ExitKind.STOPPED) is None
    found = await seen()
    ended = found["meter"]
    assert isinstance(ended, dict) and found["phase"] == "cancelled"
    assert ended["exit"] == {
        "kind": "stopped", "code": 0, "output": hexed(b"o" * 32), "output_bytes": 10_240,
        "logs": hexed(b"l" * 32), "logs_bytes": 77, "worker": hexed(worker),
    }  # fmt: skip
    spec = found["spec"]
    assert isinstance(spec, dict) and (spec["kind"], spec["level"]) == ("container", 0)
    lines = await node.all("dekube_getBill", hexed(task), limit=10)
    paid = sum(int(line["amount"]) for line in lines if line["purpose"] in ("metered", "disk"))
    assert paid == int(ended["paid"])


async def test_a_machine_shows_that_it_runs_containers() -> None:
    world = World()
    machine = host(world, 1)
    shown = await WorldNode(world).call("dekube_getNode", hexed(machine))
    assert "container" in shown["node"]["roles"]


async def test_a_proven_task_has_no_meter() -> None:
    world = World()
    node = WorldNode(world)
    task = world.create()
    assert (await node.call("dekube_getTask", hexed(task)))["task"]["meter"] is None


async def test_a_question_about_a_container_goes_through_gateway_and_node(tmp_path: Path) -> None:
    """The node waits for another node meanwhile, and answers other requests; a refusal keeps its code."""
    task, asked, waits = b"t" * 32, list[tuple[bytes, bytes]](), trio.Event()

    class Source:
        async def task_view(self, task: bytes, question: bytes, /) -> tuple[bytes, bytes]:
            asked.append((task, question))
            await waits.wait()
            if question == b"no":
                raise ViewRefused("too often")
            return b"w" * 20, b"sealed"

    node, path = Node(tmp_path / "chain"), tmp_path / "rpc.sock"
    backend = Backend(node.view, node, path, views=Source())
    async with trio.open_nursery() as nursery:
        await nursery.start(backend.run)
        async with gateway(backend, path) as it:
            answers: dict[str, Any] = {}

            async def ask() -> None:
                answers["view"] = await it.checked_call("dekube_viewTask", hexed(task), hexed(b"question"))

            nursery.start_soon(ask)
            while not asked:  # noqa: ASYNC110  of another process
                await trio.sleep(0.01)
            assert (await it.call("dekube_head"))["at"]["height"] == node.store.tip.height
            waits.set()
            error = await it.error("dekube_viewTask", hexed(task), hexed(b"no"))
            assert error["data"]["reason"] == "view_refused"
            too_long = await it.error("dekube_viewTask", hexed(task), hexed(bytes(QUESTION_BYTES_MAX + 1)))
            assert too_long["data"]["reason"] == "invalid_params"
            assert answers["view"]["sealed"] == hexed(b"sealed") and answers["view"]["worker"] == hexed(b"w" * 20)
            assert asked[0] == (task, b"question")
        nursery.cancel_scope.cancel()
    node.store.close()
