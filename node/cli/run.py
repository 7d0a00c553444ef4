"""``dekube node``: run a node, look into its home."""

from __future__ import annotations

import click

from node.cli.guard import guard
from node.cli.options import home_option
from node.home import Home

__all__ = ["node"]


@click.group()
def node() -> None:
    """Run a node, or check what it keeps."""


node.add_command(guard)


@node.command()
@home_option
@click.option(
    "--accept-empty-guard",
    is_flag=True,
    help="The vote key has certainly never voted, although its record of votes is empty or gone.",
)
@click.option(
    "--checkpoint",
    default="",
    metavar="HEIGHT:HASH",
    help="The last block of an epoch that you vouch for: a node without a database begins with its state.",
)
def run(home: Home, accept_empty_guard: bool, checkpoint: str) -> None:
    """Run the node in --home until SIGTERM or Ctrl-C."""
    from node.config import parse_checkpoint
    from node.logs import configure_logs
    from node.service import run_node

    if checkpoint:
        parse_checkpoint(checkpoint)
    configure_logs(home.load_options().log)
    run_node(
        home,
        lambda: str(click.prompt("Passphrase", hide_input=True, err=True)),
        accepts_empty_guard=accept_empty_guard,
        checkpoint=checkpoint,
    )
