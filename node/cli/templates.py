"""``dekube templates``: job files to begin with, one for each kind of job."""

from __future__ import annotations

import difflib
from importlib.resources import files
from typing import Final

import click

from node.cli.commands import CommandGroup
from node.cli.output import json_option, show_rows
from state.primitives.errors import ConfigError

__all__ = ["names", "template", "templates"]

_PACKAGE: Final = "node.cli.job_templates"
_SUFFIX: Final = ".yaml"


def names() -> list[str]:
    """Return the names of all templates."""
    return sorted(
        item.name.removesuffix(_SUFFIX) for item in files(_PACKAGE).iterdir() if item.name.endswith(_SUFFIX)
    )


def template(name: str) -> str:
    """Return the text of a template. Raises ConfigError."""
    known = names()
    if name not in known:
        near = difflib.get_close_matches(name, known, 1)
        raise ConfigError(
            f"no template {name!r}; {f'did you mean {near[0]}?' if near else 'see `dekube templates`'}"
        )
    return files(_PACKAGE).joinpath(name + _SUFFIX).read_text(encoding="utf-8")


@click.group(cls=CommandGroup, invoke_without_command=True)
@json_option
@click.pass_context
def templates(context: click.Context, as_json: bool) -> None:
    """List job files to begin with, one for each kind of job.

    \b
    Examples:
      dekube templates
      dekube templates show finetune > finetune.yaml
    """
    if context.invoked_subcommand is not None:
        return
    rows = [{"name": name, "what": template(name).splitlines()[0].removeprefix("# ")} for name in names()]
    show_rows(rows, ("name", "what"), as_json=as_json, title="Templates")


@templates.command(name="show")
@click.argument("name")
def show_(name: str) -> None:
    """Print a template: edit it, then `dekube task validate FILE`.

    \b
    Example:
      dekube templates show finetune > finetune.yaml
    """
    click.echo(template(name), nl=False)
