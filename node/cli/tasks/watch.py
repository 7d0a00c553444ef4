"""``dekube task watch``, and functions shared by task commands: record, end, sums."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Final

import click

from node.cli.arguments import SECONDS, TASK
from node.cli.commands import next_command
from node.cli.output import json_option, show, show_amount
from node.cli.session import Session, reading_options
from node.cli.tasks.container_live import live_lines
from node.cli.tasks.webhook_options import webhook_options
from node.cli.terminal import printable
from node.market.posting import follow, wait_input
from node.workflows.notices import Webhook
from rpc.client import Client, TaskEnded, TaskUpdate
from rpc.client.core import hexed
from rpc.client.metrics import LossPoint
from rpc.client.results import EscrowTotals, Task
from state.primitives.errors import ConfigError, DekubeError
from tasks.evaluations import Evaluation
from tasks.kinds.decoder import TRAINING

__all__ = [
    "WATCH_TIMEOUT_S",
    "expect_settled",
    "record_of",
    "say",
    "show_sums",
    "sparkline",
    "told_evaluations",
    "watch",
    "watch_to_end",
]

WATCH_TIMEOUT_S: Final = 24 * 3600.0
SPARKS: Final = "▁▂▃▄▅▆▇█"
SPARK_WIDTH: Final = 40


def record_of(client: Client, task_id: bytes) -> Task:
    """Return a task. Raises ConfigError if there is none with that ID."""
    record = client.task(task_id)
    if record is None:
        raise ConfigError(f"no task has the ID {hexed(task_id)}; `dekube task list` shows the tasks")
    return record


def say(line: str, *, err: bool = True) -> None:
    """Print a line; on standard error unless it is the command's result."""
    click.echo(printable(line), err=err)


def sparkline(values: Sequence[float], width: int = SPARK_WIDTH) -> str:
    """Return values as a line of blocks, of which each is the mean of its part; not finite ones are crosses."""
    size = max(1, -(-len(values) // width))
    parts = [values[at : at + size] for at in range(0, len(values), size)]
    means = [sum(part) / len(part) for part in parts]
    finite = [mean for mean in means if math.isfinite(mean)]
    low, high = min(finite, default=0.0), max(finite, default=0.0)
    span = (high - low) or 1.0
    return "".join(
        SPARKS[min(len(SPARKS) - 1, int((mean - low) / span * len(SPARKS)))] if math.isfinite(mean) else "x"
        for mean in means
    )


def told_evaluations(evaluations: Sequence[Evaluation]) -> str:
    """Return the losses of evaluations in one line, with the last and the lowest one."""
    losses = [one.loss for one in evaluations]
    best = min(evaluations, key=lambda one: one.loss)
    return f"validation {sparkline(losses)} {losses[-1]:.4f}, lowest {best.loss:.4f} after update {best.update}"


class _Losses:
    """Says the loss of a task that trains after each window that is proved."""

    def __init__(self, client: Client, task_id: bytes, tell: Callable[[str], None]) -> None:
        self._client, self._task, self._tell = client, task_id, tell
        self._points: list[LossPoint] = []
        self._windows = 0

    def update(self, found: TaskUpdate) -> None:
        """Look at an update; losses that nobody has are left out, for they are only information."""
        if found.task.document["spec"]["kind"] not in TRAINING or found.task.proved_windows <= self._windows:
            return
        with suppress(DekubeError):
            self._points += self._client.losses(self._task, first_window=self._windows)
            self._windows = found.task.proved_windows
            losses = [point.loss for point in self._points]
            if losses:
                self._tell(f"                  loss {sparkline(losses)} {losses[-1]:.4f}")
            if evaluations := self._client.evaluations(self._task):
                self._tell(f"                  {told_evaluations(evaluations)}")


def watch_to_end(client: Client, task_id: bytes, as_json: bool, timeout_s: float) -> str:
    """Follow a task until it ends; return its final phase."""
    try:
        if record_of(client, task_id).phase == "matching":
            wait_input(client, task_id, partial(say, err=as_json))
        losses = _Losses(client, task_id, partial(say, err=as_json))
        phase = follow(client, task_id, partial(say, err=as_json), timeout_s=timeout_s, after=losses.update)
    except KeyboardInterrupt:
        told = hexed(task_id)
        click.echo(err=True)  # below the ^C of the terminal
        watches, cancels = next_command("task", "watch", told), next_command("task", "cancel", told)
        say(f"The task goes on: `{watches}` follows it, `{cancels}` ends it early.")
        raise
    if not as_json:
        show_sums(client.bill(task_id).totals)
        say(f"The task has ended: {phase}.", err=False)
    return phase


def expect_settled(task_id: bytes, phase: str) -> None:
    """Raise TaskEnded unless ``phase`` is a success for the requester."""
    if phase != "settled":
        raise TaskEnded(f"task {hexed(task_id)} ended {phase}", phase=phase)


def show_sums(totals: EscrowTotals) -> None:
    """Show how the deposit of a task was used."""
    parts = {"locked": totals.locked, "paid": totals.paid, "refunded": totals.refunded, "burned": totals.burned}
    told = " + ".join(f"{name} {show_amount(amount)}" for name, amount in parts.items())
    exact = "exact" if totals.is_exact else "DOES NOT ADD UP"
    click.echo(f"Sums: deposited {show_amount(totals.deposited)} = {told} ({exact})")


@click.command()
@reading_options
@click.argument("task_id", type=TASK, metavar="TASK")
@click.option(
    "--timeout", "timeout_s", type=SECONDS, default=WATCH_TIMEOUT_S, show_default=True, help="Seconds to wait."
)
@webhook_options
@json_option
def watch(
    session: Session, task_id: bytes, timeout_s: float, webhook: Webhook | None,
    as_json: bool,
) -> None:  # fmt: skip
    """Follow a task until it ends; the exit status says how.

    Settled is 0, failed 3, cancelled 4, expired 5.

    With --json, progress goes to standard error and the outcome to standard output.
    A webhook is also sent for a task that has ended before (docs/jobs.md).

    \b
    Examples:
      dekube task watch 0xTASK --timeout 600
      dekube task watch 0xTASK --webhook https://example.org/ended --webhook-key webhook.key
    """
    with session.client() as client:
        record = record_of(client, task_id)
        with live_lines(session, record, partial(say, err=as_json)):
            phase = watch_to_end(client, task_id, as_json, timeout_s)
        if webhook is not None:
            webhook.task_ended(client, task_id)
    if as_json:
        show({"task": hexed(task_id), "phase": phase})
    expect_settled(task_id, phase)
