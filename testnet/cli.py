"""``dekube testnet``: a whole network on this machine with one command."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import click
import trio

from node.cli.output import json_option, show_rows
from node.home import Home
from state.primitives.errors import ConfigError
from testnet.cluster import Cluster, ask, lay_out, write_home
from testnet.demonstration import run_demonstration
from testnet.plan import Placement, derive_key, make_plan, member_names

__all__ = ["testnet"]

DEFAULT_FOLDER: Final = ".testnet"
BASE_PORT: Final = 26600
COLUMNS: Final = ("name", "role", "state", "pid", "address", "rpc")

_folder = click.option(
    "--dir", "folder", default=DEFAULT_FOLDER, show_default=True, type=click.Path(path_type=Path),
    help="Folder of the network.",
)  # fmt: skip


@click.group()
def testnet() -> None:
    """A network of this machine: validators, a relay, GPU workers, one real task."""


@testnet.command()
@_folder
@click.option("--validators", default=4, show_default=True, help="Validators that agree on blocks.")
@click.option("--workers", default=2, show_default=True, help="Workers that accept no inbound connection.")
@click.option("--seed", default=1, show_default=True, help="All keys derive from it: for tests only.")
@click.option("--base-port", default=BASE_PORT, show_default=True, help="First of three ports a member.")
@click.option(
    "--task/--no-task", "demonstrate", default=True, show_default=True, help="Run one real training task."
)
@click.option("--exit-when-settled", is_flag=True, help="End the network once the task is settled.")
@click.option("--parameter", "parameters", multiple=True, metavar="NAME=NUMBER", help="Change a chain parameter.")
def up(
    folder: Path, validators: int, workers: int, seed: int, base_port: int, demonstrate: bool,
    exit_when_settled: bool, parameters: tuple[str, ...],
) -> None:  # fmt: skip
    """Start a network, run a task until its bill is settled, and go on until Ctrl-C."""
    root = folder.absolute()
    plan = lay_out(
        root, validators=validators, workers=workers, seed=seed, base_port=base_port,
        parameters=_numbers(parameters),
    )  # fmt: skip
    cluster = Cluster(root, plan, report=lambda line: click.echo(line, err=True))
    click.echo(f"Starting {validators} validators, a relay and {workers} workers in {root} ...")
    trio.run(_up, cluster, demonstrate and workers > 0, exit_when_settled)
    click.echo("The network has ended; nothing of it runs on.")


async def _up(cluster: Cluster, demonstrate: bool, exit_when_settled: bool) -> None:
    async with trio.open_nursery() as nursery:
        await nursery.start(_stop_on_signal, cluster)
        await nursery.start(cluster.run)
        _print_members(cluster)
        if demonstrate:
            await run_demonstration(cluster.home("validator-0"), cluster.plan.requester, click.echo)
        if exit_when_settled:
            cluster.down()
        else:
            click.echo(
                "\nRunning. Ctrl-C ends it; from another terminal: dekube testnet list | kill | stop | restart"
            )
            await cluster.wait_down()
        nursery.cancel_scope.cancel()


async def _stop_on_signal(cluster: Cluster, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM, signal.SIGHUP) as received:
        task_status.started()
        async for _ in received:
            click.echo("\nStopping the network ...", err=True)
            cluster.down()
            raise KeyboardInterrupt


def _print_members(cluster: Cluster) -> None:
    rows = [{name: getattr(status, name) for name in COLUMNS} for status in cluster.status()]
    show_rows(rows, COLUMNS, as_json=False, title="Members")


def _verb(name: str, text: str) -> Callable[..., None]:
    @testnet.command(name=name, help=text)
    @_folder
    @click.argument("member")
    @json_option
    def command(folder: Path, member: str, as_json: bool) -> None:
        show_rows(ask(folder.absolute(), name, member), COLUMNS, as_json=as_json, title="Members")

    return command


_verb("kill", "End MEMBER as a crash would (SIGKILL).")
_verb("stop", "End MEMBER in order (SIGTERM).")
_verb("restart", "Start MEMBER again; return when it is ready.")


@testnet.command(name="list")
@_folder
@json_option
def list_(folder: Path, as_json: bool) -> None:
    """List the members."""
    show_rows(ask(folder.absolute(), "list"), COLUMNS, as_json=as_json, title="Members")


@testnet.command()
@_folder
@json_option
def down(folder: Path, as_json: bool) -> None:
    """End the whole network."""
    show_rows(ask(folder.absolute(), "down"), COLUMNS, as_json=as_json, title="Members")


@testnet.command()
@_folder
@click.option("--validators", default=4, show_default=True)
@click.option("--workers", default=2, show_default=True)
@click.option("--seed", default=1, show_default=True)
@click.option("--owner", type=int, default=None, help="Give the files to this user id (containers).")
def layout(folder: Path, validators: int, workers: int, seed: int, owner: int | None) -> None:
    """Write homes for members that are hosts of their own, named like the members (containers)."""
    root = folder.absolute()
    names = member_names(validators, workers)
    known = root / "validator-0" / "genesis.json"
    if known.exists():
        click.echo(f"{root}: laid out already; nothing was changed.")
        return
    placements = {name: Placement(name, "0.0.0.0", 26656, 8545, 9100) for name in names}  # noqa: S104
    plan = make_plan(
        validators=validators, workers=workers, seed=seed, time_ms=_now_ms(), placements=placements
    )  # fmt: skip
    for member in plan.members:
        write_home(root / member.name, member, plan)
    if owner is not None:
        for path in (p for name in names for p in (root / name, *(root / name).rglob("*"))):
            os.chown(path, owner, owner)
    click.echo(f"Wrote {len(names)} homes to {root}.")


@testnet.command()
@click.option("--home", "home_path", required=True, type=click.Path(path_type=Path), help="A member's home.")
@click.option("--seed", default=1, show_default=True, help="The seed of the network.")
def demonstrate(home_path: Path, seed: int) -> None:
    """Run one real training task through the member in --home until its bill is settled."""
    trio.run(run_demonstration, Home(home_path.absolute()), derive_key(seed, "requester"), click.echo)


def _numbers(parameters: tuple[str, ...]) -> dict[str, int]:
    found: dict[str, int] = {}
    for parameter in parameters:
        name, _, number = parameter.partition("=")
        if not number.isdigit():
            raise ConfigError(f"{parameter!r}: NAME=NUMBER expected, e.g. chain.epoch_blocks=100")
        found[name] = int(number)
    return found


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
