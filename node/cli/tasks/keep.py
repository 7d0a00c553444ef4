"""``dekube task keep``: finishes what an interrupted ``task create`` has left undone.

Each step of ``create`` stands on chain or in the node's store. So the command looks at what there is, and does the
rest in the same order. It may be repeated.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from node.cli.arguments import TASK, PathName, WholeNumber
from node.cli.blobs import show_progress
from node.cli.confirm import yes_option
from node.cli.option_conflicts import not_with, only_with
from node.cli.options import confirm_at_terminal
from node.cli.output import json_option, show_amount, show_fields
from node.cli.session import Session, session_options
from node.cli.tasks.adapters import rows_of, tuned_of
from node.cli.tasks.custody import own_record
from node.cli.tasks.job_file import read_job
from node.cli.tasks.keeping import CustodyAsk, check_node, plain_dataset, share_out
from node.cli.tasks.kept_input import KeptInput, commitment_of, input_price
from node.cli.tasks.private import KeptContainer
from node.cli.tasks.watch import say
from node.market.posting import DIGITS_BLOB, DIGITS_FACTS, put_digits_of
from node.market.private_jobs import INPUTS, PrivateJob, make_private, put_private
from rpc.client import Client, TransactionRefused
from rpc.client.core import hexed
from rpc.client.jobs import blobs_of, make_job
from rpc.client.results import Task
from rpc.client.stores import is_remote
from state.primitives.errors import ConfigError
from state.primitives.keys import SecretKey
from tasks.custody.chunks import BlobCommitment
from tasks.custody.keys import public_key_root
from tasks.custody.shares import HOLDERS_MAX
from tasks.engines.builtin_datasets import make_dataset
from tasks.kinds.container import ContainerPart, SealTerms
from tasks.ledger.custody_records import INPUT_WINDOW
from tasks.spec import JobSpec, container_of, decode_spec

if TYPE_CHECKING:
    from rpc.client.making import MadeJob

__all__ = ["keep"]


class _Job(NamedTuple):
    """A posted job: what its requester committed to, or has to. ``private`` is None for a public one."""

    raw: bytes
    spec: JobSpec
    private: PrivateJob | None
    key_root: bytes
    commitment: BlobCommitment


@only_with(("--threshold",), "--holders")
@not_with(("--dataset",), "--file")
@click.command()
@session_options
@click.argument("task_id", type=TASK, metavar="TASK")
@click.option("--dataset", type=PathName(), metavar="FILE", help="The plain data set, if the task's is in a file.")
@click.option("--file", "-f", "job_file", type=PathName(), metavar="FILE",
              help="The job file (YAML) that the task was made of.")  # fmt: skip
@click.option("--keep-input", "keeps_input", is_flag=True,
              help="Have drawn machines keep the data set. --holders implies it.")  # fmt: skip
@click.option("--holders", default=0, show_default=True, type=WholeNumber(0, HOLDERS_MAX),
              help="Machines that keep shares of a private task's key, or a container.")  # fmt: skip
@click.option("--threshold", type=WholeNumber(1, HOLDERS_MAX),
              help="Shares that make the key. Default: more than half.")  # fmt: skip
@yes_option
@json_option
def keep(
    session: Session, task_id: bytes, dataset: Path | None, job_file: Path | None, keeps_input: bool, holders: int,
    threshold: int | None, yes: bool, as_json: bool,
) -> None:  # fmt: skip
    """Finish the custody of a task whose creation was interrupted.

    The command puts the data set into the node again. It asks for custody that is missing, and waits for
    receipts. With --holders it shares the key again. What stands already is not repeated.

    Of a container the machines keep mounts, checkpoints and results. They keep shares of its key, if it has
    one. With --file its mounts are brought again, unless they are sealed.

    \b
    Examples:
      dekube task keep 0xTASK
      dekube task keep 0xTASK --keep-input --dataset digits.cbor
      dekube task keep 0xTASK --holders 3 -f finetune.yaml
    """
    key = session.key()
    if holders and (threshold or 1) > holders:
        raise click.BadParameter("more shares than --holders", param_hint="--threshold")
    with session.client() as client:
        record = own_record(client, task_id, key)
        if record.has_ended:
            raise TransactionRefused(f"task {hexed(task_id)} has ended ({record.phase}); nothing was sent")
        raw = bytes.fromhex(str(record.document["spec"]["raw"]).removeprefix("0x"))
        if decode_spec(raw).is_metered:
            if keeps_input or dataset is not None:
                raise click.UsageError("a container has no data set: --holders keep what it reads")
            _keep_container(session, client, record, job_file, holders, threshold, as_json=as_json)
            return
        made = None if job_file is None else _made_again(session, client, decode_spec(raw), job_file)
        job = _job_of(raw, key, dataset, made)
        control = check_node(session, key) if job.private is not None else None
        if holders and control is None:
            raise ConfigError("the task is public: it has no key to share; use --keep-input")
        _bring(session, client, job, control, dataset, made)
        steps = _missing(client, record, key, job, keeps_input=keeps_input or holders > 0)
        if steps.locks and not yes:
            say(f"Custody of task {hexed(task_id)} locks {show_amount(steps.locks)}.")
            confirm_at_terminal("Send it?")
        steps.do()
        answer: dict[str, Any] = {"task": hexed(task_id), "locked": str(steps.locks)}
        if control is not None and holders:
            answer["holders"] = share_out(control, task_id, threshold or holders // 2 + 1, holders)
    if not as_json:
        answer["locked"] = show_amount(steps.locks)
    show_fields(answer, as_json=as_json)


def _keep_container(
    session: Session, client: Client, record: Task, file: Path | None, holders: int, threshold: int | None, *,
    as_json: bool,
) -> None:  # fmt: skip
    """Bring the mounts of a container again, and have machines keep it. Raises ConfigError, UsageError."""
    spec, key = decode_spec(bytes.fromhex(str(record.document["spec"]["raw"]).removeprefix("0x"))), session.key()
    part = container_of(spec)
    if file is None and not holders:
        raise click.UsageError("nothing to do: --holders has machines keep the container, -f brings its mounts")
    if file is not None:
        if part.is_private:
            raise ConfigError("sealed mounts cannot be made a second time: the node that posted the task has them")
        found = read_job(file, session.home)
        [request] = [found.request_of(member) for step in found.steps for member in step.members][:1]
        made = make_job(
            request, seed=spec.seed, max_price_per_tera_unit=spec.max_price_per_tera_unit, match_ms=spec.match_ms
        )
        if not found.is_single or made.spec._replace(part=_with_seal(made.spec, part.sealed)) != spec:
            raise ConfigError(f"{file}: the task was made of another job")
        client.put_contents(blobs_of(made), control=session.control(), key=key)
    answer: dict[str, Any] = {"task": hexed(record.id)}
    if holders:
        kept = KeptContainer(session, client, key, spec, holders, threshold)
        answer |= kept.share(record.id)
    show_fields(answer, as_json=as_json)


def _with_seal(spec: JobSpec, sealed: SealTerms | None) -> ContainerPart:
    """Return a container as one with these secrets: those of a file are sealed anew each time."""
    return container_of(spec)._replace(sealed=sealed)


class _Steps(NamedTuple):
    """What is missing: what it locks, and how it is done."""

    locks: int
    do: Callable[[], None]


def _missing(client: Client, record: Task, key: SecretKey, job: _Job, *, keeps_input: bool) -> _Steps:
    """Return what custody of a task lacks. Raises TransactionRefused if it is too late for that."""
    terms, kept = client.custody_terms(record.id), client.custody(record.id, INPUT_WINDOW)
    if terms is not None and terms.key_root != job.key_root:
        raise TransactionRefused(
            f"the custody of task {hexed(record.id)} is of other keys than this account's for the job; "
            "`dekube task cancel` ends it"
        )
    is_open = record.phase == "matching"
    if terms is None and not is_open:
        raise TransactionRefused(
            f"task {hexed(record.id)} is {record.phase}: custody can be asked for only before it has a worker; "
            "`dekube task cancel` ends it"
        )
    if keeps_input and kept is None and not is_open:
        say("A worker has the task: its data set cannot be put into custody any more. This node must stay on.")
        keeps_input = False
    quoted, asked = client.quote_task(job.raw, task=record.id), None
    if keeps_input or kept is not None:
        asked = KeptInput(client, key, job.commitment, input_price(quoted))
    locks = 0 if asked is None or kept is not None else asked.amount
    if terms is None:
        inputs = INPUTS if job.private is not None else 0
        ask = CustodyAsk(client, key, job.key_root, inputs, quoted.custody, asked)
        return _Steps(locks + quoted.custody, partial(ask.finish, record.id))
    return _Steps(locks, partial(asked.finish, record.id) if asked is not None else lambda: None)


def _made_again(session: Session, client: Client, spec: JobSpec, file: Path) -> MadeJob:
    """Return the job that a file makes with the terms of a posted one. Raises ConfigError if it is another job."""
    found = read_job(file, session.home)
    for request in (found.request_of(member) for step in found.steps for member in step.members):
        if is_remote(request):
            request = client.fetch_blobs(request, control=session.control(), progress=show_progress("Fetching"))
        made = make_job(
            request, seed=spec.seed, max_price_per_tera_unit=spec.max_price_per_tera_unit, match_ms=spec.match_ms,
            data=rows_of(client, request, session.control()), tuned=tuned_of(client, request, session.control()),
            verifiers=spec.verifiers,
        )  # fmt: skip
        same = made.spec.dataset._replace(blob=spec.dataset.blob)
        if made.spec.changed(dataset=same) == spec:  # a private job names the encrypted rows
            return made
    raise ConfigError(f"{file}: the task was made of another job")


def _job_of(raw: bytes, key: SecretKey, file: Path | None, made: MadeJob | None) -> _Job:
    """Return a posted job with its plain data set looked at. Raises ConfigError if the file is another one's."""
    spec = decode_spec(raw)
    if made is not None:
        content = made.rows
    elif file is None and spec.dataset.root == DIGITS_FACTS.root:
        content = make_dataset("digits").encode()
    else:
        content = plain_dataset(spec, file)
    private = make_private(key, spec, content)
    if private.spec.dataset.blob == spec.dataset.blob:
        return _Job(raw, spec, private, private.key_root, private.commitment)
    commitment = commitment_of(key, spec, content, is_private=False)
    return _Job(raw, spec, None, public_key_root(spec.windows), commitment)


def _bring(
    session: Session, client: Client, job: _Job, control: Path | None, file: Path | None, made: MadeJob | None
) -> None:
    """Put the data set, and the model of a file's job, where workers find it; a node has what it had before."""
    if made is not None:
        blobs = blobs_of(made) if job.private is None else (made.model,)
        client.put_contents(blobs, control=session.control(), key=session.key())
    if job.private is not None:
        assert control is not None
        put_private(client, job.private, control)
    elif made is not None:
        pass
    elif job.spec.dataset.blob == DIGITS_BLOB:
        put_digits_of(client, job.raw, control=session.control(), key=session.key())
    elif file is not None:
        client.upload(file, control=session.control(), key=session.key())
