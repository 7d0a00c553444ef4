"""Transactions, headers, blocks, receipts, events and the genesis: round trips, vectors, hostile bytes."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from state.primitives.blocks import (
    Block,
    Header,
    decode_block,
    decode_header,
    encode_block,
    encode_header,
    header_hash,
)
from state.primitives.errors import ConfigError, DecodeError, SignatureInvalid
from state.primitives.genesis import (
    ChainParameters,
    Genesis,
    GenesisValidator,
    genesis_from_json,
    genesis_hash,
    genesis_to_json,
    read_parameters,
)
from state.primitives.keys import SecretKey
from state.primitives.receipts import Event, EventType, Receipt, decode_receipt, encode_receipt
from state.primitives.transactions import NONCE_MAX, decode_transaction, recover_sender, sign_transaction
from state.primitives.vrf import vrf_key_of

KEY = SecretKey(b"k" * 32)
VECTORS = json.loads((Path(__file__).parents[2] / "vectors/objects.json").read_text())
HASHES = st.binary(min_size=32, max_size=32)
HEADER = Header(
    1, b"g" * 32, 7, 0, 9, 2, b"p" * 32, 1_700_000_000_000, b"t" * 32, b"r" * 32, b"s" * 32, bytes(32), b"",
    b"c" * 32, bytes(32), b"\x0f", 10**9, 120, 1, 1,
)  # fmt: skip
RAW = sign_transaction(
    KEY, chain_id=7, nonce=3, kind=1, payload=[b"a" * 20, 10**22], gas_limit=21_000, max_fee_per_gas=2 * 10**9
)
EVENT = EventType(b"\x01" * 20, "Moved(bytes32 indexed task, address indexed to, uint256 value)")
RECEIPT = Receipt(1, 21_000, 10**9, None, (EVENT(b"t" * 32, b"w" * 20, 5),))
GENESIS = Genesis(
    7, "test", 1_700_000_000_000, True, ((b"a" * 20, 10**27),),
    (GenesisValidator(b"v" * 20, KEY.vote_key, b"d" * 32, 10**21),),
    (("chain.epoch_blocks", 5), ("tasks.other", 1)),
)  # fmt: skip


def current() -> dict[str, str]:
    return {
        "transaction": RAW.hex(),
        "transaction_hash": decode_transaction(RAW).hash.hex(),
        "header": encode_header(HEADER).hex(),
        "header_hash": header_hash(HEADER).hex(),
        "block": encode_block(Block(HEADER, (RAW,), (b"e",))).hex(),
        "receipt": encode_receipt(RECEIPT).hex(),
        "genesis_hash": genesis_hash(GENESIS).hex(),
    }


def test_encodings_stand_as_in_the_vectors() -> None:
    assert current() == VECTORS


def test_a_signed_transaction_names_its_sender() -> None:
    transaction = decode_transaction(RAW)
    assert transaction.recover_sender() == KEY.address
    assert (transaction.raw, transaction.nonce, transaction.kind) == (RAW, 3, 1)
    assert transaction.payload == [b"a" * 20, 10**22]


@settings(max_examples=300)
@given(st.integers(0, len(RAW) * 8 - 1))
def test_no_flipped_bit_keeps_the_sender(bit: int) -> None:
    mutated = bytearray(RAW)
    mutated[bit // 8] ^= 1 << bit % 8
    try:
        assert decode_transaction(bytes(mutated)).recover_sender() != KEY.address
    except (DecodeError, SignatureInvalid):
        pass


@given(
    st.integers(1, 2**31 - 1), st.integers(0, NONCE_MAX), st.integers(0, 2**16 - 1), st.integers(0, 2**63 - 1),
    st.integers(0, 2**128 - 1), st.integers(0, 2**128 - 1),
)  # fmt: skip
@settings(max_examples=100)
def test_every_field_comes_back(chain_id: int, nonce: int, kind: int, gas_limit: int, fee: int, tip: int) -> None:
    fee, tip = max(fee, tip), min(fee, tip)
    raw = sign_transaction(
        KEY, chain_id=chain_id, nonce=nonce, kind=kind, payload=[None, [1, b""]], gas_limit=gas_limit,
        max_fee_per_gas=fee, max_priority_fee_per_gas=tip,
    )  # fmt: skip
    t = decode_transaction(raw)
    assert (t.chain_id, t.nonce, t.kind, t.gas_limit) == (chain_id, nonce, kind, gas_limit)
    assert (t.max_fee_per_gas, t.max_priority_fee_per_gas, t.payload) == (fee, tip, [None, [1, b""]])
    assert t.recover_sender() == KEY.address


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_the_signer_alone_is_whom_decoding_finds_or_fails_with_its_error(data: st.DataObject) -> None:
    mutated = bytearray(RAW)
    for _ in range(data.draw(st.integers(0, 2))):
        at = data.draw(st.integers(0, len(mutated)))
        mutated[at : at + data.draw(st.integers(0, 4))] = data.draw(st.binary(max_size=4))
    raw = bytes(mutated)
    try:
        expected = decode_transaction(raw).recover_sender()
    except DecodeError as error:
        try:
            recover_sender(raw)  # bytes that are no transaction may have a signer
        except DecodeError as same:
            assert str(same) == str(error)
    except SignatureInvalid:
        with pytest.raises(SignatureInvalid):
            recover_sender(raw)
    else:
        assert recover_sender(raw) == expected


def test_unknown_forms_and_sizes_are_refused() -> None:
    for raw in (b"", b"\x02" + RAW[1:], b"\xc0", RAW + b"\0", RAW[:-1], b"\x44" * (64 * 1024 + 1)):
        with pytest.raises(DecodeError):
            decode_transaction(raw)


DECODERS: list[tuple[bytes, Callable[[bytes], object], Callable[[Any], bytes]]] = [
    (RAW, decode_transaction, lambda t: t.raw),
    (encode_header(HEADER), decode_header, encode_header),
    (encode_block(Block(HEADER, (RAW, RAW), (b"e",))), decode_block, encode_block),
    (encode_receipt(RECEIPT), decode_receipt, encode_receipt),
]


@pytest.mark.slow
@pytest.mark.parametrize(("sample", "decoder", "encoder"), DECODERS)
def test_decoders_give_the_value_of_those_very_bytes_or_the_typed_error(
    sample: bytes, decoder: Callable[[bytes], object], encoder: Callable[[Any], bytes]
) -> None:
    assert encoder(decoder(sample)) == sample

    @settings(max_examples=1500, deadline=None)
    @given(st.data())
    def mutate(data: st.DataObject) -> None:
        mutated = bytearray(sample)
        for _ in range(data.draw(st.integers(1, 3))):
            at = data.draw(st.integers(0, len(mutated)))
            mutated[at : at + data.draw(st.integers(0, 4))] = data.draw(st.binary(max_size=4))
        try:
            value = decoder(bytes(mutated))
        except DecodeError:
            return
        assert encoder(value) == bytes(mutated)

    mutate()


def test_events_carry_what_their_declaration_says() -> None:
    event = EVENT(b"t" * 32, b"w" * 20, 5)
    assert EVENT.signature == "Moved(bytes32,address,uint256)"
    assert event.topics[1:] == (b"t" * 32, bytes(12) + b"w" * 20)
    assert EVENT.decode(event) == {"task": b"t" * 32, "to": b"w" * 20, "value": 5}
    with pytest.raises(DecodeError):
        EVENT.decode(event._replace(data=b""))
    with pytest.raises(DecodeError):
        EVENT.decode(Event(b"\x02" * 20, event.topics, event.data))
    # Topic 0 of ERC-20's Transfer is public knowledge.
    transfer = EventType(b"\x01" * 20, "Transfer(address indexed from, address indexed to, uint256 value)")
    assert transfer.topic.hex() == "ddf252ad1be2c89b69c2b068fc378daa952ba7f163c4a11628f55a4df523b3ef"


VRF_KEY = vrf_key_of(KEY).public
FOUNDED = replace(GENESIS, validators=(GENESIS.validators[0]._replace(vrf_key=VRF_KEY),))
NO_X_COORDINATE = b"\xff" * 32
SMALL_ORDER = (1).to_bytes(32, "little")


def test_the_genesis_file_is_the_genesis() -> None:
    assert genesis_from_json(genesis_to_json(FOUNDED)) == FOUNDED
    assert read_parameters(ChainParameters, "chain", GENESIS).epoch_blocks == 5
    for other in (
        replace(GENESIS, chain_id=8), replace(GENESIS, testnet=False), replace(GENESIS, parameters=()),
        replace(GENESIS, allocations=()),
    ):  # fmt: skip
        assert genesis_hash(other) != genesis_hash(GENESIS)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"format": "dekube-genesis/1"', '"format": "x"'), ('"7"', "7"), ('"chain_id": 7', '"chain_id": "7"'),
        ('"stake": "1', '"stake": "-1'), ('"testnet": true', '"testnet": 1'), ('"name"', '"names"'),
        ("0x76", "0y76"),
        (KEY.vote_key.hex(), "00"),
        (KEY.vote_key.hex(), NO_X_COORDINATE.hex()), (VRF_KEY.hex(), (b"d" * 32).hex()),
        (VRF_KEY.hex(), SMALL_ORDER.hex()), (VRF_KEY.hex(), bytes(32).hex()),
    ],
)  # fmt: skip
def test_a_damaged_genesis_file_is_named(old: str, new: str) -> None:
    text = genesis_to_json(replace(FOUNDED, parameters=(("chain.epoch_blocks", 7),)))
    assert old in text
    with pytest.raises(ConfigError, match="genesis"):
        genesis_from_json(text.replace(old, new))


def test_an_unknown_parameter_is_refused() -> None:
    with pytest.raises(ConfigError, match="unknown parameter"):
        read_parameters(ChainParameters, "chain", replace(GENESIS, parameters=(("chain.nonsense", 1),)))
