"""``dekube contracts``: the system contracts for Solidity, for client libraries and for hardware wallets."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import click

from node.cli.arguments import OutputFile, WholeNumber
from node.cli.option_conflicts import refuse_given
from node.cli.output import counted, json_option, show
from node.home.files import write_whole
from rpc.ethereum.interfaces import KINDS, contract_files

__all__ = ["TESTNET_CHAIN_ID", "contracts"]

TESTNET_CHAIN_ID: Final = 19_888
"""The chain of the files in docs/contracts."""


@click.command()
@click.argument("folder", type=OutputFile(file_okay=False))
@click.option("--solidity", is_flag=True, help="Write Solidity interfaces.")
@click.option("--abi", is_flag=True, help="Write the ABI as JSON.")
@click.option(
    "--erc7730", is_flag=True, help="Write ERC-7730 descriptors, with which wallets show what they sign."
)
@click.option(
    "--chain-id", default=TESTNET_CHAIN_ID, show_default=True, type=WholeNumber(1, 2**63 - 1),
    help="Chain ID in the ERC-7730 descriptors.",
)  # fmt: skip
@json_option
def contracts(folder: Path, chain_id: int, as_json: bool, **wanted: bool) -> None:
    """Write ABI, Solidity and ERC-7730 files of the system contracts to FOLDER.

    Default: all three forms.

    \b
    Example:
      dekube contracts out --abi
    """
    kinds = [kind for kind in KINDS if wanted[kind]] or KINDS
    if "erc7730" not in kinds:
        refuse_given(("--chain-id",), "only the descriptions of --erc7730 name a chain")
    folder.mkdir(parents=True, exist_ok=True)
    files = dict(contract_files(kinds, chain_id))
    for name, text in files.items():
        write_whole(folder / name, text)
    if as_json:
        show({"folder": str(folder), "files": list(files)})
    else:
        click.echo(f"Wrote {counted(len(files), 'file')} to {folder}.")
