"""Private tasks and custody at the moment of posting: terms, budget, and who keeps shares of a key."""

from __future__ import annotations

import click

from node.cli.output import counted, show_amount
from node.cli.session import Session
from node.cli.tasks.group import SeatTerms
from node.cli.tasks.keeping import NO_CUSTODY, CustodyAsk, check_node, share_out, told_holders, told_readers
from node.cli.tasks.kept_input import KeptInput, commitment_of, input_price
from node.cli.tasks.watch import say
from node.market.private_jobs import INPUTS, make_private
from rpc.client import Client, JobRefused
from rpc.client.core import hexed
from rpc.client.results import TaskQuote
from state.primitives.errors import ConfigError
from state.primitives.keys import SecretKey
from state.primitives.transactions import decode_transaction
from tasks.custody.keys import public_key_root
from tasks.ledger.custody_transitions import ASK_CUSTODY, KEEP_INPUT
from tasks.ledger.group_records import seat_task
from tasks.ledger.quorum_records import SEATS, quorum_seat_task
from tasks.ledger.screening import check_start, dataset_objections, read_dataset_facts
from tasks.ledger.transitions import CREATE_TASK, task_id_of
from tasks.spec import JobSpec, container_of

__all__ = [
    "KeptContainer", "PrivateTask", "check_budget", "container_readers", "kept_input", "reading_machines",
    "seat_terms", "send_ask",
]  # fmt: skip


def seat_terms(
    spec: JobSpec, quoted: TaskQuote, private: PrivateTask | None, is_kept: bool | None, members: int,
    what: dict[str, str],
) -> SeatTerms | None:  # fmt: skip
    """Return the terms of custody of a group's seats, and tell them. Raises ConfigError on a chain without it."""
    if private is not None:
        terms = SeatTerms(private.job.key_root, INPUTS, quoted.custody)
        what["read by"] = f"{private.readers}; each member's worker has the key of all of them"
    elif is_kept or (is_kept is None and quoted.custody):
        terms = SeatTerms(public_key_root(spec.windows), 0, quoted.custody)
    else:
        return None
    if not quoted.custody:
        raise ConfigError(NO_CUSTODY)
    what["custody"] = f"locks {show_amount(members * quoted.custody)} more; what is not used comes back"
    return terms


def check_budget(client: Client, budget: int, locked: int, ask: CustodyAsk | None) -> None:
    """Check that all that is locked and the fees are within the budget. Raises JobRefused."""
    kinds = [CREATE_TASK]
    if ask is not None:
        locked += ask.amount + (ask.kept.amount if ask.kept is not None else 0)
        kinds += [ASK_CUSTODY, KEEP_INPUT][: 1 if ask.kept is None else 2]
    fees = client.quote()
    cost = locked + sum(item.gas for item in fees.kinds if item.kind in kinds) * fees.max_fee_per_gas
    if cost > budget:
        text = f"the tasks would cost {show_amount(cost)}, more than the budget of {show_amount(budget)}"
        raise JobRefused([("budget_exceeded", text)])


def send_ask(ask: CustodyAsk, key: SecretKey, created: bytes) -> None:
    """Submit the terms of custody beside the transaction that creates the task."""
    task = task_id_of(key.address, decode_transaction(created).nonce)
    say(f"Task {hexed(task)}: if this command is interrupted, `dekube task keep` does the rest.")
    ask.send(created)


def kept_input(
    client: Client, key: SecretKey, spec: JobSpec, private: PrivateTask | None, plain: bytes, quoted: TaskQuote
) -> KeptInput:
    """Return what asks for the custody of a job's data set. Raises ConfigError."""
    if private is not None:
        commitment = private.job.commitment
    else:
        commitment = commitment_of(key, spec, plain, is_private=False)
    return KeptInput(client, key, commitment, input_price(quoted))


class KeptContainer:
    """A container that is sealed, or that others are to keep: who reads it, and who keeps it.

    Raises ConfigError, BadParameter.
    """

    def __init__(
        self, session: Session, client: Client, key: SecretKey, spec: JobSpec, holders: int, threshold: int | None
    ) -> None:
        self.control = check_node(session, key)
        self._spec, self._has_key = spec, container_of(spec).sealed is not None
        self._holders, self._threshold = holders, _threshold_of(holders, threshold)
        self.readers = container_readers(spec)
        if self._has_key:
            self.readers += f"; {told_holders(client, self._threshold, holders)}"
        self.kept = f"by {counted(holders, 'machine')}: mounts, checkpoints, output and log" if holders else ""

    def share(self, task: bytes) -> dict[str, list[str]]:
        """Have machines keep it, with shares of its key; return who does. Those of a quorum keep all its seats."""
        if not self._holders:
            return {}
        seats = SEATS if self._spec.is_quorum else 1
        kept = [
            share_out(
                self.control, quorum_seat_task(task, seat), self._threshold, self._holders, has_key=self._has_key
            )
            for seat in range(seats)
        ]
        return {"holders": kept[0]}


def reading_machines(spec: JobSpec) -> int:
    """Return how many machines may run a container, one after the other or beside each other."""
    return (SEATS if spec.is_quorum else 1) * (container_of(spec).metering.retries + 1)


def container_readers(spec: JobSpec) -> str:
    """Return who can read what of a container, in words."""
    part = container_of(spec)
    machines = counted(reading_machines(spec), "machine")
    who = f"the owners of the machines that run it ({machines} at most), and of a machine that declines it"
    if part.sealed is None:
        return "everybody reads its command, mounts, checkpoints, output and log"
    if not part.is_private:
        return f"its secrets: {who}; everybody reads its command, mounts, checkpoints, output and log"
    made = "output and log: the owner of the machine that makes them, and you; everybody reads its command"
    if part.checkpoint is not None:
        made = f"checkpoints: the owners of that machine and of later ones; {made}"
    return f"mounts and secrets: {who}; {made}"


def _threshold_of(holders: int, threshold: int | None) -> int:
    if holders and (threshold or 1) > holders:
        raise click.BadParameter("more shares than --holders", param_hint="--threshold")
    return threshold or holders // 2 + 1


class PrivateTask:
    """A private job that is being created, and who keeps shares of its key. Raises ConfigError, UsageError."""

    def __init__(
        self, session: Session, client: Client, key: SecretKey, spec: JobSpec, dataset: bytes, holders: int,
        threshold: int | None,
    ) -> None:  # fmt: skip
        self.control = check_node(session, key)
        self._holders, self._threshold = holders, _threshold_of(holders, threshold)
        self._known = dataset_objections(spec, read_dataset_facts(dataset))
        self.job = make_private(key, spec, dataset)
        self.readers = told_readers(client, self._threshold, holders)

    def objections(self, quoted: TaskQuote) -> list[tuple[str, str]]:
        """Return the obstacles to the job; the gateway cannot read its data set."""
        found = [(item.code, item.text) for item in quoted.objections if not item.code.startswith("dataset_")]
        here = [*self._known, *check_start(self.job.spec)]
        return found + [(code, text) for code, text in here if code not in dict(found)]

    def share_seats(self, group: bytes, seats: int) -> dict[str, list[str]]:
        """Hand out the shares of all seats of a group; return who keeps one of the first."""
        shared = [self.share(seat_task(group, seat)) for seat in range(seats)]
        return shared[0]

    def share(self, task: bytes) -> dict[str, list[str]]:
        """Hand out the shares; return who keeps one."""
        if not self._holders:
            return {}
        return {"holders": share_out(self.control, task, self._threshold, self._holders)}
