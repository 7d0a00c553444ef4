"""``dekube node``: runs, checks and drains a node."""

from __future__ import annotations

import json
import os
import select
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import click

from node.cli.commands import CommandGroup
from node.cli.guard import guard
from node.cli.option_conflicts import not_with
from node.cli.options import ask_home, home_option, prompt_secret
from node.cli.output import json_option, show, show_fields, show_rows
from node.home.config import flat_options
from node.home.load import load_genesis, load_node_options
from node.home.options import NodeOptions
from node.home.paths import Home
from node.process.control import ControlUnavailable, short_path
from state.primitives.errors import ConfigError, DekubeError

__all__ = ["NodeStillRunning", "node"]

DRAIN_LOOK_S: Final = 1.0
END_WAIT_S: Final = 120.0
"""Time from the node's last answer until its process must have ended: gateway, jobs, database."""


class NodeStillRunning(DekubeError):
    """A node was told to stop and has not ended."""

    code = "node_still_runs"


@click.group(cls=CommandGroup)
def node() -> None:
    """Run, check and drain a node."""


node.add_command(guard)


@node.command()
@home_option
@click.option(
    "--accept-empty-guard",
    is_flag=True,
    help="Start with an empty guard. The vote key must never have voted.",
)
@click.option(
    "--checkpoint",
    default="",
    metavar="HEIGHT:HASH",
    help="Start from this trusted epoch-end block. Used without a database, or with one far behind.",
)
def run(home: Home, accept_empty_guard: bool, checkpoint: str) -> None:
    """Run the node in --home until SIGTERM or Ctrl-C.

    \b
    Examples:
      dekube node run
      dekube node run --home ~/second
    """
    from node.daemon.service import run_node
    from node.home.config import parse_checkpoint
    from node.telemetry.logs import configure_logs

    if checkpoint:
        parse_checkpoint(checkpoint)
    configure_logs(load_node_options(home).log)
    run_node(
        home,
        prompt_secret,
        accepts_empty_guard=accept_empty_guard,
        checkpoint=checkpoint,
    )


@node.command()
@home_option
@click.option("--changed", "only_changed", is_flag=True, help="Show only options that differ from the default.")
@json_option
def config(home: Home, only_changed: bool, as_json: bool) -> None:
    """Check config.toml and the files it names, and show every option.

    Use it before a restart. The genesis and the keystore files must be readable; no key is opened. A
    running node is not queried: it keeps the options of its start. See docs/operations.md for the meaning
    of each option.

    \b
    Examples:
      dekube node config
      dekube node config --changed
    """
    options = load_node_options(home)
    _check_files(home, options)
    values, defaults = flat_options(options), flat_options(NodeOptions())
    names = [name for name in values if not only_changed or values[name] != defaults[name]]
    if as_json:
        show({name: values[name] for name in names})
        return
    rows = [
        {"option": name, "value": _written(values[name]),
         "default": "" if values[name] == defaults[name] else _written(defaults[name])}
        for name in names
    ]  # fmt: skip
    show_rows(rows, ("option", "value", "default"), as_json=False, title=f"{home.config} is right")


def _check_files(home: Home, options: NodeOptions) -> None:
    """Raise ConfigError or KeystoreError if a start with ``options`` would find a missing or damaged file."""
    from node.chain.runtime import make_runtime
    from node.home.keyring import check_keystore
    from node.home.keys import read_passphrase

    make_runtime(load_genesis(home.genesis), protocol_version=options.developer.protocol_version)
    names = {"keys.account": options.keys.account}
    if "validator" in options.roles and not options.signer.endpoint:
        names["keys.vote"] = options.keys.vote
    if options.keys.vote_next:
        names["keys.vote_next"] = options.keys.vote_next
    for name, file in names.items():
        if not home.path(file).exists():
            raise ConfigError(f"{home.path(file)}: no such file; {name} in {home.config} names it")
        check_keystore(home.path(file))
    if (passphrase := home.passphrase_file(options.keys)) is not None:
        read_passphrase(passphrase)


def _written(value: Any) -> str:
    return json.dumps(list(value) if isinstance(value, tuple) else value)


@not_with(("--stop", "--wait"), "--end")
@node.command()
@home_option
@click.option("--stop", is_flag=True, help="Stop the node when it is idle.")
@click.option("--end", "ends", is_flag=True, help="End the drain and accept work again.")
@click.option(
    "--wait", "waits", is_flag=True, help="Wait until the node is idle; with --stop, until it has ended."
)
@json_option
def drain(home: Home, stop: bool, ends: bool, waits: bool, as_json: bool) -> None:
    """Stop accepting work, and report when the node in --home is idle.

    Use it before an upgrade. The machine leaves the market and its gateway closes. Running jobs and
    on-chain duties are completed. A validator keeps voting until it is stopped. Run it again to see the
    progress. The next start of the node ends the drain.

    \b
    Examples:
      dekube node drain --stop --wait
      dekube node drain --end
    """
    with _process_at(home.control) as process:
        state = drain_node(home, {"on": not ends, "stop": stop}, waits=waits)
        if "ended" in state and process is not None and not select.select([process], [], [], END_WAIT_S)[0]:
            raise NodeStillRunning(
                f"the node no longer answers, but has not ended after {END_WAIT_S:.0f} s: see its log"
            )
    if as_json:
        show(state)
        return
    show_fields(state, as_json=False, title="Draining" if not ends else "At work")


def drain_node(home: Home, params: dict[str, bool], *, waits: bool) -> dict[str, Any]:
    """Poll the node until the awaited state is reached; return its last answer."""
    asked = False
    while True:
        try:
            state: dict[str, Any] = ask_home(home, "admin", method="admin_drain", params=params)
        except ControlUnavailable:
            if not (asked and params["stop"]):
                raise
            return {"empty": True, "ended": True}  # while this waited
        asked = True
        if not waits or (state["empty"] and not params["stop"]):
            return state
        time.sleep(DRAIN_LOOK_S)


@contextmanager
def _process_at(control: Path) -> Iterator[int | None]:
    """Return a handle of the process that listens at a socket, readable when it has ended; None if there is
    none.
    """
    handle = None
    with suppress(OSError), socket.socket(socket.AF_UNIX) as connection:
        connection.connect(short_path(control))
        pid, _uid, _gid = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        handle = os.pidfd_open(pid)
    try:
        yield handle
    finally:
        if handle is not None:
            os.close(handle)
