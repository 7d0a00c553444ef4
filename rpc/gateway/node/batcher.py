"""Questions of one turn of the loop, asked of the node in few frames.

A frame costs both sides more than what it holds. Where an answer is in no hurry, what comes while one is under way
or soon after waits and leaves in the next: each question costs the less, the more is asked.
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
"""Bytes of the questions of one frame, below what the node reads as one request."""


class _Asked(asyncio.Future[_A]):
    """A future as a waiter."""

    def answered(self, answer: _A | Exception) -> None:
        if isinstance(answer, Exception):
            self.set_exception(answer)
            self.exception()  # whoever asked may be gone
        else:
            self.set_result(answer)


class Batcher(Generic[_Q, _A]):
    """Collects questions until the loop's turn ends; ``ask`` answers several, in their order, or fails them all.

    An answer that is an exception fails its own question alone. With ``pause_s`` one frame is under way at a time,
    and the next leaves when it holds as many as the one before, or ``pause_s`` after that one left: those who were
    answered have then asked again, or do not. Who asks alone never waits.
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
        """A future that ``ask`` returns costs less than a coroutine, for which a task is made."""
        self._ask = ask
        self._frame_items_max = frame_items_max
        self._waiting_max = waiting_max
        self._size_of = size_of
        self._pause_s = pause_s
        self._collected: deque[tuple[_Q, Waiter[_A]]] = deque()
        self._waiting = 0
        """Questions that are collected or in a frame under way."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_due = False
        """Whether ``_send`` is about to be called."""
        self._is_asking = False
        """Whether a frame is under way, of which there is one at a time."""
        self._pause_ends = 0.0
        self._enough = 1
        """So many need not wait for the end of the pause."""
        self._pause: asyncio.TimerHandle | None = None
        self._asking: set[asyncio.Future[Sequence[_A | Exception]]] = set()

    async def answer(self, question: _Q) -> _A:
        """Return the answer to ``question``. Raises RpcError while too many wait, and what the node answers."""
        return await self.ask(question)

    def ask(self, question: _Q) -> asyncio.Future[_A]:
        """Return what will be the answer to ``question``. Raises RpcError while too many wait."""
        future: _Asked[_A] = _Asked()
        self.tell(question, future)
        return future

    def tell(self, question: _Q, waiter: Waiter[_A]) -> None:
        """Tell ``waiter`` the answer, in the turn that brings it. Raises RpcError while too many wait."""
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
            if item[1].done():  # whoever asked has left
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
            self._send()  # before those who waited for this frame go on: the node need not wait for them
        for (_, waiter), answer in zip(frame, answers, strict=True):
            if waiter.done():
                continue
            try:
                waiter.answered(answer)
            except Exception:  # the others of the frame are told all the same
                _log.exception("an answer of the node was not taken")
