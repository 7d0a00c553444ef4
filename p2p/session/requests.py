"""Requests and answers of one peer, in both directions: numbered, bounded, and each answered, refused or timed
out.

See network.md 5.

They are ordinary messages of the conversation (``p2p.session.peer``). The node and the services of this package
register a handler for each method.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

import trio

from p2p.base.errors import FrameInvalid, PeerBusy, PeerUnreachable, RequestFailed, RequestRefused, RequestTimeout
from p2p.base.limits import NetworkLimits
from p2p.secure.frame import TrafficClass
from p2p.session.mux import ClassLimits, Message
from state.primitives.codec import decode, encode
from state.primitives.errors import DekubeError

__all__ = [
    "KIND_REFUSAL",
    "KIND_REQUEST",
    "KIND_RESPONSE",
    "LARGE_ANSWER_BYTES",
    "RequestHandler",
    "Requests",
    "Served",
]

KIND_REQUEST: Final = 0xE0
KIND_RESPONSE: Final = 0xE1
KIND_REFUSAL: Final = 0xE2

LARGE_ANSWER_BYTES: Final = 64 * 1024
"""Answers from this size on are bulk, regardless of their method's class."""
_ID_BYTES: Final = 4
_METHOD_CHARACTERS_MAX: Final = 32
_REFUSAL_BYTES_MAX: Final = 128
_ENVELOPE_BYTES_MAX: Final = 128
"""Bytes of a request beside its body."""

RequestHandler = Callable[[bytes, bytes], Awaitable[bytes]]


@dataclass(frozen=True, slots=True)
class Served:
    """A method that this node answers, and the class its answers travel in."""

    handler: RequestHandler
    cls: TrafficClass


@dataclass(slots=True)
class _Asked:
    limit_bytes: int
    done: trio.Event = field(default_factory=trio.Event)
    answer: bytes | RequestFailed | None = None


class Requests:
    """The requests from this node to one peer, and from the peer to this node.

    ``say`` queues a message, ``say_when_room`` queues it once there is room. ``classes`` has the limits of each
    class. ``served`` returns the handler of a method.
    """

    def __init__(
        self,
        address: bytes,
        *,
        limits: NetworkLimits,
        classes: Sequence[ClassLimits],
        served: Callable[[str], Served | None],
        say: Callable[[TrafficClass, int, bytes], bool],
        say_when_room: Callable[[TrafficClass, int, bytes], Awaitable[None]],
    ) -> None:
        self._address = address
        self._limits = limits
        self._classes = classes
        self._served = served
        self._say = say
        self._say_when_room = say_when_room
        self._asked: dict[int, _Asked] = {}
        self._next_id = 0
        self._serving = 0
        self.waiting_bytes = 0
        """Number of answers for which there is no room yet."""
        self._ended_for: str | None = None

    # -- what we ask -----------------------------------------------------------------------------------------

    async def ask(self, method: str, body: bytes, *, timeout_s: float, limit_bytes: int) -> bytes:
        """Return the peer's answer of at most ``limit_bytes``. Raises RequestFailed, PeerUnreachable."""
        if len(self._asked) >= self._limits.requests_asked_per_peer_max:
            raise RequestRefused("too many open requests to this peer")
        self._next_id = (self._next_id + 1) % 2 ** (8 * _ID_BYTES)
        number, asked = self._next_id, _Asked(limit_bytes)
        self._asked[number] = asked
        try:
            if not self._say(TrafficClass.REQUEST, KIND_REQUEST, encode([number, method, limit_bytes, body])):
                raise PeerUnreachable("the request queue is full or the connection has ended")
            with trio.move_on_after(timeout_s):
                await asked.done.wait()
        finally:
            del self._asked[number]
        match asked.answer:
            case bytes():
                return asked.answer
            case RequestFailed():
                raise asked.answer
            case _ if self._ended_for is not None:
                raise PeerUnreachable(f"connection lost: {self._ended_for}")
            case _:
                raise RequestTimeout(f"{method}: no answer within {timeout_s} s")

    def end(self, reason: str) -> None:
        """Fail all open requests: the peer is gone."""
        self._ended_for = reason
        for asked in self._asked.values():
            asked.done.set()

    # -- what the peer says ----------------------------------------------------------------------------------

    def take(self, message: Message, nursery: trio.Nursery) -> None:
        """Process a message; requests are served in ``nursery``. Raises FrameInvalid, DecodeError."""
        match message.kind:
            case 0xE1:
                self._on_response(message.body)
            case 0xE0:
                self._on_request(message.body, nursery)
            case 0xE2:
                self._on_refusal(message.body)
            case _:
                pass  # of a later version

    def _on_request(self, data: bytes, nursery: trio.Nursery) -> None:
        match decode(data, limit_bytes=self._limits.request_bytes_max + _ENVELOPE_BYTES_MAX):
            case [int(number), str(method), int(limit_bytes), bytes(body)] if (
                0 <= number < 2 ** (8 * _ID_BYTES) and len(method) <= _METHOD_CHARACTERS_MAX and limit_bytes >= 0
            ):
                pass
            case _:
                raise FrameInvalid("malformed request")
        found = self._served(method)
        if found is None:
            self._refuse(number, "unknown_method")
        elif self._serving >= self._limits.requests_served_per_peer_max:
            self._refuse(number, PeerBusy.code)
        else:
            self._serving += 1
            nursery.start_soon(self._serve, number, found, limit_bytes, body)

    async def _serve(self, number: int, served: Served, limit_bytes: int, body: bytes) -> None:
        try:
            with trio.fail_after(self._limits.serve_timeout_s):
                answer = await served.handler(self._address, body)
                cls = TrafficClass.BULK if len(answer) >= LARGE_ANSWER_BYTES else served.cls
                if len(answer) > limit_bytes or len(answer) + _ID_BYTES > self._classes[cls].message_bytes_max:
                    self._refuse(number, "answer_too_large")
                else:
                    head = number.to_bytes(_ID_BYTES, "big")
                    self.waiting_bytes += len(answer)
                    try:
                        await self._say_when_room(cls, KIND_RESPONSE, head + answer)
                    finally:
                        self.waiting_bytes -= len(answer)
        except DekubeError as error:
            self._refuse(number, error.code)
        except trio.TooSlowError:
            self._refuse(number, PeerBusy.code)
        finally:
            self._serving -= 1

    def _refuse(self, number: int, code: str) -> None:
        self._say(TrafficClass.REQUEST, KIND_REFUSAL, number.to_bytes(_ID_BYTES, "big") + code.encode())

    def _on_response(self, body: bytes) -> None:
        if len(body) < _ID_BYTES:
            raise FrameInvalid("an answer without a request number")
        asked = self._waiting(body)
        if asked is None:
            return
        answer = body[_ID_BYTES:]
        if len(answer) > asked.limit_bytes:
            raise FrameInvalid(f"an answer of {len(answer)} bytes where {asked.limit_bytes} were asked for")
        asked.answer = answer
        asked.done.set()

    def _on_refusal(self, body: bytes) -> None:
        if not _ID_BYTES <= len(body) <= _REFUSAL_BYTES_MAX:
            raise FrameInvalid("malformed refusal")
        asked = self._waiting(body)
        if asked is not None:
            asked.answer = RequestRefused(body[_ID_BYTES:].decode("ascii", "replace"))
            asked.done.set()

    def _waiting(self, body: bytes) -> _Asked | None:
        """Return the request of this answer; None after its time limit."""
        asked = self._asked.get(int.from_bytes(body[:_ID_BYTES], "big"))
        return None if asked is None or asked.done.is_set() else asked
