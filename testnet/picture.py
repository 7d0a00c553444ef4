"""Draws the README's picture of a test network from a recorded run: ``make picture``.

docs/testnet-run.json has the answers of the run. docs/testnet.svg is drawn from them by the code that prints them
on a terminal. A test draws it again without a network, and fails if the picture is not what the command prints
now. ``python -m testnet.picture draw`` draws the recorded run again; ``python -m testnet.picture`` makes a new run
first.
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
from testnet.demonstration import Document, RunSource, TaskRun, TaskSummary, print_run, run_demonstration

__all__ = ["PICTURE", "RECORDED_RUN", "RecordedRun", "Recorder", "draw", "printed", "shortened"]

DOCS: Final = Path(__file__).parent.parent / "docs"
RECORDED_RUN: Final = DOCS / "testnet-run.json"
PICTURE: Final = DOCS / "testnet.svg"
VALIDATORS: Final = 4
WORKERS: Final = 2
BASE_PORT: Final = 26600
TITLE: Final = "DEKUBE: four validators, a relay, two workers, a language model trained and asked"
HEX_SHOWN: Final = 8
ROWS_MAX: Final = 6
"""Maximum rows of a table in the picture; the middle of a longer one is left out."""
_EDGES: Final = tuple("┏┃┡│└")
_HEX: Final = re.compile(r"0x[0-9a-fA-F]{40,}")
_FONTS: Final = re.compile(r"\s*@font-face \{\{.*?\}\}", re.DOTALL)
"""Font references, which a viewer would load from the network."""


class Recorder:
    """Passes on the data of a run, and records it in ``document``."""

    def __init__(self, source: RunSource, document: Document) -> None:
        self._source = source
        self.document = document

    def machines(self) -> list[Document]:
        """Record the machines."""
        found = self.document["machines"] = self._source.machines()
        return found

    def training(self) -> TaskRun:
        """Record the task that trains."""
        return TaskRecorder(self._source.training(), self.document.setdefault("training", {}))

    def asking(self) -> TaskRun:
        """Record the task that asks."""
        return TaskRecorder(self._source.asking(), self.document.setdefault("asking", {}))


class TaskRecorder:
    """Passes on the data of a task, and records it in ``document``."""

    def __init__(self, run: TaskRun, document: Document) -> None:
        self._source = run
        self.document = document

    def prepare(self) -> TaskSummary:
        """Record the task's summary."""
        posting = self._source.prepare()
        self.document["posting"] = [*posting[:-1], posting.dataset_blob.hex()]
        return posting

    def post(self) -> str:
        """Record the task's id."""
        task = self.document["task"] = self._source.post()
        return task

    def updates(self) -> Iterator[tuple[TaskUpdate, list[str]]]:
        """Record each update and its next steps."""
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
        """Record the transactions, without their bytes."""
        found = self._source.transactions()
        self.document["transactions"] = [{k: v for k, v in one.items() if k != "raw"} for one in found]
        return found

    def windows(self) -> list[Document]:
        """Record the windows."""
        found = self.document["windows"] = self._source.windows()
        return found

    def result(self) -> list[str]:
        """Record what the task has given."""
        found = self.document["result"] = self._source.result()
        return found

    def bill(self) -> Bill:
        """Record the bill."""
        found = self._source.bill()
        self.document["bill"] = {
            "lines": [dict(line.document) for line in found.lines], "totals": dict(found.totals.document),
        }  # fmt: skip
        return found


class RecordedRun:
    """A run whose ``document`` a Recorder has made. Raises AnswerMalformed for another form."""

    def __init__(self, document: Document) -> None:
        self._document = document

    def machines(self) -> list[Document]:
        """Return the machines."""
        return list(self._document["machines"])

    def training(self) -> TaskRun:
        """Return the task that trains."""
        return RecordedTask(self._document["training"])

    def asking(self) -> TaskRun:
        """Return the task that asks."""
        return RecordedTask(self._document["asking"])


class RecordedTask:
    """A task whose ``document`` a TaskRecorder has made. Raises AnswerMalformed for another form."""

    def __init__(self, document: Document) -> None:
        self._document = document

    def prepare(self) -> TaskSummary:
        """Return the task's summary."""
        what, steps, windows, blob = self._document["posting"]
        return TaskSummary(what, steps, windows, bytes.fromhex(blob))

    def post(self) -> str:
        """Return the task's id."""
        return str(self._document["task"])

    def updates(self) -> Iterator[tuple[TaskUpdate, list[str]]]:
        """Yield each update and its next steps."""
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

    def result(self) -> list[str]:
        """Return what the task has given."""
        return list(self._document["result"])

    def bill(self) -> Bill:
        """Return the bill."""
        bill = self._document["bill"]
        lines = tuple(read_result(BillLine, line) for line in bill["lines"])
        return Bill(lines, read_result(EscrowTotals, bill["totals"]))


def printed(document: Document) -> list[str]:
    """Return the lines that `dekube testnet up` would print now for the recorded run."""
    out = io.StringIO()
    with redirect_stdout(out):
        click.echo(starting_line(VALIDATORS, WORKERS, Path(".testnet")))
        show_members(document["members"])
        print_run(RecordedRun(document), click.echo)
    return [line.rstrip() for line in out.getvalue().splitlines()]


def shortened(lines: Sequence[str]) -> list[str]:
    """Return ``lines`` with hashes and addresses shortened, and tables as narrow as that allows."""
    found: list[str] = []
    table: list[str] = []
    for line in [*lines, ""]:
        if line[:1] in _EDGES:
            table.append(line)
            continue
        found += _table(table)
        table = []
        found.append(_cut(line))
    return found[:-1]


def _table(lines: Sequence[str]) -> list[str]:
    """Return the lines of a table drawn by rich, drawn again with narrower columns."""
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
    """Return the picture (SVG) of a recorded run."""
    lines = shortened(printed(document))
    width = max(len(line) for line in lines if line[:1] in _EDGES)  # texts may be broken, tables may not
    console = Console(
        record=True, width=width, file=io.StringIO(), force_terminal=True, color_system="truecolor",
        legacy_windows=False,
    )  # fmt: skip
    console.print(Text("$ make testnet", style="bold green"))
    for line in lines:
        console.print(Text(line, style="bold" if line[:1] == "┃" else ""))
    svg = console.export_svg(title=TITLE, code_format=_FONTS.sub("", CONSOLE_SVG_FORMAT), unique_id="testnet")
    return "\n".join(line.rstrip() for line in svg.splitlines()) + "\n"


def _run() -> Document:
    """Run a test network with one task; return the recorded document."""
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
