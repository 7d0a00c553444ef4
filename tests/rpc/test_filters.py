"""PollFilters that are polled: a client that is far behind comes up, and is told each thing once."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Coroutine
from types import SimpleNamespace
from typing import Any, Final

import pytest

from rpc.ethereum import filter_methods, logs
from rpc.ethereum.filter_methods import get_filter_changes, get_logs
from rpc.ethereum.params import FILTER
from rpc.methods.log_filter import LogFilter
from rpc.methods.poll_filters import PollFilters
from rpc.protocol.errors import NodeUnavailable, RpcError
from rpc.protocol.requests import PoolRequests
from state.primitives.bounded_cache import BoundedCache
from state.primitives.receipts import Event

EVENT: Final = Event(bytes(20), (bytes(32),), b"")
EVERYTHING: Final = LogFilter(frozenset(), ())
PER_BLOCK: Final = 4


def block(height: int, events: int = PER_BLOCK) -> Any:
    return SimpleNamespace(
        height=height, hash=height.to_bytes(32, "big"), hashes=[bytes(32)], bloom=None, hooks=None,
        receipts=[SimpleNamespace(events=(EVENT,) * events)],
        block=SimpleNamespace(header=SimpleNamespace(time_ms=1_000 * height)),
    )  # fmt: skip


class Node:
    """Blocks with events, and the filters of a gateway."""

    def __init__(self, events: dict[int, int] | None = None) -> None:
        self.head = SimpleNamespace(height=0, oldest_block=0)
        self.filters = PollFilters(lambda: 0.0, secrets.randbits)
        self.blooms: BoundedCache[int, int] = BoundedCache(1000)
        self.away_at = -1
        self.arrived: list[bytes] = []
        self._events = events or {}

    async def block(self, height: int) -> Any:
        await asyncio.sleep(0)
        if height == self.away_at:
            raise NodeUnavailable
        return block(height, self._events.get(height, PER_BLOCK)) if height <= self.head.height else None

    async def hash_of(self, height: int) -> bytes:
        await asyncio.sleep(0)
        if height == self.away_at:
            raise NodeUnavailable
        return height.to_bytes(32, "big")

    async def request(self, function: Any, since: int, limit: int) -> tuple[int, list[bytes]]:
        assert function == PoolRequests.pool_arrivals
        await asyncio.sleep(0)
        return len(self.arrived), self.arrived[since:] if limit else []

    async def yield_turn(self) -> None:
        await asyncio.sleep(0)

    def poll(self, identifier: int) -> Coroutine[Any, Any, list[Any]]:
        return get_filter_changes(self, identifier)  # type: ignore[arg-type]


def heights(told: list[Any]) -> list[int]:
    return [int(item["blockNumber"] if isinstance(item, dict) else item, 16) for item in told]


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "LOGS_MAX", 10)
    for module in (logs, filter_methods):
        monkeypatch.setattr(module, "BLOCKS_MAX", 8)


@pytest.mark.parametrize("wanted", [EVERYTHING, None])
def test_a_filter_that_was_not_polled_for_long_is_told_everything_in_parts(wanted: LogFilter | None) -> None:
    async def main() -> None:
        node = Node()
        identifier = node.filters.add("a", wanted, first=1, last=None, start=1)
        node.head.height = 20
        told: list[int] = []
        parts = 0
        while part := heights(await node.poll(identifier)):
            told += part
            parts += 1
            assert len(part) <= (8 if wanted is None else 10 + PER_BLOCK)
        assert parts == (3 if wanted is None else 7)
        each = 1 if wanted is None else PER_BLOCK
        assert told == [height for height in range(1, 21) for _ in range(each)]
        node.head.height = 21
        assert heights(await node.poll(identifier)) == [21] * each

    asyncio.run(main())


@pytest.mark.parametrize("wanted", [EVERYTHING, None])
def test_two_polls_at_a_time_are_told_each_thing_once_and_a_failed_one_loses_nothing(
    wanted: LogFilter | None,
) -> None:
    async def main() -> None:
        node = Node()
        identifier = node.filters.add("a", wanted, first=1, last=None, start=1)
        node.head.height = 2
        one, other = await asyncio.gather(node.poll(identifier), node.poll(identifier))
        assert sorted({*heights(one)}) == [1, 2]
        assert other == []
        node.head.height, node.away_at = 4, 4
        with pytest.raises(NodeUnavailable):
            await node.poll(identifier)
        node.away_at = -1
        given_up = asyncio.ensure_future(node.poll(identifier))
        await asyncio.sleep(0)
        given_up.cancel()
        await asyncio.wait([given_up])
        assert sorted({*heights(await node.poll(identifier))}) == [3, 4]

    asyncio.run(main())


@pytest.mark.parametrize("ends", ["early", "away", "given up"])
def test_what_comes_while_a_poll_goes_on_is_told_once_however_that_ends(ends: str) -> None:
    async def main() -> None:
        node = Node()
        identifier = node.filters.add("a", EVERYTHING, first=1, last=None, start=1)
        node.head.height = 6
        one = asyncio.ensure_future(node.poll(identifier))
        await asyncio.sleep(0)
        node.head.height = 8
        if ends == "away":
            node.away_at = 2
        elif ends == "given up":
            one.cancel()
        told = heights(await node.poll(identifier))
        assert told == [], "the second of two at a time has no news"
        await asyncio.wait([one])
        if ends == "early":
            told += heights(one.result())
        node.away_at = -1
        while part := heights(await node.poll(identifier)):
            told += part
        assert told == [height for height in range(1, 9) for _ in range(PER_BLOCK)]

    asyncio.run(main())


def test_two_polls_of_the_mempool_at_a_time_are_told_each_hash_once() -> None:
    async def main() -> None:
        node = Node()
        identifier = node.filters.add("a", None, first=0, last=None, start=0, of_pool=True)
        node.arrived = [b"\x01", b"\x02"]
        one, other = await asyncio.gather(node.poll(identifier), node.poll(identifier))
        assert (one, other) == (["0x01", "0x02"], [])
        given_up = asyncio.ensure_future(node.poll(identifier))
        await asyncio.sleep(0)
        node.arrived.append(b"\x03")
        given_up.cancel()
        await asyncio.wait([given_up])
        assert await node.poll(identifier) == ["0x03"]

    asyncio.run(main())


def test_a_block_of_more_logs_than_an_answer_may_have_is_told_by_itself() -> None:
    async def main() -> None:
        node = Node({2: 30})
        node.head.height = 3

        async def between(first: int, last: int) -> list[int]:
            wanted = FILTER.read({"fromBlock": hex(first), "toBlock": hex(last)})
            return heights(await get_logs(node, wanted))  # type: ignore[arg-type]

        assert await between(2, 2) == [2] * 30
        for first, last in ((1, 2), (2, 3)):
            with pytest.raises(RpcError) as refused:
                await between(first, last)
            assert refused.value.number == -32005
        identifier = node.filters.add("a", EVERYTHING, first=1, last=None, start=1)
        assert heights(await node.poll(identifier)) == [1] * PER_BLOCK + [2] * 30
        assert heights(await node.poll(identifier)) == [3] * PER_BLOCK

    asyncio.run(main())
