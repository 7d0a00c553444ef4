"""Following a task: each change once, in order, until its end."""

from __future__ import annotations

from typing import Any

import pytest

from rpc.client import TaskEnded
from rpc.client.tasks import _bill, _follow
from tests.rpc.client.answers import ADDRESS, at, change_json, task_json, window_json
from tests.rpc.client.world import World

TASK = b"\xab" * 32
PHASES = ("created", "matching", "running", "settled")


class Life:
    """A gateway to a chain on which a task makes a step in each block."""

    def __init__(self, *, late_history: bool = False, ends: bool = True) -> None:
        self.height = 1
        self.late_history = late_history
        self.ends = ends
        self.world = World(self.answer)

    def answer(self, method: str, params: Any) -> Any:
        steps = min(self.height, len(PHASES) if self.ends else len(PHASES) - 1)
        match method:
            case "dial":
                self.world.all[0].said.clear()
            case "dekube_head":
                return {"at": at(self.height)}
            case "dekube_subscribe":
                self.tell()
                return {"from_height": params["from_height"]}
            case "dekube_getTaskHistory":
                shown = steps - 1 if self.late_history and self.height == 4 else steps
                start = int(params.get("cursor") or params["first"])
                items = [change_json(n, PHASES[n], ADDRESS) for n in range(shown)][start : start + 2]
                return {
                    "at": at(self.height),
                    "items": items,
                    "next": str(start + 2) if start + 2 < shown else None,
                }
            case "dekube_getTaskWindows":
                phase = {1: None, 2: "proved"}.get(self.height, "final")
                found = [window_json(0, phase)] if phase and params["first"] == 0 else []
                return {"at": at(self.height), "items": found, "next": None}
            case "dekube_getTask":
                self.tell()
                return {"at": at(self.height), "task": task_json(PHASES[steps - 1], steps, int(self.height > 2))}
            case _:
                raise AssertionError(method)
        return None

    def tell(self) -> None:
        """Make the next block and tell of it."""
        self.height += 1
        result = {"at": at(self.height), "items": []}
        self.world.all[0].said.append({"method": "dekube_subscription", "params": {"result": result}})


@pytest.mark.parametrize("late_history", [False, True])
def test_each_change_is_found_once_until_the_end(late_history: bool) -> None:
    life = Life(late_history=late_history)
    updates = life.world.take(_follow(life.world.core, TASK))
    assert [change.after for update in updates for change in update.changes] == list(PHASES)
    windows = [window.phase for update in updates for window in update.windows]
    assert windows in (["proved", "final"], ["final"])
    assert updates[-1].task.phase == "settled"
    assert updates[-1].task.has_ended


class LongLife:
    """A gateway to a long task: a window is proved, and the one before final, in each second block."""

    def __init__(self, windows: int) -> None:
        self.windows = windows
        self.height = 1
        self.world = World(self.answer)
        self.told = 0
        """Items of lists that were handed out."""

    def answer(self, method: str, params: Any) -> Any:
        steps = min((self.height + 1) // 2, self.windows + 1)
        ended = steps > self.windows
        match method:
            case "dial":
                self.world.all[0].said.clear()
                return None
            case "dekube_head":
                return {"at": at(self.height)}
            case "dekube_subscribe":
                self.tell()
                return {"from_height": params["from_height"]}
            case "dekube_getTaskHistory":
                items = [change_json(n, "settled" if ended else "running", ADDRESS) for n in range(steps)]
                return self.page(items, params)
            case "dekube_getTaskWindows":
                items = [window_json(n, "final" if n < steps - 1 else "proved") for n in range(steps - 1 + 1)]
                return self.page(items[: self.windows], params)
            case "dekube_getTask":
                shown = task_json("settled" if ended else "running", steps, steps - 1)
                answer = {"at": at(self.height), "task": shown}
                if not ended:
                    self.tell()
                return answer
            case _:
                raise AssertionError(method)

    def page(self, items: list[Any], params: Any) -> Any:
        start = int(params.get("cursor") or params["first"])
        found, following = items[start : start + params["limit"]], start + params["limit"]
        self.told += len(found)
        return {"at": at(self.height), "items": found, "next": str(following) if following < len(items) else None}

    def tell(self) -> None:
        self.height += 1
        result = {"at": at(self.height), "items": []}
        self.world.all[0].said.append({"method": "dekube_subscription", "params": {"result": result}})


def test_following_asks_for_what_is_new_alone() -> None:
    life = LongLife(windows=400)
    updates = life.world.take(_follow(life.world.core, TASK))
    assert updates[-1].task.phase == "settled"
    assert [change.number for update in updates for change in update.changes] == list(range(401))
    phases: dict[int, list[str]] = {}
    for update in updates:
        for window in update.windows:
            phases.setdefault(window.number, []).append(window.phase)
    assert all(seen in (["proved", "final"], ["final"]) for seen in phases.values())
    assert sorted(phases) == list(range(400))
    # Three questions a block; of each list what came since, and what is not final yet.
    assert len(life.world.all[0].asked) < 3.1 * life.height + 5
    assert life.told < 4 * life.height


def test_a_task_that_does_not_end_in_time_is_told() -> None:
    life = Life(ends=False)
    plain = life.answer

    def silent(method: str, params: Any) -> Any:
        answer = plain(method, params)
        if life.height > 5:
            life.world.all[0].said = [None] * 9
        return answer

    life.world.all[0].answer = silent
    with pytest.raises(TaskEnded):
        life.world.take(_follow(life.world.core, TASK, timeout_s=90))


def test_a_bill_has_all_its_lines_and_sums_that_add_up() -> None:
    line = {"number": 0, "height": 1, "movement": "paid", "purpose": "work", "party": None, "amount": "5",
            "window": None}  # fmt: skip
    totals = {"deposited": "100000000000000000000000", "locked": "1", "paid": "5", "refunded": "0", "burned": "0"}

    def answer(_method: str, params: Any) -> Any:
        start = int(params.get("cursor") or 0)
        return {"totals": totals, "items": [line] * 100, "next": str(start + 1) if start < 4 else None}

    world = World(answer)
    bill = world.run(_bill(world.core, TASK))
    assert len(bill.lines) == 500
    assert bill.totals.deposited == 10**23
    assert not bill.totals.is_exact
