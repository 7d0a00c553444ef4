"""``dekube db switch_chain

report_fork``: after a fork, switch to the agreed chain and convict the equivocators.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from node.cli.arguments import PathName, WholeNumber
from node.cli.options import confirm, home_option, yes_option
from node.cli.output import json_option, show_fields
from node.cli.session import Session, reading_options
from node.home.load import load_genesis, load_node_options
from node.home.lock import live_in
from node.home.paths import Home
from state.primitives.errors import ConfigError, StoreError
from state.store.errors import StoreDamaged

if TYPE_CHECKING:
    from consensus.votes import Certificate
    from node.home.config import Checkpoint
    from state.primitives.committee import Committee
    from state.store import Store

__all__ = ["report_fork", "switch_chain"]

KEPT_JOURNALS: Final = "journals"
"""Folder in a set-aside database with its journals, by the folder of their vote key."""
SUBMITTED_MAX: Final = 1_024
"""Certificates to submit at most. The conflict is in the first views after the last common block."""


@click.command()
@home_option
@click.argument("block", metavar="HEIGHT:HASH")
@click.option(
    "--again", is_flag=True, help="Drop the certificates too. Use it if the node halted again on the agreed chain."
)
@yes_option
@json_option
def switch_chain(home: Home, block: str, again: bool, yes: bool, as_json: bool) -> None:
    """After a fork, switch the stopped node to the agreed chain.

    HEIGHT:HASH is the agreed chain's first block that the other chain lacks. A node that has this block
    keeps its database. With --again it keeps only the blocks of its journal.

    On the other chain, the database and journal move aside (data/chain.left-N) and snapshots are deleted.
    The next start syncs from peers. If an earlier database that was moved aside has the block, it is
    restored. The command asks before it moves a database. The vote guard never changes.

    \b
    Examples:
      dekube db switch-chain 184201:0x5f...e1
      dekube db report-fork 184201 --database ~/.dekube/data/chain.left-1 --rpc https://rpc.example
    """
    from node.home.config import parse_checkpoint

    chosen = parse_checkpoint(block, "HEIGHT:HASH, the hash with its 64 hex digits,")
    load_node_options(home)  # else the folders of a home would be made wherever --home points to
    with live_in(home):
        fields = _switch_chain(home, chosen, again=again, yes=yes)
    title = "On the chosen chain" if fields["on_chain"] else "Left the other chain"
    show_fields(fields, as_json=as_json, title=title)


def _switch_chain(home: Home, chosen: Checkpoint, *, again: bool, yes: bool) -> dict[str, Any]:
    from consensus.guard_log import blocks_alone
    from node.market.promises import write_durably
    from node.sync.database import snapshots_path
    from node.sync.service import is_fresh, move_aside, sync_path

    found, tip = None, 0
    if not is_fresh(home.chain):
        with _opened(home, home.chain) as store:
            tip, record = store.tip.height, store.height(chosen.height) if chosen.height >= store.base else None
            found = None if record is None else record.block_hash
            has = f"{home.chain} has heights {store.base} to {tip}"
    is_on = found == chosen.block_hash
    back = None if is_on else _find_aside(home, chosen)
    if tip and found is None and back is None:
        raise ConfigError(
            f"{has}: height {chosen.height} does not show which chain it is on. Give the first height at "
            "which the chains differ. If the database ends below it, start the node with a --checkpoint of the "
            "agreed chain"
        )
    is_moved = not is_on and (found is not None or (back is not None and not is_fresh(home.chain)))
    if is_moved:
        own = f"has block 0x{found.hex()}" if found is not None else "ends"
        then = f"{back} is put in its place" if back is not None else "the next start syncs again from peers"
        confirm(
            f"{home.chain} {own} at height {chosen.height if found is not None else tip}, not block "
            f"0x{chosen.block_hash.hex()}. Move it aside with its journal, so that {then}?",
            yes=yes,
        )
    moved: Path | None = None
    with _journals(home) as journals:
        if not is_on:
            if is_moved:
                (home.chain / KEPT_JOURNALS).mkdir(exist_ok=True)
                for name, journal in journals.items():
                    write_durably(home.chain / KEPT_JOURNALS / name, journal.read())
                moved = move_aside(home.chain, "left")
                for folder in (sync_path(home.chain), snapshots_path(home)):
                    shutil.rmtree(folder, ignore_errors=True)
            for name, journal in journals.items():
                before = None if back is None else back / KEPT_JOURNALS / name
                journal.replace(before.read_bytes() if before is not None and before.exists() else b"")
            if back is not None:
                back.rename(home.chain)  # until then it is found again
                shutil.rmtree(home.chain / KEPT_JOURNALS, ignore_errors=True)
                is_on = True
        if again and is_on:
            for journal in journals.values():
                journal.replace(blocks_alone(journal.read()))
    return {
        "on_chain": is_on, "found": found, "moved_to": None if moved is None else str(moved),
        "put_back": None if back is None else str(back),
    }  # fmt: skip


def _find_aside(home: Home, chosen: Checkpoint) -> Path | None:
    """Return a set-aside database that has the chosen block."""
    for place in sorted(home.chain.parent.glob(f"{home.chain.name}.left-*")):
        with suppress(StoreError, ConfigError), _opened(home, place) as store:
            record = store.height(chosen.height) if store.base <= chosen.height <= store.tip.height else None
            if record is not None and record.block_hash == chosen.block_hash:
                return place
    return None


@click.command()
@reading_options
@click.argument("height", type=WholeNumber(min=1))
@click.option(
    "--database",
    type=PathName(),
    help="Database that was moved aside. Default: the database of the stopped node in --home.",
)
@click.option(
    "--reporter",
    metavar="ADDRESS|NAME",
    help="Account that receives the reward. Default: the account of the gateway's node.",
)
@json_option
def report_fork(session: Session, height: int, database: Path | None, reporter: str | None, as_json: bool) -> None:
    """After a fork, submit this database's certificates to a gateway of the other chain.

    HEIGHT is the first height at which the chains differ. A validator is convicted if it signed
    certificates of both chains. The proof is complete above one third of the weight. If one database
    convicts too few, submit those of more nodes.

    \b
    Example:
      dekube db report-fork 184201 --database ~/.dekube/data/chain.left-1 --rpc https://rpc.example
    """
    from consensus.wire import encode_certificate
    from node.chain.forks import certificates_of
    from rpc.protocol.errors import RpcError
    from state.transition.staking import load_committee

    paid = None if reporter is None else "0x" + session.address(reporter, known=False).hex()
    found: list[Certificate] = []
    committee: Committee | None = None
    with _database(session.home, database) as store:
        if not store.base < height <= store.tip.height:
            raise ConfigError(f"height {height}: the database has heights {store.base + 1} to {store.tip.height}")
        epoch = store.epoch_of(height)
        committee = load_committee(store, epoch)
        found = sorted(
            (one for one in certificates_of(store, height, epochs_max=1)), key=lambda one: (one.view, one.kind)
        )
    if committee is None:
        raise ConfigError(f"epoch {epoch} is too old; its validators can no longer be convicted")
    weights = {"0x" + seat.address.hex(): seat.weight for seat in committee.seats}
    named: set[str] = set()
    new = brought = 0
    with session.client() as client:
        for certificate in found[:SUBMITTED_MAX]:
            brought += 1
            try:
                told = client.call("dekube_submitFork", "0x" + encode_certificate(certificate).hex(), None, paid)
            except RpcError as error:
                if error.reason != "fork_unproven":
                    raise
                continue
            named |= {str(one["operator"]).lower() for one in told["convicted"]}
            new += sum(one["is_new"] is True for one in told["convicted"])
            if 3 * sum(weights.get(who, 0) for who in named) > committee.weight:
                break
    share = sum(weights.get(who, 0) for who in named) * 100 / committee.weight
    fields: dict[str, Any] = {"certificates": brought, "convicted": sorted(named), "new": new, "percent": share}
    shown = (
        fields if as_json else fields | {"convicted": ", ".join(sorted(named)) or None, "percent": f"{share:.1f}"}
    )
    show_fields(shown, as_json=as_json, title="Brought")
    if not named:
        click.echo("It convicts nobody: ask a gateway of the other chain, or bring another database.", err=True)
        raise click.exceptions.Exit(1)


@contextmanager
def _database(home: Home, place: Path | None) -> Iterator[Store]:
    """Open a set-aside database, or that of the home under the home's lock."""
    if place is not None:
        with _opened(home, place) as store:
            yield store
        return
    load_node_options(home)
    with live_in(home), _opened(home, home.chain) as store:
        yield store


@contextmanager
def _opened(home: Home, place: Path) -> Iterator[Store]:
    """Open a stopped node's database; never create one."""
    from node.chain.runtime import make_runtime
    from node.sync.database import store_options
    from state.store import Store
    from state.store.database import holds_database

    if not holds_database(place):
        raise ConfigError(f"{place}: no database")
    genesis = load_genesis(home.genesis)
    options = store_options(load_node_options(home), genesis)
    try:
        store = Store.open(place, genesis, make_runtime(genesis).genesis_changes, options)
    except StoreDamaged as error:
        raise StoreDamaged(f"{place}: {error}. `dekube db repair` moves it aside") from None
    with store:
        yield store


@contextmanager
def _journals(home: Home) -> Iterator[dict[str, Any]]:
    """Lock the directories of the vote keys; return the existing journals by their folder."""
    from contextlib import ExitStack

    from consensus.guard_log import JOURNAL_FILE, VoteDirectory

    with ExitStack() as stack:
        found = {}
        for folder in sorted(home.guard.parent.glob(home.guard.name + "*")):
            if folder.is_dir():
                directory = VoteDirectory(folder)
                stack.callback(directory.close)
                if (folder / JOURNAL_FILE).exists():
                    found[folder.name] = directory.journal
        yield found
