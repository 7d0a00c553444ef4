"""Every run of a few views, vote by vote in any order, breadth first: slow, and without the argument of chain_check.

Here views overlap as they do among replicas: one seat votes in view 3 while another still finalizes in view 1. A seat
that learns a certificate of its view or a later one leaves for the view after it and never comes back (R2); which
view it is in need not be part of the state, because it may learn of a certificate just before a vote needs it.

A state is one integer for each view: for each seat three bits for the candidate it notarized, one for NULLIFY, three
for the candidate it finalized. Candidates are numbered by parent view and one of two blocks; states that differ only
in the order of seats of equal weight, or in which block of the two is which, are taken as one.
"""

from __future__ import annotations

from itertools import permutations
from typing import Final, NamedTuple, TypeAlias

from tests.model.rules import MARKS_PER_VIEW, Broken, Candidate, Chain, Rules, ViewRecord
from tests.model.view_check import SeatVotes, check_own_votes

Word: TypeAlias = int
State: TypeAlias = tuple[Word, ...]

SEAT_BITS: Final = 7
VARIANTS: Final = 2
VIEWS_MAX: Final = 3
_NUMBER_MASK: Final = 7
_NULLIFIED: Final = 8
_FINAL_SHIFT: Final = 4


class Made(NamedTuple):
    """The certificates of one view by the numbers of candidates (0: none)."""

    notarized: int
    is_null: bool
    finalized: int


class Result(NamedTuple):
    """How far a check came, and every chain of certificates it saw."""

    states: int
    steps: int
    chains: frozenset[Chain]


