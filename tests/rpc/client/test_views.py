"""Running containers over gateways: logs that go on after refusals, other machines and lies."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import rpc.client.views
from rpc.client import AnswerMalformed, ArgumentInvalid, ClientError
from rpc.client.views import BEGIN, UNHEARD_S_MAX, LogPiece, ViewsApi, ask_view, ask_viewer
from rpc.protocol.errors import RpcError
from rpc.protocol.task_views import (
    LOG_BYTES_MAX,
    SeriesPoint,
    TaskView,
    ViewRefused,
    decode_question,
    decode_view,
    encode_view,
    requester_of,
    seal_view,
)
from state.primitives.errors import DecodeError
from state.primitives.keys import SecretKey
from tasks.executor.containers.log_entries import LogEntry, LogPart, select_entries
from tests.rpc.client.answers import at, task_json
from tests.rpc.client.test_blobs import GENESIS, KEY
from tests.rpc.client.test_blobs import answer as answer_of_chain
from tests.rpc.client.world import World

TASK = b"t" * 32
FIRST, SECOND = b"\x01" * 20, b"\x02" * 20
logs_of, series_of = ViewsApi.task_logs._make, ViewsApi.task_series._make


def view_of(log: LogPart, *, stage: str = "running", points: tuple[SeriesPoint, ...] = ()) -> TaskView:
    return TaskView(stage, (0, 0), 5, 1, 900, 1 << 20, (), 3, 9, "", {"loss": 0.5}, points, log)


class Machines:
    """Machines that have a task one after the other, and what each one's container has written."""

    def __init__(self) -> None:
        self.logs: dict[bytes, list[LogEntry]] = {FIRST: []}
        self.worker, self.stage, self.phase = FIRST, "running", "running"
        self.refusals = 0
        self.limit = LOG_BYTES_MAX
        self.on_ask: list[Any] = []
        """What happens at each of the next questions."""

    def write(self, text: str) -> None:
        log = self.logs.setdefault(self.worker, [])
        log.append(LogEntry(len(log) + 1, 1, text.encode()))

    def answer(self, method: str, params: Any) -> Any:
        if method == "dekube_getTask":
            return {"at": at(9), "task": task_json(self.phase)}
        if method != "dekube_viewTask":
            return answer_of_chain(method, params)
        if self.on_ask:
            self.on_ask.pop(0)()
        if self.refusals:
            self.refusals -= 1
            raise RpcError("view_refused", "no machine")
        question = decode_question(bytes.fromhex(params["question"][2:]))
        assert requester_of(question, genesis_hash=GENESIS, task=TASK, height=9) == KEY.address
        entries = tuple(self.logs[self.worker])
        part = select_entries(entries, question.after, min(self.limit, question.log_bytes))
        points = tuple(
            SeriesPoint(n, n, n, {"loss": 1 / n}) for n in range(max(1, question.points_from or 0), 201)
        )
        view = view_of(part, stage=self.stage, points=points[:128] if question.points_from is not None else ())
        sealed = seal_view(view, question.public, task=TASK, worker=self.worker)
        return {"at": {}, "task": "", "worker": "0x" + self.worker.hex(), "sealed": "0x" + sealed.hex()}


def texts(pieces: list[LogPiece]) -> list[str]:
    return [entry.text.decode() for piece in pieces for entry in piece.entries]


def test_a_log_is_followed_over_refusals_and_another_machine_until_its_end() -> None:
    machines = Machines()
    machines.limit = 1  # an entry for each answer
    machines.write("a")
    machines.write("b")

    def go_down() -> None:
        machines.refusals = 2

    def take_over() -> None:
        machines.worker = SECOND
        machines.write("again")

    def end() -> None:
        machines.stage, machines.phase = "ended", "settled"
        machines.write("done")

    def wait() -> None:
        """Nothing happens."""

    machines.on_ask = [wait, wait, go_down, wait, take_over, wait, end]
    made = World(machines.answer)
    pieces = made.take(logs_of(made.core, TASK, key=KEY, follow=True))
    assert texts(pieces) == ["a", "b", "again", "done"]
    assert [piece.worker for piece in pieces] == [FIRST, FIRST, SECOND, SECOND]


