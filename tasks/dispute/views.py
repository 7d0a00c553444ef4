"""What a challenger knows of the accused's commitments: from a trace that it was served, or from the chain.

Where the two sides agree, one's own tensors stand for the other's. Where they differ, the nodes that the accused
showed on chain complete the paths.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from state.primitives.hashing import HASH_BYTES
from state.primitives.merkle import MerkleTree, ancestor_of, leaf_hash, level_width
from tasks.dispute.commitments import Question, StepTrace
from tasks.dispute.game import Game, Stage, begin, play, turn_of
from tasks.dispute.moves import LeafOpening, Move, Nodes, TensorOpening, Tree
from tasks.programs.program import PlaceKind, Program
from tasks.programs.tensors import LEAF_BYTES, TensorType, leaf_size, leaves_of

__all__ = ["ChainView", "ServedView", "View", "leaf_content", "open_leaves", "shown_nodes"]

Shown = Mapping[tuple[int, int], Mapping[tuple[int, int], bytes]]
"""By (tree, tensor): the hashes of nodes that were shown, by (level, position)."""
Contents = Mapping[tuple[int, int], Mapping[int, bytes]]
"""By (tree, tensor): the contents of leaves that were shown."""


class View(Protocol):
    """What the accused committed to, as far as it is known."""

    def root(self, tensor: int) -> bytes:
        """Return the root of a tensor."""

    def path(self, tensor: int) -> tuple[bytes, ...]:
        """Return the siblings that tie the root of a tensor to where it stands."""

    def leaf(self, tensor: int, leaf: int) -> bytes:
        """Return the content of a leaf."""

    def siblings(self, tensor: int, leaf: int) -> tuple[bytes, ...]:
        """Return the siblings of a leaf in its tensor."""


def leaf_content(kind: TensorType, content: bytes, leaf: int) -> bytes:
    """Return one leaf of a tensor's values."""
    row, at = divmod(leaf, kind.leaves_per_row)
    start = row * kind.row_bytes + at * LEAF_BYTES
    return content[start : start + leaf_size(kind, leaf)]


def open_leaves(view: View, leaves: Mapping[int, Iterable[int]]) -> tuple[TensorOpening, ...]:
    """Return openings of leaves, which are given by tensor."""
    return tuple(
        TensorOpening(
            tensor,
            view.root(tensor),
            view.path(tensor),
            tuple(
                LeafOpening(leaf, view.leaf(tensor, leaf), view.siblings(tensor, leaf))
                for leaf in sorted(leaves[tensor])
            ),
        )
        for tensor in sorted(leaves)
    )


class ServedView:
    """By a trace: the accused's own, or what it served of it."""

    def __init__(self, trace: StepTrace) -> None:
        self._trace = trace

    def root(self, tensor: int) -> bytes:
        """See View."""
        return self._trace.root(tensor)

    def path(self, tensor: int) -> tuple[bytes, ...]:
        """See View."""
        return self._trace.path(tensor)

    def leaf(self, tensor: int, leaf: int) -> bytes:
        """See View."""
        return leaf_content(self._trace.program.types[tensor], self._trace.contents[tensor], leaf)

    def siblings(self, tensor: int, leaf: int) -> tuple[bytes, ...]:
        """See View."""
        return self._trace.tree(tensor).siblings(leaf)


def shown_nodes(
    question: Question, moves: Sequence[Move]
) -> tuple[dict[tuple[int, int], dict[tuple[int, int], bytes]], dict[tuple[int, int], dict[int, bytes]]]:
    """Return the hashes and the contents that the accused showed in a game, by replaying its moves."""
    game = begin(question)
    nodes: dict[tuple[int, int], dict[tuple[int, int], bytes]] = {}
    contents: dict[tuple[int, int], dict[int, bytes]] = {}
    for move in moves:
        at = game.descent
        if game.stage == Stage.SHOW and at is not None and isinstance(move, Nodes):
            first = at.position << (at.level - at.lower)
            key = (at.tree, at.tensor)
            for place, node in enumerate(move.nodes, first):
                nodes.setdefault(key, {})[at.lower, place] = node if at.lower else leaf_hash(node)
                if not at.lower:
                    contents.setdefault(key, {})[place] = node
        side = turn_of(game)
        assert side is not None
        game = play(question, game, side, move)
    return nodes, contents


