"""Ranges with proof: whatever is cut out of a trie verifies, and no other bytes do."""

from __future__ import annotations

import random
from functools import cache
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from state.primitives.errors import DecodeError
from state.trie import (
    EMPTY_ROOT,
    RangeInvalid,
    RangeOfMap,
    Trie,
    decode_range,
    encode_range,
    entry_of,
    prove_range,
    verify_range,
)
from state.trie.trie import key_hash

SIZES = (0, 1, 20, 33, 700, 3_000)
FIRST = bytes(32)


@cache
def trie_of(size: int) -> tuple[Trie, tuple[tuple[bytes, bytes], ...]]:
    """A trie of so many keys, and its items in the order of their places."""
    items = {b"key %d" % number: b"value of %d" % number for number in range(size)}
    empty = Trie()
    return empty.after(empty.update(dict(items))), tuple(sorted(items.items(), key=lambda item: key_hash(item[0])))


def cut(size: int, start: bytes, stop: bytes | None) -> RangeOfMap:
    trie, items = trie_of(size)
    inside = tuple(
        item for item in items if key_hash(item[0]) >= start and (stop is None or key_hash(item[0]) < stop)
    )
    return RangeOfMap(inside, prove_range(trie, start, stop))


def check(root: bytes, start: bytes, stop: bytes | None, content: RangeOfMap) -> dict[bytes, bytes]:
    return verify_range(root, start, stop, [entry_of(*item) for item in content.items], content.nodes)


places = st.one_of(
    st.binary(min_size=32, max_size=32),
    st.integers(0, 2**16 - 1).map(lambda prefix: prefix.to_bytes(2, "big") + bytes(30)),
    st.integers(0, 2_999).map(lambda number: key_hash(b"key %d" % number)),
)
ranges = st.one_of(
    st.tuples(places, places).filter(lambda ends: ends[0] != ends[1]).map(lambda ends: (min(ends), max(ends))),
    st.tuples(places, st.none()),
    st.just((FIRST, None)),
)


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(SIZES), ranges)
def test_what_is_cut_out_verifies_and_travels(size: int, ends: tuple[bytes, bytes | None]) -> None:
    trie, _ = trie_of(size)
    content = cut(size, *ends)
    assert decode_range(encode_range(content)) == content
    nodes = check(trie.root, *ends, content)
    assert all(trie.nodes.get(path) == node for path, node in nodes.items())


def test_the_shortest_keys_and_values_travel_and_what_unfolds_in_memory_does_not() -> None:
    keys = [bytes((table, number)) for table in range(256) for number in range(256)]
    content = RangeOfMap(tuple((key, b"") for key in keys), ())
    assert decode_range(encode_range(content)) == content
    many = 1_000_000
    with pytest.raises(DecodeError, match="items"):
        decode_range(b"\x82\x9a" + many.to_bytes(4, "big") + b"\x80" * many + b"\x80")


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(SIZES), st.lists(places, max_size=12, unique=True))
def test_ranges_that_cover_the_map_have_all_of_its_nodes(size: int, ends: list[bytes]) -> None:
    trie, items = trie_of(size)
    bounds = [FIRST, *sorted(set(ends) - {FIRST}), None]
    nodes: dict[bytes, bytes] = {}
    found: list[tuple[bytes, bytes]] = []
    for start, stop in pairwise(bounds):
        assert start is not None
        content = cut(size, start, stop)
        nodes |= check(trie.root, start, stop, content)
        found += content.items
    assert tuple(found) == items
    assert nodes == {path: node for path, node in Trie().update(dict(items)).nodes.items() if node is not None}


@settings(max_examples=250, deadline=None)
@given(st.sampled_from(SIZES[1:]), ranges, st.data())
def test_nothing_can_be_left_out_added_or_altered(
    size: int, ends: tuple[bytes, bytes | None], data: st.DataObject
) -> None:
    trie, items = trie_of(size)
    content = cut(size, *ends)
    held, nodes = list(content.items), list(content.nodes)
    where = data.draw(st.integers(0, 10**6))
    match data.draw(
        st.sampled_from(["drop", "alter", "add", "swap", "twice", "node", "no node", "more", "shift"])
    ):
        case "drop" if held:
            del held[where % len(held)]
        case "alter" if held:
            held[where % len(held)] = (held[where % len(held)][0], b"forged")
        case "add":
            held.append((b"forged %d" % where, b"value"))
            held.sort(key=lambda item: key_hash(item[0]))
        case "swap" if len(held) > 1:
            at = where % (len(held) - 1)
            held[at], held[at + 1] = held[at + 1], held[at]
        case "twice" if held:
            held.insert(where % len(held), held[where % len(held)])
        case "node" if nodes:
            at = where % len(nodes)
            body = bytearray(nodes[at])
            body[where % len(body)] ^= 1 << where % 8
            nodes[at] = bytes(body)
        case "no node" if nodes:
            del nodes[where % len(nodes)]
        case "more":
            nodes.insert(where % (len(nodes) + 1), trie.nodes.get(b"") or b"")
        case "shift":  # the items of the neighbours
            outside = [item for item in items if item not in held]
            if not outside:
                return
            held.append(outside[where % len(outside)])
            held.sort(key=lambda item: key_hash(item[0]))
        case _:
            return
    with pytest.raises(RangeInvalid):
        check(trie.root, *ends, RangeOfMap(tuple(held), tuple(nodes)))


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(SIZES[1:]), ranges, ranges)
def test_a_range_does_not_stand_for_another_one_or_another_root(
    size: int, ends: tuple[bytes, bytes | None], others: tuple[bytes, bytes | None]
) -> None:
    trie, _ = trie_of(size)
    content = cut(size, *ends)
    other = cut(size, *others)
    if other.items != content.items:
        with pytest.raises(RangeInvalid):
            check(trie.root, *others, content)
    if content.items or content.nodes:  # nothing at all is also what an empty map has
        for root in (EMPTY_ROOT, bytes(31) + b"\1"):
            with pytest.raises(RangeInvalid):
                check(root, *ends, content)


@settings(max_examples=150, deadline=None)
@given(st.sampled_from([20, 700]), ranges, st.data())
def test_no_mutation_of_the_bytes_is_accepted(
    size: int, ends: tuple[bytes, bytes | None], data: st.DataObject
) -> None:
    trie, _ = trie_of(size)
    encoded = bytearray(encode_range(cut(size, *ends)))
    at = data.draw(st.integers(0, len(encoded) - 1))
    encoded[at] ^= data.draw(st.integers(1, 255))
    try:
        content = decode_range(bytes(encoded))
    except DecodeError:
        return
    with pytest.raises(RangeInvalid):
        check(trie.root, *ends, content)


@pytest.mark.parametrize("ends", [(b"", None), (FIRST, FIRST), (b"\1" * 32, bytes(32)), (FIRST, b"\1")])
def test_what_is_no_range_is_refused(ends: tuple[bytes, bytes | None]) -> None:
    with pytest.raises(RangeInvalid):
        verify_range(EMPTY_ROOT, *ends, [], [])


def test_the_proof_of_a_range_is_small() -> None:
    trie, _ = trie_of(3_000)
    chance = random.Random(1)
    for _ in range(50):
        start, stop = sorted(chance.randbytes(32) for _ in range(2))
        assert sum(map(len, prove_range(trie, start, stop))) < 12 * 1024
