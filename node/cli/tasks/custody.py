"""``dekube task custody`` and ``receipt``, and demands on custodians: what a requester does about its outputs."""

from __future__ import annotations

from typing import Any, Final

import click

from node.cli.arguments import TASK, WholeNumber
from node.cli.confirm import send, yes_option
from node.cli.output import counted, json_option, show, show_amount, show_fields, show_rows, show_time
from node.cli.session import Session, reading_options, session_options
from node.cli.tasks.watch import record_of, say
from rpc.client import Client, TransactionRefused
from rpc.client.core import hexed
from rpc.client.results import Custody, Task
from state.primitives.address import format_address
from state.primitives.codec import Value
from state.primitives.errors import ConfigError
from state.primitives.keys import SecretKey
from tasks.custody.chunks import chunk_proof_to_value
from tasks.custody.keys import derive_key, key_proof_to_value, window_key_name
from tasks.custody.sealed import OutputIsGarbage, check_task_key, task_key_of
from tasks.ledger.custody_records import INPUT_WINDOW
from tasks.ledger.custody_transitions import DEMAND_CUSTODY, END_CUSTODY, REVEAL_GARBAGE
from tasks.ledger.group_records import seat_task
from tasks.spec import decode_spec

__all__ = ["custody", "demand_of_custodian", "has_custody", "own_record", "receipt", "show_garbage"]

DEMAND_MARGIN: Final = 2
"""A demand offers so many times what it costs at the present base fee; only what is due is locked."""
_COLUMNS: Final = ("window", "phase", "kept by", "bond", "demands", "until", "demanded")


def has_custody(client: Client) -> bool:
    """Tell whether the chain has custody."""
    return int(client.call("dekube_genesis")["parameters"].get("tasks.custody_copies", 0)) > 0


def told_of(number: int) -> str:
    """Return what is in custody under a number, in words."""
    return "the data set" if number == INPUT_WINDOW else f"the output of window {number}"


def kept_windows(client: Client, record: Task) -> list[tuple[int, str, Custody]]:
    """Return the windows of a task whose outputs are in custody, with their phases."""
    found = []
    for window in client.task_windows(record.id):
        kept = client.custody(record.id, window.number)
        if kept is not None:
            found.append((window.number, window.phase, kept))
    return found


@click.command()
@reading_options
@click.argument("task_id", type=TASK, metavar="TASK")
@json_option
def custody(session: Session, task_id: bytes, as_json: bool) -> None:
    """Show who keeps a task's data set and outputs, until when, and what is demanded.

    \b
    Example:
      dekube task custody 0xTASK
    """
    with session.client() as client:
        record = record_of(client, task_id)
        terms = client.custody_terms(task_id)
        kept = [] if terms is None else kept_windows(client, record)
        one_input = None if terms is None else client.custody(task_id, INPUT_WINDOW)
    if as_json:
        show(
            {
                "task": hexed(task_id),
                "terms": None if terms is None else terms.document,
                "input": None if one_input is None else one_input.document,
                "windows": [{"window": number, **found.document} for number, _, found in kept],
            }
        )
        return
    if terms is None:
        click.echo("The requester asked for no custody.")
        return
    public = "public" if terms.is_public else "private: only who has the task's key can read them"
    click.echo(f"Outputs of {counted(terms.windows, 'window')}, {public}. Demands so far: {terms.demands}.")
    rows: list[dict[str, Any]] = []
    listed: list[tuple[str, Custody]] = [(str(number), found) for number, _, found in kept]
    for name, found in [*([("data set", one_input)] if one_input is not None else []), *listed]:
        asked = found.demand
        head = {
            "window": name,
            "phase": found.phase,
            "until": show_time(found.until_ms) if found.until_ms else "",
            "demanded": "" if asked is None else f"{asked.kind} of {format_address(asked.custodian)}",
        }
        keepers = [
            {
                "kept by": format_address(keeper.address),
                "bond": show_amount(keeper.bond) if keeper.bond else "the worker's bond",
                "demands": f"{keeper.demands}{', one failed' if keeper.failed else ''}",
            }
            for keeper in found.custodians
        ]
        rows += [head | (keepers[0] if keepers else {}), *keepers[1:]]
    show_rows(rows, _COLUMNS, as_json=False)


@click.command()
@session_options
@click.argument("task_id", type=TASK, metavar="TASK")
@click.option("--window", type=WholeNumber(0), help="Only this window. Default: all final windows.")
@yes_option
@json_option
def receipt(session: Session, task_id: bytes, window: int | None, yes: bool, as_json: bool) -> None:
    """Sign that you have a task's outputs, so that their custody ends.

    Custodians are paid for the time so far. The rest of what is locked for custody is refunded. Nobody must
    keep the outputs after that: fetch them first.

    \b
    Example:
      dekube task receipt 0xTASK
    """
    key = session.key()
    hashes = []
    with session.client() as client:
        record = own_record(client, task_id, key)
        numbers = [
            number
            for number, phase, kept in kept_windows(client, record)
            if window in (None, number) and phase == "final" and kept.phase == "kept"
        ]
        if not numbers:
            raise TransactionRefused("no output of a final window is in custody; nothing was sent")
        told = ", ".join(map(str, numbers))
        for number in numbers:
            what = {
                "does": "ends the custody of an output: nobody must keep it then",
                "task": hexed(task_id),
                "window": f"{number} (of {told})",
            }
            done = send(client, key, END_CUSTODY, [task_id, number], what, yes=yes or number != numbers[0])
            hashes.append(done.transaction_hash)
    show_fields({"task": hexed(task_id), "windows": numbers, "transactions": hashes}, as_json=as_json)


