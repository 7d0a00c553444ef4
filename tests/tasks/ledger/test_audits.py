"""What audits cost and deter, computed from the functions that the chain uses (market.md R29 to R31)."""

from __future__ import annotations

from fractions import Fraction
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.dispute.shares import share_out
from tasks.ledger.audits import (
    SURE,
    Audit,
    allowance,
    audit_of,
    average_cost,
    bond_floor,
    check_fee,
    check_floor,
    contribution,
    is_hit,
    samples_of,
)
from tasks.ledger.parameters import TaskParameters

P: Final = TaskParameters()
DKB: Final = 10**18
HONEST: Final = Fraction(2, 5)
"""h: the chance that a drawn audit meets an honest verifier."""
FEES: Final = st.integers(1, 10**12)
PRICES: Final = st.integers(1, 10**24)


def check_price(window: int, segments: int, verifiers: int, base_fee: int) -> int:
    """F of a window."""
    again = samples_of(segments, verifiers, P)
    return check_fee(base_fee, window * again // segments, P)


# The functions


@given(PRICES, st.integers(0, 10**27), st.booleans())
def test_an_audit_is_as_probable_as_the_price_is_of_the_bond(charge: int, bond: int, is_new: bool) -> None:
    audit = audit_of(charge, bond, is_new=is_new, parameters=P)
    exact = min(Fraction(1), (40 if is_new else 10) * Fraction(charge, bond)) if bond else Fraction(1)
    assert 0 <= audit.chance - exact * SURE < 1
    assert audit.verifiers == (2 if audit.chance == SURE else 1)


@given(PRICES, st.integers(1, 10**27), st.integers(0, 10_000))
def test_a_genesis_may_say_how_often_at_least(charge: int, bond: int, bps: int) -> None:
    forced = audit_of(charge, bond, is_new=False, parameters=TaskParameters(audit_bps=bps))
    usual = audit_of(charge, bond, is_new=False, parameters=P)
    assert forced.chance == max(usual.chance, SURE * bps // 10_000) and forced.verifiers == usual.verifiers


def test_lots_follow_the_chance() -> None:
    whole = 1 << 256
    for chance in (0, 1, SURE // 3, SURE - 1, SURE):
        edge = -(-whole * chance // SURE)
        assert edge == whole or not is_hit(chance, edge.to_bytes(32, "big"))
        assert not edge or is_hit(chance, (edge - 1).to_bytes(32, "big"))


@given(st.integers(1, 256), st.integers(1, 8))
def test_samples_are_four_in_all_and_a_thirtysecond_where_segments_allow_it(segments: int, verifiers: int) -> None:
    samples = samples_of(segments, verifiers, P)
    assert 1 <= samples <= segments
    assert samples == 1 or (samples * verifiers <= 4 and 32 * samples * verifiers <= segments)
    if segments >= 128 and verifiers in (1, 2, 4):
        assert samples * verifiers == 4


@given(PRICES, st.integers(1, 256), FEES, st.booleans(), st.integers(1, 10**6))
def test_what_a_window_owes_is_never_more_than_its_task_has_locked_for_it(
    price: int, segments: int, base_fee: int, is_new: bool, more: int
) -> None:
    """Whatever a worker locks that it may be matched with: at least the floor, and four times the price."""
    least = bond_floor(base_fee, is_new=is_new, parameters=P)
    bond = max(least, 4 * price) * more // 1_000 if more >= 1_000 else max(least, 4 * price)
    audit = audit_of(price, bond, is_new=is_new, parameters=P)
    cost = average_cost(audit, check_price(price, segments, audit.verifiers, base_fee))
    due = contribution(cost, is_below=True)
    rounded = 3 + 2 * average_cost(Audit(1, audit.verifiers), check_price(price, segments, 1, base_fee))
    assert due <= allowance(price, segments, P) + rounded
    if segments >= 128:
        assert allowance(price, segments, P) <= price * 8 // 100 + 3


@given(st.lists(st.tuples(PRICES, FEES, st.integers(1, 1_000)), min_size=1, max_size=20))
def test_windows_pay_in_more_than_their_audits_cost_on_average(windows: list[tuple[int, int, int]]) -> None:
    paid, cost = 0, Fraction(0)
    for price, base_fee, times in windows:
        bond = max(bond_floor(base_fee, is_new=False, parameters=P), 4 * price) * times
        audit = audit_of(price, bond, is_new=False, parameters=P)
        fee = check_price(price, 128, audit.verifiers, base_fee)
        paid += contribution(average_cost(audit, fee), is_below=False)
        cost += Fraction(audit.chance, SURE) * audit.verifiers * fee
    assert paid >= Fraction(11, 10) * cost


# What it costs (the bars)


ASKS: Final = {"low": 10**15, "middle": 3 * 10**16, "high": 10**18}
"""Price of an hour's work, in 10^-18 DKB."""
HOURS_MS: Final = {"1 s": 1_000, "1 min": 60_000, "1 h": 3_600_000, "24 h": 86_400_000}


@pytest.mark.parametrize("is_new", [False, True])
@pytest.mark.parametrize("ask", ASKS.values(), ids=ASKS)
@pytest.mark.parametrize("time_ms", HOURS_MS.values(), ids=HOURS_MS)
def test_verification_costs_a_sixteenth_of_the_work_and_eight_hundredths_of_the_price(
    time_ms: int, ask: int, is_new: bool
) -> None:
    """One window, the worst case: its worker locks the least that it may, at the first base fee of a chain.

    Work is what is run again, and what the worker regenerates to serve the states before the samples: of 128
    segments it keeps every eighth state, so three and a half segments for each sample on average.
    """
    window, base_fee, segments = max(1, ask * time_ms // 3_600_000), 10**9, 128
    bond = max(4 * window, bond_floor(base_fee, is_new=is_new, parameters=P))
    audit = audit_of(window, bond, is_new=is_new, parameters=P)
    chance = Fraction(audit.chance, SURE)
    samples = samples_of(segments, audit.verifiers, P)
    again = chance * Fraction(samples * audit.verifiers, segments)
    kept = Fraction(segments, 16 * samples * audit.verifiers)  # segments between two kept states
    regenerated = chance * samples * (kept - 1) / 2 / segments
    assert again + regenerated <= Fraction(1, 16)
    fee = check_price(window, segments, audit.verifiers, base_fee)
    for is_below in (False, True):
        price = contribution(average_cost(audit, fee), is_below=is_below)
        assert price <= window * 8 // 100 + 2
    floors = chance * audit.verifiers * check_floor(base_fee, P)
    assert floors <= Fraction(2, 75) * window + 1


# What it deters


WORTH: Final = [Fraction(1, over) for over in (2000, 500, 100, 50, 10, 4)]
FORGED: Final = [Fraction(5, 100), Fraction(25, 100), Fraction(1)]
STRATEGIES: Final = ("alone", "accomplices", "bribes", "a third colludes")
BRIBE: Final = Fraction(35, 100)
"""A bribe to a verifier is what it would earn by its verdict: its share of S."""


def caught(part: Fraction, samples: int, verifiers: int, honest: Fraction) -> Fraction:
    """The chance that an audit finds a forged part: verifiers check the same segments."""
    seen = 1 - (1 - part) ** samples
    return seen * (1 - (1 - honest) ** verifiers)


@pytest.mark.parametrize("worth", WORTH)
@pytest.mark.parametrize("part", FORGED)
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_forging_loses_in_each_of_72_cases(worth: Fraction, part: Fraction, strategy: str) -> None:
    """What a forged window brings on average, in parts of S; ``worth`` is W / S.

    The forger saves the forged part of the work and is paid, or it loses S less what flows back to it.
    In "accomplices" its friends challenge first and are the requester's: they get a tenth each.
    In "bribes" it pays each honest verifier that it meets what the verdict is worth to it.
    In "a third colludes" a draw meets an honest verifier with 0.59, and a friend's share of S comes back.
    """
    bond = 10**24
    window = int(worth * bond)
    audit = audit_of(window, bond, is_new=False, parameters=P)
    chance = Fraction(audit.chance, SURE)
    samples = samples_of(128, audit.verifiers, P)
    honest = Fraction(59, 100) if strategy == "a third colludes" else HONEST
    found = chance * caught(part, samples, audit.verifiers, honest)
    saved = part * worth
    loss = Fraction(1)
    if strategy == "accomplices":
        shares = share_out(bond, verifiers=1, has_outsider=True, costs=0)
        loss -= Fraction(shares.outsider + shares.requester, bond)
    elif strategy == "a third colludes" and audit.verifiers == 2:
        loss -= Fraction(share_out(bond, verifiers=1, has_outsider=False, costs=0).verifiers[0], bond)
    elif strategy == "bribes":
        loss = BRIBE if audit.verifiers == 1 else 2 * Fraction(25, 100)
    gain = (1 - found) * saved - found * loss
    assert gain < 0, f"{float(gain):.4f}"
