"""A task's life in words."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from node.market.posting import NEXT, REPORTED, follow
from rpc.client import Client, TaskUpdate
from rpc.client.results import TaskChange, Window
from tests.rpc.client.answers import change, task, window

TASK = b"t" * 32


class Following:
    """A client whose task goes through ``updates``."""

    def __init__(self, updates: list[TaskUpdate], *notices: str) -> None:
        self.updates = updates
        self.notices = [SimpleNamespace(text=text) for text in notices]

    def quote_task(self, raw: bytes, *, task: bytes) -> Any:
        assert raw == b"\x12" or not self.notices
        return SimpleNamespace(objections=(), notices=self.notices)

    def custody(self, _task: bytes, _window: int) -> None:
        return None

    def follow(self, _task: bytes, **_: Any) -> Iterator[TaskUpdate]:
        yield from self.updates


def test_each_change_and_each_window_is_one_line_and_the_end_is_returned() -> None:
    changes: tuple[TaskChange, ...] = (change(1, "created", b"\x11" * 20), change(2, "matching", bytes(20)))
    windows: tuple[Window, ...] = (window(0, "proved"), window(1, "sealing"))
    updates = [TaskUpdate(task("matching"), changes, ()), TaskUpdate(task("settled"), (), windows)]
    said: list[str] = []
    assert follow(cast(Client, Following(updates)), TASK, said.append) == "settled"
    assert [line.split()[2] for line in said if "height" in line] == ["CREATED", "MATCHING"]
    assert "0x1111" in said[0]
    assert " by " not in said[1], "the end of a block acts for nobody"
    assert "waits for a machine" in said[2], "nobody took it at once"
    assert "steps 0-25" in said[3]
    assert "0 verifiers re-run segment [3]" in said[4]


def test_a_task_that_waits_for_its_requester_says_what_can_be_done() -> None:
    paused = TaskUpdate(task("paused"), (change(3, "degraded", bytes(20)), change(4, "paused", bytes(20))), ())
    said: list[str] = []
    follow(cast(Client, Following([paused])), TASK, said.append)
    assert len(said) == 3, "what is over by now needs no advice"
    assert "dekube task resume" in said[2]
    assert "dekube task cancel" in said[2]


@pytest.mark.parametrize("phase", ["matching", "degraded"])
@pytest.mark.parametrize("reason", ["job_diverged", "job_unfit", "input_unavailable"])
def test_a_task_that_a_machine_gave_up_says_what_it_reported_and_what_the_others_lack(
    phase: str, reason: str
) -> None:
    document = {"spec": {"raw": "0x12"}}
    waiting = replace(task(phase), id=TASK, document=document)
    given_up = replace(change(4, phase, b"\x11" * 20), reason=reason)
    said: list[str] = []
    client = Following([TaskUpdate(waiting, (given_up,), ())], "below all asks")
    follow(cast(Client, client), TASK, said.append)
    assert [line.strip() for line in said[1:]] == [REPORTED[reason], NEXT[phase], "below all asks"]
    del client.notices  # a gateway that does not say
    waiting.document["spec"].clear()
    follow(cast(Client, client), TASK, said.append)
