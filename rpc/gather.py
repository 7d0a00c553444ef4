"""Questions of one turn of the loop, asked of the node in few frames."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Generic, TypeVar

from rpc.errors import RpcError
from state.primitives.errors import DecodeError

__all__ = ["FRAME_BYTES_MAX", "Gatherer"]

_Q = TypeVar("_Q")
_A = TypeVar("_A")

FRAME_BYTES_MAX: Final = 192 * 1024
"""Bytes of the questions of one frame, below what the node reads as one request."""


class Gatherer(Generic[_Q, _A]):
    """Collects questions until the loop's turn ends; ``ask`` answers several, in their order, or fails them all.

    An answer that is an exception fails its own question alone.
    """

    def __init__(
        self,
        ask: Callable[[Sequence[_Q]], Awaitable[Sequence[_A | Exception]]],
        *,
        frame_items_max: int,
        waiting_max: int,
        size_of: Callable[[_Q], int] = lambda _question: 0,
    ) -> None:
        self._ask = ask
        self._frame_items_max = frame_items_max
        self._waiting_max = waiting_max
        self._size_of = size_of
        self._collected: list[tuple[_Q, asyncio.Future[_A]]] = []
        self._waiting = 0
        self._asking: set[asyncio.Task[None]] = set()

    async def answer(self, question: _Q) -> _A:
        """Return the answer to ``question``. Raises RpcError while too many wait, and what the node answers."""
        if self._waiting >= self._waiting_max:
            raise RpcError("limit_exceeded", "limit exceeded: too many requests under way", retry_after_s=1)
        loop = asyncio.get_running_loop()
        if not self._collected:
            loop.call_soon(self._send)
        future: asyncio.Future[_A] = loop.create_future()
        self._collected.append((question, future))
        self._waiting += 1
        try:
            return await future
        finally:
            self._waiting -= 1

    def _send(self) -> None:
        collected, self._collected = self._collected, []
        frame: list[tuple[_Q, asyncio.Future[_A]]] = []
        size = 0
        for question, future in collected:
            if future.done():  # whoever asked has left
                continue
            weight = self._size_of(question)
            if frame and (len(frame) == self._frame_items_max or size + weight > FRAME_BYTES_MAX):
                self._start(frame)
                frame, size = [], 0
            frame.append((question, future))
            size += weight
        if frame:
            self._start(frame)

    def _start(self, frame: list[tuple[_Q, asyncio.Future[_A]]]) -> None:
        task = asyncio.ensure_future(self._ask_frame(frame))
        self._asking.add(task)
        task.add_done_callback(self._asking.discard)

    async def _ask_frame(self, frame: list[tuple[_Q, asyncio.Future[_A]]]) -> None:
        answers: Sequence[_A | Exception]
        try:
            answers = await self._ask([question for question, _ in frame])
            if len(answers) != len(frame):
                raise DecodeError("not as many answers as questions")
        except Exception as error:
            answers = [error] * len(frame)
        for (_, future), answer in zip(frame, answers, strict=True):
            if future.done():
                continue
            if isinstance(answer, Exception):
                future.set_exception(answer)
                future.exception()  # whoever asked may be gone
            else:
                future.set_result(answer)
