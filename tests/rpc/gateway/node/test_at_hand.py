"""What the gateway has asked and what it keeps of the answers: questions, values of the state, blocks."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from rpc.gateway.node import pending as questions_module
from rpc.gateway.node import state_cache as values_module
from rpc.gateway.node.block_cache import FETCHES_MAX, BlockCache
from rpc.gateway.node.pending import PendingRequests
from rpc.gateway.node.state_cache import StateCache
from rpc.protocol.blocks import LoadedBlock
from rpc.protocol.errors import NodeUnavailable, RpcError
from rpc.protocol.frames import REQUEST_LIMIT_BYTES, Answer, Failure, FrameBuffer, Push


async def settle() -> None:
    """Let everything that is due have its turns."""
    for _ in range(10):
        await asyncio.sleep(0)


# Questions


class Asker:
    """Questions to a node that says what the test says."""

    def __init__(self, open_max: int = 10, timeout_s: float = 1_000.0) -> None:
        self.sent: list[list[Any]] = []
        self.news: list[Push] = []
        self.pending = PendingRequests(open_max, timeout_s, self.news.append)
        self.pending.connect(self.send)

    def send(self, frame: bytes) -> None:
        self.sent += FrameBuffer(REQUEST_LIMIT_BYTES).feed(frame)


def test_answers_find_their_questions_in_any_order() -> None:
    async def main() -> None:
        it = Asker()
        first, second, third = (it.pending.ask("m", [number]) for number in range(3))
        assert it.sent == [[1, "m", [0]], [2, "m", [1]], [3, "m", [2]]]
        it.pending.received(Answer(2, b"two"))
        it.pending.received(Failure(1, "pruned", "gone", (("height", 7), ("amount", 5))))
        it.pending.received(Answer(2, b"again"))
        it.pending.received(Answer(99, b"nobody asked"))
        assert await second == b"two" and not third.done()
        with pytest.raises(RpcError) as refused:
            await first
        assert (refused.value.reason, refused.value.fields) == ("pruned", {"height": 7, "amount": "5"})
        it.pending.received(Push("head", [1]))
        assert it.news == [Push("head", [1])]

    asyncio.run(main())


def test_an_answer_that_is_not_what_was_asked_for_fails_its_question_alone() -> None:
    async def main() -> None:
        it = Asker()
        bad, good = it.pending.ask("m", [], int), it.pending.ask("m", [])
        it.pending.received(Answer(1, "x"))
        it.pending.received(Answer(2, "x"))
        with pytest.raises(ValueError):
            await bad
        assert await good == "x"

    asyncio.run(main())


def test_questions_are_bounded_and_end_with_the_connection() -> None:
    async def main() -> None:
        it = Asker(open_max=2)
        asked = [it.pending.ask("m", []) for _ in range(2)]
        with pytest.raises(RpcError) as refused:
            it.pending.ask("m", [])
        assert refused.value.reason == "limit_exceeded"
        it.pending.disconnect()
        for future in asked:
            with pytest.raises(NodeUnavailable):
                await future
        with pytest.raises(NodeUnavailable):
            it.pending.ask("m", [])
        assert not it.pending.is_connected
        it.pending.connect(it.send)
        with pytest.raises(RpcError):
            it.pending.ask("m", [bytes(REQUEST_LIMIT_BYTES)])
        assert [it.pending.ask("m", []).done() for _ in range(2)] == [False, False], (
            "what was too long has no place"
        )

    asyncio.run(main())


@pytest.mark.parametrize(("timeout_s", "is_late"), [(-1.0, True), (1_000.0, False)])
def test_what_is_not_answered_in_time_fails(
    timeout_s: float, is_late: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(questions_module, "SWEEP_S", 0)

    async def main() -> None:
        it = Asker(timeout_s=timeout_s)
        sweeper = asyncio.ensure_future(it.pending.sweep())
        asked = it.pending.ask("m", [])
        await settle()
        sweeper.cancel()
        assert asked.done() is is_late
        if is_late:
            assert isinstance(asked.exception(), NodeUnavailable)

    asyncio.run(main())


# Values


class State:
    """A node's state: a value of a key is its height and the key."""

    def __init__(self, entries_max: int = 100) -> None:
        self.asked: list[tuple[int, list[bytes]]] = []
        self.fails = False
        self.values = StateCache(self.fetch, entries_max)

    async def fetch(self, height: int, keys: list[bytes]) -> list[bytes | None]:
        self.asked.append((height, keys))
        await asyncio.sleep(0)
        if self.fails:
            raise NodeUnavailable
        return [b"%d" % height + key for key in keys]


def test_values_of_one_turn_are_asked_for_together_and_kept() -> None:
    async def main() -> None:
        it = State()
        it.values.on_head(5, None)
        reads = (it.values.read(5, b"a", b"b"), it.values.read(5, b"b", b"c"), it.values.read(4, b"a"))
        assert list(await asyncio.gather(*reads)) == [[b"5a", b"5b"], [b"5b", b"5c"], [b"4a"]]
        assert it.asked == [(5, [b"a", b"b", b"c"]), (4, [b"a"])]
        assert await it.values.read(5, b"c", b"a") == [b"5c", b"5a"]
        assert await it.values.read(4, b"a") == [b"4a"]
        assert len(it.asked) == 2

    asyncio.run(main())


