"""``dekube worker doctor``: what this machine lacks, and a bundle of facts for whoever helps."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from node.cli.arguments import OUTPUT_FILE, PathName
from node.cli.files import check_overwrite, overwrite_option
from node.cli.option_conflicts import only_with
from node.cli.options import ask_home
from node.cli.output import json_option, show, show_rows
from node.cli.session import Session, reading_options
from node.home.load import load_node_options
from state.primitives.errors import DekubeError

__all__ = ["doctor"]


@only_with(("--yes", "--log"), "--bundle")
@click.command()
@reading_options
@click.option("--bundle", "file", type=OUTPUT_FILE, metavar="FILE", help="Write the facts to FILE (tar.gz).")
@click.option(
    "--log",
    "logs",
    type=PathName(),
    multiple=True,
    metavar="FILE",
    help="Add the end of a log file to the bundle. Repeatable.",
)
@overwrite_option
@json_option
def doctor(session: Session, file: Path | None, logs: tuple[Path, ...], yes: bool, as_json: bool) -> None:
    """Check this machine and its node: engine, isolation, memory, disk, clock, ports.

    It runs a job of one step, and measures speed and disk in some seconds. Nothing is changed. The bundle has
    no key, passphrase or token. The exit status is 1 if there is a fault.

    \b
    Examples:
      dekube worker doctor
      dekube worker doctor --bundle facts.tar.gz
      dekube worker doctor --bundle facts.tar.gz --log node.log
    """
    from node.cli.jobs import write_file
    from node.market.doctor import Verdict, examine
    from node.market.doctor_facts import gather
    from node.market.support import bundle

    check_overwrite(file, yes=yes, option="--bundle")
    home = session.home
    options = load_node_options(home)
    status: dict[str, Any] | None = None
    with suppress(DekubeError):
        status = ask_home(home, "status")
    facts = gather(home, options, status=status, entry=_entry(session, status))
    findings = examine(facts)
    if file is not None:
        write_file(file, bundle(home, options, asdict(facts), findings, logs))
    rows = [
        {"about": one.subject, "verdict": one.verdict.value, "found": one.text, "remedy": one.remedy}
        for one in findings
    ]
    if as_json:
        show([asdict(one) for one in findings])
    else:
        show_rows(rows, ("about", "verdict", "found", "remedy"), as_json=False, title="This machine")
    if any(one.verdict is Verdict.FAULT for one in findings):
        raise click.exceptions.Exit(1)


def _entry(session: Session, status: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """Return the machine in the registry, if its node runs and has a gateway."""
    if status is None:
        return None
    with suppress(DekubeError), session.client() as client:
        found: dict[str, Any] | None = client.call("dekube_getNode", address=status["address"])["node"]
        return found
    return None
