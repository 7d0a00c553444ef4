"""README's picture of a test network, made from a run: ``make picture``.

The answers of a run are kept in docs/testnet-run.json, and docs/testnet.svg is drawn from them by the same code
that prints them at a terminal. So a test draws it again without a network, and fails when the picture is no longer
what the command prints. ``python -m testnet.picture draw`` draws the kept run again, ``python -m testnet.picture``
makes a new run first.
"""

from __future__ import annotations

import io
import json
import re
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any, Final

import click
import trio
from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console
from rich.text import Text

from rpc.client import TaskUpdate
from rpc.client.results import Bill, BillLine, EscrowTotals, Task, TaskChange, Window, read_result
from testnet.cli import COLUMNS, member_rows, show_members, starting_line
from testnet.cluster import Cluster, hold_folder, lay_out
from testnet.demonstration import Document, RunSource, TaskSummary, print_run, run_demonstration

__all__ = ["PICTURE", "RECORDED_RUN", "RecordedRun", "Recorder", "draw", "printed", "shortened"]

DOCS: Final = Path(__file__).parent.parent / "docs"
RECORDED_RUN: Final = DOCS / "testnet-run.json"
PICTURE: Final = DOCS / "testnet.svg"
VALIDATORS: Final = 4
WORKERS: Final = 2
BASE_PORT: Final = 26600
TITLE: Final = "DEKUBE: four validators, a relay, two workers, one settled task"
WIDTH: Final = 116
HEX_SHOWN: Final = 8
ROWS_MAX: Final = 12
"""Rows that the picture has of a table; of a longer one the middle is left out."""
_HEX: Final = re.compile(r"0x[0-9a-fA-F]{40,}")
_FONTS: Final = re.compile(r"\s*@font-face \{\{.*?\}\}", re.DOTALL)
"""That a viewer would fetch from elsewhere."""


class Recorder:
    """Hands on what a run is told from, and keeps it in ``document``."""

    def __init__(self, source: RunSource, document: Document) -> None:
        self._source = source
        self.document = document

    def machines(self) -> list[Document]:
        """Keep the machines."""
        found = self.document["machines"] = self._source.machines()
        return found

    def prepare(self) -> TaskSummary:
        """Keep what is posted."""
        posting = self._source.prepare()
        self.document["posting"] = [posting.total_steps, posting.windows, posting.dataset_blob.hex()]
        return posting

    def post(self) -> str:
        """Keep the task's id."""
        task = self.document["task"] = self._source.post()
        return task

    def updates(self) -> Iterator[tuple[TaskUpdate, list[str]]]:
        """Keep each update and what follows on it."""
        kept = self.document["updates"] = []
        for update, what_follows in self._source.updates():
            kept.append(
                {
                    "next": what_follows,
                    "task": dict(update.task.document),
                    "changes": [dict(change.document) for change in update.changes],
                    "windows": [dict(window.document) for window in update.windows],
                }
            )
            yield update, what_follows

    def transactions(self) -> list[Document]:
        """Keep the transactions, without their bytes."""
        found = self._source.transactions()
        self.document["transactions"] = [{k: v for k, v in one.items() if k != "raw"} for one in found]
        return found

    def windows(self) -> list[Document]:
        """Keep the windows."""
        found = self.document["windows"] = self._source.windows()
        return found

    def bill(self) -> Bill:
        """Keep the bill."""
        found = self._source.bill()
        self.document["bill"] = {
            "lines": [dict(line.document) for line in found.lines], "totals": dict(found.totals.document),
        }  # fmt: skip
        return found


class RecordedRun:
    """A run of which a Recorder has kept the ``document``. Raises AnswerMalformed for another form."""

    def __init__(self, document: Document) -> None:
        self._document = document

    def machines(self) -> list[Document]:
        """Return the machines that were there."""
        return list(self._document["machines"])

    def prepare(self) -> TaskSummary:
        """Return what was posted."""
        steps, windows, blob = self._document["posting"]
        return TaskSummary(steps, windows, bytes.fromhex(blob))

    def post(self) -> str:
        """Return the id that the task had."""
        return str(self._document["task"])

    def updates(self) -> Iterator[tuple[TaskUpdate, list[str]]]:
        """Yield what changed and what followed on it."""
        for kept in self._document["updates"]:
            update = TaskUpdate(
                read_result(Task, kept["task"]),
                tuple(read_result(TaskChange, change) for change in kept["changes"]),
                tuple(read_result(Window, window) for window in kept["windows"]),
            )
            yield update, list(kept["next"])

    def transactions(self) -> list[Document]:
        """Return the transactions."""
        return list(self._document["transactions"])

    def windows(self) -> list[Document]:
        """Return the windows."""
        return list(self._document["windows"])

    def bill(self) -> Bill:
        """Return the bill."""
        bill = self._document["bill"]
        lines = tuple(read_result(BillLine, line) for line in bill["lines"])
        return Bill(lines, read_result(EscrowTotals, bill["totals"]))


