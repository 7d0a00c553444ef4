"""What wallets sign, against the field's own library: RLP forms, messages, typed data, derived keys."""

from __future__ import annotations

import json
import string
from typing import Any

import pytest
from eth_account import Account
from eth_account.hdaccount import key_from_seed
from eth_account.messages import encode_defunct, encode_typed_data
from hypothesis import given, settings
from hypothesis import strategies as st

from state.primitives.address import format_address
from state.primitives.errors import DecodeError, KeystoreError, SignatureInvalid
from state.primitives.hashing import keccak
from state.primitives.hd import HARDENED, derive_key, ethereum_path
from state.primitives.keys import SecretKey
from state.primitives.signing import (
    personal_digest,
    recover_wallet_signature,
    sign_dynamic,
    sign_legacy,
    wallet_form,
)
from state.primitives.transactions import decode_transaction
from state.primitives.typed_data import TYPED_DATA_LIMIT_BYTES, parse_typed_data

KEY = SecretKey(b"k" * 32)
ADDRESSES = st.binary(min_size=20, max_size=20)
NUMBERS = st.integers(0, 2**63 - 1)
TERMS = {"to": ADDRESSES, "value": st.integers(0, 2**96), "data": st.binary(max_size=100)}


@given(nonce=NUMBERS, gas=st.integers(0, 10**7), fee=st.integers(0, 2**60), **TERMS)
def test_ethereum_forms_are_those_of_the_library(
    nonce: int, gas: int, fee: int, to: bytes, value: int, data: bytes
) -> None:
    common = {"nonce": nonce, "gas": gas, "to": format_address(to), "value": value, "data": data, "chainId": 7}
    dynamic = sign_dynamic(
        KEY, chain_id=7, nonce=nonce, to=to, value=value, data=data, gas_limit=gas, max_fee_per_gas=fee,
        max_priority_fee_per_gas=fee // 2,
    )  # fmt: skip
    theirs: Any = Account.from_key(KEY.secret)
    fees = {"maxFeePerGas": fee, "maxPriorityFeePerGas": fee // 2}
    assert theirs.sign_transaction({**common, **fees}).raw_transaction == dynamic
    legacy = sign_legacy(KEY, chain_id=7, nonce=nonce, to=to, value=value, data=data, gas_limit=gas, gas_price=fee)
    assert theirs.sign_transaction({**common, "gasPrice": fee}).raw_transaction == legacy
    for raw in (dynamic, legacy):
        transaction = decode_transaction(raw)
        assert transaction.recover_sender() == KEY.address
        assert transaction.payload == [to, value, data]


@given(st.binary(max_size=300))
def test_messages_to_people_are_signed_as_by_the_library(message: bytes) -> None:
    signature = wallet_form(KEY.sign(personal_digest(message)))
    theirs: Any = Account.from_key(KEY.secret)
    assert theirs.sign_message(encode_defunct(message)).signature == signature
    assert recover_wallet_signature(personal_digest(message), signature) == KEY.address
    assert recover_wallet_signature(personal_digest(message), signature[:64] + bytes((signature[64] - 27,))) == (
        KEY.address
    )


@pytest.mark.parametrize("signature", [b"", bytes(64), bytes(65), bytes(66), b"\xff" * 65, b"\1" * 64 + b"\x1d"])
def test_what_is_no_signature_is_refused(signature: bytes) -> None:
    with pytest.raises(SignatureInvalid):
        recover_wallet_signature(bytes(32), signature)


# Derived keys


@settings(max_examples=30)
@given(st.binary(min_size=16, max_size=64), st.integers(0, 2**31 - 1))
def test_derived_keys_are_those_of_the_library(seed: bytes, index: int) -> None:
    assert derive_key(seed, ethereum_path(index)).secret == key_from_seed(seed, f"m/44'/60'/0'/0/{index}")


def test_the_published_vector_is_derived() -> None:
    """Test vector 1 of BIP-32: m/0'/1/2'/2/1000000000."""
    seed = bytes.fromhex("000102030405060708090a0b0c0d0e0f")
    path = (HARDENED, 1, HARDENED + 2, 2, 1_000_000_000)
    expected = "471b76e389e528d6de6d816857e012c5455051cad6660850e58372a6c3e6e7c8"
    assert derive_key(seed, path).secret.hex() == expected


@pytest.mark.parametrize(
    ("seed", "index"), [(b"", 0), (bytes(15), 0), (bytes(65), 0), (bytes(16), -1), (bytes(16), 2**31)]
)
def test_what_derives_no_key_is_refused(seed: bytes, index: int) -> None:
    with pytest.raises(KeystoreError):
        derive_key(seed, ethereum_path(index))


# Typed data

MAIL: Any = {
    "types": {
        "EIP712Domain": [
            {"name": "name", "type": "string"}, {"name": "version", "type": "string"},
            {"name": "chainId", "type": "uint256"}, {"name": "verifyingContract", "type": "address"},
        ],
        "Person": [{"name": "name", "type": "string"}, {"name": "wallet", "type": "address"}],
        "Mail": [
            {"name": "from", "type": "Person"}, {"name": "to", "type": "Person"},
            {"name": "contents", "type": "string"},
        ],
    },
    "primaryType": "Mail",
    "domain": {
        "name": "Ether Mail", "version": "1", "chainId": 1,
        "verifyingContract": "0xCcCCccccCCCCcCCCCCCcCcCccCcCCCcCcccccccC",
    },
    "message": {
        "from": {"name": "Cow", "wallet": "0xCD2a3d9F938E13CD947Ec05AbC7FE734Df8DD826"},
        "to": {"name": "Bob", "wallet": "0xbBbBBBBbbBBBbbbBbbBbbbbBBbBbbbbBbBbbBBbB"},
        "contents": "Hello, Bob!",
    },
}  # fmt: skip


def test_the_example_of_the_standard_has_its_digest() -> None:
    expected = "be609aee343fb3c4b28e1df9e632fca64fcfaede20f02e86244efddf30957bd2"
    assert parse_typed_data(json.dumps(MAIL)).digest.hex() == expected


ATOMS: dict[str, st.SearchStrategy[Any]] = {
    "string": st.text(st.characters(exclude_categories=["Cs"]), max_size=20),
    "bool": st.booleans(),
    "address": ADDRESSES.map(format_address),
    "bytes": st.binary(max_size=40).map(lambda data: "0x" + data.hex()),
    "bytes4": st.binary(min_size=4, max_size=4).map(lambda data: "0x" + data.hex()),
    "bytes32": st.binary(min_size=32, max_size=32).map(lambda data: "0x" + data.hex()),
    "uint8": st.integers(0, 255),
    "uint256": st.integers(0, 2**256 - 1),
    "int64": st.integers(-(2**63), 2**63 - 1),
}


@st.composite
def documents(draw: st.DrawFn) -> Any:
    """Typed data of up to three types that name those before them, with arrays of both kinds."""
    types: dict[str, list[dict[str, str]]] = {"EIP712Domain": [{"name": "name", "type": "string"}]}
    values: dict[str, st.SearchStrategy[Any]] = dict(ATOMS)
    names = draw(st.lists(st.sampled_from(["Alpha", "Beta", "Gamma"]), min_size=1, max_size=3, unique=True))
    for name in names:
        members = {}
        labels = draw(st.lists(st.sampled_from(string.ascii_lowercase), min_size=1, max_size=4, unique=True))
        for label in labels:
            kind = draw(st.sampled_from(sorted(values)))
            strategy = values[kind]
            match draw(st.sampled_from(["", "[]", "[2]"])):
                case "[]":
                    kind, strategy = kind + "[]", st.lists(strategy, max_size=3)
                case "[2]":
                    kind, strategy = kind + "[2]", st.lists(strategy, min_size=2, max_size=2)
                case _:
                    pass
            members[label] = (kind, strategy)
        types[name] = [{"name": label, "type": kind} for label, (kind, _) in members.items()]
        values[name] = st.fixed_dictionaries({label: strategy for label, (_, strategy) in members.items()})
    message = draw(values[names[-1]])
    needed = {"EIP712Domain", names[-1]}
    for name in reversed(names):  # the library guesses the primary type: it is the one that no other names
        if name in needed:
            needed |= {member["type"].split("[")[0] for member in types[name]}
    types = {name: members for name, members in types.items() if name in needed}
    return {"types": types, "primaryType": names[-1], "domain": {"name": "d"}, "message": message}


@settings(max_examples=150)
@given(documents())
def test_typed_data_is_hashed_as_by_the_library(document: Any) -> None:
    theirs = encode_typed_data(full_message=document)
    signed: Any = Account.from_key(KEY.secret)
    ours = wallet_form(KEY.sign(parse_typed_data(json.dumps(document)).digest))
    assert signed.sign_message(theirs).signature == ours


def changed(path: str, value: Any) -> str:
    document = json.loads(json.dumps(MAIL))
    *where, last = path.split("/")
    place = document
    for step in where:
        place = place[int(step) if isinstance(place, list) else step]
    place[last] = value
    return json.dumps(document)


@pytest.mark.parametrize(
    "text",
    [
        "", "[]", "{}", "null", "[" * 5000, "x" * (TYPED_DATA_LIMIT_BYTES + 1),
        changed("message/more", 1),
        changed("message/contents", 5),
        changed("message/contents", "\ud800"),
        changed("message/to", None),
        changed("message/to/wallet", "0x12"),
        changed("domain/chainId", -1),
        changed("domain/chainId", 2**256),
        changed("domain/chainId", True),
        changed("domain/chainId", "1_0"),
        changed("domain/chainId", 1.5),
        changed("domain/more", 1),
        changed("primaryType", "Nothing"),
        changed("types/Person", [{"name": "name", "type": "strin"}]),
        changed("types/Person", [{"name": "name", "type": "uint7"}]),
        changed("types/Person", [{"name": "name", "type": "uint264"}]),
        changed("types/Person", [{"name": "name", "type": "bytes33"}]),
        changed("types/Person", [{"name": "a", "type": "bool"}] * 2),
        changed("types/Person", [{"name": "a b", "type": "bool"}]),
        changed("types/Person", "x"),
        changed("types/string", []),
        changed("types/A", [{"name": "a", "type": "bool" + "[]" * 40}]),
        changed("more", 1),
        changed("primaryType", "EIP712Domain"),  # its message would be shown, and not signed
        changed("domain/chainId", "١٢"),
        json.dumps(MAIL).replace('"contents": "Hello', '"contents": "Hi", "contents": "Hello'),
        json.dumps(MAIL).replace('"chainId": 1', '"chainId": 1, "chainId": 1'),
        json.dumps(MAIL).replace('"primaryType"', '"domain": {}, "primaryType"'),
    ],
)  # fmt: skip
def test_what_is_no_typed_data_is_refused(text: str) -> None:
    with pytest.raises(DecodeError):
        parse_typed_data(text)


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("uint256", "12"),
        ("uint٢٥٦", 1),
        ("uint256", "١٢"),
        ("bytes1٢", "0x" + "ab" * 12),
        ("bool[٢]", [True, True]),
    ],
)
def test_only_the_digits_of_ascii_are_digits(kind: str, value: Any) -> None:
    types = {"EIP712Domain": [], "One": [{"name": "a", "type": kind}]}
    text = json.dumps({"types": types, "primaryType": "One", "domain": {}, "message": {"a": value}})
    if (kind + str(value)).isascii():
        parse_typed_data(text)
    else:
        with pytest.raises(DecodeError):
            parse_typed_data(text)


def test_a_domain_alone_is_signed_without_a_message() -> None:
    document = {**MAIL, "primaryType": "EIP712Domain", "message": {}}
    separator = "f2cee375fa42b42143804025fc449deafd50cc031ca257e0b194a650a912090f"  # of the standard's example
    typed = parse_typed_data(json.dumps(document))
    assert typed.digest == keccak(b"\x19\x01" + bytes.fromhex(separator))


def test_types_that_hold_themselves_are_hashed_up_to_a_depth() -> None:
    def nested(depth: int) -> Any:
        node: Any = {"children": []}
        for _ in range(depth):
            node = {"children": [node]}
        types = {"Node": [{"name": "children", "type": "Node[]"}]}
        return json.dumps({"types": types, "primaryType": "Node", "domain": {}, "message": node})

    assert parse_typed_data(nested(5)).digest != parse_typed_data(nested(6)).digest
    with pytest.raises(DecodeError):
        parse_typed_data(nested(40))
