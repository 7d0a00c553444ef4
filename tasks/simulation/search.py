"""The search over a strategy's own parameters: many settings on few markets, then better ones on more.

The best of many noisy figures is too high. So the markets that the best settings are reported from are none of
those that they were chosen by.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from math import prod, sqrt
from typing import Any, Final, NamedTuple

from tasks.simulation.dice import Dice
from tasks.simulation.rules import ALL_RULES, WITHOUT, Absent
from tasks.simulation.stage import COMMON, CUSTODY, Cast, Outcome, Setting, conditions_of, honest_cast, play
from tasks.simulation.strategies import STRATEGIES, Strategy

__all__ = [
    "CONFIRM_FROM",
    "REPEAT_FROM",
    "Job",
    "Plan",
    "Score",
    "best",
    "evaluate",
    "explore",
    "settings_of",
]

CONFIRM_FROM: Final = 1_000_000
"""The first number of the markets that confirm; those of the search begin with 0."""
REPEAT_FROM: Final = 2_000_000
"""The first number of the markets on which gains are measured again."""
ERRORS: Final = 2
"""A strategy gains if its mean gain is more than so many standard errors above 0."""
LEAST_GAIN_MILLI: Final = 20
"""A smaller gain, in thousandths of a window's price, is none."""
MARKETS_MIN: Final = 8
"""Fewer markets say nothing about a mean."""
MILLI: Final = 1_000
HONEST_CHANCE: Final = 0.4
"""h of R29: the chance that a drawn audit meets an honest verifier, at least."""
_SERIES: Final = 10
"""The first fields of a score have a figure for each market."""
_BASELINES_MAX: Final = 4_096
_BY_NAME: Final = {strategy.name: strategy for strategy in STRATEGIES}


class Plan(NamedTuple):
    """How much is played of each strategy, in rounds of fewer settings on more markets, each on new ones.

    Without ``narrowed`` settings there is no second of three rounds.

    For each rule that is switched off ``absent_settings`` of each aimed strategy are tried on ``absent_markets``,
    and the ``best`` changes are measured on ``absent_confirmed`` others.

    A setting that gains there is played on ``repeated`` further markets, and judged by these alone: where a window
    is cheap, a liar is caught in few markets and loses hundreds of its prices there.
    """

    name: str
    settings: int
    markets: int
    narrowed: int
    narrowed_markets: int
    best: int
    confirmed: int
    absent_settings: int
    absent_markets: int
    absent_confirmed: int
    repeated: int


class Job(NamedTuple):
    """One setting on some markets; ``rule`` is the absent one, or empty."""

    strategy: str
    rule: str
    setting: Setting
    first: int
    markets: int


class Score(NamedTuple):
    """What a setting came to. Gains and losses are in thousandths of the price of one window of the market.

    The first fields have a figure for each market.
    """

    gains_milli: tuple[int, ...]
    """Profit above that of the same accounts when they are honest."""
    harms_milli: tuple[int, ...]
    """What the honest machines together earn less because of it."""
    costs_milli: tuple[int, ...]
    """What the honest requester has less because of it; 0 where the plot posts the tasks."""
    delays_s: tuple[int, ...]
    """How much later its tasks end, together."""
    losses_milli: tuple[int, ...]
    """The most that one honest machine lost of its bonds."""
    forged: tuple[int, ...]
    """Windows with a forged segment that it paid."""
    failed: tuple[int, ...]
    """Its tasks that were not settled."""
    drains_milli: tuple[int, ...]
    """What the check fund has less because of it."""
    proved: tuple[int, ...]
    """Windows with a forged segment that were proved to it."""
    audits: tuple[float, ...]
    """How many of these were audited on average."""
    tasks: int
    gas_max: int
    changes_max: int
    events_max: int
    unfinished: int
    """Markets with a task that had not ended when the run did."""

    @property
    def mean_milli(self) -> float:
        """The mean gain."""
        return sum(self.gains_milli) / len(self.gains_milli)

    @property
    def honest_loss_milli(self) -> int:
        """The most that one honest machine lost of its bonds in a market."""
        return max(self.losses_milli)

    @property
    def forged_windows_paid(self) -> int:
        """Windows with a forged segment that were paid in all markets."""
        return sum(self.forged)

    @property
    def gains(self) -> bool:
        """Tell whether the mean gain is clear of its error and of nothing."""
        is_clear = self.mean_milli > max(ERRORS * self.error_milli, LEAST_GAIN_MILLI)
        return is_clear and len(self.gains_milli) >= MARKETS_MIN

    @property
    def passed(self) -> float:
        """The share of the proved windows with a forged segment that were paid."""
        return self.forged_windows_paid / max(1, sum(self.proved))

    @property
    def passes_max(self) -> float:
        """The share that may pass by R29: 1 - a h, with the mean of a and h = 0.4, and two standard errors."""
        proved = max(1, sum(self.proved))
        share = 1 - HONEST_CHANCE * sum(self.audits) / proved
        return share + 2 * sqrt(share * (1 - share) / proved)

    @property
    def harm_milli(self) -> float:
        """The mean harm."""
        return sum(self.harms_milli) / len(self.harms_milli)

    @property
    def damage_milli(self) -> float:
        """What honest machines and the honest requester have less, in the mean."""
        return self.harm_milli + sum(self.costs_milli) / len(self.costs_milli)

    @property
    def delay_hours(self) -> float:
        """How much later the honest requester's tasks end, in the mean."""
        return sum(self.delays_s) / len(self.delays_s) / 3_600

    @property
    def error_milli(self) -> float:
        """The standard error of the mean gain; 0 of one market."""
        count, mean = len(self.gains_milli), self.mean_milli
        if count < 2:
            return 0.0
        return sqrt(sum((gain - mean) ** 2 for gain in self.gains_milli) / (count - 1) / count)


