from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import cbor2
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from state.primitives.codec import DEPTH_MAX, Value, decode, encode
from state.primitives.errors import DecodeError

VECTORS = json.loads((Path(__file__).parents[2] / "vectors/codec.json").read_text())
SCALARS = st.none() | st.integers(-(2**255), 2**255) | st.binary(max_size=40) | st.text(max_size=20)
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=6), max_leaves=30)


@pytest.mark.slow
@given(VALUES)
def test_what_is_encoded_is_decoded(value: Value) -> None:
    assert decode(encode(value), limit_bytes=1 << 20) == value


@pytest.mark.parametrize("vector", VECTORS["accepted"])
def test_the_spelling_of_a_value_never_changes(vector: dict[str, Any]) -> None:
    data = bytes.fromhex(vector["hex"])
    assert encode(decode(data, limit_bytes=1000)) == data
    assert (
        json.loads(json.dumps(decode(data, limit_bytes=1000), default=lambda b: "0x" + b.hex())) == vector["value"]
    )


@pytest.mark.parametrize("vector", VECTORS["refused"], ids=lambda vector: str(vector["why"]))
def test_another_spelling_or_type_is_refused(vector: dict[str, Any]) -> None:
    with pytest.raises(DecodeError):
        decode(bytes.fromhex(vector["hex"]), limit_bytes=1 << 16)


def test_depth_and_size_are_bounded() -> None:
    decode(b"\x81" * DEPTH_MAX + b"\x00", limit_bytes=100)
    with pytest.raises(DecodeError):
        decode(b"\x81" * (DEPTH_MAX + 1) + b"\x00", limit_bytes=100)
    with pytest.raises(DecodeError):
        decode(encode(b"x" * 100), limit_bytes=100)


def test_items_are_bounded_where_they_would_cost_more_than_their_bytes() -> None:
    many = 200_000
    array = b"\x9a" + many.to_bytes(4, "big")
    for item in (b"\x80", b"\x00", b"\x40", b"\x60", b"\xf6", b"\x81\x80"):
        data = array + item * many
        with pytest.raises(DecodeError, match="items"):
            decode(data, limit_bytes=1 << 24)
        with pytest.raises(DecodeError, match="items"):
            decode(encode([b"x" * 50_000]) + data, limit_bytes=1 << 24)
    assert len(decode(array + b"\x00" * many, limit_bytes=1 << 24, limit_items=many + 1)) == many
    with pytest.raises(DecodeError, match="items"):
        decode(array + b"\x00" * many, limit_bytes=1 << 24, limit_items=many)


@given(st.lists(VALUES, max_size=20), st.integers(0, 64))
def test_the_items_of_long_values_are_counted_at_all_depths(values: list[Value], limit: int) -> None:
    def count(value: Value) -> int:
        is_bignum = isinstance(value, int) and not -(2**64) <= value < 2**64
        return 1 + sum(map(count, value)) if isinstance(value, list) else 1 + is_bignum

    value: Value = [b"\xff" * 5_000, values]
    if count(value) <= limit:
        assert decode(encode(value), limit_bytes=1 << 20, limit_items=limit) == value
    else:
        with pytest.raises(DecodeError):
            decode(encode(value), limit_bytes=1 << 20, limit_items=limit)


@settings(max_examples=2000)
@given(st.binary(max_size=60))
def test_any_bytes_give_a_value_with_that_very_spelling_or_the_typed_error(data: bytes) -> None:
    try:
        value = decode(data, limit_bytes=64)
    except DecodeError:
        return
    assert encode(value) == data


@pytest.mark.slow
@settings(max_examples=500)
@given(VALUES, st.data())
def test_a_mutated_encoding_never_decodes_to_the_same_value(value: Value, data: st.DataObject) -> None:
    encoded = encode(value)
    at = data.draw(st.integers(0, len(encoded) - 1))
    mutated = encoded[:at] + bytes([encoded[at] ^ data.draw(st.integers(1, 255))]) + encoded[at + 1 :]
    try:
        assert decode(mutated, limit_bytes=1 << 20) != value
    except DecodeError:
        pass


@settings(max_examples=300)
@given(st.integers(0, 70000), st.recursive(st.binary(max_size=5), lambda v: st.builds(lambda x: [x], v)))
def test_tagged_values_are_refused_whatever_the_tag(tag: int, value: Any) -> None:
    if tag in (2, 3):
        return
    with pytest.raises(DecodeError):
        decode(cbor2.dumps(cbor2.CBORTag(tag, value)), limit_bytes=1000)


