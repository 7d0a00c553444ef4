"""``dekube light``: follows the chain by its epochs and verifies accounts and transactions without trusting
gateways.
"""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, TypeVar

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from consensus.light import Fork, TrustedState, genesis_root, trusting_period_ms
from consensus.wire import encode_certificate
from node.cli.arguments import PathName, WholeNumber
from node.cli.commands import CommandGroup
from node.cli.option_conflicts import only_with
from node.cli.output import in_words, json_option, show, show_amount, show_fields, show_gwei, show_rows
from node.cli.session import Session
from node.cli.terminal import printable
from node.home.load import load_genesis
from node.home.paths import Home
from node.light.client import (
    Endpoint,
    LightFile,
    LightNode,
    NoEndpoint,
    ProvenTransaction,
    check_endpoints,
    gateway_source,
    load_light_file,
    report_fork,
    save_light_file,
    trust_checkpoint,
    with_endpoints,
)
from state.primitives.address import format_address
from state.primitives.blocks import Header
from state.primitives.errors import ConfigError, DecodeError, SignatureInvalid
from state.primitives.genesis import ChainParameters, Genesis, genesis_hash, read_parameters
from state.primitives.hashing import HASH_BYTES
from state.primitives.transactions import decode_transaction
from state.transition.epochs import genesis_committee

__all__ = ["CHECKPOINT", "FILE", "begin", "check_genesis", "genesis_trust", "light", "open_light"]

_Function = TypeVar("_Function", bound=Callable[..., Any])
DEFAULT_HOME: Final = "~/.dekube/light"
FILE: Final = "light.json"
HOUR_MS: Final = 3_600_000
STALE_MS: Final = 60_000
"""Results older than this by the local clock are marked as old."""


class _Hash(click.ParamType[bytes]):
    name = "hash"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> bytes:
        if isinstance(value, bytes):
            return value
        try:
            data = bytes.fromhex(str(value).removeprefix("0x"))
        except ValueError:
            data = b""
        if len(data) != HASH_BYTES:
            self.fail("not 0x and 64 hex digits", param, ctx)
        return data


class _Checkpoint(click.ParamType[tuple[int, bytes]]):
    name = "height:hash"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, bytes]:
        if isinstance(value, tuple):
            return value
        height, _, digits = str(value).partition(":")
        if not (height.isascii() and height.isdigit() and 0 < int(height[:18]) < 2**48):
            self.fail("not HEIGHT:HASH; write for example 3600:0x12ab...", param, ctx)
        return int(height), _Hash().convert(digits, param, ctx)


CHECKPOINT: Final = _Checkpoint()


def _home_option(function: _Function) -> _Function:
    return click.option(
        "--home",
        default=DEFAULT_HOME,
        show_default=True,
        callback=lambda _ctx, _param, value: Path(os.path.expanduser(value)).absolute() / FILE,
        help="Home folder of the light client.",
    )(function)


def _rpc_option(function: _Function) -> _Function:
    return click.option(
        "--rpc",
        "urls",
        multiple=True,
        metavar="URL",
        help="URL of a gateway to query; repeat it to compare several. Default: the saved endpoints.",
    )(function)


@click.group(cls=CommandGroup)
def light() -> None:
    """Verify accounts and transactions with a light client.

    It checks what gateways answer against the validators' signatures. It stores one small file and follows
    one record for each epoch. Start with a genesis file or a checkpoint from a source that you trust. See
    docs/light.md for the trust model.

    \b
    Examples:
      dekube light init --genesis genesis.json --rpc http://127.0.0.1:8545 --rpc https://rpc.example
      dekube light sync
      dekube light account 0x52908400098527886E0F7030069857D2E4169EE7
    """


def _address(home: Path, name: str) -> bytes:
    """Return the given address, or that of a wallet account beside the light client's folder.

    Raises DecodeError, ConfigError.
    """
    return Session(Home(home.parent.parent), (), None, None).address(name, known=False)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def genesis_trust(genesis: Genesis) -> TrustedState:
    """Return the state that trusts a genesis."""
    chain = read_parameters(ChainParameters, "chain", genesis)
    return genesis_root(
        genesis_hash=genesis_hash(genesis),
        time_ms=genesis.time_ms,
        epoch_blocks=chain.epoch_blocks,
        committee=genesis_committee(genesis, chain.validators_max),
    )


