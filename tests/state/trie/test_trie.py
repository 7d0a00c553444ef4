from __future__ import annotations

import random
from collections.abc import Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from state.trie import EMPTY_ROOT, NO_NODES, NodeLayer, Trie, TrieDamaged, entry_of, root_of_entries
from state.trie.trie import BUCKET_ENTRIES_MAX, count_of, is_inner


class Nodes:
    """A store of nodes, as a dictionary."""

    def __init__(self) -> None:
        self.held: dict[bytes, bytes] = {}

    def get(self, path: bytes) -> bytes | None:
        return self.held.get(path)

    def write(self, nodes: Mapping[bytes, bytes | None]) -> None:
        for path, node in nodes.items():
            if node is None:
                self.held.pop(path, None)
            else:
                self.held[path] = node


def number_key(number: int) -> bytes:
    return number.to_bytes(3, "big")


def root_of(content: Mapping[bytes, bytes]) -> bytes:
    return root_of_entries(entry_of(key, value) for key, value in content.items())


# Few distinct keys make many overwrites and deletes; up to some hundred make inner nodes come and go.
blocks = st.lists(
    st.one_of(
        st.dictionaries(
            st.integers(0, 400).map(number_key), st.one_of(st.none(), st.binary(max_size=3)), max_size=150
        ),
        # Whole ranges set or removed at once: what makes subtrees split and merge.
        st.tuples(st.integers(0, 300), st.integers(1, 300), st.sampled_from([b"x", b"y", None])).map(
            lambda span: {number_key(number): span[2] for number in range(span[0], span[0] + span[1])}
        ),
    ),
    max_size=6,
)


@settings(max_examples=150, deadline=None)
@given(blocks)
def test_root_and_nodes_depend_on_the_content_alone(history: list[dict[bytes, bytes | None]]) -> None:
    store, content, trie = Nodes(), dict[bytes, bytes](), Trie()
    for changes in history:
        update = trie.update(changes)
        store.write(update.nodes)
        trie = Trie(update.root, store)
        for key, value in changes.items():
            if value is None:
                content.pop(key, None)
            else:
                content[key] = value
        fresh = Trie().update(content)
        assert trie.root == fresh.root == root_of(content)
        assert store.held == {path: node for path, node in fresh.nodes.items() if node is not None}
        assert trie.count == len(content)


@settings(max_examples=60, deadline=None)
@given(blocks)
def test_unfinalised_versions_stack_and_rebase(history: list[dict[bytes, bytes | None]]) -> None:
    store, layered = Nodes(), Trie(EMPTY_ROOT, NO_NODES)
    updates, layers = [], []
    for changes in history:
        updates.append(layered.update(changes))
        layered = layered.after(updates[-1])
        assert isinstance(layered.nodes, NodeLayer)
        layers.append(layered.nodes)
    for update, child in zip(updates, [*layers[1:], None], strict=bool(updates)):
        before = layered.update({b"probe": b"1"})
        store.write(update.nodes)
        if child is not None:
            child.rebase(store)
        assert layered.update({b"probe": b"1"}) == before
    if updates:
        assert Trie(layered.root, store).update({b"probe": b"1"}) == layered.update({b"probe": b"1"})


def test_no_change_changes_nothing() -> None:
    update = Trie().update({number_key(n): b"v" for n in range(500)})
    store = Nodes()
    store.write(update.nodes)
    trie = Trie(update.root, store)
    assert trie.update({}) == (update.root, {})
    assert trie.update({b"absent": None}).root == update.root
    assert trie.update({number_key(7): b"v"}).root == update.root


def test_shape_is_a_bucket_up_to_the_limit_and_inner_above() -> None:
    few = Trie().update({number_key(n): b"" for n in range(BUCKET_ENTRIES_MAX)})
    assert list(few.nodes) == [b""]
    many = Trie().update({number_key(n): b"" for n in range(BUCKET_ENTRIES_MAX + 1)})
    top = many.nodes[b""]
    assert top is not None and is_inner(top) and count_of(top) == BUCKET_ENTRIES_MAX + 1


def test_large_random_history_in_one_pass_a_block() -> None:
    chance = random.Random(7)
    store, content, trie = Nodes(), dict[bytes, bytes](), Trie()
    for _ in range(12):
        changes: dict[bytes, bytes | None] = {
            chance.randrange(20_000).to_bytes(4, "big"): chance.randbytes(4) if chance.random() < 0.7 else None
            for _ in range(3_000)
        }
        update = trie.update(changes)
        store.write(update.nodes)
        trie = Trie(update.root, store)
        content.update({key: value for key, value in changes.items() if value is not None})
        for key, value in changes.items():
            if value is None:
                content.pop(key, None)
        assert trie.root == root_of(content)


def test_different_content_has_different_roots() -> None:
    base = {number_key(n): b"v" for n in range(100)}
    roots = {root_of(base), root_of({**base, b"more": b""}), root_of({**base, number_key(3): b"w"}), EMPTY_ROOT}
    roots |= {root_of({key: value for key, value in base.items() if key != number_key(9)})}
    assert len(roots) == 5


def test_absent_node_is_an_error_of_the_store() -> None:
    update = Trie().update({number_key(n): b"v" for n in range(2_000)})
    nodes = Nodes()
    nodes.write(update.nodes)
    lost = next(path for path in nodes.held if len(path) == 2)
    del nodes.held[lost]
    trie = Trie(update.root, nodes)
    with pytest.raises(TrieDamaged):
        trie.update({number_key(n): b"w" for n in range(2_000)})


def test_known_root() -> None:
    # A fixed point of the chain's format: this value may not change.
    content = {b"key-%d" % n: b"value-%d" % n for n in range(100)}
    assert root_of(content).hex() == "6aab247e08916410965742b99274f8c8c81d73724339aacf6fb9f8f3e883b0f7"
