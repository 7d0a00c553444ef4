from __future__ import annotations

from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from state.primitives.codec import decode, encode
from state.trie import EMPTY_ROOT, PROOF_LIMIT_BYTES, Trie, TrieDamaged, prove, verify_proof


def number_key(number: int) -> bytes:
    return number.to_bytes(3, "big")


@cache
def trie_of(size: int) -> Trie:
    empty = Trie()
    return empty.after(empty.update({number_key(n): b"value of %d" % n for n in range(size)}))


@settings(deadline=None)
@given(st.sampled_from([0, 1, 20, 40, 3_000]), st.integers(0, 6_000))
def test_proof_shows_the_value_or_the_absence_and_nothing_else(size: int, number: int) -> None:
    trie, key = trie_of(size), number_key(number)
    proof = prove(trie, key)
    held = b"value of %d" % number if number < size else None
    assert verify_proof(trie.root, key, held, proof)
    assert not verify_proof(trie.root, key, b"another", proof)
    assert not verify_proof(trie.root, key, None if held is not None else b"", proof)
    assert not verify_proof(bytes(31) + b"\x01", key, held, proof)
    if size:
        assert not verify_proof(EMPTY_ROOT, key, held, proof)


@settings(max_examples=300, deadline=None)
@given(st.sampled_from([1, 20, 3_000]), st.integers(0, 6_000), st.data())
def test_no_mutation_of_a_proof_is_accepted(size: int, number: int, data: st.DataObject) -> None:
    trie, key = trie_of(size), number_key(number)
    proof = prove(trie, key)
    held = b"value of %d" % number if number < size else None
    at = data.draw(st.integers(0, len(proof) - 1))
    how = data.draw(st.sampled_from(["flip", "cut", "insert", "append"]))
    match how:
        case "flip":
            mutated = proof[:at] + bytes((proof[at] ^ data.draw(st.integers(1, 255)),)) + proof[at + 1 :]
        case "cut":
            mutated = proof[:at]
        case "insert":
            mutated = proof[:at] + data.draw(st.binary(min_size=1, max_size=3)) + proof[at:]
        case _:
            mutated = proof + data.draw(st.binary(min_size=1, max_size=3))
    if mutated != proof:
        assert not verify_proof(trie.root, key, held, mutated)
        assert not verify_proof(trie.root, key, None, mutated) or held is None
        assert not verify_proof(trie.root, key, b"forged", mutated)


@given(st.binary(max_size=300))
def test_arbitrary_bytes_are_no_proof_and_no_error(data: bytes) -> None:
    assert not verify_proof(b"\x01" * 32, b"key", None, data)
    assert verify_proof(EMPTY_ROOT, b"key", None, data) == (data == encode([]))


def test_a_proof_must_end_where_the_path_ends() -> None:
    trie = trie_of(3_000)
    nodes = decode(prove(trie, number_key(1)), limit_bytes=PROOF_LIMIT_BYTES)
    assert len(nodes) > 1
    assert not verify_proof(trie.root, number_key(1), None, encode(nodes[:-1]))
    assert not verify_proof(trie.root, number_key(1), b"value of 1", encode([*nodes, nodes[-1]]))
    assert not verify_proof(trie.root, number_key(1), None, encode([]))


def test_damaged_nodes_are_not_proved() -> None:
    trie = trie_of(3_000)

    class Damaged:
        def get(self, path: bytes) -> bytes | None:
            node = trie.nodes.get(path)
            return node[:-1] + bytes((node[-1] ^ 1,)) if node is not None and len(path) == 1 else node

    with pytest.raises(TrieDamaged):
        prove(Trie(trie.root, Damaged()), number_key(5))
