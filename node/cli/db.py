"""``dekube db``: inspects, verifies, prunes and repairs the database of a stopped node."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from node.cli.arguments import WholeNumber
from node.cli.commands import CommandGroup
from node.cli.forks import report_fork, switch_chain
from node.cli.option_conflicts import not_with
from node.cli.options import ask_passphrase, confirm, home_option, yes_option
from node.cli.output import counted, in_words, json_option, show, show_fields, show_rows
from node.cli.terminal import printable, printable_heading
from node.home.load import load_genesis, load_node_options
from node.home.lock import live_in, look_into
from node.home.paths import Home
from state.primitives.errors import ConfigError, StoreError
from state.store.errors import StoreDamaged, StoreIncompatible, StoreLocked, StoreUnavailable

if TYPE_CHECKING:
    from state.store import Store, Tip

__all__ = ["db"]


class TooFarBack(StoreError):
    """A rollback to a height whose state is no longer kept."""

    code = "pruned"


@click.group(cls=CommandGroup)
def db() -> None:
    """Inspect, verify, prune or repair a node's database.

    Stop the node first: only one process can open the database. The error home_in_use names that process.
    These commands never change keys or the vote guard.

    \b
    Examples:
      dekube db inspect
      dekube db verify
      dekube db repair        # moves a damaged database aside and syncs again from peers
    """


for command in (switch_chain, report_fork):
    db.add_command(command)


@db.command()
@home_option
@click.option("--height", type=WholeNumber(min=0), help="Also show the hash of the block at this height.")
@json_option
def inspect(home: Home, height: int | None, as_json: bool) -> None:
    """Show the heights, epochs, sizes and snapshots of the database.

    It also works on a damaged database; the exit status is then 1.

    \b
    Examples:
      dekube db inspect
      dekube db inspect --height 184201
    """
    from node.sync.database import snapshots_path, store_options
    from node.sync.messages import MANIFEST_LIMIT_BYTES, decode_manifest
    from node.sync.service import sync_path
    from state.primitives.errors import DecodeError
    from state.store.inspection import inspect_database

    options, genesis = load_node_options(home), load_genesis(home.genesis)
    with _database_to_read(home) as place, _naming_lock_holder(home):
        found = inspect_database(place)
    tip, bounds = found.tip, found.bounds
    oldest = bounds.base if bounds else 0
    if height is not None and tip is not None and not oldest <= height <= tip.height:
        raise ConfigError(f"--height {height}: the database has heights {oldest} to {tip.height}")
    blocks = _epoch_blocks(genesis)
    kept = store_options(options, genesis).block_heights
    fields: dict[str, Any] = {
        "path": str(home.chain),
        "format": found.format,
        "genesis_hash": found.genesis_hash,
        "profile": options.store.profile,
        "keeps_blocks": kept or None,
        "height": tip.height if tip else None,
        "block": tip.block_hash if tip else None,
        "state_root": tip.state_root if tip else None,
        "time_ms": tip.time_ms if tip else None,
        "epoch": (tip.height - 1) // blocks if tip and tip.height else 0 if tip else None,
        "oldest_header": bounds.base if bounds else None,
        "oldest_block": bounds.pruned + 1 if bounds else None,
        "can_roll_back_to": max(bounds.states, found.undo[0] - 1) if bounds and found.undo else None,
        "epoch_records": list(found.epochs) if found.epochs else None,
    }
    if height is not None:
        with _database_to_read(home) as place, _opened(home, place=place) as store:
            record = store.height(height) if store.base <= height <= store.tip.height else None
        fields |= {"at": height, "block_at": None if record is None else record.block_hash}
    snapshots: list[dict[str, Any]] = []
    folder = snapshots_path(home)
    for path in sorted(folder.iterdir() if folder.is_dir() else ()):
        try:
            with (path / "manifest").open("rb") as file:
                manifest = decode_manifest(file.read(MANIFEST_LIMIT_BYTES + 1))
            size = sum(file.stat().st_size for file in path.iterdir())
            snapshots.append({"height": manifest.height, "pieces": len(manifest.starts), "bytes": size})
        except (OSError, DecodeError):
            snapshots.append({"height": None, "pieces": 0, "bytes": 0})  # one that was being made
    unfinished = sync_path(home.chain).exists()
    if as_json:
        show({
            **fields, "sizes": found.sizes, "snapshots": snapshots, "unfinished_sync": unfinished,
            "damage": list(found.damage),
        })  # fmt: skip
    else:
        show_fields(in_words(fields), as_json=False, title="Database")
        rows = [{"table": name, "bytes": f"{size:,}"} for name, size in found.sizes.items()]
        show_rows(rows, ("table", "bytes"), as_json=False, title="\nTables")
        listed = [{**row, "bytes": f"{row['bytes']:,}"} for row in snapshots]
        show_rows(listed, ("height", "pieces", "bytes"), as_json=False, title="\nSnapshots")
        if unfinished:
            click.echo("\nA state sync is unfinished; the next start of the node goes on with it.")
        for line in found.damage:
            click.echo(printable_heading(f"\nDamaged: {line}"), err=True)
    if found.damage:
        raise click.exceptions.Exit(1)


@db.command()
@home_option
@click.option("--quick", is_flag=True, help="Verify only headers, blocks and certificates, not the state.")
@json_option
def verify(home: Home, quick: bool, as_json: bool) -> None:
    """Verify every record of the database.

    It checks state and trie against the root. It checks the hashes of headers, bodies, receipts and
    certificates. On damage the exit status is 1 and the error names the record.

    \b
    Examples:
      dekube db verify
      dekube db verify --quick
    """
    with _exclusive_home(home), _opened(home) as store:
        result = _verify(home, store, quick=quick)
    show_fields(result, as_json=as_json, title="All is as it was written")


@db.command()
@home_option
@click.argument("blocks", type=WholeNumber(min=1))
@yes_option
@json_option
def rollback(home: Home, blocks: int, yes: bool, as_json: bool) -> None:
    """Remove the newest BLOCKS blocks; the node fetches them again from peers.

    The limit is the oldest kept state (`can_roll_back_to` of `dekube db inspect`). The vote guard does not
    change: a validator still never votes twice. The blocks stay final for all other nodes.

    \b
    Example:
      dekube db rollback 100
    """
    with _exclusive_home(home), _opened(home) as store:
        first, oldest = store.tip.height, store.oldest_state
        target = first - blocks
        if target < oldest:
            raise TooFarBack(
                f"height {max(0, target):,} is too far back: the state is kept down to {oldest:,}, so at most "
                f"{counted(first - oldest, 'block')} can be taken back"
            )
        confirm(f"Take back heights {target + 1:,} to {first:,}?", yes=yes)
        with _bar("Taking back", "blocks") as progress:
            store.rollback(target, progress)
        tip = store.tip
    show_fields({"height": tip.height, "block": tip.block_hash, "taken_back": blocks}, as_json=as_json)


@db.command()
@home_option
@click.option(
    "--profile", help="Use this profile once: archive, full or light. Default: the profile in config.toml."
)
@yes_option
@json_option
def prune(home: Home, profile: str | None, yes: bool, as_json: bool) -> None:
    """Delete blocks and states that the profile does not keep.

    This frees disk space at once. A running node prunes gradually after a change of its profile. Deleted
    data cannot be fetched from peers again.

    \b
    Examples:
      dekube db prune
      dekube db prune --profile light --yes
    """
    from state.store.profiles import profile_options

    options = load_node_options(home)
    chosen = profile_options(
        profile or options.store.profile,
        epochs=options.store.epochs,
        epoch_blocks=_epoch_blocks(load_genesis(home.genesis)),
    )
    if profile and profile != options.store.profile:
        confirm(
            f"config.toml keeps what the profile {options.store.profile} keeps. Remove for good what {profile} "
            "does not keep?",
            yes=yes,
        )
    with _exclusive_home(home), _opened(home, chosen) as store:
        before = sum(store.sizes().values())
        with _bar("Pruning", "blocks") as progress:
            count = store.prune(progress)
        fields = {
            "blocks_removed": count,
            "oldest_block": store.oldest_block,
            "bytes_freed": max(0, before - sum(store.sizes().values())),
        }
    show_fields(fields, as_json=as_json)


@not_with(("--quick",), "--force")
@db.command()
@home_option
@click.option("--force", is_flag=True, help="Move the database aside even without damage.")
@click.option("--quick", is_flag=True, help="Check only what opening the database reads.")
@click.option("--no-sync", is_flag=True, help="Do not sync now; the node syncs at its next start.")
@json_option
def repair(home: Home, force: bool, quick: bool, no_sync: bool, as_json: bool) -> None:
    """Search for damage, move a damaged database aside and sync from peers.

    Keys, vote guard, blobs and configuration do not change. The damaged files stay in data/chain.damaged-N
    until you delete them. The state comes from a peer's snapshot. Without one, the node fetches all blocks
    at its next start.

    \b
    Examples:
      dekube db repair
      dekube db repair --no-sync
    """
    with _exclusive_home(home):
        _repair(home, force=force, quick=quick, no_sync=no_sync, as_json=as_json)


def _repair(home: Home, *, force: bool, quick: bool, no_sync: bool, as_json: bool) -> None:
    from node.sync.service import move_aside
    from node.sync.start_plan import RootExpired

    if not home.chain.is_dir() or not any(home.chain.iterdir()):
        raise ConfigError(
            f"{home.chain}: no database to repair; `dekube db sync` or the next start of the node creates one"
        )
    damage = "--force" if force else None
    if not force:
        damage = _find_damage(home, quick=quick)
        if damage is None:
            show_fields({"damage": None, "moved_to": None}, as_json=as_json, title="Nothing is wrong")
            return
    if not as_json and damage:
        click.echo(printable(f"Damaged: {damage}"), err=True)
    moved = move_aside(home.chain, "damaged")
    options = load_node_options(home)
    wants_blocks = options.store.profile == "archive" or options.sync.mode == "blocks"
    fields: dict[str, Any] = {
        "damage": damage, "moved_to": str(moved), "height": None,
    }  # fmt: skip
    try:
        tip = None if no_sync or wants_blocks else _sync_now(home)
    except RootExpired:
        show_fields(fields, as_json=as_json, title="Moved aside")
        raise
    fields["height"] = None if tip is None else tip.height
    show_fields(fields, as_json=as_json, title="Repaired" if tip else "Moved aside")
    if tip is None and not as_json:
        click.echo("\nStart the node: it syncs from its peers.")


@db.command()
@home_option
@json_option
def sync(home: Home, as_json: bool) -> None:
    """Fetch the state of the newest epoch from peers into an empty home.

    `dekube node run` does the same at its start. This command shows the progress and resumes an interrupted
    sync.

    \b
    Example:
      dekube db sync
    """
    from node.sync.service import is_fresh

    with _exclusive_home(home):
        if not is_fresh(home.chain):
            raise ConfigError(f"{home.chain}: a database exists; see `dekube db inspect`")
        tip = _sync_now(home)
    fields = {"height": tip.height, "block": tip.block_hash} if tip else {"height": None, "block": None}
    show_fields(fields, as_json=as_json, title="Synced" if tip else "No peer offers a snapshot")
    if tip is None:
        raise click.exceptions.Exit(1)


# Parts


def _epoch_blocks(genesis: Any) -> int:
    from state.primitives.genesis import ChainParameters, read_parameters

    return read_parameters(ChainParameters, "chain", genesis).epoch_blocks


def _check_present(home: Home) -> None:
    from state.store.database import holds_database

    if not holds_database(home.chain):
        raise ConfigError(f"{home.chain}: no database yet; `dekube node run` creates one")


@contextmanager
def _exclusive_home(home: Home) -> Iterator[None]:
    """Hold the lock of a node's home.

    Raises ConfigError if it is not a node's home, HomeInUse if another process uses it.
    """
    load_node_options(home)  # else the folders of a home would be made wherever --home points to
    with live_in(home):
        yield


@contextmanager
def _database_to_read(home: Home) -> Iterator[Path]:
    """Return the folder from which a home's database can be opened for reading.

    Opening a database writes to it. On a read-only disk this is a temporary folder with links to the tables and
    copies of the small files.
    """
    if os.access(home.chain, os.W_OK) or not home.chain.is_dir():
        with _exclusive_home(home):
            _check_present(home)
            yield home.chain
        return
    load_node_options(home)
    with look_into(home), tempfile.TemporaryDirectory(prefix="dekube-") as folder:
        _check_present(home)
        place = Path(folder)
        for file in home.chain.resolve().iterdir():
            if file.suffix == ".ldb":
                (place / file.name).symlink_to(file)
            elif file.name == "CURRENT" or file.name.startswith("MANIFEST-") or file.suffix == ".log":
                shutil.copyfile(file, place / file.name)
        yield place


@contextmanager
def _naming_lock_holder(home: Home) -> Iterator[None]:
    try:
        yield
    except StoreLocked:
        raise StoreLocked(f"{home.chain}: another process uses the database; stop the node first") from None


@contextmanager
def _opened(home: Home, options: Any = None, place: Path | None = None) -> Iterator[Store]:
    """Open an existing database; never create one."""
    from node.chain.runtime import make_runtime
    from node.sync.database import store_options
    from state.store import Store

    _check_present(home)
    genesis = load_genesis(home.genesis)
    chosen = options or store_options(load_node_options(home), genesis)
    with _naming_lock_holder(home):
        store = Store.open(place or home.chain, genesis, make_runtime(genesis).genesis_changes, chosen)
    with store:
        yield store


def _verify(home: Home, store: Store, *, quick: bool) -> dict[str, Any]:
    from node.sync.audit import audit_chain
    from state.primitives.genesis import ChainParameters, read_parameters
    from state.transition.epochs import genesis_committee

    genesis = load_genesis(home.genesis)
    seats_max = read_parameters(ChainParameters, "chain", genesis).validators_max
    with _bar("Chain", "heights") as progress:
        audited = audit_chain(store, genesis_committee(genesis, seats_max), progress)
    keys = None
    if not quick:
        with _bar("State", "entries") as progress:
            keys = store.verify(progress)
    return {
        "height": store.tip.height,
        "state_root": store.tip.state_root,
        "keys": keys,
        **audited._asdict(),
    }


def _find_damage(home: Home, *, quick: bool) -> str | None:
    try:
        with _opened(home) as store:
            if not quick:
                _verify(home, store, quick=False)
    except (StoreLocked, StoreUnavailable):
        raise
    except (StoreDamaged, StoreIncompatible) as error:
        return str(error)
    except StoreError as error:
        return f"{error} [{error.code}]"
    except ConfigError:
        return None  # there is none yet
    return None


def _sync_now(home: Home) -> Tip | None:
    """Run a state sync with a network of this process; None if no peer has a snapshot."""
    import trio

    from node.chain.runtime import make_runtime
    from node.daemon.peering import Peering
    from node.home.keys import load_key
    from node.sync.core import NoSnapshots
    from node.sync.database import beginning_of, make_state_sync
    from node.sync.progress_bar import show_state_sync
    from node.telemetry.logs import configure_logs
    from state.primitives.genesis import genesis_hash

    options, genesis = load_node_options(home), load_genesis(home.genesis)
    runtime = make_runtime(genesis, protocol_version=options.developer.protocol_version)
    configure_logs(options.log)
    passphrase = ask_passphrase(home.passphrase_file(options.keys))
    account = load_key(home.path(options.keys.account), passphrase)
    beginning_of(home, options, runtime, address=account.address)  # raises where nothing can be trusted

    async def main() -> Tip | None:
        network = Peering(home, options, account, genesis_hash(genesis)).network
        state_sync = make_state_sync(home, options, runtime, network)
        async with trio.open_nursery() as nursery:
            await nursery.start(network.run)
            nursery.start_soon(show_state_sync, state_sync.progress)
            try:
                tip: Tip | None = await state_sync.run()
            except NoSnapshots:
                tip = None
            nursery.cancel_scope.cancel()
        return tip

    return trio.run(main)


@contextmanager
def _bar(title: str, unit: str) -> Iterator[Callable[[int, int], None]]:
    """Show a progress bar on a terminal. The yielded function takes the work done and the total."""
    with _rich_bar(unit) as shown:
        task = shown.add_task(title, total=None)
        yield lambda done, total: shown.update(task, completed=done, total=total)


def _rich_bar(unit: str) -> Any:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    return Progress(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn(unit),
        TimeRemainingColumn(), console=console, transient=True, disable=not console.is_terminal,
    )  # fmt: skip
