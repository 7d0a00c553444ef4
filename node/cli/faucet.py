"""``dekube faucet``: coins of a test network for whoever asks."""

from __future__ import annotations

from pathlib import Path

import click

from node.cli.arguments import AMOUNT, PathName, Whole
from node.cli.commands import Commands
from node.cli.session import Session, session_options
from node.home.config import LogOptions
from node.process.ports import check_listen
from node.telemetry.logs import configure_logs
from state.primitives.errors import ConfigError
from state.primitives.listen import parse_listen

__all__ = ["faucet"]


@click.group(cls=Commands)
def faucet() -> None:
    """Give coins of a test network to whoever asks."""


@faucet.command()
@session_options
@click.option(
    "--listen",
    default="127.0.0.1:8600",
    show_default=True,
    metavar="HOST:PORT",
    help="Where to listen; several with commas.",
)
@click.option("--amount", type=AMOUNT, default="10", show_default=True, help="What one grant is, in DKB.")
@click.option("--per-address", default=1, show_default=True, type=Whole(1), help="Grants a day to an address.")
@click.option("--per-ip", default=5, show_default=True, type=Whole(1),
              help="Grants a day to an IPv4 address, or to a /64 of IPv6.")  # fmt: skip
@click.option("--per-day", default=1_000, show_default=True, type=Whole(1), help="Grants a day in all.")
@click.option("--alarm", type=AMOUNT, default="1000", show_default=True, help="A balance below is an alarm.")
@click.option("--book", type=PathName(), help="File that keeps what was given.  [default: HOME/faucet.db]")
@click.option("--proxied", is_flag=True, help="Behind a proxy: callers are whom it names last in X-Forwarded-For.")
@click.option("--ready-file", type=PathName(), help="Write process id and port here when it listens.")
def run(
    session: Session, listen: str, amount: int, per_address: int, per_ip: int, per_day: int, alarm: int,
    book: Path | None, proxied: bool, ready_file: Path | None,
) -> None:  # fmt: skip
    """Run a faucet that gives from the account --key (default: the wallet's only one) until it is stopped.

    It refuses to start for a chain whose genesis does not say that it is a test network. POST / with
    {"address": "0x..."} answers {"hash": "0x..."}; GET /metrics has its balance and the alarm.

    \b
    Example:
      dekube faucet run --rpc http://127.0.0.1:8545 --key faucet --passphrase-file faucet.pass
    """
    import uvloop

    from rpc.faucet.service import FaucetOptions, serve

    if not amount:
        raise click.BadParameter("a grant is an amount above zero", param_hint="--amount")
    try:
        parse_listen(listen)
    except ConfigError as error:
        raise click.BadParameter(str(error), param_hint="--listen") from None
    check_listen("--listen", listen)
    options = FaucetOptions(
        gateways=session.gateways(),
        book=book or session.home.root / "faucet.db",
        chain_id=session.signed_for(),
        listen=listen,
        amount=amount,
        per_address=per_address,
        per_caller=per_ip,
        per_day=per_day,
        alarm=alarm,
        proxied=proxied,
        ready_file=ready_file,
    )
    # A faucet has a key of its own: never the account of a node by default.
    key = session.key(session.key_name or str(session.keyring.only()))
    configure_logs(LogOptions())
    uvloop.run(serve(key, options))