def test_without_following_what_is_there_is_read() -> None:
    machines = Machines()
    machines.limit = 1
    machines.write("a")
    machines.write("b")
    made = World(machines.answer)
    pieces = made.take(logs_of(made.core, TASK, key=KEY))
    assert texts(pieces) == ["a", "b"]
    assert texts(made.take(logs_of(made.core, TASK, key=KEY, after=pieces[0].place))) == ["b"]


def test_a_machine_that_nobody_hears_is_given_up() -> None:
    machines = Machines()
    machines.refusals = 10**9
    made = World(machines.answer)
    with pytest.raises(ClientError) as refused:
        made.take(logs_of(made.core, TASK, key=KEY, follow=True))
    assert refused.value.reason == "view_refused" and UNHEARD_S_MAX < made.now_s <= UNHEARD_S_MAX + 60


def test_a_series_comes_in_parts() -> None:
    made = World(Machines().answer)
    assert [point.number for point in made.run(series_of(made.core, TASK, key=KEY))] == list(range(1, 201))


@pytest.mark.parametrize("is_repeated", [False, True], ids=["without end", "repeated"])
def test_points_that_are_repeated_or_have_no_end_are_refused(
    monkeypatch: pytest.MonkeyPatch, is_repeated: bool
) -> None:
    machines, asked = Machines(), list[int]()
    monkeypatch.setattr(rpc.client.views, "SERIES_POINTS_MAX", 1_000)

    def answer(method: str, params: Any) -> Any:
        if method != "dekube_viewTask":
            return machines.answer(method, params)
        question = decode_question(bytes.fromhex(params["question"][2:]))
        first = 1 if is_repeated else question.points_from or 0
        asked.append(first)
        points = tuple(SeriesPoint(number, 1, None, {}) for number in range(first, first + 128))
        sealed = seal_view(view_of(LogPart((), BEGIN), points=points), question.public, task=TASK, worker=FIRST)
        return {"at": {}, "task": "", "worker": "0x" + FIRST.hex(), "sealed": "0x" + sealed.hex()}

    made = World(answer)
    with pytest.raises(AnswerMalformed, match="points"):
        made.run(series_of(made.core, TASK, key=KEY))
    assert len(asked) == (2 if is_repeated else 8)


def test_a_question_needs_a_key_or_a_node(tmp_path: Path) -> None:
    made = World(Machines().answer)
    with pytest.raises(ArgumentInvalid):
        made.run(ask_viewer(made.core, TASK))


@pytest.mark.parametrize(
    "lie",
    [
        {}, [], None, {"worker": "0x01", "sealed": "0x"}, {"worker": 5, "sealed": 6},
        {"worker": "0x" + FIRST.hex(), "sealed": "0x" + "00" * 100},
    ],
)  # fmt: skip
def test_a_gateway_that_lies_is_found_out(lie: Any) -> None:
    def answer(method: str, params: Any) -> Any:
        return lie if method == "dekube_viewTask" else answer_of_chain(method, params)

    made = World(answer)
    viewer = made.run(ask_viewer(made.core, TASK, key=KEY))
    with pytest.raises(AnswerMalformed):
        made.run(ask_view(made.core, viewer))


def test_a_view_is_bound_to_its_task_and_machine() -> None:
    made = World(Machines().answer)
    viewer = made.run(ask_viewer(made.core, TASK, key=KEY))
    worker, view = made.run(ask_view(made.core, viewer))
    assert worker == FIRST and view.progress == 3 and decode_view(encode_view(view)) == view


def test_a_question_of_another_account_or_time_is_refused() -> None:
    made = World(Machines().answer)
    viewer = made.run(ask_viewer(made.core, TASK, key=SecretKey(b"x" * 32)))
    asked: list[bytes] = []

    def answer(method: str, params: Any) -> Any:
        asked.append(bytes.fromhex(params["question"][2:]))
        raise RpcError("view_refused", "no")

    with pytest.raises(ClientError):
        other = World(answer)
        other.run(ask_view(other.core, viewer))
    question = decode_question(asked[0])
    assert requester_of(question, genesis_hash=GENESIS, task=TASK, height=9) != KEY.address
    for height in (question.until_height + 17, question.until_height - 3_700):
        with pytest.raises(ViewRefused):
            requester_of(question, genesis_hash=GENESIS, task=TASK, height=height)
    with pytest.raises(DecodeError):
        decode_question(asked[0] + b"\0")
