"""``dekube completion``: the script with which a shell completes the commands."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

__all__ = ["completion"]


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the completion script for SHELL: bash, zsh or fish.

    \b
    Example:
      eval "$(dekube completion bash)"
    """
    from node.cli import group

    kind = get_completion_class(shell)
    if kind is None:
        raise click.UsageError(f"no completion for {shell}")
    click.echo(kind(group, {}, "dekube", "_DEKUBE_COMPLETE").source())
