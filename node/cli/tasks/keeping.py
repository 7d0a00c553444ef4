"""Asks for custody beside the creation of a task: before it has a worker, so in the same block if possible."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

from node.cli.output import show_amount
from node.cli.tasks.watch import say
from rpc.client import Client, ClientError, GatewayUnreachable, TransactionRefused
from rpc.client.core import hexed
from state.primitives.codec import Value
from state.primitives.errors import ConfigError
from state.primitives.keys import SecretKey
from state.primitives.transactions import decode_transaction
from tasks.ledger.custody_transitions import ASK_CUSTODY
from tasks.ledger.transitions import task_id_of

__all__ = ["CustodyAsk"]


@dataclass
class CustodyAsk:
    """The terms of custody of a task that is being created, and what it locks for them.

    Raises ConfigError on a chain without custody.
    """

    client: Client
    key: SecretKey
    key_root: bytes
    inputs: int
    amount: int

    def __post_init__(self) -> None:
        if not self.amount:
            raise ConfigError("this chain has no custody; create the task without --custody and --private")
        self._sent: bytes | None = None

    @property
    def told(self) -> str:
        """What it locks, in words."""
        return f"locks {show_amount(self.amount)} more; what is not used comes back"

    def _payload(self, task: bytes) -> list[Value]:
        return [task, self.key_root, self.inputs, self.amount]

    def send(self, created: bytes) -> None:
        """Submit it with the nonce after that of ``created``; ``finish`` repeats what was not taken."""
        nonce = decode_transaction(created).nonce
        payload = self._payload(task_id_of(self.key.address, nonce))
        with suppress(ClientError, GatewayUnreachable):
            raw = self.client.sign(self.key, ASK_CUSTODY, payload, nonce=nonce + 1)
            self.client.submit(raw)
            self._sent = raw

    def finish(self, task: bytes) -> None:
        """Wait until it is final. If it is refused the task is cancelled: it would have no custody."""
        try:
            if self._sent is not None:
                self.client.wait(self._sent)
            else:
                self.client.send(self.key, ASK_CUSTODY, self._payload(task))
        except TransactionRefused as error:
            say(f"Custody was refused ({error.reason}); the task is cancelled.")
            with suppress(ClientError, TransactionRefused):
                self.client.cancel_task(self.key, task)
            raise TransactionRefused(
                f"task {hexed(task)} has no custody and was cancelled: {error}", reason=error.reason or "unknown"
            ) from None
