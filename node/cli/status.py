"""``dekube status``: how a running node and its chain are doing."""

from __future__ import annotations

import click

from node.cli.options import home_option
from node.cli.output import json_option, show_fields
from node.control import ask_node
from node.home import Home

__all__ = ["status"]

BEHIND_MS_MAX = 60_000


@click.command()
@home_option
@click.option("--check", is_flag=True, help="Exit status 1 unless the node follows the chain (for health checks).")
@json_option
def status(home: Home, check: bool, as_json: bool) -> None:
    """Show height, peers, consensus and jobs of the node in --home."""
    state = ask_node(home.control, "status", timeout_s=10)
    show_fields(state, as_json=as_json, title=f"Node {state['address']}")
    if check and (state["syncing"] or state["peers"] == 0 or state["behind_ms"] > BEHIND_MS_MAX):
        raise click.exceptions.Exit(1)
