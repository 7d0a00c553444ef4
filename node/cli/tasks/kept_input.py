"""Custody of a task's data set: what it costs, asking for it, and how far it is (market.md R44)."""

from __future__ import annotations

from dataclasses import dataclass, field
from io import BytesIO
from typing import Final

from node.cli.output import show_amount
from node.cli.tasks.watch import say
from node.market.posting import wait_input
from node.market.private_jobs import make_private
from rpc.client import Client, TransactionRefused
from rpc.client.core import hexed
from rpc.client.results import TaskQuote
from state.primitives.codec import Value
from state.primitives.errors import ConfigError
from state.primitives.keys import SecretKey
from state.primitives.manifests import manifest_of
from tasks.custody.chunks import BlobCommitment
from tasks.custody.sealed import public_input
from tasks.errors import WrongPhase
from tasks.ledger.custody_records import INPUT_WINDOW
from tasks.ledger.custody_transitions import KEEP_INPUT
from tasks.spec import JobSpec

__all__ = ["KeptInput", "commitment_of", "input_price"]

ASKS_MAX: Final = 3
"""How often custody is asked for if drawn machines do not sign."""


def input_price(quoted: TaskQuote) -> int:
    """Return what a requester locks for the custody of a job's data set."""
    return sum(line.amount for line in quoted.custody_lines if line.what == "input")


def commitment_of(key: SecretKey, spec: JobSpec, dataset: bytes, *, is_private: bool) -> BlobCommitment:
    """Return what the chain is told of a job's data set. Raises ConfigError where it is another file's."""
    if is_private:
        job = make_private(key, spec, dataset)
        commitment, name = job.commitment, job.spec.dataset.blob
    else:
        commitment = public_input(spec.dataset.root, dataset).commitment
        name = manifest_of(BytesIO(dataset)).blob_id
    if name != spec.dataset.blob:
        raise ConfigError("the file is not the data set of the job: give the one that the job was made with")
    return commitment


@dataclass
class KeptInput:
    """Asks for the custody of a task's data set, and waits for the receipts."""

    client: Client
    key: SecretKey
    commitment: BlobCommitment
    amount: int
    _sent: bytes | None = field(default=None, init=False)

    def payload(self, task: bytes) -> list[Value]:
        """Return the payload of **keep_input**."""
        return [task, *self.commitment, self.amount]

    def send(self, task: bytes, nonce: int) -> None:
        """Submit it beside the transaction that creates the task."""
        raw = self.client.sign(self.key, KEEP_INPUT, self.payload(task), nonce=nonce)
        self.client.submit(raw)
        self._sent = raw

    def finish(self, task: bytes) -> None:
        """Wait until machines have signed; ask again if they do not. Raises TransactionRefused.

        Where a machine was matched with the task before, the data set stays with the requester, who is told.
        """
        for _ in range(ASKS_MAX):
            try:
                if self._sent is not None:
                    raw, self._sent = self._sent, None
                    self.client.wait(raw)
                elif self.client.custody(task, INPUT_WINDOW) is None:
                    self.client.send(self.key, KEEP_INPUT, self.payload(task))
            except TransactionRefused as error:
                if error.reason != WrongPhase.code:
                    raise
                say(
                    "A machine is matched with the task already, so custody of its data set was refused. "
                    "Keep the data set available until the worker has it."
                )
                return
            if wait_input(self.client, task, say):
                return
            say("Not enough drawn machines signed for the data set; custody is asked for again.")
        raise TransactionRefused(
            f"nobody keeps the data set of task {hexed(task)}: it waits for that; `dekube task cancel` ends it"
        )

    @property
    def told(self) -> str:
        """What it locks, in words."""
        return f"kept by drawn machines before a worker is looked for; locks {show_amount(self.amount)} more"
