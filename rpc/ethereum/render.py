"""Blocks, transactions and receipts in Ethereum's shapes, and the schemas that they obey (rpc.md 8.1 to 8.3).

A block's roots are those of its own header; ``timestamp`` is in whole seconds, so blocks may share one; ``miner``
is the operator of the seat that led it. ``gasLimit`` is what one transaction may ask for, and the limit of the
whole block where more was used than that: a wallet takes a third of it when an estimate fails, and the sum has to
be covered, though only what is used is paid.
Transactions of the native form are shown as legacy ones with a zero signature: clients with typed transactions
decode no type that Ethereum does not have. Recipient, value and input are those of the call of the same meaning.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from rpc.ethereum.contracts import rules_of
from rpc.ethereum.logs import BLOOM_BYTES, Log, block_bloom, bloom_of, log_json
from rpc.methods.render import BYTES_OUT, HASH_OUT, hexed
from rpc.methods.schema import NULL, Schema, array, obj, ref
from rpc.protocol.blocks import LoadedBlock
from rpc.protocol.records import Description
from state.primitives.errors import DecodeError
from state.primitives.merkle import EMPTY_ROOT
from state.primitives.transactions import CALL_KIND, DYNAMIC_FORM, NATIVE_FORM, Transaction
from state.transition.calls import SYSTEM_PREFIX
from state.transition.transfer import TRANSFER_KIND

__all__ = [
    "COMPONENTS",
    "ETH_ADDRESS_OUT",
    "LOGS_OUT",
    "QUANTITY_OUT",
    "block",
    "gas_limit_of",
    "genesis_block",
    "genesis_header",
    "header",
    "quantity",
    "receipt",
    "transaction",
    "transaction_gas_max",
]

Json = Any

NO_UNCLES: Final = "0x1dcc4de8dec75d7aab85b567b6ccd41ad312451b948a7413f0a142fd40d49347"
EMPTY_LIST_ROOT: Final = "0x56e81f171bcc55a6ff8345e692c0f86e5b48e01b996cadc001622fb5e363b421"
"""Root of an empty Merkle-Patricia trie: clients read from it, and from nothing else, that a list is empty."""
ZERO_HASH: Final = "0x" + "00" * 32
NOBODY: Final = "0x" + "00" * 20
"""Miner of the genesis."""
GAS_SHOWN_MAX: Final = 30_000_000
"""Most gas that a transaction of a wallet may ask for; the heaviest kind weighs a small part of it."""
_UNKNOWN: Final = SYSTEM_PREFIX + b"\0"
"""Recipient shown for a transaction of an unknown kind."""

QUANTITY_OUT: Final[Schema] = {"type": "string", "pattern": "^0x(0|[1-9a-f][0-9a-f]*)$"}
ETH_ADDRESS_OUT: Final[Schema] = {"type": "string", "pattern": "^0x[0-9a-f]{40}$"}
LOGS_OUT: Final = array(ref("EthLog"))
_BLOOM_OUT: Final[Schema] = {"type": "string", "pattern": "^0x[0-9a-f]{512}$"}

_HEADER: Final[dict[str, Schema]] = {
    "number": QUANTITY_OUT,
    "hash": HASH_OUT,
    "parentHash": HASH_OUT,
    "sha3Uncles": HASH_OUT,
    "miner": ETH_ADDRESS_OUT,
    "stateRoot": HASH_OUT,
    "transactionsRoot": HASH_OUT,
    "receiptsRoot": HASH_OUT,
    "logsBloom": _BLOOM_OUT,
    "gasLimit": QUANTITY_OUT,
    "gasUsed": QUANTITY_OUT,
    "timestamp": QUANTITY_OUT,
    "extraData": BYTES_OUT,
    "mixHash": HASH_OUT,
    "nonce": {"type": "string", "pattern": "^0x[0-9a-f]{16}$"},
    "difficulty": QUANTITY_OUT,
    "baseFeePerGas": QUANTITY_OUT,
}

_PLACE: Final = ("blockHash", "blockNumber", "blockTimestamp", "transactionIndex")
_PLACED: Final[dict[str, Schema]] = dict(zip(_PLACE, (HASH_OUT, *3 * (QUANTITY_OUT,)), strict=True))
_WAITING: Final[dict[str, Schema]] = dict.fromkeys(_PLACE, NULL)
_SIGNED: Final[dict[str, Schema]] = {
    "from": ETH_ADDRESS_OUT,
    "hash": HASH_OUT,
    "nonce": QUANTITY_OUT,
    "value": QUANTITY_OUT,
    "gas": QUANTITY_OUT,
    "gasPrice": QUANTITY_OUT,
    "input": BYTES_OUT,
    "chainId": QUANTITY_OUT,
    "v": QUANTITY_OUT,
    "r": QUANTITY_OUT,
    "s": QUANTITY_OUT,
}
_PARITY: Final[Schema] = {"type": "string", "enum": ["0x0", "0x1"]}
_TYPED: Final[dict[str, Schema]] = {
    "yParity": _PARITY,
    "v": _PARITY,
    "maxFeePerGas": QUANTITY_OUT,
    "maxPriorityFeePerGas": QUANTITY_OUT,
    "accessList": array({"type": "object"}, maximum=0),
}
_LEGACY: Final[dict[str, Schema]] = {"type": {"type": "string", "enum": ["0x0"]}, "to": ETH_ADDRESS_OUT}
_DYNAMIC: Final[dict[str, Schema]] = _TYPED | {"type": {"type": "string", "enum": ["0x2"]}, "to": ETH_ADDRESS_OUT}

COMPONENTS: Final[dict[str, Schema]] = {
    "EthHeader": obj(_HEADER),
    "EthBlock": obj(
        _HEADER
        | {
            "size": QUANTITY_OUT,
            "uncles": array(HASH_OUT, maximum=0),
            "transactions": {"anyOf": [array(HASH_OUT), array(ref("EthTransaction"))]},
        }
    ),
    "EthTransaction": {
        "anyOf": [
            obj(place | _SIGNED | fields) for place in (_PLACED, _WAITING) for fields in (_LEGACY, _DYNAMIC)
        ],
        "description": "One of the native form is a legacy one whose v, r and s are 0; `input` is that of the "
        "call of the same meaning.",
    },
    "EthReceipt": obj(
        {
            "type": QUANTITY_OUT,
            "status": {"type": "string", "enum": ["0x0", "0x1"]},
            "transactionHash": HASH_OUT,
            "transactionIndex": QUANTITY_OUT,
            "blockHash": HASH_OUT,
            "blockNumber": QUANTITY_OUT,
            "from": ETH_ADDRESS_OUT,
            "to": ETH_ADDRESS_OUT,
            "contractAddress": NULL,
            "cumulativeGasUsed": QUANTITY_OUT,
            "gasUsed": QUANTITY_OUT,
            "effectiveGasPrice": QUANTITY_OUT,
            "logs": LOGS_OUT,
            "logsBloom": _BLOOM_OUT,
        }
    ),
    "EthLog": obj(
        {
            "address": ETH_ADDRESS_OUT,
            "topics": array(HASH_OUT, maximum=4),
            "data": BYTES_OUT,
            "blockNumber": QUANTITY_OUT,
            "blockHash": HASH_OUT,
            "blockTimestamp": QUANTITY_OUT,
            "transactionHash": HASH_OUT,
            "transactionIndex": QUANTITY_OUT,
            "logIndex": QUANTITY_OUT,
            "removed": {"type": "boolean"},
        },
        description="What the block itself did comes after its transactions, under the block's own hash.",
    ),
}


def quantity(number: int) -> str:
    """Return a number as clients read it."""
    return hex(number)


def _list_root(root: bytes) -> str:
    """Return the root of a list as clients compare it: that of an empty one is Ethereum's."""
    return hexed(root) if root != EMPTY_ROOT else EMPTY_LIST_ROOT


