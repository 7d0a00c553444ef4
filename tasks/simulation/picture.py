"""Pictures of what forging gains under fixed conditions: lines of an SVG, without a drawing library."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from math import sqrt
from typing import Final, NamedTuple

from tasks.simulation.market import DKB
from tasks.simulation.rules import ALL_RULES, Absent, Patch
from tasks.simulation.stage import Conditions, Setting, honest_cast, play
from tasks.simulation.strategies import STRATEGIES

__all__ = ["CHARTS", "Chart", "Point", "measure", "svg"]

SHARES: Final = (10, 20, 33, 45)
WIDTH, HEIGHT, MARGIN = 720, 420, 56
COLOURS: Final = ("#0b6e99", "#c2410c", "#4d7c0f")
_FONT: Final = 'font-family="sans-serif" font-size="12"'
_BONDS: Final = 12
"""S of these markets is so many prices of a window: a = 10 W / S is 0.83."""
MARKET: Final = Conditions(
    windows=3, segments=16, segment_steps=2_000, cost_per_tera=DKB // 3, margin_milli=1_500,
    price_slack_milli=2_000, rates=(5 * 10**9,) * 8, is_seasoned=True,
)  # fmt: skip
"""Two tasks of three windows of five minutes, at 0.8 DKB a window."""


class Point(NamedTuple):
    """The mean gain in prices of a window and its standard error, at one of a chart's values."""

    gain: float
    error: float


class Spot(NamedTuple):
    """What is played for one point."""

    strategy: str
    setting: Setting
    conditions: Conditions = MARKET
    rules: Absent = ALL_RULES


class Chart(NamedTuple):
    """A picture: its values across, and for each line what is played at each of them."""

    caption: str
    across: Sequence[str]
    lines: Mapping[str, Sequence[Spot]]


def _forging(share: int, segments: float = 1.0) -> Setting:
    return {"share": share, "windows": 1.0, "segments": segments, "honest_first": 0}


def _verifiers(count: int, audit_bps: int = 0) -> Absent:
    return Absent("", "", {"verifiers": count, "verifiers_sure": count, "audit_bps": audit_bps})


def _audited(chance: float) -> Absent:
    margin = round(1_000 * _BONDS * chance), 1_000
    return Absent("", "", patches=(Patch("tasks.ledger.audits", "AUDIT_MARGIN", margin),))


_CHANCES: Final = (0.05, 0.1, 0.2, 0.3, 0.5, 0.83)
_PRICES: Final = (0.001, 0.003, 0.01, 0.03, 0.1, 1.0)
_HIDING: Final[Setting] = {
    "share": 10, "windows": 1.0, "segments": 1.0, "serves_checks": False, "answers": False, "serves_results": True,
}  # fmt: skip


def _priced(price: float) -> Conditions:
    cost = int(price * DKB) * 10**12 * 2 // 3 // MARKET.window_units
    return MARKET._replace(cost_per_tera=max(1, cost))


CHARTS: Final[Mapping[str, Chart]] = {
    "bonds": Chart(
        "Gain of a colluding set against its share of the bonds",
        [f"{share} %" for share in SHARES],
        {
            f"{segments:.0%} of each window forged, {count} verifier{'s' * (count > 1)}": [
                Spot("colluding set", _forging(share, segments), rules=_verifiers(count)) for share in SHARES
            ]
            for segments in (1.0, 0.1)
            for count in (1, 2)
        },
    ),
    "verifiers": Chart(
        "Gain of a colluding set against v, the verifiers of a window; each window is audited",
        ["1", "2", "3", "4"],
        {
            f"{share} % of the bonds": [
                Spot("colluding set", _forging(share), rules=_verifiers(count, 10_000)) for count in (1, 2, 3, 4)
            ]
            for share in (10, 33, 45)
        },
    ),
    "audits": Chart(
        "Gain of a colluding set against a, the probability of an audit, where S is 12 W",
        [f"{chance}" for chance in _CHANCES],
        {
            f"{share} % of the bonds": [
                Spot("colluding set", _forging(share), rules=_audited(chance)) for chance in _CHANCES
            ]
            for share in (10, 33, 45)
        },
    ),
    "prices": Chart(
        "Gain of a forger that serves its windows to nobody, against the price of a window in DKB",
        [f"{price}" for price in _PRICES],
        {
            f"{share} % of the bonds": [
                Spot("withholding worker", {**_HIDING, "share": share}, _priced(price)) for price in _PRICES
            ]
            for share in (10, 33)
        },
    ),
}


