"""Call data: as Solidity's tools make it, in one spelling alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from state.primitives.abi import AbiValue, Function, Parameter, decode_values, encode_values, revert_data
from state.primitives.errors import DecodeError

VECTORS: list[dict[str, Any]] = json.loads((Path(__file__).parents[2] / "vectors/abi.json").read_text())
"""Made with eth-abi 6 of random types and values."""
STAKE = Function("stake(uint256 amount, bytes32 voteKey, bytes possession, string note, bool now)")


def values_of(vector: dict[str, Any]) -> tuple[Function, list[AbiValue]]:
    function = Function(vector["declaration"])
    return function, [
        bytes.fromhex(value) if parameter.type.startswith(("bytes", "address")) else value
        for parameter, value in zip(function.parameters, vector["values"], strict=True)
    ]


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector["declaration"].partition("(")[0])
def test_what_others_encode_is_read_and_made(vector: dict[str, Any]) -> None:
    function, values = values_of(vector)
    assert function.encode(*values).hex() == vector["data"]
    assert function.decode(bytes.fromhex(vector["data"])) == values


def test_selectors_are_those_of_the_standards() -> None:
    assert Function("transfer(address to, uint256 value)").selector.hex() == "a9059cbb"
    assert Function("balanceOf(address owner)", "(uint256 balance)").selector.hex() == "70a08231"
    assert revert_data("no").hex() == "08c379a0" + f"{32:064x}{2:064x}" + b"no".hex().ljust(64, "0")


arguments = st.tuples(
    st.integers(0, 2**256 - 1), st.binary(min_size=32, max_size=32), st.binary(max_size=100), st.text(max_size=40),
    st.integers(0, 1),
)  # fmt: skip


@settings(max_examples=200)
@given(arguments)
def test_values_come_back(values: tuple[AbiValue, ...]) -> None:
    assert STAKE.decode(STAKE.encode(*values)) == list(values)


@settings(max_examples=400)
@given(arguments, st.data())
def test_call_data_has_one_spelling(values: tuple[AbiValue, ...], data: st.DataObject) -> None:
    raw = STAKE.encode(*values)
    at = data.draw(st.integers(0, len(raw) - 1))
    changes = [
        raw[:at],
        raw + b"\0" * 32,
        raw[:at] + b"\0" + raw[at:],
        raw[:at] + bytes([raw[at] ^ 1]) + raw[at + 1 :],
    ]
    for changed in changes:
        try:
            found = STAKE.decode(changed)
        except DecodeError:
            continue
        assert found != list(values) and STAKE.encode(*found) == changed


@pytest.mark.parametrize(
    ("type_", "word"),
    [
        ("address", b"\1" + bytes(31)),
        ("bool", bytes(31) + b"\2"),
        ("uint8", bytes(30) + b"\1\0"),
        ("int8", bytes(31) + b"\x80"),
        ("bytes4", bytes(4) + b"\1" + bytes(27)),
        ("bytes", bytes(31) + b"\x20"),
        ("bytes", b"\xff" * 32),
        ("string", bytes(31) + b"\x20" + bytes(31) + b"\1" + b"\xff" + bytes(31)),
        ("uint256", bytes(31)),
    ],
)
def test_what_is_dirty_or_short_is_refused(type_: str, word: bytes) -> None:
    with pytest.raises(DecodeError):
        decode_values((Parameter("x", type_),), word)


@given(st.binary(max_size=300))
def test_garbage_is_refused_or_the_one_encoding(data: bytes) -> None:
    try:
        values = decode_values(STAKE.parameters, data)
    except DecodeError:
        return
    assert encode_values(STAKE.parameters, values) == data
