"""The report of a campaign: the best setting that was found of each strategy, and what each rule prevents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import hypot, sqrt
from typing import Any, Final

from tasks.simulation.rules import WITHOUT
from tasks.simulation.search import Job, Score
from tasks.simulation.strategies import STRATEGIES

__all__ = ["Results", "judge", "markdown"]

Results = Sequence[tuple[Job, Score]]
ERRORS: Final = 2
"""A strategy gains if its mean gain is more than so many standard errors above 0."""
MARKETS_MIN: Final = 8
"""Fewer markets say nothing about a mean."""
CHANGE_MILLI: Final = 20
"""A rule changes nothing if no figure differs by more than so many thousandths of a window's price."""


def _of(results: Results, strategy: str, rule: str) -> Results:
    return [(job, score) for job, score in results if (job.strategy, job.rule) == (strategy, rule)]


def _entry(explored: Results, confirmed: Results) -> dict[str, Any]:
    """Return what is said of one strategy under one set of rules."""
    both = [*explored, *confirmed]
    job, score = max(confirmed, key=lambda one: one[1].mean_milli)
    gain, error = score.mean_milli, score.error_milli
    if len(score.gains_milli) < MARKETS_MIN:
        verdict = "too few markets"
    else:
        verdict = "gains" if gain > max(ERRORS * error, CHANGE_MILLI) else "does not gain"
    return {
        "verdict": verdict,
        "best_gain": round(gain / 1000, 3),
        "standard_error": round(error / 1000, 3),
        "setting": dict(job.setting),
        "settings": len({_frozen(job) for job, _ in explored}),
        "markets": sum(job.markets for job, _ in both),
        "harm": round(score.harm_milli / 1000, 3),
        "honest_loss_max": round(max(score.honest_loss_milli for _, score in both) / 1000, 3),
        "forged_windows_paid": sum(score.forged_windows_paid for _, score in both),
        "tasks_failed": sum(score.tasks_failed for _, score in both),
        "tasks": sum(score.tasks for _, score in both),
    }


def judge(plan: str, explored: Results, confirmed: Results) -> dict[str, Any]:
    """Return the whole report as a JSON value. Gains are in prices of a window."""
    strategies: dict[str, Any] = {}
    for strategy in STRATEGIES:
        if strategy.needs:
            strategies[strategy.name] = {"verdict": "not yet judged", "needs": strategy.needs}
        elif mine := _of(confirmed, strategy.name, ""):
            strategies[strategy.name] = _entry(_of(explored, strategy.name, ""), mine)
    judged = {name: entry for name, entry in strategies.items() if "best_gain" in entry}
    scores = [score for _, score in (*explored, *confirmed)]
    return {
        "plan": plan,
        "unit": "prices of a window",
        "markets": sum(job.markets for job, _ in (*explored, *confirmed)),
        "sums_exact": True,  # each market is checked; a sum that is not exact ends the campaign
        "honest_loss_max": max(entry["honest_loss_max"] for entry in judged.values()),
        "best_cheat_profit": max(entry["best_gain"] for entry in judged.values()),
        "forged_windows_paid": sum(entry["forged_windows_paid"] for entry in judged.values()),
        "block_units_max": max(score.gas_max for score in scores),
        "block_changes_max": max(score.changes_max for score in scores),
        "block_events_max": max(score.events_max for score in scores),
        "unfinished_markets": sum(score.unfinished for score in scores),
        "gaining": sorted(name for name, entry in judged.items() if entry["verdict"] == "gains"),
        "strategies": strategies,
        "without": {
            rule: _without(rule, confirmed, judged)
            for rule in WITHOUT
            if any(job.rule == rule for job, _ in confirmed)
        },
    }


def _without(rule: str, confirmed: Results, judged: Mapping[str, Any]) -> dict[str, Any]:
    """Return what changes without a rule: the best confirmed gain of each strategy with and without it."""
    changes: dict[str, Any] = {}
    for name, entry in judged.items():
        absent = _of(confirmed, name, rule)
        _, score = max(absent, key=lambda one: one[1].mean_milli)
        gain = score.mean_milli / 1000 - entry["best_gain"]
        error = hypot(score.error_milli / 1000, entry["standard_error"])
        present = {_frozen(job): found for job, found in _of(confirmed, name, "")}
        pairs = [(present[_frozen(job)], found) for job, found in absent if _frozen(job) in present]
        loss = max((after.honest_loss_milli - before.honest_loss_milli for before, after in pairs), default=0)
        harms = [
            after_milli - before_milli
            for before, after in pairs
            for before_milli, after_milli in zip(before.harms_milli, after.harms_milli, strict=True)
        ]
        if abs(gain) > max(ERRORS * error, CHANGE_MILLI / 1000) or _is_clear(harms):
            changes[name] = {
                "gain_with": entry["best_gain"],
                "gain_without": round(score.mean_milli / 1000, 3),
                "standard_error": round(error, 3),
                "harm_prevented": round(sum(harms) / len(harms) / 1000, 3) if harms else 0.0,
                "honest_loss_prevented": round(loss / 1000, 3),
                "forged_windows_prevented": sum(
                    after.forged_windows_paid - before.forged_windows_paid for before, after in pairs
                ),
            }
    return {"text": WITHOUT[rule].text, "changes_nothing": not changes, "strategies": changes}


def _is_clear(differences: Sequence[int]) -> bool:
    """Tell whether the mean of paired differences is clear of its standard error, and of nothing."""
    if len(differences) < MARKETS_MIN:
        return False
    mean = sum(differences) / len(differences)
    spread = sum((difference - mean) ** 2 for difference in differences) / (len(differences) - 1)
    return abs(mean) > max(ERRORS * sqrt(spread / len(differences)), CHANGE_MILLI)


def _frozen(job: Job) -> tuple[tuple[str, object], ...]:
    return tuple(sorted(job.setting.items()))


def markdown(report: Mapping[str, Any]) -> str:
    """Return a report as text for people."""
    lines = [
        f"# Market simulation: {report['plan']}",
        "",
        f"{report['markets']:,} markets. Gains are in prices of a window, above honesty, ± one standard error.",
        "",
        "| strategy | verdict | best gain | harm | honest loss | forged windows paid | settings | best setting |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, entry in report["strategies"].items():
        if "needs" in entry:
            lines.append(f"| {name} | not yet judged: needs {entry['needs']} | | | | | | |")
            continue
        setting = ", ".join(f"{key} {value}" for key, value in entry["setting"].items())
        lines.append(
            f"| {name} | {entry['verdict']} | {entry['best_gain']} ± {entry['standard_error']} "
            f"| {entry['harm']} | {entry['honest_loss_max']} | {entry['forged_windows_paid']} "
            f"| {entry['settings']} | {setting} |"
        )
    if report["without"]:
        lines += [
            "",
            "| without | strategy: best gain with the rule, without it; harm prevented |",
            "|---|---|",
        ]
    for rule, entry in report["without"].items():
        changes = "; ".join(
            f"{name}: {change['gain_with']}, {change['gain_without']}; {change['harm_prevented']}"
            for name, change in entry["strategies"].items()
        )
        lines.append(f"| {rule}: {entry['text']} | {changes or 'nothing'} |")
    return "\n".join(lines) + "\n"
