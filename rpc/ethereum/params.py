"""Parameters of the Ethereum namespace: quantities, blocks, calls and filters as clients spell them.

See rpc.md 4.2.
"""

from __future__ import annotations

import re
from typing import Any, Final, NamedTuple

from rpc.methods.log_filter import LogFilter
from rpc.methods.schema import BOOLEAN, EARLIEST, NULL, ParamType, Schema, array, nullable, obj, read_hex
from rpc.protocol.errors import RpcError
from state.primitives.envelope import TRANSACTION_LIMIT_BYTES, VALUE_MAX
from state.primitives.errors import DecodeError, NotSupported
from state.primitives.transactions import decode_transaction

__all__ = [
    "ACCOUNT",
    "BLOCK",
    "CALL",
    "COUNT",
    "FILTER",
    "NO_OVERRIDE",
    "PERCENTILES",
    "QUANTITY",
    "RAW",
    "SLOT",
    "SYNC_WAIT",
    "SYNC_WAIT_MS",
    "TOPIC_FILTER",
    "BlockParam",
    "CallParam",
    "FilterParam",
]

BlockParam = int | bytes | None
"""A height, EARLIEST, the hash of a block, or None for the newest one."""

HEIGHT_MAX: Final = 2**63 - 1
CHOICES_MAX: Final = 1_000
"""Maximum number of addresses, and of topics at one position, in a filter."""
TOPICS_MAX: Final = 4
PERCENTILES_MAX: Final = 100
COUNT_MAX: Final = 2**31
SYNC_WAIT_MS: Final = 20_000
"""Default and maximum time that ``eth_sendRawTransactionSync`` waits."""
_NEWEST: Final = ("latest", "pending", "safe", "finalized")
_QUANTITY: Final = re.compile(r"0x(?:0|[1-9a-fA-F][0-9a-fA-F]{0,63})")
_ADDRESS: Final = re.compile(r"0x[0-9a-fA-F]{40}")
_HASH: Final = re.compile(r"0x[0-9a-fA-F]{64}")
_DIGITS: Final = re.compile(r"0x[0-9a-fA-F]+")
SLOT_DIGITS: Final = 64
HASH_CHARACTERS: Final = 66

_QUANTITY_IN: Final[Schema] = {"type": "string", "pattern": "^0x(0|[1-9a-fA-F][0-9a-fA-F]{0,63})$"}
_ADDRESS_IN: Final[Schema] = {"type": "string", "pattern": "^0x[0-9a-fA-F]{40}$"}
_HASH_IN: Final[Schema] = {"type": "string", "pattern": "^0x[0-9a-fA-F]{64}$"}
_DATA_IN: Final[Schema] = {
    "type": "string",
    "pattern": "^0x([0-9a-fA-F]{2})*$",
    "maxLength": 2 + 2 * TRANSACTION_LIMIT_BYTES,
}


class CallParam(NamedTuple):
    """A call or transaction that is not signed; ``price`` is the most that it pays for a unit of gas.

    The rest is None where it is not given.
    """

    sender: bytes | None
    to: bytes | None
    value: int
    data: bytes
    price: int
    tip: int | None = None
    gas: int | None = None
    form: int | None = None
    """The type of the transaction."""
    chain_id: int | None = None
    has_access_list: bool = False


class FilterParam(NamedTuple):
    """Which logs, and of which blocks; ``block_hash`` excludes the others. None: not given."""

    logs: LogFilter
    first: BlockParam
    last: BlockParam
    block_hash: bytes | None


_MEMBERS_OF_FORM: Final = {3: {"blobs", "blobVersionedHashes", "maxFeePerBlobGas"}, 4: {"authorizationList"}}
"""What only transactions of a type have, by its number: clients need not name it then."""


def _quantity(value: Any, limit: int = VALUE_MAX) -> int:
    if type(value) is not str or not _QUANTITY.fullmatch(value):
        raise ValueError("a quantity expected: 0x and hex digits without leading zeros")
    number = int(value, 16)
    if number > limit:
        raise ValueError(f"a quantity of at most {limit:#x} expected")
    return number


