"""``dekube task metrics``: the loss of a task as numbers, as a line of blocks, and as a picture."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import click

from node.cli.arguments import FOLDER_NAME, OUTPUT_FILE, TASK
from node.cli.files import check_overwrite, overwrite_option
from node.cli.jobs import write_file
from node.cli.option_conflicts import only_with
from node.cli.output import json_option, show, show_rows
from node.cli.session import Session, reading_options
from node.cli.tasks.watch import record_of, sparkline, told_evaluations
from rpc.client import Client
from rpc.client.core import hexed
from rpc.client.metrics import LossPoint
from rpc.client.tensorboard import FILE, Scalar, event_file
from state.primitives.errors import ConfigError
from tasks.evaluations import Evaluation
from tasks.kinds.container import KIND_CONTAINER

__all__ = ["metrics", "picture"]

ROWS_SHOWN: Final = 20
LOSS: Final = "loss"
"""The number of a container that is drawn where it reports one of this name."""
WIDTH, HEIGHT, MARGIN = 640, 320, 48


@only_with(("--yes",), "--plot")
@click.command()
@reading_options
@click.argument("task_id", type=TASK, metavar="TASK")
@click.option("--plot", type=OUTPUT_FILE, metavar="FILE", help="Write a picture of the loss to FILE (SVG).")
@click.option(
    "--tensorboard", type=FOLDER_NAME, metavar="FOLDER", help="Write the losses to FOLDER for TensorBoard."
)
@overwrite_option
@json_option
def metrics(
    session: Session, task_id: bytes, plot: Path | None, tensorboard: Path | None, yes: bool, as_json: bool
) -> None:
    """Show the loss of a task for each segment, and that of each evaluation.

    The numbers are the worker's, under the root of its proof. For `generate` they say nothing about quality.
    Of a container the numbers that it reported are shown, while its machine has them.

    \b
    Examples:
      dekube task metrics 0xTASK
      dekube task metrics 0xTASK --plot loss.svg
      dekube task metrics 0xTASK --tensorboard runs/first
    """
    check_overwrite(plot, yes=yes, option="--plot")
    with session.client() as client:
        if record_of(client, task_id).document["spec"]["kind"] == KIND_CONTAINER:
            _show_reported(session, client, task_id, plot, tensorboard, as_json=as_json)
            return
        points = client.losses(task_id, control=session.control())
        evaluations = client.evaluations(task_id)
    if plot is not None:
        write_file(plot, picture(points, evaluations).encode())
    if tensorboard is not None:
        curves = [Scalar("loss/train", point.step_to, point.loss) for point in points]
        _write_events(
            tensorboard, [*curves, *(Scalar("loss/validation", one.step, one.loss) for one in evaluations)]
        )
    if as_json:
        show({
            "task": hexed(task_id), "losses": [point._asdict() for point in points],
            "evaluations": [one._asdict() for one in evaluations],
        })  # fmt: skip
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
    if evaluations:
        click.echo(told_evaluations(evaluations))
        shown = [{"update": one.update, "step": one.step, "loss": f"{one.loss:.6f}"} for one in evaluations]
        show_rows(shown, ("update", "step", "loss"), as_json=False, title="Validation")


def _write_events(folder: Path, scalars: Sequence[Scalar]) -> None:
    """Write the event file of a folder; one that was there is replaced. Raises ConfigError."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"{folder}: {error.strerror}") from None
    write_file(folder / FILE, event_file(scalars))


def _show_reported(
    session: Session, client: Client, task_id: bytes, plot: Path | None, tensorboard: Path | None, *, as_json: bool
) -> None:
    """Show what a container has reported; the picture has its loss, or its first number."""
    control = session.control()
    if control is None:
        raise ConfigError("what a container reports is sealed for its requester: give the --home of its node")
    series = client.task_series(task_id, control=control)
    names = sorted({name for point in series for name in point.metrics})
    chosen = LOSS if LOSS in names else next(iter(names), "")
    drawn = [
        LossPoint(0, 0, point.number if point.progress is None else point.progress, point.metrics[chosen], False)
        for point in series if chosen in point.metrics
    ]  # fmt: skip
    if plot is not None:
        write_file(plot, picture(drawn).encode())
    if tensorboard is not None:
        places = [(point.number if point.progress is None else point.progress, point.metrics) for point in series]
        _write_events(
            tensorboard, [Scalar(name, at, value) for at, found in places for name, value in found.items()]
        )
    if as_json:
        show({"task": hexed(task_id), "proved": False, "points": [point._asdict() for point in series]})
        return
    if not series:
        click.echo("The container has reported nothing.")
        return
    if drawn:
        click.echo(f"{chosen} {sparkline([point.loss for point in drawn])} {drawn[-1].loss:.4g}")
    step = max(1, math.ceil(len(series) / ROWS_SHOWN))
    rows = [
        {"point": point.number, "progress": point.progress, **{n: f"{v:.6g}" for n, v in point.metrics.items()}}
        for point in (*series[:-1:step], series[-1])
    ]
    show_rows(rows, ("point", "progress", *names), as_json=False, title="Reported, says its machine")


def picture(points: Sequence[LossPoint], evaluations: Sequence[Evaluation] = ()) -> str:
    """Return an SVG of the losses over the steps; the same points give the same bytes."""
    trained = [(point.step_to, point.loss) for point in points if math.isfinite(point.loss)]
    validated = [(one.step, one.loss) for one in evaluations]
    low = min((loss for _, loss in (*trained, *validated)), default=0.0)
    high = max((loss for _, loss in (*trained, *validated)), default=1.0)
    last = max((step for step, _ in (*trained, *validated)), default=1)
    across, down = (WIDTH - 2 * MARGIN) / last, (HEIGHT - 2 * MARGIN) / ((high - low) or 1.0)

    def line(curve: Sequence[tuple[int, float]]) -> str:
        return " ".join(
            f"{MARGIN + step * across:.1f},{HEIGHT - MARGIN - (loss - low) * down:.1f}" for step, loss in curve
        )

    second = ""
    if validated:
        second = (
            f'<polyline points="{line(validated)}" fill="none" stroke="#d62728" stroke-width="1.5"/>'
            f'<text x="{WIDTH - MARGIN - 120}" y="{MARGIN - 12}" font-family="sans-serif" font-size="12" '
            'fill="#d62728">validation</text>'
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
        f'<polyline points="{line(trained)}" fill="none" stroke="#1f77b4" stroke-width="1.5"/>{second}{written}'
        "</svg>\n"
    )
