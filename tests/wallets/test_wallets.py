"""viem, ethers, web3.py and cast, unchanged, against four validators as processes: ``make test-wallets``."""

from __future__ import annotations

import json
import os
import shutil
import time
import traceback
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import trio

from rpc.gateway.method_table import METHOD_TABLE
from tests.wallets.clients import Client, clients
from tests.wallets.scenario import Play
from tests.wallets.tap import Judge, Verdict
from tests.wallets.tools import PLACE
from tests.wallets.world import VALIDATORS, World, job, world

REPORT = PLACE / "report.json"
PLAYS = ("at one node", "moved between send and wait")

ALL = frozenset({"viem", "ethers", "web3.py", "cast"})
VARIABLE = "DEKUBE_TEST_WALLETS"
WHOLE = f"the bar is all four. {VARIABLE}=web3.py,viem runs these alone"

pytestmark = pytest.mark.cluster


def wanted() -> frozenset[str]:
    """Return the clients to run: all, unless somebody says that this machine need not have them.

    A machine without their programs fails: a test of four clients that passes with one says nothing.
    """
    names = frozenset(os.environ.get(VARIABLE, ",".join(ALL)).split(","))
    assert names and names <= ALL, f"{VARIABLE}: {', '.join(sorted(ALL))} expected, not {sorted(names - ALL)}"
    lacking = [program for program in ("node", "npm") if names - {"web3.py"} and shutil.which(program) is None]
    assert not lacking, f"{' and '.join(lacking)} not installed; {WHOLE}"
    return names


class Report:
    """Counts by client and step, and what failed."""

    def __init__(self) -> None:
        self.counts: dict[str, dict[str, Counter[str]]] = {}
        self.failures: list[str] = []
        self.seconds: dict[str, float] = {}

    def add(self, client: str, play: str, done: Counter[str]) -> None:
        self.counts.setdefault(client, {})[play] = done

    def table(self) -> str:
        """Return the counts as text: a row for each step, a column for each client and play."""
        columns = [(client, play) for client in self.counts for play in self.counts[client]]
        steps = sorted({step for client, play in columns for step in self.counts[client][play]})
        head = ["", *(f"{client} {'A' if play == PLAYS[0] else 'B'}" for client, play in columns)]
        rows = [
            head,
            *([step, *(str(self.counts[client][play][step]) for client, play in columns)] for step in steps),
        ]
        widths = [max(len(row[at]) for row in rows) for at in range(len(head))]
        lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
        return "\n".join([*lines, f"A: {PLAYS[0]}; B: {PLAYS[1]}"])

    def write(self, verdict: Verdict) -> Any:
        ethereum = {name for name in METHOD_TABLE if not name.startswith("dekube_")}
        document = {
            "steps": self.counts,
            "seconds": self.seconds,
            "failed": len(self.failures) + len(verdict.faults),
            "failures": self.failures,
            "schema_faults": verdict.faults,
            "answers": dict(verdict.answers),
            "errors": dict(verdict.errors),
            "notifications": dict(verdict.notifications),
            "asked_by_no_client": sorted(ethereum - verdict.answers.keys()),
        }
        REPORT.parent.mkdir(parents=True, exist_ok=True)
        REPORT.write_text(json.dumps(document, indent=1) + "\n")
        return document


async def play_all(it: World, client: Client, number: int, report: Report) -> None:
    """Go through the scenario at one node, then again from node to node."""
    for again, name in enumerate(PLAYS):
        play = Play(it, client, job(2 * number + again), number % VALIDATORS, moves=bool(again))
        started = time.monotonic()
        try:
            await play.run()
            play.check_whole()
        except (AssertionError, trio.TooSlowError) as error:
            place = traceback.extract_tb(error.__traceback__)[-1]
            report.failures.append(f"{client.name}, {name}: {place.name} {place.lineno}: {place.line}: {error!r}")
        report.add(client.name, name, play.done)
        report.seconds[f"{client.name}, {name}"] = round(time.monotonic() - started, 1)


async def test_all_clients_work_unchanged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = wanted()
    report = Report()
    async with world(tmp_path / "net") as it, clients(tmp_path, names) as wallets:
        missing = names - {client.name for client in wallets}
        assert not missing, f"{missing} cannot run on this machine; {WHOLE}"
        async with trio.open_nursery() as nursery:
            for number, client in enumerate(wallets):
                nursery.start_soon(play_all, it, client, number, report)
        document = await it.ask(0, "rpc.discover")
        wires = [wire for tap in it.taps for wire in tap.wires]
    verdict = Judge(document).judge(wires)
    written = report.write(verdict)
    with capsys.disabled():
        print(f"\n{report.table()}\n{report.seconds}")
        print(f"answers that have the shape of their schemas: {sum(verdict.answers.values())}, {REPORT}")
        if names != ALL:
            print(f"NOT RUN, as {VARIABLE} says: {', '.join(sorted(ALL - names))}. {WHOLE}")
    assert written["failed"] == 0, "\n".join(report.failures + verdict.faults[:5])
    assert {"newHeads", "logs"} <= verdict.notifications.keys()
