"""``dekube faucet``: gives coins of a test network to anyone who requests them."""

from __future__ import annotations

from pathlib import Path

import click

from node.cli.arguments import AMOUNT, OUTPUT_FILE, WholeNumber
from node.cli.commands import CommandGroup
from node.cli.session import Session, session_options
from node.home.options import LogOptions
from node.process.ports import check_listen
from node.telemetry.logs import configure_logs
from state.primitives.errors import ConfigError
from state.primitives.listen import parse_listen

__all__ = ["faucet"]


@click.group(cls=CommandGroup)
def faucet() -> None:
    """Run a faucet for a test network."""


@faucet.command()
@session_options
@click.option(
    "--listen",
    default="127.0.0.1:8600",
    show_default=True,
    metavar="HOST:PORT",
    help="Addresses to listen on, separated by commas.",
)
@click.option("--amount", type=AMOUNT, default="10", show_default=True, help="Amount of one grant, in DKB.")
@click.option(
    "--per-address", default=1, show_default=True, type=WholeNumber(1), help="Grants for one address each day."
)
@click.option("--per-ip", default=5, show_default=True, type=WholeNumber(1),
              help="Grants for one IPv4 address or IPv6 /64 each day.")  # fmt: skip
@click.option(
    "--per-day", default=1_000, show_default=True, type=WholeNumber(1), help="Grants for all callers each day."
)
@click.option(
    "--alarm", type=AMOUNT, default="1000", show_default=True, help="Raise the alarm below this balance, in DKB."
)
@click.option("--database", type=OUTPUT_FILE, help="Database of past grants.  [default: HOME/faucet.db]")
@click.option(
    "--proxied",
    is_flag=True,
    help="Identify callers by the last address in X-Forwarded-For. Use it behind a proxy.",
)
@click.option(
    "--ready-file", type=OUTPUT_FILE, help="Write process ID and port to this file when the faucet listens."
)
def run(
    session: Session, listen: str, amount: int, per_address: int, per_ip: int, per_day: int, alarm: int,
    database: Path | None, proxied: bool, ready_file: Path | None,
) -> None:  # fmt: skip
    """Run a faucet that pays from the account --key until it is stopped.

    Default: the wallet's only account. The command refuses chains whose genesis is not a test network. POST
    / with {"address": "0x..."} answers {"hash": "0x..."}. GET /metrics shows the balance and the alarm.

    \b
    Example:
      dekube faucet run --rpc http://127.0.0.1:8545 --key faucet --passphrase-file faucet.pass
    """
    import uvloop

    from rpc.faucet.service import FaucetOptions, serve

    if not amount:
        raise click.BadParameter("the amount of a grant must be above zero", param_hint="--amount")
    try:
        parse_listen(listen)
    except ConfigError as error:
        raise click.BadParameter(str(error), param_hint="--listen") from None
    check_listen("--listen", listen)
    options = FaucetOptions(
        gateways=session.gateways(),
        book=database or session.home.root / "faucet.db",
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