def _raw(value: Any) -> bytes:
    """A signed transaction; of a type that is not taken it is said before its size, which may be any."""
    if type(value) is str and len(value) > 2 + 2 * TRANSACTION_LIMIT_BYTES:
        try:
            decode_transaction(read_hex(value[:4], 1))
        except NotSupported as error:
            raise RpcError(error.code, str(error)) from None
        except (DecodeError, ValueError):
            pass
        size = len(value) // 2 - 1
        raise ValueError(f"a transaction of {size} bytes, at most {TRANSACTION_LIMIT_BYTES} expected")
    return _data(value)


def _address(value: Any) -> bytes:
    if type(value) is not str or not _ADDRESS.fullmatch(value):
        raise ValueError("an address expected: 0x and 40 hex digits")
    return bytes.fromhex(value[2:])


def _hash(value: Any) -> bytes:
    if type(value) is not str or not _HASH.fullmatch(value):
        raise ValueError("a hash expected: 0x and 64 hex digits")
    return bytes.fromhex(value[2:])


def _slot(value: Any) -> int:
    """A slot: some clients send a quantity, some 32 bytes."""
    if type(value) is not str or not _DIGITS.fullmatch(value):
        raise ValueError("unable to decode storage key: hex string invalid")
    if len(value) > 2 + SLOT_DIGITS:
        raise ValueError("unable to decode storage key: hex string too long, want at most 32 bytes")
    return int(value, 16)


def _data(value: Any) -> bytes:
    return read_hex(value, TRANSACTION_LIMIT_BYTES)


def _block(value: Any) -> BlockParam:
    match value:
        case dict():
            return _block_of_object(_object(value))
        case str() if len(value) == HASH_CHARACTERS:
            return _hash(value)
        case str():
            return _number_or_tag(value)
        case _:
            raise ValueError(
                "a block expected: a number in hex, a tag, or an object with blockHash or blockNumber"
            )


def _number_or_tag(value: Any) -> BlockParam:
    if type(value) is str and value in _NEWEST:
        return None
    return EARLIEST if value == "earliest" else _quantity(value, HEIGHT_MAX)


def _block_of_object(fields: dict[str, Any]) -> BlockParam:
    """Return the block that an object of EIP-1898 names; where a number may stand, so may a tag."""
    if type(fields.get("requireCanonical", False)) is not bool:
        raise ValueError("requireCanonical: true or false expected")
    match {name: item for name, item in fields.items() if name != "requireCanonical"}:
        case {"blockHash": block_hash, **rest} if not rest:
            return _hash(block_hash)
        case {"blockNumber": number, **rest} if not rest:
            return _number_or_tag(number)
        case {"blockHash": _, "blockNumber": _}:
            raise ValueError("cannot specify both blockHash and blockNumber, choose one or the other")
        case _:
            raise ValueError("a block expected: an object with blockHash or blockNumber")


def _object(value: Any) -> dict[str, Any]:
    if type(value) is not dict:
        raise ValueError("an object expected")
    return {name: item for name, item in value.items() if item is not None}


def _call(value: Any) -> CallParam:
    fields = _object(value)
    data = _data(fields.get("input", fields.get("data", "0x")))
    if "data" in fields and _data(fields["data"]) != data:
        raise ValueError('both "data" and "input" are given and not equal, use "input"')
    if "gasPrice" in fields and fields.keys() & {"maxFeePerGas", "maxPriorityFeePerGas"}:
        raise ValueError("both gasPrice and (maxFeePerGas or maxPriorityFeePerGas) specified")
    if "nonce" in fields:
        _quantity(fields["nonce"])
    if type(fields.get("accessList", [])) is not list:
        raise ValueError("accessList: a list expected")
    tip, gas, form, chain_id = (
        _quantity(fields[name]) if name in fields else None
        for name in ("maxPriorityFeePerGas", "gas", "type", "chainId")
    )
    if form is None:
        form = next((number for number, names in _MEMBERS_OF_FORM.items() if fields.keys() & names), None)
    return CallParam(
        _address(fields["from"]) if "from" in fields else None,
        _address(fields["to"]) if "to" in fields else None,
        _quantity(fields.get("value", "0x0")),
        data,
        _quantity(fields.get("gasPrice", fields.get("maxFeePerGas", "0x0"))),
        tip,
        gas,
        form,
        chain_id,
        bool(fields.get("accessList")),
    )


