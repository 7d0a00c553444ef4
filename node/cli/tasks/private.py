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
from tasks.kinds.container import ContainerPart
from tasks.ledger.custody_transitions import ASK_CUSTODY, KEEP_INPUT
from tasks.ledger.group_records import seat_task
from tasks.ledger.screening import check_start, dataset_objections, read_dataset_facts
from tasks.ledger.transitions import CREATE_TASK, task_id_of
from tasks.spec import JobSpec

__all__ = [
    "PrivateTask", "SealedTask", "check_budget", "container_readers", "kept_input", "seat_terms", "send_ask",
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


class SealedTask:
    """A sealed container that is being created: who reads it, and who keeps shares of its key.

    Raises ConfigError, BadParameter.
    """

    def __init__(
        self, session: Session, client: Client, key: SecretKey, part: ContainerPart, holders: int,
        threshold: int | None,
    ) -> None:  # fmt: skip
        self.control = check_node(session, key)
        self._holders, self._threshold = holders, _threshold_of(holders, threshold)
        self.readers = f"{container_readers(part)}; {told_holders(client, self._threshold, holders)}"

    def share(self, task: bytes) -> dict[str, list[str]]:
        """Hand out the shares; return who keeps one."""
        if not self._holders:
            return {}
        return {"holders": share_out(self.control, task, self._threshold, self._holders)}


def container_readers(part: ContainerPart) -> str:
    """Return who can read what of a container, in words."""
    machines = counted(part.metering.retries + 1, "machine")
    who = f"the owner of the machine that runs it ({machines} at most, one after the other)"
    if part.sealed is None:
        return "everybody reads its command, mounts, output and log"
    if not part.is_private:
        return f"its secrets: {who}; everybody reads its command, mounts, output and log"
    return f"mounts and secrets: {who}; output and log: that one and you; everybody reads its command"


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