def test_a_head_takes_out_what_it_changed_and_one_that_does_not_say_takes_out_all() -> None:
    async def main() -> None:
        it = State()
        it.values.on_head(5, None)
        await it.values.read(5, b"a", b"b")
        it.values.on_head(6, [5, [b"a"]])
        assert await it.values.read(6, b"a", b"b") == [b"6a", b"5b"]
        it.values.on_head(8, [7, []])  # of a head that was not seen: who knows what changed before
        assert await it.values.read(8, b"b") == [b"8b"]
        it.values.on_head(9, None)
        assert await it.values.read(9, b"b") == [b"9b"]
        it.values.disconnect()
        it.values.on_head(9, [9, []])
        assert await it.values.read(9, b"b") == [b"9b"]
        assert it.asked[-1] == (9, [b"b"]) and it.asked[-2] == (9, [b"b"]), "nothing is kept over a connection"

    asyncio.run(main())


def test_values_are_bounded_in_number_and_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(values_module, "SMALL_VALUE_BYTES", 4)

    async def main() -> None:
        it = State(entries_max=2)
        it.values.on_head(5, None)
        for height in (5, 4):
            for key in (b"a", b"b", b"c", b"long"):
                await it.values.read(height, key)
            it.asked.clear()
            for key in (b"b", b"c", b"a", b"long"):
                await it.values.read(height, key)
            assert it.asked == [(height, [b"a"]), (height, [b"long"])]

    asyncio.run(main())


def test_a_failure_reaches_all_who_wait_and_is_not_kept() -> None:
    async def main() -> None:
        it = State()
        it.values.on_head(5, None)
        it.fails = True
        reads = [asyncio.ensure_future(it.values.read(5, b"a")) for _ in range(3)]
        await asyncio.sleep(0)
        reads[0].cancel()
        found = await asyncio.gather(*reads, return_exceptions=True)
        assert [type(item) for item in found] == [asyncio.CancelledError, NodeUnavailable, NodeUnavailable]
        it.fails = False
        assert await it.values.read(5, b"a") == [b"5a"]

    asyncio.run(main())


# Blocks


class Source:
    """Where a shelf gets its blocks."""

    def __init__(self) -> None:
        self.asked: list[int] = []
        self.running = 0
        self.most = 0
        self.go = asyncio.Event()
        self.fails = False

    async def fetch(self, height: int) -> LoadedBlock | None:
        self.asked.append(height)
        self.running += 1
        self.most = max(self.most, self.running)
        await self.go.wait()
        self.running -= 1
        if self.fails:
            raise NodeUnavailable
        return cast(LoadedBlock, SimpleNamespace(height=height, weight_bytes=1)) if height < 1_000 else None


def shelf_of(source: Source) -> BlockCache:
    return BlockCache(source.fetch, block_bytes_max=1_000, rendered_bytes_max=1_000)


def test_a_block_is_fetched_once_for_all_who_ask_and_kept() -> None:
    async def main() -> None:
        source = Source()
        shelf = shelf_of(source)
        asking = [asyncio.ensure_future(shelf.block(7)) for _ in range(3)]
        await settle()
        asking[0].cancel()  # who began it leaves
        await settle()
        source.go.set()
        first, second, third = await asyncio.gather(*asking, return_exceptions=True)
        assert isinstance(first, asyncio.CancelledError)
        assert second is third is await shelf.block(7)
        assert source.asked == [7]
        assert [await shelf.block(1_000) for _ in range(2)] == [None, None]
        assert source.asked == [7, 1_000, 1_000], "that there is none yet is not kept"
        shelf.clear()
        await shelf.block(7)
        assert source.asked == [7, 1_000, 1_000, 7]
        shelf.close()

    asyncio.run(main())


def test_a_block_that_could_not_be_fetched_is_asked_for_anew() -> None:
    async def main() -> None:
        source = Source()
        shelf = shelf_of(source)
        source.fails = True
        source.go.set()
        for _ in range(2):
            with pytest.raises(NodeUnavailable):
                await shelf.block(7)
        source.fails = False
        assert (await shelf.block(7)) is not None
        assert source.asked == [7, 7, 7]
        shelf.close()

    asyncio.run(main())


def test_so_many_blocks_are_fetched_at_once() -> None:
    async def main() -> None:
        source = Source()
        shelf = shelf_of(source)
        asking = [asyncio.ensure_future(shelf.block(height)) for height in range(FETCHES_MAX + 5)]
        await settle()
        assert source.most == FETCHES_MAX
        source.go.set()
        await asyncio.gather(*asking)
        assert len(source.asked) == FETCHES_MAX + 5
        shelf.close()

    asyncio.run(main())
