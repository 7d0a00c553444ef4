"""The Ethereum namespace: what wallets and client libraries ask of a node (RPC.md 3 to 5), without an EVM behind.

The newest block is final, so latest, pending, safe and finalized are the same but for the nonce of an account:
with "pending" it counts what waits in the mempool.
"""

from __future__ import annotations

import platform
import zlib
from bisect import bisect_left
from collections.abc import Callable
from typing import Any, Final

from rpc.blocks import LoadedBlock, waiting_transaction
from rpc.errors import HeightUnknown, Pruned, RpcError
from rpc.ethereum import render
from rpc.ethereum.contracts import CODE, CONTRACTS, abi_json, parameters_of, view_of
from rpc.ethereum.errors import NotFinalYet, Reverted, as_revert
from rpc.ethereum.filters import LiveFilter
from rpc.ethereum.logs import BLOCKS_MAX, add_logs, find_logs
from rpc.ethereum.params import (
    ACCOUNT,
    BLOCK,
    CALL,
    COUNT,
    FILTER,
    PERCENTILES,
    QUANTITY,
    SLOT,
    BlockParam,
    CallParam,
    FilterParam,
)
from rpc.ethereum.render import ETH_ADDRESS_OUT, LOGS_OUT, QUANTITY_OUT, quantity
from rpc.light import final_transaction
from rpc.render import ADDRESS_OUT, AT, BYTES_OUT, HASH_OUT, address, at, hexed
from rpc.schema import (
    BOOLEAN,
    EARLIEST,
    HASH,
    NULL,
    NUMBER,
    STRING,
    Param,
    ParamType,
    Schema,
    array,
    data,
    natural,
    nullable,
    obj,
    ref,
)
from rpc.table import Json, Method, Node, Posting
from rpc.turns import Lane
from state.primitives.address import ADDRESS_BYTES
from state.primitives.errors import DekubeError
from state.primitives.hashing import keccak
from state.primitives.receipts import Receipt, decode_receipt
from state.primitives.transactions import (
    CALL_KIND,
    NATIVE_FORM,
    TRANSACTION_LIMIT_BYTES,
    decode_transaction,
    recover_sender,
)
from state.transition.calls import NOTE_LIMIT_BYTES, SYSTEM_PREFIX
from state.transition.errors import GasLimitTooHigh, InsufficientFunds, SenderUnknown
from state.transition.transfer import TRANSFER_GAS
from state.view.accounts import BALANCE_MASK, SUPPLY_LIMIT, account_key

__all__ = ["METHODS"]

_NATIVE: Final = bytes((NATIVE_FORM,))
FEE_BLOCKS_MAX: Final = 100
"""Blocks of one fee history; more are asked for in several questions."""
RECEIPTS_OF_TURN: Final = 128
"""A block with more is looked at in a turn of the loop of its own."""
BLOCKS_OF_UNIT: Final = 10
"""Blocks looked through that cost as much as reading one record."""
SYNC_WAIT_MS: Final = 20_000
"""How long ``eth_sendRawTransactionSync`` waits where nothing else is asked for, and at most."""
SHA3_LIMIT_BYTES: Final = 64 * 1024
PRICE_MAX: Final = 2**96 - 1
"""A price of gas that nobody can pay: higher ones are the same."""
_NO_CREATION: Final = "contract creation is not supported"


# Parts


async def _height_of(node: Node, block: BlockParam) -> int:
    """Return the height whose state is asked for. Raises Pruned, HeightUnknown or not_found."""
    head = node.head
    if block is None:
        return head.height
    if isinstance(block, bytes):
        found = await node.height_of(block)
        if found is None:
            raise RpcError("not_found", "header not found")
        height = found
    else:
        height = head.oldest_state if block == EARLIEST else block
    if height > head.height:
        raise HeightUnknown(height=height, newest_height=head.height)
    if height < head.oldest_state:
        raise Pruned(height=height, oldest_height=head.oldest_state)
    return height


def _block_height(node: Node, block: BlockParam) -> int:
    """Return the height of a block that is asked for by number or tag."""
    assert not isinstance(block, bytes)
    if block is None:
        return node.head.height
    if block == EARLIEST:
        return node.head.oldest_block if node.head.oldest_block > 1 else 0
    return block


