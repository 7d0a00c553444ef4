"""``dekube wallet``: accounts in keystore files, payments, contracts, signatures and live updates."""

from __future__ import annotations

import click

from node.cli.commands import CommandGroup
from node.cli.wallet.accounts import address, export, import_, list_, new
from node.cli.wallet.messages import sign, verify
from node.cli.wallet.payments import call, faucet, send
from node.cli.wallet.views import balance, history, tx
from node.cli.wallet.watching import watch

__all__ = ["wallet"]


@click.group(cls=CommandGroup)
def wallet() -> None:
    """Manage accounts, send payments, call contracts and sign messages.

    Accounts are keystore files (Ethereum v3: geth, cast, MetaMask) in wallet/ of --home. NAME is an
    account's name, its address, or any keystore file. Secrets are prompted for or read from files; "-"
    reads standard input. No secret is ever a command-line argument.

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
