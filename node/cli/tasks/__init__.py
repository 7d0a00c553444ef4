"""``dekube task``: creates and follows a task, fetches its result and its bill."""

from __future__ import annotations

import click

from node.cli.commands import CommandGroup
from node.cli.tasks.actions import cancel, demand, refuse, resume, top_up
from node.cli.tasks.custody import custody, receipt
from node.cli.tasks.keep import keep
from node.cli.tasks.logs import logs
from node.cli.tasks.metrics import metrics
from node.cli.tasks.posting import create, quote
from node.cli.tasks.result import result
from node.cli.tasks.validate import validate
from node.cli.tasks.views import bill, list_, proof, show_
from node.cli.tasks.watch import watch

__all__ = ["task"]


@click.group(cls=CommandGroup)
def task() -> None:
    """Create training tasks, follow them and fetch their results.

    \b
    Try it on a test network (dekube testnet up):
      dekube task create --home .testnet/validator-0 --watch
      dekube task list --home .testnet/validator-0
      dekube task result --home .testnet/validator-0 TASK --out model.npz
      dekube task bill --home .testnet/validator-0 TASK
    """


for _command in (
    validate,
    quote,
    create,
    list_,
    show_,
    proof,
    watch,
    logs,
    bill,
    metrics,
    result,
    custody,
    receipt,
    keep,
    cancel,
    refuse,
    top_up,
    demand,
    resume,
):
    task.add_command(_command)
