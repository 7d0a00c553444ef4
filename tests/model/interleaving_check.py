"""Every run of a few views, vote by vote in any order, breadth first, without the argument of ``chain_check``.

Here views overlap as they do among replicas: one seat votes in view 3 while another still finalizes in view 1.
A seat that learns a certificate of its view or a later one leaves for the view after it and never comes back
(R2); which view it is in need not be part of the state, because it may learn of a certificate just before a
vote needs it.

A state is one integer for each view: for each seat three bits for the candidate it notarized, one for NULLIFY,
three for the candidate it finalized. Candidates are numbered by parent view and one of two blocks; states that
differ only in the order of seats of equal weight, or in which block of the two is which, are taken as one.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import permutations
from operator import or_
from typing import Final, NamedTuple, TypeAlias, TypeVar

from tests.model.rules import MARKS_PER_VIEW, ROOT, Block, Broken, Candidate, Chain, Rules, ViewRecord
from tests.model.view_check import SeatVotes, check_own_votes

Word: TypeAlias = int

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


_Key = TypeVar("_Key")
_Value = TypeVar("_Value")


class _Memo(dict[_Key, _Value]):
    """What a function answered; looked up without a call."""

    def __init__(self, function: Callable[[_Key], _Value]) -> None:
        self._function = function

    def __missing__(self, key: _Key) -> _Value:
        value = self[key] = self._function(key)
        return value


class Interleavings:
    """The check of one committee."""

    def __init__(self, rules: Rules, views: int) -> None:
        assert views <= VIEWS_MAX
        self._rules, self._views, self._seats = rules, views, len(rules.honest)
        self._made = _Memo(self._find_made)
        self._voters = _Memo(self._find_voters)
        self._twins = _Memo(self._find_twins)
        self._nexts = _Memo(self._find_nexts)
        self._chain = _Memo(self._find_chain)
        self._open = _Memo(self._find_open)
        self._word_bits = SEAT_BITS * self._seats
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

    def _find_made(self, word: Word) -> Made:
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
        return Made(sum(notarized), nullified, sum(finalized))

    def _find_twins(self, placed: Word) -> list[Word]:
        """A word in its place, under each order of equal seats, blocks renamed in the order they turn up."""
        shift = 0
        while placed >> shift >= 1 << self._word_bits:
            shift += self._word_bits
        votes = self._votes(placed >> shift)
        return [self._word(_renamed([votes[seat] for seat in order])) << shift for order in self._orders]

    def _find_nexts(self, key: tuple[Word, int, int]) -> list[Word]:
        """The word after each vote that a seat may cast.

        The key is the word, the candidates that may be notarized, and the seats that have not left the view.
        """
        word, open_candidates, present = key
        rules, votes = self._rules, self._votes(word)
        certified = self._made[word].notarized
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
        return found

    def _find_voters(self, word: Word) -> tuple[int, int]:
        """The seats with any vote in the view, and those with a FINALIZE: a certificate has ended it for them."""
        votes = self._votes(word)
        return (
            sum(any(vote) << seat for seat, vote in enumerate(votes)),
            sum(bool(finalized) << seat for seat, (_, _, finalized) in enumerate(votes)),
        )

    # The views together.

    def _find_chain(self, made: tuple[Made, ...]) -> Chain:
        blocks: dict[int, Block] = {0: ROOT}
        records: list[ViewRecord] = []
        for view, (notarized, is_null, finalized) in enumerate(made, 1):
            certified: list[tuple[Candidate, ...]] = []
            for number in (notarized, finalized):
                if not number:
                    certified.append(())
                    continue
                parent = (number - 1) // VARIANTS
                block = blocks[parent]
                if len(block) < self._rules.last_height:
                    block = (*block, view * MARKS_PER_VIEW + (number != notarized))
                certified.append((Candidate(parent, block),))
                blocks[view] = block
            records.append(ViewRecord(certified[0], is_null, certified[1]))
            if records[-1].is_over:
                self._rules.check(tuple(records))
        while records and not records[-1].is_over:
            records.pop()
        return tuple(records)

    def _find_open(self, made: tuple[Made, ...]) -> int:
        """The numbers of what may be notarized in the view after these; 0 when it cannot have begun."""
        found = 0
        chain = self._chain[made]
        if len(chain) == len(made):
            for parent in self._rules.parents(chain):
                variants = VARIANTS if len(parent.block) < self._rules.last_height else 1
                for variant in range(variants):
                    found |= 1 << (1 + parent.parent_view * VARIANTS + variant)
        return found

    def run(self) -> Result:
        """Go through every state. Raises Broken."""
        seen = {0}  # a state is kept as one integer, the least of its twins
        chains: set[Chain] = set()
        frontier, steps = [0], 0
        places = [(at, at * self._word_bits) for at in range(self._views)]
        word_mask, all_seats = (1 << self._word_bits) - 1, (1 << self._seats) - 1
        made_of, twins_of, no_votes = self._made, self._twins, [0] * len(self._orders)
        while frontier:
            following: list[int] = []
            for packed in frontier:
                state = [packed >> shift & word_mask for _, shift in places]
                made = tuple([made_of[word] for word in state])
                chains.add(self._chain[made])
                gone = 0  # seats that have voted in later views
                for at, shift in reversed(places):
                    word = state[at]
                    voters, finals = self._voters[word]
                    present = all_seats & ~(gone | finals)
                    gone |= voters
                    open_candidates = self._open[made[:at]]
                    if not open_candidates:
                        continue
                    rest = [twins_of[state[place] << other] for place, other in places if place != at]
                    base = list(map(or_, *rest)) if len(rest) == 2 else rest[0] if rest else no_votes
                    for new in self._nexts[word, open_candidates, present]:
                        steps += 1
                        least = min(map(or_, base, twins_of[new << shift]))
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
