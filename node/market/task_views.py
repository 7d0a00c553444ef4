"""What requesters see of their containers: both ends between nodes, and the gateway's end (market.md R109).

The machine of a task answers a question that the task's requester has signed. Nodes of gateways carry questions
and sealed answers. They check the signature first, so that nobody has them ask machines in vain.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Final

import trio

from node.chain.ledger import NodeLedger
from node.market.containers import Containers
from node.market.wallet import Wallet
from p2p.service import Network
from rpc.protocol.task_views import (
    ANSWER_BYTES_MAX,
    LOG_BYTES_MAX,
    POINTS_MAX,
    QUESTION_BYTES_MAX,
    VIEW_BLOCKS_MAX,
    Gpu,
    SeriesPoint,
    TaskView,
    ViewQuestion,
    ViewRefused,
    decode_question,
    requester_of,
    seal_view,
    view_digest,
)
from state.primitives.codec import decode, encode
from state.primitives.errors import DecodeError
from state.primitives.hashing import HASH_BYTES
from state.primitives.token_bucket import RateLimiter
from tasks.executor.containers.log_entries import LogPart
from tasks.ledger.meter_records import load_meter
from tasks.ledger.records import load_task

__all__ = ["METHOD_VIEW", "TaskViews", "decode_view_request"]

METHOD_VIEW: Final = "task view"
REQUEST_BYTES_MAX: Final = QUESTION_BYTES_MAX + 64
ASK_S: Final = 15.0
VIEWS_PER_S: Final = 4.0
"""Answers about one task, ..."""
VIEWS_BURST: Final = 16.0
CARRIED_MAX: Final = 16
"""... and questions that this node carries for its gateways at the same time."""


def decode_view_request(body: bytes) -> tuple[bytes, ViewQuestion]:
    """Return task and question of another node's request. Raises DecodeError."""
    match decode(body, limit_bytes=REQUEST_BYTES_MAX):
        case [bytes(task), bytes(question)] if len(task) == HASH_BYTES:
            return task, decode_question(question)
        case _:
            raise DecodeError("[task, question] expected")


class TaskViews:
    """Answers questions about the containers of this machine, and carries those of gateways to other machines."""

    def __init__(
        self, ledger: NodeLedger, network: Network, wallet: Wallet, containers: Callable[[], Containers | None]
    ) -> None:
        self._ledger, self._network, self._wallet, self._containers = ledger, network, wallet, containers
        self._own = wallet.address
        self._rates = RateLimiter(per_s=VIEWS_PER_S, burst=VIEWS_BURST)
        self._carried = 0
        self.counts: OrderedDict[str, int] = OrderedDict.fromkeys(("answered", "refused", "carried"), 0)
        """Questions since the start of the node, by what became of them."""

    def serve(self) -> None:
        """Answer other nodes from now on; called once for a network."""
        self._network.on_request(METHOD_VIEW, self._serve)

    def sign(self, task: bytes, public: bytes) -> tuple[int, bytes]:
        """Sign questions about a task of this node's account, for its owner; return until when, and the signature.

        Raises ViewRefused, TaskUnknown.
        """
        if load_task(self._ledger.store, task).requester != self._own:
            raise ViewRefused("the task is not of this node's account: give its account with --key")
        until = self._ledger.head().height + VIEW_BLOCKS_MAX
        signed = view_digest(self._ledger.runtime.genesis_hash, task, public, until)
        return until, self._wallet.sign_digest(signed)

    async def _serve(self, _peer: bytes, body: bytes) -> bytes:
        task, question = decode_view_request(body)
        return await self._answer(task, question)

    def _check(self, task: bytes, question: ViewQuestion) -> None:
        """Raise ViewRefused unless the requester of a task has signed a question. Raises TaskUnknown."""
        ledger = self._ledger
        genesis_hash, height = ledger.runtime.genesis_hash, ledger.head().height
        account = requester_of(question, genesis_hash=genesis_hash, task=task, height=height)
        if account != load_task(ledger.store, task).requester:
            raise ViewRefused("nobody but the task's requester sees its container")

    async def task_view(self, task: bytes, question: bytes) -> tuple[bytes, bytes]:
        """Return the machine of a task and its sealed answer, for a gateway of this node.

        Raises ViewRefused, TaskUnknown, PeerUnreachable, RequestFailed.
        """
        asked = decode_question(question)
        self._check(task, asked)
        record, end = load_task(self._ledger.store, task), load_meter(self._ledger.store, task).end
        worker = record.worker or (b"" if end is None else end.worker)
        if not record.is_metered or not worker:
            raise ViewRefused("no machine has a container of this task")
        if worker == self._own:
            return worker, await self._answer(task, asked)
        if self._carried >= CARRIED_MAX:
            raise ViewRefused("this node carries too many questions now")
        self._carried += 1
        self.counts["carried"] += 1
        try:
            body = encode([task, question])
            return worker, await self._network.request(
                worker, METHOD_VIEW, body, timeout_s=ASK_S, limit_bytes=ANSWER_BYTES_MAX
            )
        finally:
            self._carried -= 1

    async def _answer(self, task: bytes, question: ViewQuestion) -> bytes:
        self.counts["refused"] += 1  # taken back below
        containers = self._containers()
        self._check(task, question)
        if containers is None or not containers.has(task):
            raise ViewRefused("this machine has no container of the task")
        if not self._rates.allows(task, trio.current_time()):
            raise ViewRefused("too many questions about the task: ask again in a second")
        view = await view_of(containers, task, question)
        self.counts["refused"] -= 1
        self.counts["answered"] += 1
        return seal_view(view, question.public, task=task, worker=self._own)


async def view_of(containers: Containers, task: bytes, question: ViewQuestion) -> TaskView:
    """Return what is shown of a container of this machine. Raises EngineUnavailable, EngineError."""
    live = containers.live(task)
    log = LogPart((), question.after)
    if question.log_bytes:
        log = await containers.logs.read(task, question.after, min(question.log_bytes, LOG_BYTES_MAX))
    points = [] if question.points_from is None else [
        SeriesPoint(*point) for point in live.points if point.number >= question.points_from
    ]  # fmt: skip
    return TaskView(
        live.stage, (live.pull.current, live.pull.total), int(live.up_s), int(max(0.0, live.up_s - live.moved_s)),
        live.cpu_permille, live.memory_bytes, tuple(Gpu(*gpu) for gpu in live.gpus), live.progress, live.total,
        live.message, live.metrics, tuple(points[:POINTS_MAX]), log,
    )  # fmt: skip
