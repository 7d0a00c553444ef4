"""One view on its own: every order of the votes of honest seats, and the certificates that can come of it."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from itertools import permutations
from typing import NamedTuple

from tests.model.rules import Broken, Change, Rules


class SeatVotes(NamedTuple):
    """The votes of one seat in one view; sets of candidates are bit masks."""

    notarized: int = 0
    nullified: bool = False
    finalized: int = 0


class ViewState(NamedTuple):
    """The votes of a view, and which seats still wait because nobody has a transaction (consensus.md 6)."""

    seats: tuple[SeatVotes, ...]
    waits: int = 0


class Outcome(NamedTuple):
    """Which certificates exist; candidates are bit masks."""

    notarized: int
    is_null: bool
    finalized: int


def outcome(rules: Rules, seats: tuple[SeatVotes, ...], candidates: int, *, alone: bool = False) -> Outcome:
    """The certificates that the votes make with the faulty weight, or ``alone`` without it."""
    certifies = rules.certifies_alone if alone else rules.certifies
    notarized = finalized = 0
    for candidate in range(candidates):
        if certifies[sum((votes.notarized >> candidate & 1) << seat for seat, votes in enumerate(seats))]:
            notarized |= 1 << candidate
        if certifies[sum((votes.finalized >> candidate & 1) << seat for seat, votes in enumerate(seats))]:
            finalized |= 1 << candidate
    nullified = certifies[sum(votes.nullified << seat for seat, votes in enumerate(seats))]
    return Outcome(notarized, nullified, finalized)


def steps(rules: Rules, state: ViewState, candidates: int, leader: int | None) -> Iterator[ViewState]:
    """Every vote that an honest seat may cast next. ``leader``: the honest one that must propose first."""
    seats, waits = state
    notarized = outcome(rules, seats, candidates).notarized
    for seat, votes in enumerate(seats):
        for candidate in range(candidates):
            if leader is None:
                proposed = True
            elif leader == seat:
                proposed = not waits >> seat & 1
            else:
                proposed = bool(seats[leader].notarized >> candidate & 1)
            if proposed and rules.may_notarize(votes.notarized, votes.nullified, candidate):
                yield _put(state, seat, votes._replace(notarized=votes.notarized | 1 << candidate))
            if rules.may_finalize(votes.nullified, votes.finalized, bool(notarized >> candidate & 1)):
                yield _put(state, seat, votes._replace(finalized=votes.finalized | 1 << candidate))
        if not waits >> seat & 1 and rules.may_nullify(*votes):
            yield _put(state, seat, votes._replace(nullified=True))
        if waits >> seat & 1 and Change.IDLE_FOR_EVER not in rules.changes:
            yield ViewState(seats, waits & ~(1 << seat))


def _put(state: ViewState, seat: int, votes: SeatVotes) -> ViewState:
    return state._replace(seats=(*state.seats[:seat], votes, *state.seats[seat + 1 :]))


@cache
def reachable(
    rules: Rules, candidates: int, *, leader: int | None = None, waiting: bool = False
) -> dict[ViewState, ViewState | None]:
    """Every state of a view, breadth first, each with the one it was first reached from.

    ``waiting``: seats may begin the view in the idle wait, each set of them is tried. Raises Broken when an honest
    seat contradicts itself.
    """
    empty = (SeatVotes(),) * len(rules.honest)
    starts = range(1 << len(rules.honest)) if waiting else range(1)
    found: dict[ViewState, ViewState | None] = {ViewState(empty, waits): None for waits in starts}
    frontier = list(found)
    while frontier:
        following = []
        for state in frontier:
            for new in steps(rules, state, candidates, leader):
                if new not in found:
                    found[new] = state
                    following.append(new)
        frontier = following
    return found


def check_own_votes(seats: tuple[SeatVotes, ...]) -> None:
    """Check that no honest seat has made evidence against itself (consensus.md 8.1). Raises Broken."""
    for votes in seats:
        if votes.notarized & votes.notarized - 1:
            raise Broken("E1: an honest seat notarized twice")
        if votes.finalized & votes.finalized - 1:
            raise Broken("E2: an honest seat finalized twice")
        if votes.nullified and votes.finalized:
            raise Broken("E3: an honest seat nullified and finalized")


@cache
def outcomes(rules: Rules, candidates: int) -> dict[Outcome, ViewState]:
    """Every set of certificates that a view can have, up to the names of candidates, with one state for each."""
    found: dict[Outcome, ViewState] = {}
    for state in reachable(rules, candidates):
        made = outcome(rules, state.seats, candidates)
        if not any(other in found for other in _renamed(made, candidates)):
            found[made] = state
    return found


def _renamed(made: Outcome, candidates: int) -> Iterator[Outcome]:
    for names in permutations(range(candidates)):
        notarized = sum((made.notarized >> old & 1) << new for old, new in enumerate(names))
        finalized = sum((made.finalized >> old & 1) << new for old, new in enumerate(names))
        yield Outcome(notarized, made.is_null, finalized)


def path(found: dict[ViewState, ViewState | None], state: ViewState) -> list[ViewState]:
    """The states on the way from the beginning of the view."""
    way: list[ViewState] = []
    at: ViewState | None = state
    while at is not None:
        way.append(at)
        at = found[at]
    return way[::-1]
