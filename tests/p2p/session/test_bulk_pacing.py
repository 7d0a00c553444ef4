"""Bulk gives way to votes: on a line that a model keeps full, and no further than helps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from p2p.session.bulk_pacing import BulkPacing, BulkPacingParameters

TICK_S = 0.25
STEPS = 8
"""Of the line, in a tick."""


@dataclass
class Line:
    """A line and a flow that believes it to be a part wider, with at most two round trips' worth under way."""

    bytes_per_s: float
    rtt_s: float
    excess_percent: float
    foreign_s: float = 0.0
    """What waits there of others, whatever this flow does."""
    waiting_s: float = 0.0
    acked: float = 0.0
    bound: int | None = None
    waits: list[float] = field(default_factory=list)

    def tick(self) -> None:
        for _ in range(STEPS):
            step = TICK_S / STEPS
            wanted = self.bytes_per_s * (100 + self.excess_percent) / 100
            rate = wanted if self.bound is None else min(wanted, self.bound)
            if self.waiting_s >= self.rtt_s:
                rate = min(rate, self.bytes_per_s)
            before = self.waiting_s
            self.waiting_s = max(0.0, before + (rate / self.bytes_per_s - 1) * step)
            self.acked += self.bytes_per_s * step if self.waiting_s else (rate * step + before * self.bytes_per_s)
        self.waits.append(self.waiting_s + self.foreign_s)


def play(
    line: Line, *, ticks: int = 400, voting: bool | Callable[[int], bool] = True,
    change: Callable[[int, Line], None] = lambda _at, _line: None,
) -> list[int | None]:  # fmt: skip
    connection, bounds = BulkPacing(), []
    for at in range(ticks):
        change(at, line)
        line.tick()
        if voting if isinstance(voting, bool) else voting(at):
            line.bound = connection.tick(at * TICK_S, acked_bytes=int(line.acked), waiting_s=line.waits[-1])
        else:
            connection.let_go()
            line.bound = None
        bounds.append(line.bound)
    return bounds


RATES = st.floats(1e5, 1e8)
ROUND_TRIPS = st.floats(0.02, 0.3)
EXCESS = st.floats(1, 40)


@settings(max_examples=30)
@given(RATES, ROUND_TRIPS, EXCESS)
def test_what_waits_before_the_line_stays_short_and_the_line_full(
    rate: float, rtt_s: float, excess: float
) -> None:
    unbound, bound = Line(rate, rtt_s, excess), Line(rate, rtt_s, excess)
    play(unbound, voting=False)
    play(bound)
    settled = sorted(bound.waits[80:])
    assert settled[len(settled) * 95 // 100] < 0.020
    assert min(unbound.waits[-40:]) > min(0.9 * rtt_s, 0.020)  # without it, it waits there
    assert bound.acked > 0.93 * unbound.acked


@settings(max_examples=30)
@given(RATES, ROUND_TRIPS, EXCESS)
def test_a_bulk_connection_is_bound_anew_only_by_what_it_carries_since_it_was_let_go(
    rate: float, rtt_s: float, excess: float
) -> None:
    """What it carried before, such as next to nothing while it had nothing to send, binds it no more."""
    connection = BulkPacing()
    for at in range(40):
        connection.tick(at * TICK_S, acked_bytes=at, waiting_s=1.0)
    connection.let_go()
    line = Line(rate, rtt_s, excess, foreign_s=0.05)
    for at in range(40, 60):
        line.tick()
        bound = connection.tick(at * TICK_S, acked_bytes=int(line.acked), waiting_s=line.waits[-1])
        assert bound is None or bound > 0.75 * rate


@settings(max_examples=30)
@given(RATES, ROUND_TRIPS, st.floats(0.011, 1))
def test_what_others_keep_waiting_costs_a_little_for_a_while(rate: float, rtt_s: float, foreign_s: float) -> None:
    line = Line(rate, rtt_s, 0.0, foreign_s)
    bounds = play(line, ticks=1_200)
    assert line.acked > 0.94 * rate * 1_200 * TICK_S
    assert all(bound is None or bound >= 0.8 * 0.99 * rate for bound in bounds)


@settings(max_examples=30)
@given(RATES, ROUND_TRIPS, EXCESS, st.floats(1.5, 20))
def test_a_line_that_grows_is_soon_used(rate: float, rtt_s: float, excess: float, factor: float) -> None:
    def grow(at: int, line: Line) -> None:
        if at == 200:
            line.bytes_per_s *= factor

    line = Line(rate, rtt_s, excess)
    play(line, ticks=200)
    before = line.acked
    again = Line(rate, rtt_s, excess)
    play(again, ticks=300, change=grow)
    assert again.acked - before > 0.75 * rate * factor * 100 * TICK_S


@settings(max_examples=30)
@given(RATES, ROUND_TRIPS, EXCESS, st.floats(0.05, 0.7))
def test_a_line_that_shrinks_does_not_bind_for_ever(
    rate: float, rtt_s: float, excess: float, factor: float
) -> None:
    def shrink(at: int, line: Line) -> None:
        if at == 200:
            line.bytes_per_s *= factor

    line = Line(rate, rtt_s, excess)
    play(line, ticks=1_000, change=shrink)
    settled = sorted(line.waits[600:])
    assert settled[len(settled) * 60 // 100] < 0.020  # bound anew to what the line is now, but for rests
    assert line.acked > 0.85 * rate * TICK_S * (200 + 800 * factor)


def test_a_bulk_connection_that_has_carried_nothing_is_not_bound() -> None:
    connection = BulkPacing(BulkPacingParameters())
    for at in range(20):
        assert connection.tick(at * TICK_S, acked_bytes=0, waiting_s=1.0) is None