async def _find_block(node: Node, block: BlockParam, *, senders: bool = False) -> LoadedBlock | None:
    """Return a block; None for one that there is not, and for the genesis, which has no bytes."""
    height = await node.height_of(block) if isinstance(block, bytes) else _block_height(node, block)
    if height is None or not 0 < height <= node.head.height:
        return None
    return await (node.block_with_senders(height) if senders else node.block(height))


async def _account(node: Node, who: bytes, block: BlockParam) -> tuple[int, int]:
    """Return nonce and balance of an account."""
    height = node.head.height if block is None else await _height_of(node, block)
    [record] = await node.read(height, account_key(who))
    packed = 0 if record is None else int.from_bytes(record, "big")
    return packed >> 128, packed & BALANCE_MASK


# Identity


async def chain_id(node: Node) -> Json:
    """Answer ``eth_chainId``."""
    return quantity(node.description.chain_id)


async def net_version(node: Node) -> Json:
    """Answer ``net_version``."""
    return str(node.description.chain_id)


async def net_listening(_node: Node) -> Json:
    """Answer ``net_listening``."""
    return True


async def client_version(node: Node) -> Json:
    """Answer ``web3_clientVersion``."""
    system = f"{platform.system().lower()}-{platform.machine()}"
    version = node.description.version.removeprefix("dekube/")
    return f"dekube/{version}/{system}/python{platform.python_version()}"


async def sha3(_node: Node, content: bytes) -> Json:
    """Answer ``web3_sha3``."""
    return hexed(keccak(content))


async def accounts(_node: Node) -> Json:
    """Answer ``eth_accounts``: the node keeps nobody's keys."""
    return []


async def config(node: Node) -> Json:
    """Answer ``eth_config`` (EIP-7910): there is one configuration, in force since the genesis, and no blobs."""
    what = node.description
    current = {
        "activationTime": what.genesis_time_ms // 1000,
        "blobSchedule": {"baseFeeUpdateFraction": 0, "max": 0, "target": 0},
        "chainId": quantity(what.chain_id),
        "forkId": f"0x{zlib.crc32(what.genesis_hash):08x}",
        "precompiles": {},
        "systemContracts": {f"{name.upper()}_ADDRESS": hexed(who) for who, name in CONTRACTS.items()},
    }
    return {"current": current, "next": None, "last": None}


async def syncing(node: Node) -> Json:
    """Answer ``eth_syncing``."""
    sync, head = await node.sync(), node.head
    if not sync.syncing:
        return False
    return {
        "startingBlock": quantity(head.oldest_block),
        "currentBlock": quantity(head.height),
        "highestBlock": quantity(max(sync.highest, head.height)),
    }


async def block_number(node: Node) -> Json:
    """Answer ``eth_blockNumber``."""
    return quantity(node.head.height)


# Accounts


async def get_balance(node: Node, who: bytes, block: BlockParam) -> Json:
    """Answer ``eth_getBalance``."""
    return quantity((await _account(node, who, block))[1])


async def get_transaction_count(node: Node, who: bytes, block: tuple[BlockParam, bool]) -> Json:
    """Answer ``eth_getTransactionCount``."""
    place, is_pending = block
    nonce = (await _account(node, who, place))[0]
    return quantity(max(nonce, await node.pending_nonce(who)) if is_pending else nonce)


async def get_code(node: Node, who: bytes, block: BlockParam) -> Json:
    """Answer ``eth_getCode``."""
    await _height_of(node, block)
    return hexed(CODE) if who in CONTRACTS else "0x"


async def get_storage_at(node: Node, _who: bytes, _slot: int, block: BlockParam) -> Json:
    """Answer ``eth_getStorageAt``: nothing here has slots."""
    await _height_of(node, block)
    return render.ZERO_HASH


async def contracts(node: Node) -> Json:
    """Answer ``dekube_getContracts``."""
    numbers = node.description.parameters
    return {
        "at": at(node.head),
        "contracts": [
            {"name": name, "address": address(who), "abi": abi_json(who, numbers, node.events)}
            for who, name in CONTRACTS.items()
        ],
    }


# Fees


def _price(node: Node) -> int:
    """Return a price that holds for two full blocks more (12.5 % each); what is not burned is the leader's."""
    return node.head.base_fee_next * 9**2 // 8**2 + 1


async def gas_price(node: Node) -> Json:
    """Answer ``eth_gasPrice``."""
    return quantity(_price(node))


