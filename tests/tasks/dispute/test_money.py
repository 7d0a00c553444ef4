"""Shares of a lost bond, prices of challenges, clocks, and a game's record."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from state.primitives.errors import DecodeError
from state.primitives.merkle import LEAVES_MAX
from tasks.dispute.clock import Clock
from tasks.dispute.commitments import StepRecord
from tasks.dispute.game import MOVES_MAX, Descent, Fold, Game, Interval, Side, Stage
from tasks.dispute.judge import Element
from tasks.dispute.moves import FANOUT, FOLD_LIMIT, RECORDS_MAX, TENSOR_NUMBER_MAX, Tree
from tasks.dispute.records import GAME_LIMIT_BYTES, decode_game, encode_game
from tasks.dispute.shares import challenge_bond, share_out
from tasks.programs.tensors import DIMENSION_MAX
from tests.fuzz.targets.disputes import _game

AMOUNTS = st.integers(0, 1 << 100)


@given(AMOUNTS, st.integers(0, 8), st.booleans(), AMOUNTS, st.lists(AMOUNTS, max_size=8))
def test_shares_sum_to_the_bond_and_a_fifth_is_burned(
    bond: int, verifiers: int, outsider: bool, costs: int, successors: list[int]
) -> None:
    shares = share_out(bond, verifiers=verifiers, has_outsider=outsider, costs=costs, successors=successors)
    assert shares.total == bond
    assert min(shares.burned, shares.costs, *shares.verifiers, *shares.successors, 0) == 0
    assert 5 * shares.burned >= bond
    assert sum(shares.successors) * 5 <= bond
    assert all(paid <= cost for paid, cost in zip(shares.successors, successors, strict=True))


@given(AMOUNTS, AMOUNTS)
def test_no_group_of_liar_verifiers_requester_and_outsider_gets_the_bond_back(bond: int, costs: int) -> None:
    """Whoever challenges himself with all seats at hand still burns a fifth."""
    for verifiers in range(4):
        shares = share_out(bond, verifiers=verifiers, has_outsider=True, costs=costs, successors=[bond])
        assert bond - shares.burned <= bond - bond // 5


def test_verifiers_get_what_the_rule_says() -> None:
    one = share_out(10_000, verifiers=1, has_outsider=True, costs=100)
    assert (one.verifiers, one.outsider, one.requester, one.costs, one.burned) == (
        (3_500,),
        1_000,
        1_000,
        100,
        4_400,
    )
    two = share_out(10_000, verifiers=2, has_outsider=True, costs=0)
    assert (two.verifiers, two.outsider, two.requester, two.burned) == ((2_500, 2_500), 0, 0, 5_000)
    none = share_out(10_000, verifiers=0, has_outsider=False, costs=0)
    assert (none.verifiers, none.outsider, none.requester, none.burned) == ((), 0, 1_000, 9_000)


def test_freezing_a_window_by_challenges_doubles_in_price() -> None:
    assert [challenge_bond(1_000, seals) for seals in (0, 3, 4, 7, 8, 40)] == [100, 100, 200, 200, 400, 102_400]
    assert challenge_bond(10**30, 10**6) == challenge_bond(10**30, 4 * 64)


def test_a_clock_runs_for_who_is_to_move_and_for_a_side_in_all() -> None:
    clock = Clock.start(Side.ACCUSED, 1_000, 300)
    assert clock.deadline_ms(120) == 1_120
    clock = clock.moved(Side.CHALLENGER, 1_100)
    assert (clock.accused_left_ms, clock.challenger_left_ms) == (200, 300)
    clock = clock.moved(Side.ACCUSED, 1_110).moved(Side.CHALLENGER, 1_230).moved(Side.ACCUSED, 1_230)
    assert clock.accused_left_ms == 80
    assert clock.deadline_ms(120) == 1_310  # less than a move's time is left
    assert clock.stopped(50).deadline_ms(120) == 1_360
    assert clock.stopped(50).moved(Side.CHALLENGER, 1_250).accused_left_ms == 80


@pytest.mark.parametrize("seed", range(6))
def test_a_game_comes_back_from_its_record(seed: int) -> None:
    for game in _game(seed)[1]:
        data = encode_game(game)
        assert len(data) <= GAME_LIMIT_BYTES
        assert decode_game(data) == game


def test_the_largest_games_are_within_the_limit() -> None:
    record = StepRecord(b"s" * 32, b"w" * 32, (1 << 64) - 1)
    start = Game(Stage.PICK_PART, Interval((1 << 32) - 2, 1, record, record), MOVES_MAX)
    game = start._replace(stage=Stage.PICK, trace_root=bytes(32), probe_root=bytes(32))
    descent = Descent(Tree.TENSOR, TENSOR_NUMBER_MAX - 1, bytes(32), LEAVES_MAX, 32, LEAVES_MAX - 1, bytes(32))
    element = Element(TENSOR_NUMBER_MAX - 1, DIMENSION_MAX - 1, DIMENSION_MAX - 1)
    fold = Fold(DIMENSION_MAX - 1, DIMENSION_MAX, -FOLD_LIMIT)
    partials = (-FOLD_LIMIT,) * FANOUT
    for largest in (
        start._replace(records=(record,) * RECORDS_MAX),
        game._replace(descent=descent, shown=(b"n" * 32,) * FANOUT, element=element, fold=fold),
        game._replace(stage=Stage.FOLD_PICK, element=element, fold=fold, partials=partials, shown=(bytes(8),)),
    ):
        assert decode_game(encode_game(largest)) == largest


def test_other_bytes_are_no_game() -> None:
    random = Random(1)
    data = encode_game(_game(0)[1][3])
    for _ in range(300):
        at = random.randrange(len(data))
        changed = data[:at] + bytes([random.randrange(256)]) + data[at + 1 :]
        try:
            game = decode_game(changed)
        except DecodeError:
            continue
        assert encode_game(game) == changed
