"""Contracts as a gateway names them: what is sent to one never goes to whom a gateway likes."""

from __future__ import annotations

import pytest

from rpc.client.contracts import find_function
from rpc.client.errors import AnswerMalformed
from rpc.client.results import Contract, read_result
from state.primitives.address import format_address
from state.transition.staking import STAKING_ADDRESS

STAKE = {
    "type": "function", "name": "stake", "stateMutability": "payable", "outputs": [],
    "inputs": [{"name": "proof", "type": "bytes"}],
}  # fmt: skip


def contract(address: bytes) -> Contract:
    return read_result(Contract, {"name": "staking", "address": format_address(address), "abi": [STAKE]})


def test_a_gateway_cannot_name_an_address_of_its_own() -> None:
    assert find_function([contract(STAKING_ADDRESS)], "staking", "stake").address == STAKING_ADDRESS
    for address in (b"\x11" * 20, bytes(20), bytes(17) + b"\1" + STAKING_ADDRESS[18:]):
        with pytest.raises(AnswerMalformed, match="no system contract"):
            find_function([contract(address)], "staking", "stake")
