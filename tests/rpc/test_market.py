"""Market methods over real lives of tasks: what they say obeys their schemas in every phase, and adds up."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any

import pytest

from billing.prices import hour_price
from node.cli.tasks.views import _said
from rpc.client.results import Custody, Group, Machine, Task, read_result
from rpc.gateway.method_table import DOCUMENT, METHOD_TABLE
from rpc.methods.method import bind
from rpc.protocol.errors import RpcError
from rpc.protocol.records import Description, KindInfo
from rpc.protocol.requests import BlobRequests
from state.primitives.errors import DecodeError
from state.primitives.heads import Head
from state.primitives.receipts import EventType
from state.view import Overlay
from tasks.ledger.custody_inputs import input_budget
from tasks.ledger.events import EVENTS
from tasks.ledger.lifecycle import Phase, Reason
from tasks.ledger.queries import Action
from tasks.ledger.records import JobReport, save_report
from tasks.ledger.registry import NodeRole
from tasks.ledger.screening import DatasetFacts, read_dataset_facts
from tasks.ledger.transitions import GIVE_UP_TASK, RESUME_TASK, rules
from tasks.spec import Requirements, encode_spec, spec_hash
from tests.rpc.harness import hexed
from tests.rpc.validate import validate
from tests.tasks import groups
from tests.tasks.executor.helpers import BLOB, make_spec
from tests.tasks.keepers import KeptWorld
from tests.tasks.ledger.test_trials import TRIALS, market
from tests.tasks.world import QUICK, REQUESTER, WORTH, Manners, World, spec

COMPONENTS = DOCUMENT["components"]["schemas"]


KINDS = tuple(KindInfo(rule.kind, rule.name, rule.gas) for rule in rules(QUICK))


class WorldNode:
    """As much of a node as these methods ask: the state of a world, its head, its parameters."""

    def __init__(self, world: World) -> None:
        self.world = world
        numbers = tuple((f"tasks.{field.name}", getattr(world.parameters, field.name)) for field in fields(QUICK))
        self.description = Description(7, "w", b"g" * 32, 0, 1, b"a" * 20, (), "v", KINDS, numbers, ())
        self.kinds: Mapping[int, str] = {}
        self.facts: DatasetFacts | None = None
        self.events: Mapping[tuple[bytes, bytes], EventType] = EVENTS

    @property
    def head(self) -> Head:
        height = self.world.height
        return Head(height, height.to_bytes(32, "big"), self.world.time_ms, b"r" * 32, 1, 1, 0, 1)

    async def query(self, height: int, function: Callable[..., Any], *args: Any) -> Any:
        assert height <= self.world.height
        return function(Overlay(self.world.state), *args)

    async def request(self, function: Any, blob: bytes) -> DatasetFacts | None:
        assert function == BlobRequests.dataset_facts
        return self.facts

    async def hash_of(self, height: int) -> bytes:
        return height.to_bytes(32, "big")

    async def call(self, name: str, *params: Any, **named: Any) -> Any:
        method = METHOD_TABLE[name]
        values = bind(method.params, named or list(params))
        result = await method.handle(self, *values)
        validate(result, method.result, COMPONENTS, name)
        return result

    async def all(self, name: str, *params: Any, limit: int = 1, **named: Any) -> list[Any]:
        """Every item, page by page."""
        items: list[Any] = []
        cursor = None
        while True:
            names = [param.name for param in METHOD_TABLE[name].params]
            page = await self.call(
                name, **dict(zip(names, params, strict=False)), **named, cursor=cursor, limit=limit
            )
            items += page["items"]
            cursor = page["next"]
            if cursor is None:
                return items
            assert len(page["items"]) == limit


async def see(node: WorldNode, task: bytes) -> Any:
    """Ask everything about a task; return the task."""
    name = hexed(task)
    windows = await node.all("dekube_getTaskWindows", name)
    for window in windows:
        seen.add(f"window {window['phase']}")
        for game in await node.all("dekube_getDisputes", name, window["number"]):
            shown = await node.call("dekube_getDispute", name, window["number"], game["number"])
            assert shown["dispute"] == game
            assert len(shown["moves"]) == min(16, game["moves"]) * (game["ending"] is None)
            seen.add(f"dispute {game['phase']} {game['ending']}")
    bill = await node.call("dekube_getBill", name)
    lines = await node.all("dekube_getBill", name, limit=3)
    totals = {key: int(value) for key, value in bill["totals"].items()}
    assert totals["deposited"] == sum(totals[key] for key in ("locked", "paid", "refunded", "burned"))
    for key in ("paid", "refunded", "burned"):
        assert totals[key] == sum(int(line["amount"]) for line in lines if line["movement"] == key)
    found = (await node.call("dekube_getTask", name))["task"]
    history = await node.all("dekube_getTaskHistory", name, limit=2)
    assert [entry["number"] for entry in history] == list(range(found["history"]))
    assert history[-1]["after"] == found["phase"]
    listed = await node.call("dekube_getTasks", found["phase"])
    assert [item["id"] for item in listed["items"]] == [found["id"]]
    for machine in node.world.machines:
        await node.call("dekube_getDuties", hexed(machine))
    seen.add(found["phase"])
    return found


seen: set[str] = set()


async def test_custody_is_shown_in_every_phase() -> None:
    world = KeptWorld()
    node = WorldNode(world)
    world.add_machine(1, roles=NodeRole.COMPUTE)
    world.add_machine(2, roles=NodeRole.VERIFY)
    for name in range(3, 8):
        world.add_keeper(name)
    task = world.create()
    phases: dict[str, Any] = {}
    demands = 0
    for _ in range(60):
        world.block()
        for window in range(3):
            found = (await node.call("dekube_getCustody", hexed(task), window))["custody"]
            if found is not None:
                phases[found["phase"]] = read_result(Custody, found)
                demands += found["demand"] is not None
        world.act()
        if world.task(task).phase == Phase.SETTLED:
            world.demand(task, 0, world.holders(task, 0)[0])
    assert phases.keys() == {"drawing", "signing", "kept"} and demands
    assert phases["kept"].until_ms and not phases["kept"].is_proven_false
    assert (await node.call("dekube_getCustody", hexed(task), 9))["custody"] is None


async def test_a_group_is_shown_in_every_phase() -> None:
    world = World()
    node = WorldNode(world)
    for name in range(1, 5):
        world.add_machine(name)
    for name in (200, 201):
        world.add_machine(name, price=10 * WORTH)
    group = groups.create(world, 3, 1)
    phases = set[str]()
    for _ in range(200):
        world.block()
        world.act()
        found = read_result(Group, (await node.call("dekube_getGroup", hexed(group)))["group"])
        phases.add(found.phase)
        assert found.final_windows == sum(seat.final_windows for seat in found.seats if not seat.is_spare)
        if found.has_ended:
            break
    assert phases == {"matching", "running", "ended"} or phases == {"running", "ended"}
    assert [seat.phase for seat in found.seats[:3]] == ["settled"] * 3
    assert [change["phase"] for change in found.document["history"]] == ["matching", "running", "ended"]
    task = (await node.call("dekube_getTask", hexed(found.seats[1].task)))["task"]
    assert (task["group"], task["seat"], task["phase"]) == (hexed(group), 1, "settled")
    typed = read_result(Task, task)
    assert (typed.group, typed.seat, typed.stage) == (group, 1, "ended")
    assert (await node.call("dekube_getGroup", hexed(b"g" * 32)))["group"] is None


async def test_every_phase_of_a_task_is_shown() -> None:
    # A liar works first; its window is disputed, it is proven to lie, an honest machine goes on.
    world = World()
    node = WorldNode(world)
    world.add_machine(1, manners=Manners(lies=True), price=1, roles=NodeRole.COMPUTE)
    for name in range(2, 9):
        world.add_machine(name, operator=bytes([name]) * 20)
    task = world.create()
    for _ in range(400):
        world.block()
        found = await see(node, task)
        if found["stage"] == "ended":
            break
        world.act()
    assert found["phase"] == "settled", found
    assert {"assigned", "preparing", "running", "verifying", "settled"} <= seen
    assert {"window final", "window disputed"} <= seen
    assert {"dispute running None", "dispute over element_wrong"} <= seen
    assert (await node.call("dekube_getDispute", hexed(task), 0, 9))["dispute"] is None
    assert found["spec"]["raw"] == hexed(encode_spec(spec()))
    workers = {entry["actor"] for entry in await node.all("dekube_getTaskHistory", hexed(task))}
    assert len(workers) > 2
    earned = 0
    for machine in world.machines:
        earnings = await node.call("dekube_getEarnings", hexed(machine))
        assert int(earnings["total"]) == sum(int(value) for value in earnings["earnings"].values())
        earned += int(earnings["total"])
    bill, lines = await node.call("dekube_getBill", hexed(task)), await node.all("dekube_getBill", hexed(task))
    to_fund = sum(int(line["amount"]) for line in lines if line["purpose"] == "check_fund")
    assert earned + to_fund == int(bill["totals"]["paid"]) > to_fund > 0


async def test_lists_are_of_one_height_and_whole() -> None:
    world = World()
    node = WorldNode(world)
    for name in range(1, 6):
        world.add_machine(name)
    tasks = []
    for _ in range(7):
        tasks.append(hexed(world.create(spec(gpus=3))))
        world.block()
    filters: tuple[dict[str, str], ...] = ({}, {"phase": "matching"}, {"requester": hexed(REQUESTER)})
    for named in filters:
        for limit in (1, 2, 3, 7, 100):
            assert [item["id"] for item in await node.all("dekube_getTasks", limit=limit, **named)] == tasks
    assert await node.all("dekube_getTasks", worker=hexed(b"\1" * 20)) == []
    nodes = await node.all("dekube_getNodes", limit=2)
    assert [item["address"].lower() for item in nodes] == [hexed(bytes([n]) * 20) for n in range(1, 6)]
    first = await node.call("dekube_getTasks", limit=2)
    height = first["at"]["height"]
    world.create()
    world.block()
    second = await node.call("dekube_getTasks", cursor=first["next"])
    assert second["at"]["height"] == height < world.height

    shown = (await node.call("dekube_getNode", hexed(b"\1" * 20)))["node"]
    assert shown["roles"] == ["compute", "verify"]
    hour = hour_price(shown["rate"], int(shown["price_per_tera_unit"]))
    assert int(shown["price_per_device_hour"]) == hour > 0
    machine = read_result(Machine, shown)
    assert (machine.rate, machine.price_per_device_hour, machine.owed_ms) == (shown["rate"], hour, 0)
    assert shown["measured_rate"] == machine.measured_rate == machine.rate and shown["trial"] is None
    assert machine.payout == machine.operator == b"\1" * 20
    waiting = read_result(Task, (await node.call("dekube_getTask", tasks[0]))["task"])
    assert (waiting.parked, waiting.open_charge, waiting.rate) == (True, 0, 0)
    assert (await node.call("dekube_getNode", hexed(b"\x77" * 20)))["node"] is None
    assert (await node.call("dekube_getTask", hexed(bytes(32))))["task"] is None
    budget = await node.call("dekube_quoteTask", hexed(encode_spec(spec())))
    assert int(budget["total"]) == sum(int(budget[key]) for key in ("price", "verification", "fee", "preparation"))


async def test_a_machine_shows_what_its_trials_measured() -> None:
    world, trialists, machine = market()
    node = WorldNode(world)

    async def shown() -> dict[str, Any]:
        found: dict[str, Any] = (await node.call("dekube_getNode", hexed(machine)))["node"]
        assert found in await node.all("dekube_getNodes")
        return found

    world.block()
    before = await shown()
    assert before["measured_rate"] is None and before["trial"]["phase"] == "running"
    record = trialists.run(machine)
    world.block()
    after = await shown()
    assert after["measured_rate"] == record.rate < after["rate"]
    asked = int(after["price_per_tera_unit"])
    assert int(before["price_per_device_hour"]) == hour_price(after["rate"], asked), "nothing was measured yet"
    assert int(after["price_per_device_hour"]) == hour_price(record.rate, asked)
    trial = after["trial"]
    assert (trial["phase"], trial["checked"], trial["rate"]) == ("idle", True, record.rate)
    assert trial["ask_from_ms"] == record.begun_ms + TRIALS.trial_pause_ms
    assert (trial["rounds_missed"], trial["round_rate"], trial["verifier"]) == (0, 0, None)


async def test_a_quote_has_lines_of_custody_and_says_if_too_few_machines_keep_anything() -> None:
    world = KeptWorld()
    node, raw = WorldNode(world), hexed(encode_spec(make_spec()))

    async def codes() -> list[str]:
        return [item["code"] for item in (await node.call("dekube_quoteTask", raw))["notices"]]

    quoted = await node.call("dekube_quoteTask", raw)
    outputs, one_input = quoted["custody_lines"]
    assert (outputs["what"], outputs["blobs"], outputs["amount"]) == (
        "output", make_spec().windows, quoted["custody"],
    )  # fmt: skip
    assert (one_input["what"], one_input["blobs"], one_input["copies"]) == ("input", 1, 2)
    assert one_input["size_bytes"] == len(BLOB) and one_input["time_ms"] == world.parameters.custody_ms
    assert int(one_input["amount"]) == input_budget(make_spec(), world.parameters) > 0
    assert "few_custodians" in await codes()
    world.add_machine(1, roles=NodeRole.STORAGE)
    world.add_machine(2)
    assert "few_custodians" in await codes(), "one of them keeps nothing"
    world.add_machine(3, roles=NodeRole.STORAGE)
    assert "few_custodians" not in await codes()


async def test_a_quote_says_what_is_known_against_a_job() -> None:
    world = World()
    node = WorldNode(world)
    job = make_spec()
    raw = hexed(encode_spec(job))
    quoted = await node.call("dekube_quoteTask", raw)
    assert (quoted["objections"], quoted["reported"]) == ([], None)
    assert [item["code"] for item in quoted["notices"]] == ["no_machine", "dataset_not_held"]
    cheap = hexed(encode_spec(job._replace(max_price_per_tera_unit=1)))
    assert "costs_exceed_work" in [
        item["code"] for item in (await node.call("dekube_quoteTask", cheap))["objections"]
    ]
    node.facts = read_dataset_facts(b"a,b\n1,2\n")
    worker = world.add_machine(1, price=2 * 10**18)
    quoted = await node.call("dekube_quoteTask", raw)
    assert [item["code"] for item in quoted["objections"]] == ["dataset_invalid"]
    assert [item["code"] for item in quoted["notices"]] == ["price_below_all"]
    assert quoted["machines"] == {
        "registered": 1, "capable": 1, "affordable": 0, "free": 0, "least_price": str(2 * 10**18),
    }  # fmt: skip
    node.facts = read_dataset_facts(BLOB)
    wrong = job._replace(init_root=bytes(32), requirements=Requirements(4, 0, 0))
    quoted = await node.call("dekube_quoteTask", hexed(encode_spec(wrong)))
    assert [item["code"] for item in quoted["objections"]] == ["init_root_differs", "no_such_machine"]

    assert (quoted["limit"], quoted["calls"]) == (str(job.max_price_per_tera_unit), [])
    world.add_machine(2, price=10**15)
    world.run_to(world.create(job), Phase.ASSIGNED)
    (call,) = (await node.call("dekube_quoteTask", raw))["calls"]
    assert call == {
        "time_ms": world.time_ms - 1_000, "matches": 1, "lowest": str(10**15), "mean": str(10**15),
        "highest": str(10**15),
    }  # fmt: skip

    task = world.create(job)
    save_report(world.state, spec_hash(encode_spec(job)), JobReport(Reason.JOB_DIVERGED, 3, worker, task, 2))
    quoted = await node.call("dekube_quoteTask", raw, hexed(task))
    assert quoted["reported"] == {
        "reason": "job_diverged", "height": 3, "worker": hexed(worker), "task": hexed(task), "times": 2,
    }  # fmt: skip
    with pytest.raises(RpcError) as refused:
        await node.call("dekube_quoteTask", raw, hexed(bytes(32)))
    assert refused.value.reason == "task_unknown"


async def test_unknown_tasks_and_foreign_cursors_are_refused() -> None:
    world = World()
    node = WorldNode(world)
    for _ in range(3):
        task = hexed(world.create())
        world.block()
    for name in ("dekube_getTaskHistory", "dekube_getTaskWindows", "dekube_getBill"):
        with pytest.raises(RpcError, match=f"^no task has the id {hexed(bytes(32))}$") as caught:
            await node.call(name, hexed(bytes(32)))
        assert (caught.value.reason, caught.value.number) == ("task_unknown", -32001)
    cursor = (await node.call("dekube_getTasks", limit=1))["next"]
    foreign: tuple[tuple[str, dict[str, str]], ...] = (
        ("dekube_getTasks", {"phase": "running"}),
        ("dekube_getTasks", {"requester": hexed(REQUESTER)}),
        ("dekube_getNodes", {}),
        ("dekube_getTaskHistory", {"task": task}),
    )
    for name, named in foreign:
        with pytest.raises(RpcError) as refused:
            await node.call(name, cursor=cursor, **named)
        assert refused.value.reason == "invalid_params"
    with pytest.raises(RpcError):
        await node.call("dekube_getTasks", phase="running", requester=hexed(REQUESTER))
    with pytest.raises(DecodeError):
        await node.call("dekube_quoteTask", "0x80")


def test_all_events_of_the_market_are_known() -> None:
    names = {kind.name for kind in EVENTS.values()}
    assert {"Staked", "NodeRegistered", "TaskCreated", "TaskPhase", "WindowPhase", "Locked", "Paid"} <= names


async def test_a_task_shows_the_machines_that_could_not_have_its_inputs_and_until_when_it_waits() -> None:
    world = World()
    node = WorldNode(world)
    world.add_machine(99, roles=NodeRole.VERIFY)
    for name in range(1, 5):
        world.add_machine(
            name, roles=NodeRole.COMPUTE, price=WORTH // 2000, manners=Manners(silent=frozenset(Action))
        )
    task = world.create(spec(match_ms=12 * 3_600_000))
    said: list[bytes] = []
    for _ in range(3):
        shown = (await node.call("dekube_getTask", hexed(task)))["task"]
        assert ([item.lower() for item in shown["complaints"]], shown["aside_until_ms"]) == (
            [*map(hexed, said)],
            None,
        )
        said.append(world.run(task, until=lambda record: record.worker != b"").worker)
        assert world.send(said[-1], GIVE_UP_TASK, [task, int(Reason.INPUT_UNAVAILABLE)]) is None
    world.block()
    shown = (await node.call("dekube_getTask", hexed(task)))["task"]
    assert [item.lower() for item in shown["complaints"]] == [*map(hexed, said)]
    assert shown["aside_until_ms"] == world.task(task).match_at_ms > world.time_ms
    lines = _said(shown)
    assert lines["inputs"].startswith("3 machines could not fetch the inputs; the search waits until 20")
    assert world.send(REQUESTER, RESUME_TASK, [task]) is None
    world.block()
    shown = (await node.call("dekube_getTask", hexed(task)))["task"]
    assert len(shown["complaints"]) == 3 and shown["aside_until_ms"] is None
    assert _said(shown) == {"inputs": "3 machines could not fetch the inputs"}
