"""The books of a scenario: every coin has come from somebody and gone to somebody, or is burned."""

from __future__ import annotations

from itertools import count

from rpc.client.results import Bill, BillLine, EscrowTotals
from testnet.scenarios.books import make_books, verdict

REQUESTER, LIAR, VERIFIER = (bytes([number]) * 20 for number in (1, 2, 3))
NUMBERS = count()


def line(movement: str, party: bytes | None, amount: int) -> BillLine:
    return BillLine(
        document={}, number=next(NUMBERS), height=1, movement=movement, purpose="", party=party, amount=amount,
        window=None,
    )  # fmt: skip


def bill(*lines: BillLine, locked: int = 0) -> Bill:
    sums = {name: sum(x.amount for x in lines if x.movement == name) for name in ("paid", "refunded", "burned")}
    totals = EscrowTotals(document={}, deposited=sum(sums.values()) + locked, locked=locked, **sums)
    return Bill(lines, totals)


def test_a_bond_in_the_task_that_is_shared_out_is_its_owners_loss() -> None:
    books = make_books(
        [bill(
            line("locked", REQUESTER, 100), line("locked", LIAR, 1_000), line("held", LIAR, 40),
            line("paid", VERIFIER, 350), line("refunded", REQUESTER, 200), line("burned", None, 550),
        )],
        {},
    )  # fmt: skip
    assert books.gains == {REQUESTER: 100, LIAR: -1_000, VERIFIER: 350}
    assert (books.burned, books.is_exact) == (550, True)


def test_a_machines_own_bond_is_lost_only_where_it_goes_to_others_or_is_burned() -> None:
    moved = [
        line("locked", LIAR, 500), line("paid", VERIFIER, 30), line("burned", None, 20),
        line("refunded", LIAR, 450),
    ]  # fmt: skip
    books = make_books([bill()], {LIAR: moved})
    assert books.gains == {LIAR: -50, VERIFIER: 30}
    assert (books.burned, books.is_exact) == (20, True)


def test_books_of_a_task_that_has_not_ended_name_what_is_locked() -> None:
    books = make_books([bill(line("locked", REQUESTER, 100), line("paid", LIAR, 30), locked=70)], {})
    assert (books.locked, books.is_exact) == (70, True)


def test_one_sentence_says_who_lost_for_what_it_did() -> None:
    coin = 10**18
    assert verdict("worker-0", {"worker-0": -2 * coin}, []) == (
        "worker-0 cheated and lost 2 DKB; no honest machine lost anything."
    )
    assert verdict(None, {}, []) == "Nobody cheated; no honest machine lost anything."
    assert verdict("worker-0", {"worker-0": 0}, ["worker-1"]) == (
        "worker-0 CHEATED AND LOST NOTHING; worker-1 LOST WITHOUT A FAULT."
    )
