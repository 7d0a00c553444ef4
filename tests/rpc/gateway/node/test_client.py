"""What the gateway keeps when its node turns out to have other blocks than were told."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from rpc.gateway.node import client as links
from rpc.gateway.node.client import NodeClient, NodeClientOptions
from rpc.protocol.blocks import LoadedBlock
from rpc.protocol.records import BlockRecord
from rpc.protocol.requests import ChainRequests
from state.primitives.heads import Head
from tests.rpc.gateway.node.test_large_blocks import add
from tests.rpc.harness import ALICE, BOB, Node, transfer


def head(height: int) -> Head:
    return Head(height, height.to_bytes(32, "big"), 0, bytes(32), 0, 0, 0, 1)


def test_who_waits_behind_a_node_that_was_set_back_is_told(tmp_path: Path) -> None:
    async def main() -> None:
        link = NodeClient(tmp_path / "nowhere")
        final: dict[bytes, tuple[int, int]] = {}

        async def request(function: Any, hashes: list[bytes]) -> Any:
            assert function == ChainRequests.locate, "no block is read that may be another one"
            return [final.get(item) for item in hashes]

        link.request = request  # type: ignore[assignment]
        link._new_head(head(100))
        old, new = bytes(31) + b"\x01", bytes(31) + b"\x02"
        waiting = [asyncio.ensure_future(link.wait_transaction(old, 60_000))]
        await asyncio.sleep(0.01)
        link._disconnected()
        link._forget()
        link._new_head(head(60))
        waiting.append(asyncio.ensure_future(link.wait_transaction(new, 60_000)))
        await asyncio.sleep(0.01)
        link._disconnected()
        link._forget()
        final[old], final[new] = (61, 3), (62, 0)
        link._new_head(head(62))
        assert await asyncio.wait_for(asyncio.gather(*waiting), 20) == [(61, 3), (62, 0)]

    asyncio.run(main())


def test_a_block_that_is_decoded_while_the_node_is_set_back_is_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    records: list[BlockRecord] = []
    for amount in (1, 2):
        node = Node(tmp_path / str(amount))
        add(node, transfer(ALICE, 0, BOB.address, amount))
        node.mint()
        record = node.view.block(1)
        assert record is not None
        records.append(record)
    before, after = records
    assert before.hash != after.hash
    begun, may_end = threading.Event(), threading.Event()

    def decode(_loaded: LoadedBlock) -> None:
        begun.set()
        assert may_end.wait(20)

    monkeypatch.setattr(links, "_decode_all", decode)

    async def main() -> None:
        link = NodeClient(tmp_path / "nowhere", NodeClientOptions(large_block_transactions=0))
        asked: list[Any] = []

        async def request(function: Any, *_params: Any) -> Any:
            asked.append(function)
            return (before if link.resets == 0 else after) if function == ChainRequests.block else [bytes(20)]

        link.request = request  # type: ignore[assignment]
        first = asyncio.ensure_future(link.block(1))
        await asyncio.to_thread(begun.wait, 20)
        link._disconnected()
        link._forget()
        second = asyncio.ensure_future(link.block(1))  # of one who asks the node of now
        await asyncio.sleep(0)
        may_end.set()
        for loaded in (await first, await second, await link.block(1)):
            assert loaded is not None and loaded.hash == after.hash
        assert await link.hash_of(1) == after.hash
        assert link._heights.get(before.hash) is None
        assert asked.count(ChainRequests.block) == 2
        link._blocks.close()

    asyncio.run(main())
