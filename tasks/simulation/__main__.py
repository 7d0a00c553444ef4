"""``python -m tasks.simulation``: campaigns of markets with strategic agents, and single settings played again."""

from __future__ import annotations

import json
import os
from pathlib import Path

import click

from tasks.simulation.books import LOADS, WAYS, search
from tasks.simulation.campaign import PLANS, Campaign
from tasks.simulation.picture import CHARTS, measure, svg
from tasks.simulation.report import markdown
from tasks.simulation.rules import WITHOUT
from tasks.simulation.search import Job, evaluate
from tasks.simulation.strategies import JUDGED

__all__ = ["main"]

_NAMES = [strategy.name for strategy in JUDGED]


@click.group()
def main() -> None:
    """Play markets with strategic agents over the real rules."""


@main.command()
@click.argument("plan", type=click.Choice(sorted(PLANS)), default="short")
@click.option("--jobs", default=lambda: len(os.sched_getaffinity(0)), show_default="all cores", type=int)
@click.option("--strategy", "names", multiple=True, type=click.Choice(_NAMES), help="These strategies alone.")
@click.option("--without", "rules", multiple=True, type=click.Choice(sorted(WITHOUT)), help="Rules to switch off.")
@click.option("--without-each", is_flag=True, help="Switch off each rule in turn.")
@click.option("--rules-only", is_flag=True, help="Search no strategies.")
@click.option("--directory", type=click.Path(path_type=Path), help="Default: build/market/PLAN.")
def run(
    plan: str, jobs: int, names: tuple[str, ...], rules: tuple[str, ...], without_each: bool,
    rules_only: bool, directory: Path | None,
) -> None:  # fmt: skip
    """Play the campaign PLAN, or what an earlier call has left of it, and print its report.

    Example: python -m tasks.simulation run short --without hold
    """
    campaign = Campaign(
        PLANS[plan],
        directory or Path("build") / "market" / plan,
        strategies=[strategy for strategy in JUDGED if not rules_only and (not names or strategy.name in names)],
        rules=tuple(WITHOUT) if without_each else rules,
        processes=max(1, jobs),
    )
    if campaign.set_aside is not None:
        click.echo(f"Other code or another plan: its results are kept as {campaign.set_aside}.", err=True)
    report = campaign.run(lambda done, of: click.echo(f"\r{done} of {of} jobs", nl=done == of, err=True))
    click.echo(markdown(report))


@main.command()
@click.argument("strategy", type=click.Choice(_NAMES))
@click.argument("setting")
@click.option("--rule", default="", type=click.Choice(["", *sorted(WITHOUT)]), help="The rule to switch off.")
@click.option("--first", default=0, show_default=True, help="Number of the first market.")
@click.option("--markets", default=1, show_default=True, help="Number of markets.")
def replay(strategy: str, setting: str, rule: str, first: int, markets: int) -> None:
    """Play one SETTING (a JSON object, as in the report) of a STRATEGY again and print its score."""
    click.echo(evaluate(Job(strategy, rule, json.loads(setting), first, markets)))


@main.command()
@click.argument("name", type=click.Choice(sorted(CHARTS)))
@click.argument("path", type=click.Path(path_type=Path))
@click.option("--markets", default=24, show_default=True, help="Number of markets for each point.")
def picture(name: str, path: Path, markets: int) -> None:
    """Write to PATH an SVG of what forging gains, one of the charts by NAME."""
    chart = CHARTS[name]
    lines = measure(chart, markets)
    for label, points in lines.items():
        told = ", ".join(
            f"{at}: {point.gain:+.2f} ± {point.error:.2f}" for at, point in zip(chart.across, points, strict=True)
        )
        click.echo(f"{label}: {told}")
    note = f"In prices of a window; {markets} markets a point, bars of one standard error"
    path.write_text(svg(lines, chart.across, chart.caption, note))


@main.command()
@click.option("--books", default=2_000, show_default=True, help="Number of books for each factor.")
def books(books: int) -> None:
    """Print what one dishonest order gains in a call, for each way and load, in parts of the mean cost."""
    for way in WAYS:
        for load in LOADS:
            gain = search(way, load, books)
            click.echo(f"{way}, {load}: factor {gain.factor} %, mean {gain.mean:+.3f}, most {gain.most:+.3f}")


if __name__ == "__main__":
    main()