class _Tree:
    """A tree of the accused's, of which all leaves before ``first`` are one's own, and some nodes were shown."""

    def __init__(self, own: MerkleTree, first: int, shown: Mapping[tuple[int, int], bytes]) -> None:
        self._own, self._first, self._shown = own, first, shown

    def siblings(self, leaf: int) -> tuple[bytes, ...]:
        """Return the siblings of a leaf. Raises KeyError if they cannot be known."""
        return tuple(
            self._node(level, leaf >> level ^ 1)
            for level in range(len(self._own.levels) - 1)
            if leaf >> level ^ 1 < len(self._own.levels[level])
        )

    def _node(self, level: int, position: int) -> bytes:
        if (position + 1) << level <= self._first:
            return self._own.levels[level][position]
        node = self._shown.get((level, position))
        if node is not None:
            return node
        if level == 0:
            raise KeyError(position)
        last = level_width(self._own.leaves, level - 1)
        return ancestor_of([self._node(level - 1, at) for at in (2 * position, 2 * position + 1) if at < last], 1)


class ChainView:
    """By what the chain shows, for tensors before the first wrong one, and for that one."""

    def __init__(self, question: Question, game: Game, own: StepTrace, moves: Sequence[Move]) -> None:
        self._own = own
        self._program: Program = question.program
        self._nodes, self.contents = shown_nodes(question, moves)
        self._probe_root = game.probe_root
        self._traces_agree = game.trace_root == own.trace_tree.root

    def first_difference(self, tree: int, tensor: int, leaves: Sequence[bytes]) -> int | None:
        """Return the first shown leaf that differs from one's own ``leaves``; None if none was shown."""
        shown = self.contents.get((tree, tensor), {})
        return next((at for at in sorted(shown) if shown[at] != leaves[at]), None)

    def wrong_traced(self) -> int | None:
        """Return the first tensor of the trace that differs, if it was shown."""
        at = self.first_difference(Tree.TRACE, 0, self._own.trace_leaves)
        return None if at is None else self._own.traced[at]

    def _leaves(self, tensor: int) -> list[bytes]:
        return leaves_of(self._program.types[tensor], self._own.contents[tensor])

    def root(self, tensor: int) -> bytes:
        """See View."""
        place = self._own.place(tensor)
        match place.kind:
            case PlaceKind.TRACE:
                shown = self.contents.get((Tree.TRACE, 0), {}).get(place.position)
                return self._own.root(tensor) if shown is None else shown
            case PlaceKind.AFTER:
                shown = self.contents.get((Tree.AFTER, 0), {}).get(place.position + 1)
                return self._own.root(tensor) if shown is None else shown[-HASH_BYTES:]
            case PlaceKind.PROBE:
                return self._probe_root
            case PlaceKind.BEFORE | PlaceKind.DATA | PlaceKind.MODEL | PlaceKind.ADAPTER:
                return self._own.root(tensor)

    def path(self, tensor: int) -> tuple[bytes, ...]:
        """See View. Raises KeyError if it cannot be known."""
        place = self._own.place(tensor)
        match place.kind:
            case PlaceKind.TRACE if not self._traces_agree:
                first = self.first_difference(Tree.TRACE, 0, self._own.trace_leaves)
                assert first is not None
                return _Tree(self._own.trace_tree, first, self._nodes[Tree.TRACE, 0]).siblings(place.position)
            case PlaceKind.AFTER if (Tree.AFTER, 0) in self._nodes:
                first = self.first_difference(Tree.AFTER, 0, self._own.after_leaves)
                assert first is not None
                return _Tree(self._own.after_tree, first, self._nodes[Tree.AFTER, 0]).siblings(place.position + 1)
            case _:
                return self._own.path(tensor)

    def leaf(self, tensor: int, leaf: int) -> bytes:
        """See View."""
        shown = self.contents.get((Tree.TENSOR, tensor), {}).get(leaf)
        if shown is not None:
            return shown
        return leaf_content(self._program.types[tensor], self._own.contents[tensor], leaf)

    def siblings(self, tensor: int, leaf: int) -> tuple[bytes, ...]:
        """See View. Raises KeyError if they cannot be known."""
        shown = self._nodes.get((Tree.TENSOR, tensor))
        if shown is None:
            return self._own.tree(tensor).siblings(leaf)
        first = self.first_difference(Tree.TENSOR, tensor, self._leaves(tensor))
        return _Tree(self._own.tree(tensor), 0 if first is None else first, shown).siblings(leaf)