async def max_priority_fee(_node: Node) -> Json:
    """Answer ``eth_maxPriorityFeePerGas``: blocks are not full, so nobody has to outbid others."""
    return "0x0"


async def fee_history(node: Node, count: int, newest: BlockParam, percentiles: tuple[float, ...] | None) -> Json:
    """Answer ``eth_feeHistory``."""
    head, what = node.head, node.description
    last = _block_height(node, newest) if not isinstance(newest, bytes) else await _height_of(node, newest)
    if last > head.height:
        raise HeightUnknown(height=last, newest_height=head.height)
    lowest = head.oldest_block if head.oldest_block > 1 else 0
    first = max(last - min(count, FEE_BLOCKS_MAX) + 1, lowest)
    limit, initial = render.gas_limit_of(what), dict(what.parameters)["chain.base_fee_initial"]
    fees: list[int] = []
    ratios: list[float] = []
    rewards: list[list[str]] = []
    for height in range(first, last + 1):
        loaded = await node.block(height) if height else None
        base_fee = initial if loaded is None else loaded.block.header.base_fee
        fees.append(base_fee)
        ratios.append(0.0 if loaded is None else loaded.gas_used / limit)
        rewards.append([quantity(tip) for tip in _tips(loaded, percentiles or ())])
        if loaded is not None and len(loaded.receipts) > RECEIPTS_OF_TURN:
            await node.yield_turn()
    after = await node.block(last + 1) if last < head.height else None
    fees.append(head.base_fee_next if after is None else after.block.header.base_fee)
    answer = {
        "oldestBlock": quantity(first),
        "baseFeePerGas": [quantity(fee) for fee in fees],
        "gasUsedRatio": ratios,
    }
    return answer if percentiles is None else answer | {"reward": rewards}


def _tips(loaded: LoadedBlock | None, percentiles: tuple[float, ...]) -> list[int]:
    """Return the tips at percentiles of the gas of a block."""
    if loaded is None or not loaded.receipts or not percentiles:
        return [0] * len(percentiles)
    tips, used = loaded.tips
    places = (bisect_left(used, used[-1] * percentile / 100) for percentile in percentiles)
    return [tips[min(at, len(tips) - 1)] for at in places]


# Calls


async def call(node: Node, request: CallParam, block: BlockParam) -> Json:
    """Answer ``eth_call``: views read the state of any block, what writes is tried on the newest one."""
    height = await _height_of(node, block)
    to = request.to
    if to is None:
        raise RpcError("not_supported", _NO_CREATION)
    if not to.startswith(SYSTEM_PREFIX):
        return "0x"
    view = view_of(to, request.data)
    if view is None:
        await _try(node, request, to)
        return "0x"
    if request.value:
        raise Reverted(f"{view.function.name} takes no value")
    try:
        arguments = view.function.decode(request.data)
    except DekubeError as error:
        raise Reverted(f"{view.function.name}: {error}") from None
    try:
        parameters = parameters_of(node.description.parameters)
        return hexed(await node.query(height, view.answer, parameters, arguments))
    except RpcError:
        raise
    except DekubeError as error:
        raise Reverted(error.code) from None


async def estimate_gas(node: Node, request: CallParam, block: BlockParam) -> Json:
    """Answer ``eth_estimateGas``: the weight of the kind, which is what passes and what is paid."""
    await _height_of(node, block)
    to = request.to
    if to is None:
        raise RpcError("not_supported", _NO_CREATION)
    if to.startswith(SYSTEM_PREFIX):
        if view := view_of(to, request.data):
            raise Reverted(f"{view.function.name} is a view: no transaction calls it, eth_call does")
        return quantity((await _try(node, request, to)).gas_used)
    if len(request.data) > NOTE_LIMIT_BYTES:
        raise Reverted(f"an account takes at most {NOTE_LIMIT_BYTES} bytes of data")
    if request.sender is not None:
        _, balance = await _account(node, request.sender, None)
        needed = request.value + TRANSFER_GAS * request.price
        if needed > balance:
            raise InsufficientFunds(balance=balance, needed=needed)
    return quantity(TRANSFER_GAS)


