"""A command group that lists the first sentence of each command in full; click shortens it."""

from __future__ import annotations

import shlex

import click
from click.core import ParameterSource

__all__ = ["CommandGroup", "as_command", "next_command"]

SENTENCE_MAX = 500


class CommandGroup(click.Group):
    """Lists its commands, each with its whole first sentence, on several lines if needed."""

    group_class = type

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands."""
        found = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        rows = [
            (name, command.get_short_help_str(SENTENCE_MAX))
            for name, command in found
            if command is not None and not command.hidden
        ]
        if rows:
            with formatter.section("Commands"):
                formatter.write_dl(rows)


def as_command(*words: object) -> str:
    """Return a command that can be copied into a shell: paths with spaces are quoted."""
    return shlex.join(map(str, words))


def next_command(*words: object) -> str:
    """Return `dekube WORDS...` with the same --home and --rpc as the current command.

    Without them the next command might use another node.
    """
    context = click.get_current_context(silent=True)
    same: list[object] = []
    for option in context.command.params if context is not None else ():
        for name in ("--home", "--rpc"):
            if context is None or name not in option.opts or option.name is None:
                continue
            if context.get_parameter_source(option.name) is ParameterSource.COMMANDLINE:
                value = context.params.get(option.name)
                values = value if isinstance(value, tuple) else (value,)
                same += [word for one in values for word in (name, getattr(one, "root", one))]
    return as_command("dekube", *words, *same)
