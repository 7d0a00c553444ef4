"""``dekube workflow``, and ``dekube task create`` of a file with several tasks: an array, or steps."""

from __future__ import annotations

import hashlib
import secrets
import shlex
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from node.cli.commands import CommandGroup, next_command
from node.cli.confirm import yes_option
from node.cli.options import confirm_at_terminal
from node.cli.output import counted, json_option, show, show_amount, show_fields, show_rows
from node.cli.prices import PER_TERA_UNIT
from node.cli.session import Session, reading_options, session_options, wallet_options
from node.cli.tasks.adapters import rows_of, tuned_of
from node.cli.tasks.watch import WATCH_TIMEOUT_S, say
from node.cli.tasks.webhook_options import webhook_options
from node.workflows.notices import Webhook
from node.workflows.progress import MemberState, end_of, look, summary
from node.workflows.records import WorkflowRecord, WorkflowStore
from rpc.client import Client, ClientError, TaskEnded, TransactionRefused
from state.primitives.errors import ConfigError
from state.primitives.keys import SecretKey

if TYPE_CHECKING:
    from node.workflows.posting import Workflow
    from tasks.requests.reading import JobFile

__all__ = ["create_all", "quote_all", "workflow"]

POLL_S: Final = 2.0
_COLUMNS: Final = ("job", "varied", "phase", "windows", "loss", "paid", "task")


def _store(session: Session) -> WorkflowStore:
    return WorkflowStore(session.home.root / "workflows")


def _record(session: Session, name: str) -> WorkflowRecord:
    record = _store(session).find(name)
    if record is None:
        raise ConfigError(f"no workflow {name[:40]!r} here; `dekube workflow list` shows them")
    return record


def _begin(
    store: WorkflowStore, job: JobFile, file: Path, name: str, account: bytes, chain_id: int
) -> WorkflowRecord:  # fmt: skip
    """Return the record of a file: that of an earlier, interrupted command, or a new one. Raises ConfigError."""
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    record = store.find(name)
    if record is None:
        seed = (
            secrets.token_bytes(32) if job.terms.seed is None else hashlib.sha256(job.terms.seed.encode()).digest()
        )
        return WorkflowRecord(name, str(file.absolute()), digest, account.hex(), chain_id, seed.hex())
    if record.digest != digest:
        raise ConfigError(
            f"{name} is the workflow of another file or of an earlier version of it ({record.file}); --name NEW "
            "posts this one, `dekube workflow cancel` ends the earlier one"
        )
    if (record.account, record.chain_id) != (account.hex(), chain_id):
        raise ConfigError(f"{name} was posted with another account or on another chain; --name NEW posts it again")
    return record


def create_all(
    session: Session, job: JobFile, file: Path, name: str | None, *, anyway: bool, yes: bool, watches: bool,
    as_json: bool,
) -> None:  # fmt: skip
    """Post all tasks of a file, each once; steps wait for those that they use."""
    from node.workflows.posting import Workflow

    key, store = session.key(), _store(session)
    name = name or file.stem
    with session.client() as client, store.locked(name):
        chain = client.chain()
        record = _begin(store, job, file, name, key.address, chain.chain_id)
        all_of_it = Workflow(client, key, store, record, job, session.control(), anyway, say, tuned_of, rows_of)
        if all_of_it.is_posted:
            say(f"All tasks of {name} were posted before; --name NEW posts them again.")
        else:
            _ask(all_of_it, job, yes=yes)
        for step in job.steps:
            if any(not member.is_created for member in record.of_step(step.name)):
                if step.after:
                    say(f"Job {step.name} waits for {', '.join(step.after)}.")
                    all_of_it.wait_settled(step.after)
                all_of_it.post(step)
        if not watches:
            if as_json:
                show(_told(look(client, record), record))
            else:
                click.echo(f"\nFollow it: {next_command('workflow', 'watch', name)}")
            return
        _follow(client, record, as_json=as_json)


def _ask(all_of_it: Workflow, job: JobFile, *, yes: bool) -> None:
    """Show what will be posted, and ask for confirmation."""
    show_fields(_planned(all_of_it, job), as_json=False, title="To be posted", err=True)
    if not yes:
        confirm_at_terminal("Post them?")


def _planned(all_of_it: Workflow, job: JobFile) -> dict[str, Any]:
    """Return what each step comes to; the price of a step that waits for another follows later."""
    told = {}
    for step in job.steps:
        share = all_of_it.share_of(step.name)
        parts = [counted(len(step.members), "task")]
        if share is not None:
            parts.append(f"{show_amount(share)} at most, fees included")
        if step.after:
            parts.append(f"after {', '.join(step.after)}")
        else:
            parts.append(f"{show_amount(all_of_it.plan(step).price)} {PER_TERA_UNIT} at most")
        told[step.name or "array"] = "; ".join(parts)
    return told


def quote_all(session: Session, job: JobFile, file: Path, *, as_json: bool) -> None:
    """Show what posting a file of several tasks would come to; nothing is sent or kept."""
    from node.workflows.posting import Workflow

    key = SecretKey(b"\x01" * 32)  # signs nothing here
    record = WorkflowRecord(file.stem, str(file), "", "", 0, "00" * 32)
    with session.client() as client:
        show_fields(
            _planned(Workflow(client, key, _store(session), record, job), job), as_json=as_json, title="Quote"
        )


