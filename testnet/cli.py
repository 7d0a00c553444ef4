"""``dekube testnet``: runs a whole network on this machine."""

from __future__ import annotations

import json
import os
import signal
import time
import urllib.request
from collections.abc import AsyncIterator, Callable, Iterable
from pathlib import Path
from typing import Any, Final

import click
import trio

from node.cli.arguments import FOLDER_NAME, PathName, WholeNumber, parse_numbers
from node.cli.commands import CommandGroup
from node.cli.option_conflicts import not_with
from node.cli.output import counted, json_option, show, show_amount, show_rows
from node.home.load import load_genesis
from node.home.paths import Home
from node.process.control import ask_node
from state.primitives.errors import DekubeError
from testnet.cluster import (
    Cluster,
    MemberStatus,
    ask,
    check_folder,
    check_new_ports,
    check_numbers,
    hold_folder,
    lay_out,
    wait_released,
    write_home,
)
from testnet.faucet import FAUCET, FAUCET_COINS, faucet_key, make_faucet, write_faucet
from testnet.llm.cli import llm
from testnet.plan import MEMBERS_MAX, TRIAL_PARAMETERS, Placement, derive_key, make_plan, member_names
from testnet.scenarios.cli import scenario
from testnet.wan.cli import wan

__all__ = ["COLUMNS", "member_rows", "show_members", "starting_line", "testnet"]

DEFAULT_FOLDER: Final = ".testnet"
BASE_PORT: Final = 26600
SIGNALLED: Final = 128
USER_ID_MAX: Final = 2**32 - 2
RUNNING: Final = "\nRunning. Ctrl-C ends it; from another terminal: dekube testnet list | kill | stop | restart"
COLUMNS: Final = ("name", "role", "state", "pid", "address", "rpc")
STATUS_COLUMNS: Final = (
    "name", "role", "state", "height", "peers", "mempool", "jobs", "draining", "owns", "grants", "rpc",
)  # fmt: skip
ANSWER_S: Final = 5
ANSWER_LIMIT_BYTES: Final = 65_536


_folder = click.option(
    "--dir", "folder", default=DEFAULT_FOLDER, show_default=True, type=FOLDER_NAME, metavar="PATH",
    help="Folder of the network.",
)  # fmt: skip
_validators = click.option(
    "--validators", default=4, show_default=True, type=WholeNumber(1, MEMBERS_MAX),
    help="Number of validators.",
)  # fmt: skip
_workers = click.option(
    "--workers", default=2, show_default=True, type=WholeNumber(0, MEMBERS_MAX),
    help="Number of workers; they accept no inbound connection.",
)  # fmt: skip


@click.group(cls=CommandGroup)
def testnet() -> None:
    """Run a local test network: validators, a relay, workers and one real task.

    \b
    Examples:
      dekube testnet up
      dekube testnet status
    """


testnet.add_command(wan)
testnet.add_command(scenario)
testnet.add_command(llm)


@not_with(("--exit-when-settled",), "--no-task")
@testnet.command()
@_folder
@_validators
@click.option(
    "--founders",
    type=WholeNumber(1, MEMBERS_MAX),
    help="Number of validators in the first committee.  [default: all]",
)
@_workers
@click.option(
    "--seed", default=1, show_default=True, type=WholeNumber(0), help="Seed of all keys; use it for tests only."
)
@click.option(
    "--base-port", default=BASE_PORT, show_default=True, type=WholeNumber(1024, 65_535),
    help="First port; each member uses three ports.",
)  # fmt: skip
@click.option(
    "--task/--no-task", "demonstrate", default=True, show_default=True, help="Run one real training task."
)
@click.option(
    "--faucet/--no-faucet",
    "has_faucet",
    default=True,
    show_default=True,
    help="Run a faucet for wallets.",
)
@click.option("--exit-when-settled", is_flag=True, help="Stop the network when the task has settled.")
@click.option(
    "--parameter",
    "parameters",
    multiple=True,
    metavar="NAME=NUMBER",
    help="Change a chain parameter; repeat for several.",
)
@click.option(
    "--without",
    "absent",
    multiple=True,
    metavar="MEMBER",
    help="Do not start MEMBER at first; repeat for several.",
)
def up(
    folder: Path, validators: int, founders: int | None, workers: int, seed: int, base_port: int,
    demonstrate: bool, has_faucet: bool, exit_when_settled: bool, parameters: tuple[str, ...],
    absent: tuple[str, ...],
) -> None:  # fmt: skip
    """Start a network, run a task until it settles, and continue until Ctrl-C.

    The exit status is 0 if the network did its work. It is 128 plus the signal number if a signal came
    earlier. A second signal kills the members at once.

    \b
    Examples:
      dekube testnet up
      dekube testnet up --validators 7 --workers 3 --exit-when-settled
    """
    root = folder.absolute()
    check_numbers(validators=validators, workers=workers, founders=founders, base_port=base_port)
    names = [*member_names(validators, workers), *([FAUCET] if has_faucet else [])]
    if unknown := sorted(set(absent) - set(names)):
        raise click.BadParameter(f"no member {unknown[0]!r}; members: {', '.join(names)}", param_hint="--without")
    numbers = parse_numbers(parameters, "--parameter")
    check_folder(root, [*names, FAUCET])
    with hold_folder(root):
        check_new_ports(root, validators=validators, workers=workers, base_port=base_port)
        plan = lay_out(
            root, validators=validators, workers=workers, seed=seed, base_port=base_port,
            parameters=numbers, founders=founders,
            allocations=((faucet_key(seed).address, FAUCET_COINS),),
            defaults=TRIAL_PARAMETERS,
        )  # fmt: skip
        guests = [make_faucet(root, plan, seed)] if has_faucet else []
        cluster = Cluster(root, plan, report=lambda line: click.echo(line, err=True), absent=absent, guests=guests)
        click.echo(starting_line(validators, workers, root))
        status = trio.run(_Up(cluster).run, demonstrate and workers > 0, exit_when_settled)
    click.echo("The network has ended; nothing of it runs on.")
    raise click.exceptions.Exit(status)


