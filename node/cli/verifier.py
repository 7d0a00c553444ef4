"""``dekube verifier``: disputes of this machine, and challenges of other machines' work."""

from __future__ import annotations

import time
from typing import Any, Final

import click

from node.cli.arguments import WholeNumber
from node.cli.commands import CommandGroup
from node.cli.options import ask_home, home_option
from node.cli.output import counted, json_option, show, show_rows
from node.home.paths import Home
from state.primitives.errors import DekubeError

__all__ = ["verifier"]

LOOK_S: Final = 1.0
_COLUMNS: Final = ("task", "window", "segment", "side", "against", "state", "moves", "turn", "time left")
ENDED: Final = ("agrees", "differs", "sealed", "opened", "shown", "failed")
"""States of a check that its command waits for."""


class ChallengeFailed(DekubeError):
    """A window could not be checked."""

    code = "challenge_failed"


@click.group(cls=CommandGroup)
def verifier() -> None:
    """Show disputes of this machine and challenge the work of others.

    A node plays its disputes by itself. Use these commands to look at them, or to check a task yourself.

    \b
    Examples:
      dekube verifier disputes
      dekube verifier challenge TASK --check-only
    """


@verifier.command()
@home_option
@json_option
def disputes(home: Home, as_json: bool) -> None:
    """List the disputes that the node in --home plays.

    \b
    Example:
      dekube verifier disputes
    """
    found: list[dict[str, Any]] = ask_home(home, "admin", method="admin_getDisputes", params=[])
    if as_json:
        show(found)
        return
    rows = [
        {
            "task": row["task"], "window": row["window"], "segment": row["segment"], "side": row["side"],
            "against": row["other"], "state": row["phase"], "moves": row["moves"],
            "turn": "this machine" if row["our_turn"] else "the other side",
            "time left": f"{row['left_ms'] // 1000} s",
        }
        for row in found
    ]  # fmt: skip
    show_rows(rows, _COLUMNS, as_json=False, title="Disputes")


@verifier.command()
@home_option
@click.argument("task")
@click.option(
    "--window", type=WholeNumber(0, 2**32 - 1), help="Check only this window. Default: all open windows."
)  # fmt: skip
@click.option("--check-only", is_flag=True, help="Only say whether anything differs; challenge nothing.")
@json_option
def challenge(home: Home, task: str, window: int | None, check_only: bool, as_json: bool) -> None:
    """Re-run the open windows of TASK and challenge what differs.

    The node in --home fetches the published states and computes each segment again. If a segment differs, it
    seals a challenge with its bond and plays the dispute. It challenges nothing that it finds right.

    The bond is 10 % of the worker's bond. It returns if the challenge is right.

    The exit status is 0 if all windows agree and 1 otherwise. Ctrl-C ends this command, not the check.

    \b
    Examples:
      dekube verifier challenge TASK --check-only
      dekube verifier challenge TASK --window 3
    """
    params = {"task": task, "check_only": check_only} | ({} if window is None else {"window": window})
    asked: list[int] = ask_home(home, "admin", method="admin_challenge", params=params)["windows"]
    rows = _wait(home, task, asked, is_quiet=as_json)
    if as_json:
        show(rows)
    else:
        for row in rows:
            click.echo(_sentence(row))
    if any(row["state"] != "agrees" for row in rows):
        raise click.exceptions.Exit(1)


def _wait(home: Home, task: str, asked: list[int], *, is_quiet: bool) -> list[dict[str, Any]]:
    """Wait until the windows are checked, and say how far it is."""
    said = ""
    while True:
        found = ask_home(home, "admin", method="admin_getChallenges", params={"task": task})
        rows = [row for row in found if row["window"] in asked]
        if all(row["state"] in ENDED for row in rows):
            return rows
        done, every = (sum(row[name] for row in rows) for name in ("done", "segments"))
        details = [row["detail"] for row in rows if row["detail"]]
        line = "; ".join([f"{done} of {counted(every, 'segment')} checked", *details])
        if line != said and not is_quiet:
            click.echo(line, err=True)
            said = line
        time.sleep(LOOK_S)


def _sentence(row: dict[str, Any]) -> str:
    window = f"Window {row['window']}"
    match row["state"]:
        case "agrees":
            return f"{window}: all {counted(row['segments'], 'segment')} agree."
        case "differs":
            return f"{window}: segment {row['segment']} differs. Nothing was challenged (--check-only)."
        case "sealed" | "opened":
            return (
                f"{window}: segment {row['segment']} differs. A challenge is on chain, and the node plays it: "
                "dekube verifier disputes"
            )
        case "shown":
            return f"{window}: the leaf of segment {row['segment']} does not fit. That is proven on chain."
        case _:
            return f"{window}: not checked ({row['detail']})."
