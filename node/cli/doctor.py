"""``dekube worker doctor``: what this machine lacks, and a bundle of facts for whoever helps."""

from __future__ import annotations

import io
import json
import re
import tarfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from node.cli.arguments import OUTPUT_FILE
from node.cli.files import check_overwrite, overwrite_option
from node.cli.option_conflicts import only_with
from node.cli.options import ask_home
from node.cli.output import json_option, show, show_rows
from node.cli.session import Session, reading_options
from node.home.load import load_node_options
from node.home.paths import Home
from state.primitives.errors import DekubeError

if TYPE_CHECKING:
    from node.home.options import NodeOptions
    from node.market.doctor import Finding

__all__ = ["bundle", "doctor"]

REMOVED: Final = "(removed)"
_SECRET: Final = re.compile(r"pass|secret|token|key", re.IGNORECASE)
_USER_OF_URL: Final = re.compile(r"(?<=://)[^/@\s]*@")


@only_with(("--yes",), "--bundle")
@click.command()
@reading_options
@click.option("--bundle", "file", type=OUTPUT_FILE, metavar="FILE", help="Write the facts to FILE (tar.gz).")
@overwrite_option
@json_option
def doctor(session: Session, file: Path | None, yes: bool, as_json: bool) -> None:
    """Check this machine and its node: engine, isolation, memory, disk, clock, ports.

    It runs a job of one step and measures the speed, which takes some seconds. Nothing is changed. The bundle has
    no key, passphrase or token. The exit status is 1 if there is a fault.

    \b
    Examples:
      dekube worker doctor
      dekube worker doctor --bundle facts.tar.gz
    """
    from node.cli.jobs import write_file
    from node.market.doctor import Verdict, examine
    from node.market.doctor_facts import gather

    check_overwrite(file, yes=yes, option="--bundle")
    home = session.home
    options = load_node_options(home)
    status: dict[str, Any] | None = None
    with suppress(DekubeError):
        status = ask_home(home, "status")
    facts = gather(home, options, status=status, entry=_entry(session, status))
    findings = examine(facts)
    if file is not None:
        write_file(file, bundle(home, options, asdict(facts), findings))
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


def bundle(home: Home, options: NodeOptions, facts: Mapping[str, Any], findings: Sequence[Finding]) -> bytes:
    """Return a tar.gz of JSON files with facts, findings and options, without secrets.

    Names of options that sound of secrets, users in addresses, and the path of the home are replaced.
    """
    from node.home.config import flat_options

    made = {
        "facts.json": facts,
        "findings.json": [asdict(one) for one in findings],
        "options.json": {
            name: REMOVED if _SECRET.search(name) and value else value
            for name, value in flat_options(options).items()
        },
    }
    output = io.BytesIO()
    with tarfile.open(fileobj=output, mode="w:gz") as archive:
        for name, value in made.items():
            text = json.dumps(value, indent=1, sort_keys=True, default=str)
            data = _USER_OF_URL.sub("", text).replace(str(home.root), "HOME").encode()
            entry = tarfile.TarInfo(f"dekube-doctor/{name}")
            entry.size, entry.mtime = len(data), int(time.time())
            archive.addfile(entry, io.BytesIO(data))
    return output.getvalue()
