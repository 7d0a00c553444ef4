"""Committee selection: capped stakes, or anchors and a lottery over the smaller stakes (consensus.md 10).

All numbers are integers.

Up to ``seats_max`` candidates: each gets a seat, and no weight is above a tenth of the whole (or 1.2 equal shares
where there are few seats). More candidates: the largest are anchors with their exact stake. The rest, the tail,
is represented by lottery tickets of equal weight.

The lottery is sequential pivotal sampling (Deville and Tille 1998): a candidate of the tail expects exactly
``tickets x stake / tail`` tickets and gets that number rounded down or up, so one with less than a ticket's stake
never holds two. What each gets is negatively associated with what the others get, so no faulty part of the tail is
drawn above its share more often than in independent draws, and splitting a stake gains nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Final, NamedTuple

from state.primitives.committee import Committee, Seat
from state.primitives.hashing import digest

__all__ = [
    "CANDIDATES_MAX",
    "Candidate",
    "Draw",
    "Drawn",
    "Selection",
    "anchors_of",
    "cap_weights",
    "draw_seats",
    "draw_tickets",
    "limit_growth",
    "permutation",
    "seated",
    "select",
]

CANDIDATES_MAX: Final = 1_024
"""Maximum number of candidates: the largest stakes."""
CAP_DIVISOR: Final = 10
"""No seat weighs more than this part of a committee in which each candidate has a seat ..."""
CAP_EQUAL_SHARES: Final = (12, 10)
"""... unless it is no more than so many equal shares, because few sit."""
TAIL_DIVISOR: Final = 5
"""There are as few anchors as leave this part of the stake, or less, to the lottery."""
GROWTH_DIVISOR: Final = 2
"""New weight of a committee is at most this share of the kept weight: a third of the total."""
_DRAW_BITS: Final = 256


class Candidate(NamedTuple):
    """A frozen stake with its keys."""

    address: bytes
    vote_key: bytes
    vrf_key: bytes
    stake: int


class Selection(NamedTuple):
    """A committee and how it was selected.

    ``lottery_weight`` is the part of its weight that lottery seats hold. With ``is_tail_large`` even the most
    anchors leave too much stake to the lottery: there are too few seats for this distribution of stakes. An event
    reports it.
    """

    committee: Committee
    anchors: int
    lottery_weight: int
    is_tail_large: bool


class Draw:
    """Deterministic random integers: BLAKE2b of a seed and a counter.

    Values outside the bound are rejected, so all results are equally likely.
    """

    __slots__ = ("_counter", "_seed")

    def __init__(self, seed: bytes) -> None:
        self._seed = seed
        self._counter = 0

    def below(self, bound: int) -> int:
        """Return the next integer in ``[0, bound)``; ``bound`` is positive and below 2^256."""
        shift = _DRAW_BITS - (bound - 1).bit_length()
        while True:
            block = digest(b"draw", self._seed + self._counter.to_bytes(8, "big"))
            self._counter += 1
            value = int.from_bytes(block, "big") >> shift
            if value < bound:
                return value


class Drawn(NamedTuple):
    """The result of the draw; operators that were jailed since the stakes were frozen are left out.

    ``ranked`` are the candidates, the largest first, ``tickets`` the lottery weights of those behind the
    ``anchors``, ``order`` numbers in ``ranked``.
    """

    ranked: list[Candidate]
    anchors: int
    tickets: list[int]
    order: list[int]
    is_tail_large: bool


def select(candidates: Iterable[Candidate], *, epoch: int, randomness: bytes, seats_max: int) -> Selection:
    """Return the committee of ``epoch``; ``candidates``, one or more, may come in any order."""
    selection = seated(draw_seats(candidates, epoch=epoch, randomness=randomness, seats_max=seats_max))
    if selection is None:
        raise AssertionError("a committee without candidates")
    return selection


def draw_seats(candidates: Iterable[Candidate], *, epoch: int, randomness: bytes, seats_max: int) -> Drawn:
    """Draw the tickets of the lottery and the order of leaders."""
    ranked = sorted(candidates, key=lambda candidate: (-candidate.stake, candidate.address))[:CANDIDATES_MAX]
    seed = randomness + epoch.to_bytes(4, "big")
    anchors, is_tail_large, tickets = len(ranked), False, []
    if len(ranked) > seats_max:
        anchors, is_tail_large = anchors_of([candidate.stake for candidate in ranked], seats_max)
        tail = [candidate.stake for candidate in ranked[anchors:]]
        won = draw_tickets(tail, seats_max - anchors, Draw(digest(b"lottery", seed)))
        tickets = _ticket_weights(won, sum(tail))
    drawn = [*range(anchors), *(anchors + number for number, weight in enumerate(tickets) if weight)]
    order = permutation(len(drawn), Draw(digest(b"leaders", seed)))
    return Drawn(ranked, anchors, tickets, [drawn[number] for number in order], is_tail_large)


def seated(drawn: Drawn, absent: Collection[bytes] = ()) -> Selection | None:
    """Return the drawn committee without ``absent`` operators, whose seats stay empty; None if none is left.

    Nothing is drawn again for them. The leader of the last block of an epoch knows its randomness, and could try
    which of its own accounts to have jailed until it likes the draw.
    """
    ranked, anchors, tickets, order, is_tail_large = drawn
    present = [number for number in sorted(order) if ranked[number].address not in absent]
    if not present:
        return None
    firm = [ranked[number].stake for number in present if number < anchors]
    lots = [tickets[number - anchors] for number in present if number >= anchors]
    weights = [*firm, *lots] if tickets else cap_weights(firm)
    seats = [Seat(*ranked[number][:3], weight) for number, weight in zip(present, weights, strict=True)]
    places = {number: place for place, number in enumerate(present)}
    committee = Committee(seats, [places[number] for number in order if number in places])
    return Selection(committee, len(firm), sum(lots), is_tail_large)


def limit_growth(
    selection: Selection, before: Committee, *, seats_max: int, out: Callable[[bytes], bool]
) -> Selection:
    """Return ``selection`` with its new weight since ``before`` cut to a third of the total.

    The weight can grow by half in each epoch, so a large new stake, or a large addition to an old one, has all of
    its weight after some epochs and takes no chain over at once. Lottery seats keep the weight that was drawn. If
    no member of ``before`` is selected, members that are not ``out`` keep seats beside the new ones; if there
    are none, the new ones sit alone. There are never more than ``seats_max`` seats.
    """
    committee, firm = selection.committee, selection.anchors
    held = {seat.address: seat.weight for seat in before.seats}
    kept = [min(seat.weight, held.get(seat.address, 0)) for seat in committee.seats[:firm]]
    grown = [seat.weight - stays for seat, stays in zip(committee.seats[:firm], kept, strict=True)]
    stays_on: list[Seat] = []
    if not any(seat.address in held for seat in committee.seats):
        stays_on = [seat for seat in before.seats if not out(seat.address)][: seats_max - 1]
        if not stays_on:
            return selection
    whole = sum(kept) + selection.lottery_weight * (not stays_on) + sum(seat.weight for seat in stays_on)
    room, growth = whole // GROWTH_DIVISOR, sum(grown)
    if growth <= room and not stays_on:
        return selection
    if stays_on:  # the lottery, too, is of new ones alone
        kept, grown = [0] * committee.size, list(committee.weights)
        growth = sum(grown)
    cut = min(room, growth)
    weights = [stays + more * cut // growth for stays, more in zip(kept, grown, strict=True)]
    seats = [seat._replace(weight=max(1, weight)) for seat, weight in zip(committee.seats, weights, strict=False)]
    seats += committee.seats[len(weights) :]
    order = list(committee.order)
    if stays_on:
        seats = seats[: seats_max - len(stays_on)]
        order = [number for number in order if number < len(seats)]
        order += range(len(seats), len(seats) + len(stays_on))
        seats += stays_on
    lottery = sum(seat.weight for seat in seats[firm : len(seats) - len(stays_on)])
    return selection._replace(committee=Committee(seats, order), lottery_weight=lottery)


def cap_weights(stakes: Sequence[int]) -> list[int]:
    """Return the weights of a committee in which each candidate has a seat: the stakes, cut to one cap.

    The cap is the largest integer that is at most the allowed part of the sum of the weights, themselves capped.
    """
    count = len(stakes)
    numerator, denominator = 1, CAP_DIVISOR
    if CAP_EQUAL_SHARES[0] * CAP_DIVISOR >= CAP_EQUAL_SHARES[1] * count:
        numerator, denominator = CAP_EQUAL_SHARES[0], CAP_EQUAL_SHARES[1] * count

    def is_allowed(cap: int) -> bool:
        return cap * denominator <= numerator * sum(min(stake, cap) for stake in stakes)

    # Allowed caps are all up to one: the right side is concave in the cap, both are 0 at 0, and a cap of 1 passes.
    low, high = 1, max(stakes)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if is_allowed(middle) else (low, middle - 1)
    return [min(stake, low) for stake in stakes]


def anchors_of(stakes: Sequence[int], seats_max: int) -> tuple[int, bool]:
    """Return how many of ``stakes``, largest first, are anchors, and whether they leave too much to the lottery.

    They are 50 to 67 of 100 seats. Fewer lottery seats than the rest would make the draw vary too much.
    """
    total = sum(stakes)
    fewest, most = (seats_max + 1) // 2, (2 * seats_max + 2) // 3
    tail = total - sum(stakes[:fewest])
    for anchors in range(fewest, most):
        if tail * TAIL_DIVISOR <= total:
            return anchors, False
        tail -= stakes[anchors]
    return most, tail * TAIL_DIVISOR > total


def draw_tickets(stakes: Sequence[int], tickets: int, draw: Draw) -> list[int]:
    """Return how many of ``tickets`` each stake gets: its exact share, rounded up or down by the draw.

    Shares are kept in parts of the sum of the stakes. Of two candidates with a broken share one gets what the
    other has, up to a whole ticket, with the chances that leave the expectation of both as it was; the candidate
    that keeps a broken share meets the next one.
    """
    whole = sum(stakes)
    won = [0] * len(stakes)
    holder, held = 0, 0
    for number, stake in enumerate(stakes):
        won[number], part = divmod(stake * tickets, whole)
        if held == 0 or part == 0:
            if part:
                holder, held = number, part
            continue
        both = held + part
        if both < whole:  # one has it all, the other nothing
            if draw.below(both) < part:
                holder = number
            held = both
        else:  # one has a whole ticket, the other the rest
            rest = both - whole
            is_newer_whole = draw.below(2 * whole - both) < whole - held
            winner, loser = (number, holder) if is_newer_whole else (holder, number)
            won[winner] += 1
            holder, held = loser, rest
    if held:
        raise AssertionError("the broken shares of all candidates make whole tickets")
    return won


def _ticket_weights(won: Sequence[int], tail: int) -> list[int]:
    """Return the weights of ``won`` tickets, which sum to ``tail``; its remainder goes to the first tickets."""
    worth, extra = divmod(tail, max(sum(won), 1))
    weights = []
    for tickets in won:
        more = min(tickets, extra)
        extra -= more
        weights.append(tickets * worth + more)
    return weights


def permutation(size: int, draw: Draw) -> list[int]:
    """Return the numbers below ``size`` shuffled (Fisher and Yates)."""
    order = list(range(size))
    for last in range(size - 1, 0, -1):
        other = draw.below(last + 1)
        order[last], order[other] = order[other], order[last]
    return order
