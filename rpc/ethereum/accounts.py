"""Accounts: balance, nonce and code. No account has storage."""

from __future__ import annotations

from typing import Any, Final

from rpc.ethereum import render
from rpc.ethereum.block_ids import AT_PARAM, height_of
from rpc.ethereum.contracts import CODE, CONTRACTS
from rpc.ethereum.method import method
from rpc.ethereum.params import ACCOUNT, BLOCK, SLOT, BlockParam
from rpc.ethereum.render import QUANTITY_OUT, quantity
from rpc.methods.accounts import nonce_and_balance
from rpc.methods.method import Json, Method, NodeApi
from rpc.methods.render import BYTES_OUT, HASH_OUT, hexed
from rpc.methods.schema import Param, ParamType
from state.view.accounts import account_key

__all__ = ["ACCOUNT_METHODS", "balance_at"]


async def get_balance(node: NodeApi, who: bytes, block: BlockParam) -> Json:
    """Answer ``eth_getBalance``."""
    height = node.head.height if block is None else await height_of(node, block)
    return quantity(await balance_at(node, who, height))


async def get_transaction_count(node: NodeApi, who: bytes, block: tuple[BlockParam, bool]) -> Json:
    """Answer ``eth_getTransactionCount``."""
    place, is_pending = block
    height = node.head.height if place is None else await height_of(node, place)
    [record] = await node.read(height, account_key(who))
    nonce, _ = nonce_and_balance(record)
    return quantity(max(nonce, await node.pending_nonce(who)) if is_pending else nonce)


async def get_code(node: NodeApi, who: bytes, block: BlockParam) -> Json:
    """Answer ``eth_getCode``."""
    await height_of(node, block)
    return hexed(CODE) if who in CONTRACTS else "0x"


async def get_storage_at(node: NodeApi, _who: bytes, _slot: int, block: BlockParam) -> Json:
    """Answer ``eth_getStorageAt``: nothing here has slots."""
    await height_of(node, block)
    return render.ZERO_HASH


async def balance_at(node: NodeApi, who: bytes, height: int) -> int:
    """Return the free balance of an account in the state after the block ``height``."""
    [record] = await node.read(height, account_key(who))
    return nonce_and_balance(record)[1]


def _nonce_block(value: Any) -> tuple[BlockParam, bool]:
    return BLOCK.read(value), value == "pending"


_NONCE_BLOCK: Final = ParamType(BLOCK.schema, _nonce_block)
_WHO: Final = Param("address", ACCOUNT, "The account.")

ACCOUNT_METHODS: Final[tuple[Method, ...]] = (
    method("eth_getBalance", "The free balance of an account", get_balance, QUANTITY_OUT, _WHO, AT_PARAM),
    method(
        "eth_getTransactionCount",
        "Next nonce of an account; with `pending` it includes pending transactions",
        get_transaction_count,
        QUANTITY_OUT,
        _WHO,
        Param("block", _NONCE_BLOCK, AT_PARAM.text, required=False, default=(None, False)),
    ),
    method("eth_getCode", "`0xfe` for system contracts, otherwise empty", get_code, BYTES_OUT, _WHO, AT_PARAM),
    method(
        "eth_getStorageAt",
        "Always zero: accounts have no storage slots",
        get_storage_at,
        HASH_OUT,
        _WHO,
        Param("slot", SLOT, "The slot: a quantity, or 32 bytes."),
        AT_PARAM,
    ),
)