def _point(spot: Spot, markets: int) -> Point:
    chosen = next(strategy for strategy in STRATEGIES if strategy.name == spot.strategy)
    assert chosen.cast is not None
    gains = []
    for number in range(markets):
        mine = play(chosen.cast, spot.setting, number, spot.rules, conditions=spot.conditions)
        honest = play(honest_cast, spot.setting, number, spot.rules, conditions=spot.conditions)
        gains.append((mine.profit - honest.profit) / spot.conditions.window_price)
    mean = sum(gains) / markets
    spread = sum((gain - mean) ** 2 for gain in gains) / max(1, markets - 1)
    return Point(mean, sqrt(spread / markets))


def measure(chart: Chart, markets: int) -> dict[str, list[Point]]:
    """Return what each spot of a chart gains on ``markets`` markets."""
    return {name: [_point(spot, markets) for spot in spots] for name, spots in chart.lines.items()}


def svg(lines: Mapping[str, Sequence[Point]], across: Sequence[str], caption: str, note: str) -> str:
    """Return the picture of ``lines`` below a caption and a note; bars are one standard error to both sides."""
    ends = [point.gain + side * point.error for points in lines.values() for point in points for side in (-1, 1)]
    low, high = min(0.0, *ends), max(0.0, *ends)
    span = high - low or 1.0

    def x(at: int) -> float:
        return MARGIN + at / max(1, len(across) - 1) * (WIDTH - 2 * MARGIN)

    def y(gain: float) -> float:
        return HEIGHT - MARGIN - (gain - low) / span * (HEIGHT - 2 * MARGIN)

    below = HEIGHT + 20 * len(lines)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {below}">',
        f'<rect width="{WIDTH}" height="{below}" fill="#ffffff"/>',
        f'<text x="{MARGIN}" y="16" {_FONT}>{escape(caption)}</text>',
        f'<text x="{MARGIN}" y="34" {_FONT}>{escape(note)}</text>',
    ]
    for at, label in enumerate(across):
        parts.append(f'<text x="{x(at):.0f}" y="{HEIGHT - 30}" text-anchor="middle" {_FONT}>{label}</text>')
    for step in range(5):
        gain = low + span * step / 4
        parts.append(f'<text x="4" y="{y(gain) + 4:.0f}" {_FONT}>{gain:+.2f}</text>')
    parts.append(f'<path d="M{MARGIN} {y(0):.1f}H{WIDTH - MARGIN}" stroke="#000000" stroke-width="1"/>')
    for number, (name, points) in enumerate(lines.items()):
        colour, dash = COLOURS[number % len(COLOURS)], ' stroke-dasharray="6 4"' * (number >= len(COLOURS))
        shift = 3 * number
        path = " ".join(f"{x(at) + shift:.1f},{y(point.gain):.1f}" for at, point in enumerate(points))
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"{dash}/>')
        for at, point in enumerate(points):
            top, bottom = y(point.gain + point.error), y(point.gain - point.error)
            parts.append(f'<path d="M{x(at) + shift:.1f} {top:.1f}V{bottom:.1f}" stroke="{colour}"/>')
        line = HEIGHT + 20 * number
        parts.append(f'<path d="M{MARGIN} {line}h40" stroke="{colour}" stroke-width="2"{dash}/>')
        parts.append(f'<text x="{MARGIN + 50}" y="{line + 4}" {_FONT}>{escape(name)}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"