def _no_override(value: Any) -> None:
    """Nothing in the state or the block can be other than it is; clients send an empty object for that too."""
    if value not in (None, {}):
        raise ValueError("overrides are not supported")


def _choices(value: Any, read: Any) -> frozenset[bytes]:
    items = value if type(value) is list else [value]
    if len(items) > CHOICES_MAX:
        raise ValueError(f"at most {CHOICES_MAX} choices expected")
    return frozenset(map(read, items))


def _logs(fields: dict[str, Any]) -> LogFilter:
    topics = fields.get("topics", [])
    if type(topics) is not list or len(topics) > TOPICS_MAX:
        raise ValueError(f"at most {TOPICS_MAX} topics expected")
    return LogFilter(
        _choices(fields.get("address", []), _address),
        tuple(map(_topic, topics)),
    )


def _topic(item: Any) -> frozenset[bytes] | None:
    """Return the allowed topics at a position; None for any topic, which null means, also in a list."""
    if item is None or item == []:
        return None
    choices = _choices(item, lambda one: b"" if one is None else _hash(one))
    return None if b"" in choices else choices


def _topic_filter(value: Any) -> LogFilter | bool:
    return value if type(value) is bool else _logs(_object(value))


def _filter(value: Any) -> FilterParam:
    fields = _object(value)
    block_hash = _hash(fields["blockHash"]) if "blockHash" in fields else None
    if block_hash is not None and ("fromBlock" in fields or "toBlock" in fields):
        raise ValueError("cannot specify both BlockHash and FromBlock/ToBlock, choose one or the other")
    first, last = _height(fields, "fromBlock"), _height(fields, "toBlock")
    return FilterParam(_logs(fields), first, last, block_hash)


def _height(fields: dict[str, Any], name: str) -> BlockParam:
    value = fields.get(name, "latest")
    if type(value) is not str or len(value) == HASH_CHARACTERS:
        raise ValueError(f"{name}: a number in hex or a tag expected")
    return _block(value)


def _count(value: Any) -> int:
    """A quantity, or a JSON number: some clients send the one, some the other."""
    number = value if type(value) is int else _quantity(value)
    if not 0 <= number <= COUNT_MAX:
        raise ValueError(f"a number from 0 to {COUNT_MAX} expected")
    return number


def _sync_wait(value: Any) -> int:
    """The time that is asked for; EIP-7966 has the usual one stand for any that is not allowed."""
    if type(value) is str and _QUANTITY.fullmatch(value):
        value = int(value, 16)
    return value if type(value) is int and 0 < value <= SYNC_WAIT_MS else SYNC_WAIT_MS


def _percentiles(value: Any) -> tuple[float, ...]:
    if type(value) is not list or len(value) > PERCENTILES_MAX:
        raise ValueError(f"at most {PERCENTILES_MAX} percentiles expected")
    if not all(type(item) in (int, float) and 0 <= item <= 100 for item in value) or value != sorted(value):
        raise ValueError("percentiles from 0 to 100 in ascending order expected")
    return tuple(map(float, value))


