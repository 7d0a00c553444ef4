"""The fees of blocks: of those that are kept, up to the one that is named."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, Final

import pytest

from rpc.ethereum.fees import fee_history
from rpc.protocol.errors import HeightUnknown, Pruned, RpcError

PARAMETERS: Final = (("chain.block_gas_limit", 100), ("chain.base_fee_initial", 7))


class Node:
    """A chain whose blocks have their heights as base fees; it keeps some of them, and the state of fewer."""

    description: Final = SimpleNamespace(parameters=PARAMETERS)

    def __init__(self, oldest: int) -> None:
        self.head = SimpleNamespace(height=20, oldest_block=oldest, oldest_state=18, base_fee_next=21)

    async def height_of(self, block_hash: bytes) -> int | None:
        return block_hash[0] or None

    async def block(self, height: int) -> Any:
        if height < self.head.oldest_block:
            raise Pruned(height=height, oldest_height=self.head.oldest_block)
        header = SimpleNamespace(base_fee=height)
        return SimpleNamespace(block=SimpleNamespace(header=header), gas_used=25, receipts=())


def ask(oldest: int, count: int, newest: int | bytes | None) -> Any:
    return asyncio.run(fee_history(Node(oldest), count, newest, None))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("count", "newest", "first", "last"),
    [
        (3, None, 18, 20), (100, None, 10, 20), (1, 10, 10, 10), (5, 11, 10, 11),
        (2, bytes([13]) * 32, 12, 13),  # its state is gone, its fees are not
    ],
)  # fmt: skip
def test_of_the_kept_blocks_up_to_the_named_one(
    count: int, newest: int | bytes | None, first: int, last: int
) -> None:
    answer = ask(10, count, newest)
    assert answer["oldestBlock"] == hex(first)
    assert answer["baseFeePerGas"] == [hex(height) for height in range(first, last + 2)]
    assert answer["gasUsedRatio"] == [0.25] * (last + 1 - first)


def test_what_is_not_kept_or_not_there_is_no_empty_history() -> None:
    for newest in (9, 8, 1, 0, bytes([9]) * 32):
        with pytest.raises(Pruned):
            ask(10, 3, newest)
    for unknown in (21, bytes([21]) * 32):
        with pytest.raises(HeightUnknown):
            ask(10, 3, unknown)
    with pytest.raises(RpcError, match="header not found"):
        ask(10, 3, bytes(32))
    assert ask(1, 3, 1)["baseFeePerGas"] == ["0x7", "0x1", "0x2"], "the genesis is shown where all is kept"
