"""A running container from the requester's side: its log as it grows, its progress, what it uses (market.md R109).

All of it is what the machine says. The requester's account signs for a one-time key, and answers are sealed to it.
"""

from __future__ import annotations

import secrets
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

from rpc.client.arguments import check_hash
from rpc.client.control import ask_node
from rpc.client.core import Core, Flow, Item, Pause, ReadClock, RunBlocking, Stream, hexed
from rpc.client.errors import AnswerMalformed, ArgumentInvalid, ClientError
from rpc.client.flow_methods import FlowMethod, StreamMethod
from rpc.client.results import ChainInfo, Head, read_result
from rpc.client.tasks import ask_task
from rpc.protocol.task_views import (
    LOG_BYTES_MAX,
    POINTS_MAX,
    VIEW_BLOCKS_MAX,
    SeriesPoint,
    TaskView,
    ViewQuestion,
    encode_question,
    open_view,
    view_digest,
)
from state.primitives.errors import DecodeError
from state.primitives.keys import SecretKey
from tasks.custody.wraps import public_key_of
from tasks.executor.containers.log_entries import LogEntry, LogPlace
from tasks.ledger.lifecycle import ENDED

__all__ = ["LogPiece", "Viewer", "ViewsApi", "ask_view", "ask_viewer"]

KEY_BYTES: Final = 32
VALID_S: Final = 900.0
"""Seconds after which a question is signed again."""
PAUSE_S: Final = 1.0
BUSY_PAUSE_S: Final = 0.3
"""Machines answer four questions a second about a task."""
UNHEARD_S_MAX: Final = 600.0
"""How long a machine that does not answer is asked again."""
SERIES_POINTS_MAX: Final = 65_536
"""Points of a series that are read: a machine keeps 1,024, but may lie."""
BEGIN: Final = LogPlace()
"""The beginning of a log."""
_PHASES_ENDED: Final = frozenset(phase.name.lower() for phase in ENDED)


class Viewer(NamedTuple):
    """The right to see a task until a height: the one-time secret, and the requester's signature for it."""

    task: bytes
    secret: bytes
    until_height: int
    signature: bytes


class LogPiece(NamedTuple):
    """Entries of a log. ``worker`` is the machine that wrote them.

    ``is_cut``: what stood before them is gone. ``place`` is where the next ones follow; a reader can begin there.
    """

    worker: bytes
    entries: tuple[LogEntry, ...]
    place: LogPlace
    is_cut: bool


def ask_viewer(
    core: Core, task: bytes, *, key: SecretKey | None = None, control: Path | None = None
) -> Flow[Viewer]:
    """Return the right to see a task for about an hour: signed by ``key``, or by the node at ``control``.

    Raises ArgumentInvalid without either, ControlRefused, ControlUnavailable.
    """
    check_hash("task", task)
    secret = secrets.token_bytes(KEY_BYTES)
    public = public_key_of(secret)
    if key is not None:
        chain = read_result(ChainInfo, (yield from core.call("dekube_chainInfo")))
        core.check_chain(chain.chain_id)
        head = read_result(Head, (yield from core.call("dekube_head")))
        until = head.at.height + VIEW_BLOCKS_MAX
        return Viewer(task, secret, until, key.sign(view_digest(chain.genesis_hash, task, public, until)))
    if control is None:
        raise ArgumentInvalid("key: that of the task's requester is needed, or the control socket of its node")
    asked = partial(ask_node, control, "sign_view", task=task.hex(), public=public.hex())
    answer: Any = yield RunBlocking(asked)
    match answer:
        case {"until": int(until), "signature": str(signature)}:
            return Viewer(task, secret, until, bytes.fromhex(signature))
        case _:
            raise AnswerMalformed("not a signature of the node")


