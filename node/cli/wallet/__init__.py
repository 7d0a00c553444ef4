"""``dekube wallet``: accounts in keystore files, payments, contracts, signatures, and news of them."""

from __future__ import annotations

import click

from node.cli.commands import Commands
from node.cli.wallet.accounts import address, export, import_, list_, new
from node.cli.wallet.messages import sign, verify
from node.cli.wallet.payments import call, faucet, send
from node.cli.wallet.views import balance, history, tx
from node.cli.wallet.watching import watch

__all__ = ["wallet"]


@click.group(cls=Commands)
def wallet() -> None:
    """Keep accounts, send, call contracts, sign, and follow what happens.

    Accounts are keystore files (Ethereum's v3, as geth, cast and MetaMask read and write them) in the folder
    wallet/ of --home; NAME is one of them, an address among them, or any keystore file. Secrets are asked for, or
    read from files; "-" is standard input. None is ever an argument.

    \b
    Examples:
      dekube wallet new savings --words 12
      dekube wallet send 0x52908400098527886E0F7030069857D2E4169EE7 1.5 --key savings
      dekube wallet call staking stakeOf 0x52908400098527886E0F7030069857D2E4169EE7
      dekube wallet watch savings
    """


for _command in (
    new, import_, list_, address, export, sign, verify, balance, send, faucet, call, tx, history, watch
):  # fmt: skip
    wallet.add_command(_command)
