"""The native namespace ``dekube_*``: one table of methods that is dispatched, described and served as REST.

Handlers are pure: they ask the injected node and build JSON, and know no socket, clock or event loop. The Ethereum
namespace adds its lines to the same table.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from rpc import render
from rpc.blocks import LoadedBlock, waiting_transaction
from rpc.epochs import EPOCH_METHODS, JAIL_OUT, jail_json
from rpc.errors import HeightUnknown, Pruned, RpcError
from rpc.evidence import EVIDENCE_METHODS
from rpc.history import HISTORY_METHODS
from rpc.light import HEADERS_MAX, LIGHT_METHODS, certified_headers, final_transaction
from rpc.market import MARKET_METHODS
from rpc.network import NETWORK_METHODS
from rpc.render import AMOUNT_OUT, AT, BYTES_OUT, HASH_OUT, address, at, hexed
from rpc.schema import (
    ADDRESS,
    BLOCK,
    BOOLEAN,
    CURSOR,
    EARLIEST,
    HASH,
    HEIGHT,
    LIMIT,
    LIMIT_DEFAULT,
    LIMIT_MAX,
    NUMBER,
    STRING,
    Param,
    array,
    data,
    make_cursor,
    natural,
    nullable,
    obj,
    ref,
)
from rpc.table import Json, Method, Node, Posting
from rpc.turns import Lane
from state.primitives.blocks import decode_header
from state.primitives.codec import decode
from state.primitives.receipts import decode_receipt
from state.primitives.transactions import KIND_MAX, TRANSACTION_LIMIT_BYTES, decode_transaction, recover_sender
from state.transition.jail import list_jails, load_jail
from state.transition.staking import list_stakes, load_stake, unbondings_of
from state.view import Reader
from state.view.accounts import BALANCE_MASK, account_key, burned, issued
from state.view.overlay import KEY_BYTES_MAX

__all__ = ["METHODS", "TABLE"]

WAIT_MS_MAX: Final = 60_000
ARRIVALS_LIMIT: Final = 2**63
"""Numbers of arrivals in the mempool stay below."""
BLOCKS_PAGE_MAX: Final = 100
STAKES_MAX: Final = 1024


# Parts


def _height_of_param(node: Node, height: int | None) -> int:
    """Return the height that a state query is for. Raises Pruned or HeightUnknown."""
    head = node.head
    if height is None:
        return head.height
    if height > head.height:
        raise HeightUnknown(height=height, newest_height=head.height)
    if height < head.oldest_state:
        raise Pruned(height=height, oldest_height=head.oldest_state)
    return height


async def _stamp(node: Node, height: int) -> Json:
    head = node.head
    if height == head.height:
        return at(head)
    return {"height": height, "hash": hexed(await node.hash_of(height))}


async def _find_block(node: Node, block: int | bytes | None, *, senders: bool = False) -> LoadedBlock | None:
    if block is None:
        height: int | None = node.head.height
    elif isinstance(block, bytes):
        height = await node.height_of(block)
    else:
        height = max(node.head.oldest_block, 1) if block == EARLIEST else block
    if height is None or height > node.head.height:
        return None
    return await (node.block_with_senders(height) if senders else node.block(height))


def _nonce_and_balance(record: bytes | None) -> tuple[int, int]:
    packed = 0 if record is None else int.from_bytes(record, "big")
    return packed >> 128, packed & BALANCE_MASK


# Chain


async def chain_info(node: Node) -> Json:
    """Answer ``dekube_chainInfo``."""
    what = node.description
    return {
        "at": at(node.head),
        "chain_id": what.chain_id,
        "name": what.chain_name,
        "genesis_hash": hexed(what.genesis_hash),
        "genesis_time_ms": what.genesis_time_ms,
        "testnet": bool(what.testnet),
        "symbol": "DKB",
        "decimals": 18,
        "version": what.version,
    }


async def genesis(node: Node) -> Json:
    """Answer ``dekube_genesis``."""
    what = node.description
    return {
        "at": at(node.head),
        "chain_id": what.chain_id,
        "name": what.chain_name,
        "hash": hexed(what.genesis_hash),
        "time_ms": what.genesis_time_ms,
        "validators": [
            {
                "address": address(who),
                "vote_key": hexed(vote_key),
                "vrf_key": hexed(vrf_key),
                "stake": str(stake),
            }
            for who, vote_key, vrf_key, stake in what.validators
        ],
        "parameters": {name: str(number) for name, number in what.parameters},
    }


async def status(node: Node) -> Json:
    """Answer ``dekube_status``."""
    head, what, sync, pool = node.head, node.description, await node.sync(), await node.pool_status()
    return {
        "at": at(head),
        "time_ms": head.time_ms,
        "syncing": bool(sync.syncing),
        "highest_height": max(sync.highest, head.height),
        "oldest_state_height": head.oldest_state,
        "oldest_block_height": head.oldest_block,
        "epoch": sync.epoch,
        "view": sync.view,
        "peers": sync.peers,
        "mempool": {"pending": pool.pending, "queued": pool.queued, "bytes": pool.bytes},
        "node": {"address": address(what.address), "roles": list(what.roles), "version": what.version},
    }


async def head(node: Node) -> Json:
    """Answer ``dekube_head``."""
    newest = node.head
    return {
        "at": at(newest),
        "time_ms": newest.time_ms,
        "state_root": hexed(newest.state_root),
        "base_fee": str(newest.base_fee),
        "base_fee_next": str(newest.base_fee_next),
    }


async def supply(node: Node, height: int | None) -> Json:
    """Answer ``dekube_getSupply``."""
    number = _height_of_param(node, height)
    total, gone = await node.query(number, _supply)
    return {
        "at": await _stamp(node, number),
        "issued": str(total),
        "burned": str(gone),
        "supply": str(total - gone),
    }


def _supply(reader: Reader) -> tuple[int, int]:
    return issued(reader), burned(reader)


async def get_block(node: Node, block: int | bytes | None, transactions: bool) -> Json:
    """Answer ``dekube_getBlock``."""
    loaded = await _find_block(node, block, senders=transactions)
    whole = None
    if loaded is not None and transactions:
        whole = await node.rendered(
            "transactions",
            loaded,
            lambda index: render.transaction(loaded.transaction(index), node.kinds, render.place(loaded, index)),
        )
    return {
        "at": at(node.head),
        "block": None if loaded is None else render.block(loaded, node.events, whole),
    }


async def get_blocks(node: Node, cursor: list[Any] | None, limit: int) -> Json:
    """Answer ``dekube_getBlocks``."""
    match cursor:
        case None:
            top = node.head.height
        case ["blocks", int(top)] if 0 <= top <= node.head.height:
            pass
        case _:
            raise RpcError("invalid_params", "invalid params: cursor: not one of this method", param="cursor")
    lowest = max(node.head.oldest_block, 1)
    items = []
    for height in range(top, max(top - limit, lowest - 1), -1):
        loaded = await node.block(height)
        if loaded is None:
            break
        items.append(render.header(loaded))
    below = top - limit
    return {
        "at": at(node.head),
        "items": items,
        "next": make_cursor(["blocks", below]) if below >= lowest else None,
    }


async def get_block_receipts(node: Node, block: int | bytes | None) -> Json:
    """Answer ``dekube_getBlockReceipts``."""
    loaded = await _find_block(node, block, senders=True)
    receipts = None
    if loaded is not None:
        receipts = await node.rendered(
            "receipts", loaded, lambda index: render.receipt(loaded, index, node.kinds, node.events)
        )
    return {"at": at(node.head), "receipts": receipts}


# Transactions


async def get_transaction(node: Node, hash_: bytes) -> Json:
    """Answer ``dekube_getTransaction``."""
    found = await _final_transaction(node, hash_)
    if found is None:
        waiting = await node.pool_get(hash_)
        if waiting is not None:
            found = render.transaction(waiting_transaction(waiting), node.kinds, None)
        else:
            found = await _final_transaction(node, hash_)  # a block may have taken it in between
    return {"at": at(node.head), "transaction": found}


async def _final_transaction(node: Node, hash_: bytes) -> Json:
    found = await final_transaction(node, hash_)
    if found is None:
        return None
    loaded, index = found
    return render.transaction(loaded.transaction(index), node.kinds, render.place(loaded, index))


async def _final_receipt(node: Node, hash_: bytes) -> Json:
    found = await final_transaction(node, hash_)
    return None if found is None else render.receipt(*found, node.kinds, node.events)


async def get_receipt(node: Node, hash_: bytes) -> Json:
    """Answer ``dekube_getReceipt``."""
    receipt = await _final_receipt(node, hash_)
    return {"at": at(node.head), "receipt": receipt}


async def wait_receipt(node: Node, hash_: bytes, timeout_ms: int) -> Json:
    """Answer ``dekube_waitForReceipt``."""
    is_final = await node.wait_transaction(hash_, timeout_ms) is not None
    receipt = await _final_receipt(node, hash_) if is_final else None
    pending = receipt is None and await node.pool_get(hash_) is not None
    return {"at": at(node.head), "receipt": receipt, "pending": pending}


async def send_transaction(node: Node, raw: bytes) -> Json:
    """Answer ``dekube_sendTransaction``; the signature is checked before the node is asked."""
    sender, stamp = _prepare_transaction(node, raw)
    return _sent(stamp, await node.submit(raw, sender))


def _prepare_transaction(node: Node, raw: bytes) -> tuple[bytes, Json]:
    """Return sender and stamp. Raises DecodeError, SignatureInvalid and NodeUnavailable."""
    return recover_sender(raw), at(node.head)


def _sent(stamp: Json, hash_: bytes) -> Json:
    return {"at": stamp, "hash": hexed(hash_)}


async def simulate_transaction(node: Node, raw: bytes) -> Json:
    """Answer ``dekube_simulateTransaction``."""
    transaction = decode_transaction(raw)
    sender = transaction.recover_sender()
    return await _dry_run(node, sender, transaction.kind, transaction.payload)


async def estimate(node: Node, sender: bytes, kind: int, payload: bytes) -> Json:
    """Answer ``dekube_estimate``."""
    items = decode(payload, limit_bytes=TRANSACTION_LIMIT_BYTES)
    if type(items) is not list:
        raise RpcError(
            "invalid_params", "invalid params: payload: a canonical CBOR array expected", param="payload"
        )
    return await _dry_run(node, sender, kind, items)


async def _dry_run(node: Node, sender: bytes, kind: int, payload: list[Any]) -> Json:
    newest = node.head
    outcome = decode_receipt(await node.simulate(sender, kind, payload))
    return {"at": at(newest)} | render.outcome_fields(outcome, node.events)


async def quote(node: Node) -> Json:
    """Answer ``dekube_quote``; the fee cap leaves room for eight full blocks in a row (12.5 % each)."""
    newest = node.head
    base_fee = newest.base_fee_next
    return {
        "at": at(newest),
        "base_fee_next": str(base_fee),
        "max_fee_per_gas": str(base_fee * 9**8 // 8**8 + 1),
        "max_priority_fee_per_gas": "0",
        "kinds": [
            {"kind": item.kind, "name": item.name, "gas": item.gas, "fee": str(item.gas * base_fee)}
            for item in node.description.kinds
        ],
    }


async def get_mempool(node: Node, cursor: list[Any] | None, limit: int) -> Json:
    """Answer ``dekube_getMempool``: by arrival, so that what comes and goes meanwhile moves no page."""
    match cursor:
        case None:
            before = None
        case ["mempool", int(before)] if 0 <= before < ARRIVALS_LIMIT:
            pass
        case _:
            raise RpcError("invalid_params", "invalid params: cursor: not one of this method", param="cursor")
    pool, waiting = await node.pool_status(), await node.pool_page(before, limit + 1)
    return {
        "at": at(node.head),
        "pending": pool.pending,
        "queued": pool.queued,
        "bytes": pool.bytes,
        "items": [render.transaction(waiting_transaction(item), node.kinds, None) for _, item in waiting[:limit]],
        "next": make_cursor(["mempool", waiting[limit - 1][0]]) if len(waiting) > limit else None,
    }


# Accounts


async def get_balance(node: Node, who: bytes, height: int | None) -> Json:
    """Answer ``dekube_getBalance``."""
    number = _height_of_param(node, height)
    [record] = await node.read(number, account_key(who))
    return {"at": await _stamp(node, number), "balance": str(_nonce_and_balance(record)[1])}


async def get_nonce(node: Node, who: bytes) -> Json:
    """Answer ``dekube_getNonce``."""
    number = node.head.height
    [record] = await node.read(number, account_key(who))
    return {
        "at": await _stamp(node, number),
        "nonce": _nonce_and_balance(record)[0],
        "pending_nonce": await node.pending_nonce(who),
    }


async def get_account(node: Node, who: bytes, height: int | None) -> Json:
    """Answer ``dekube_getAccount``."""
    number = _height_of_param(node, height)
    [record] = await node.read(number, account_key(who))
    nonce, balance = _nonce_and_balance(record)
    stake, unbonding, jail = await node.query(number, _stake_of, who)
    return {
        "at": await _stamp(node, number),
        "address": address(who),
        "balance": str(balance),
        "nonce": nonce,
        "pending_nonce": max(nonce, await node.pending_nonce(who)),
        "stake": None
        if stake is None
        else {
            "amount": str(stake.amount),
            "vote_key": hexed(stake.vote_key),
            "vrf_key": hexed(stake.vrf_key),
        },
        "jail": jail_json(jail),
        "unbonding": [{"amount": str(item.amount), "release_time_ms": item.time_ms} for item in unbonding],
    }


def _stake_of(reader: Reader, who: bytes) -> Any:
    return load_stake(reader, who), unbondings_of(reader, who), load_jail(reader, who)


async def get_account_proof(node: Node, who: bytes, height: int | None) -> Json:
    """Answer ``dekube_getAccountProof``."""
    return await get_proof(node, account_key(who), height)


async def get_proof(node: Node, key: bytes, height: int | None) -> Json:
    """Answer ``dekube_getProof``: what is needed to check the value with nothing but a known committee.

    The root after block h stands in the header of h + 1, so the newest provable height is one below the head.
    """
    if not 0 < len(key) <= KEY_BYTES_MAX:
        raise RpcError("invalid_params", f"invalid params: key: 1 to {KEY_BYTES_MAX} bytes expected", param="key")
    newest = node.head.height
    number = max(newest - 1, 0) if height is None else _height_of_param(node, height)
    path = await certified_headers(node, number + 1)
    [value] = await node.read(number, key)
    return {
        "at": await _stamp(node, number),
        "key": hexed(key),
        "value": None if value is None else hexed(value),
        "proof": hexed(await node.prove(number, key)),
        "state_root": hexed(decode_header(bytes.fromhex(path["headers"][0][2:])).state_root),
    } | path


# Validators and peers


async def get_validators(node: Node, height: int | None) -> Json:
    """Answer ``dekube_getValidators``."""
    number = _height_of_param(node, height)
    stakes, jails = await node.query(number, _stakes)
    return {
        "at": await _stamp(node, number),
        "validators": [
            {
                "address": address(who),
                "vote_key": hexed(record.vote_key),
                "vrf_key": hexed(record.vrf_key),
                "stake": str(record.amount),
                "jail": jail_json(jails.get(who)),
            }
            for who, record in stakes
        ],
    }


def _stakes(reader: Reader) -> Any:
    return list_stakes(reader)[:STAKES_MAX], dict(list_jails(reader))


async def get_peers(node: Node) -> Json:
    """Answer ``dekube_getPeers``."""
    return {"at": at(node.head), "peers": [render.peer(peer) for peer in await node.peers()]}


# The table

_AT_HEIGHT: Final = Param("height", HEIGHT, "The state after this block; absent: the newest.", required=False)
_ADDRESS: Final = Param("address", ADDRESS, "The account.")
_HASH: Final = Param("hash", HASH, "Hash of the transaction.")
_RAW: Final = Param("raw", data(TRANSACTION_LIMIT_BYTES), "The signed transaction.")
_BLOCK: Final = Param("block", BLOCK, 'Height, hash, "latest" (default) or "earliest".', required=False)
_CURSOR: Final = Param("cursor", CURSOR, "`next` of the page before.", required=False)
_LIMIT: Final = Param("limit", LIMIT, "Items of a page.", required=False, default=LIMIT_DEFAULT)
_NEXT: Final = nullable(STRING)
_OUTCOME: Final = obj(
    {
        "at": AT,
        "succeeded": {"type": "boolean"},
        "reason": nullable(STRING),
        "gas_used": NUMBER,
        "effective_gas_price": AMOUNT_OUT,
        "fee": AMOUNT_OUT,
        "events": array(ref("Event")),
    }
)
_STAKER: Final = {
    "address": render.ADDRESS_OUT,
    "vote_key": HASH_OUT,
    "vrf_key": HASH_OUT,
    "stake": AMOUNT_OUT,
}
_PROOF: Final = obj(
    {
        "at": AT,
        "key": BYTES_OUT,
        "value": nullable(BYTES_OUT),
        "proof": BYTES_OUT,
        "state_root": HASH_OUT,
        "headers": array(BYTES_OUT, maximum=HEADERS_MAX),
        "certificate": nullable(BYTES_OUT),
    }
)

_CHAIN: Final = (
    Method(
        "dekube_chainInfo",
        "Identity of the chain",
        chain_info,
        obj(
            {
                "at": AT,
                "chain_id": NUMBER,
                "name": STRING,
                "genesis_hash": HASH_OUT,
                "genesis_time_ms": NUMBER,
                "testnet": {"type": "boolean"},
                "symbol": STRING,
                "decimals": NUMBER,
                "version": STRING,
            }
        ),
    ),
    Method(
        "dekube_genesis",
        "Founding validators and every chain parameter",
        genesis,
        obj(
            {
                "at": AT,
                "chain_id": NUMBER,
                "name": STRING,
                "hash": HASH_OUT,
                "time_ms": NUMBER,
                "validators": array(obj(_STAKER)),
                "parameters": {"type": "object", "additionalProperties": AMOUNT_OUT},
            }
        ),
        cost=5,
    ),
    Method(
        "dekube_status",
        "How far this node is and what it keeps",
        status,
        obj(
            {
                "at": AT,
                "time_ms": NUMBER,
                "syncing": {"type": "boolean"},
                "highest_height": NUMBER,
                "oldest_state_height": NUMBER,
                "oldest_block_height": NUMBER,
                "epoch": NUMBER,
                "view": NUMBER,
                "peers": NUMBER,
                "mempool": obj({"pending": NUMBER, "queued": NUMBER, "bytes": NUMBER}),
                "node": obj({"address": render.ADDRESS_OUT, "roles": array(STRING), "version": STRING}),
            }
        ),
    ),
    Method(
        "dekube_head",
        "The newest finalised block",
        head,
        obj(
            {
                "at": AT,
                "time_ms": NUMBER,
                "state_root": HASH_OUT,
                "base_fee": AMOUNT_OUT,
                "base_fee_next": AMOUNT_OUT,
            }
        ),
    ),
    Method(
        "dekube_getSupply",
        "What was issued and what was burned",
        supply,
        obj({"at": AT, "issued": AMOUNT_OUT, "burned": AMOUNT_OUT, "supply": AMOUNT_OUT}),
        (_AT_HEIGHT,),
        cost=2,
        lane=Lane.VIEW,
    ),
    Method(
        "dekube_getBlock",
        "A block, with the hashes of its transactions or the whole of them",
        get_block,
        obj({"at": AT, "block": nullable(ref("Block"))}),
        (_BLOCK, Param("transactions", BOOLEAN, "Whole transactions.", required=False, default=False)),
        cost=10,
        lane=Lane.BLOCK,
    ),
    Method(
        "dekube_getBlocks",
        "Headers, newest first",
        get_blocks,
        obj({"at": AT, "items": array(ref("Header"), maximum=BLOCKS_PAGE_MAX), "next": _NEXT}),
        (_CURSOR, _LIMIT),
        cost=20,
        lane=Lane.BLOCK,
    ),
    Method(
        "dekube_getBlockReceipts",
        "Receipts of all transactions of a block",
        get_block_receipts,
        obj({"at": AT, "receipts": nullable(array(ref("Receipt")))}),
        (_BLOCK,),
        cost=20,
        lane=Lane.BLOCK,
    ),
)

_TRANSACTIONS: Final = (
    Method(
        "dekube_getTransaction",
        "A transaction of a finalised block or of the mempool",
        get_transaction,
        obj({"at": AT, "transaction": nullable(ref("Transaction"))}),
        (_HASH,),
        cost=2,
        group="transactions",
        lane=Lane.LOOKUP,
    ),
    Method(
        "dekube_getReceipt",
        "The receipt of a finalised transaction",
        get_receipt,
        obj({"at": AT, "receipt": nullable(ref("Receipt"))}),
        (_HASH,),
        cost=2,
        group="transactions",
        lane=Lane.LOOKUP,
    ),
    Method(
        "dekube_waitForReceipt",
        "The receipt as soon as the transaction is final",
        wait_receipt,
        obj({"at": AT, "receipt": nullable(ref("Receipt")), "pending": {"type": "boolean"}}),
        (
            _HASH,
            Param(
                "timeout_ms",
                natural(0, WAIT_MS_MAX),
                "Give up after this time; the receipt is then null.",
                required=False,
                default=10_000,
            ),
        ),
        cost=5,
        group="transactions",
    ),
    Method(
        "dekube_sendTransaction",
        "Hand in a signed transaction",
        send_transaction,
        obj({"at": AT, "hash": HASH_OUT}),
        (_RAW,),
        cost=5,
        has_min_height=False,
        group="transactions",
        posting=Posting(_prepare_transaction, _sent, lambda _stamp, error: error),
    ),
    Method(
        "dekube_simulateTransaction",
        "What a signed transaction would do on the newest state; nothing is changed",
        simulate_transaction,
        _OUTCOME,
        (_RAW,),
        cost=10,
        group="transactions",
        lane=Lane.VIEW,
    ),
    Method(
        "dekube_estimate",
        "What a transaction would do on the newest state, before it is signed",
        estimate,
        _OUTCOME,
        (
            Param("from", ADDRESS, "The sender."),
            Param("kind", natural(0, KIND_MAX), "Number of the kind."),
            Param("payload", data(TRANSACTION_LIMIT_BYTES), "The payload: an array in canonical CBOR."),
        ),
        cost=10,
        group="transactions",
        lane=Lane.VIEW,
    ),
    Method(
        "dekube_quote",
        "Fees now: base fee, a safe fee cap, and the weight of each kind",
        quote,
        obj(
            {
                "at": AT,
                "base_fee_next": AMOUNT_OUT,
                "max_fee_per_gas": AMOUNT_OUT,
                "max_priority_fee_per_gas": AMOUNT_OUT,
                "kinds": array(obj({"kind": NUMBER, "name": STRING, "gas": NUMBER, "fee": AMOUNT_OUT})),
            }
        ),
        group="transactions",
    ),
    Method(
        "dekube_getMempool",
        "What waits to be included, what came in last first",
        get_mempool,
        obj(
            {
                "at": AT,
                "pending": NUMBER,
                "queued": NUMBER,
                "bytes": NUMBER,
                "items": array(ref("Transaction"), maximum=LIMIT_MAX),
                "next": _NEXT,
            }
        ),
        (_CURSOR, _LIMIT),
        cost=10,
        group="transactions",
        lane=Lane.LISTING,
    ),
)

_ACCOUNTS: Final = (
    Method(
        "dekube_getBalance",
        "The free balance of an account",
        get_balance,
        obj({"at": AT, "balance": AMOUNT_OUT}),
        (_ADDRESS, _AT_HEIGHT),
        group="accounts",
    ),
    Method(
        "dekube_getNonce",
        "The next nonce, as executed and with what waits in the mempool",
        get_nonce,
        obj({"at": AT, "nonce": NUMBER, "pending_nonce": NUMBER}),
        (_ADDRESS,),
        group="accounts",
    ),
    Method(
        "dekube_getAccount",
        "Balance, nonces, stake and unbonding of an account",
        get_account,
        obj(
            {
                "at": AT,
                "address": render.ADDRESS_OUT,
                "balance": AMOUNT_OUT,
                "nonce": NUMBER,
                "pending_nonce": NUMBER,
                "stake": nullable(obj({"amount": AMOUNT_OUT, "vote_key": HASH_OUT, "vrf_key": HASH_OUT})),
                "jail": JAIL_OUT,
                "unbonding": array(obj({"amount": AMOUNT_OUT, "release_time_ms": NUMBER})),
            }
        ),
        (_ADDRESS, _AT_HEIGHT),
        cost=10,
        group="accounts",
        lane=Lane.VIEW,
    ),
    *HISTORY_METHODS,
    Method(
        "dekube_getAccountProof",
        "The account's record with its proof, the header that has the root, and the certificate over it",
        get_account_proof,
        _PROOF,
        (_ADDRESS, _AT_HEIGHT),
        cost=10,
        group="accounts",
        lane=Lane.VIEW,
    ),
    Method(
        "dekube_getProof",
        "The value of any key of the state, or its absence, with the proof",
        get_proof,
        _PROOF,
        (Param("key", data(KEY_BYTES_MAX), "The key: the table's byte and the table's own key."), _AT_HEIGHT),
        cost=10,
        group="accounts",
        lane=Lane.VIEW,
    ),
)

_NETWORK: Final = (
    Method(
        "dekube_getValidators",
        "All that have stake, with their keys and what is held against them",
        get_validators,
        obj({"at": AT, "validators": array(obj(_STAKER | {"jail": JAIL_OUT}), maximum=STAKES_MAX)}),
        (_AT_HEIGHT,),
        cost=5,
        group="network",
        lane=Lane.VIEW,
    ),
    Method(
        "dekube_getPeers",
        "Nodes that this node is connected to",
        get_peers,
        obj({"at": AT, "peers": array(ref("Peer"))}),
        cost=5,
        group="network",
    ),
)


def _table(methods: Iterable[Method]) -> dict[str, Method]:
    table: dict[str, Method] = {}
    for method in methods:
        if method.name in table:
            raise AssertionError(f"two methods {method.name}")
        table[method.name] = method
    return table


METHODS: Final[tuple[Method, ...]] = (
    *_CHAIN,
    *_TRANSACTIONS,
    *_ACCOUNTS,
    *_NETWORK,
    *NETWORK_METHODS,
    *EPOCH_METHODS,
    *EVIDENCE_METHODS,
    *LIGHT_METHODS,
    *MARKET_METHODS,
)
TABLE: Final[dict[str, Method]] = _table(METHODS)
"""The methods of the native namespace by name; ``rpc.surface`` adds those that belong to a connection."""
