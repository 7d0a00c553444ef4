"""Posting a task from this machine: the job with its data set in a node's blob store, and its life in words."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

from rpc.client import Client, TaskUpdate
from rpc.client.blobs import Progress, blob_of_file
from rpc.client.results import Custody, Task
from state.primitives.address import format_address
from state.primitives.errors import DekubeError
from state.primitives.hashing import HASH_BYTES
from state.primitives.keys import SecretKey
from tasks import spec as specs
from tasks.engines.builtin_datasets import make_dataset
from tasks.engines.datasets import Dataset
from tasks.ledger.custody_records import INPUT_WINDOW
from tasks.ledger.group_records import seat_spec
from tasks.ledger.screening import DatasetFacts, start_root

__all__ = [
    "DIGITS_BLOB",
    "DIGITS_FACTS",
    "NEXT",
    "Job",
    "follow",
    "make_digits_job",
    "next_of",
    "put_digits_of",
    "say_input",
    "say_update",
    "start_roots",
    "task_transactions",
    "wait_input",
]


DIGITS_BLOB: Final = bytes.fromhex("8574b874cb7592d4b45519eca65749d775da43d1ec43c8ff76477adaf42cfa95")
"""The content address of the digits data set: it is made only for a job that trains on it."""
DIGITS_FACTS: Final = DatasetFacts(
    120668, 64, 10, 1797, 1437, 4,
    bytes.fromhex("fb6be493eefef2e6d77521b4e2a94eda824ef0f7421054e742047b3fedd10bf2"), "",
)  # fmt: skip
"""What it is as a data set."""


INPUT_POLL_S: Final = 1.0
INPUT_PATIENCE_S: Final = 4 * 3600.0
"""By then the chain has drawn all custodians that it draws, unless it stands still."""


class Job(NamedTuple):
    """A job specification and the content address of its data set."""

    spec: specs.JobSpec
    dataset_blob: bytes


def make_digits_job(
    client: Client, *, control: Path | None, key: SecretKey | None, seed: bytes, max_price_per_tera_unit: int,
    progress: Progress | None = None, **sizes: Any,
) -> Job:  # fmt: skip
    """Put the digits data set where workers find it and return the job that trains a classifier on it.

    That is the blob store of the node at ``control``, or of a gateway's node, signed for by ``key``; with neither
    it goes nowhere, for a job that is only priced. ``sizes`` are those of ``tasks.recipes.digits_spec``.

    Raises UnsupportedJob for what the engine cannot train, ConfigError without the extra ``datasets``,
    ControlUnavailable when the node does not run, ClientError when no gateway takes it.
    """
    from tasks.recipes import digits_spec  # with NumPy, which what only asks a gateway does without

    dataset, blob = _put_digits(client, control, key, progress)
    spec = digits_spec(
        dataset, dataset_blob=blob, seed=seed, max_price_per_tera_unit=max_price_per_tera_unit, **sizes
    )
    return Job(spec, blob)


def start_roots(spec: specs.JobSpec, members: int) -> list[bytes]:
    """Return the states that the members of a group start from, after seat 0: each has a seed of its own."""
    if spec.start() is not None:  # the state of another task, whatever the seed
        return [spec.init_root] * (members - 1)
    jobs = (seat_spec(spec, seat, bytes(HASH_BYTES)) for seat in range(1, members))
    return [start_root(job.plan()) for job in jobs]


def put_digits_of(
    client: Client, raw: bytes, *, control: Path | None, key: SecretKey, progress: Progress | None = None
) -> None:
    """Put the digits data set where workers find it, if the job of the canonical bytes ``raw`` trains on it.

    A job that was only priced, and kept in a file, names it too. Errors are as of ``make_digits_job``.
    """
    if specs.decode_spec(raw).dataset.blob == DIGITS_BLOB:
        _put_digits(client, control, key, progress)


def _put_digits(
    client: Client, control: Path | None, key: SecretKey | None, progress: Progress | None
) -> tuple[Dataset, bytes]:
    dataset = make_dataset("digits")
    # Beside the control socket: the node, which may be in another container, opens the file by its path.
    place = None if control is None else control.parent
    with tempfile.NamedTemporaryFile(dir=place, suffix=".dataset") as file:
        file.write(dataset.encode())
        file.flush()
        path = Path(file.name)
        if control is None and key is None:
            return dataset, blob_of_file(path).blob_id
        return dataset, client.upload(path, control=control, key=key, progress=progress)


def say_input(kept: Custody) -> str:
    """Return how far the custody of a data set is, in words."""
    signed, drawn = len(kept.custodians), len(kept.document["drawn"])
    match kept.phase:
        case "kept":
            return f"custody of the data set stands, signed by {signed}: its requester may be offline"
        case "signing":
            return f"{signed} of {signed + drawn} drawn machines signed for the data set: the task waits for them"
        case _:
            return "machines that keep the data set are drawn: the task waits for them"


def wait_input(client: Client, task: bytes, tell: Callable[[str], None]) -> bool:
    """Wait until a task's data set is kept, and say each step. Return whether it is.

    It is not if drawn machines have not signed, or if nobody has asked for it.
    """
    told, deadline = "", time.monotonic() + INPUT_PATIENCE_S
    while (kept := client.custody(task, INPUT_WINDOW)) is not None and time.monotonic() < deadline:
        if (line := say_input(kept)) != told:
            told = line
            tell(f"                  {line}")
        if kept.phase == "kept":
            return True
        time.sleep(INPUT_POLL_S)
    return False


def follow(
    client: Client, task: bytes, say: Callable[[str], None], *, timeout_s: float = 3600.0,
    after: Callable[[TaskUpdate], None] = lambda _update: None,
) -> str:  # fmt: skip
    """Say each change of a task and of its windows as it becomes final; return the phase in which it ended.

    ``after`` gets each update after it was said.

    Raises TaskEnded when it has not within ``timeout_s``.
    """
    phase = ""
    for update in client.follow(task, timeout_s=timeout_s):
        say_update(update, say, next_of_update(client, update))
        after(update)
        phase = update.task.phase
    return phase


NEXT: Final = {
    "matching": "the task waits for a machine (dekube worker list shows who there is)",
    "degraded": "its worker is gone: another one is looked for, and goes on after the last final window",
    "paused": "nobody works on it: `dekube task resume` looks for another machine, and asks those again that "
    "turned the task down, `dekube task cancel` ends it and pays what is proved; it fails by itself when the "
    "pause is over",
}
"""What follows on phases in which a task waits for somebody."""


REPORTED: Final = {
    "job_diverged": "the machine reported that the job diverges: its numbers leave their range, as with too "
    "large a learning rate. Another one is asked; a second such report ends the task and unlocks its coins",
    "job_unfit": "the machine reported that the job does not fit itself: its data set, its start, or the time "
    "that it allows. Another one is asked; `dekube task cancel` unlocks the coins",
    "input_unavailable": "the machine could not have the data set from anybody. Another one is asked; "
    "`dekube blob put` puts a data set there, `dekube task cancel` unlocks the coins",
    "worker_declined": "the machine has no room or no coins for the task. Another one is asked",
    "accept_timeout": "the machine did not answer. Another one is asked",
}
"""What a machine said as it left a task that it had not finished."""
SEARCHING: Final = ("matching", "degraded")


def next_of(client: Client, task: Task, phase: str, reason: str) -> list[str]:
    """Return what follows on a phase in which a task waits for somebody: a line each, none where it does not."""
    lines = [REPORTED[reason]] if phase in SEARCHING and reason in REPORTED else []
    if claim := task.document.get("claim"):
        lines.append(f"its worker proved that the data set is not the one that the job names: {claim['text']}")
    if phase in NEXT:
        lines.append(NEXT[phase])
    if phase in SEARCHING and task.phase in SEARCHING:
        with suppress(DekubeError, KeyError, TypeError, ValueError):  # the gateway does not say
            raw = bytes.fromhex(str(task.document["spec"]["raw"]).removeprefix("0x"))
            kept = client.custody(task.id, INPUT_WINDOW) if phase == "matching" else None
            if kept is not None:
                lines.append(say_input(kept))
            found = client.quote_task(raw, task=task.id)
            lines += [item.text for item in (*found.objections, *found.notices)]
    return lines


def next_of_update(client: Client, update: TaskUpdate) -> list[str]:
    """Return what follows for the requester on the last change of an update; nothing where nothing does."""
    if not update.changes:
        return []
    last = update.changes[-1]
    return next_of(client, update.task, last.after, last.reason)


def say_update(update: TaskUpdate, say: Callable[[str], None], what_follows: Sequence[str]) -> None:
    """Say what is new of a task, a line each; ``what_follows`` is said after its changes."""
    for change in update.changes:
        actor = f" by {format_address(change.actor)}" if change.actor and any(change.actor) else ""
        say(f"  height {change.height:>5}  {change.after.upper():<10} {change.reason}{actor}")
    for line in what_follows:
        say(f"                  {line}")
    for window in update.windows:
        say(f"                  window {window.number} {window.phase}{_detail(window.document)}")


def _detail(window: Any) -> str:
    match window["phase"]:
        case "proved":
            proof = window["proof"]
            steps = f"steps {proof['step_from']}-{proof['step_to']}"
            return f": {steps}, segments {proof['segment_root'][:18]}..."
        case "sealing" | "jury_sealing":
            who = window["jurors"] if window["phase"] == "jury_sealing" else window["verifiers"]
            does = "1 verifier re-runs" if len(who) == 1 else f"{len(who)} verifiers re-run"
            return f": {does} segment{'s' * (len(window['sampled']) != 1)} {window['sampled']}"
        case _:
            return ""


def task_transactions(client: Client, task: bytes) -> list[dict[str, Any]]:
    """Return every transaction that names the task, in the order of the chain."""
    record = client.task(task)
    if record is None:
        return []
    found: list[dict[str, Any]] = []
    for height in range(record.created_height, min(record.changed_height, client.head().at.height) + 1):
        block = client.call("dekube_getBlock", block=height, transactions=True)["block"]
        for transaction in block["transactions"]:
            creates = height == record.created_height and transaction["from"] == format_address(record.requester)
            if task.hex() in transaction["raw"] or (creates and transaction["kind_name"] == "create_task"):
                found.append({**transaction, "height": height})
    return found
