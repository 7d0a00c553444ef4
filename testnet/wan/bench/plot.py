"""The table and the plot of ``dekube bench paths``: ``python -m testnet.wan.bench.plot FILE... > network.svg``.

Each FILE has JSON lines. Lines with figures of that benchmark are used; a later line replaces an earlier one with
the same figure. The plot is written to standard output, the Markdown table to standard error.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final
from xml.sax.saxutils import escape

from testnet.wan.bench.paths import ACCESS_MBIT, ROUTES, Route

__all__ = ["draw", "figures_of", "table"]

WAYS: Final = {"direct": "#9aa5b1", "relayed": "#3b7dd8", "chosen": "#e07b39"}
PAYLOAD_MBIT: Final = ACCESS_MBIT * 1_448 / 1_500
WIDTH: Final = 1_180
HEIGHT: Final = 430
LEFT: Final = 56
BOTTOM: Final = 118
TOP: Final = 44
GAP: Final = 26
"""Space between groups of routes."""


def figures_of(text: str) -> dict[str, float]:
    """Return the figures in JSON lines; later lines replace earlier ones."""
    found: dict[str, float] = {}
    for line in text.splitlines():
        try:
            document = json.loads(line)
        except ValueError:
            continue
        if isinstance(document, dict):
            figures = document.get("figures", document)
            found |= {key: value for key, value in figures.items() if isinstance(value, int | float)}
    return found


def _measured(figures: Mapping[str, float]) -> Iterator[tuple[Route, dict[str, float]]]:
    for route in ROUTES:
        rates = {way: figures.get(f"{route.name}_{way}_mbit_per_s") for way in WAYS}
        if None not in rates.values():
            yield route, {way: rate for way, rate in rates.items() if rate is not None}


def _label(route: Route) -> tuple[str, str]:
    """Return a route's group and its label in the group."""
    loss = f"{route.loss_percent:g} %"
    if route.exchange_mbit:
        return f"2 Mbit/s exchange, RTT {route.rtt_ms}", loss
    if route.relays == 1:
        return f"one relay, RTT {route.rtt_ms}", loss
    if route.access_loss_percent > 0.01:
        return f"lossy access of A, RTT {route.rtt_ms}", loss
    return f"RTT {route.rtt_ms} ms", loss


def table(figures: Mapping[str, float]) -> str:
    """Return the measured routes as a Markdown table."""
    lines = [
        "| route | loss | direct | relayed | chosen | chosen / better | chosen / payload |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for route, rates in _measured(figures):
        group, loss = _label(route)
        better = max(rates["direct"], rates["relayed"])
        cells = [group, loss, *(f"{rates[way]:.1f}" for way in WAYS)]
        cells += [f"{rates['chosen'] / better:.2f}", f"{rates['chosen'] / PAYLOAD_MBIT:.2f}"]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def draw(figures: Mapping[str, float]) -> str:
    """Return the measured routes as an SVG bar chart."""
    routes = list(_measured(figures))
    groups = list(dict.fromkeys(_label(route)[0] for route, _ in routes))
    plot_height = HEIGHT - TOP - BOTTOM
    step = (WIDTH - LEFT - 12 - GAP * max(len(groups) - 1, 0)) / max(len(routes), 1)
    bar = step * 0.27

    def y(rate: float) -> float:
        return HEIGHT - BOTTOM - min(rate, ACCESS_MBIT * 1.1) / (ACCESS_MBIT * 1.1) * plot_height

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" '
        f'viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="12" fill="#333">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>',
        f'<text x="{LEFT}" y="20" font-size="14" font-weight="bold">Payload from home to home, Mbit/s '
        f"({ACCESS_MBIT} Mbit/s lines at both ends)</text>",
    ]
    for mark in range(0, ACCESS_MBIT + 1, 20):
        parts.append(
            f'<line x1="{LEFT}" x2="{WIDTH - 12}" y1="{y(mark):.1f}" y2="{y(mark):.1f}" stroke="#e3e6ea"/>'
        )
        parts.append(f'<text x="{LEFT - 8}" y="{y(mark) + 4:.1f}" text-anchor="end">{mark}</text>')
    bar_at = y(0.9 * PAYLOAD_MBIT)
    parts.append(
        f'<line x1="{LEFT}" x2="{WIDTH - 12}" y1="{bar_at:.1f}" y2="{bar_at:.1f}" stroke="#555" '
        'stroke-dasharray="5 4"/>'
    )
    x = float(LEFT)
    begun: dict[str, float] = {}
    ended: dict[str, float] = {}
    for route, rates in routes:
        group, loss = _label(route)
        if group not in begun:
            x += GAP if begun else 0
            begun[group] = x
        for number, (way, color) in enumerate(WAYS.items()):
            left, top = x + step * 0.08 + number * bar, y(rates[way])
            parts.append(
                f'<rect x="{left:.1f}" y="{top:.1f}" width="{bar - 1:.1f}" height="{HEIGHT - BOTTOM - top:.1f}" '
                f'fill="{color}"><title>{escape(route.name)} {way}: {rates[way]:.1f}</title></rect>'
            )
        middle = x + step / 2
        parts.append(f'<text x="{middle:.1f}" y="{HEIGHT - BOTTOM + 17}" text-anchor="middle">{loss}</text>')
        x += step
        ended[group] = x
    for number, group in enumerate(groups):
        half = 3.4 * len(group)
        middle = min(max((begun[group] + ended[group]) / 2, half), WIDTH - 8 - half)
        at = HEIGHT - BOTTOM + 24
        parts.append(
            f'<line x1="{begun[group] + 4:.1f}" x2="{ended[group] - 4:.1f}" y1="{at}" y2="{at}" stroke="#999"/>'
        )
        # Neighbours alternate in height: the names of small groups are wider than the groups.
        parts.append(
            f'<text x="{middle:.1f}" y="{at + 18 + 18 * (number % 2)}" text-anchor="middle">{escape(group)}</text>'
        )
    x = float(LEFT)
    for text, color in ((f"{way}", color) for way, color in WAYS.items()):
        parts.append(f'<rect x="{x}" y="{HEIGHT - 26}" width="12" height="12" fill="{color}"/>')
        parts.append(f'<text x="{x + 18}" y="{HEIGHT - 16}">{text}</text>')
        x += 40 + 7 * len(text)
    parts.append(
        f'<text x="{x + 10}" y="{HEIGHT - 16}">dashed: nine tenths of the line\'s payload; percent: loss</text>'
    )
    parts.append("</svg>")
    return "\n".join(parts) + "\n"


if __name__ == "__main__":
    known = figures_of("\n".join(Path(name).read_text() for name in sys.argv[1:]))
    print(table(known), file=sys.stderr)
    sys.stdout.write(draw(known))
