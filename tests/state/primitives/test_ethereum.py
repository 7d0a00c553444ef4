"""Ethereum's transaction forms: what a widely used signer makes is read; every other spelling is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from state.primitives.errors import DecodeError, SignatureInvalid
from state.primitives.ethereum import decode_dynamic, decode_legacy
from state.primitives.hashing import keccak
from state.primitives.keys import SecretKey
from state.primitives.transactions import CALL_KIND, Transaction

VECTORS: list[dict[str, Any]] = json.loads(
    (Path(__file__).parents[2] / "vectors/ethereum_transactions.json").read_text()
)
"""Made with eth-account 0.14 of random keys and fields, half legacy, half EIP-1559."""
KEY = SecretKey(b"e" * 32)
TO = b"\x11" * 20


def decoded(raw: bytes) -> Transaction:
    return decode_dynamic(raw) if raw[0] == 2 else decode_legacy(raw)


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector["hash"][:8])
def test_what_others_sign_is_read(vector: dict[str, Any]) -> None:
    transaction = decoded(bytes.fromhex(vector["raw"]))
    assert transaction.hash.hex() == vector["hash"]
    assert transaction.recover_sender().hex() == vector["sender"]
    assert transaction.kind == CALL_KIND
    assert transaction.payload == [
        bytes.fromhex(vector["to"]), int(vector["value"]), bytes.fromhex(vector["data"])
    ]  # fmt: skip
    found = (transaction.chain_id, transaction.nonce, transaction.gas_limit)
    assert found == (vector["chain_id"], vector["nonce"], vector["gas"])
    assert (transaction.max_fee_per_gas, transaction.max_priority_fee_per_gas) == (vector["fee"], vector["tip"])


@settings(max_examples=400)
@given(st.sampled_from(VECTORS), st.data())
def test_no_changed_byte_keeps_the_sender(vector: dict[str, Any], data: st.DataObject) -> None:
    raw = bytearray.fromhex(vector["raw"])
    at = data.draw(st.integers(0, len(raw) * 8 - 1))
    raw[at // 8] ^= 1 << at % 8
    check_not_the_senders(bytes(raw), vector)


@settings(max_examples=200)
@given(st.sampled_from(VECTORS), st.data())
def test_no_cut_or_longer_spelling_keeps_the_sender(vector: dict[str, Any], data: st.DataObject) -> None:
    raw = bytes.fromhex(vector["raw"])
    at = data.draw(st.integers(0, len(raw) - 1))
    check_not_the_senders(raw[:at], vector)
    check_not_the_senders(raw + b"\0", vector)
    check_not_the_senders(raw[:at] + b"\0" + raw[at:], vector)


def check_not_the_senders(raw: bytes, vector: dict[str, Any]) -> None:
    try:
        transaction = decoded(raw) if raw else None
        assert transaction is None or transaction.recover_sender().hex() != vector["sender"]
    except (DecodeError, SignatureInvalid):
        pass


def rlp(value: Any) -> bytes:
    """Encode by the definition; what is tested never does."""
    if isinstance(value, list):
        body = b"".join(map(rlp, value))
        return header(0xC0, len(body)) + body
    if isinstance(value, int):
        value = value.to_bytes((value.bit_length() + 7) // 8, "big")
    data = bytes(value)
    return data if len(data) == 1 and data[0] < 0x80 else header(0x80, len(data)) + data


def header(base: int, size: int) -> bytes:
    if size < 56:
        return bytes([base + size])
    length = size.to_bytes((size.bit_length() + 7) // 8, "big")
    return bytes([base + 55 + len(length)]) + length


def legacy(*fields: Any, v: int = 49) -> bytes:
    signature = KEY.sign(keccak(rlp([*fields, 7, b"", b""])))
    return rlp([*fields, v + signature[64], signature[:32].lstrip(b"\0"), signature[32:64].lstrip(b"\0")])


def dynamic(*fields: Any) -> bytes:
    signature = KEY.sign(keccak(b"\x02" + rlp(list(fields))))
    return b"\x02" + rlp([*fields, signature[64], signature[:32].lstrip(b"\0"), signature[32:64].lstrip(b"\0")])


def test_the_test_signs_as_it_should() -> None:
    assert decode_legacy(legacy(0, 1, 21_000, TO, 5, b"")).recover_sender() == KEY.address
    assert decode_dynamic(dynamic(7, 0, 1, 2, 21_000, TO, 5, b"", [])).recover_sender() == KEY.address


@pytest.mark.parametrize(
    ("raw", "says"),
    [
        (legacy(0, 1, 21_000, b"", 5, b""), "contract creation"),
        (legacy(0, 1, 21_000, TO[1:], 5, b""), "not an address"),
        (legacy(0, 1, 21_000, TO, 5, b"", v=27), "replay-protected"),
        (legacy(b"\0", 1, 21_000, TO, 5, b""), "leading zero"),
        (legacy(0, 1, 21_000, TO, b"\0\5", b""), "leading zero"),
        (legacy(0, 1, 21_000, [TO], 5, b""), "bytes expected"),
        (legacy(2**64 - 1, 1, 21_000, TO, 5, b""), "a number above"),
        (dynamic(7, 0, 1, 2, 21_000, TO, 5, b"", [[TO, []]]), "access lists"),
        (dynamic(7, 0, 1, 2, 21_000, TO, 5, b"", b""), "access lists"),
        (dynamic(7, 0, 3, 2, 21_000, TO, 5, b"", []), "max priority fee per gas higher"),
        (dynamic(0, 0, 1, 2, 21_000, TO, 5, b"", []), "without a chain"),
        (dynamic(7, 0, 1, 2, 21_000, TO, 5, b""), "12 fields"),
        (dynamic(7, 0, 1, 2, 21_000, TO, 5, b"", [], *[b""] * 20), "too many"),
        (legacy(0, 1, 21_000, TO, 5, b"") + b"\0", "from the first byte"),
        (b"\x02", "end within"),
        (b"\x02\x80", "not one list"),
        (b"\x02\xf8\x01\x80", "shortest"),
        (b"\x02\xc2\x81\x05", "stands for itself"),
    ],
)
def test_what_is_refused_is_named(raw: bytes, says: str) -> None:
    with pytest.raises(DecodeError, match=says):
        decoded(raw)


@given(st.binary(max_size=200))
def test_garbage_is_refused(data: bytes) -> None:
    for decode in (decode_dynamic, decode_legacy):
        with pytest.raises(DecodeError):
            decode(b"\x02" + data)
