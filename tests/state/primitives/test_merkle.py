from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from state.primitives.merkle import (
    EMPTY_ROOT,
    PART_LEAVES,
    MerkleProof,
    merkle_proof,
    merkle_proofs,
    merkle_root,
    verify_merkle_proof,
)

LEAVES = st.lists(st.binary(max_size=8), min_size=1, max_size=40)


@given(LEAVES, st.data())
def test_each_leaf_is_proved_and_no_other(leaves: list[bytes], data: st.DataObject) -> None:
    root = merkle_root(leaves)
    at = data.draw(st.integers(0, len(leaves) - 1))
    proof = merkle_proof(leaves, at)
    assert verify_merkle_proof(root, leaves[at], proof)
    assert not verify_merkle_proof(root, leaves[at] + b"!", proof)
    other = data.draw(st.integers(0, len(leaves) - 1))
    assert verify_merkle_proof(root, leaves[other], proof) == (leaves[other] == leaves[at])


@given(LEAVES, st.data())
def test_a_changed_proof_proves_nothing(leaves: list[bytes], data: st.DataObject) -> None:
    root, at = merkle_root(leaves), data.draw(st.integers(0, len(leaves) - 1))
    proof = merkle_proof(leaves, at)
    changed = data.draw(
        st.sampled_from(
            [
                proof._replace(leaves=proof.leaves + 1),
                proof._replace(siblings=(*proof.siblings, bytes(32))),
                proof._replace(position=-1),
                MerkleProof(proof.leaves, proof.leaves, proof.siblings),
                proof._replace(siblings=tuple(bytes(31) for _ in proof.siblings) or (b"",)),
            ]
        )
    )
    assert not verify_merkle_proof(root, leaves[at], changed)


@given(LEAVES, LEAVES)
def test_different_lists_have_different_roots(a: list[bytes], b: list[bytes]) -> None:
    assert (merkle_root(a) == merkle_root(b)) == (a == b)
    assert merkle_root([]) == EMPTY_ROOT


@given(st.lists(st.binary(max_size=8), max_size=40))
def test_all_proofs_at_once_are_those_one_by_one(leaves: list[bytes]) -> None:
    root, proofs = merkle_proofs(leaves)
    assert root == merkle_root(leaves)
    assert proofs == tuple(merkle_proof(leaves, index) for index in range(len(leaves)))


@pytest.mark.parametrize("count", [PART_LEAVES, PART_LEAVES + 1, 2 * PART_LEAVES - 1, 3 * PART_LEAVES + 1])
def test_a_root_that_is_made_in_parts_is_that_of_the_whole_tree(count: int) -> None:
    leaves = [number.to_bytes(4, "big") for number in range(count)]
    root = merkle_root(iter(leaves))
    for at in (0, PART_LEAVES - 1, count - 1):
        assert verify_merkle_proof(root, leaves[at], merkle_proof(leaves, at))
