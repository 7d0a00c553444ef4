"""``eth_call`` and gas estimates: views are answered from the state, other calls are simulated (rpc.md 8.4)."""

from __future__ import annotations

from typing import Final

from rpc.ethereum.accounts import balance_at
from rpc.ethereum.block_ids import AT_PARAM, height_of
from rpc.ethereum.contracts import View, view_of
from rpc.ethereum.errors import Reverted, as_revert
from rpc.ethereum.method import method
from rpc.ethereum.params import CALL, NO_OVERRIDE, BlockParam, CallParam
from rpc.ethereum.render import QUANTITY_OUT, quantity
from rpc.methods.method import Json, Method, NodeApi
from rpc.methods.parameters import parameters_of
from rpc.methods.queues import QueueKind
from rpc.methods.render import BYTES_OUT, hexed
from rpc.methods.schema import Param
from rpc.protocol.errors import RpcError
from rpc.protocol.requests import ChainRequests
from state.primitives.address import ADDRESS_BYTES
from state.primitives.errors import DecodeError, DekubeError
from state.primitives.receipts import Receipt, decode_receipt
from state.primitives.transactions import CALL_KIND, DYNAMIC_FORM
from state.transition.calls import NOTE_LIMIT_BYTES, SYSTEM_PREFIX, reason_text
from state.transition.errors import (
    FeeCapTooLow,
    InsufficientFunds,
    IntrinsicGasTooLow,
    SenderUnknown,
    TipAboveFeeCap,
    WrongChain,
)
from state.transition.transfer import TRANSFER_GAS
from state.view.accounts import SUPPLY_LIMIT

__all__ = ["CALL_METHODS"]

PRICE_MAX: Final = 2**96 - 1
"""A gas price above every balance; higher prices are treated alike."""
_FORMS: Final = (0, DYNAMIC_FORM)
"""Types of transactions, as clients number them, that are taken."""
_NO_CREATION: Final = "contract creation is not supported"


async def call(node: NodeApi, request: CallParam, block: BlockParam, _state: None, _blocks: None) -> Json:
    """Answer ``eth_call``: views read the state of any block, what writes is tried on the newest one."""
    height = await height_of(node, block)
    to = request.to
    if to is None:
        raise RpcError("not_supported", _NO_CREATION)
    if not to.startswith(SYSTEM_PREFIX):
        if request.sender is not None and request.value:
            await _check_balance(node, request.sender, request.value, height)
        return "0x"
    view = view_of(to, request.data)
    if view is None:
        await _try(node, request, to)
        return "0x"
    return hexed(await _read(node, request, view, height))


async def _read(node: NodeApi, request: CallParam, view: View, height: int) -> bytes:
    """Return what a view answers. Raises Reverted."""
    if request.value:
        raise Reverted(f"{view.function.name} takes no value")
    try:
        arguments = view.function.decode(request.data)
        return await node.query(height, view.answer, parameters_of(node.description.parameters), arguments)
    except RpcError:
        raise
    except DecodeError as error:
        raise Reverted(f"{view.function.name}: {reason_text(error)}") from None
    except DekubeError as error:
        raise Reverted(error.code) from None


async def estimate_gas(node: NodeApi, request: CallParam, block: BlockParam, _state: None, _blocks: None) -> Json:
    """Answer ``eth_estimateGas``: the weight of the kind, which is what passes and what is paid.

    Of a view it is the least that a transaction weighs, where ``eth_call`` does not revert.
    """
    height = await height_of(node, block)
    to = request.to
    if to is None:
        raise RpcError("not_supported", _NO_CREATION)
    if to.startswith(SYSTEM_PREFIX):
        _check_form(node, request)
        if view := view_of(to, request.data):
            await _read(node, request, view, height)
            needed = TRANSFER_GAS
        else:
            needed = (await _try(node, request, to)).gas_used
    else:
        if len(request.data) > NOTE_LIMIT_BYTES:
            raise Reverted(f"an account takes at most {NOTE_LIMIT_BYTES} bytes of data")
        _check_form(node, request)
        needed = TRANSFER_GAS
        if request.sender is not None:
            await _check_balance(node, request.sender, request.value + TRANSFER_GAS * request.price)
    if request.gas is not None and request.gas < needed:  # one that is higher is only the most that is wanted
        raise IntrinsicGasTooLow(gas_limit=request.gas, needed=needed)
    return quantity(needed)


def _check_form(node: NodeApi, request: CallParam) -> None:
    """Refuse what would be refused of the signed transaction, as far as the call names it."""
    if request.form not in (None, *_FORMS):
        raise RpcError("not_supported", f"transaction type not supported: {request.form:#x}")
    if request.has_access_list:
        raise RpcError("not_supported", "access lists are not supported")
    chain_id = node.description.chain_id
    if request.chain_id is not None and request.chain_id != chain_id:
        raise WrongChain(expected=chain_id, got=request.chain_id)
    base_fee = node.head.base_fee_next
    if request.price:
        if request.tip is not None and request.tip > request.price:
            raise TipAboveFeeCap(tip=request.tip, fee_cap=request.price)
        if request.price < base_fee:
            raise FeeCapTooLow(fee_cap=request.price, base_fee=base_fee)


async def _check_balance(node: NodeApi, sender: bytes, needed: int, height: int | None = None) -> None:
    balance = await balance_at(node, sender, node.head.height if height is None else height)
    if needed > balance:
        raise InsufficientFunds(balance=balance, needed=needed)


async def _try(node: NodeApi, request: CallParam, to: bytes) -> Receipt:
    """Return the receipt of a dry run, whose gas is free where the call names no price.

    Raises Reverted, and what else is refused.
    """
    sender = request.sender or bytes(ADDRESS_BYTES)
    if request.value >= SUPPLY_LIMIT:  # more than there is: no call can name it
        await _check_balance(node, sender, request.value)
    price = min(request.price, PRICE_MAX)
    try:
        found = await node.request(
            ChainRequests.simulate, sender, CALL_KIND, [to, request.value, request.data], price
        )
    except RpcError as error:
        if (
            not any(sender) and error.reason == SenderUnknown.code
        ):  # looked at last: it is a write, and a right one
            raise Reverted("from: who writes must be named") from None
        raise as_revert(error) from None
    receipt = decode_receipt(found)
    if receipt.reason is not None:
        raise Reverted(receipt.reason)
    return receipt


_CALL: Final = Param("call", CALL, "The call: from, to, value, input and fees.")

_OVERRIDES: Final = tuple(
    Param(name, NO_OVERRIDE, "None: the state and the block are what they are.", required=False)
    for name in ("stateOverride", "blockOverrides")
)

CALL_METHODS: Final[tuple[Method, ...]] = (
    method(
        "eth_call",
        "Result of a view; a write is simulated",
        call,
        BYTES_OUT,
        _CALL,
        AT_PARAM,
        *_OVERRIDES,
        cost=5,
        queue=QueueKind.VIEW,
        may_revert=True,
    ),
    method(
        "eth_estimateGas",
        "Gas that a transaction uses",
        estimate_gas,
        QUANTITY_OUT,
        _CALL,
        AT_PARAM,
        *_OVERRIDES,
        cost=5,
        queue=QueueKind.VIEW,
        may_revert=True,
    ),
)
