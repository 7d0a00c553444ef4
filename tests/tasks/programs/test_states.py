"""Commitments to states of programs."""

from __future__ import annotations

from time import process_time

from state.primitives.codec import encode
from state.primitives.merkle import merkle_proof, verify_merkle_proof
from tasks.programs.states import state_leaves, state_root
from tasks.programs.tensors import ElementType, TensorType, tensor_root

WEIGHT = TensorType(ElementType.BINARY32, 3, 40)
CONTENT = bytes(range(240)) * 2


def test_a_tensor_stands_one_leaf_after_its_place_among_the_names() -> None:
    tensors = {"b": (WEIGHT, tensor_root(WEIGHT, CONTENT)), "a": (WEIGHT, bytes(32))}
    leaves, root = state_leaves(7, tensors), state_root(7, tensors)
    assert leaves[0] == encode(["step", 7])
    assert leaves[2] == encode(["b", 2, 3, 40, tensors["b"][1]])
    for position, leaf in enumerate(leaves):
        assert verify_merkle_proof(root, leaf, merkle_proof(leaves, position))


def test_step_name_type_shape_and_content_change_the_root() -> None:
    root = tensor_root(WEIGHT, CONTENT)
    other = tensor_root(WEIGHT, CONTENT[:-1] + b"\x01")
    roots = {
        state_root(step, {name: (kind, found)})
        for step, name, kind, found in (
            (1, "a", WEIGHT, root), (2, "a", WEIGHT, root), (1, "b", WEIGHT, root), (1, "a", WEIGHT, other),
            (1, "a", WEIGHT._replace(element=ElementType.BINARY64), root),
            (1, "a", WEIGHT._replace(rows=40, columns=3), root),
        )
    }  # fmt: skip
    assert len(roots) == 6


def test_a_state_is_hashed_fast() -> None:
    """60 MB a second and more, about 100 where nothing else runs; 10 is what a busy machine must reach."""
    kind = TensorType(ElementType.BINARY32, 512, 1_024)
    content = bytes(kind.size_bytes)
    started = process_time()
    tensor_root(kind, content)
    assert kind.size_bytes / (process_time() - started) > 10e6
