"""A picture of what forging gains against the share of bonds: lines of an SVG, without a drawing library."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from tasks.simulation.rules import Absent
from tasks.simulation.search import gain_milli
from tasks.simulation.strategies import STRATEGIES

__all__ = ["SHARES", "Point", "measure", "svg"]

SHARES: Final = (10, 15, 20, 25, 30, 35, 40, 45)
VERIFIERS: Final = (1, 2, 3)
PARTS: Final = (1.0, 0.1)
"""Shares of the segments of each window that are forged."""
WIDTH, HEIGHT, MARGIN = 720, 420, 56
COLOURS: Final = ("#0b6e99", "#c2410c", "#4d7c0f")
_FONT: Final = 'font-family="sans-serif" font-size="12"'


class Point(NamedTuple):
    """A share of the bonds in percent, and the mean gain in prices of a window."""

    share: int
    gain: float


def measure(markets: int) -> dict[str, list[Point]]:
    """Return the mean gain of a colluding set on ``markets`` markets, for each line and share."""
    strategy = next(strategy for strategy in STRATEGIES if strategy.name == "colluding set")
    lines: dict[str, list[Point]] = {}
    for part in PARTS:
        for count in VERIFIERS:
            rules = Absent("", "", {"verifiers": count, "verifiers_sure": count})
            points = lines[f"{part:.0%} forged, {count} verifier{'s' * (count > 1)}"] = []
            for share in SHARES:
                setting = {"share": share, "windows": 1.0, "segments": part, "honest_first": 0}
                gains = [gain_milli(strategy, setting, number, rules) for number in range(markets)]
                points.append(Point(share, sum(gains) / len(gains) / 1000))
    return lines


def svg(lines: Mapping[str, Sequence[Point]], caption: str) -> str:
    """Return the picture of ``lines``."""
    gains = [point.gain for points in lines.values() for point in points]
    low, high = min(0.0, *gains), max(0.0, *gains)
    span = high - low or 1.0

    def place(point: Point) -> tuple[float, float]:
        across = (point.share - SHARES[0]) / (SHARES[-1] - SHARES[0])
        return (
            MARGIN + across * (WIDTH - 2 * MARGIN),
            HEIGHT - MARGIN - (point.gain - low) / span * (HEIGHT - 2 * MARGIN),
        )

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT + 20 * len(lines)}">',
        f'<rect width="{WIDTH}" height="{HEIGHT + 20 * len(lines)}" fill="#ffffff"/>',
        f'<text x="{MARGIN}" y="24" {_FONT}>{caption}</text>',
    ]
    for share in SHARES:
        x, _ = place(Point(share, 0.0))
        parts.append(f'<text x="{x:.0f}" y="{HEIGHT - 30}" text-anchor="middle" {_FONT}>{share} %</text>')
    for step in range(5):
        gain = low + span * step / 4
        _, y = place(Point(SHARES[0], gain))
        parts.append(f'<text x="8" y="{y:.0f}" {_FONT}>{gain:+.2f}</text>')
    _, zero = place(Point(SHARES[0], 0.0))
    parts.append(f'<path d="M{MARGIN} {zero:.1f}H{WIDTH - MARGIN}" stroke="#000000" stroke-width="1"/>')
    for number, (name, points) in enumerate(lines.items()):
        colour, dash = COLOURS[number % len(COLOURS)], ' stroke-dasharray="6 4"' * (number >= len(COLOURS))
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in map(place, points))
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"{dash}/>')
        y = HEIGHT + 20 * number
        parts.append(f'<path d="M{MARGIN} {y}h40" stroke="{colour}" stroke-width="2"{dash}/>')
        parts.append(f'<text x="{MARGIN + 50}" y="{y + 4}" {_FONT}>{name}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"
