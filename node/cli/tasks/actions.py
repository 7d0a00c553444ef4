"""``dekube task cancel``, ``refuse``, ``top-up``, ``demand`` and ``resume``: actions of a task's requester."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, Final

import click

from node.cli.arguments import ADDRESS, AMOUNT, TASK, WholeNumber
from node.cli.confirm import send, yes_option
from node.cli.option_conflicts import not_with, refuse_given
from node.cli.output import counted, json_option, show_amount, show_fields
from node.cli.session import Session, session_options
from node.cli.tasks.custody import demand_of_custodian, has_custody
from node.cli.tasks.watch import record_of, say
from rpc.client import Client, TransactionRefused
from rpc.client.core import hexed
from rpc.client.results import Task
from state.primitives.address import format_address, parse_address
from state.primitives.codec import Value
from state.primitives.errors import ConfigError
from tasks.ledger.checkpoint_transitions import MISS_CHECKPOINT
from tasks.ledger.custody_records import INPUT_WINDOW
from tasks.ledger.group_transitions import CANCEL_GROUP
from tasks.ledger.refusals import all_of_machine
from tasks.ledger.transitions import CANCEL_TASK, DEMAND_RESULT, RESUME_TASK, TOP_UP_TASK

__all__ = ["cancel", "demand", "refuse", "resume", "top_up"]

_TURNED_DOWN: Final = frozenset(("input_unavailable", "job_unfit", "worker_declined"))
"""Reasons of a task that searches because a machine could not have its inputs."""


@click.command()
@session_options
@click.argument("task_id", type=TASK, metavar="TASK")
@yes_option
@json_option
def cancel(session: Session, task_id: bytes, yes: bool, as_json: bool) -> None:
    """End a task or a group early and refund what is locked and not earned.

    A running window is finished and paid. A worker that is preparing is paid for its time.

    \b
    Example:
      dekube task cancel 0xTASK
    """
    what = {"does": "ends the task early", "comes back": "what is locked and not earned"}
    if _cancel_group(session, task_id, what, yes, as_json):
        return
    _send_action(session, task_id, CANCEL_TASK, [task_id], what, yes, as_json)


@click.command()
@session_options
@click.argument("task_id", type=TASK, metavar="TASK")
@click.option("--checkpoint", type=TASK, metavar="BLOB",
              help="The last checkpoint to refuse; 64 zeros refuse only work after the last checkpoint. "
                   "Default: all work of the last machine.")  # fmt: skip
@yes_option
@json_option
def refuse(session: Session, task_id: bytes, checkpoint: bytes | None, yes: bool, as_json: bool) -> None:
    """Refuse work of a container that its last checkpoint or output does not hold.

    The pay that waits for that work is burned: it does not return to you. Another machine
    continues from an earlier checkpoint. Pay waits for one checkpoint interval, also after the end.
    A machine without a checkpoint can be refused when its checkpoint is late. "dekube task show"
    names the checkpoints.

    \b
    Example:
      dekube task refuse 0xTASK --checkpoint 0xBLOB
    """
    what = {"does": "burns the pay that waits, and replaces the machine if it runs", "comes back": "nothing"}
    if checkpoint is None:
        with session.client() as client:
            checkpoint = all_of_machine(_last_machine(client.task(task_id)))
    _send_action(session, task_id, MISS_CHECKPOINT, [task_id, checkpoint], what, yes, as_json, is_over=None)


def _last_machine(found: Task | None) -> bytes:
    """Return the machine that has run a container last, or nothing: the chain refuses that."""
    machines = (found.document.get("meter") or {}).get("machines", ()) if found is not None else ()
    return bytes.fromhex(machines[-1]["worker"][2:]) if machines else b""


def _cancel_group(session: Session, group: bytes, what: Mapping[str, str], yes: bool, as_json: bool) -> bool:
    """End a group, if the ID is that of one; tell whether it is."""
    with session.client() as client:
        if client.task(group) is not None or client.group(group) is None:
            return False
        key = session.key()  # not before: for a task the key is opened later, and a passphrase is read once
        receipt = send(client, key, CANCEL_GROUP, [group], {**what, "does": "ends all tasks of a group"}, yes=yes)
    show_fields({"group": hexed(group), "height": receipt.block.height}, as_json=as_json)
    return True


@click.command(name="top-up")
@session_options
@click.argument("task_id", type=TASK, metavar="TASK")
@click.argument("amount", type=AMOUNT)
@yes_option
@json_option
def top_up(session: Session, task_id: bytes, amount: int, yes: bool, as_json: bool) -> None:
    """Add AMOUNT (DKB) to the funds for a task's verification.

    Unused funds are refunded.

    \b
    Example:
      dekube task top-up 0xTASK 0.5
    """
    if not amount:
        raise click.BadParameter("the amount must be above zero", param_hint="AMOUNT")
    what = {"does": "locks more for the checks of the task", "amount": show_amount(amount)}
    _send_action(session, task_id, TOP_UP_TASK, [task_id, amount], what, yes, as_json)


@not_with(("--window",), "--input")
@click.command()
@session_options
@click.argument("task_id", type=TASK, metavar="TASK")
@click.argument("amount", type=AMOUNT, required=False)
@click.option("--window", type=WholeNumber(0), help="With custody: the window. Default: the last one.")
@click.option("--input", "is_input", is_flag=True, help="With custody: demand the data set, not an output.")
@click.option("--custodian", type=ADDRESS, metavar="ADDRESS",
              help="With custody: the machine. Default: the one with fewest demands.")  # fmt: skip
@yes_option
@json_option
def demand(
    session: Session, task_id: bytes, amount: int | None, window: int | None, is_input: bool,
    custodian: str | None, yes: bool, as_json: bool,
) -> None:  # fmt: skip
    """Demand an unavailable result, or a data set that workers cannot have.

    On a chain with custody, a machine that keeps the output must answer. The first demand of a machine is for a
    drawn chunk on chain. The next ones have it deliver the whole output to a drawn machine. A machine that does
    not answer loses its bond. AMOUNT (DKB) is optional. With --input the same is demanded of a machine that
    keeps the data set.

    On other chains, demand a result within one day of the task's end. Randomly selected machines fetch it and
    keep a copy to download. AMOUNT pays them if they succeed.

    Unused amounts are refunded.

    \b
    Examples:
      dekube task demand 0xTASK
      dekube task demand 0xTASK 0.01
      dekube task demand 0xTASK --input
    """
    if amount == 0:
        raise click.BadParameter("the amount must be above zero", param_hint="AMOUNT")
    with session.client() as client:
        is_kept = has_custody(client)
    if is_kept:
        named = None if custodian is None else parse_address(custodian)
        number = INPUT_WINDOW if is_input else window
        demand_of_custodian(session, task_id, amount, number, named, yes, as_json)
        return
    refuse_given(("--input", "--window", "--custodian"), "this chain has no custody")
    if amount is None:
        raise click.BadParameter("this chain has no custody: give an amount above zero", param_hint="AMOUNT")
    what = {"does": "has drawn machines fetch the result", "amount": f"at most {show_amount(amount)}"}
    _send_action(session, task_id, DEMAND_RESULT, [task_id, amount], what, yes, as_json, is_over=True)


@click.command()
@session_options
@click.argument("task_id", type=TASK, metavar="TASK")
@yes_option
@json_option
def resume(session: Session, task_id: bytes, yes: bool, as_json: bool) -> None:
    """Search another worker for a paused task.

    The task continues from its last final window. A machine that left it and ever had a failure is never
    assigned again. Other machines that left are asked again, but not for a container. If none takes the
    task, it pauses again. The command warns about this before you pay the fee.

    It also ends the wait of a task whose inputs machines could not fetch.

    \b
    Example:
      dekube task resume 0xTASK
    """
    what = {"does": "has another worker looked for"}
    _send_action(
        session, task_id, RESUME_TASK, [task_id], what, yes, as_json, only_in="paused", tell=_tell_of_machines
    )


def _tell_of_machines(client: Client, record: Task) -> None:
    """Print why a paused task would pause again: its verification funds are used up, or no machine would take
    it.
    """
    if record.phase != "paused":
        return
    if record.document["reason"] == "funds_low":
        say(
            "Note: it was paused because what is locked for its checks is used up: unless `dekube task top-up` "
            "has added to that, it pauses again at once."
        )
    search_ms = int(client.call("dekube_genesis")["parameters"]["tasks.replace_ms"])
    until_ms = client.head().time_ms + search_ms
    machines = [node for node in client.items("dekube_getNodes") if "compute" in node["roles"]]
    reasons = Counter(_why_not(node, record.document, until_ms) for node in machines)
    if reasons[""]:
        return
    told = ", ".join(f"{count} {reason}" for reason, count in sorted(reasons.items()) if reason)
    say(
        f"Note: of {counted(len(machines), 'machine')} for compute none will take this task"
        f"{f' ({told})' if told else ''}: unless another one comes within {search_ms // 1000} s, it pauses again. "
        "`dekube task cancel` ends it and pays what is proved."
    )


def _why_not(node: Mapping[str, Any], record: Mapping[str, Any], until_ms: int) -> str:
    """Return why a machine is not offered a task before ``until_ms``; empty if it may be."""
    is_asked_again = record["reason"] == "no_replacement" and record["spec"]["kind"] != "container"
    has_left = node["address"].lower() in {address.lower() for address in record["excluded"]}
    if has_left and (node["bad"] or not is_asked_again):
        return "lost or left this task"
    if node["status"] != "active":
        return str(node["status"])
    if int(node["price_per_tera_unit"]) > int(record["spec"]["max_price_per_tera_unit"]):
        return "above its price limit"
    if max(node["cool_down_until_ms"], node["match_from_ms"]) > until_ms:
        return "in a longer pause after a fault"
    return ""


def _is_turned_down(record: Task) -> bool:
    """Tell whether a machine left the task last because of its inputs: the task may wait for that (R53)."""
    return record.phase in ("matching", "degraded") and record.document["reason"] in _TURNED_DOWN


def _send_action(
    session: Session, task_id: bytes, kind: int, payload: list[Value], what: dict[str, Any], yes: bool,
    as_json: bool, *, only_in: str | None = None, is_over: bool | None = False,
    tell: Callable[[Client, Task], None] | None = None,
) -> None:  # fmt: skip
    key = session.key()
    with session.client() as client:
        record = record_of(client, task_id)
        # Known beforehand: a transaction that can only fail would still cost its fee.
        if record.has_ended and is_over is False:
            raise TransactionRefused(
                f"task {hexed(task_id)} has ended ({record.phase}): "
                "the command needs a task that has not ended; nothing was sent"
            )
        if is_over and not record.has_ended:
            raise TransactionRefused(
                f"task {hexed(task_id)} is {record.phase}; "
                "the command needs a task that has ended; nothing was sent"
            )
        if only_in is not None and record.phase != only_in and not _is_turned_down(record):
            raise TransactionRefused(
                f"task {hexed(task_id)} is {record.phase}; "
                f"the command needs a task that is {only_in}; nothing was sent"
            )
        if record.requester != key.address:
            owner = format_address(record.requester)
            raise ConfigError(f"the task belongs to {owner}; sign with that account's key (--key or --home)")
        if tell is not None:
            tell(client, record)
        shown = {**what, "task": f"{hexed(task_id)} ({record.phase})"}
        receipt = send(client, key, kind, payload, shown, yes=yes)
        record = record_of(client, task_id)
    answer = {
        "task": hexed(task_id),
        "phase": record.phase,
        "transaction": receipt.transaction_hash,
        "height": receipt.block.height,
    }
    show_fields(answer, as_json=as_json)