async def _try(node: Node, request: CallParam, to: bytes) -> Receipt:
    """Return the receipt of a dry run, whose gas is free where the call names no price. Raises Reverted."""
    sender = request.sender or bytes(ADDRESS_BYTES)
    price = min(request.price, PRICE_MAX)
    try:
        found = await node.simulate(sender, CALL_KIND, [to, request.value, request.data], price)
    except RpcError as error:
        if (
            not any(sender) and error.reason == SenderUnknown.code
        ):  # looked at last: it is a write, and a right one
            raise RpcError(
                "invalid_params", "invalid params: from: who writes must be named", param="from"
            ) from None
        raise as_revert(error) from None
    receipt = decode_receipt(found)
    if receipt.reason is not None:
        raise Reverted(receipt.reason)
    return receipt


# Transactions


async def send_raw_transaction(node: Node, raw: bytes) -> Json:
    """Answer ``eth_sendRawTransaction``; the signature is checked before the node is asked."""
    prepared = _prepare_raw(node, raw)
    if prepared is None:
        transaction = decode_transaction(raw)
        _, balance = await _account(node, transaction.recover_sender(), None)
        raise InsufficientFunds(balance=balance, needed=transaction.payload[1])
    sender, is_native = prepared
    try:
        return hexed(await node.submit(raw, sender))
    except RpcError as error:
        raise _refusal(is_native, error) from None


def _prepare_raw(node: Node, raw: bytes) -> tuple[bytes, bool] | None:
    """Return the sender and whether the form is the native one; None where nobody has what is to be moved.

    Raises DecodeError, SignatureInvalid, GasLimitTooHigh and NodeUnavailable.
    """
    if raw[:1] == _NATIVE:
        return recover_sender(raw), True
    transaction = decode_transaction(raw)
    gas_max = render.transaction_gas_max(node.description)
    if transaction.kind == CALL_KIND and transaction.gas_limit > gas_max:
        raise GasLimitTooHigh(gas_limit=transaction.gas_limit, limit=gas_max)
    sender = transaction.recover_sender()
    if transaction.kind == CALL_KIND and transaction.payload[1] >= SUPPLY_LIMIT:
        return None
    return sender, False


def _refusal(is_native: bool, error: DekubeError) -> DekubeError:
    """Return the error that the node's refusal stands for: calls revert."""
    return as_revert(error) if isinstance(error, RpcError) and not is_native else error


async def send_raw_transaction_sync(node: Node, raw: bytes, timeout_ms: int) -> Json:
    """Answer ``eth_sendRawTransactionSync`` (EIP-7966): the receipt, in one question."""
    sent = await send_raw_transaction(node, raw)
    hash_ = bytes.fromhex(sent[2:])
    if await node.wait_transaction(hash_, min(timeout_ms, SYNC_WAIT_MS)) is None:
        raise NotFinalYet(sent)
    return await get_receipt(node, hash_)


async def get_transaction(node: Node, hash_: bytes) -> Json:
    """Answer ``eth_getTransactionByHash``."""
    found = await final_transaction(node, hash_)
    if found is None:
        waiting = await node.pool_get(hash_)
        if waiting is not None:
            return render.transaction(waiting_transaction(waiting), node.description, None)
        found = await final_transaction(node, hash_)  # a block may have taken it in between
        if found is None:
            return None
    loaded, index = found
    return render.transaction(loaded.transaction(index), node.description, loaded, index)


async def get_receipt(node: Node, hash_: bytes) -> Json:
    """Answer ``eth_getTransactionReceipt``."""
    found = await final_transaction(node, hash_)
    return None if found is None else render.receipt(*found, node.description)


async def get_transaction_at(node: Node, block: BlockParam, index: int) -> Json:
    """Answer ``eth_getTransactionByBlock...AndIndex``."""
    loaded = await _find_block(node, block)
    if loaded is None or index >= len(loaded.hashes):
        return None
    return render.transaction(loaded.transaction(index), node.description, loaded, index)


# Blocks


async def _genesis(node: Node, block: BlockParam) -> Json:
    """Return what stands for the genesis where ``block`` is that, else None."""
    if isinstance(block, bytes):
        is_genesis = block == node.description.genesis_hash
    else:
        is_genesis = _block_height(node, block) == 0
    return render.genesis_block(node.description.genesis_hash, node.description) if is_genesis else None


