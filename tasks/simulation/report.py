"""The report of a campaign: the best setting that was found of each strategy, and what each rule prevents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tasks.simulation.search import MARKETS_MIN, Job, Score
from tasks.simulation.strategies import STRATEGIES

__all__ = ["Results", "judge", "markdown"]

Results = Sequence[tuple[Job, Score]]


def _of(results: Results, strategy: str, rule: str) -> Results:
    return [(job, score) for job, score in results if (job.strategy, job.rule) == (strategy, rule)]


def _entry(explored: Results, confirmed: Results) -> dict[str, Any]:
    """Return what is said of one strategy under one set of rules."""
    both = [*explored, *confirmed]
    job, score = max(confirmed, key=lambda one: one[1].mean_milli)
    worst, worst_score = max(confirmed, key=lambda one: one[1].damage_milli)
    gain, error = score.mean_milli, score.error_milli
    if len(score.gains_milli) < MARKETS_MIN:
        verdict = "too few markets"
    else:
        verdict = "gains" if score.gains else "does not gain"
    return {
        "verdict": verdict,
        "best_gain": round(gain / 1000, 3),
        "standard_error": round(error / 1000, 3),
        "setting": dict(job.setting),
        "settings": len({_frozen(job) for job, _ in explored}),
        "markets": sum(job.markets for job, _ in both),
        "harm": round(score.harm_milli / 1000, 3),
        "most_damage": round(worst_score.damage_milli / 1000, 3),
        "gain_there": round(worst_score.mean_milli / 1000, 3),
        "hours_there": round(worst_score.delay_hours, 1),
        "setting_there": dict(worst.setting),
        "honest_loss_max": round(max(score.honest_loss_milli for _, score in both) / 1000, 3),
        "forged_windows_paid": sum(score.forged_windows_paid for _, score in both),
        "forged_windows": sum(sum(score.proved) for _, score in both),
        "tasks_failed": sum(sum(score.failed) for _, score in both),
        "tasks": sum(score.tasks for _, score in both),
    }


def judge(
    plan: str, explored: Results, confirmed: Results, without: Mapping[str, Any] | None = None
) -> dict[str, Any]:  # fmt: skip
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
        "honest_loss_max": max((entry["honest_loss_max"] for entry in judged.values()), default=0),
        "best_cheat_profit": max((entry["best_gain"] for entry in judged.values()), default=0),
        "forged_windows_paid": sum(entry["forged_windows_paid"] for entry in judged.values()),
        "forged_windows": sum(entry["forged_windows"] for entry in judged.values()),
        "block_units_max": max((score.gas_max for score in scores), default=0),
        "block_changes_max": max((score.changes_max for score in scores), default=0),
        "block_events_max": max((score.events_max for score in scores), default=0),
        "unfinished_markets": sum(score.unfinished for score in scores),
        "gaining": sorted(name for name, entry in judged.items() if entry["verdict"] == "gains"),
        "strategies": strategies,
        "without": dict(without or {}),
    }


def _told(setting: Mapping[str, object]) -> str:
    return ", ".join(f"{key} {value}" for key, value in setting.items())


def _frozen(job: Job) -> tuple[tuple[str, object], ...]:
    return tuple(sorted(job.setting.items()))


def markdown(report: Mapping[str, Any]) -> str:
    """Return a report as text for people."""
    lines = [
        f"# Market simulation: {report['plan']}",
        "",
        f"{report['markets']:,} markets. Gains are in prices of a window, above honesty, ± one standard error.",
        "",
        "| strategy | verdict | best gain | best setting | most damage | gain there | hours later there "
        "| honest loss | forged windows paid | settings |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for name, entry in report["strategies"].items():
        if "needs" in entry:
            lines.append(f"| {name} | not yet judged: needs {entry['needs']} | | | | | | | | |")
            continue
        lines.append(
            f"| {name} | {entry['verdict']} | {entry['best_gain']} ± {entry['standard_error']} "
            f"| {_told(entry['setting'])} | {entry['most_damage']} | {entry['gain_there']} "
            f"| {entry['hours_there']} | {entry['honest_loss_max']} | {entry['forged_windows_paid']} "
            f"of {entry['forged_windows']} | {entry['settings']} |"
        )
    if report["without"]:
        lines += [
            "",
            "| without | strategy | figure | with the rule | without it | setting |",
            "|---|---|---|---|---|---|",
        ]
    for rule, entry in report["without"].items():
        clear = [change for change in entry["changes"] if change["is_clear"]]
        for change in clear:
            lines.append(
                f"| {rule}: {entry['text']} | {change['strategy']} | {change['figure']} | {change['with']} "
                f"| {change['without']} ± {change['standard_error']} | {_told(change['setting'])} |"
            )
        if not clear:
            lines.append(f"| {rule}: {entry['text']} | changes nothing | | | | |")
    return "\n".join(lines) + "\n"