HEADS = st.sampled_from(
    [bytes([major << 5 | low]) for major in range(8) for low in (0, 1, 2, 8, 23, 24, 25, 26, 27, 31)]
)
PADDED = st.builds(lambda zeros, last: bytes(zeros) + bytes([last]), st.integers(0, 8), st.integers(0, 255))


@pytest.mark.slow
@settings(max_examples=500)
@given(st.lists(HEADS | PADDED | VALUES.map(encode), max_size=6).map(b"".join))
def test_accepted_is_what_the_library_reads_and_writes_in_the_same_bytes(data: bytes) -> None:
    """The length tells: what is written otherwise is longer."""

    def is_of_the_subset(value: object) -> bool:
        if type(value) is list:
            return all(map(is_of_the_subset, value))
        if type(value) is int:
            return -(2**256) < value < 2**256
        return value is None or type(value) in (bytes, str)

    try:
        read = cbor2.loads(data, allow_indefinite=False)
        expected = [read] if is_of_the_subset(read) and cbor2.dumps(read) == data else []
    except Exception:
        expected = []
    try:
        found = [decode(data, limit_bytes=1 << 16)]
    except DecodeError:
        found = []
    assert found == expected


@pytest.mark.parametrize("tag", [2, 3])
@pytest.mark.parametrize("size", range(12))
def test_a_bignum_is_no_second_spelling_of_a_shorter_number(tag: int, size: int) -> None:
    """Of 3 and of 7 bytes it is as long as the number's head, of 5 and 6 shorter: room for padding elsewhere."""
    for first in (0, 1, 255):
        number = bytes([first, *bytes(11)])[:size]
        data = bytes([0xC0 | tag, 0x40 | size]) + number
        for spelled in (data, b"\x82" + data + b"\x18\x01", b"\x83" + data + b"\x18\x01\x18\x01"):
            try:
                value = decode(spelled, limit_bytes=100)
            except DecodeError:
                assert size <= 8 or not first or spelled != data
            else:
                assert encode(value) == spelled == data and size > 8 and first


NUMBERS = st.builds(
    lambda bits, offset, sign: sign * ((1 << bits) + offset),
    st.sampled_from([*range(0, 72, 8), 128, 200, 255]),
    st.integers(-2, 2),
    st.sampled_from([1, -1]),
)
SPELLED = st.recursive(
    st.none() | NUMBERS | st.binary(max_size=40) | st.text(max_size=30), lambda inner: st.lists(inner, max_size=4)
)


def spell(value: Value, draw: Callable[[int], int]) -> bytes:
    """Return one of the spellings of ``value``; each ``draw`` of 0 is for the canonical one."""

    def head(major: int, number: int) -> bytes:
        widths = [width for width in (0, 1, 2, 4, 8) if number < (1 << 8 * width if width else 24)]
        width = widths[draw(len(widths))]
        low = number if not width else 23 + width.bit_length()
        return bytes([major << 5 | low]) + (number.to_bytes(width, "big") if width else b"")

    if value is None:
        return b"\xf6"
    if isinstance(value, int):
        number = ~value if value < 0 else value
        if number < 1 << 64 and not draw(2):
            return head(int(value < 0), number)
        data = bytes(draw(4)) + number.to_bytes((number.bit_length() + 7) // 8, "big")
        return head(6, 2 + (value < 0)) + head(2, len(data)) + data
    if isinstance(value, bytes):
        return head(2, len(value)) + value
    if isinstance(value, str):
        return head(3, len(value.encode())) + value.encode()
    return head(4, len(value)) + b"".join(spell(item, draw) for item in value)


@pytest.mark.slow
@settings(max_examples=500)
@given(SPELLED, st.integers(1, 12), st.randoms(use_true_random=False))
def test_of_all_spellings_one_is_accepted(value: Value, rare: int, chance: Random) -> None:
    data = spell(value, lambda count: 0 if chance.randrange(rare) else chance.randrange(count))
    if data == encode(value):
        assert decode(data, limit_bytes=1 << 16) == value
    else:
        with pytest.raises(DecodeError):
            decode(data, limit_bytes=1 << 16)
