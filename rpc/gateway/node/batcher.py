"""Batches requests of the same kind into few frames to the node.

A frame costs both sides more than its content. Requests of one turn of the event loop leave together. With a
pause, requests that arrive while a frame is unanswered, or shortly after, wait for the next frame: under load each
request costs less.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Final, Generic, TypeVar

import structlog

from rpc.protocol.errors import NodeUnavailable, RpcError
from rpc.protocol.waiter import Waiter
from state.primitives.errors import DecodeError

__all__ = ["FRAME_BYTES_MAX", "Batcher"]

_log = structlog.get_logger(__name__)
_Q = TypeVar("_Q")
_A = TypeVar("_A")

FRAME_BYTES_MAX: Final = 192 * 1024
"""Bytes of one frame, below the node's limit of a request."""


class _Asked(asyncio.Future[_A]):
    """A future that implements ``Waiter``."""

    def answered(self, answer: _A | Exception) -> None:
        if isinstance(answer, Exception):
            self.set_exception(answer)
            self.exception()  # the waiter may be gone; this marks the error as seen
        else:
            self.set_result(answer)


class Batcher(Generic[_Q, _A]):
    """Collects items until the turn of the event loop ends; ``ask`` answers several in their order, or fails.

    An answer that is an exception fails its own item alone. With ``pause_s`` there is one unanswered frame at a
    time. The next frame leaves when it has as many items as the one before, or ``pause_s`` after that one left; by
    then clients that were answered have asked again. A client that is alone never waits.
    """

    def __init__(
        self,
        ask: Callable[[Sequence[_Q]], Awaitable[Sequence[_A | Exception]]],
        *,
        frame_items_max: int,
        waiting_max: int,
        size_of: Callable[[_Q], int] = lambda _question: 0,
        pause_s: float | None = None,
    ) -> None:
        """``ask`` should return a future: a coroutine costs a task."""
        self._ask = ask
        self._frame_items_max = frame_items_max
        self._waiting_max = waiting_max
        self._size_of = size_of
        self._pause_s = pause_s
        self._collected: deque[tuple[_Q, Waiter[_A]]] = deque()
        self._waiting = 0
        """Items that are collected or in an unanswered frame."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_due = False
        """Whether a call of ``_send`` is scheduled."""
        self._is_asking = False
        """Whether a frame is unanswered, where there may be only one."""
        self._pause_ends = 0.0
        self._enough = 1
        """As many items leave without waiting for the end of the pause."""
        self._pause: asyncio.TimerHandle | None = None
        self._asking: set[asyncio.Future[Sequence[_A | Exception]]] = set()

    async def answer(self, question: _Q) -> _A:
        """Return the answer to ``question``. Raises RpcError if too many wait, and the node's error."""
        return await self.ask(question)

    def ask(self, question: _Q) -> asyncio.Future[_A]:
        """Return a future of the answer to ``question``. Raises RpcError if too many wait."""
        future: _Asked[_A] = _Asked()
        self.submit(question, future)
        return future

    def submit(self, question: _Q, waiter: Waiter[_A]) -> None:
        """Give ``waiter`` the answer in the turn in which it arrives. Raises RpcError if too many wait."""
        if self._waiting >= self._waiting_max:
            raise RpcError("limit_exceeded", "limit exceeded: too many requests under way", retry_after_s=1)
        loop = self._loop
        if loop is None:
            loop = self._loop = asyncio.get_running_loop()
        self._collected.append((question, waiter))
        self._waiting += 1
        if not self._is_due and not self._is_asking:
            if self._pause is not None and len(self._collected) >= self._enough:
                self._pause.cancel()
                self._pause = None
            if self._pause is None:
                self._is_due = True
                loop.call_soon(self._send)

    def _send(self) -> None:
        self._is_due = False
        self._pause = None
        while self._collected and not self._is_asking:
            if self._pause_s is not None and len(self._collected) < self._enough:
                loop = asyncio.get_running_loop()
                if loop.time() < self._pause_ends:
                    self._pause = loop.call_at(self._pause_ends, self._send)
                    return
            if frame := self._next_frame():
                self._start(frame)

    def _start(self, frame: list[tuple[_Q, Waiter[_A]]]) -> None:
        if self._pause_s is not None:
            self._is_asking = True
            self._enough = len(frame)
            self._pause_ends = asyncio.get_running_loop().time() + self._pause_s if len(frame) > 1 else 0.0
        asking: asyncio.Future[Sequence[_A | Exception]]
        try:
            asking = asyncio.ensure_future(self._ask([question for question, _ in frame]))  # noqa: RUF006
        except Exception as error:
            asking = asyncio.get_running_loop().create_future()
            asking.set_exception(error)
        self._asking.add(asking)
        asking.add_done_callback(partial(self._answered, frame))

    def _next_frame(self) -> list[tuple[_Q, Waiter[_A]]]:
        collected, size_of, items_max = self._collected, self._size_of, self._frame_items_max
        frame: list[tuple[_Q, Waiter[_A]]] = []
        size = 0
        while collected and len(frame) < items_max:
            item = collected.popleft()
            if item[1].done():  # the waiter does not need the answer any more
                self._waiting -= 1
                continue
            size += size_of(item[0])
            if size > FRAME_BYTES_MAX and frame:
                collected.appendleft(item)
                break
            frame.append(item)
        return frame

    def _answered(
        self, frame: list[tuple[_Q, Waiter[_A]]], asked: asyncio.Future[Sequence[_A | Exception]]
    ) -> None:
        self._asking.discard(asked)
        answers: Sequence[_A | Exception]
        if asked.cancelled():
            answers = [NodeUnavailable()] * len(frame)
        elif (error := asked.exception()) is not None:
            if not isinstance(error, Exception):
                raise error
            answers = [error] * len(frame)
        else:
            answers = asked.result()
            if len(answers) != len(frame):
                answers = [DecodeError("not as many answers as questions")] * len(frame)
        self._waiting -= len(frame)
        if self._pause_s is not None:
            self._is_asking = False
            self._send()  # before the waiters of this frame run, so that the node need not wait for them
        for (_, waiter), answer in zip(frame, answers, strict=True):
            if waiter.done():
                continue
            try:
                waiter.answered(answer)
            except Exception:  # the other waiters of the frame get their answers
                _log.exception("a waiter failed on an answer of the node")
