"""The judge of a simulated run: it restates each invariant in its own words and shares no predicate with the core.

It sees each vote as it is released to the network, by whomever, each certificate that an honest node shows or
keeps, and each commit as it becomes durable. Seats are known by the accounts that hold them, because committees
change with the epochs while a fault stays with its account.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from consensus.votes import Certificate
from state.primitives.votes import Equivocation, Vote

__all__ = ["EpochView", "Oracle", "Violation"]


class Violation(Exception):
    """A promise of the protocol was broken; the message names the promise, the seed names the run."""


class EpochView(NamedTuple):
    """One epoch as the nodes say it is: the holders of its seats, their weights, and its last height, if any."""

    epoch: int
    holders: tuple[bytes, ...]
    weights: tuple[int, ...]
    last_height: int | None


class _Tally(NamedTuple):
    seats: set[int]
    weight: list[int]


class _Block(NamedTuple):
    parent_hash: bytes
    height: int
    epoch: int


class Oracle:
    """Invariants of consensus.md 5.3 over all epochs; ``honest`` are the accounts that must never lie.

    With ``may_fork`` the faulty hold more than the protocol bears: what honest seats promise alone is still held
    against them, while contradictions between quorums are only noted, and ``check_blame`` asks whom they name.
    """

    def __init__(self, honest: Iterable[bytes], root_hash: bytes, *, may_fork: bool = False) -> None:
        self._honest = frozenset(honest)
        self._root_hash = root_hash
        self.may_fork = may_fork
        self._epoch_views: dict[int, EpochView] = {}
        self._early: dict[int, list[Vote]] = {}
        self._by_seat: dict[tuple[int, int, int, int], set[tuple[int, bytes]]] = {}
        self._tallies: dict[tuple[int, int, int, int, bytes], _Tally] = {}
        self._certified: dict[tuple[int, int, int], tuple[int, bytes]] = {}
        self._blocks: dict[bytes, _Block] = {}
        self._chain: dict[int, tuple[bytes, bytes]] = {}
        self._boundaries: dict[int, bytes] = {}
        self._heights: dict[int, int] = {}
        self._nullified_first: set[tuple[int, int, int]] = set()
        self._held: dict[tuple[int, int], dict[Certificate, None]] = {}
        self._named: dict[int, set[int]] = {}
        self.forks: set[int] = set()
        """Heights at which two honest nodes made different blocks final (``may_fork`` alone)."""
        self.broken: list[str] = []
        """What else broke while the faulty held too much."""

    def _breaks(self, text: str) -> None:
        """A promise that holds only while the faulty are few."""
        if not self.may_fork:
            raise Violation(text)
        if len(self.broken) < 100:
            self.broken.append(text)

    def saw_epoch_view(self, node: int, epoch_view: EpochView) -> None:
        """An honest node enters an epoch. Raises Violation when another knows the epoch otherwise."""
        known = self._epoch_views.setdefault(epoch_view.epoch, epoch_view)
        if known != epoch_view:
            self._breaks(f"node {node} knows another committee of epoch {epoch_view.epoch}")
        for vote in self._early.pop(epoch_view.epoch, ()):
            self.saw_vote(vote)

    def saw_block(self, block_hash: bytes, parent_hash: bytes, height: int, epoch: int) -> None:
        """A block was proposed."""
        self._blocks[block_hash] = _Block(parent_hash, height, epoch)

    def _is_honest(self, epoch_view: EpochView, seat: int) -> bool:
        return epoch_view.holders[seat] in self._honest

    def saw_vote(self, vote: Vote) -> None:
        """A correctly signed vote was released. Raises Violation."""
        kind, epoch, view, parent_view, block_hash, seat, _ = vote
        epoch_view = self._epoch_views.get(epoch)
        if epoch_view is None:  # a faulty seat speaks before its time; it counts when the epoch begins
            self._early.setdefault(epoch, []).append(vote)
            return
        if seat >= len(epoch_view.holders):
            return
        said = self._by_seat.setdefault((epoch, seat, view, kind), set())
        word = (parent_view, block_hash)
        if word in said:
            return
        said.add(word)
        is_honest = self._is_honest(epoch_view, seat)
        is_double = len(said) > 1 or (kind != 1 and (epoch, seat, view, 5 - kind) in self._by_seat)
        if is_double and is_honest:
            raise Violation(f"an honest seat equivocated: epoch {epoch}, seat {seat}, view {view}, kind {kind}")
        if kind == 1 and is_honest and (epoch, seat, view) in self._nullified_first:
            # Against R3, although no type of evidence names it: the order of release decides.
            raise Violation(f"an honest seat notarized after it nullified: seat {seat}, view {view}")
        if kind == 2 and (epoch, seat, view, 1) not in self._by_seat:
            self._nullified_first.add((epoch, seat, view))
        if kind == 1 and is_honest:
            self._check_place(epoch_view, block_hash)
        key = (epoch, view, kind, parent_view, block_hash)
        tally = self._tallies.get(key)
        if tally is None:
            tally = self._tallies[key] = _Tally(set(), [0])
        if seat not in tally.seats:
            tally.seats.add(seat)
            own, total = epoch_view.weights[seat], sum(epoch_view.weights)
            tally.weight[0] += own
            if 3 * (tally.weight[0] - own) <= 2 * total < 3 * tally.weight[0]:
                self._on_quorum(epoch_view, kind, view, parent_view, block_hash)

    def _check_place(self, epoch_view: EpochView, block_hash: bytes) -> None:
        """An honest seat votes for blocks of its own epoch alone."""
        block = self._blocks.get(block_hash)
        if block is None:
            raise Violation("an honest seat voted for a block that nobody proposed")
        if block.epoch != epoch_view.epoch:
            raise Violation(f"a seat of epoch {epoch_view.epoch} voted for a block of epoch {block.epoch}")
        if epoch_view.last_height is not None and block.height > epoch_view.last_height:
            raise Violation(f"a seat of epoch {epoch_view.epoch} voted for height {block.height}, beyond its last")
        before = self._epoch_views.get(epoch_view.epoch - 1)
        if before is not None and before.last_height is not None and block.height <= before.last_height:
            raise Violation(
                f"a seat of epoch {epoch_view.epoch} voted for height {block.height} of the epoch before"
            )

    def _on_quorum(self, epoch_view: EpochView, kind: int, view: int, parent_view: int, block_hash: bytes) -> None:
        epoch = epoch_view.epoch
        known = self._certified.setdefault((epoch, view, kind), (parent_view, block_hash))
        if known != (parent_view, block_hash):
            self._breaks(f"two quorums of kind {kind} in view {view}")
        if (epoch, view, 2) in self._certified and (epoch, view, 3) in self._certified:
            self._breaks(f"view {view} is both final and nullified")
        if kind == 3 and self._certified.get((epoch, view, 1)) != (parent_view, block_hash):
            self._breaks(f"view {view} is final without being notarized")
        if kind != 1:
            return
        if parent_view >= view:
            self._breaks(f"view {view} is notarized on a later parent")
        block = self._blocks.get(block_hash)
        if parent_view == 0:
            expected = self._boundaries.get(epoch, self._root_hash if epoch == 0 else b"")
        else:
            expected = self._certified.get((epoch, parent_view, 1), (0, b""))[1]
        is_again = (
            block is not None
            and parent_view > 0
            and block_hash == expected
            and block.height == epoch_view.last_height
        )
        if not is_again and (block is None or block.parent_hash != expected):
            self._breaks(f"view {view} is notarized on a block that view {parent_view} did not notarize")
        for skipped in range(parent_view + 1, view):
            if (epoch, skipped, 2) not in self._certified:
                self._breaks(f"view {view} is notarized although view {skipped} was skipped without a quorum")

    def saw_commit(self, node: int, height: int, block_hash: bytes, state_root: bytes) -> None:
        """An honest node made a block final. Raises Violation."""
        if self._heights.get(node, 0) + 1 != height:
            raise Violation(f"node {node} committed height {height} after {self._heights.get(node, 0)}")
        self._heights[node] = height
        known = self._chain.get(height)
        if known is not None:
            if known != (block_hash, state_root):
                self.forks.add(height)
                self._breaks(f"two blocks or states are final at height {height}")
            return
        self._chain[height] = (block_hash, state_root)
        below = self._chain.get(height - 1)
        block = self._blocks.get(block_hash)
        if block is None or block.parent_hash != (below[0] if below is not None else self._root_hash):
            self._breaks(f"the final block of height {height} is not on top of the one below")
        epoch_view = None if block is None else self._epoch_views.get(block.epoch)
        if block is None or block.height != height or epoch_view is None:
            self._breaks(f"the final block of height {height} has another height or an unknown epoch")
            return
        before = self._epoch_views.get(block.epoch - 1)
        if (epoch_view.last_height is not None and height > epoch_view.last_height) or (
            before is not None and before.last_height is not None and height <= before.last_height
        ):
            self._breaks(f"the final block of height {height} is of epoch {block.epoch}")
        if height == epoch_view.last_height:
            self._boundaries[block.epoch + 1] = block_hash

    def saw_power_loss(self, node: int, height: int) -> None:
        """After a loss of power the database of an honest node is at ``height``. Raises Violation."""
        if height < self._heights.get(node, 0):
            raise Violation(f"node {node} has lost final blocks: {height} of {self._heights[node]} are left")

    def saw_certificate(self, certificate: Certificate, *, must_be_final: bool = False) -> None:
        """An honest node shows or keeps a certificate. Raises Violation when a vote in it was never cast."""
        kind, epoch, view, parent_view, block_hash, bitmap, signatures = certificate
        held = self._held.setdefault((epoch, view), {})
        if certificate in held:
            return
        held[certificate] = None
        epoch_view = self._epoch_views.get(epoch)
        tally = self._tallies.get((epoch, view, kind, parent_view, block_hash))
        seats = _seats(bitmap)
        if epoch_view is None or tally is None or not set(seats) <= tally.seats or (must_be_final and kind != 3):
            raise Violation(f"a certificate of view {view} contains votes that nobody cast")
        weight = sum(epoch_view.weights[seat] for seat in seats)
        if 3 * weight <= 2 * sum(epoch_view.weights) or len(signatures) != 64 * len(seats):
            raise Violation(f"a certificate of view {view} is short of weight")

    def saw_evidence(self, equivocation: Equivocation) -> None:
        """An honest node holds a proof of a fault. Raises Violation when it proves none, or names the honest."""
        first, second = equivocation
        epoch_view = self._epoch_views.get(first.epoch)
        is_fault = (first.epoch, first.view, first.seat) == (second.epoch, second.view, second.seat) and (
            (first.kind == second.kind != 2 and first[:5] != second[:5])
            or sorted((first.kind, second.kind)) == [2, 3]
        )
        if epoch_view is None or not is_fault:
            raise Violation("a proof of a fault proves none")
        for vote in equivocation:
            if (vote.parent_view, vote.block_hash) not in self._by_seat.get(
                (vote.epoch, vote.seat, vote.view, vote.kind), ()
            ):
                raise Violation("a proof of a fault contains a vote that nobody cast")
        if self._is_honest(epoch_view, first.seat):
            raise Violation(f"a proof of a fault names an honest seat: {first.seat}")
        self._named.setdefault(first.epoch, set()).add(first.seat)

    def check_blame(self) -> bool:
        """Tell whether the chain forked. Raises Violation when the proofs name no more than a third for it.

        The proofs are those that honest nodes gave, and those that follow from two certificates they have held.
        """
        if not self.forks:
            return False
        named: dict[int, set[int]] = {epoch: set(seats) for epoch, seats in self._named.items()}
        for (epoch, _), certificates in self._held.items():
            named.setdefault(epoch, set()).update(_culprits(tuple(certificates)))
        for epoch, seats in named.items():
            weights = self._epoch_views[epoch].weights
            if 3 * sum(weights[seat] for seat in seats) > sum(weights):
                return True
        raise Violation(
            f"the chain forked at height {min(self.forks)} and the proofs name no more than a third: {named}"
        )

    def height(self, node: int) -> int:
        """The newest height that a node has committed."""
        return self._heights.get(node, 0)

    @property
    def height_max(self) -> int:
        """The newest height that any node has committed."""
        return max(self._chain, default=0)

    @property
    def epoch_max(self) -> int:
        """The newest epoch that any honest node has entered."""
        return max(self._epoch_views, default=0)


def _seats(bitmap: bytes) -> list[int]:
    return [seat for seat in range(8 * len(bitmap)) if bitmap[seat // 8] & (1 << seat % 8)]


def _culprits(certificates: Sequence[Certificate]) -> set[int]:
    """The seats that two certificates of one view prove faulty."""
    culprits: set[int] = set()
    for at, first in enumerate(certificates):
        for second in certificates[at + 1 :]:
            same_kind = first.kind == second.kind != 2 and first.candidate != second.candidate
            if same_kind or {first.kind, second.kind} == {2, 3}:
                culprits |= set(_seats(first.bitmap)) & set(_seats(second.bitmap))
    return culprits
