"""What commands that talk to a chain share: the gateway to ask, the key to sign with, sending and waiting."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from node.cli.options import DEFAULT_HOME, account_of_home, open_key
from node.home import Home
from rpc.client import Client
from state.primitives.codec import Value
from state.primitives.errors import ConfigError, DekubeError
from state.primitives.keys import SecretKey
from state.primitives.transactions import sign_transaction

__all__ = ["Session", "TransactionRefused", "fee_of", "send", "session_options"]

_Function = TypeVar("_Function", bound=Callable[..., Any])
WAIT_MS: Final = 30_000
WAITS_MAX: Final = 10


class TransactionRefused(DekubeError):
    """A final transaction whose rule refused it, or one that did not become final in time."""

    code = "transaction_refused"


@dataclass(frozen=True, slots=True)
class Session:
    """A gateway to ask and, where a command signs, whose key."""

    home: Home
    url: str
    key_file: Path | None
    passphrase_file: Path | None

    def client(self) -> Client:
        """Return a client of the gateway."""
        return Client(self.url or self._own_gateway())

    def key(self) -> SecretKey:
        """Return the key that signs: that of --key, else the account of the home."""
        if self.key_file is not None:
            return open_key(self.key_file, self.passphrase_file)
        return account_of_home(self.home)

    def _own_gateway(self) -> str:
        listen = self.home.load_options().rpc.listen
        if not listen:
            raise ConfigError(f"{self.home.root}: this node has no gateway (rpc.listen); name one with --rpc")
        return "http://" + listen.replace("0.0.0.0", "127.0.0.1")  # noqa: S104  the other way round


def session_options(function: _Function) -> _Function:
    """Add --home, --rpc, --key and --passphrase-file; the function gets ``session``."""

    def wrapped(home: str, rpc: str, key: Path | None, passphrase_file: Path | None, **arguments: Any) -> Any:
        root = Home(Path(os.path.expanduser(home)).absolute())
        return function(session=Session(root, rpc, key, passphrase_file), **arguments)

    wrapped.__name__, wrapped.__doc__ = function.__name__, function.__doc__
    wrapped.__click_params__ = getattr(function, "__click_params__", [])  # type: ignore[attr-defined]
    for option in (
        click.option(
            "--passphrase-file", type=click.Path(path_type=Path), help="File with the passphrase of --key."
        ),
        click.option(
            "--key", type=click.Path(path_type=Path), help="Keystore that signs; else the home's account."
        ),
        click.option("--rpc", default="", metavar="URL", help="Gateway to ask; else that of the node in --home."),
        click.option("--home", default=DEFAULT_HOME, show_default=True, help="Folder of the node."),
    ):
        option(wrapped)
    return wrapped  # type: ignore[return-value]


def _gas_of(quote: dict[str, Any], kind: int) -> int:
    gas: int | None = next((entry["gas"] for entry in quote["kinds"] if entry["kind"] == kind), None)
    if gas is None:
        raise ConfigError(f"this chain does not know kind {kind:#x}")
    return gas


def fee_of(client: Client, kind: int) -> int:
    """Return what a transaction of this kind may cost now at most."""
    quote = client.call("dekube_quote")
    return _gas_of(quote, kind) * int(quote["max_fee_per_gas"])


def send(client: Client, key: SecretKey, kind: int, payload: list[Value]) -> dict[str, Any]:
    """Sign, send, and wait until final; return the receipt as the gateway shows it.

    Raises ClientError when the pool refuses it, TransactionRefused when its rule does.
    """
    info = client.call("dekube_chainInfo")
    quote = client.call("dekube_quote")
    gas = _gas_of(quote, kind)
    nonce = client.call("dekube_getNonce", "0x" + key.address.hex())["pending_nonce"]
    raw = sign_transaction(
        key,
        chain_id=info["chain_id"],
        nonce=nonce,
        kind=kind,
        payload=payload,
        gas_limit=gas,
        max_fee_per_gas=int(quote["max_fee_per_gas"]),
        max_priority_fee_per_gas=int(quote["max_priority_fee_per_gas"]),
    )
    sent = client.call("dekube_sendTransaction", "0x" + raw.hex())["hash"]
    for _ in range(WAITS_MAX):
        receipt = client.call("dekube_waitForReceipt", sent, WAIT_MS)["receipt"]
        if receipt is None:
            continue
        if not receipt["succeeded"]:
            raise TransactionRefused(f"transaction {sent} failed: {receipt['reason']}")
        result: dict[str, Any] = receipt
        return result
    raise TransactionRefused(f"transaction {sent} is not final yet; it may still become so")
