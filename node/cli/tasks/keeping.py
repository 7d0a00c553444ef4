"""Custody and keys of a task that is being created: asked for in its own block, and private if wanted."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from node.cli.output import show_amount
from node.cli.session import Session
from node.cli.tasks.kept_input import KeptInput
from node.cli.tasks.watch import say
from node.market.posting import DIGITS_BLOB
from node.process.control import ControlUnavailable, ask_node
from rpc.client import Client, ClientError, GatewayUnreachable, TransactionRefused
from rpc.client.core import hexed
from state.primitives.address import format_address, parse_address
from state.primitives.codec import Value
from state.primitives.errors import ConfigError, DekubeError
from state.primitives.keys import SecretKey
from state.primitives.transactions import decode_transaction
from tasks.engines.builtin_datasets import make_dataset
from tasks.engines.datasets import DATASET_BLOB_BYTES_MAX
from tasks.ledger.custody_transitions import ASK_CUSTODY
from tasks.ledger.transitions import CREATE_TASK, task_id_of
from tasks.spec import JobSpec

__all__ = [
    "NO_CUSTODY",
    "CustodyAsk",
    "check_node",
    "end_custody",
    "plain_dataset",
    "share_out",
    "told_holders",
    "told_readers",
]

NO_CUSTODY: Final = "this chain has no custody; create the task without --custody, --private and --keep-input"
SHARE_TIMEOUT_S: Final = 600.0
"""Machines that keep a share fetch the encrypted data set first."""


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
    kept: KeptInput | None = None
    """Custody of the data set too, if that is asked for."""

    def __post_init__(self) -> None:
        if not self.amount:
            raise ConfigError(NO_CUSTODY)
        self._sent: bytes | None = None

    @property
    def told(self) -> str:
        """What it locks, in words."""
        amount = self.amount + (self.kept.amount if self.kept is not None else 0)
        return f"locks {show_amount(amount)} more; what is not used comes back"

    def _payload(self, task: bytes) -> list[Value]:
        return [task, self.key_root, self.inputs, self.amount]

    def send(self, created: bytes) -> None:
        """Submit it with the nonce after that of ``created``, before ``created`` is; ``finish`` repeats what was
        not taken.

        It waits for this nonce in the pools of all nodes. So no block can have the task without its custody, in
        which a machine would be matched.
        """
        nonce = decode_transaction(created).nonce
        task = task_id_of(self.key.address, nonce)
        with suppress(ClientError, GatewayUnreachable):
            raw = self.client.sign(self.key, ASK_CUSTODY, self._payload(task), nonce=nonce + 1)
            self.client.submit(raw)
            self._sent = raw
            if self.kept is not None:
                self.kept.send(task, nonce + 2)

    def create(self, spec: bytes) -> bytes:
        """Create the task of a specification, with its custody; return its id."""
        raw = self.client.sign(self.key, CREATE_TASK, [spec])
        self.send(raw)
        self.client.wait(raw)
        task = task_id_of(self.key.address, decode_transaction(raw).nonce)
        self.finish(task)
        return task

    def finish(self, task: bytes) -> None:
        """Wait until it is final. If it is refused the task is cancelled: it would have no custody.

        A command that was interrupted may have left terms in the pools, which wait for the same task: those of the
        same keys are as good, with others nobody could open what lies in custody.
        """
        try:
            if self._sent is not None:
                self.client.wait(self._sent)
            else:
                self.client.send(self.key, ASK_CUSTODY, self._payload(task))
        except TransactionRefused as error:
            terms = self.client.custody_terms(task)
            if terms is not None and (terms.key_root, terms.inputs) == (self.key_root, self.inputs):
                self._finish_input(task)
                return
            say(f"Custody was refused ({error.reason}); the task is cancelled.")
            with suppress(ClientError, TransactionRefused):
                self.client.cancel_task(self.key, task)
            raise TransactionRefused(
                f"task {hexed(task)} has no custody and was cancelled: {error}", reason=error.reason or "unknown"
            ) from None
        self._finish_input(task)

    def _finish_input(self, task: bytes) -> None:
        if self.kept is not None:
            self.kept.finish(task)


def end_custody(client: Client, key: SecretKey, task: bytes) -> None:
    """Sign that the requester has the outputs: custodians are paid, and their bonds return."""
    for window in client.task_windows(task):
        kept = client.custody(task, window.number)
        if kept is not None and kept.phase == "kept" and window.phase == "final":
            client.end_custody(key, task, window.number)


def plain_dataset(spec: JobSpec, file: Path | None) -> bytes:
    """Return the plain data set of a job: a file's content, or the built-in one. Raises ConfigError."""
    if file is None:
        if spec.dataset.blob != DIGITS_BLOB:
            raise ConfigError(
                "a job of a file needs its data set here: give it with --dataset FILE, or the job with -f FILE"
            )
        return make_dataset("digits").encode()
    try:
        with file.open("rb") as source:
            content = source.read(DATASET_BLOB_BYTES_MAX + 1)
    except OSError as error:
        raise ConfigError(f"{file}: {error.strerror}") from None
    if not 0 < len(content) <= DATASET_BLOB_BYTES_MAX:
        raise ConfigError(f"{file}: a data set has 1 to {DATASET_BLOB_BYTES_MAX} bytes")
    return content


def check_node(session: Session, key: SecretKey) -> Path:
    """Return the control socket of the node that hands the key of a private task on. Raises ConfigError."""
    control = session.control()
    if control is None:
        raise ConfigError(
            "a private task needs a running node of the same account: it hands the task's key to the worker; "
            "start the node in --home, and give no --rpc"
        )
    own = parse_address(str(ask_node(control, "status")["address"]))
    if own != key.address:
        raise ConfigError(
            f"the node in --home has the account {format_address(own)}; a private task is signed with its key"
        )
    return control


def told_readers(client: Client, threshold: int, holders: int) -> str:
    """Return who can read a private task, in words."""
    return f"its worker, and the machines that check a window; {told_holders(client, threshold, holders)}"


def told_holders(client: Client, threshold: int, holders: int) -> str:
    """Return who could read a task by shares of its key, or that its node must run, in words."""
    if not holders:
        return "this node must run until the worker has the key"
    machines = sum("storage" in node["roles"] for node in client.items("dekube_getNodes"))
    return (
        f"while you are offline any {threshold} of {holders} machines together could "
        f"({machines} with role storage are registered)"
    )


def share_out(control: Path, task: bytes, threshold: int, holders: int, *, has_key: bool = True) -> list[str]:
    """Have the node hand shares of a task's key to machines; return those that keep one.

    They keep a container whether it has a key or not.
    """
    try:
        found: Any = ask_node(
            control, "share_key", timeout_s=SHARE_TIMEOUT_S, task=task.hex(), threshold=threshold, holders=holders
        )
        machines = [format_address(bytes.fromhex(machine)) for machine in found["holders"]]
    except (ControlUnavailable, DekubeError) as error:
        what = "the key was not shared" if has_key else "no machines keep it"
        say(f"Note: {what} ({error}). This node must run until the worker has {'the key' if has_key else 'it'}.")
        return []
    say(f"{len(machines)} machines keep {'a share of the key' if has_key else 'it'}. You may go offline.")
    return machines