async def get_block(node: Node, block: BlockParam, whole: bool) -> Json:
    """Answer ``eth_getBlockBy...``."""
    loaded = await _find_block(node, block, senders=whole)
    if loaded is None:
        return await _genesis(node, block)
    if not whole:
        return render.block(loaded, node.description)
    what = node.description
    transactions = await node.rendered(
        "eth transactions",
        loaded,
        lambda index: render.transaction(loaded.transaction(index), what, loaded, index),
    )
    return render.block(loaded, what, transactions)


async def get_block_receipts(node: Node, block: BlockParam) -> Json:
    """Answer ``eth_getBlockReceipts``."""
    loaded = await _find_block(node, block, senders=True)
    if loaded is None:
        return [] if await _genesis(node, block) else None
    what = node.description
    return await node.rendered("eth receipts", loaded, lambda index: render.receipt(loaded, index, what))


async def get_transaction_count_of(node: Node, block: BlockParam) -> Json:
    """Answer ``eth_getBlockTransactionCountBy...``."""
    loaded = await _find_block(node, block)
    if loaded is None:
        return "0x0" if await _genesis(node, block) else None
    return quantity(len(loaded.hashes))


async def get_uncle_count(node: Node, block: BlockParam) -> Json:
    """Answer ``eth_getUncleCountBy...``: a final chain has none."""
    is_known = await _find_block(node, block) is not None or await _genesis(node, block)
    return "0x0" if is_known else None


async def get_uncle(_node: Node, _block: BlockParam, _index: int) -> Json:
    """Answer ``eth_getUncleBy...AndIndex``."""
    return None


# Logs and filters


def _range(node: Node, wanted: FilterParam) -> tuple[int, int]:
    head = node.head.height
    first, last = _block_height(node, wanted.first), _block_height(node, wanted.last)
    if first > last:
        raise RpcError("invalid_params", "invalid params: invalid block range params", param="fromBlock")
    if last > head:
        raise RpcError(
            "invalid_params", "invalid params: block range extends beyond current head block", param="toBlock"
        )
    return first, last


def _weigh_logs(node: Node, wanted: FilterParam) -> int:
    if wanted.block_hash is not None:
        return 0
    first, last = _range(node, wanted)
    return (last - first) // BLOCKS_OF_UNIT


def _weigh_filter(node: Node, identifier: int) -> int:
    live = node.filters.get(identifier)
    return 0 if live.of_pool else max(_end(node, live) - live.first, 0) // BLOCKS_OF_UNIT


def _weigh_fees(_node: Node, count: int, *_: Any) -> int:
    return min(count, FEE_BLOCKS_MAX)


async def get_logs(node: Node, wanted: FilterParam) -> Json:
    """Answer ``eth_getLogs``."""
    if wanted.block_hash is None:
        return await find_logs(node, wanted.logs, *_range(node, wanted))
    loaded = await _find_block(node, wanted.block_hash)
    if loaded is None:
        if await _genesis(node, wanted.block_hash):
            return []
        raise RpcError("not_found", "unknown block", block_hash=hexed(wanted.block_hash))
    found: list[Json] = []
    await add_logs(node, loaded, wanted.logs, found)
    return found


async def new_filter(node: Node, caller: str, wanted: FilterParam) -> Json:
    """Answer ``eth_newFilter``: it tells of blocks after the newest one, or from a later ``fromBlock`` on."""
    if wanted.block_hash is not None:
        raise RpcError("invalid_params", "invalid params: blockHash: a filter follows a range", param="blockHash")
    head = node.head.height
    first = _block_height(node, wanted.first)
    last = None if wanted.last is None else _block_height(node, wanted.last)
    if last is not None and first > last:
        raise RpcError("invalid_params", "invalid params: invalid block range params", param="fromBlock")
    start = max(head + 1, first)
    return quantity(node.filters.add(caller, wanted.logs, first=first, last=last, start=start))


async def new_block_filter(node: Node, caller: str) -> Json:
    """Answer ``eth_newBlockFilter``."""
    start = node.head.height + 1
    return quantity(node.filters.add(caller, None, first=start, last=None, start=start))


async def new_pending_filter(node: Node, caller: str) -> Json:
    """Answer ``eth_newPendingTransactionFilter``."""
    place, _ = await node.pool_news(None)
    return quantity(node.filters.add(caller, None, first=0, last=None, start=place, of_pool=True))


