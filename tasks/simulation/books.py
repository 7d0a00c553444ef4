"""What an order that is not honest gains in one call: many small books, cleared with it and without it.

There is no chain here, only ``tasks.ledger.auction``. All machines fit all jobs, and each has one slot. An honest
seller asks its cost, an honest requester bids what its job is worth. Gains are in parts of the mean cost.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

from tasks.ledger.auction import Ask, Bid, Outcome, clear
from tasks.ledger.fitting import Needs, Traits
from tasks.simulation.dice import Dice

__all__ = ["WAYS", "Book", "Gain", "search"]

COST_MEAN: Final = 1_000
MACHINES: Final = 6
LOADS: Final[Mapping[str, tuple[int, int]]] = {
    "2 bids": (2, 6),
    "5 bids": (5, 6),
    "6 bids": (6, 6),
    "9 bids": (9, 6),
}
FACTORS: Final = tuple(range(50, 305, 10))
"""Percentages of cost, worth or another's limit that are tried."""
SEGMENTS: Final = 32
"""A match that is left costs a segment; the only window of a job has so many."""


class Book(NamedTuple):
    """Asks and bids; the first of each is the one that may be another."""

    asks: tuple[Ask, ...]
    bids: tuple[Bid, ...]


class Gain(NamedTuple):
    """The best of the factors in the mean, and what it gains; and the most that the best one gained in a book."""

    factor: int
    mean: float
    most: float


def _ask(number: int, price: int, dice: Dice) -> Ask:
    return Ask(number.to_bytes(20, "big"), price, 1, 1 << 60, Traits(), 0, dice.bytes())


def _bid(number: int, limit: int, dice: Dice) -> Bid:
    return Bid(number.to_bytes(32, "big"), limit, Needs(), frozenset(), dice.bytes())


def draw_book(dice: Dice, bids: int, machines: int) -> Book:
    """Return a book with costs of half to one and a half of the mean, and worths of one to three."""
    return Book(
        tuple(_ask(at, COST_MEAN // 2 + dice.below(COST_MEAN), dice) for at in range(machines)),
        tuple(_bid(at, COST_MEAN + dice.below(2 * COST_MEAN), dice) for at in range(bids)),
    )


def _no_bond(_bid: Bid, _ask: Ask, _price: int) -> int:
    return 0


def _clear(asks: Sequence[Ask], bids: Sequence[Bid]) -> Outcome:
    return clear(asks, bids, _no_bond)


def _income(outcome: Outcome, book: Book, decoy: bytes = b"") -> int:
    """Return what the first seller gets beyond its cost; from a bid of its own it gets nothing."""
    mine = book.asks[0]
    return sum(
        match.price - mine.price
        for match in outcome.matches
        if match.ask.machine == mine.machine and match.bid.task != decoy
    )


def _saving(outcome: Outcome, book: Book) -> int:
    mine = book.bids[0]
    return sum(mine.limit - match.price for match in outcome.matches if match.bid.task == mine.task)


def shaded_ask(book: Book, factor: int, _dice: Dice) -> int:
    """Ask another price than the own cost."""
    asks = (book.asks[0]._replace(price=max(1, book.asks[0].price * factor // 100)), *book.asks[1:])
    return _income(_clear(asks, book.bids), book) - _income(_clear(*book), book)


def shaded_bid(book: Book, factor: int, _dice: Dice) -> int:
    """Bid another limit than the job is worth."""
    bids = (book.bids[0]._replace(limit=max(1, book.bids[0].limit * factor // 100)), *book.bids[1:])
    return _saving(_clear(book.asks, bids), book) - _saving(_clear(*book), book)


def decoy_bid(book: Book, factor: int, dice: Dice) -> int:
    """As a seller, bid a share of the highest limit in the book under another name."""
    highest = max(bid.limit for bid in book.bids)
    decoy = _bid(1 << 64, max(1, highest * factor // 100), dice)
    outcome = _clear(book.asks, (*book.bids, decoy))
    paid = sum(
        match.price
        for match in outcome.matches
        if match.bid == decoy and match.ask.machine != book.asks[0].machine
    )
    return _income(outcome, book, decoy.task) - paid // SEGMENTS - _income(_clear(*book), book)


def reposted_bid(book: Book, factor: int, _dice: Dice) -> int:
    """As a requester, leave a match that costs more than a share of the worth, for a segment, and bid again.

    In the next call stand the machines that others did not take, and the bids that went without.
    """
    mine, first = book.bids[0], _clear(*book)
    paid = next((match.price for match in first.matches if match.bid.task == mine.task), 0)
    if not paid or paid * 100 <= mine.limit * factor:
        return 0
    taken = {match.ask.machine for match in first.matches if match.bid.task != mine.task}
    asks = tuple(ask for ask in book.asks if ask.machine not in taken)
    again = Book(asks, (mine, *first.outbid, *first.unmet))
    return _saving(_clear(*again), again) - paid // SEGMENTS - (mine.limit - paid)


WAYS: Final[Mapping[str, Callable[[Book, int, Dice], int]]] = {
    "shaded ask": shaded_ask, "shaded bid": shaded_bid, "decoy bid": decoy_bid, "cancel and repost": reposted_bid,
}  # fmt: skip


def search(way: str, load: str, books: int) -> Gain:
    """Try all factors of a way on the same books; the mean of the best is of other books than it was chosen on."""
    bids, machines = LOADS[load]

    def gains(factor: int, part: str) -> list[int]:
        dice = Dice(b"books").fork(f"{way} {load} {part}")
        return [WAYS[way](draw_book(dice, bids, machines), factor, dice) for _ in range(books)]

    sums = {factor: sum(gains(factor, "choice")) for factor in FACTORS}
    best = max(FACTORS, key=lambda factor: (sums[factor], -abs(factor - 100)))
    found = gains(best, "judgement")
    return Gain(best, round(sum(found) / books / COST_MEAN, 3), round(max(found) / COST_MEAN, 3))
