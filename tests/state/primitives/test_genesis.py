"""What is wrong with a genesis file is named: the field, the address, what was expected."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest

from state.primitives.address import format_address
from state.primitives.errors import ConfigError
from state.primitives.genesis import Genesis, GenesisValidator, genesis_from_json, genesis_to_json
from state.primitives.keys import SecretKey
from state.primitives.vrf import vrf_key_of

ONE, OTHER = SecretKey(bytes([1] * 32)), SecretKey(bytes([2] * 32))
WHO = format_address(ONE.address)


def founding(key: SecretKey) -> GenesisValidator:
    return GenesisValidator(key.address, key.vote_key, vrf_key_of(key).public, 5)


def document() -> dict[str, Any]:
    genesis = Genesis(7, "mine", 1, True, ((ONE.address, 9),), (founding(ONE), founding(OTHER)))
    found: dict[str, Any] = json.loads(genesis_to_json(genesis))
    return found


def test_the_document_that_the_tests_change_is_right() -> None:
    assert genesis_from_json(json.dumps(document())).name == "mine"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"format": "x"}, '"format": "dekube-genesis/1" expected'),
        ({"more": 1}, "more: unknown field"),
        ({"chain_id": 0}, "chain_id: a number from 1 to 2147483647"),
        ({"chain_id": "7"}, "chain_id: a number"),
        ({"name": ""}, "name: 1 to 64 characters expected, not 0"),
        ({"name": " "}, "name: 1 to 64 characters"),
        ({"name": "x" * 65}, "name: 1 to 64 characters expected, not 65"),
        ({"name": "a\nb"}, r"name: 'a\\nb' has characters that cannot be printed"),
        ({"name": "\ud800"}, r"name: '\\ud800' has characters"),
        ({"name": 5}, "name: a text"),
        ({"time_ms": -1}, "time_ms: a number from 0"),
        ({"testnet": 1}, "testnet: true or false"),
        ({"parameters": []}, "parameters: an object expected"),
        (
            {"parameters": {"chain.epoch_blocks": 5}},
            "parameters.chain.epoch_blocks: 5: a natural number in quotes",
        ),
        ({"parameters": {"chain.epoch_blocks": "9" * 41}}, "parameters.chain.epoch_blocks: .* at most 40 digits"),
        ({"allocations": {"0x12": "5"}}, "allocations: '0x12': not an address"),
        ({"allocations": {WHO: "-5"}}, f"allocations.{WHO}: '-5': a natural number"),
        ({"allocations": {WHO: "5", WHO.lower(): "6"}}, f"{WHO} is allocated twice"),
        ({"validators": {}}, "validators: an array expected"),
        ({"validators": [5]}, r"validators\[0\]: an object expected"),
        ({"validators": []}, "at least one validator"),
    ],
)
def test_what_is_wrong_is_named(change: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        genesis_from_json(json.dumps(document() | change))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"address": WHO}, f"{WHO} is a validator twice"),
        ({"vote_key": ONE.vote_key.hex()}, f"{WHO} and {format_address(OTHER.address)} share a vote key"),
        ({"vote_key": "ab"}, r"validators\[1\].vote_key: 64 hex digits expected"),
        ({"vrf_key": None}, r"validators\[1\].vrf_key: 64 hex digits expected"),
        ({"stake": 5}, r"validators\[1\].stake: 5: a natural number in quotes"),
        ({"stake": "0"}, f"validator {format_address(OTHER.address)} has no stake"),
        ({"address": None}, r"validators\[1\].address: None: a text expected"),
        ({"more": 1}, r"validators\[1\].more: unknown field"),
    ],
)
def test_what_is_wrong_with_a_validator_is_named(change: dict[str, Any], said: str) -> None:
    changed = document()
    changed["validators"][1] |= change
    with pytest.raises(ConfigError, match=said):
        genesis_from_json(json.dumps(changed))


@pytest.mark.parametrize("field", list(document()))
def test_a_field_that_is_missing_is_named(field: str) -> None:
    changed = document()
    del changed[field]
    with pytest.raises(ConfigError, match=field):
        genesis_from_json(json.dumps(changed))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", r"not valid JSON \(line 1, column 1"),
        ('{"a": 1,\n "b" 2}', r"not valid JSON \(line 2, column 6"),
        ("[" * 100_000, r"not valid JSON \(nested too deeply\)"),
        ('{"chain_id": ' + "9" * 5_000 + "}", "not valid JSON"),
        ('{"a": 1, "a": 2}', "'a' stands twice"),
        ("[]", "an object with"),
    ],
)
def test_what_is_no_json_is_told_with_its_line(text: str, said: str) -> None:
    raised = sys.getrecursionlimit()
    sys.setrecursionlimit(1_000)  # a node's: a library of the tests (py_ecc, of web3) raises that of the process
    try:
        with pytest.raises(ConfigError, match=said):
            genesis_from_json(text)
    finally:
        sys.setrecursionlimit(raised)