def printed(document: Document) -> list[str]:
    """Return the lines that `dekube testnet up` prints of a kept run today."""
    out = io.StringIO()
    with redirect_stdout(out):
        click.echo(starting_line(VALIDATORS, WORKERS, Path(".testnet")))
        show_members(document["members"])
        print_run(RecordedRun(document), click.echo)
    return [line.rstrip() for line in out.getvalue().splitlines()]


def shortened(lines: Sequence[str]) -> list[str]:
    """Return ``lines`` with hashes and addresses cut, and tables as narrow and short as that makes them."""
    found: list[str] = []
    table: list[str] = []
    for line in [*lines, ""]:
        if line[:1] in "┏┃┡│└" and line:
            table.append(line)
            continue
        found += _table(table)
        table = []
        found.append(_cut(line))
    return found[:-1]


def _table(lines: Sequence[str]) -> list[str]:
    """Return the lines of a table that rich has drawn, drawn again."""
    rows = [[_cut(cell.strip()) for cell in re.split("[┃│]", line)[1:-1]] for line in lines if line[0] in "┃│"]
    if not rows:
        return []
    head, *body = rows
    if len(body) > ROWS_MAX:
        half = ROWS_MAX // 2
        body = [*body[:half], ["…"] + [""] * (len(head) - 1), *body[-half:]]
    widths = [max(map(len, column)) for column in zip(head, *body, strict=True)]

    def rule(left: str, line: str, cross: str, right: str) -> str:
        return left + cross.join(line * (width + 2) for width in widths) + right

    def row(cells: list[str], bar: str) -> str:
        padded = (f" {cell:<{width}} " for cell, width in zip(cells, widths, strict=True))
        return bar + bar.join(padded) + bar

    return [
        rule("┏", "━", "┳", "┓"), row(head, "┃"), rule("┡", "━", "╇", "┩"), *(row(cells, "│") for cells in body),
        rule("└", "─", "┴", "┘"),
    ]  # fmt: skip


def _cut(text: str) -> str:
    return _HEX.sub(lambda found: found[0][:HEX_SHOWN] + "…", text)


def draw(document: Document) -> str:
    """Return the picture (SVG) of a kept run."""
    console = Console(
        record=True, width=WIDTH, file=io.StringIO(), force_terminal=True, color_system="truecolor",
        legacy_windows=False,
    )  # fmt: skip
    console.print(Text("$ make testnet", style="bold green"))
    for line in shortened(printed(document)):
        console.print(Text(line, style="bold" if line[:1] == "┃" else ""))
    svg = console.export_svg(title=TITLE, code_format=_FONTS.sub("", CONSOLE_SVG_FORMAT), unique_id="testnet")
    return "\n".join(line.rstrip() for line in svg.splitlines()) + "\n"


def _run() -> Document:
    """Run a test network with one task; return what it was told from."""
    document: Document = {}
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "net"
        with hold_folder(root):
            plan = lay_out(root, validators=VALIDATORS, workers=WORKERS, seed=1, base_port=BASE_PORT)
            trio.run(_record, Cluster(root, plan), document)
    return document


async def _record(cluster: Cluster, document: Document) -> None:
    async with trio.open_nursery() as nursery:
        await nursery.start(cluster.run)
        document["members"] = member_rows(cluster.status())
        await run_demonstration(
            cluster.home("validator-0"), cluster.plan.requester, click.echo,
            through=lambda source: Recorder(source, document),
        )  # fmt: skip
        cluster.down()


def _main(arguments: Sequence[str]) -> None:
    if "draw" not in arguments:
        document: Any = _run()
        assert set(COLUMNS) <= set(document["members"][0])
        RECORDED_RUN.write_text(json.dumps(document, separators=(",", ":"), sort_keys=True) + "\n")
    PICTURE.write_text(draw(json.loads(RECORDED_RUN.read_text())))


if __name__ == "__main__":
    _main(sys.argv[1:])