def show_garbage(
    client: Client, key: SecretKey, task_id: bytes, window: int | None, found: OutputIsGarbage, *, yes: bool
) -> None:
    """Ask to show that the output of a window, by default the last final one, is garbage; and show it."""
    record = record_of(client, task_id)
    numbers = [number for number, phase, _ in kept_windows(client, record) if phase == "final"]
    number = window if window is not None else max(numbers, default=-1)
    terms = client.custody_terms(task_id)
    if number not in numbers or terms is None:
        say("The output is garbage, and its custody is over: nothing can be shown.")
        return
    first = record if record.group is None else record_of(client, seat_task(record.group, 0))
    spec = decode_spec(bytes.fromhex(str(first.document["spec"]["raw"]).removeprefix("0x")))
    task_key, name = task_key_of(key.secret, spec), window_key_name(number)
    path = check_task_key(task_key, terms.key_root, terms.inputs, terms.windows).proof(name)
    payload: list[Value] = [
        task_id, number, derive_key(task_key, name), key_proof_to_value(path), chunk_proof_to_value(found.chunk),
    ]  # fmt: skip
    what = {
        "does": f"shows that the output of window {number} is garbage; the key of that window becomes public",
        "task": hexed(task_id),
    }
    send(client, key, REVEAL_GARBAGE, payload, what, yes=yes)


def own_record(client: Client, task_id: bytes, key: SecretKey) -> Task:
    """Return a task of the account of ``key``. Raises ConfigError for another one."""
    record = record_of(client, task_id)
    if record.requester != key.address:
        owner = format_address(record.requester)
        raise ConfigError(f"the task belongs to {owner}; sign with that account's key (--key or --home)")
    return record


def demand_of_custodian(
    session: Session, task_id: bytes, amount: int | None, window: int | None, custodian: bytes | None, yes: bool,
    as_json: bool,
) -> None:  # fmt: skip
    """Demand an output, or the input, of a machine that keeps it.

    Raises TransactionRefused before anything is sent.
    """
    key = session.key()
    with session.client() as client:
        record = own_record(client, task_id, key)
        number, kept = _demandable(client, record, window)
        if custodian is None:
            custodian = min(kept.custodians, key=lambda keeper: (keeper.failed, keeper.demands)).address
        keeper = next((keeper for keeper in kept.custodians if keeper.address == custodian), None)
        if keeper is None:
            raise TransactionRefused(
                f"{format_address(custodian)} does not keep {told_of(number)}; nothing was sent"
            )
        kind = "a delivery to a drawn machine" if keeper.demands else "a chunk on chain"
        offered = amount or DEMAND_MARGIN * _demand_price(client, kept, is_delivery=keeper.demands > 0)
        what = {
            "does": f"demands {kind} of {format_address(custodian)}",
            "task": hexed(task_id),
            "of": told_of(number),
            "locks": f"at most {show_amount(offered)}; it comes back if the demand brings nothing",
        }
        done = send(client, key, DEMAND_CUSTODY, [task_id, number, custodian, offered], what, yes=yes)
    answer = {
        "task": hexed(task_id),
        **({"input": True} if number == INPUT_WINDOW else {"window": number}),
        "custodian": format_address(custodian),
        "kind": "delivery" if keeper.demands else "chunk",
        "transaction": done.transaction_hash,
        "height": done.block.height,
    }
    show_fields(answer, as_json=as_json)
    if not as_json and number == INPUT_WINDOW:
        say("`dekube task custody` shows the answer; after a delivery one more machine has the data set.")
    elif not as_json:
        say("`dekube task custody` shows the answer; after a delivery `dekube task result` fetches it.")


def _demandable(client: Client, record: Task, window: int | None) -> tuple[int, Custody]:
    if window == INPUT_WINDOW:
        found = client.custody(record.id, INPUT_WINDOW)
        kept = [] if found is None else [(INPUT_WINDOW, found)]
    else:
        kept = [(number, one) for number, _, one in kept_windows(client, record) if window in (None, number)]
    if not kept:
        what = "the data set is not" if window == INPUT_WINDOW else "no such output is"
        raise TransactionRefused(f"{what} in custody; nothing was sent")
    number, found = kept[-1]
    if found.phase == "closing":
        raise TransactionRefused(f"the custody of {told_of(number)} is over; nothing was sent")
    if found.phase != "kept" or not found.custodians:
        raise TransactionRefused(f"{told_of(number)} is not kept yet; nothing was sent")
    if found.demand is not None:
        raise TransactionRefused(f"a demand of {told_of(number)} is not over yet; nothing was sent")
    return number, found


def _demand_price(client: Client, kept: Custody, *, is_delivery: bool) -> int:
    """Return what a demand costs at the present base fee (market.md 11.6)."""
    from billing.prices import share_up
    from tasks.ledger.custody import ANSWER_GAS, GAS_MARGIN, GIB

    parameters = client.call("dekube_genesis")["parameters"]
    least = int(parameters["tasks.custody_fee_min"])
    if is_delivery:
        price = max(least, kept.size_bytes * int(parameters["tasks.custody_delivery_price_per_gib"]) // GIB)
        return price + share_up(int(kept.bond), int(parameters["tasks.custody_stake_bps"]))
    return max(least, GAS_MARGIN * ANSWER_GAS * client.quote().base_fee_next)
