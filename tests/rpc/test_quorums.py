"""Quorums of containers as the RPC shows them: the quote, the duties, and which machines agree."""

from __future__ import annotations

from billing.escrow import Purpose
from node.cli.tasks.views import _progress
from state.view.accounts import balance_of
from tasks.ledger.quorum_records import QuorumPhase
from tasks.ledger.settlement import budget_of
from tasks.spec import encode_spec
from tests.rpc.harness import hexed
from tests.rpc.test_market import WorldNode
from tests.tasks.containers import host
from tests.tasks.quorums import Hand, Play, deterministic
from tests.tasks.world import QUICK, REQUESTER, World


async def test_a_quote_is_for_three_machines_and_says_if_there_are_fewer() -> None:
    world, job = World(), deterministic()
    node = WorldNode(world)
    for name in (1, 2):
        host(world, name)
    world.block()
    quoted = await node.call("dekube_quoteTask", hexed(encode_spec(job)))
    budget = budget_of(job, QUICK)
    assert (quoted["price"], quoted["total"]) == (str(3 * budget.price), str(3 * budget.total))
    assert [item["code"] for item in quoted["notices"]] == ["few_machines", "mount_not_held"]
    host(world, 3)
    world.block()
    quoted = await node.call("dekube_quoteTask", hexed(encode_spec(job)))
    assert [item["code"] for item in quoted["notices"]] == ["mount_not_held"]
    before = balance_of(world.state, REQUESTER)
    world.create(job)
    assert before - balance_of(world.state, REQUESTER) == int(quoted["total"])


async def test_a_task_shows_its_machines_and_what_each_of_them_has_to_do() -> None:
    play = Play(Hand(b"wrong"), Hand(), Hand())
    node = WorldNode(play.world)
    while True:  # until the machine that differs is drawn for one of the first seats
        task = play.create()
        play.run_until(lambda: play.world.task(play.seats()[1]).worker != b"")
        if {play.world.task(seat).worker for seat in play.seats()[:2]} & {next(iter(play.hands))}:
            break
        play.run()
    shown = (await node.call("dekube_getTask", hexed(task)))["task"]["quorum"]
    assert (shown["phase"], shown["seat"], shown["result"], shown["ending"]) == ("running", 0, None, None)
    assert [seat["state"] for seat in shown["seats"]] == ["working", "working", "idle"]
    play.run(QuorumPhase.REVEALING)
    for seat in play.quorum.seats[:2]:
        duties = (await node.call("dekube_getDuties", hexed(seat.machine)))["work"]
        assert [duty["action"] for duty in duties] == ["reveal"]
    play.run_until(lambda: play.quorum.phase == QuorumPhase.SHOWING)
    actions = []
    for machine in play.hands:
        actions += [duty["action"] for duty in (await node.call("dekube_getDuties", hexed(machine)))["work"]]
    assert "show" in actions
    play.run()
    for number, each in enumerate(play.seats()):
        found = (await node.call("dekube_getTask", hexed(each)))["task"]
        shown = found["quorum"]
        assert (shown["id"], shown["seat"], shown["phase"]) == (hexed(task), number, "ended")
        assert (shown["ending"], shown["reason"]) == ("settled", "container_exited")
        states = [seat["state"] for seat in shown["seats"]]
        assert sorted(states) == ["agreed", "agreed", "differed"]
        told = _progress(found)
        assert told["quorum"] == "ended (container exited)"
        assert [told[f"machine {at + 1}"].partition(",")[0] for at in range(3)] == states
        paid = sum(int(seat["paid"]) for seat in shown["seats"])
        lines = [await node.all("dekube_getBill", hexed(seat), limit=20) for seat in play.seats()]
        metered = {Purpose.METERED.name.lower(), Purpose.DISK.name.lower()}
        assert paid == sum(int(line["amount"]) for each in lines for line in each if line["purpose"] in metered)