def _bloom(bits: int) -> str:
    return hexed(bits.to_bytes(BLOOM_BYTES, "big"))


def gas_limit_of(what: Description) -> int:
    """Return the limit of a block's weights."""
    return dict(what.parameters)["chain.block_gas_limit"]


def transaction_gas_max(what: Description) -> int:
    """Return the most gas that a transaction of Ethereum's forms may request by RPC."""
    return min(gas_limit_of(what), GAS_SHOWN_MAX)


def header(loaded: LoadedBlock, what: Description) -> Json:
    """Return the header of a block."""
    item = loaded.block.header
    gas_used = loaded.gas_used
    gas_max = transaction_gas_max(what)
    return {
        "number": hex(item.height),
        "hash": hexed(loaded.hash),
        "parentHash": hexed(item.parent_hash),
        "sha3Uncles": NO_UNCLES,
        "miner": hexed(loaded.leader),
        "stateRoot": hexed(item.state_root),
        "transactionsRoot": _list_root(item.tx_root),
        "receiptsRoot": _list_root(item.receipt_root),
        "logsBloom": _bloom(block_bloom(loaded)),
        "gasLimit": hex(gas_max if gas_used <= gas_max else gas_limit_of(what)),
        "gasUsed": hex(gas_used),
        "timestamp": hex(item.time_ms // 1000),
        "extraData": "0x",
        "mixHash": ZERO_HASH,
        "nonce": "0x0000000000000000",
        "difficulty": "0x0",
        "baseFeePerGas": hex(item.base_fee),
    }


def block(loaded: LoadedBlock, what: Description, transactions: Json = None) -> Json:
    """Return a block with ``transactions`` as they were rendered, or with the hashes of its own."""
    return header(loaded, what) | {
        "size": hex(loaded.size_bytes),
        "uncles": [],
        "transactions": [hexed(item) for item in loaded.hashes] if transactions is None else transactions,
    }


def genesis_header(block_hash: bytes, what: Description) -> Json:
    """Return the header shown at height 0."""
    shown = genesis_block(block_hash, what)
    return {name: shown[name] for name in _HEADER}


def genesis_block(block_hash: bytes, what: Description) -> Json:
    """Return the block shown at height 0, without transactions and leader."""
    return {
        "number": "0x0",
        "hash": hexed(block_hash),
        "parentHash": ZERO_HASH,
        "sha3Uncles": NO_UNCLES,
        "miner": NOBODY,
        "stateRoot": ZERO_HASH,
        "transactionsRoot": EMPTY_LIST_ROOT,
        "receiptsRoot": EMPTY_LIST_ROOT,
        "logsBloom": _bloom(0),
        "gasLimit": hex(transaction_gas_max(what)),
        "gasUsed": "0x0",
        "timestamp": hex(what.genesis_time_ms // 1000),
        "extraData": "0x",
        "mixHash": ZERO_HASH,
        "nonce": "0x0000000000000000",
        "difficulty": "0x0",
        "baseFeePerGas": hex(dict(what.parameters)["chain.base_fee_initial"]),
        "size": "0x0",
        "uncles": [],
        "transactions": [],
    }


class _Call(NamedTuple):
    """A transaction as a call: recipient, value and input."""

    to: bytes
    value: int
    input: bytes


def _type(item: Transaction) -> str:
    return "0x2" if item.form == DYNAMIC_FORM else "0x0"


def _call_of(item: Transaction, what: Description) -> _Call:
    """Return the call that a transaction is or means.

    One that this version cannot read is for the prefix of the system contracts, with its own bytes as input: no
    recipient at all would be the creation of a contract.
    """
    if item.kind == CALL_KIND:
        return _Call(*item.payload)
    rule = rules_of(what.parameters).get(item.kind)
    if rule is None:
        return _Call(_UNKNOWN, 0, item.raw)
    contract = _UNKNOWN if rule.call is None else rule.call.contract
    try:
        moved = rule.moves(rule.decode(item.payload))
    except DecodeError:  # a payload of a later version
        return _Call(contract, 0, item.raw)
    if rule.kind == TRANSFER_KIND:
        return _Call(item.payload[0], moved, b"")
    if rule.call is None:
        return _Call(contract, moved, item.raw)
    return _Call(contract, *rule.call.call_of(item.payload, moved))


def _recipient(item: Transaction, what: Description) -> bytes:
    """Return the recipient of a transaction, without encoding its call."""
    if item.kind == CALL_KIND or item.kind == TRANSFER_KIND:
        recipient: bytes = item.payload[0]
        return recipient
    rule = rules_of(what.parameters).get(item.kind)
    return _UNKNOWN if rule is None or rule.call is None else rule.call.contract


def transaction(item: Transaction, what: Description, loaded: LoadedBlock | None, index: int = 0) -> Json:
    """Return a transaction with a known sender; ``loaded`` is None while it waits in the mempool."""
    call = _call_of(item, what)
    if loaded is None:
        price = item.max_fee_per_gas
    else:
        price = loaded.receipts[index].effective_gas_price
    shown: dict[str, Json] = {
        "blockHash": None if loaded is None else hexed(loaded.hash),
        "blockNumber": None if loaded is None else hex(loaded.height),
        "blockTimestamp": None if loaded is None else hex(loaded.block.header.time_ms // 1000),
        "transactionIndex": None if loaded is None else hex(index),
        "from": hexed(item.sender),
        "to": hexed(call.to),
        "hash": hexed(item.hash),
        "nonce": hex(item.nonce),
        "value": hex(call.value),
        "gas": hex(item.gas_limit),
        "gasPrice": hex(price),
        "input": hexed(call.input),
        "type": _type(item),
        "chainId": hex(item.chain_id),
    }
    if item.form == NATIVE_FORM:  # its signature is over other bytes than those of a legacy transaction
        return shown | {"v": "0x0", "r": "0x0", "s": "0x0"}
    parity = item.signature[64]
    shown |= {
        "v": hex(parity if item.form == DYNAMIC_FORM else 35 + 2 * item.chain_id + parity),
        "r": hex(int.from_bytes(item.signature[:32], "big")),
        "s": hex(int.from_bytes(item.signature[32:64], "big")),
    }
    if item.form == DYNAMIC_FORM:
        shown |= {
            "yParity": hex(parity),
            "maxFeePerGas": hex(item.max_fee_per_gas),
            "maxPriorityFeePerGas": hex(item.max_priority_fee_per_gas),
            "accessList": [],
        }
    return shown


def receipt(loaded: LoadedBlock, index: int, what: Description) -> Json:
    """Return the receipt of the transaction at ``index``, whose sender is known or cheap to find."""
    gas_before, logs_before = loaded.before[index]
    item, outcome = loaded.transaction(index), loaded.receipts[index]
    return {
        "type": _type(item),
        "status": hex(outcome.status),
        "transactionHash": hexed(item.hash),
        "transactionIndex": hex(index),
        "blockHash": hexed(loaded.hash),
        "blockNumber": hex(loaded.height),
        "from": hexed(item.sender),
        "to": hexed(_recipient(item, what)),
        "contractAddress": None,
        "cumulativeGasUsed": hex(gas_before + outcome.gas_used),
        "gasUsed": hex(outcome.gas_used),
        "effectiveGasPrice": hex(outcome.effective_gas_price),
        "logs": [
            log_json(loaded, Log(event, logs_before + number, index))
            for number, event in enumerate(outcome.events)
        ],
        "logsBloom": _bloom(bloom_of(*outcome.events)),
    }