async def get_filter_changes(node: Node, identifier: int) -> Json:
    """Answer ``eth_getFilterChanges``."""
    live = node.filters.get(identifier)
    if live.of_pool:
        live.next, hashes = await node.pool_news(live.next)
        return [hexed(item) for item in hashes]
    first, last = live.next, _end(node, live)
    if last < first:
        return []
    live.next = last + 1  # at once: who polls twice at a time is told each thing once
    try:
        if live.logs is not None:
            return await find_logs(node, live.logs, first, last)
        if last - first >= BLOCKS_MAX:
            raise RpcError("limit_exceeded", f"limit exceeded: more than {BLOCKS_MAX} blocks", limit=BLOCKS_MAX)
        return [hexed(await node.hash_of(height)) for height in range(first, last + 1)]
    except BaseException:
        live.next = min(live.next, first)
        raise


def _end(node: Node, live: LiveFilter) -> int:
    return node.head.height if live.last is None else min(live.last, node.head.height)


async def get_filter_logs(node: Node, identifier: int) -> Json:
    """Answer ``eth_getFilterLogs``."""
    live = node.filters.get(identifier)
    if live.logs is None:
        raise RpcError("filter_not_found", "filter not found: it is not one of logs")
    return await find_logs(node, live.logs, live.first, _end(node, live))


async def uninstall_filter(node: Node, identifier: int) -> Json:
    """Answer ``eth_uninstallFilter``."""
    return node.filters.remove(identifier)


# The table


def _nonce_block(value: Any) -> tuple[BlockParam, bool]:
    return BLOCK.read(value), value == "pending"


_NONCE_BLOCK: Final = ParamType(BLOCK.schema, _nonce_block)
_AT: Final = Param("block", BLOCK, "A number in hex, a tag, or {blockHash}; absent: latest.", required=False)
_BLOCK: Final = Param("block", BLOCK, "A number in hex, or a tag.")
_BLOCK_HASH: Final = Param("blockHash", HASH, "Hash of the block.")
_WHO: Final = Param("address", ACCOUNT, "The account.")
_INDEX: Final = Param("index", QUANTITY, "Place in the block.")
_HASH: Final = Param("hash", HASH, "Hash of the transaction.")
_WHOLE: Final = Param("transactions", BOOLEAN, "Whole transactions.", required=False, default=False)
_CALL: Final = Param("call", CALL, "The call: from, to, value, input and fees.")
_FILTER: Final = Param("filter", FILTER, "fromBlock, toBlock or blockHash; address, topics.")
_FILTER_ID: Final = Param("filter", QUANTITY, "What the method that made the filter returned.")
_BLOCK_OUT: Final = nullable(ref("EthBlock"))
_TRANSACTION_OUT: Final = nullable(ref("EthTransaction"))
_COUNT_OUT: Final = nullable(QUANTITY_OUT)
_FEES_OUT: Final = obj(
    {
        "oldestBlock": QUANTITY_OUT,
        "baseFeePerGas": array(QUANTITY_OUT, maximum=FEE_BLOCKS_MAX + 1),
        "gasUsedRatio": array({"type": "number"}, maximum=FEE_BLOCKS_MAX),
        "reward": array(array(QUANTITY_OUT)),
    },
    optional=("reward",),
)
_CONTRACT_OUT: Final = obj({"name": STRING, "address": ADDRESS_OUT, "abi": array({"type": "object"})})
_ADDRESSES_OUT: Final[Schema] = {"type": "object", "additionalProperties": ETH_ADDRESS_OUT}
_CONFIG_OUT: Final = obj(
    {
        "current": obj(
            {
                "activationTime": NUMBER,
                "blobSchedule": obj(dict.fromkeys(("baseFeeUpdateFraction", "max", "target"), NUMBER)),
                "chainId": QUANTITY_OUT,
                "forkId": {"type": "string", "pattern": "^0x[0-9a-f]{8}$"},
                "precompiles": _ADDRESSES_OUT,
                "systemContracts": _ADDRESSES_OUT,
            }
        ),
        "next": NULL,
        "last": NULL,
    }
)
_SYNC_OUT: Final[Schema] = {
    "anyOf": [
        {"type": "boolean", "enum": [False]},
        obj(dict.fromkeys(("startingBlock", "currentBlock", "highestBlock"), QUANTITY_OUT)),
    ]
}


