"""What a rule prevents: the same markets with the rule and without it, under strategies that it was made against.

Both markets of a pair have the same number and the same setting. So what is drawn is the same, and the difference
has a far smaller error than the best gains have. Setting and figure are chosen on some markets and reported from
others.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt
from typing import Any, Final, NamedTuple

from tasks.simulation.rules import Absent
from tasks.simulation.search import Job, Score, settings_of
from tasks.simulation.stage import CUSTODY
from tasks.simulation.strategies import STRATEGIES

__all__ = ["Pair", "Prevented", "choose", "pairs", "verdict"]

ERRORS: Final = 3
"""A difference in a figure that was chosen on other markets is clear above so many standard errors."""
ERRORS_OF_OTHERS: Final = 4
"""The same in all other figures: one of many is above three by chance."""
MARKETS_MIN: Final = 8
_FIGURES: Final = (
    ("gain", "gains_milli", 1_000, 0.02),
    ("harm", "harms_milli", 1_000, 0.02),
    ("cost", "costs_milli", 1_000, 0.02),
    ("hours", "delays_s", 3_600, 0.05),
    ("fund", "drains_milli", 1_000, 0.02),
    ("loss", "losses_milli", 1_000, 0.02),
    ("forged", "forged", 1, 0.05),
    ("failed", "failed", 1, 0.05),
)
"""Name, field of a score, divisor, and the least mean difference that counts.

Gain, harm, cost, fund and loss are in prices of a window, for each market: what the plot gains, honest machines,
the honest requester and the check fund have less, and an honest machine loses of its bonds. Hours are how much
later tasks end. Forged are windows paid, failed are tasks.
"""
_BY_NAME: Final = {strategy.name: strategy for strategy in STRATEGIES}


class Pair(NamedTuple):
    """The same setting on the same markets, without a rule and with all rules."""

    without: Job
    present: Job


class Prevented(NamedTuple):
    """What one figure is in the mean with a rule and without it, and the standard error of the difference."""

    figure: str
    present: float
    without: float
    error: float
    markets: int

    @property
    def change(self) -> float:
        """How much more it is without the rule."""
        return self.without - self.present

    def is_clear(self, errors: int = ERRORS) -> bool:
        """Tell whether the change is clear of its error and of nothing."""
        least = next(least for name, *_, least in _FIGURES if name == self.figure)
        return self.markets >= MARKETS_MIN and abs(self.change) > max(errors * self.error, least)


def pairs(rule: Absent, settings: int, first: int, markets: int) -> list[Pair]:
    """Return the pairs that look for what a rule prevents: ``settings`` of each of its aims."""
    return [
        Pair(*(Job(aim.strategy, name, {CUSTODY: True, **setting}, first, markets) for name in (rule.name, "")))
        for aim in rule.aims
        for setting in settings_of(_BY_NAME[aim.strategy], settings, aim.setting)
    ]


def _prevented(figure: tuple[str, str, int, float], present: Score, without: Score) -> Prevented:
    name, field, divisor, _ = figure
    before: Sequence[int] = getattr(present, field)
    after: Sequence[int] = getattr(without, field)
    count = len(before)
    changes = [right - left for left, right in zip(before, after, strict=True)]
    mean = sum(changes) / count
    spread = sum((change - mean) ** 2 for change in changes) / max(1, count - 1)
    return Prevented(
        name, sum(before) / count / divisor, sum(after) / count / divisor, sqrt(spread / count) / divisor, count
    )


def choose(found: Sequence[tuple[Pair, Score, Score]], count: int) -> list[tuple[Pair, str]]:
    """Return the pairs and figures in which a rule seems to change most; scores are without it and with it."""
    tried = [
        (pair, _prevented(figure, present, without), figure[3])
        for pair, without, present in found
        for figure in _FIGURES
    ]
    tried.sort(key=lambda one: -abs(one[1].change) / (2 * one[1].error + 2 * one[2]))  # of few markets
    return [(pair, seen.figure) for pair, seen, _ in tried if seen.change][:count]


def verdict(rule: Absent, found: Sequence[tuple[Pair, str, Score, Score]]) -> dict[str, Any]:
    """Return what is said of a rule, as a JSON value: what was chosen, and other clear changes, on new markets."""
    changes: list[dict[str, Any]] = []
    chosen = {(_frozen(pair), name) for pair, name, *_ in found}
    scores = {_frozen(pair): (pair, without, present) for pair, _, without, present in found}
    for key, (pair, without, present) in scores.items():
        for figure in _FIGURES:
            seen = _prevented(figure, present, without)
            is_chosen = (key, seen.figure) in chosen
            is_clear = seen.is_clear(ERRORS if is_chosen else ERRORS_OF_OTHERS)
            if is_chosen or is_clear:
                changes.append(
                    {
                        "strategy": pair.without.strategy,
                        "setting": dict(pair.without.setting),
                        "figure": seen.figure,
                        "with": round(seen.present, 3),
                        "without": round(seen.without, 3),
                        "standard_error": round(seen.error, 3),
                        "markets": seen.markets,
                        "is_clear": is_clear,
                    }
                )
    is_known = any(change["is_clear"] for change in changes)
    return {"text": rule.text, "changes_nothing": not is_known, "changes": changes}


def _frozen(pair: Pair) -> tuple[object, ...]:
    return pair.without.strategy, tuple(sorted(pair.without.setting.items()))
