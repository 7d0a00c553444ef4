"""A requester's side: paging, and what is said of a task as it becomes final."""

from __future__ import annotations

from typing import Any, cast

import pytest

import node.posting
from node.posting import TaskEnded, bill_of, follow, pages
from rpc.client import Client

TASK = "0x" + "ab" * 32


class Gateway:
    """What a gateway answers at one look after another, in the place of a socket."""

    def __init__(self, looks: list[dict[str, Any]]) -> None:
        self.looks = looks
        self.at = 0

    def call(self, method: str, *arguments: Any) -> Any:
        look = self.looks[min(self.at, len(self.looks) - 1)]
        if method == "dekube_getTask":
            self.at += 1
            return {"task": look["task"]}
        items = look[method]
        start = int(arguments[1] or 0) if len(arguments) > 1 else 0
        more = start + 2 < len(items)
        page = {"items": items[start : start + 2], "next": str(start + 2) if more else None}
        return page | {"totals": look.get("totals", {})}


def change(height: int, after: str, actor: str | None = None) -> dict[str, Any]:
    return {"height": height, "after": after, "reason": "because", "actor": actor}


def look(phase: str, changes: list[dict[str, Any]], windows: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "task": {"phase": phase, "history": len(changes)},
        "dekube_getTaskHistory": changes,
        "dekube_getTaskWindows": windows,
        "dekube_getBill": [{"line": number} for number in range(5)],
        "totals": {"deposited": "100000000000000000000000", "paid": "7"},
    }


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node.posting, "POLL_S", 0.0)


CHANGES = [
    change(1, "created", "0x" + "11" * 20),
    change(2, "matching"),
    change(5, "running"),
    change(9, "settled"),
]


def test_pages_are_joined_and_amounts_are_whole_numbers() -> None:
    client = cast(Client, Gateway([look("settled", CHANGES, [])]))
    assert list(pages(client, "dekube_getTaskHistory", TASK)) == CHANGES
    lines, totals = bill_of(client, TASK)
    assert len(lines) == 5
    assert totals == {"deposited": 10**23, "paid": 7}


def test_each_change_is_said_once_and_the_end_is_returned() -> None:
    window = {"number": 0, "phase": "final"}
    looks = [
        look("created", CHANGES[:1], []),
        look("running", CHANGES[:3], [window]),
        look("settled", CHANGES, [window]),
    ]
    said: list[str] = []
    assert follow(cast(Client, Gateway(looks)), TASK, said.append, timeout_s=10) == "settled"
    assert [line.split()[2] for line in said if "height" in line] == ["CREATED", "MATCHING", "RUNNING", "SETTLED"]
    assert sum("window 0" in line for line in said) == 1


def test_an_end_whose_last_change_was_not_yet_shown_is_waited_for() -> None:
    early = look("settled", CHANGES[:2], []) | {"task": {"phase": "settled", "history": 4}}
    said: list[str] = []
    assert follow(cast(Client, Gateway([early, look("settled", CHANGES, [])])), TASK, said.append) == "settled"
    assert len(said) == 4


def test_a_task_that_does_not_end_in_time_is_told() -> None:
    with pytest.raises(TaskEnded):
        follow(cast(Client, Gateway([look("running", CHANGES[:3], [])])), TASK, lambda _: None, timeout_s=0.05)
