from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rpc.gateway.limits import caller_key, caller_limiter
from rpc.gateway.method_table import DOCUMENT, METHOD_TABLE
from rpc.methods.method import bind
from rpc.methods.openrpc import describe
from rpc.methods.schema import (
    ADDRESS,
    AMOUNT,
    BLOCK,
    CURSOR,
    HASH,
    HEIGHT,
    Param,
    choice,
    data,
    make_cursor,
    natural,
    text,
)
from rpc.protocol.errors import INVALID_PARAMS, RpcError
from state.primitives.bounded_cache import BoundedCache
from tests.rpc.validate import validate

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=70),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=12), inner, max_size=4),
    max_leaves=10,
)
HEXLIKE = st.from_regex(r"0x[0-9a-fA-F]{0,66}", fullmatch=True)


@given(JSON | HEXLIKE)
def test_every_parameter_reads_or_refuses(value: Any) -> None:
    for method in METHOD_TABLE.values():
        for param in method.all_params:
            try:
                param.read(value)
            except RpcError as error:
                assert error.number == INVALID_PARAMS
                assert error.fields["param"] == param.name
            else:
                if value is not None and value != value.__class__():
                    validate(value, param.type.schema, {})


@given(JSON)
def test_binding_any_parameters_gives_values_or_invalid_params(given_params: Any) -> None:
    for method in METHOD_TABLE.values():
        try:
            values = bind(method.all_params, given_params)
        except RpcError as error:
            assert error.number == INVALID_PARAMS
        else:
            assert len(values) == len(method.all_params)


def test_parameters_by_place_and_by_name_are_the_same() -> None:
    params = (Param("a", HEIGHT, ""), Param("b", HEIGHT, "", required=False, default=9))
    assert bind(params, [1, 2]) == bind(params, {"b": 2, "a": 1}) == [1, 2]
    assert bind(params, [1]) == bind(params, {"a": 1}) == bind(params, [1, None]) == [1, 9]


@pytest.mark.parametrize("bad", [[], {}, None, [1, 2, 3], {"a": 1, "c": 1}, [True], ["1"], [-1], [1.0], 7, "a"])
def test_wrong_parameters(bad: Any) -> None:
    params = (Param("a", HEIGHT, ""), Param("b", HEIGHT, "", required=False))
    with pytest.raises(RpcError) as caught:
        bind(params, bad)
    assert caught.value.number == INVALID_PARAMS


@pytest.mark.parametrize(
    ("kind", "good", "bad"),
    [
        (AMOUNT, ["0", "1", "1" + "0" * 30], ["", "00", "01", "-1", "0x1", 1, "1.0", "١", "1" * 79, " 1"]),
        (HASH, ["0x" + "aB" * 32], ["0x" + "ab" * 31, "ab" * 32, "0x" + "zz" * 32, 1, None]),
        (
            ADDRESS,
            ["0x" + "ab" * 20, "0x" + "AB" * 20, "0x5aAeb6053F3E94C9b9A09f33669435E7Ef1BeAed"],
            ["0x5AAeb6053F3E94C9b9A09f33669435E7Ef1BeAed", "0x12", 5],
        ),
        (BLOCK, [0, 7, "latest", "earliest", "0x" + "00" * 32], [-1, "pending", "7", 1.5, True, "0x7"]),
        (data(2), ["0x", "0xab", "0xabcd"], ["", "0xa", "0xabcdef", "abcd", 1]),
        (choice("x", "y"), ["x"], ["z", 1, None]),
        (text(3), ["", "abc"], ["abcd", 1]),
        (natural(1, 3), [1, 3], [0, 4, True, "1"]),
        (CURSOR, [make_cursor(["blocks", 3])], ["", "!!", "AAAA", "x" * 600, 5, make_cursor([1]) + "A"]),
    ],
)
def test_types(kind: Any, good: list[Any], bad: list[Any]) -> None:
    for value in good:
        kind.read(value)
    for value in bad:
        with pytest.raises(ValueError if kind is not ADDRESS else Exception):
            kind.read(value)


def test_discovery_is_the_dispatch_table() -> None:
    assert describe(METHOD_TABLE, title="", description="")["methods"] == DOCUMENT["methods"]
    assert [method["name"] for method in DOCUMENT["methods"]] == list(METHOD_TABLE)
    for method in DOCUMENT["methods"]:
        assert [param["name"] for param in method["params"]] == [
            p.name for p in METHOD_TABLE[method["name"]].all_params
        ]
        assert method["summary"]
        assert method["x-cost"] >= 1


def test_every_reference_of_the_document_leads_somewhere() -> None:
    def walk(value: Any) -> None:
        if isinstance(value, dict):
            if "$ref" in value:
                assert value["$ref"].removeprefix("#/components/schemas/") in DOCUMENT["components"]["schemas"]
            for item in value.values():
                walk(item)
        elif isinstance(value, list):
            for item in value:
                walk(item)

    walk(DOCUMENT)


def test_budgets_refill_and_say_when() -> None:
    rates = caller_limiter(rate_per_s=10, burst=5)
    assert [rates.spend("a", 1, 0.0) for _ in range(5)] == [0.0] * 5
    wait = rates.spend("a", 1, 0.0)
    assert wait > 0
    assert rates.spend("b", 1, 0.0) == 0.0
    assert rates.spend("a", 1, wait) == 0.0


def test_a_costly_request_is_served_and_waited_for() -> None:
    rates = caller_limiter(rate_per_s=1, burst=5)
    assert rates.spend("a", 100, 0.0) == 0.0
    assert rates.spend("a", 1, 90.0) > 0
    assert rates.spend("a", 1, 97.0) == 0.0


def test_callers_are_addresses_or_sites() -> None:
    assert caller_key("10.0.0.1") == "10.0.0.1"
    assert caller_key("2001:db8::1") == caller_key("2001:db8::ffff") != caller_key("2001:db8:0:1::1")
    assert caller_key("::ffff:10.0.0.1") == "10.0.0.1"


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(1, 8)), max_size=60))
def test_a_cache_never_weighs_more_than_allowed(puts: list[tuple[int, int]]) -> None:
    cache: BoundedCache[int, int] = BoundedCache(16)
    kept: dict[int, int] = {}
    for key, weight in puts:
        cache.put(key, key, weight)
        kept[key] = weight
        assert sum(kept[other] for other in range(21) if cache.get(other) is not None) <= 16
        assert cache.get(key) == key