class Interleavings:
    """The check of one committee."""

    def __init__(self, rules: Rules, views: int) -> None:
        assert views <= VIEWS_MAX
        self._rules, self._views, self._seats = rules, views, len(rules.honest)
        self._made_of: dict[Word, Made] = {}
        self._twins_of: dict[Word, tuple[Word, ...]] = {}
        self._next_of: dict[tuple[Word, int, int], tuple[Word, ...]] = {}
        self._chain_of: dict[tuple[Made, ...], Chain] = {}
        self._open_of: dict[tuple[Made, ...], int] = {}
        self._lowest_of: dict[tuple[Word, int], tuple[int, ...]] = {}
        self._orders = [
            order
            for order in permutations(range(self._seats))
            if all(rules.honest[seat] == rules.honest[at] for at, seat in enumerate(order))
        ]

    # One view.

    def _votes(self, word: Word) -> list[tuple[int, bool, int]]:
        seats = [word >> SEAT_BITS * seat for seat in range(self._seats)]
        return [(s & _NUMBER_MASK, bool(s & _NULLIFIED), s >> _FINAL_SHIFT & _NUMBER_MASK) for s in seats]

    def _word(self, votes: list[tuple[int, bool, int]]) -> Word:
        return sum(
            (notarized | _NULLIFIED * nullified | finalized << _FINAL_SHIFT) << SEAT_BITS * seat
            for seat, (notarized, nullified, finalized) in enumerate(votes)
        )

    def _made(self, word: Word) -> Made:
        made = self._made_of.get(word)
        if made is None:
            votes, certifies = self._votes(word), self._rules.certifies
            check_own_votes(tuple(SeatVotes(n and 1 << n, u, f and 1 << f) for n, u, f in votes))
            notarized, finalized = (
                [
                    number
                    for number in {vote[of] for vote in votes} - {0}
                    if certifies[sum((vote[of] == number) << seat for seat, vote in enumerate(votes))]
                ]
                for of in (0, 2)
            )
            if len(notarized) > 1 or len(finalized) > 1:
                raise Broken("one view has two quorums of a kind")
            nullified = certifies[sum(vote[1] << seat for seat, vote in enumerate(votes))]
            made = Made(sum(notarized), nullified, sum(finalized))
            self._made_of[word] = made
        return made

    def _twins(self, word: Word) -> tuple[Word, ...]:
        """The word under each order of equal seats, with the blocks renamed in the order they turn up."""
        twins = self._twins_of.get(word)
        if twins is None:
            votes = self._votes(word)
            twins = tuple(self._word(_renamed([votes[seat] for seat in order])) for order in self._orders)
            self._twins_of[word] = twins
        return twins

    def _nexts(self, word: Word, open_candidates: int, present: int) -> tuple[Word, ...]:
        """The word after each vote that a seat may cast; ``present`` seats have not left the view."""
        key = word, open_candidates, present
        nexts = self._next_of.get(key)
        if nexts is None:
            rules, votes = self._rules, self._votes(word)
            certified = self._made(word).notarized
            found = []
            for seat, (notarized, nullified, finalized) in enumerate(votes):
                changed = []
                if present >> seat & 1:
                    changed += [
                        (number, nullified, finalized)
                        for number in range(1, open_candidates.bit_length())
                        if open_candidates >> number & 1 and rules.may_notarize(notarized, nullified, number)
                    ]
                    if rules.may_nullify(notarized, nullified, finalized):
                        changed.append((notarized, True, finalized))
                if certified and rules.may_finalize(nullified, finalized, True):
                    changed.append((notarized, nullified, certified))
                found += [self._word([*votes[:seat], new, *votes[seat + 1 :]]) for new in changed]
            nexts = self._next_of[key] = tuple(found)
        return nexts

    def _lowest(self, word: Word, view: int) -> tuple[int, ...]:
        """For each seat: the view it is in at least, after these votes (R2: a certificate of ``view`` ends it)."""
        lowest = self._lowest_of.get((word, view))
        if lowest is None:
            lowest = tuple(view + 1 if f else view if n or u else 1 for n, u, f in self._votes(word))
            self._lowest_of[word, view] = lowest
        return lowest

    # The views together.

    def _chain(self, made: tuple[Made, ...]) -> Chain:
        chain = self._chain_of.get(made)
        if chain is None:
            blocks = {0: ()}
            records: list[ViewRecord] = []
            for view, (notarized, is_null, finalized) in enumerate(made, 1):
                found = []
                for number in (notarized, finalized):
                    if number:
                        parent, variant = divmod(number - 1, VARIANTS)
                        block = blocks[parent]
                        if len(block) < self._rules.last_height:
                            block = (*block, view * MARKS_PER_VIEW + variant)
                        found.append(Candidate(parent, block))
                        blocks[view] = block
                records.append(
                    ViewRecord(tuple(found[:1]) if notarized else (), is_null, tuple(found[-1:]) if finalized else ())
                )
                if records[-1].is_over:
                    self._rules.check(tuple(records))
            while records and not records[-1].is_over:
                records.pop()
            chain = self._chain_of[made] = tuple(records)
        return chain

    def _open(self, made: tuple[Made, ...]) -> int:
        """The numbers of what may be notarized in the view after these; 0 when it cannot have begun."""
        found = self._open_of.get(made)
        if found is None:
            found = 0
            chain = self._chain(made)
            if len(chain) == len(made):
                for parent in self._rules.parents(chain):
                    variants = VARIANTS if len(parent.block) < self._rules.last_height else 1
                    for variant in range(variants):
                        found |= 1 << (1 + parent.parent_view * VARIANTS + variant)
            self._open_of[made] = found
        return found

    def _least(self, state: State) -> State:
        return min(zip(*(self._twins(word) for word in state), strict=True))

    def run(self) -> Result:
        """Go through every state. Raises Broken."""
        start = (0,) * self._views
        seen: set[State] = {start}
        chains: set[Chain] = set()
        frontier, steps = [start], 0
        while frontier:
            following: list[State] = []
            for state in frontier:
                made = tuple([self._made(word) for word in state])
                chains.add(self._chain(made))
                lowest = [max(views) for views in zip(*map(self._lowest, state, range(1, 9)), strict=True)]
                for at, word in enumerate(state):
                    open_candidates = self._open(made[:at])
                    if at and not made[at - 1].notarized and not made[at - 1].is_null and not made[at - 1].finalized:
                        break
                    present = sum((low <= at + 1) << seat for seat, low in enumerate(lowest))
                    for new in self._nexts(word, open_candidates, present):
                        steps += 1
                        least = self._least((*state[:at], new, *state[at + 1 :]))
                        if least not in seen:
                            seen.add(least)
                            following.append(least)
            frontier = following
        return Result(len(seen), steps, frozenset(chains))


def _renamed(votes: list[tuple[int, bool, int]]) -> list[tuple[int, bool, int]]:
    names: dict[int, int] = {0: 0}
    used: dict[int, int] = {}
    for notarized, _, finalized in votes:
        for number in (notarized, finalized):
            if number not in names:
                parent = (number - 1) // VARIANTS
                names[number] = 1 + parent * VARIANTS + used.get(parent, 0)
                used[parent] = used.get(parent, 0) + 1
    return [(names[notarized], nullified, names[finalized]) for notarized, nullified, finalized in votes]
