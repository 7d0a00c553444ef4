"""The checker of histories: right ones pass, and each way to be wrong is found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.cluster.history import ChainBlock, Final, History, Read, Transfer, check

ALICE, BOB, CAROL = b"a" * 20, b"b" * 20, b"c" * 20
PEOPLE = (ALICE, BOB, CAROL)
GENESIS = dict.fromkeys(PEOPLE, 10**9)
GAS, BASE_FEE = 21_000, 7


def transfer(sender: bytes, nonce: int, to: bytes, value: int, *, tip: int = 0) -> Transfer:
    name = sender[:1] + nonce.to_bytes(31, "big")
    return Transfer(name, sender, nonce, to, value, GAS, BASE_FEE + tip, tip)


def chained(*bodies: tuple[Transfer, ...]) -> list[ChainBlock]:
    hashes = [number.to_bytes(32, "big") for number in range(len(bodies) + 1)]
    return [
        ChainBlock(number, hashes[number], hashes[number - 1], BASE_FEE, body)
        for number, body in enumerate(bodies, 1)
    ]


FIRST, SECOND, THIRD = (
    transfer(ALICE, 0, BOB, 5),
    transfer(BOB, 0, CAROL, 10**9),
    transfer(ALICE, 1, BOB, 6, tip=3),
)
CHAIN = chained((FIRST,), (), (SECOND, THIRD), ())
FEE = GAS * BASE_FEE
AFTER_FIRST = 10**9 - FEE - 5
"""Of Alice."""


def read(member: str, account: bytes, height: int, balance: int, at_s: float, **more: object) -> Read:
    whole = Read(member, account, height, height, at_s, at_s + 0.5, balance, None, CHAIN[height - 1].hash)
    return replace(whole, **more)  # type: ignore[arg-type]


def right() -> History:
    """A history of two members, one of them behind."""
    return History(
        sent={item.hash: "somebody" for item in (FIRST, SECOND, THIRD)},
        finals=[
            Final("one", FIRST.hash, 1, CHAIN[0].hash, True), Final("two", SECOND.hash, 3, CHAIN[2].hash, False)
        ],
        reads=[
            read("one", ALICE, 1, AFTER_FIRST, 1, nonce=1),
            read("one", ALICE, 2, AFTER_FIRST, 2, height_min=2),
            read("two", ALICE, 1, AFTER_FIRST, 3),
            read("one", BOB, 3, 10**9 + 5 - FEE + 6, 4),
            read("one", BOB, 2, 10**9 + 5, 5, is_newest=False),
            read("two", ALICE, 1, 10**9 - 2 * FEE - 3 * GAS - 11, 6, high=4, nonce=2, block=None),
        ],
        told={"follower": [(block.height, block.hash) for block in CHAIN[:3]]},
    )  # fmt: skip


def test_a_right_history_has_no_fault() -> None:
    assert check(right(), CHAIN, GENESIS) == []


def elsewhere(**more: object) -> Callable[[History], object]:
    return lambda it: it.finals.append(replace(it.finals[0], **more))  # type: ignore[arg-type]


def seen(
    member: str, account: bytes, height: int, balance: int, at_s: float = 9, **more: object
) -> Callable[[History], object]:
    return lambda it: it.reads.append(read(member, account, height, balance, at_s, **more))


def told(height: int, block: bytes) -> Callable[[History], object]:
    return lambda it: it.told["follower"].append((height, block))


WRONG: dict[str, tuple[Callable[[History], object], str]] = {
    "lost": (lambda it: it.sent.update({b"n" * 32: "somebody"}), "is nowhere"),
    "final elsewhere": (elsewhere(height=2, block=CHAIN[1].hash), "has it at 1"),
    "final in a block that went": (elsewhere(block=b"x" * 32), "not the chain's"),
    "final and nowhere": (elsewhere(transfer=b"n" * 32), "has it at None"),
    "another outcome": (elsewhere(succeeded=False), "another outcome"),
    "another balance": (seen("one", ALICE, 4, AFTER_FIRST), "the chain says"),
    "another nonce": (seen("one", ALICE, 1, AFTER_FIRST, 1, nonce=0), "the chain says"),
    "a balance of no height between": (seen("two", ALICE, 3, AFTER_FIRST, high=4, block=None), "the chain says"),
    "another block": (seen("two", CAROL, 4, 10**9, block=b"x" * 32), "not the chain's"),
    "a height that is not there": (seen("two", CAROL, 4, 10**9, high=5), "has 4 blocks"),
    "did not wait": (seen("two", CAROL, 3, 10**9, height_min=4), "to be waited for"),
    "went back": (seen("one", CAROL, 2, 10**9), "went back from 3 to 2"),
    "told twice": (told(3, CHAIN[2].hash), "where 4 is due"),
    "told of another block": (told(4, b"x" * 32), "not the chain's"),
    "not told of one": (lambda it: it.told["follower"].pop(0), "where 1 is due"),
    "refused": (lambda it: it.refusals.append("one: internal_error"), "internal_error"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_each_wrong_history_is_found(name: str) -> None:
    history = right()
    spoil, word = WRONG[name]
    spoil(history)
    [fault] = check(history, CHAIN, GENESIS)
    assert word in fault


def test_who_asks_before_the_other_had_an_answer_may_be_told_of_an_older_block() -> None:
    history = right()
    history.reads.append(read("one", CAROL, 2, 10**9, 4.4))
    assert check(history, CHAIN, GENESIS) == []


@pytest.mark.parametrize(
    ("bodies", "word"),
    [
        (((FIRST,), (FIRST,)), "stands at 1 already"),
        (((THIRD,),), "has nonce 1, 0 is due"),
        (((FIRST,), (replace(FIRST, hash=b"n" * 32),)), "has nonce 0, 1 is due"),
        (((replace(FIRST, fee_cap=BASE_FEE - 1),),), "does not pay the base fee"),
        (((replace(FIRST, gas=10**9),),), "cannot pay its fee"),
    ],
)
def test_a_chain_that_breaks_the_rules_of_transfers_is_found(
    bodies: tuple[tuple[Transfer, ...], ...], word: str
) -> None:
    [fault] = check(History(), chained(*bodies), GENESIS)
    assert word in fault


def test_a_chain_with_a_gap_or_a_wrong_parent_is_found() -> None:
    assert "in the place of 2" in check(History(), [CHAIN[0], CHAIN[2]], GENESIS)[0]
    assert "does not stand" in check(History(), [CHAIN[0], replace(CHAIN[1], parent_hash=b"x" * 32)], GENESIS)[0]


def test_a_transfer_of_all_that_is_left_moves_and_of_more_does_not() -> None:
    for value, moves in ((10**9 - FEE, True), (10**9 - FEE + 1, False)):
        chain = chained((replace(SECOND, value=value),))
        final = Final("one", SECOND.hash, 1, chain[0].hash, moves)
        assert check(History(finals=[final]), chain, GENESIS) == []
        assert check(History(finals=[replace(final, succeeded=not moves)]), chain, GENESIS)


people = st.sampled_from(PEOPLE)
bodies_of_people = st.lists(
    st.lists(st.tuples(people, people, st.integers(0, 10**9), st.integers(0, 9)), max_size=4),
    min_size=1,
    max_size=6,
)


@settings(max_examples=60, deadline=None)
@given(bodies_of_people, st.data())
def test_reads_of_any_chain_are_right_as_they_are_and_wrong_by_one(
    moves: list[list[tuple[bytes, bytes, int, int]]], data: st.DataObject
) -> None:
    nonces, balances, bodies = dict.fromkeys(PEOPLE, 0), dict(GENESIS), []
    after: list[dict[bytes, int]] = [dict(GENESIS)]
    for block in moves:
        body = []
        for sender, to, value, tip in block:
            body.append(transfer(sender, nonces[sender], to, value, tip=tip))
            nonces[sender] += 1
            balances[sender] -= GAS * (BASE_FEE + tip)
            if balances[sender] >= value:
                balances[sender] -= value
                balances[to] += value
        bodies.append(tuple(body))
        after.append(dict(balances))
    if min(balances.values()) < 0:
        return
    chain = chained(*bodies)
    height, account = data.draw(st.integers(0, len(chain))), data.draw(st.sampled_from(PEOPLE))
    found = Read("one", account, height, height, 0, 1, after[height][account])
    assert check(History(reads=[found]), chain, GENESIS) == []
    assert check(History(reads=[replace(found, balance=after[height][account] + 1)]), chain, GENESIS)
    wider = replace(found, low=data.draw(st.integers(0, height)), high=data.draw(st.integers(height, len(chain))))
    assert check(History(reads=[wider]), chain, GENESIS) == []
