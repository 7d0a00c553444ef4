"""What a kind weighs covers what replaying it takes, counted as calls of functions: the same on every machine.

A call here is about half a microsecond of one core with all that is between two of them, so a block full of the
dearest kind takes less than a second or so of the core that replays it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

import pytest

from state.primitives.codec import Value
from tasks.lifecycle import Phase, Reason, WindowPhase
from tasks.parameters import TaskParameters
from tasks.records import TaskRecord, load_window
from tasks.registry import NodeRole
from tasks.transitions import REVEAL_VERDICT, SEAL_VERDICT
from tests.tasks.test_conservation import play
from tests.tasks.world import QUICK, Manners, World, spec

CALLS_PER_1000_GAS: Final = 6
WORK, CHECK = NodeRole.COMPUTE, NodeRole.VERIFY


def calls_of(work: Callable[[], Any]) -> int:
    """Count the calls of Python and built-in functions that ``work`` makes."""
    count = 0

    def note(_frame: object, event: str, _argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(before)
    return count


@pytest.fixture
def dearest(monkeypatch: pytest.MonkeyPatch) -> dict[int, int]:
    """The most calls of each kind that was sent in any world, with decoding."""
    found: dict[int, int] = {}
    send = World.send

    def counting(world: World, sender: bytes, kind: int, payload: list[Value]) -> str | None:
        answer: list[str | None] = []
        calls = calls_of(lambda: answer.append(send(world, sender, kind, payload)))
        found[kind] = max(found.get(kind, 0), calls)
        return answer[0]

    monkeypatch.setattr(World, "send", counting)
    return found


def check(dearest: dict[int, int]) -> None:
    gas = {kind: rule.gas for kind, rule in World().rules.items()}
    assert {kind: calls for kind, calls in dearest.items() if 1000 * calls > CALLS_PER_1000_GAS * gas[kind]} == {}


def test_every_kind_pays_for_what_it_does_in_histories_of_everything(dearest: dict[int, int]) -> None:
    for seed in (25, 31, 33):
        play(seed)
    assert dearest.keys() == World().rules.keys()
    check(dearest)


def test_the_last_word_of_a_jury_pays_for_all_that_it_ends(dearest: dict[int, int]) -> None:
    """It voids as many windows as may be open, with all their checkers, of a machine that is new."""
    parameters = replace(
        QUICK, samples=TaskParameters().samples, verifiers_new=3, new_windows=10, final_ms=100_000,
        seal_ms_min=60_000, reveal_ms=60_000, jury=3,
    )  # fmt: skip
    world = World(parameters=parameters)
    worker = world.add_machine(1, roles=WORK, manners=Manners(lies=True))
    for at in range(30):
        world.add_machine(at + 100, roles=CHECK)
    task = world.create(spec(total=320, segment=1, window=20, match_ms=3_600_000))

    def two_wait(record: TaskRecord) -> bool:
        return record.next_window == 3 and all(
            load_window(world.state, task, number).phase >= WindowPhase.REVEALING for number in range(2)
        )

    world.run(task, until=two_wait)
    world.run(task, until=lambda record: record.reason == Reason.WORK_REJECTED)
    assert world.task(task).next_window == 0 and worker in world.task(task).excluded
    assert world.task(task).phase == Phase.DEGRADED
    assert dearest[SEAL_VERDICT] and dearest[REVEAL_VERDICT] > 3_000
    check(dearest)
