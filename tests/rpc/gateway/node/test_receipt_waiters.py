"""Many who wait for transactions cost the node one question each at first, and one for each block after."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Any

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from rpc.gateway.node.batcher import FRAME_BYTES_MAX, Batcher
from rpc.gateway.node.receipt_waiters import BLOCKS_MAX, ReceiptWaiters
from rpc.protocol.errors import NodeUnavailable, RpcError
from state.primitives.heads import Head
from state.primitives.transactions import decode_transaction
from tests.rpc.harness import ALICE, BOB, Node, gateway, hexed, mint, served, transfer


def run(main: Coroutine[Any, Any, None]) -> None:
    asyncio.run(main)


async def turn(times: int = 20) -> None:
    for _ in range(times):
        await asyncio.sleep(0)


class Chain:
    """Blocks with hashes; counts what is asked."""

    def __init__(self) -> None:
        self.blocks: dict[int, list[bytes]] = {}
        self.height = 0
        self.asked: Counter[str] = Counter()
        self.fails = False

    @property
    def head(self) -> Head:
        return Head(self.height, b"", 0, b"", 0, 0, 0, 0)

    async def block(self, height: int) -> Any:
        self.asked["block"] += 1
        await asyncio.sleep(0)
        if self.fails:
            raise NodeUnavailable
        loaded = type("Loaded", (), {})()
        loaded.height, loaded.hashes = height, self.blocks[height]
        return loaded

    async def locate(self, transaction_hash: bytes) -> tuple[int, int] | None:
        self.asked["locate"] += 1
        await asyncio.sleep(0)
        if self.fails:
            raise NodeUnavailable
        for height, hashes in self.blocks.items():
            if height <= self.height and transaction_hash in hashes:
                return height, hashes.index(transaction_hash)
        return None

    def mint(self, *hashes: bytes) -> None:
        self.height += 1
        self.blocks[self.height] = list(hashes)


def name(number: int) -> bytes:
    return number.to_bytes(32, "big")


def test_ten_thousand_wait_for_the_price_of_one_block_each_block() -> None:
    async def main() -> None:
        chain = Chain()
        receipt_waiters = ReceiptWaiters(chain, 20_000)
        waiting = [asyncio.ensure_future(receipt_waiters.wait(name(n % 5_000), 60.0)) for n in range(10_000)]
        await turn()
        assert (len(receipt_waiters), chain.asked["locate"]) == (10_000, 10_000)
        chain.asked.clear()
        for first in range(0, 5_000, 1_000):
            chain.mint(*map(name, range(first, first + 1_000)))
            receipt_waiters.on_head(chain.head)
            receipt_waiters.on_head(chain.head)  # while the first look goes on
            await turn()
        places = await asyncio.gather(*waiting)
        assert places == [(1 + n % 5_000 // 1_000, n % 1_000) for n in range(10_000)]
        assert dict(chain.asked) == {"block": 5}
        assert len(receipt_waiters) == 0
        chain.mint()
        receipt_waiters.on_head(chain.head)
        await turn()
        assert dict(chain.asked) == {"block": 5}, "nobody waits: nothing is asked"

    run(main())


def test_what_is_final_already_or_in_blocks_that_were_missed_is_found() -> None:
    async def main() -> None:
        chain = Chain()
        receipt_waiters = ReceiptWaiters(chain, 10)
        chain.mint(name(1))
        assert await receipt_waiters.wait(name(1), 0.0) == (1, 0)
        waiting = asyncio.ensure_future(receipt_waiters.wait(name(2), 60.0))
        await turn()
        for _ in range(BLOCKS_MAX + 1):
            chain.mint()
        chain.mint(name(3), name(2))
        chain.asked.clear()
        receipt_waiters.on_head(chain.head)
        assert await waiting == (chain.height, 1)
        assert dict(chain.asked) == {"locate": 1}, "after a long gap it is looked up"

    run(main())


def test_a_node_that_went_away_is_asked_again_at_its_next_head() -> None:
    async def main() -> None:
        chain = Chain()
        receipt_waiters = ReceiptWaiters(chain, 10)
        waiting = asyncio.ensure_future(receipt_waiters.wait(name(1), 60.0))
        await turn()
        chain.mint(name(1))
        chain.fails = True
        receipt_waiters.on_head(chain.head)
        await turn()
        assert not waiting.done()
        chain.fails = False
        chain.mint()
        receipt_waiters.on_head(chain.head)
        assert await waiting == (1, 0)

    run(main())


def test_waits_end_with_their_time_and_their_number_is_bounded() -> None:
    async def main() -> None:
        chain = Chain()
        receipt_waiters = ReceiptWaiters(chain, 2)
        waiting = [asyncio.ensure_future(receipt_waiters.wait(name(1), 60.0)) for _ in range(2)]
        await turn()
        with pytest.raises(RpcError) as refused:
            await receipt_waiters.wait(name(2), 60.0)
        assert refused.value.number == -32005
        waiting[0].cancel()
        await turn()
        assert await receipt_waiters.wait(name(2), 0.0) is None
        assert len(receipt_waiters) == 1
        waiting[1].cancel()
        await turn()
        assert len(receipt_waiters) == 0
        assert receipt_waiters._waiting == {}

    run(main())


def test_who_comes_while_a_block_of_those_who_left_is_read_misses_nothing() -> None:
    async def main() -> None:
        chain = Chain()
        receipt_waiters = ReceiptWaiters(chain, 10)
        first = asyncio.ensure_future(receipt_waiters.wait(name(1), 60.0))
        await turn()
        for _ in range(3):
            chain.mint()
        receipt_waiters.on_head(chain.head)
        await asyncio.sleep(0)  # the first of them is being read
        first.cancel()
        second = asyncio.ensure_future(receipt_waiters.wait(name(2), 60.0))
        await turn()
        chain.mint(name(2))
        receipt_waiters.on_head(chain.head)
        assert await asyncio.wait_for(second, 20) == (4, 0)

    run(main())


@pytest.mark.parametrize("is_scanning", [False, True])
def test_behind_a_node_that_was_set_back_all_are_looked_up_once_and_then_each_block(is_scanning: bool) -> None:
    async def main() -> None:
        chain = Chain()
        receipt_waiters = ReceiptWaiters(chain, 10)
        for _ in range(100):
            chain.mint()
        old = [asyncio.ensure_future(receipt_waiters.wait(name(n), 60.0)) for n in (1, 1, 2)]
        await turn()
        chain.mint()
        receipt_waiters.on_head(chain.head)
        if not is_scanning:
            await turn()
        else:
            await asyncio.sleep(0)  # the block that is read is taken back meanwhile
        receipt_waiters.reset()
        chain.height = 60
        chain.mint(name(1))
        new = asyncio.ensure_future(receipt_waiters.wait(name(3), 60.0))
        await turn()
        chain.asked.clear()
        receipt_waiters.on_head(chain.head)
        await turn()
        assert [task.done() for task in (*old, new)] == [True, True, False, False]
        assert dict(chain.asked) == {"locate": 3}
        chain.mint(name(3), name(2))
        receipt_waiters.on_head(chain.head)
        assert await asyncio.gather(*old, new) == [(61, 0), (61, 0), (62, 1), (62, 0)]
        assert dict(chain.asked) == {"locate": 3, "block": 1}

    run(main())


def test_a_node_that_is_away_again_after_it_was_set_back_is_asked_at_its_next_head() -> None:
    async def main() -> None:
        chain = Chain()
        receipt_waiters = ReceiptWaiters(chain, 10)
        chain.mint()
        waiting = asyncio.ensure_future(receipt_waiters.wait(name(1), 60.0))
        await turn()
        receipt_waiters.reset()
        chain.blocks[1] = [name(1)]
        chain.fails = True
        receipt_waiters.on_head(chain.head)
        await turn()
        assert not waiting.done()
        chain.fails = False
        receipt_waiters.on_head(chain.head)
        assert await waiting == (1, 0)

    run(main())


@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 7)), max_size=40),
    st.lists(st.integers(0, 7), unique=True, max_size=8),
)
@settings(max_examples=60, deadline=None)
def test_whoever_waits_gets_the_place_whatever_comes_first(steps: list[tuple[int, int]], order: list[int]) -> None:
    async def main() -> None:
        chain = Chain()
        receipt_waiters = ReceiptWaiters(chain, 100)
        waiting: list[tuple[int, asyncio.Task[tuple[int, int] | None]]] = []
        left = [*order, *({*range(8)} - {*order})]
        for kind, number in steps:
            if kind == 0:
                waiting.append((number, asyncio.ensure_future(receipt_waiters.wait(name(number), 60.0))))
            elif kind == 1 and left:
                chain.mint(name(left.pop()))
                receipt_waiters.on_head(chain.head)
            else:
                await turn(number)
        while left:
            chain.mint(name(left.pop()))
        receipt_waiters.on_head(chain.head)
        for number, task in waiting:
            place = await task
            assert place is not None
            assert chain.blocks[place[0]][place[1]] == name(number)

    run(main())


# Gathering


def test_questions_of_a_turn_travel_together_and_fail_alone() -> None:
    async def main() -> None:
        frames: list[list[int]] = []

        async def ask(questions: Sequence[int]) -> list[int | Exception]:
            frames.append(list(questions))
            await asyncio.sleep(0)
            return [ValueError(str(item)) if item % 10 == 3 else item * 2 for item in questions]

        batcher: Batcher[int, int] = Batcher(ask, frame_items_max=8, waiting_max=40)
        asking = [asyncio.ensure_future(batcher.answer(n)) for n in range(20)]
        await asyncio.sleep(0)
        asking[19].cancel()  # gone before the turn is over
        answers = await asyncio.gather(*asking, return_exceptions=True)
        assert [len(frame) for frame in frames] == [8, 8, 3]
        assert [item for item in answers if type(item) is int] == [n * 2 for n in range(19) if n % 10 != 3]
        assert [type(answers[at]) for at in (3, 13, 19)] == [ValueError, ValueError, asyncio.CancelledError]
        many = [asyncio.ensure_future(batcher.answer(n)) for n in range(41)]
        found = await asyncio.gather(*many, return_exceptions=True)
        assert isinstance(found[40], RpcError) and found[40].number == -32005
        assert await batcher.answer(5) == 10

    run(main())


def test_a_frame_holds_no_more_than_the_node_reads_and_a_failed_one_fails_its_own() -> None:
    async def main() -> None:
        sizes: list[int] = []

        async def ask(questions: Sequence[int]) -> list[int | Exception]:
            sizes.append(sum(questions))
            if questions[0] == 1:
                raise NodeUnavailable
            return [0] * (len(questions) + (questions[0] == 2))

        batcher: Batcher[int, int] = Batcher(ask, frame_items_max=100, waiting_max=100, size_of=lambda item: item)
        big = FRAME_BYTES_MAX // 3 + 1
        await asyncio.gather(*(batcher.answer(big) for _ in range(5)))
        assert sizes == [2 * big, 2 * big, big]
        with pytest.raises(NodeUnavailable):
            await batcher.answer(1)
        with pytest.raises(Exception, match="as many answers"):
            await batcher.answer(2)

    run(main())


@pytest.mark.parametrize("pause_s", [0.0, 0.001, 60.0])
def test_what_comes_while_a_frame_is_under_way_leaves_in_the_next_in_order(pause_s: float) -> None:
    async def main() -> None:
        frames: list[list[int]] = []
        begun, answered = asyncio.Event(), asyncio.Event()
        under_way = 0

        async def ask(questions: Sequence[int]) -> list[int | Exception]:
            nonlocal under_way
            under_way += 1
            assert under_way == 1
            frames.append(list(questions))
            begun.set()
            await answered.wait()
            under_way -= 1
            if questions[0] == 2:
                raise NodeUnavailable
            return list(questions)

        batcher: Batcher[int, int] = Batcher(ask, frame_items_max=4, waiting_max=100, pause_s=pause_s)
        asking = [asyncio.ensure_future(batcher.answer(0))]
        await begun.wait()
        for number in range(1, 14):
            asking.append(asyncio.ensure_future(batcher.answer(number)))
            await asyncio.sleep(0)  # another turn for each
        asking[1].cancel()  # gone while it waited
        answered.set()
        answers = await asyncio.gather(*asking, return_exceptions=True)
        assert frames == [[0], [2, 3, 4, 5], [6, 7, 8, 9], [10, 11, 12, 13]]
        assert [type(answer) for answer in answers[1:6]] == [asyncio.CancelledError] + [NodeUnavailable] * 4
        assert answers[6:] == [6, 7, 8, 9, 10, 11, 12, 13], "a frame that fails does not hold up those behind it"
        if pause_s < 60:
            assert await batcher.answer(14) == 14
            assert await batcher.answer(15) == 15

    run(main())


def test_after_a_frame_of_several_the_next_waits_for_as_many() -> None:
    async def main() -> None:
        frames: list[list[int]] = []

        async def ask(questions: Sequence[int]) -> list[int | Exception]:
            frames.append(list(questions))
            return list(questions)

        batcher: Batcher[int, int] = Batcher(ask, frame_items_max=4, waiting_max=100, pause_s=60.0)
        for number in range(3):
            assert await batcher.answer(number) == number, "who asks alone never waits"
        assert list(await asyncio.gather(*map(batcher.answer, (3, 4, 5)))) == [3, 4, 5]
        waiting = [asyncio.ensure_future(batcher.answer(number)) for number in (6, 7)]
        for _ in range(10):
            await asyncio.sleep(0)
        assert frames == [[0], [1], [2], [3, 4, 5]]
        assert await batcher.answer(8) == 8
        assert await asyncio.gather(*waiting) == [6, 7]
        assert frames[4:] == [[6, 7, 8]]
        assert list(await asyncio.gather(*map(batcher.answer, range(9, 17)))) == list(range(9, 17))
        assert frames[5:] == [[9, 10, 11, 12], [13, 14, 15, 16]]

    run(main())


def test_where_fewer_ask_again_a_frame_leaves_after_the_pause() -> None:
    async def main() -> None:
        frames: list[list[int]] = []
        pause_s = 0.05

        async def ask(questions: Sequence[int]) -> list[int | Exception]:
            frames.append(list(questions))
            return list(questions)

        loop = asyncio.get_running_loop()
        batcher: Batcher[int, int] = Batcher(ask, frame_items_max=4, waiting_max=100, pause_s=pause_s)
        started_s = loop.time()
        await asyncio.gather(*map(batcher.answer, (0, 1, 2)))
        assert await asyncio.gather(*map(batcher.answer, (3, 4))) == [3, 4]
        assert loop.time() - started_s >= pause_s * 0.9  # timers may be early by what a clock can tell
        started_s = loop.time()
        assert await batcher.answer(5) == 5, "nor did both ask again"
        assert loop.time() - started_s >= pause_s / 2
        assert await batcher.answer(6) == 6, "one alone waits for nobody"
        assert frames == [[0, 1, 2], [3, 4], [5], [6]]

    run(main())


async def test_many_wait_at_a_real_gateway_and_all_are_told(tmp_path: Path) -> None:
    node = Node(tmp_path / "db")
    raws = [transfer(ALICE, nonce, BOB.address, 1) for nonce in range(50)]
    hashes = [hexed(decode_transaction(raw).hash) for raw in raws]
    located: Counter[bytes] = Counter()
    locate = node.view.locate

    def counting(transactions: list[bytes]) -> list[tuple[int, int] | None]:
        located.update(transactions)
        return locate(transactions)

    node.view.locate = counting  # type: ignore[method-assign]
    async with served(node, tmp_path / "s") as backend, gateway(backend, tmp_path / "s") as it:
        found: list[Any] = []

        async def wait(part: list[str]) -> None:
            ask = {"jsonrpc": "2.0", "method": "dekube_waitForReceipt"}
            found.extend(await it.raw([ask | {"id": hash_, "params": [hash_, 60_000]} for hash_ in part]))

        async with trio.open_nursery() as nursery:
            for first in range(0, 50, 10):
                nursery.start_soon(wait, hashes[first : first + 10])
            with trio.fail_after(120):
                while len(located) < 50:
                    await it.call("dekube_head")
            for raw in raws:
                await it.call("dekube_sendTransaction", hexed(raw))
            await mint(it, node)
        assert {item["id"] for item in found} == set(hashes)
        assert all(item["result"]["receipt"]["transaction_hash"] == item["id"] for item in found)
        assert set(located.values()) == {1}