def score_from(fields: Sequence[Any]) -> Score:
    """Return the score whose fields, as JSON has them, these are."""
    series: list[Any] = [tuple(field) for field in fields[:_SERIES]]
    return Score(*series, *fields[_SERIES:])


def settings_of(strategy: Strategy, count: int, fixed: Setting | None = None) -> list[dict[str, Any]]:
    """Return ``count`` different settings of a strategy, or all there are; fewer are the first of more.

    Those of known attacks come first. Parameters in ``fixed`` have the values that they have there.
    """
    space: dict[str, tuple[Any, ...]] = {**strategy.space, **{name: (at,) for name, at in (fixed or {}).items()}}
    names, values = list(space), list(space.values())
    count = min(count, prod(len(items) for items in values))
    dice, found = Dice(strategy.name.encode()), dict[tuple[Any, ...], None]()
    for known in () if fixed else strategy.known[:count]:
        found[tuple(known[name] for name in names)] = None
    while len(found) < count:
        found[tuple(dice.pick(items) for items in values)] = None
    return [dict(zip(names, chosen, strict=True)) for chosen in found]


@lru_cache(maxsize=_BASELINES_MAX)
def _honest(number: int, setting: tuple[tuple[str, Any], ...], rule: str, own: bool, custody: bool) -> Outcome:
    return play(honest_cast, dict(setting), number, _rules(rule), own_tasks=own, custody=custody)


def _baseline(strategy: Strategy, setting: Setting, number: int, rule: str) -> Outcome:
    if strategy.baseline is honest_cast:
        counts = tuple((name, setting[name]) for name in ("share", *COMMON) if name in setting)
        return _honest(number, counts, rule, strategy.own_tasks, strategy.custody)
    return play(
        strategy.baseline, setting, number, _rules(rule), own_tasks=strategy.own_tasks, custody=strategy.custody
    )


def _played(strategy: Strategy, cast: Cast, setting: Setting, number: int, rules: Absent) -> Outcome:
    return play(cast, setting, number, rules, own_tasks=strategy.own_tasks, custody=strategy.custody)


def _rules(rule: str) -> Absent:
    return WITHOUT[rule] if rule else ALL_RULES


def _price(number: int, setting: Setting) -> int:
    return conditions_of(number, setting).window_price


def evaluate(job: Job) -> Score:
    """Play a job's markets, each with the strategy and with honest agents in its place."""
    strategy = _BY_NAME[job.strategy]
    assert strategy.cast is not None, "only what can be judged is played"
    gains: list[int] = []
    harms: list[int] = []
    costs: list[int] = []
    delays: list[int] = []
    losses: list[int] = []
    drains: list[int] = []
    outcomes: list[Outcome] = []
    for number in range(job.first, job.first + job.markets):
        outcome = play(
            strategy.cast,
            job.setting,
            number,
            _rules(job.rule),
            own_tasks=strategy.own_tasks,
            custody=strategy.custody,
        )
        honest = _baseline(strategy, job.setting, number, job.rule)
        price = _price(number, job.setting)
        gains.append(MILLI * (outcome.profit - honest.profit) // price)
        harms.append(MILLI * (honest.honest_profit - outcome.honest_profit) // price)
        costs.append(MILLI * (honest.requester_profit - outcome.requester_profit) // price)
        delays.append((outcome.wait_ms - honest.wait_ms) // 1000)
        losses.append(MILLI * max(0, outcome.honest_loss) // price)
        drains.append(MILLI * (honest.fund - outcome.fund) // price)
        outcomes.append(outcome)
    return Score(
        gains_milli=tuple(gains),
        harms_milli=tuple(harms),
        costs_milli=tuple(costs),
        delays_s=tuple(delays),
        losses_milli=tuple(losses),
        forged=tuple(at.forged_windows_paid for at in outcomes),
        failed=tuple(at.tasks_failed for at in outcomes),
        drains_milli=tuple(drains),
        proved=tuple(at.forged_windows for at in outcomes),
        audits=tuple(at.audits for at in outcomes),
        tasks=sum(at.tasks for at in outcomes),
        gas_max=max(at.gas_max for at in outcomes),
        changes_max=max(at.changes_max for at in outcomes),
        events_max=max(at.events_max for at in outcomes),
        unfinished=sum(not at.is_over for at in outcomes),
    )


def explore(strategies: Iterable[Strategy], rule: str, settings: int, markets: int) -> list[Job]:
    """Return the jobs that look for the best setting of each strategy. Outputs lie in custody, as by default."""
    return [
        Job(strategy.name, rule, {**setting, CUSTODY: True}, 0, markets)
        for strategy in strategies
        for setting in settings_of(strategy, settings)
    ]


def best(found: Sequence[tuple[Job, Score]], count: int, *, by_damage: bool = False) -> list[Job]:
    """Return the ``count`` jobs with the highest mean gain, or those that did most damage."""

    def merit(one: tuple[Job, Score]) -> float:
        return one[1].damage_milli if by_damage else one[1].mean_milli

    return [job for job, _ in sorted(found, key=merit, reverse=True)[:count]]
