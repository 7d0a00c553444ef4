"""``dekube testnet wan``: creates, changes, measures and removes emulated wide-area networks."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import click

from node.cli.arguments import FOLDER_NAME, SECONDS, WholeNumber
from node.cli.commands import CommandGroup
from node.cli.output import counted, json_option, show, show_rows
from testnet.cluster import hold_folder
from testnet.wan.check import check
from testnet.wan.lab import Lab, attach, changes_of, destroy, labs, load_plan, shipped

__all__ = ["wan"]

_name = click.option("--name", default=None, help="Name of the new network. Default: the name in the topology.")
_command = click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
LOOK_S: Final = 5.0
_PASSED: Final = {"ignore_unknown_options": True, "allow_interspersed_args": False}


@click.group(cls=CommandGroup, name="wan")
def wan() -> None:
    """Emulate wide-area networks on this machine: hosts, delay, loss and NAT.

    These commands need root. TOPOLOGY is a file (docs/network.md) or a built-in name (see `topologies`).
    """


@wan.command()
@click.argument("topology")
@_name
@json_option
def up(topology: str, name: str | None, as_json: bool) -> None:
    """Create the network of TOPOLOGY and replace an older one of its name.

    \b
    Example:
      dekube testnet wan up homes
    """
    lab = Lab(load_plan(topology), name)
    lab.up()
    _show_hosts(lab, as_json)


@wan.command()
@click.argument("name")
@json_option
def down(name: str, as_json: bool) -> None:
    """Remove the network NAME and kill every process in it.

    \b
    Example:
      dekube testnet wan down homes
    """
    was_up = destroy(name)
    show({"name": name, "was_up": was_up}) if as_json else click.echo("down" if was_up else "was not up")


@wan.command(name="list")
@json_option
def list_(as_json: bool) -> None:
    """List the networks that are up.

    \b
    Example:
      dekube testnet wan list
    """
    show_rows([{"name": name} for name in labs()], ("name",), as_json=as_json, title="Networks")


@wan.command()
@json_option
def topologies(as_json: bool) -> None:
    """List the built-in topologies.

    \b
    Example:
      dekube testnet wan topologies
    """
    rows = [
        {"name": name, "hosts": len(load_plan(name).topology.hosts), "about": text.splitlines()[0].lstrip("# ")}
        for name, text in sorted(shipped().items())
    ]
    show_rows(rows, ("name", "hosts", "about"), as_json=as_json, title="Topologies")


@wan.command()
@click.argument("name")
@json_option
def hosts(name: str, as_json: bool) -> None:
    """List the hosts of the network NAME and their addresses.

    \b
    Example:
      dekube testnet wan hosts homes
    """
    _show_hosts(attach(name), as_json)


@wan.command(name="exec", context_settings=_PASSED)
@click.argument("name")
@click.argument("host")
@_command
def exec_(name: str, host: str, command: tuple[str, ...]) -> None:
    """Run COMMAND in HOST of the network NAME.

    In COMMAND, {B} stands for host B's IPv4 address and {B.6} for its IPv6 address.

    \b
    Example:
      dekube testnet wan exec homes A ping -c 3 {B}
    """
    raise click.exceptions.Exit(subprocess.call(attach(name).argv(host, _without_dashes(command))))


@wan.command(context_settings=_PASSED)
@click.argument("topology")
@click.argument("host")
@_command
def run(topology: str, host: str, command: tuple[str, ...]) -> None:
    """Create a network, run COMMAND in HOST, and remove the network.

    \b
    Example:
      dekube testnet wan run homes A ping -c 3 {B}
    """
    with Lab(load_plan(topology)) as lab:
        status = subprocess.call(lab.argv(host, _without_dashes(command)))
    raise click.exceptions.Exit(status)


@wan.command(name="set")
@click.argument("name")
@click.argument("line")
@click.argument("settings", nargs=-1, required=True, metavar="KEY=VALUE...")
def set_(name: str, line: str, settings: tuple[str, ...]) -> None:
    """Change the settings of LINE in the network NAME while it runs.

    LINE is A-B (both directions), "A>B" (one direction), A:up or A:down (a host's access line).

    \b
    Examples:
      dekube testnet wan set homes GA-GB loss=5% rtt=200ms
      dekube testnet wan set homes GA:up rate=5mbit
      dekube testnet wan set homes GA-R1 down=true
    """
    attach(name).set(line, **changes_of(settings))


@wan.command()
@click.argument("name")
@click.argument("host")
@click.option(
    "--away",
    default=0.0,
    type=SECONDS,
    show_default=True,
    metavar="SECONDS",
    help="Seconds without any address.",
)
@json_option
def roam(name: str, host: str, away: float, as_json: bool) -> None:
    """Change the addresses of HOST, a host behind a gateway.

    Its connections break without notice.

    \b
    Example:
      dekube testnet wan roam homes A --away 5
    """
    address4, address6 = attach(name).roam(host, away_s=away)
    row = {"host": host, "ipv4": str(address4), "ipv6": str(address6)}
    show(row) if as_json else click.echo(f"{host} is at {address4} and {address6} now")


@wan.command()
@click.argument("name")
@click.option("--reset", is_flag=True, help="Reset the counters afterwards.")
@json_option
def stats(name: str, reset: bool, as_json: bool) -> None:
    """Show the traffic, losses and timing errors of each line of the network NAME.

    \b
    Example:
      dekube testnet wan stats homes --reset
    """
    lab = attach(name)
    counted = lab.stats()
    if reset:
        lab.reset()
    if as_json:
        show(counted)
        return
    columns = ("line", "in", "in_bytes", "out", "out_bytes", "overflows", "losses", "queue_peak_bytes")
    rows = [{"line": line} | each for line, each in counted["pipes"].items()]
    show_rows(rows, columns, as_json=False, title="Lines")
    late = lab.lateness()
    click.echo(
        f"late by more than 2 ms: {late.over_2_ms_percent:.2f} % of {late.packets}, worst {late.max_ms:.1f} ms"
    )


@wan.command(name="check")
@click.argument("topology")
@json_option
def check_(topology: str, as_json: bool) -> None:
    """Measure every line of a network and compare it with its settings.

    TOPOLOGY is a network that is up, else a topology to create for the measurement.

    \b
    Example:
      dekube testnet wan check homes
    """
    if topology in labs():
        rows = check(attach(topology))
    else:
        with Lab(load_plan(topology), f"check-{Path(topology).stem}"[:16]) as lab:
            rows = check(lab)
    show_rows(rows, ("way", "what", "set", "measured", "ok"), as_json=as_json, title="Lines as measured")
    if not all(row["ok"] for row in rows):
        raise click.exceptions.Exit(1)


@wan.command()
@click.argument("topology")
@click.option(
    "--dir", "folder", default=".testnet-wan", show_default=True, type=FOLDER_NAME,
    help="Folder of the members' homes.",
)  # fmt: skip
@click.option(
    "--seed", default=1, show_default=True, type=WholeNumber(0), help="Seed of all keys; use it for tests only."
)
def network(topology: str, folder: Path, seed: int) -> None:
    """Run validators and relays on the hosts of TOPOLOGY until Ctrl-C.

    Hosts behind a gateway run validators that accept no inbound connection. Public hosts with no host
    behind them run relays. Each host's home and log are in the folder. `dekube status --home FOLDER/HOST`
    shows one node.

    \b
    Example:
      dekube testnet wan network validators
    """
    from testnet.wan.network import lay_out_homes

    with Lab(load_plan(topology)) as lab, hold_folder(folder.absolute()):
        members = lay_out_homes(lab, folder.absolute(), seed=seed)
        of_both = f"{counted(len(members.validators), 'validator')} and {counted(len(members.relays), 'relay')}"
        click.echo(f"Starting {of_both} ...")
        with members.running() as processes, suppress(KeyboardInterrupt):
            while True:
                time.sleep(LOOK_S)
                said = {host: members.status(host) for host in members.validators}
                states = (
                    f"{host} {'starting' if each is None else each['height']}" for host, each in said.items()
                )
                ended = [host for host, process in processes.items() if process.poll() is not None]
                click.echo("heights: " + ", ".join(states) + (f"; ended: {', '.join(ended)}" if ended else ""))


def _show_hosts(lab: Lab, as_json: bool) -> None:
    rows = [
        {
            "host": host.name, "behind": host.behind, "nat": host.nat,
            "ipv4": str(lab.address4(host.name)), "ipv6": str(lab.address6(host.name)),
        }
        for host in lab.plan.topology.hosts
    ]  # fmt: skip
    show_rows(rows, ("host", "ipv4", "ipv6", "behind", "nat"), as_json=as_json, title=lab.name)


def _without_dashes(command: Sequence[str]) -> Sequence[str]:
    words = command[1:] if command[:1] == ("--",) else command
    if not words:
        click.echo("no command", err=True)
        sys.exit(2)
    return words
