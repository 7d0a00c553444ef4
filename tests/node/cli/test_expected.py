"""What a quote expects a task to cost is what it costs, against lives of tasks on the ledger."""

from __future__ import annotations

from dataclasses import replace

import pytest

from billing.escrow import Movement, escrow_totals
from node.cli.tasks.expected import Expected, expected_lines, expected_of
from rpc.client.results import TaskQuote, read_result
from tasks.ledger import queries
from tasks.ledger.lifecycle import Phase
from tasks.ledger.registry import NodeRole
from tasks.spec import encode_spec
from tests.rpc.harness import hexed
from tests.rpc.test_market import WorldNode
from tests.tasks.world import QUICK, WORTH, World, spec

LIMIT = WORTH // 1_000
JOB = spec(price=LIMIT)


async def quoted(world: World) -> TaskQuote:
    return read_result(TaskQuote, await WorldNode(world).call("dekube_quoteTask", hexed(encode_spec(JOB))))


@pytest.mark.parametrize("part", [1, 4])
async def test_a_task_costs_about_what_its_quote_expects(part: int) -> None:
    """At the limit, and at a quarter of it. Nobody was paid yet, so the lowest ask counts."""
    world = World(parameters=replace(QUICK, audit_bps=0, new_windows=0))
    world.add_machine(1, roles=NodeRole.COMPUTE, price=LIMIT // part)
    for name in range(2, 6):
        world.add_machine(name, roles=NodeRole.VERIFY)
    found = expected_of(JOB, await quoted(world))
    assert found is not None and found.price_per_tera_unit == LIMIT // part
    task = world.create(JOB)
    world.run_to(task, Phase.SETTLED)
    totals = escrow_totals(world.state, task)
    lines = queries.bill(world.state, task).lines
    requester = world.task(task).requester
    back = sum(line.amount for line in lines if line.movement == Movement.REFUNDED and line.party == requester)
    assert totals.deposited >= found.cost + found.refund
    assert abs(found.refund - back) <= (found.cost + found.refund) // 100, (found, back)


async def test_nothing_is_expected_where_nobody_asks_a_price() -> None:
    world = World()
    empty = await quoted(world)
    assert expected_of(JOB, empty) is None and not expected_lines(None)
    free = replace(empty, limit=0)
    assert expected_of(JOB, free) is None


def test_the_lines_say_what_comes_back() -> None:
    told = expected_lines(Expected(10**15, 10**18, 3 * 10**18))
    assert "1 DKB" in told["to expect"] and told["comes back"] == "about 3 DKB of what is locked"
