"""The faucet of a test network: a process with its own account, for trying wallets."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from node.home.files import write_private
from node.home.keys import save_key
from state.primitives.errors import ConfigError
from state.primitives.keys import SecretKey
from testnet.cluster import SCRYPT_N_TESTNET, Program
from testnet.plan import COIN, Plan, derive_key

__all__ = ["FAUCET", "FAUCET_COINS", "faucet_arguments", "faucet_key", "make_faucet", "write_faucet"]

FAUCET: Final = "faucet"
"""Name of the faucet and of its folder."""
FAUCET_COINS: Final = 1_000_000 * COIN
GRANTS_PER_CALLER: Final = 1_000
"""High, because all callers come from this machine."""


def faucet_key(seed: int) -> SecretKey:
    """Return the account of the faucet in a network of ``seed``."""
    return derive_key(seed, FAUCET)


def write_faucet(folder: Path, seed: int, passphrase: str) -> None:
    """Write the key of the faucet and its passphrase."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    key, secret = folder / "key.json", folder / "passphrase"
    for path in (key, secret):
        path.unlink(missing_ok=True)  # they derive from the seed
    write_private(secret, passphrase + "\n")
    save_key(key, faucet_key(seed), passphrase, scrypt_n=SCRYPT_N_TESTNET)


def faucet_arguments(folder: Path, listen: str, urls: list[str]) -> tuple[str, ...]:
    """Return the command line of the faucet in ``folder`` for the gateways at ``urls``."""
    return (
        "faucet", "run", "--home", str(folder), "--key", str(folder / "key.json"),
        "--passphrase-file", str(folder / "passphrase"), "--listen", listen,
        "--ready-file", str(folder / "run" / "ready.json"), "--per-ip", str(GRANTS_PER_CALLER),
        *(word for url in urls for word in ("--rpc", url)),
    )  # fmt: skip


def make_faucet(root: Path, plan: Plan, seed: int) -> Program:
    """Write the faucet's folder in the network in ``root``; return its program, on the port after the others.

    Raises ConfigError if there is no such port.
    """
    port = max(member.placement.metrics_port for member in plan.members) + 1
    if port > 65535:
        raise ConfigError("testnet: no port is left for the faucet; choose --base-port or --no-faucet")
    folder = root / FAUCET
    write_faucet(folder, seed, plan.passphrase)
    urls = [
        f"http://{member.placement.host}:{member.placement.rpc_port}"
        for member in plan.members
        if member.role == "validator"
    ]
    return Program(
        name=FAUCET,
        role=FAUCET,
        address=faucet_key(seed).address,
        bind="127.0.0.1",
        ports=(port,),
        url=f"http://127.0.0.1:{port}",
        arguments=faucet_arguments(folder, f"127.0.0.1:{port}", urls),
    )
