"""Gas prices, now and in earlier blocks (rpc.md 8.5)."""

from __future__ import annotations

from bisect import bisect_left
from typing import Any, Final

from rpc.ethereum import render
from rpc.ethereum.block_ids import block_height, oldest_shown
from rpc.ethereum.method import method
from rpc.ethereum.params import BLOCK, COUNT, PERCENTILES, BlockParam
from rpc.ethereum.render import QUANTITY_OUT, quantity
from rpc.methods.method import Json, Method, NodeApi
from rpc.methods.queues import QueueKind
from rpc.methods.schema import Param, array, obj
from rpc.protocol.blocks import LoadedBlock
from rpc.protocol.errors import HeightUnknown, Pruned, RpcError

__all__ = ["FEE_METHODS", "tips_at"]

FEE_BLOCKS_MAX: Final = 100
"""Blocks of one fee history; more are asked for in several questions."""
RECEIPTS_OF_TURN: Final = 128
"""A block with more is looked at in a turn of the loop of its own."""


def _price(node: NodeApi) -> int:
    """Return a gas price that stays valid for two more full blocks (12.5 % each)."""
    return node.head.base_fee_next * 9**2 // 8**2 + 1


async def gas_price(node: NodeApi) -> Json:
    """Answer ``eth_gasPrice``."""
    return quantity(_price(node))


async def max_priority_fee(_node: NodeApi) -> Json:
    """Answer ``eth_maxPriorityFeePerGas``: zero, because blocks are not full."""
    return "0x0"


async def fee_history(
    node: NodeApi, count: int, newest: BlockParam, percentiles: tuple[float, ...] | None
) -> Json:
    """Answer ``eth_feeHistory``."""
    if not count:  # in this shape go-ethereum answers it
        return {"oldestBlock": quantity(0), "baseFeePerGas": [], "gasUsedRatio": []}
    head, what = node.head, node.description
    last = await node.height_of(newest) if isinstance(newest, bytes) else block_height(node, newest)
    if last is None:
        raise RpcError("not_found", "header not found")
    if last > head.height:
        raise HeightUnknown(height=last, newest_height=head.height)
    if last < (oldest := oldest_shown(head)):
        raise Pruned(height=last, oldest_height=oldest)
    first = max(last - min(count, FEE_BLOCKS_MAX) + 1, oldest)
    limit, initial = render.gas_limit_of(what), dict(what.parameters)["chain.base_fee_initial"]
    fees: list[int] = []
    ratios: list[float] = []
    rewards: list[list[str]] = []
    for height in range(first, last + 1):
        loaded = await node.block(height) if height else None
        base_fee = initial if loaded is None else loaded.block.header.base_fee
        fees.append(base_fee)
        ratios.append(0.0 if loaded is None else loaded.gas_used / limit)
        rewards.append([quantity(tip) for tip in tips_at(loaded, percentiles or ())])
        if loaded is not None and len(loaded.receipts) > RECEIPTS_OF_TURN:
            await node.yield_turn()
    after = await node.block(last + 1) if last < head.height else None
    fees.append(head.base_fee_next if after is None else after.block.header.base_fee)
    answer = {
        "oldestBlock": quantity(first),
        "baseFeePerGas": [quantity(fee) for fee in fees],
        "gasUsedRatio": ratios,
    }
    return answer | {"reward": rewards} if percentiles else answer


def tips_at(loaded: LoadedBlock | None, percentiles: tuple[float, ...]) -> list[int]:
    """Return the tips at percentiles of the gas of a block."""
    if loaded is None or not loaded.receipts or not percentiles:
        return [0] * len(percentiles)
    tips, used = loaded.tips
    places = (bisect_left(used, used[-1] * percentile / 100) for percentile in percentiles)
    return [tips[min(at, len(tips) - 1)] for at in places]


def _weigh_fees(_node: NodeApi, count: int, *_: Any) -> int:
    return min(count, FEE_BLOCKS_MAX)


_FEES_OUT: Final = obj(
    {
        "oldestBlock": QUANTITY_OUT,
        "baseFeePerGas": array(QUANTITY_OUT, maximum=FEE_BLOCKS_MAX + 1),
        "gasUsedRatio": array({"type": "number"}, maximum=FEE_BLOCKS_MAX),
        "reward": array(array(QUANTITY_OUT)),
    },
    optional=("reward",),
)

FEE_METHODS: Final[tuple[Method, ...]] = (
    method("eth_gasPrice", "Gas price that the next blocks accept", gas_price, QUANTITY_OUT),
    method("eth_maxPriorityFeePerGas", "Suggested priority fee", max_priority_fee, QUANTITY_OUT),
    method(
        "eth_feeHistory",
        f"Base fees, gas used ratios and tips of up to {FEE_BLOCKS_MAX} blocks",
        fee_history,
        _FEES_OUT,
        Param("count", COUNT, "How many blocks."),
        Param("newest", BLOCK, "The newest block."),
        Param("percentiles", PERCENTILES, "Percentiles of the tips, by gas.", required=False),
        cost=5,
        weigh=_weigh_fees,
        queue=QueueKind.VIEW,
    ),
)
