"""``dekube task metrics``: the loss of a task as numbers, as a line of blocks, and as a picture."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import click

from node.cli.arguments import OUTPUT_FILE, TASK
from node.cli.files import check_overwrite, overwrite_option
from node.cli.jobs import write_file
from node.cli.option_conflicts import only_with
from node.cli.output import json_option, show, show_rows
from node.cli.session import Session, reading_options
from node.cli.tasks.watch import record_of, sparkline
from rpc.client.core import hexed
from rpc.client.metrics import LossPoint

__all__ = ["metrics", "picture"]

ROWS_SHOWN: Final = 20
WIDTH, HEIGHT, MARGIN = 640, 320, 48


@only_with(("--yes",), "--plot")
@click.command()
@reading_options
@click.argument("task_id", type=TASK, metavar="TASK")
@click.option("--plot", type=OUTPUT_FILE, metavar="FILE", help="Write a picture of the loss to FILE (SVG).")
@overwrite_option
@json_option
def metrics(session: Session, task_id: bytes, plot: Path | None, yes: bool, as_json: bool) -> None:
    """Show the loss of a task, a point for each segment.

    The numbers are the worker's, under the root of its proof. For `generate` they say nothing about quality.

    \b
    Examples:
      dekube task metrics 0xTASK
      dekube task metrics 0xTASK --plot loss.svg
    """
    check_overwrite(plot, yes=yes, option="--plot")
    with session.client() as client:
        record_of(client, task_id)
        points = client.losses(task_id, control=session.control())
    if plot is not None:
        write_file(plot, picture(points).encode())
    if as_json:
        show({"task": hexed(task_id), "losses": [point._asdict() for point in points]})
        return
    if not points:
        click.echo("No window is proved yet.")
        return
    click.echo(f"loss {sparkline([point.loss for point in points])} {points[-1].loss:.4f}")
    step = max(1, math.ceil(len(points) / ROWS_SHOWN))
    rows = [
        {"steps": f"{point.step_from}-{point.step_to}", "loss": f"{point.loss:.6f}", "final": point.is_final}
        for point in (*points[:-1:step], points[-1])
    ]
    show_rows(rows, ("steps", "loss", "final"), as_json=False, title="Loss")


def picture(points: Sequence[LossPoint]) -> str:
    """Return an SVG of the losses over the steps; the same points give the same bytes."""
    finite = [point for point in points if math.isfinite(point.loss)]
    low = min((point.loss for point in finite), default=0.0)
    high = max((point.loss for point in finite), default=1.0)
    last = max((point.step_to for point in finite), default=1)
    across, down = (WIDTH - 2 * MARGIN) / last, (HEIGHT - 2 * MARGIN) / ((high - low) or 1.0)
    line = " ".join(
        f"{MARGIN + point.step_to * across:.1f},{HEIGHT - MARGIN - (point.loss - low) * down:.1f}"
        for point in finite
    )
    texts = (
        (4, MARGIN + 4, f"{high:.4g}"),
        (4, HEIGHT - MARGIN + 4, f"{low:.4g}"),
        (MARGIN, HEIGHT - MARGIN + 20, "0"),
        (WIDTH - MARGIN - 40, HEIGHT - MARGIN + 20, f"step {last}"),
    )
    written = "".join(
        f'<text x="{x}" y="{y}" font-family="sans-serif" font-size="12">{text}</text>' for x, y, text in texts
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}">'
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>'
        f'<polyline points="{line}" fill="none" stroke="#1f77b4" stroke-width="1.5"/>{written}</svg>\n'
    )
