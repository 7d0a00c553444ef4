"""The result of a container: its exit code, the end of its logs, and its output in a folder."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import click

from node.cli.blobs import download_folder, show_progress
from node.cli.output import counted, show, show_amount, show_fields
from node.cli.session import Session
from node.cli.tasks.storing import put_result
from node.cli.tasks.told import COMPARED, UNPROVEN
from node.cli.tasks.watch import say
from node.cli.terminal import printable
from rpc.client import Client
from rpc.client.core import hexed
from state.primitives.address import format_address
from state.primitives.errors import ConfigError, DekubeError

__all__ = ["show_container"]

LINES_SHOWN: Final = 40
"""Lines of the logs that are shown; all of them are in the file beside the output."""
LOG_FILE: Final = ".log"
SERIES_FILE: Final = ".metrics.jsonl"
"""What it has reported, a line for each point, where its machine still has that."""
LOG_STORED: Final = "dekube-container.log"
"""The logs among the files of an output that goes to a store, unless it has a file of that name."""


def show_container(
    session: Session, client: Client, task: bytes, out: Path | None, *, is_private: bool, to: str | None = None,
    as_json: bool,
) -> None:  # fmt: skip
    """Fetch what a container left, and show how it ended; with ``to`` the folder ``out`` is put to that store.

    Raises ConfigError, NoResult, ArchiveInvalid, StoreError.
    """
    if out is not None and out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ConfigError(f"{out}: a new or empty folder expected, for the output of a container")
    say("Fetching the logs and the output ..." if out is not None else "Fetching the logs ...")
    found = client.container_result(
        task,
        folder=out,
        control=session.control(),
        progress=show_progress("Fetching"),
        downloads=download_folder(),
        key=session.key() if is_private else None,
    )
    log = None
    stored: dict[str, Any] = {}
    if out is not None and to is not None:
        with suppress(FileExistsError), (out / LOG_STORED).open("xb") as file:
            file.write(found.logs)
        about = {"task": hexed(task), "exit": str(found.kind), "code": str(found.code)}
        stored = put_result(out, to, about)
    elif out is not None:
        log = out.with_name(out.name + LOG_FILE)
        log.write_bytes(found.logs)
        _write_series(session, client, task, out.with_name(out.name + SERIES_FILE))
    text = found.logs.decode("utf-8", "replace")
    answer: dict[str, Any] = {
        "task": hexed(task), "phase": found.phase, "reason": found.reason, "proved": False, "exit": found.kind,
        "code": found.code, "seconds": found.seconds, "paid": str(found.paid),
        "files": found.files if out is not None else None,
        "agreed": [format_address(machine) for machine in found.agreed],
        "differed": [format_address(machine) for machine in found.differed],
        **({} if log is None else {"folder": str(out), "log": str(log)}), **stored,
    }  # fmt: skip
    if as_json:
        show({**answer, "machines": [run._asdict() for run in found.machines], "logs": text})
        return
    if len(found.machines) > 1:
        answer["machines"] = "; ".join(
            f"{run.worker}: {counted(run.seconds, 'second')}, {run.lost} lost and not paid"
            for run in found.machines
        )
    answer |= {name: ", ".join(answer[name]) or None for name in ("agreed", "differed")}
    answer |= {
        "proved": COMPARED if found.agreed else UNPROVEN,
        "seconds": counted(found.seconds, "second"),
        "paid": show_amount(found.paid),
    }
    show_fields(
        {name: value for name, value in answer.items() if value is not None}, as_json=False, title="Result"
    )
    lines = text.splitlines()[-LINES_SHOWN:]
    if lines:
        click.echo(f"\nThe last {counted(len(lines), 'line')} of its logs:")
        for line in lines:
            click.echo(printable(line))


def _write_series(session: Session, client: Client, task: bytes, file: Path) -> None:
    """Write what a container has reported, if its machine still tells this node's account."""
    control = session.control()
    if control is None:
        return
    with suppress(DekubeError):
        points = client.task_series(task, control=control)
        if points:
            file.write_text("".join(f"{json.dumps(point._asdict())}\n" for point in points))
