"""``dekube testnet scenario``: networks in which a machine cheats, and what that costs it."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, TypeVar

import click
import trio

from node.cli.arguments import FOLDER_NAME, WholeNumber
from node.cli.output import counted, json_option, show, show_amount, show_rows
from rpc.client.core import hexed
from testnet.cluster import Cluster, check_folder, check_new_ports, hold_folder, lay_out
from testnet.plan import member_names
from testnet.scenarios.books import FUND, verdict
from testnet.scenarios.stories import STORIES, VALIDATORS, Story

__all__ = ["network_options", "play_on", "scenario", "temporary_folder"]

_T = TypeVar("_T")
_Function = TypeVar("_Function", bound=Callable[..., Any])

BASE_PORT: Final = 26_700
_COLUMNS: Final = ("party", "part", "gained", "lost")


def network_options(base_port: int) -> Callable[[_Function], _Function]:
    """Return a decorator for a command that plays on a network of its own: folder, seed and first port."""

    def decorate(function: _Function) -> _Function:
        for option in (
            click.option("--base-port", default=base_port, show_default=True, type=WholeNumber(1024, 65_535),
                         help="First port; each member uses three ports."),
            click.option("--seed", default=1, show_default=True, type=WholeNumber(0), help="Seed of all keys."),
            click.option("--dir", "folder", type=FOLDER_NAME, metavar="PATH",
                         help="Folder of the network; it is kept. Default: a folder that is removed afterwards."),
        ):  # fmt: skip
            function = option(function)
        return function

    return decorate


@click.command()
@click.argument("name", type=click.Choice(list(STORIES)))
@network_options(BASE_PORT)
@json_option
def scenario(name: str, folder: Path | None, seed: int, base_port: int, as_json: bool) -> None:
    """Run a network in which one machine cheats or is offline; print who lost what.

    In cheating-worker a worker computes a lie. In finetune it does so in a job that tunes a small Llama.
    In other-rate, coarse-weights and skipped-steps it trains another way than the job says.
    In copied-result it publishes what another machine has left of the same job.
    In false-challenger a verifier disputes right work.
    In cut-line it also cuts the worker off in mid-game. In lazy-verifier a verifier guesses.
    In overload a requester posts jobs that take long to check.
    In garbage-custody a worker of a private task puts garbage into custody.
    In offline-requester nobody cheats; the requester of a private task is offline.

    The exit status is 0 if the result is right and only the cheat lost.

    \b
    Examples:
      dekube testnet scenario cheating-worker
      dekube testnet scenario lazy-verifier --json
    """
    story = STORIES[name]
    with temporary_folder(folder) as root:
        document = _play(story, root, seed, base_port, as_json)
    if as_json:
        show(document)
    is_cheap = bool(story.cheat) and not document["cheat_lost"]
    if not document["right"] or is_cheap or document["honest_lost"]:
        raise click.exceptions.Exit(1)


def play_on(cluster: Cluster, play: Callable[[], Awaitable[_T]]) -> _T:
    """Run a network until ``play`` has ended, and return what it returned."""
    found: list[_T] = []

    async def run() -> None:
        async with trio.open_nursery() as nursery:
            await nursery.start(cluster.run)
            found.append(await play())
            cluster.down()

    trio.run(run)
    return found[0]


@contextmanager
def temporary_folder(folder: Path | None) -> Iterator[Path]:
    """Give the folder of a network: the one that is named, or one that is removed afterwards."""
    if folder is not None:
        yield folder.absolute()
        return
    made = Path(tempfile.mkdtemp(prefix="dekube-"))
    try:
        yield made / "net"
    finally:
        shutil.rmtree(made, ignore_errors=True)


def _play(story: Story, root: Path, seed: int, base_port: int, as_json: bool) -> dict[str, Any]:
    from testnet.scenarios.running import Scenario

    check_folder(root, member_names(VALIDATORS, story.workers))

    def say(line: str) -> None:
        click.echo(line, err=as_json)

    with hold_folder(root):
        check_new_ports(root, validators=VALIDATORS, workers=story.workers, base_port=base_port)
        plan = lay_out(
            root, validators=VALIDATORS, workers=story.workers, seed=seed, base_port=base_port,
            parameters=story.all_parameters, roles=story.roles,
        )  # fmt: skip
        cluster = Cluster(
            root, plan, report=lambda line: click.echo(line, err=True), absent=story.late,
            modules={story.cheat: ("testnet.scenarios.impostor", story.part)} if story.part else {},
        )  # fmt: skip
        outcome = play_on(cluster, Scenario(story, cluster, plan, say).run)
    document = _document(story, outcome)
    if not as_json:
        _print(story, outcome)
        gains = {name: int(amount) for name, amount in document["gains"].items()}
        click.echo(verdict(document["cheat"], gains, document["honest_lost"]))
    return document


def _document(story: Story, outcome: Any) -> dict[str, Any]:
    gains = {outcome.name(party): amount for party, amount in outcome.books.gains.items()}
    payers = {story.cheat, "requester", FUND}
    return {
        "scenario": story.name,
        "task": hexed(outcome.task),
        "right": outcome.is_right,
        "voided_windows": outcome.voided,
        "disputes": {name: dict(results) for name, results in outcome.disputes.items() if results},
        "cheat": story.cheat or None,
        "cheat_lost": gains.get(story.cheat, 0) < 0,
        "honest_lost": sorted(name for name, amount in gains.items() if amount < 0 and name not in payers),
        "gains": {name: str(amount) for name, amount in sorted(gains.items())},
        "burned": str(outcome.books.burned),
        "exact": outcome.books.is_exact,
    }


def _print(story: Story, outcome: Any) -> None:
    rows = []
    for party, amount in sorted(outcome.books.gains.items(), key=lambda item: item[1]):
        name = outcome.name(party)
        part = {story.cheat: "cheat", "requester": "pays for the task", FUND: "of the chain"}.get(name, "honest")
        column = "gained" if amount >= 0 else "lost"
        rows.append({"party": name, "part": part, column: show_amount(abs(amount))})
    rows.append({"party": "burned", "gained": show_amount(outcome.books.burned)})
    show_rows(rows, _COLUMNS, as_json=False, title="\nWho gained and lost what (without gas)")
    click.echo(f"Sums are {'exact' if outcome.books.is_exact else 'NOT EXACT'}.")
    for name, results in outcome.disputes.items():
        for result, number in results.items():
            click.echo(f"{name} {result} {counted(number, 'dispute')}.")
    click.echo(f"{counted(outcome.voided, 'window')} proved and void.")
    click.echo(
        "The requester's result is what an honest machine computes."
        if outcome.is_right
        else "THE REQUESTER'S RESULT IS WRONG."
    )
