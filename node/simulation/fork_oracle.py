"""The oracle of whole nodes above the fault bound: chains may fork, and accounts are identified by key.

It holds what stays promised however many lie: an honest account is never shown to lie, each node's own chain is
one, two nodes that agree on a block agree on its state, and a proof names who has lied.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

from consensus.simulation.oracle import EpochView, Oracle, Violation
from consensus.votes import Certificate, Check, vote_check
from node.simulation.world import WholeMachine
from state.primitives.committee import Committee, Seat
from state.primitives.votes import Equivocation, Vote

__all__ = ["Branches"]


class Branches(Oracle):
    """The judge where chains fork over epochs: seats are other accounts' there, so a vote is known by its key."""

    def __init__(
        self, honest: frozenset[bytes], root_hash: bytes, genesis_hash: bytes, is_valid: Callable[[Check], bool]
    ) -> None:
        super().__init__(honest, root_hash, may_fork=True)
        self._genesis_hash = genesis_hash
        self._is_valid = is_valid
        self._committees: dict[int, dict[bytes, Committee]] = {}
        self._words: dict[tuple[bytes, int, int], set[tuple[int, int, bytes]]] = {}
        self._finals: dict[int, list[bytes]] = {}
        self._roots: dict[bytes, bytes] = {}
        self._firsts: dict[int, bytes] = {}
        self.liars: set[bytes] = set()
        """Who has cast two votes where one is allowed, whether anybody knows it or not."""
        self.proofs: dict[Equivocation, None] = {}
        """What honest nodes have found, by themselves or with the certificates that people brought."""
        self._seen: set[Certificate] = set()

    def saw_committee(self, epoch: int, committee: Committee) -> None:
        """An honest node enters an epoch with a committee, which may be another one on another branch."""
        self._committees.setdefault(epoch, {})[committee.hash] = committee

    def saw_epoch_view(self, node: int, epoch_view: EpochView) -> None:
        """Nothing: branches differ."""

    def _casters(self, vote: Vote) -> set[Seat]:
        """Whose vote it may be: a key's, since on another branch the same account may have rotated its key."""
        return {
            committee.seats[vote.seat]._replace(weight=0)
            for committee in self._committees.get(vote.epoch, {}).values()
            if vote.seat < committee.size and self._is_valid(vote_check(committee, self._genesis_hash, vote))
        }

    def saw_vote(self, vote: Vote) -> None:
        """A vote was released. Raises Violation when it contradicts another one of an honest account."""
        for caster in self._casters(vote):
            words = self._words.setdefault((caster.vote_key, vote.epoch, vote.view), set())
            for kind, parent_view, block_hash in words:
                is_double = kind == vote.kind != 2 and (parent_view, block_hash) != (
                    vote.parent_view,
                    vote.block_hash,
                )
                if is_double or {kind, vote.kind} == {2, 3}:
                    if caster.address in self._honest:
                        raise Violation(f"an honest account equivocated: epoch {vote.epoch}, view {vote.view}")
                    self.liars.add(caster.address)
            words.add((vote.kind, vote.parent_view, vote.block_hash))

    def saw_certificate(self, certificate: Certificate, *, must_be_final: bool = False) -> None:
        """An honest node shows or keeps a certificate. Raises Violation when no committee has signed it."""
        kind, epoch, view, parent_view, block_hash, bitmap, signatures = certificate
        if certificate in self._seen:
            return
        self._seen.add(certificate)
        seats = [seat for seat in range(8 * len(bitmap)) if bitmap[seat // 8] & (1 << seat % 8)]
        votes = [
            Vote(kind, epoch, view, parent_view, block_hash, seat, signatures[64 * at : 64 * at + 64])
            for at, seat in enumerate(seats)
        ]
        for committee in self._committees.get(epoch, {}).values():
            weight = sum(committee.seats[seat].weight for seat in seats if seat < committee.size)
            if 3 * weight > 2 * sum(committee.weights) and all(
                vote.seat < committee.size and self._is_valid(vote_check(committee, self._genesis_hash, vote))
                for vote in votes
            ):
                break
        else:
            raise Violation(f"a certificate of view {view} is of no committee")
        for vote in votes:
            self.saw_vote(vote)

    def saw_commit(self, node: int, height: int, block_hash: bytes, state_root: bytes) -> None:
        """An honest node made a block final. Raises Violation when its own chain, or the state, is not one."""
        chain = self._finals.setdefault(node, [])
        block = self._blocks.get(block_hash)
        below = chain[-1] if chain else self._root_hash
        if len(chain) + 1 != height or block is None or (block.parent_hash, block.height) != (below, height):
            raise Violation(f"node {node} committed height {height}, not on top of its height {len(chain)}")
        if self._roots.setdefault(block_hash, state_root) != state_root:
            raise Violation(f"two states of one block of height {height}")
        if self._firsts.setdefault(height, block_hash) != block_hash:
            self.forks.add(height)
        chain.append(block_hash)

    def saw_power_loss(self, node: int, height: int) -> None:
        """After a loss of power the database of an honest node is at ``height``. Raises Violation."""
        if height < self.height(node):
            raise Violation(f"node {node} has lost final blocks")

    def saw_evidence(self, equivocation: Equivocation) -> None:
        """An honest node holds a proof of a fault. Raises Violation when it proves none, or names the honest."""
        first, second = equivocation
        casters = self._casters(first) & self._casters(second)
        if (first.epoch, first.view, first.seat) != (second.epoch, second.view, second.seat) or not casters:
            raise Violation("a proof of a fault proves none")
        self.saw_vote(first)
        self.saw_vote(second)
        if not {caster.address for caster in casters} <= self.liars:
            raise Violation("a proof of a fault names who has told no lie")
        self.proofs[equivocation] = None

    def check_blame(self) -> bool:
        """Tell whether the chain forked."""
        return bool(self.forks)

    def height(self, node: int) -> int:
        """The newest height that a node has committed."""
        return len(self._finals.get(node, ()))

    @property
    def height_max(self) -> int:
        """The newest height that any node has committed."""
        return max(map(len, self._finals.values()), default=0)

    @property
    def epoch_max(self) -> int:
        """The newest epoch that any honest node has entered."""
        return max(self._committees, default=0)

    def stands_on(self, block_hash: bytes, below: bytes) -> bool:
        """Tell whether a block is known and has another one below it."""
        while (block := self._blocks.get(block_hash)) is not None:
            if block.parent_hash == below:
                return True
            block_hash = block.parent_hash
        return False

    def named_share(self) -> Fraction:
        """The largest part of a committee's weight that the proofs name."""
        named: dict[int, set[bytes]] = {}
        for first, _ in self.proofs:
            named.setdefault(first.epoch, set()).update(caster.address for caster in self._casters(first))
        return max(
            (
                Fraction(sum(seat.weight for seat in committee.seats if seat.address in who), committee.weight)
                for epoch, who in named.items()
                for committee in self._committees[epoch].values()
            ),
            default=Fraction(0),
        )

    def is_back(self, node: int, machine: WholeMachine) -> None:
        """A person has put a database of a node back."""
        records = [machine.store.height(height) for height in range(1, machine.store.tip.height + 1)]
        self._finals[node] = [record.block_hash for record in records if record is not None]

    def starts_over(self, node: int) -> None:
        """A person has taken the database of a node away."""
        self._finals.pop(node, None)