@light.command()
@click.option("--genesis", "genesis_file", type=PathName(), help="Genesis file (JSON) to trust.")
@click.option("--checkpoint", type=CHECKPOINT, help="Block to trust: the last block of an epoch, HEIGHT:HASH.")
@_rpc_option
@click.option(
    "--trusting-hours",
    type=WholeNumber(1, 24 * 365),
    help="Hours until trust expires. Default: two thirds of the unbonding time.",
)
@click.option("--accept-old", is_flag=True, help="Trust the genesis or checkpoint although it has expired.")
@click.option("--force", is_flag=True, help="Discard what was trusted before.")
@_home_option
@json_option
def init(
    genesis_file: Path | None, checkpoint: tuple[int, bytes] | None, urls: tuple[str, ...],
    trusting_hours: int | None, accept_old: bool, force: bool, home: Path, as_json: bool,
) -> None:  # fmt: skip
    """Start a light client that trusts a genesis or a checkpoint.

    With both, the genesis gives the parameters, and the checkpoint must be of its chain.

    \b
    Examples:
      dekube light init --genesis genesis.json --rpc http://127.0.0.1:8545
      dekube light init --checkpoint 3600:0x12ab... --rpc https://one.example --rpc https://two.example
    """
    if genesis_file is None and checkpoint is None:
        raise click.UsageError("nothing to trust; give --genesis FILE or --checkpoint HEIGHT:HASH.")
    if not urls:
        raise click.UsageError("no gateway to query; give --rpc URL.")
    if home.exists() and not force:
        raise ConfigError(f"{home}: a light client exists here; add --force to discard it")
    genesis = None if genesis_file is None else load_genesis(genesis_file)
    chain = ChainParameters() if genesis is None else read_parameters(ChainParameters, "chain", genesis)
    if checkpoint is not None:
        sources = ((url, gateway_source(url)) for url in urls)
        trusted = trust_checkpoint(sources, height=checkpoint[0], block_hash=checkpoint[1])
        if genesis is not None and trusted.genesis_hash != genesis_hash(genesis):
            raise ConfigError(f"the checkpoint is of another chain than {genesis_file}; check both")
    else:
        assert genesis is not None
        trusted = genesis_trust(genesis)
    _check_new(urls, trusted.genesis_hash)
    period_ms = trusting_hours * HOUR_MS if trusting_hours else trusting_period_ms(chain.unbonding_ms)
    _show_status(_keep(home, trusted, period_ms, accept_old, urls), as_json=as_json)


def begin(home: Path, genesis: Genesis, urls: Sequence[str]) -> None:
    """Start to trust ``genesis``, in the file ``home``.

    Raises TrustExpired if the genesis is too old, ConfigError if a gateway is of another chain.
    """
    _check_new(urls, genesis_hash(genesis))
    chain = read_parameters(ChainParameters, "chain", genesis)
    _keep(home, genesis_trust(genesis), trusting_period_ms(chain.unbonding_ms), False, urls)


def check_genesis(home: Path, file: Path) -> None:
    """Check that the light client in the file ``home`` trusts the chain of a genesis file. Raises ConfigError."""
    named, trusted = genesis_hash(load_genesis(file)), load_light_file(home).trusted.genesis_hash
    if named != trusted:
        raise ConfigError(
            f"{file}: the genesis hash is 0x{named.hex()}, but {home} trusts the chain 0x{trusted.hex()}; "
            f"`dekube light init --force --genesis {shlex.quote(str(file))}` switches to this genesis"
        )


def _check_new(urls: Sequence[str], genesis: bytes) -> None:
    """Check that new endpoints are of a chain; print those that do not answer. Raises ConfigError, NoEndpoint."""
    silent = check_endpoints([(url, gateway_source(url)) for url in urls], genesis)
    for url, reason in silent.items():
        click.echo(printable(f"Note: {url} does not answer now ({reason}); it stays an endpoint."), err=True)


