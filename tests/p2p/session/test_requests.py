"""Requests and answers between two ends, handed across without a connection between them."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from p2p.base.errors import FrameInvalid, PeerBusy, PeerUnreachable, RequestRefused, RequestTimeout
from p2p.base.limits import NetworkLimits
from p2p.secure.frame import TrafficClass
from p2p.session.mux import Message, MuxLimits
from p2p.session.requests import KIND_REFUSAL, KIND_RESPONSE, LARGE_ANSWER_BYTES, Requests, Served

LIMITS = NetworkLimits(requests_asked_per_peer_max=3, requests_served_per_peer_max=2, serve_timeout_s=5.0)
PEER = b"p" * 20


class End:
    """One end; what it says is taken by the other one at once."""

    def __init__(self, nursery: trio.Nursery, methods: dict[str, Served]) -> None:
        self.nursery = nursery
        self.said: list[Message] = []
        self.other: End | None = None
        self.has_room = True
        self.requests = Requests(
            PEER, limits=LIMITS, classes=MuxLimits().classes, served=methods.get,
            say=self.say, say_when_room=self.say_when_room,
        )  # fmt: skip

    def say(self, cls: TrafficClass, kind: int, body: bytes) -> bool:
        message = Message(cls, kind, body)
        if self.has_room:
            self.said.append(message)
            if self.other is not None:
                self.other.requests.take(message, self.other.nursery)
        return self.has_room

    async def say_when_room(self, cls: TrafficClass, kind: int, body: bytes) -> None:
        self.say(cls, kind, body)


def pair(nursery: trio.Nursery, **methods: Served) -> tuple[End, End]:
    one, other = End(nursery, {}), End(nursery, methods)
    one.other, other.other = other, one
    return one, other


async def echo(sender: bytes, body: bytes) -> bytes:
    assert sender == PEER
    return body


async def refuse(_sender: bytes, _body: bytes) -> bytes:
    raise RequestRefused("no")


async def stand_still(_sender: bytes, _body: bytes) -> bytes:
    await trio.sleep_forever()
    raise AssertionError


async def test_each_request_gets_its_own_answer_in_the_class_that_fits(autojump_clock: object) -> None:
    async with trio.open_nursery() as nursery:
        one, other = pair(nursery, echo=Served(echo, TrafficClass.REQUEST))
        found: dict[int, bytes] = {}

        async def ask(number: int) -> None:
            body = bytes([number]) * (LARGE_ANSWER_BYTES - 1 + number)
            found[number] = await one.requests.ask("echo", body, timeout_s=1, limit_bytes=10**6)

        for number in range(2):
            nursery.start_soon(ask, number)
        await trio.testing.wait_all_tasks_blocked()
        assert {number: (set(body), len(body)) for number, body in found.items()} == {
            number: ({number}, LARGE_ANSWER_BYTES - 1 + number) for number in range(2)
        }
        assert sorted(message.cls for message in other.said) == [TrafficClass.REQUEST, TrafficClass.BULK]


async def test_what_cannot_be_answered_is_refused_by_a_code(autojump_clock: object) -> None:
    async with trio.open_nursery() as nursery:
        one, _ = pair(
            nursery,
            echo=Served(echo, TrafficClass.REQUEST),
            refuse=Served(refuse, TrafficClass.REQUEST),
            slow=Served(stand_still, TrafficClass.REQUEST),
        )

        async def code(method: str, body: bytes = b"", limit_bytes: int = 10) -> str:
            with pytest.raises(RequestRefused) as caught:
                await one.requests.ask(method, body, timeout_s=60, limit_bytes=limit_bytes)
            return str(caught.value)

        assert await code("other") == "unknown_method"
        assert await code("refuse") == RequestRefused.code
        assert await code("echo", bytes(11)) == "answer_too_large"
        began = trio.current_time()
        assert await code("slow") == PeerBusy.code
        assert trio.current_time() - began == LIMITS.serve_timeout_s


async def test_both_ends_bound_what_is_under_way(autojump_clock: object) -> None:
    async with trio.open_nursery() as nursery:
        one, _ = pair(nursery, slow=Served(stand_still, TrafficClass.REQUEST))
        outcomes: list[str] = []

        async def ask() -> None:
            try:
                await one.requests.ask("slow", b"", timeout_s=1, limit_bytes=10)
            except (RequestRefused, RequestTimeout) as error:
                outcomes.append(str(error))

        for _number in range(4):
            nursery.start_soon(ask)
        await trio.testing.wait_all_tasks_blocked()
        assert sorted(outcomes) == [PeerBusy.code, "too many open requests to this peer"]
        await trio.sleep(2)
        assert len(outcomes) == 4
        await trio.sleep(LIMITS.serve_timeout_s)  # the answers come too late, and harm nobody


async def test_an_end_wakes_whoever_waits_and_a_full_peer_is_no_peer(autojump_clock: object) -> None:
    async with trio.open_nursery() as nursery:
        alone = End(nursery, {})

        async def ask() -> None:
            with pytest.raises(PeerUnreachable, match="peer_silent"):
                await alone.requests.ask("echo", b"", timeout_s=60, limit_bytes=10)

        nursery.start_soon(ask)
        await trio.testing.wait_all_tasks_blocked()
        alone.requests.end("peer_silent")
    assert trio.current_time() < 60
    alone.has_room = False
    with pytest.raises(PeerUnreachable):
        await alone.requests.ask("echo", b"", timeout_s=60, limit_bytes=10)


async def test_an_answer_is_held_to_what_was_asked_for(autojump_clock: object) -> None:
    async with trio.open_nursery() as nursery:
        alone = End(nursery, {})

        async def ask() -> None:
            with pytest.raises(RequestTimeout):
                await alone.requests.ask("echo", b"", timeout_s=1, limit_bytes=10)

        nursery.start_soon(ask)
        await trio.testing.wait_all_tasks_blocked()
        number = (1).to_bytes(4, "big")
        for kind, body in ((KIND_RESPONSE, number + bytes(11)), (KIND_RESPONSE, b"abc"), (KIND_REFUSAL, b"abc")):
            with pytest.raises(FrameInvalid):
                alone.requests.take(Message(TrafficClass.REQUEST, kind, body), nursery)
        for kind in (KIND_RESPONSE, KIND_REFUSAL):  # of a number that nobody asked under
            alone.requests.take(Message(TrafficClass.REQUEST, kind, (2).to_bytes(4, "big") + b"x"), nursery)
