"""A group of commands whose list says the whole first sentence of each: click ends long ones in dots."""

from __future__ import annotations

import shlex

import click
from click.core import ParameterSource

__all__ = ["CommandGroup", "as_command", "next_command"]

SENTENCE_MAX = 500


class CommandGroup(click.Group):
    """Lists its commands with what each does, on as many lines as that takes."""

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
    """Return a command that a person can copy into a shell: paths with spaces are quoted."""
    return shlex.join(map(str, words))


def next_command(*words: object) -> str:
    """Return `dekube WORDS...` for whoever ran the command that runs, with the same --home and --rpc.

    Without these it would ask another node than the one that was just asked.
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
