"""Blocks of many transactions: shown in turns, once for all who ask, and as each transaction alone is shown."""

from __future__ import annotations

import asyncio
import json
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import orjson
import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from rpc.ethereum import transactions as ethereum
from rpc.ethereum.fees import tips_at
from rpc.gateway.node.block_cache import ITEMS_OF_TURN
from rpc.gateway.node.client import NodeClient
from rpc.methods import transactions
from rpc.methods.method import NodeApi
from rpc.protocol.blocks import LoadedBlock
from rpc.protocol.requests import PoolRequests
from state.primitives.hashing import keccak
from state.primitives.receipts import Receipt
from state.primitives.transactions import decode_transaction
from tests.rpc.harness import ALICE, BOB, CAROL, DAVE, Node, gateway, hexed, served, transfer

COUNT = 150


def fill(node: Node, count: int) -> list[bytes]:
    raws = [
        transfer(key, nonce, DAVE.address, 1 + nonce, fee=10**10, tip=(7 * nonce) % 5)
        for nonce in range(count // 3)
        for key in (ALICE, BOB, CAROL)
    ]
    for raw in raws:
        add(node, raw)
    return raws


def add(node: Node, raw: bytes) -> None:
    transaction = decode_transaction(raw)
    transaction.recover_sender()
    node.pool.add(node.runtime.check(transaction))


async def test_the_whole_is_the_sum_of_its_parts(tmp_path: Path) -> None:
    node, path = Node(tmp_path / "db"), tmp_path / "s"
    fill(node, COUNT)
    node.mint()
    assert len(LoadedBlock(node.view.block(1)).hashes) == COUNT  # type: ignore[arg-type]
    found: dict[str, list[Any]] = {}

    async def ask(name: str, *params: Any) -> None:
        found.setdefault(name, []).append(await it.call(name, *params))

    async with served(node, path) as backend, gateway(backend, path) as it:
        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(ask, "eth_getBlockReceipts", "0x1")
                nursery.start_soon(ask, "eth_getBlockByNumber", "0x1", True)
                nursery.start_soon(ask, "dekube_getBlock", 1, True)
                nursery.start_soon(ask, "dekube_getBlockReceipts", 1)
        assert all(answers[0] == answers[1] == answers[2] for answers in found.values())
        receipts, whole = found["eth_getBlockReceipts"][0], found["eth_getBlockByNumber"][0]["transactions"]
        hashes = (await it.call("eth_getBlockByNumber", "0x1", False))["transactions"]
        ours = found["dekube_getBlock"][0]["block"]["transactions"]
        results = found["dekube_getBlockReceipts"][0]["receipts"]
        assert len(receipts) == len(whole) == len(ours) == len(results) == COUNT
        assert [item["hash"] for item in whole] == hashes
        for index in (0, 1, ITEMS_OF_TURN - 1, ITEMS_OF_TURN, COUNT - 1):
            assert await it.call("eth_getTransactionReceipt", hashes[index]) == receipts[index]
            assert await it.call("eth_getTransactionByHash", hashes[index]) == whole[index]
            shown = await it.call("dekube_getTransaction", hashes[index])
            assert shown["transaction"] == ours[index]
            assert (await it.call("dekube_getReceipt", hashes[index]))["receipt"] == results[index]
        gas = [int(item["gasUsed"], 16) for item in receipts]
        assert [int(item["cumulativeGasUsed"], 16) for item in receipts] == [
            sum(gas[: number + 1]) for number in range(COUNT)
        ]
        assert (await it.http.get(it.url + "/v1/blocks/1?transactions=true")).json()["block"] == (
            found["dekube_getBlock"][0]["block"]
        )


def test_a_large_block_is_shown_in_turns_and_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    node = Node(tmp_path / "db")
    fill(node, COUNT)
    node.mint()
    record = node.view.block(1)
    assert record is not None
    recovered = []
    recover = LoadedBlock.recover

    def counted(loaded: LoadedBlock) -> None:
        recovered.append(1)
        recover(loaded)

    monkeypatch.setattr(LoadedBlock, "recover", counted)

    async def main() -> None:
        link = NodeClient(tmp_path / "nowhere")
        loaded = LoadedBlock(record)
        link._blocks.put(loaded)
        blocks = await asyncio.gather(*[link.block_with_senders(1) for _ in range(5)])
        assert all(block is loaded for block in blocks) and loaded.has_senders
        assert len(recovered) == 1, "five who ask are one recovery"
        shown: list[int] = []
        turns: list[int] = []

        def item(index: int) -> int:
            shown.append(index)
            return index

        async def other() -> None:
            while len(shown) < COUNT:
                turns.append(len(shown))
                await asyncio.sleep(0)

        asking = [link.rendered("part", loaded, item) for _ in range(4)]
        *answers, _ = await asyncio.gather(*asking, other())
        assert shown == list(range(COUNT)), "once for all who ask"
        assert max(b - a for a, b in pairwise(turns)) <= ITEMS_OF_TURN
        answers.append(await link.rendered("part", loaded, item))
        assert len(shown) == COUNT, "and kept"
        assert all(json.loads(orjson.dumps(answer)) == list(range(COUNT)) for answer in answers)

        def fails(_index: int) -> int:
            raise ValueError

        for _ in range(2):  # a failure is not kept
            with pytest.raises(ValueError):
                await link.rendered("bad", loaded, fails)

    asyncio.run(main())


class Paid:
    """A block of which nothing matters but what its transactions paid."""

    height = 1

    def __init__(self, paid: list[tuple[int, int]]) -> None:
        self.receipts = [Receipt(1, gas, 100 + tip, None, ()) for tip, gas in paid]
        self._tips = None
        self.block = SimpleNamespace(header=SimpleNamespace(base_fee=100))

    tips = LoadedBlock.tips


@given(
    st.lists(st.tuples(st.integers(0, 9), st.integers(1, 50)), min_size=1, max_size=30),
    st.lists(st.floats(0, 100), max_size=5),
)
def test_tips_are_those_of_a_walk_through_the_block(paid: list[tuple[int, int]], percentiles: list[float]) -> None:
    percentiles.sort()
    ordered, total = sorted(paid), sum(gas for _, gas in paid)
    expected, at, used = [], 0, ordered[0][1]
    for percentile in percentiles:
        while used < total * percentile / 100 and at < len(ordered) - 1:
            at += 1
            used += ordered[at][1]
        expected.append(ordered[at][0])
    assert tips_at(cast(LoadedBlock, Paid(paid)), tuple(percentiles)) == expected


def test_a_transaction_that_a_block_takes_between_two_questions_is_found(tmp_path: Path) -> None:
    class Between:
        """A node whose next block comes after the first look for a final transaction."""

        def __init__(self, node: Node) -> None:
            self.node = node
            self.kinds: dict[int, str] = {}
            self.description = node.view.description()

        @property
        def head(self) -> Any:
            return self.node.head()

        async def locate(self, hash_: bytes) -> Any:
            [place] = self.node.view.locate([hash_])
            return place

        async def block(self, height: int) -> Any:
            return LoadedBlock(self.node.view.block(height))  # type: ignore[arg-type]

        async def request(self, function: Any, hash_: bytes) -> Any:
            assert function == PoolRequests.pool_get
            self.node.mint()
            return self.node.view.pool_get(hash_)

    for number, ask in enumerate((transactions.get_transaction, ethereum.get_transaction)):
        node = Node(tmp_path / str(number))
        raw = transfer(ALICE, 0, BOB.address, 1)
        add(node, raw)

        async def main(node: Node = node, raw: bytes = raw, ask: Any = ask) -> Any:
            return await ask(cast(NodeApi, Between(node)), keccak(raw))

        answer = asyncio.run(main())
        shown = answer.get("transaction", answer)
        assert shown is not None and shown["hash"] == hexed(keccak(raw))
        assert (shown.get("blockNumber") or shown["block"]["height"]) in ("0x1", 1)