class _Up:
    """One run of a network, with this process's signal handling."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._work = trio.CancelScope()
        self._is_done = self._is_ending = False
        self._status = 0

    async def run(self, demonstrate: bool, exit_when_settled: bool) -> int:
        """Run the network and return the exit status."""
        with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM, signal.SIGHUP) as received:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._stop_on_signal, received)
                with self._work:
                    async with trio.open_nursery() as members:
                        await members.start(self._cluster.run)
                        members.start_soon(self._stop_on_down)
                        await self._do(demonstrate)
                        if not exit_when_settled:
                            click.echo(RUNNING)
                            await self._cluster.wait_down()
                        self._cluster.down()
                nursery.cancel_scope.cancel()
        return self._status

    async def _do(self, demonstrate: bool) -> None:
        show_members(member_rows(self._cluster.status()))
        for status in self._cluster.status():
            if status.role == FAUCET:
                click.echo(f"Coins: dekube wallet faucet NAME --from {status.rpc}")
        if demonstrate:
            from testnet.demonstration import run_demonstration

            await run_demonstration(self._cluster.home("validator-0"), self._cluster.plan.requester, self._say)
        self._is_done = True

    def _say(self, line: str) -> None:
        if not self._is_ending:  # its thread learns of the end later
            click.echo(line)

    async def _stop_on_signal(self, received: AsyncIterator[int]) -> None:
        async for number in received:
            if self._is_ending:
                self._cluster.kill_all()
                continue
            click.echo("\nStopping the network ...", err=True)
            if not self._is_done:
                self._status = SIGNALLED + number
            self._end()

    async def _stop_on_down(self) -> None:
        await self._cluster.wait_down()
        self._end()

    def _end(self) -> None:
        self._is_ending = True
        self._work.cancel()


def starting_line(validators: int, workers: int, root: Path) -> str:
    """Return the line that is printed before the members start."""
    members = f"{counted(validators, 'validator')}, a relay and {counted(workers, 'worker')}"
    return f"Starting {members} in {root} ..."


def member_rows(members: Iterable[MemberStatus]) -> list[dict[str, Any]]:
    """Return the table rows of a network's members."""
    return [{name: getattr(status, name) for name in COLUMNS} for status in members]


def show_members(rows: list[dict[str, Any]]) -> None:
    """Print the members of a network that has started."""
    show_rows(rows, COLUMNS, as_json=False, title="Members")


def _verb(name: str, text: str) -> Callable[..., None]:
    @testnet.command(name=name, help=f"{text}\n\n\b\nExample:\n  dekube testnet {name} validator-1")
    @_folder
    @click.argument("member")
    @json_option
    def command(folder: Path, member: str, as_json: bool) -> None:
        show_rows(ask(folder.absolute(), name, member), COLUMNS, as_json=as_json, title="Members")

    return command


_verb("kill", "Kill MEMBER at once, as a crash would (SIGKILL).")
_verb("stop", "Stop MEMBER in order (SIGTERM).")
_verb("restart", "Start MEMBER again and wait until it is ready.")