def _keep(home: Path, trusted: TrustedState, period_ms: int, accept_old: bool, urls: Sequence[str]) -> LightFile:
    saved = with_endpoints(LightFile(trusted, period_ms, accept_old, {}, None, (), None), urls)
    saved.client().check_trust(_now_ms())
    save_light_file(home, saved)
    return saved


@contextmanager
def open_light(home: Path, urls: Sequence[str]) -> Iterator[LightNode]:
    """Open the client, sync it, and save what it learned, also after a failure."""
    saved = load_light_file(home)
    if urls:
        saved = with_endpoints(saved, urls)
    console = Console(stderr=True)
    with Progress(
        TextColumn("epochs"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(),
        console=console, transient=True, disable=not console.is_terminal,
    ) as bar:  # fmt: skip
        task = bar.add_task("epochs", total=None, start=True)
        node = LightNode(
            saved,
            now_ms=_now_ms,
            progress=lambda done, of: bar.update(task, completed=done, total=of),
        )
        try:
            node.sync()
        finally:
            node.save(home)
    try:
        yield node
    finally:
        node.save(home)
        for endpoint in node.endpoints:
            if endpoint.banned:
                click.echo(printable(f"banned {endpoint.url}: {endpoint.banned}"), err=True)


@light.command()
@_rpc_option
@_home_option
@json_option
def sync(urls: tuple[str, ...], home: Path, as_json: bool) -> None:
    """Follow the chain to its newest epoch and compare the endpoints.

    Every other command also syncs first. This one shows the result.

    \b
    Example:
      dekube light sync
    """
    with open_light(home, urls) as node:
        pass
    _show_status(load_light_file(home), as_json=as_json, node=node)


@light.command()
@_home_option
@json_option
def status(home: Path, as_json: bool) -> None:
    """Show the trusted block, its age and the endpoints, without network access.

    \b
    Example:
      dekube light status
    """
    _show_status(load_light_file(home), as_json=as_json)


@light.command()
@click.option("--add", "added", multiple=True, metavar="URL", help="Add this gateway.")
@click.option("--remove", "removed", multiple=True, metavar="URL", help="Remove this gateway.")
@click.option("--unban", multiple=True, metavar="URL", help="Lift the ban of this gateway.")
@_home_option
@json_option
def endpoints(
    added: tuple[str, ...], removed: tuple[str, ...], unban: tuple[str, ...], home: Path, as_json: bool
) -> None:
    """Show or change the gateways to query.

    An added gateway must answer and be of the trusted chain.

    \b
    Example:
      dekube light endpoints --add https://rpc.example
    """
    saved = load_light_file(home)
    known = {endpoint.url: endpoint for endpoint in saved.endpoints}
    for url in (*removed, *unban):
        if url not in known:
            raise ConfigError(f"{url} is not an endpoint; the endpoints are: {', '.join(known) or 'none'}")
    for url in added:
        if url in known:
            raise ConfigError(f"{url} is already an endpoint")
    for url in unban:
        if not known[url].banned:
            raise ConfigError(f"{url} is not banned")
    for url in added:  # one after the other: each has to be there
        check_endpoints([(url, gateway_source(url))], saved.trusted.genesis_hash)
    saved = with_endpoints(saved, [url for url in (*known, *added) if url not in removed])
    if removed and all(endpoint.banned and endpoint.url not in unban for endpoint in saved.endpoints):
        left = "all others are banned" if saved.endpoints else "there is no other endpoint"
        raise ConfigError(f"no endpoint would be left: {left}. Nothing was changed; add another with --add")
    for endpoint in saved.endpoints:
        if endpoint.url in unban:
            endpoint.banned = ""
    if added or removed or unban:
        save_light_file(home, saved)
    rows = [{"url": endpoint.url, "banned": endpoint.banned or None} for endpoint in saved.endpoints]
    show_rows(rows, ("url", "banned"), as_json=as_json, title="Endpoints")


@light.command()
@click.argument("address", metavar="ADDRESS|NAME")
@click.option(
    "--height", type=WholeNumber(0), help="Show the account after this block. Default: the newest provable block."
)
@_rpc_option
@_home_option
@json_option
def account(address: str, height: int | None, urls: tuple[str, ...], home: Path, as_json: bool) -> None:
    """Show the verified balance and nonce of an account.

    ADDRESS|NAME is an address, or a wallet account beside --home.

    \b
    Example:
      dekube light account 0x52908400098527886E0F7030069857D2E4169EE7
    """
    who = _address(home, address)
    with open_light(home, urls) as node:
        found = node.account(who, height)
    age_ms = _age_ms(found.following.header)
    fields: dict[str, Any] = {
        "address": format_address(who),
        "balance": str(found.account.balance) if as_json else show_amount(found.account.balance),
        "nonce": found.account.nonce,
        "height": found.height,
        "block": found.block_hash,
        "age_ms": age_ms,
        "endpoint": found.source,
    }
    show_fields(fields if as_json else in_words(fields), as_json=as_json, title="Account (proven)")
    if height is None:
        _warn_if_old(age_ms)


@light.command()
@click.argument("hash_", metavar="HASH", type=_Hash())
@_rpc_option
@_home_option
@json_option
def tx(hash_: bytes, urls: tuple[str, ...], home: Path, as_json: bool) -> None:
    """Show the final transaction HASH and verify that its block includes it.

    \b
    Example:
      dekube light tx 0xHASH
    """
    with open_light(home, urls) as node:
        place = node.transaction(hash_)
    fields = _transaction_fields(place)
    show_fields(fields if as_json else in_words(fields), as_json=as_json, title="Transaction (proven)")


@light.command()
@click.argument("hash_", metavar="HASH", type=_Hash())
@_rpc_option
@_home_option
@json_option
def receipt(hash_: bytes, urls: tuple[str, ...], home: Path, as_json: bool) -> None:
    """Show the verified receipt of the final transaction HASH.

    \b
    Example:
      dekube light receipt 0xHASH
    """
    with open_light(home, urls) as node:
        place = node.receipt(hash_)
    found = place.receipt
    assert found is not None
    fee = found.gas_used * found.effective_gas_price
    events = [
        {
            "address": format_address(event.address),
            "topics": ["0x" + topic.hex() for topic in event.topics],
            "data": event.data,
        }
        for event in found.events
    ]
    fields = _transaction_fields(place) | {
        "succeeded": found.status == 1,
        "reason": found.reason,
        "gas_used": found.gas_used,
        "fee": str(fee) if as_json else show_amount(fee),
        "events": events if as_json else len(events),
    }
    show_fields(fields, as_json=as_json, title="Receipt (proven)")
    if events and not as_json:
        show_rows(events, ("address", "topics", "data"), as_json=False, title="Events")


@light.command()
@click.argument("height", type=WholeNumber(1))
@_rpc_option
@_home_option
@json_option
def header(height: int, urls: tuple[str, ...], home: Path, as_json: bool) -> None:
    """Show the header of block HEIGHT and verify that the block is final.

    \b
    Example:
      dekube light header 3600
    """
    with open_light(home, urls) as node:
        found, source = node.header(height)
    fields = {"hash": found.block_hash, **found.header._asdict(), "endpoint": source}
    fields["base_fee"] = str(found.header.base_fee) if as_json else show_gwei(found.header.base_fee)
    show_fields(fields if as_json else in_words(fields), as_json=as_json, title="Header (proven)")


@only_with(("--reporter",), "--submit")
@light.command()
@click.option(
    "--submit",
    "urls",
    multiple=True,
    metavar="URL",
    help="Submit the proof to this node; name nodes of both chains.",
)
@click.option(
    "--reporter",
    metavar="ADDRESS|NAME",
    help="Account that receives the reward. Default: the account of each node.",
)
@_home_option
@json_option
def fork(urls: tuple[str, ...], reporter: str | None, home: Path, as_json: bool) -> None:
    """Show a proof that the chain forked, and submit it to nodes.

    Nodes punish validators that signed both chains. Nothing is submitted without --submit.

    \b
    Examples:
      dekube light fork
      dekube light fork --submit http://127.0.0.1:8545 --submit https://rpc.example
    """
    saved = load_light_file(home)
    if saved.fork is None:
        raise ConfigError(f"{home}: the light client has found no fork, so there is nothing to show")
    paid = None if reporter is None else _address(home, reporter)
    reports = report_fork(saved.fork, [(url, gateway_source(url)) for url in urls], reporter=paid)
    rows = [
        {"url": one.url, "convicted": len(one.convicted), "new": one.new, "refused": one.refused or None}
        for one in reports
    ]
    fields = _fork_fields(saved.fork)
    if as_json:
        operators = [list(one.convicted) for one in reports]
        show(fields | {"reports": [row | {"operators": who} for row, who in zip(rows, operators, strict=True)]})
    else:
        del fields["certificates"]
        show_fields(fields, as_json=False, title="Fork")
        if rows:
            show_rows(rows, ("url", "convicted", "new", "refused"), as_json=False, title="Submitted")
    if urls and all(one.refused for one in reports):
        raise NoEndpoint({one.url: one.refused for one in reports})


# Showing


def _fork_fields(found: Fork) -> dict[str, Any]:
    return {
        "height": found.height,
        "blocks": ["0x" + block_hash.hex() for block_hash in found.hashes],
        "suspects": [format_address(address) for address in found.suspects],
        "convicted": len(found.equivocations),
        "certificates": [c and "0x" + encode_certificate(c).hex() for c in found.certificates],
    }


def _age_ms(header: Header) -> int:
    return max(0, _now_ms() - header.time_ms)


def _warn_if_old(age_ms: int) -> None:
    if age_ms > STALE_MS:
        text = f"The newest block that any endpoint proves is {age_ms // 1000} s old: ask more of them."
        click.echo(text, err=True)


def _transaction_fields(place: ProvenTransaction) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "hash": place.hash,
        "height": place.block.header.height,
        "block": place.block.block_hash,
        "position": place.position,
        "time_ms": place.block.header.time_ms,
    }
    try:
        transaction = decode_transaction(place.raw)
        transaction.recover_sender()
        fields |= {
            "from": format_address(transaction.sender),
            "nonce": transaction.nonce,
            "kind": transaction.kind,
            "gas_limit": transaction.gas_limit,
        }
    except (DecodeError, SignatureInvalid):
        fields["note"] = "its form is unknown to this release"
    return fields | {"raw": place.raw, "endpoint": place.source}