_LOGS_IN: Final[dict[str, Schema]] = {
    "address": {"anyOf": [_ADDRESS_IN, array(_ADDRESS_IN, maximum=CHOICES_MAX), NULL]},
    "topics": {
        "anyOf": [
            array(
                {"anyOf": [NULL, _HASH_IN, array({"anyOf": [NULL, _HASH_IN]}, maximum=CHOICES_MAX)]},
                maximum=TOPICS_MAX,
            ),
            NULL,
        ]
    },
}
_HEIGHT_PATTERN: Final = "0x(0|[1-9a-fA-F][0-9a-fA-F]{0,14}|[1-7][0-9a-fA-F]{15})"
"""Quantities up to HEIGHT_MAX."""
_BLOCK_TAG: Final[Schema] = {
    "type": "string",
    "pattern": f"^(latest|pending|safe|finalized|earliest|{_HEIGHT_PATTERN})$",
}
_CANONICAL: Final[dict[str, Schema]] = {"requireCanonical": nullable(BOOLEAN.schema)}
_BLOCK_OF_HASH: Final = obj(
    {"blockHash": _HASH_IN, "blockNumber": NULL} | _CANONICAL, optional=("blockNumber", "requireCanonical")
)
_BLOCK_OF_NUMBER: Final = obj(
    {"blockNumber": _BLOCK_TAG, "blockHash": NULL} | _CANONICAL, optional=("blockHash", "requireCanonical")
)
_COUNT_PATTERN: Final = "^0x(0|[1-9a-fA-F][0-9a-fA-F]{0,6}|[1-7][0-9a-fA-F]{7}|80000000)$"
"""Quantities up to COUNT_MAX."""

QUANTITY: Final = ParamType(_QUANTITY_IN, _quantity)
ACCOUNT: Final = ParamType(_ADDRESS_IN, _address)
BLOCK: Final = ParamType({"anyOf": [_BLOCK_TAG, _HASH_IN, _BLOCK_OF_HASH, _BLOCK_OF_NUMBER]}, _block)
CALL: Final = ParamType(
    {
        "type": "object",
        "properties": {
            "from": {"anyOf": [_ADDRESS_IN, NULL]},
            "to": {"anyOf": [_ADDRESS_IN, NULL]},
            "value": {"anyOf": [_QUANTITY_IN, NULL]},
            "data": {"anyOf": [_DATA_IN, NULL]},
            "input": {"anyOf": [_DATA_IN, NULL]},
            "gasPrice": {"anyOf": [_QUANTITY_IN, NULL]},
            "maxFeePerGas": {"anyOf": [_QUANTITY_IN, NULL]},
            "maxPriorityFeePerGas": {"anyOf": [_QUANTITY_IN, NULL]},
            "gas": {"anyOf": [_QUANTITY_IN, NULL]},
            "nonce": {"anyOf": [_QUANTITY_IN, NULL]},
            "type": {"anyOf": [_QUANTITY_IN, NULL]},
            "chainId": {"anyOf": [_QUANTITY_IN, NULL]},
            "accessList": {"anyOf": [{"type": "array"}, NULL]},
        },
    },
    _call,
)
NO_OVERRIDE: Final = ParamType(nullable(obj({})), _no_override)
FILTER: Final = ParamType(
    {
        "type": "object",
        "properties": _LOGS_IN
        | {
            "fromBlock": {"anyOf": [_BLOCK_TAG, NULL]},
            "toBlock": {"anyOf": [_BLOCK_TAG, NULL]},
            "blockHash": {"anyOf": [_HASH_IN, NULL]},
        },
    },
    _filter,
)
RAW: Final = ParamType(_DATA_IN, _raw)
SLOT: Final = ParamType({"type": "string", "pattern": "^0x[0-9a-fA-F]{1,64}$"}, _slot)
TOPIC_FILTER: Final = ParamType(
    {"anyOf": [{"type": "object", "properties": _LOGS_IN}, {"type": "boolean"}]}, _topic_filter
)
COUNT: Final = ParamType(
    {
        "anyOf": [
            {"type": "string", "pattern": _COUNT_PATTERN},
            {"type": "integer", "minimum": 0, "maximum": COUNT_MAX},
        ]
    },
    _count,
)
SYNC_WAIT: Final = ParamType({}, _sync_wait)
PERCENTILES: Final = ParamType(
    array({"type": "number", "minimum": 0, "maximum": 100}, maximum=PERCENTILES_MAX), _percentiles
)
