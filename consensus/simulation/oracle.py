"""The judge of a simulated run: it restates each invariant in its own words and shares no predicate with the core.

It sees each vote as it is released to the network, by whomever, and each commit as it becomes durable.
"""

from __future__ import annotations

from typing import NamedTuple

from consensus.votes import Certificate
from state.primitives.votes import Vote

__all__ = ["Oracle", "Violation"]


class Violation(Exception):
    """A promise of the protocol was broken; the message names the promise, the seed names the run."""


class _Tally(NamedTuple):
    seats: set[int]
    weight: list[int]


class Oracle:
    """Invariants of SDBFT.md 5 over one epoch; ``honest`` are the seats that must never lie."""

    def __init__(self, weights: tuple[int, ...], honest: frozenset[int], root_hash: bytes) -> None:
        self._weights = weights
        self._total = sum(weights)
        self._honest = honest
        self._root_hash = root_hash
        self._by_seat: dict[tuple[int, int, int], set[tuple[int, bytes]]] = {}
        self._tallies: dict[tuple[int, int, int, bytes], _Tally] = {}
        self._certified: dict[tuple[int, int], tuple[int, bytes]] = {}
        self._parents: dict[bytes, bytes] = {}
        self._chain: dict[int, tuple[bytes, bytes]] = {}
        self._heights: dict[int, int] = {}
        self._nullified_first: set[tuple[int, int]] = set()
        self.equivocators: set[int] = set()

    def saw_block(self, block_hash: bytes, parent_hash: bytes) -> None:
        """A block was proposed."""
        self._parents[block_hash] = parent_hash

    def saw_vote(self, vote: Vote) -> None:
        """A correctly signed vote was released. Raises Violation."""
        kind, _, view, parent_view, block_hash, seat, _ = vote
        said = self._by_seat.setdefault((seat, view, kind), set())
        word = (parent_view, block_hash)
        if word in said:
            return
        said.add(word)
        faulty = len(said) > 1 or (kind != 1 and (seat, view, 5 - kind) in self._by_seat)
        if faulty:
            if seat in self._honest:
                raise Violation(f"an honest seat equivocated: seat {seat}, view {view}, kind {kind}")
            self.equivocators.add(seat)
        if kind == 1 and seat in self._honest and (seat, view) in self._nullified_first:
            # Against R3, although no type of evidence names it: the order of release decides.
            raise Violation(f"an honest seat notarized after it nullified: seat {seat}, view {view}")
        if kind == 2 and (seat, view, 1) not in self._by_seat:
            self._nullified_first.add((seat, view))
        tally = self._tallies.setdefault((view, kind, parent_view, block_hash), _Tally(set(), [0]))
        if seat not in tally.seats:
            tally.seats.add(seat)
            tally.weight[0] += self._weights[seat]
            if 3 * (tally.weight[0] - self._weights[seat]) <= 2 * self._total < 3 * tally.weight[0]:
                self._on_quorum(kind, view, parent_view, block_hash)

    def _on_quorum(self, kind: int, view: int, parent_view: int, block_hash: bytes) -> None:
        known = self._certified.setdefault((view, kind), (parent_view, block_hash))
        if known != (parent_view, block_hash):
            raise Violation(f"two quorums of kind {kind} in view {view}")
        if (view, 2) in self._certified and (view, 3) in self._certified:
            raise Violation(f"view {view} is both final and nullified")
        if kind == 3 and self._certified.get((view, 1)) != (parent_view, block_hash):
            raise Violation(f"view {view} is final without being notarized")
        if kind != 1:
            return
        if parent_view >= view:
            raise Violation(f"view {view} is notarized on a later parent")
        parent_hash = self._parents.get(block_hash)
        expected = self._root_hash if parent_view == 0 else self._certified.get((parent_view, 1), (0, b""))[1]
        if parent_hash != expected:
            raise Violation(f"view {view} is notarized on a block that view {parent_view} did not notarize")
        for skipped in range(parent_view + 1, view):
            if (skipped, 2) not in self._certified:
                raise Violation(f"view {view} is notarized although view {skipped} was skipped without a quorum")

    def saw_commit(self, node: int, height: int, block_hash: bytes, state_root: bytes) -> None:
        """A node made a block final. Raises Violation."""
        if self._heights.get(node, 0) + 1 != height:
            raise Violation(f"node {node} committed height {height} after {self._heights.get(node, 0)}")
        self._heights[node] = height
        known = self._chain.setdefault(height, (block_hash, state_root))
        if known != (block_hash, state_root):
            raise Violation(f"two blocks or states are final at height {height}")
        below = self._chain.get(height - 1)
        if self._parents.get(block_hash) != (below[0] if below is not None else self._root_hash):
            raise Violation(f"the final block of height {height} is not on top of the one below")

    def saw_certificate(self, certificate: Certificate) -> None:
        """A certificate was made durable beside its block. Raises Violation when a vote in it was never cast."""
        kind, _, view, parent_view, block_hash, bitmap, signatures = certificate
        tally = self._tallies.get((view, kind, parent_view, block_hash))
        seats = [seat for seat in range(8 * len(bitmap)) if bitmap[seat // 8] & (1 << seat % 8)]
        weight = sum(self._weights[seat] for seat in seats)
        if kind != 3 or tally is None or not set(seats) <= tally.seats:
            raise Violation(f"a certificate of view {view} contains votes that nobody cast")
        if 3 * weight <= 2 * self._total or len(signatures) != 64 * len(seats):
            raise Violation(f"a certificate of view {view} is short of weight")

    def height(self, node: int) -> int:
        """The newest height that a node has committed."""
        return self._heights.get(node, 0)

    @property
    def height_max(self) -> int:
        """The newest height that any node has committed."""
        return max(self._chain, default=0)

    def faulty_weight(self) -> int:
        """The weight of the seats whose equivocation was seen."""
        return sum(self._weights[seat] for seat in self.equivocators)