def _endpoint_row(endpoint: Endpoint) -> dict[str, Any]:
    return {
        "url": endpoint.url,
        "proven_height": endpoint.height or None,
        "banned": endpoint.banned or None,
        "note": endpoint.note or None,
    }


def _show_status(saved: LightFile, *, as_json: bool, node: LightNode | None = None) -> None:
    trusted, client = saved.trusted, saved.client()
    age_ms = client.age_ms(_now_ms())
    fields: dict[str, Any] = {
        "genesis_hash": trusted.genesis_hash,
        "epoch": trusted.epoch,
        "height": trusted.height,
        "block": trusted.block_hash,
        "age_ms": age_ms,
        "trusting_period_ms": saved.trusting_period_ms,
        "expired": age_ms > saved.trusting_period_ms and not saved.accepts_old_root,
        "committee": trusted.committee.hash,
        "seats": trusted.committee.size,
    }
    newest = None if node is None else node.newest
    if newest is not None:
        fields |= {"head_height": newest.header.height, "head_age_ms": _age_ms(newest.header)}
    if saved.fork is not None:
        fields["fork"] = _fork_fields(saved.fork)
    shown = (saved if node is None else saved._replace(endpoints=node.endpoints)).endpoints
    rows = [_endpoint_row(endpoint) for endpoint in shown]
    if as_json:
        show(fields | {"endpoints": rows})
        return
    if saved.fork is not None:
        del fields["fork"]["certificates"]
        fields |= {f"fork, {name}": value for name, value in fields.pop("fork").items()}
    show_fields(in_words(fields), as_json=False, title="Light client")
    show_rows(rows, ("url", "proven_height", "banned", "note"), as_json=False, title="Endpoints")
    if newest is not None:
        _warn_if_old(_age_ms(newest.header))
