"""What the schema of a parameter allows is read, and what it refuses is not: at both sides of every bound."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from rpc.ethereum import params
from rpc.gateway.method_table import METHOD_TABLE
from rpc.methods import schema
from rpc.methods.schema import CURSOR, Param, ParamType, Schema, choice, data, make_cursor, natural, text
from rpc.protocol.errors import RpcError
from tests.rpc.validate import validate

OTHERS: tuple[Any, ...] = (
    True, False, 0, 1, -1, 2**53 - 1, 2**53, 2**64, 0.5, 1.0, 100, 101, "", "1", "01", "é", "٣",
    "latest", "earliest", "safe", "Latest", [], [[]], {}, {"": None},
)  # fmt: skip
HEX = (
    *("0x" + digit * digits for digit in "017aF" for digits in range(68)),
    *(hex(2**bits + more) for bits in range(258) for more in (-1, 0, 1)),
    "0X1", "0x 1", " 0x1", "0x1 ", "0xg", "x", "1234", "0x" + "g" * 40, "0x" + "g" * 64,
)  # fmt: skip


def is_valid(value: Any, wanted: Schema) -> bool:
    try:
        validate(value, wanted, {})
    except AssertionError:
        return False
    return True


def edges(wanted: Schema) -> Iterator[Any]:
    """Yield values at both sides of each bound that a schema names, and of every other kind."""
    yield from OTHERS
    for arm in wanted.get("anyOf", ()):
        yield from edges(arm)
    match wanted.get("type"):
        case "integer" | "number":
            for bound in (wanted.get("minimum", 0), wanted.get("maximum", 0)):
                yield from (bound - 1, bound, bound + 1, str(bound), hex(bound))
        case "string":
            yield from HEX
            for word in wanted.get("enum", ()):
                yield from (word, word + " ", word.upper(), [word])
            limit = wanted.get("maxLength", 0)
            for head, piece in (("", "1"), ("0x", "1"), ("0x", "g"), ("", "é")):
                yield from (head + piece * (length - len(head)) for length in range(limit - 2, limit + 3))
        case "array":
            items: Schema = wanted.get("items", {})
            one = least(items)
            limit = wanted.get("maxItems", 1)
            yield from ([one] * count for count in (1, limit, limit + 1))
            yield from ([item] for item in edges(items))
        case "object":
            properties: dict[str, Schema] = wanted.get("properties", {})
            given = {name: least(properties[name]) for name in wanted.get("required", ())}
            yield from (given, given | {"other": 1})
            for name, of in properties.items():
                yield {key: item for key, item in given.items() if key != name}
                yield from (given | {name: item} for item in (None, *edges(of)))
        case _:
            pass


def least(wanted: Schema) -> Any:
    """Return some value that a schema allows."""
    return next(value for value in edges(wanted) if is_valid(value, wanted))


def is_read(value: Any, kind: ParamType[Any]) -> bool:
    try:
        Param("it", kind, "").read(value)
    except RpcError:
        return False
    return True


def types() -> dict[str, ParamType[Any]]:
    """Return every type of a parameter by a name: of the modules that define them, and of the methods."""
    found = {
        f"{module.__name__}.{name}": kind
        for module in (schema, params)
        for name, kind in vars(module).items()
        if isinstance(kind, ParamType)
    }
    found |= {"choice": choice("x", "yy"), "data": data(3), "data of some": data(3, bytes_min=2)}
    found |= {"text": text(3), "natural": natural(2, 3)}
    known = {id(kind) for kind in found.values()}
    for method in METHOD_TABLE.values():
        for param in method.all_params:
            if id(param.type) not in known:
                known.add(id(param.type))
                found[f"{method.name} {param.name}"] = param.type
    return found


TYPES = types()
OPAQUE = {"rpc.methods.schema.CURSOR"}
"""Bytes that only their author can interpret."""


@pytest.mark.slow
@pytest.mark.parametrize("name", TYPES)
def test_what_a_schema_allows_is_read_and_nothing_else(name: str) -> None:
    kind = TYPES[name]
    allowed = refused = 0
    for value in edges(kind.schema):
        is_allowed = is_valid(value, kind.schema)
        allowed, refused = allowed + is_allowed, refused + (not is_allowed)
        if not is_allowed or name not in OPAQUE:
            assert is_read(value, kind) == is_allowed, (str(value)[:200], is_allowed, kind.schema)
    assert allowed > 1 and (refused > 1 or not kind.schema)


def test_a_cursor_is_a_string_of_the_schema() -> None:
    cursor = make_cursor(["blocks", 3])
    assert is_valid(cursor, CURSOR.schema) and is_read(cursor, CURSOR)


@pytest.mark.parametrize(
    ("method", "name", "allowed", "refused"),
    [
        ("dekube_getBlock", "block", [0, 2**53 - 1, "latest", "0x" + "ab" * 32], [-1, 2**53, "pending", "0x1"]),
        ("dekube_getProof", "key", ["0x00", "0x" + "00" * 128], ["0x", "0x0", "0x" + "00" * 129]),
        (
            "eth_feeHistory",
            "count",
            ["0x0", "0x1", "0x80000000", 0, 1, 2**31],
            ["0x80000001", "0x01", -1, 2**31 + 1],
        ),
        (
            "eth_getBalance",
            "block",
            [
                "0x0",
                hex(2**63 - 1),
                {"blockHash": "0x" + "ab" * 32},
                {"blockHash": "0x" + "ab" * 32, "requireCanonical": True},
                {"blockNumber": "0x0"},
                {"blockNumber": "latest"},
                {"blockNumber": "0x0", "requireCanonical": True},
            ],
            [
                {},
                hex(2**63),
                {"blockNumber": hex(2**63)},
                {"blockHash": None},
                {"blockNumber": "0x0", "blockHash": "0x" + "ab" * 32},
                {"blockNumber": "newest"},
                {"blockHash": "0x" + "ab" * 32, "requireCanonical": 1},
            ],
        ),
        ("eth_feeHistory", "percentiles", [[0, 100], [0.5, 0.5]], [[-1], [101], [True], ["1"]]),
        ("eth_call", "stateOverride", [{}], [{"0x": {}}, [], 0, ""]),
        ("eth_call", "call", [{"accessList": []}, {"accessList": None}], [{"accessList": {}}, {"accessList": ""}]),
    ],
)
def test_bounds_of_parameters(method: str, name: str, allowed: list[Any], refused: list[Any]) -> None:
    [param] = [param for param in METHOD_TABLE[method].params if param.name == name]
    for value, is_allowed in (*((one, True) for one in allowed), *((one, False) for one in refused)):
        assert is_valid(value, param.type.schema) == is_read(value, param.type) == is_allowed, value