@testnet.command(name="list")
@_folder
@json_option
def list_(folder: Path, as_json: bool) -> None:
    """List the members of the network.

    \b
    Example:
      dekube testnet list
    """
    show_rows(ask(folder.absolute(), "list"), COLUMNS, as_json=as_json, title="Members")


@testnet.command()
@_folder
@json_option
def status(folder: Path, as_json: bool) -> None:
    """Show height, peers and jobs of each member, and the faucet's balance.

    \b
    Example:
      dekube testnet status
    """
    rows = []
    for row in ask(folder.absolute(), "list"):
        shown = {name: row[name] for name in ("name", "role", "state", "rpc")}
        rows.append(shown | (_told(row) if row["state"] == "running" else {}))
    show_rows(rows, STATUS_COLUMNS, as_json=as_json, title="Members")


def _told(row: dict[str, Any]) -> dict[str, Any]:
    """Return a member's own status; empty if it does not answer."""
    try:
        if row["role"] == FAUCET:
            with urllib.request.urlopen(row["rpc"], timeout=ANSWER_S) as answer:  # noqa: S310  our own process
                about = json.loads(answer.read(ANSWER_LIMIT_BYTES))
            return {"owns": show_amount(int(about["balance"])), "grants": about["granted"]}
        if not row["rpc"]:
            return {}  # a relay has metrics alone
        state = ask_node(Home(Path(row["home"])).control, "status", timeout_s=ANSWER_S)
        return {
            "height": state["height"],
            "peers": state["peers"],
            "mempool": state["mempool"],
            "jobs": len(state["jobs"]),
            "draining": state["draining"],
        }
    except (OSError, ValueError, KeyError, TypeError, DekubeError):
        return {}


@testnet.command()
@_folder
@json_option
def down(folder: Path, as_json: bool) -> None:
    """Stop the whole network and wait until all members have ended.

    \b
    Example:
      dekube testnet down
    """
    root = folder.absolute()
    ask(root, "down")
    wait_released(root)
    show({"ended": str(root)}) if as_json else click.echo(f"The network in {root} has ended.")


@testnet.command()
@_folder
@_validators
@_workers
@click.option(
    "--seed", default=1, show_default=True, type=WholeNumber(0), help="Seed of all keys; use it for tests only."
)
@click.option(
    "--owner",
    type=WholeNumber(0, USER_ID_MAX),
    default=None,
    help="User ID that owns the files (for containers). Default: the current user.",
)
def layout(folder: Path, validators: int, workers: int, seed: int, owner: int | None) -> None:
    """Write homes for members that run on separate hosts or containers.

    Each host has its member's name.

    \b
    Example:
      dekube testnet layout --dir homes --validators 4
    """
    root = folder.absolute()
    names = member_names(validators, workers)
    faucet = root / FAUCET
    if all(Home(root / name).config.exists() for name in names) and (faucet / "key.json").exists():
        click.echo(f"{root}: laid out already; nothing was changed.")
        return
    placements = {name: Placement(name, "0.0.0.0", 26656, 8545, 9100) for name in names}  # noqa: S104
    plan = make_plan(
        validators=validators, workers=workers, seed=seed, time_ms=_known_time_ms(root, names) or _now_ms(),
        placements=placements, allocations=((faucet_key(seed).address, FAUCET_COINS),),
    )  # fmt: skip
    for member in plan.members:
        write_home(root / member.name, member, plan)
    write_faucet(faucet, seed, plan.passphrase)
    if owner is not None:
        for path in (p for name in (*names, FAUCET) for p in (root / name, *(root / name).rglob("*"))):
            os.chown(path, owner, owner)
    click.echo(f"Wrote {counted(len(names), 'home')} and a faucet to {root}.")


@testnet.command()
@click.option("--home", "home_path", required=True, type=PathName(), help="Home folder of a member.")
@click.option("--seed", default=1, show_default=True, type=WholeNumber(0), help="Seed of the network.")
def demonstrate(home_path: Path, seed: int) -> None:
    """Run one real training task through the member in --home until it settles.

    \b
    Example:
      dekube testnet demonstrate --home .testnet/validator-0
    """
    from testnet.demonstration import run_demonstration

    trio.run(run_demonstration, Home(home_path.absolute()), derive_key(seed, "requester"), click.echo)


def _known_time_ms(root: Path, names: list[str]) -> int | None:
    """Return the genesis time that an interrupted layout has already written to some homes."""
    known = [home for home in (Home(root / name) for name in names) if home.config.exists()]
    return load_genesis(known[0].genesis).time_ms if known else None


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
