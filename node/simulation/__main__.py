"""``python -m node.simulation``: campaigns of simulated runs, and single runs played again."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Final

import click
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from node.simulation.campaign import PLANS, RUNS, Campaign, OtherCampaign, Piece, Share
from node.simulation.compiled import compare, compile_tree

__all__ = ["main"]

SHARES_MAX: Final = 10_000
SEEDED: Final = ("seeds", "whole")
"""Parts that may be of any number of runs."""
_err = Console(stderr=True)


@click.group()
def main() -> None:
    """Play simulated schedules of the consensus and of whole nodes."""


@main.command()
@click.argument("plan", type=click.Choice(sorted(PLANS)))
@click.option("--jobs", default=lambda: len(os.sched_getaffinity(0)), show_default="all cores", type=int)
@click.option("--seeds", type=int, help="So many seeds, of replicas and of whole nodes each.")
@click.option("--part", "only", multiple=True, type=click.Choice(sorted(RUNS)), help="These parts alone.")
@click.option("--share", metavar="K/N", default="1/1", show_default=True, help="The K-th of N machines' shares.")
@click.option(
    "--take-in",
    "others",
    multiple=True,
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="A directory with what another machine has played of it; add that first.",
)
@click.option(
    "--directory", type=click.Path(path_type=Path), help="State and report; build/simulation/PLAN if not given."
)
def run(
    plan: str, jobs: int, seeds: int | None, only: tuple[str, ...], share: str, others: tuple[Path, ...],
    directory: Path | None,
) -> None:  # fmt: skip
    """Play the campaign PLAN, or what an earlier call has left of it; exits with 1 after a violation."""
    mine = _share(share)
    parts = tuple([part for part in PLANS[plan]() if not only or part.name in only])
    if seeds is not None:
        parts = tuple([part._replace(runs=seeds) if part.name in SEEDED else part for part in parts])
    campaign = Campaign(plan, parts, directory or Path("build") / "simulation" / plan)
    if campaign.set_aside is not None:
        _err.print(f"Other code or another plan: what was done with it is kept as {campaign.set_aside}.")
    for other in others:
        try:
            _err.print(f"{other}: {campaign.take_in(other)} runs added.")
        except (OtherCampaign, OSError) as error:
            raise click.ClickException(str(error)) from error
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=_err) as progress:
        bars = {}
        for part in parts:
            done = sum(piece.runs for piece in campaign.pieces.values() if piece.part == part.name)
            bars[part.name] = progress.add_task(part.name, total=part.runs, completed=done)

        def show(piece: Piece) -> None:
            progress.advance(bars[piece.part], piece.runs)
            for number, text in piece.violations:
                progress.console.print(_replay(piece.part, number, text), style="red", soft_wrap=True)

        try:
            campaign.run(max(1, jobs), show, mine)
        except KeyboardInterrupt:
            progress.console.print("Stopped; the same command goes on from here.")
    report = campaign.report()
    click.echo(f"{report['runs']} of {report['of']} runs, {report['violations']} violations: {campaign.directory}")
    for found in campaign.violations:
        click.echo(_replay(*found))
    sys.exit(1 if campaign.violations else 0 if campaign.is_done(mine) else 130)


@main.command()
@click.argument("part", type=click.Choice(sorted(RUNS)))
@click.argument("number", type=click.IntRange(min=0))
def replay(part: str, number: int) -> None:
    """Play run NUMBER of PART again, with the whole traceback of what it raises."""
    click.echo(RUNS[part](number))


@main.command("compile")
@click.argument("directory", type=click.Path(path_type=Path, exists=False))
@click.option("--runs", default=100, show_default=True, help="So many seeds are played by both and compared.")
def compile_(directory: Path, runs: int) -> None:
    """Make DIRECTORY a copy of this tree that plays twice as fast: campaigns are then run inside it."""
    root = Path(__file__).resolve().parents[2]
    compile_tree(root, directory)
    click.echo(f"{compare(root, directory, runs)} runs ended with the same trace: cd {directory}")


def _share(text: str) -> Share:
    number, slash, of = text.partition("/")
    if not (slash and number.isdecimal() and of.isdecimal() and 1 <= int(number) <= int(of) <= SHARES_MAX):
        raise click.BadParameter(f"{text}: not K/N with K from 1 to N", param_hint="--share")
    return Share(int(number), int(of))


def _replay(part: str, number: int, text: str) -> str:
    return f"python -m node.simulation replay {part} {number}: {text}"


if __name__ == "__main__":
    main()