def _method(
    name: str,
    summary: str,
    handle: Any,
    result: Schema,
    *params: Param,
    cost: int = 1,
    caller: bool = False,
    weigh: Callable[..., int] | None = None,
    lane: Lane | None = None,
    posting: Posting | None = None,
) -> Method:
    return Method(
        name,
        summary,
        handle,
        result,
        params,
        cost,
        has_min_height=False,
        needs_caller=caller,
        weigh=weigh,
        group="ethereum",
        lane=lane,
        posting=posting,
    )


METHODS: Final[tuple[Method, ...]] = (
    Method(
        "dekube_getContracts",
        "The system contracts with their ABI: functions that write, views and events",
        contracts,
        obj({"at": AT, "contracts": array(_CONTRACT_OUT)}),
        cost=5,
        group="ethereum",
    ),
    _method("eth_chainId", "The chain's number", chain_id, QUANTITY_OUT),
    _method("net_version", "The chain's number in decimal", net_version, STRING),
    _method("net_listening", "Whether the node takes connections", net_listening, {"type": "boolean"}),
    _method("web3_clientVersion", "Name and version of the node", client_version, STRING),
    _method(
        "web3_sha3", "Keccak-256 of bytes", sha3, HASH_OUT, Param("data", data(SHA3_LIMIT_BYTES), "The bytes.")
    ),
    _method("eth_accounts", "Accounts that the node signs for: none", accounts, array(STRING, maximum=0)),
    _method("eth_syncing", "Whether the node is behind, and how far", syncing, _SYNC_OUT),
    _method("eth_config", "The rules in force, with the system contracts (EIP-7910)", config, _CONFIG_OUT),
    _method("eth_blockNumber", "The newest height", block_number, QUANTITY_OUT),
    _method("eth_getBalance", "The free balance of an account", get_balance, QUANTITY_OUT, _WHO, _AT),
    _method(
        "eth_getTransactionCount",
        "The next nonce of an account; with pending that after what waits in the mempool",
        get_transaction_count,
        QUANTITY_OUT,
        _WHO,
        Param("block", _NONCE_BLOCK, _AT.text, required=False, default=(None, False)),
    ),
    _method("eth_getCode", "0xfe at system contracts, else nothing", get_code, BYTES_OUT, _WHO, _AT),
    _method(
        "eth_getStorageAt", "Zeros: nothing has slots", get_storage_at, HASH_OUT, _WHO,
        Param("slot", SLOT, "The slot: a quantity, or 32 bytes."), _AT,
    ),
    _method("eth_gasPrice", "A price for a unit of gas that the next blocks take", gas_price, QUANTITY_OUT),
    _method("eth_maxPriorityFeePerGas", "The usual tip", max_priority_fee, QUANTITY_OUT),
    _method(
        "eth_feeHistory",
        f"Base fees, fullness and tips of up to {FEE_BLOCKS_MAX} blocks",
        fee_history,
        _FEES_OUT,
        Param("count", COUNT, "How many blocks."),
        Param("newest", BLOCK, "The last of them."),
        Param("percentiles", PERCENTILES, "Percentiles of the tips, by gas.", required=False),
        cost=5,
        weigh=_weigh_fees,
        lane=Lane.VIEW,
    ),
    _method(
        "eth_call", "The answer of a view; a write is only tried", call, BYTES_OUT, _CALL, _AT, cost=5,
        lane=Lane.VIEW,
    ),
    _method(
        "eth_estimateGas", "The gas that a transaction uses", estimate_gas, QUANTITY_OUT, _CALL, _AT, cost=5,
        lane=Lane.VIEW,
    ),
    _method(
        "eth_sendRawTransaction",
        "Hand in a signed transaction",
        send_raw_transaction,
        HASH_OUT,
        Param("raw", data(TRANSACTION_LIMIT_BYTES), "The signed transaction."),
        cost=5,
        posting=Posting(_prepare_raw, lambda _is_native, hash_: hexed(hash_), _refusal),
    ),
    _method(
        "eth_sendRawTransactionSync",
        "Hand in a signed transaction and wait for its receipt (EIP-7966)",
        send_raw_transaction_sync,
        ref("EthReceipt"),
        Param("raw", data(TRANSACTION_LIMIT_BYTES), "The signed transaction."),
        Param(
            "timeout_ms",
            natural(1, SYNC_WAIT_MS),
            "Give up waiting after this time: error 4 with the hash as data.",
            required=False,
            default=SYNC_WAIT_MS,
        ),
        cost=10,
    ),
    _method(
        "eth_getTransactionByHash", "A transaction of a block or of the mempool", get_transaction,
        _TRANSACTION_OUT, _HASH, cost=2, lane=Lane.LOOKUP,
    ),
    _method(
        "eth_getTransactionReceipt", "What execution left; null until it is final", get_receipt,
        nullable(ref("EthReceipt")), _HASH, cost=2, lane=Lane.LOOKUP,
    ),
    _method(
        "eth_getTransactionByBlockNumberAndIndex", "A transaction by its place", get_transaction_at,
        _TRANSACTION_OUT, _BLOCK, _INDEX, cost=2, lane=Lane.BLOCK,
    ),
    _method(
        "eth_getTransactionByBlockHashAndIndex", "A transaction by its place", get_transaction_at,
        _TRANSACTION_OUT, _BLOCK_HASH, _INDEX, cost=2, lane=Lane.BLOCK,
    ),
    _method("eth_getBlockByNumber", "A block", get_block, _BLOCK_OUT, _BLOCK, _WHOLE, cost=10, lane=Lane.BLOCK),
    _method("eth_getBlockByHash", "A block", get_block, _BLOCK_OUT, _BLOCK_HASH, _WHOLE, cost=10, lane=Lane.BLOCK),
    _method(
        "eth_getBlockReceipts", "The receipts of a block", get_block_receipts, nullable(array(ref("EthReceipt"))),
        Param("block", BLOCK, "A number in hex, a tag, or {blockHash}."), cost=20, lane=Lane.BLOCK,
    ),
    _method(
        "eth_getBlockTransactionCountByNumber", "How many transactions a block has", get_transaction_count_of,
        _COUNT_OUT, _BLOCK, cost=2, lane=Lane.BLOCK,
    ),
    _method(
        "eth_getBlockTransactionCountByHash", "How many transactions a block has", get_transaction_count_of,
        _COUNT_OUT, _BLOCK_HASH, cost=2, lane=Lane.BLOCK,
    ),
    _method(
        "eth_getUncleCountByBlockNumber", "None", get_uncle_count, _COUNT_OUT, _BLOCK, cost=2,
        lane=Lane.BLOCK,
    ),
    _method(
        "eth_getUncleCountByBlockHash", "None", get_uncle_count, _COUNT_OUT, _BLOCK_HASH, cost=2,
        lane=Lane.BLOCK,
    ),
    _method("eth_getUncleByBlockNumberAndIndex", "Null: there are none", get_uncle, NULL, _BLOCK, _INDEX),
    _method("eth_getUncleByBlockHashAndIndex", "Null: there are none", get_uncle, NULL, _BLOCK_HASH, _INDEX),
    _method(
        "eth_getLogs", f"Logs of up to {BLOCKS_MAX} blocks", get_logs, LOGS_OUT, _FILTER, cost=10,
        weigh=_weigh_logs, lane=Lane.LISTING,
    ),
    _method("eth_newFilter", "A filter of logs to poll", new_filter, QUANTITY_OUT, _FILTER, caller=True),
    _method("eth_newBlockFilter", "A filter of new blocks to poll", new_block_filter, QUANTITY_OUT, caller=True),
    _method(
        "eth_newPendingTransactionFilter", "A filter of what comes into the mempool, to poll", new_pending_filter,
        QUANTITY_OUT, caller=True,
    ),
    _method(
        "eth_getFilterChanges", "What is new since the last poll", get_filter_changes,
        {"anyOf": [LOGS_OUT, array(HASH_OUT)]}, _FILTER_ID, cost=10, lane=Lane.LISTING,
    ),
    _method(
        "eth_getFilterLogs", "All logs of a filter", get_filter_logs, LOGS_OUT, _FILTER_ID, cost=10,
        weigh=_weigh_filter, lane=Lane.LISTING,
    ),
    _method("eth_uninstallFilter", "End a filter", uninstall_filter, {"type": "boolean"}, _FILTER_ID),
)  # fmt: skip
"""The methods of the Ethereum namespace; ``rpc.ethereum.sessions`` adds those of a WebSocket."""