def _told(states: Sequence[MemberState], record: WorkflowRecord) -> dict[str, Any]:
    return {
        "workflow": record.name,
        "phase": end_of(states),
        "cancelled": record.is_cancelled,
        "tasks": [
            {
                "job": state.member.step,
                "varied": state.member.name,
                "task": f"0x{state.member.task}" if state.member.task else None,
                "phase": state.phase,
                "final_windows": state.final,
                "windows": state.windows,
                "loss": state.loss,
                "paid": None if state.paid is None else str(state.paid),
            }
            for state in states
        ],
    }


def _show(states: Sequence[MemberState], record: WorkflowRecord) -> None:
    rows = [
        {
            "job": state.member.step or None,
            "varied": state.member.name or None,
            "phase": state.phase,
            "windows": f"{state.final}/{state.windows}",
            "loss": None if state.loss is None else f"{state.loss:.4f}",
            "paid": None if state.paid is None else show_amount(state.paid),
            "task": f"0x{state.member.task}" if state.member.task else None,
        }
        for state in states
    ]
    columns = [name for name in _COLUMNS if any(row[name] is not None for row in rows)]
    show_rows(rows, columns, as_json=False, title=f"Workflow {record.name}")


def _follow(client: Client, record: WorkflowRecord, *, as_json: bool, webhook: Webhook | None = None) -> None:
    """Follow all tasks to their end; ``webhook`` tells of each. Raises TaskEnded unless all settle."""
    deadline, told, states = time.monotonic() + WATCH_TIMEOUT_S, "", list[MemberState]()
    sent: set[str] = set()
    while not end_of(states):
        if time.monotonic() > deadline:
            raise TaskEnded(f"workflow {record.name} has not ended in time")
        states = look(client, record, states)
        if (line := summary(states)) != told:
            told = line
            say(f"  {line}", err=as_json)
        for state in states:
            if webhook is not None and state.has_ended and state.member.task not in sent:
                webhook.task_ended(client, bytes.fromhex(state.member.task))
                sent.add(state.member.task)
        if not end_of(states):
            time.sleep(POLL_S)
    if as_json:
        show(_told(states, record))
    else:
        _show(states, record)
    if (end := end_of(states)) != "settled":
        raise TaskEnded(f"workflow {record.name} ended {end}", phase=end)


@click.group(cls=CommandGroup)
def workflow() -> None:
    """Follow and cancel the tasks of a file with an array or steps.

    \b
    Try it on a test network:
      dekube templates show sweep > sweep.yaml
      dekube task create -f sweep.yaml --watch
      dekube workflow show sweep
    """


@workflow.command(name="list")
@wallet_options
@json_option
def list_(session: Session, as_json: bool) -> None:
    """List the workflows that were posted from this home.

    \b
    Example:
      dekube workflow list
    """
    store = _store(session)
    found = [record for name in store.names() if (record := store.find(name)) is not None]
    rows = [
        {
            "name": record.name,
            "tasks": len(record.members),
            "posted": sum(member.is_created for member in record.members),
            "file": record.file,
        }
        for record in found
    ]
    show_rows(rows, ("name", "tasks", "posted", "file"), as_json=as_json, title="Workflows")


@workflow.command(name="show")
@reading_options
@click.argument("name")
@json_option
def show_(session: Session, name: str, as_json: bool) -> None:
    """Show the tasks of a workflow in one table.

    \b
    Example:
      dekube workflow show sweep
    """
    record = _record(session, name)
    with session.client() as client:
        states = look(client, record)
    if as_json:
        show(_told(states, record))
    else:
        _show(states, record)


@workflow.command()
@reading_options
@click.argument("name")
@webhook_options
@json_option
def watch(
    session: Session, name: str, webhook: Webhook | None, as_json: bool
) -> None:  # fmt: skip
    """Follow a workflow until all its tasks have ended.

    The exit status is 0 if all settle. A failed task makes it 3, an expired one 5, a cancelled one 4.
    If tasks are not posted yet, run `dekube task create -f FILE` again.

    \b
    Example:
      dekube workflow watch sweep
    """
    record = _record(session, name)
    if any(not member.is_created for member in record.members):
        again = f"`dekube task create -f {shlex.quote(record.file)}`"
        raise ConfigError(f"{name} is not posted wholly; {again} goes on with it")
    with session.client() as client:
        _follow(client, record, as_json=as_json, webhook=webhook)


@workflow.command()
@session_options
@click.argument("name")
@yes_option
@json_option
def cancel(session: Session, name: str, yes: bool, as_json: bool) -> None:
    """End all tasks of a workflow early; what is proved is paid, the rest returns.

    No further task of it is posted after that.

    \b
    Example:
      dekube workflow cancel sweep
    """
    key, store = session.key(), _store(session)
    record = _record(session, name)
    if record.account != key.address.hex():
        raise ConfigError(f"{name} was posted with another account; sign with its key (--key or --home)")
    with session.client() as client, store.locked(name):
        open_tasks = [state for state in look(client, record) if state.member.task and not state.has_ended]
        if not yes:
            confirm_at_terminal(f"Cancel {counted(len(open_tasks), 'task')} of {name}?")
        record.is_cancelled = True
        store.save(record)
        cancelled, refused = [], []
        for state in open_tasks:
            try:
                client.cancel_task(key, bytes.fromhex(state.member.task))
                cancelled.append(f"0x{state.member.task}")
            except (ClientError, TransactionRefused) as error:  # it has ended meanwhile, or is being wound up
                refused.append(f"0x{state.member.task}")
                say(f"Note: task 0x{state.member.task}: {error}.")
    show_fields({"workflow": name, "cancelled": cancelled, "refused": refused}, as_json=as_json)