def ask_view(
    core: Core, viewer: Viewer, *, after: LogPlace = BEGIN, log_bytes: int = 0, points_from: int | None = None
) -> Flow[tuple[bytes, TaskView]]:
    """Return the machine of a task, and what it says of the container now.

    Raises ClientError (``view_refused`` where no machine has it), AnswerMalformed.
    """
    question = ViewQuestion(
        public_key_of(viewer.secret), viewer.until_height, viewer.signature, after, log_bytes, points_from
    )
    asked = {"task": hexed(viewer.task), "question": hexed(encode_question(question))}
    answer = yield from core.call("dekube_viewTask", **asked)
    try:
        worker, sealed = bytes.fromhex(answer["worker"][2:]), bytes.fromhex(answer["sealed"][2:])
        view = yield RunBlocking(partial(open_view, sealed, viewer.secret, task=viewer.task, worker=worker))
    except (KeyError, TypeError, ValueError, DecodeError) as error:
        raise AnswerMalformed(f"dekube_viewTask: {error}") from None
    return worker, view


def _task_view(
    core: Core, task: bytes, *, key: SecretKey | None = None, control: Path | None = None
) -> Flow[TaskView]:
    """Return what the machine of a container says of it: stage, progress, use of processors and memory."""
    viewer = yield from ask_viewer(core, task, key=key, control=control)
    _, view = yield from ask_view(core, viewer)
    return view


def _task_series(
    core: Core, task: bytes, *, key: SecretKey | None = None, control: Path | None = None
) -> Flow[list[SeriesPoint]]:
    """Return the points that a container has reported: at most one a second, and fewer the longer it runs.

    Raises ClientError, AnswerMalformed where points are repeated or have no end.
    """
    viewer = yield from ask_viewer(core, task, key=key, control=control)
    found: list[SeriesPoint] = []
    while True:
        after = found[-1].number if found else -1
        _, view = yield from ask_view(core, viewer, points_from=after + 1)
        for point in view.points:
            if point.number <= after or len(found) >= SERIES_POINTS_MAX:
                raise AnswerMalformed("the machine's points are out of order or without end")
            found.append(point)
            after = point.number
        if len(view.points) < POINTS_MAX:
            return found
        yield Pause(BUSY_PAUSE_S)


def _task_logs(
    core: Core, task: bytes, *, key: SecretKey | None = None, control: Path | None = None,
    after: LogPlace = BEGIN, follow: bool = False,
) -> Stream[LogPiece]:  # fmt: skip
    """Yield the log of a container from a place on; with ``follow`` until the task ends.

    It starts again where another machine takes the task over, and goes on after a lost connection.
    Raises ClientError, and without ``follow`` for a task that no machine has now.
    """
    viewer = yield from ask_viewer(core, task, key=key, control=control)
    signed_at = heard_at = yield ReadClock()
    place, machine = after, b""
    while True:
        now = yield ReadClock()
        if now - signed_at > VALID_S:
            viewer, signed_at = (yield from ask_viewer(core, task, key=key, control=control)), now
        try:
            worker, view = yield from ask_view(core, viewer, after=place, log_bytes=LOG_BYTES_MAX)
        except ClientError:
            if not follow or (yield from _is_over(core, task)) or now - heard_at > UNHEARD_S_MAX:
                raise
            yield Pause(PAUSE_S)
            continue
        heard_at = now
        if machine and worker != machine:
            machine, place = worker, LogPlace()
            continue
        machine, place = worker, view.log.place
        if view.log.entries:
            yield Item(LogPiece(worker, view.log.entries, place, view.log.is_cut))
        if view.log.has_more:
            yield Pause(BUSY_PAUSE_S)
        elif not follow or (view.stage == "ended" and (yield from _is_over(core, task))):
            return
        else:
            yield Pause(PAUSE_S)


def _is_over(core: Core, task: bytes) -> Flow[bool]:
    record = yield from ask_task(core, task)
    return record is None or record.phase in _PHASES_ENDED


class ViewsApi:
    """Methods of both clients about running containers."""

    container_viewer = FlowMethod(ask_viewer)
    container_view = FlowMethod(ask_view)
    task_view = FlowMethod(_task_view)
    task_series = FlowMethod(_task_series)
    task_logs = StreamMethod(_task_logs)
