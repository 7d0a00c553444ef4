"""The client's methods for tasks: post, follow until settled, fetch the result, read the bill."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from rpc.client.api import each, one, send, send_signed
from rpc.client.arguments import (
    check_address,
    check_amount,
    check_data,
    check_hash,
    check_key,
    check_timeout,
)
from rpc.client.blobs import Progress, check_file, download, upload
from rpc.client.block_stream import notifications
from rpc.client.control import ask_node
from rpc.client.core import (
    Call,
    Core,
    DeadlineExceeded,
    Flow,
    Item,
    Pages,
    RunBlocking,
    Stream,
    gather,
    hexed,
    through,
    within,
)
from rpc.client.errors import (
    AnswerMalformed,
    ClientError,
    GatewayUnreachable,
    JobRefused,
    NoResult,
    ResultMismatch,
    TaskEnded,
)
from rpc.client.flow_methods import FlowMethod, StreamMethod
from rpc.client.results import (
    Bill,
    BillLine,
    Custody,
    CustodyTerms,
    Dispute,
    EscrowTotals,
    Group,
    Machine,
    Notification,
    Receipt,
    Task,
    TaskChange,
    TaskQuote,
    Window,
    read_result,
)
from state.primitives.address import ADDRESS_BYTES
from state.primitives.errors import ConfigError, DekubeError
from state.primitives.keys import SecretKey
from state.primitives.transactions import decode_transaction

if TYPE_CHECKING:
    import numpy as np

    from tasks.engines.generating_plan import GeneratingPlan
    from tasks.engines.state import TrainingState
    from tasks.models.row_results import Evaluation
    from tasks.spec import JobSpec

__all__ = [
    "CreatedTask",
    "Places",
    "TaskApi",
    "TaskResult",
    "TaskUpdate",
    "ask_custody_terms",
    "ask_quote",
    "fetch_file",
    "put_file",
    "spec_of",
    "step_of",
]

FETCH_TIMEOUT_S: Final = 600.0
PAGE: Final = 100
"""Items of a page; the maximum that a gateway allows."""
STEPS_SHOWN: Final = 24
"""Steps of kept states that an error names."""


@dataclass(frozen=True)
class CreatedTask:
    """A created task: its ID, the locked amount and the receipt."""

    id: bytes
    locked: int
    receipt: Receipt


@dataclass(frozen=True)
class TaskUpdate:
    """Changes of a task since the last update; its progress is ``task.final_windows`` of ``task.windows``."""

    task: Task
    changes: tuple[TaskChange, ...]
    windows: tuple[Window, ...]
    """Windows that are new or changed their phase."""


@dataclass(frozen=True)
class TaskResult:
    """The trained state after a final window, checked against the root of the proof on chain."""

    task: bytes
    window: Window
    spec: JobSpec
    state: TrainingState
    data: bytes
    """The state's bytes, as the worker stored them."""
    dataset: bytes | None
    """The data set of the job; None if it was not available, or nothing is tested with it."""

    def test(self) -> tuple[int, int]:
        """Return the number of correctly classified test samples, and of all test samples.

        Raises NoResult without the data set, ResultMismatch if it is not the job's data set.
        """
        from tasks.engines.arrays import NumpyArrays
        from tasks.engines.datasets import Dataset
        from tasks.engines.training import Trainer
        from tasks.spec import classifier_plan

        if self.dataset is None:
            raise NoResult("the data set of the job could not be had")
        dataset = Dataset.decode(self.dataset)
        if dataset.root() != self.spec.dataset.root:
            raise ResultMismatch("the data set is not the one that the job names")
        found = Trainer(classifier_plan(self.spec), dataset, NumpyArrays(), self.state).evaluate()
        return found.right, found.samples

    def completions(self) -> list[list[int]]:
        """Return the new tokens of each prompt that is done, in the order of the prompts.

        The first end token is the last of a row. Raises NoResult without the prompts or for another kind of job,
        ResultMismatch if they are not the job's.
        """
        from tasks.engines.generating import completions

        plan, data = self._asked()
        return completions(plan.shape, data, self.state)

    def stops(self) -> list[tuple[str, ...]]:
        """Return the texts that end each row, none where a line had none. Raises as ``completions``."""
        from tasks.engines.generating import stops_in
        from tasks.programs.errors import SourceInvalid

        plan, data = self._asked()
        try:
            return stops_in(plan.shape, data)
        except SourceInvalid as error:
            raise ResultMismatch(str(error)) from None

    def rows(self, *, labelled: bool = True) -> bytes:
        """Return JSON lines with the tokens of each prompt that is done and of its completion, for other jobs.

        With ``labelled`` only completions are trained, or counted. Raises as ``completions``.
        """
        from tasks.engines.generating import completions, prompts_in
        from tasks.models.prompts import continued_rows

        plan, data = self._asked()
        done = completions(plan.shape, data, self.state)
        return continued_rows(prompts_in(plan.shape, data), done, labelled=labelled)

    def _asked(self) -> tuple[GeneratingPlan, Mapping[str, bytes]]:
        """Return the plan of a job that continues prompts, and its prompts. Raises NoResult, ResultMismatch."""
        from tasks.engines.errors import DatasetInvalid
        from tasks.engines.generating_plan import GeneratingPlan
        from tasks.engines.input_blobs import check_tensors, read_rows

        plan = self.spec.plan()
        if not isinstance(plan, GeneratingPlan):
            raise NoResult(f"a job of kind {self.spec.kind} has no completions")
        if self.dataset is None:
            raise NoResult("the prompts of the job could not be had")
        prompts = self.spec.inputs()[0]
        try:
            check_tensors(prompts.tensors, prompts.root, self.dataset)
        except DatasetInvalid as error:
            raise ResultMismatch(f"the prompts are not those that the job names: {error}") from None
        return plan, read_rows(plan.shape, self.dataset)

    def vectors(self) -> np.ndarray:
        """Return the vector of each text that is done, a row of float32 each.

        Raises UnsupportedJob for another kind of job.
        """
        from tasks.models.row_results import vectors_of

        return vectors_of(self.spec, self.state)

    def evaluation(self) -> Evaluation:
        """Return the loss of each row that is done. Raises UnsupportedJob for another kind of job."""
        from tasks.models.row_results import evaluation_of

        return evaluation_of(self.spec, self.state)


# Questions


def ask_quote(core: Core, spec: bytes, *, task: bytes | None = None) -> Flow[TaskQuote]:
    """Return the cost of a task with the job ``spec`` (canonical bytes), and objections to the job.

    With a ``task`` of that job, machines that left it are not counted as free.
    """
    check_data("spec", spec)
    if task is not None:
        check_hash("task", task)
    named = {"spec": hexed(spec)} | ({} if task is None else {"task": hexed(task)})
    return read_result(TaskQuote, (yield from core.call("dekube_quoteTask", **named)))


def _check_job(core: Core, spec: bytes) -> Flow[TaskQuote]:
    """Return the quote of a job without objections. Raises JobRefused.

    The gateway checks the data set, the machines and the initial state of a small model. The initial state of a
    large model is computed here.
    """
    from tasks.ledger.screening import check_start
    from tasks.spec import decode_spec

    quote = yield from ask_quote(core, spec)
    known = [(item.code, item.text) for item in quote.objections]
    here = yield RunBlocking(partial(check_start, decode_spec(spec)))
    known += [(code, text) for code, text in here if code not in dict(known)]
    if known:
        raise JobRefused(known)
    return quote


def ask_task(core: Core, task: bytes) -> Flow[Task | None]:
    """Return a task; its job is in ``document["spec"]``."""
    check_hash("task", task)
    return one(core, Task, "task", "dekube_getTask", task=hexed(task))


def _tasks(
    core: Core, *, phase: str | None = None, requester: bytes | None = None, worker: bytes | None = None
) -> Stream[Task]:
    """Yield tasks, oldest first, optionally of one phase, requester or worker."""
    for name, value in (("requester", requester), ("worker", worker)):
        if value is not None:
            check_address(name, value)
    who = None if requester is None else hexed(requester)
    whose = None if worker is None else hexed(worker)
    return each(core, Task, "dekube_getTasks", phase=phase, requester=who, worker=whose)


def _task_changes(core: Core, task: bytes) -> Stream[TaskChange]:
    """Yield all phase changes of a task."""
    check_hash("task", task)
    return each(core, TaskChange, "dekube_getTaskHistory", task=hexed(task))


def ask_windows(core: Core, task: bytes) -> Stream[Window]:
    """Yield the proved windows of a task."""
    check_hash("task", task)
    return each(core, Window, "dekube_getTaskWindows", task=hexed(task))


def _disputes(core: Core, task: bytes, window: int) -> Stream[Dispute]:
    """Yield the disputes about a window of a task."""
    check_hash("task", task)
    return each(core, Dispute, "dekube_getDisputes", task=hexed(task), window=window)


def _dispute(core: Core, task: bytes, window: int, number: int) -> Flow[Dispute | None]:
    """Return a dispute about a window of a task; None if there is no such number."""
    check_hash("task", task)
    return one(core, Dispute, "dispute", "dekube_getDispute", task=hexed(task), window=window, game=number)


def _custody(core: Core, task: bytes, window: int) -> Flow[Custody | None]:
    """Return the custody of a window's output; None if it has none."""
    check_hash("task", task)
    return one(core, Custody, "custody", "dekube_getCustody", task=hexed(task), window=window)


def ask_custody_terms(core: Core, task: bytes) -> Flow[CustodyTerms | None]:
    """Return the terms of a task's custody; None if its requester asked for none."""
    check_hash("task", task)
    return one(core, CustodyTerms, "terms", "dekube_getCustody", task=hexed(task), window=0)


def _group(core: Core, group: bytes) -> Flow[Group | None]:
    """Return a group of tasks with its seats."""
    check_hash("group", group)
    return one(core, Group, "group", "dekube_getGroup", group=hexed(group))


def _bill(core: Core, task: bytes) -> Flow[Bill]:
    """Return the bill of a task, lines and totals at one height."""
    check_hash("task", task)
    totals: EscrowTotals | None = None
    lines: list[BillLine] = []
    cursor: str | None = None
    pages = Pages("dekube_getBill")
    while totals is None or cursor is not None:
        answer = yield from core.call("dekube_getBill", task=hexed(task), cursor=cursor, limit=100)
        match answer:
            case {"totals": dict() as sums, "items": list() as items, "next": (str() | None) as cursor}:
                totals = totals or read_result(EscrowTotals, sums)
                lines += [read_result(BillLine, item) for item in items]
                if cursor is not None:
                    pages.check_next(cursor, items)
            case _:
                raise AnswerMalformed("dekube_getBill: not an answer")
    return Bill(tuple(lines), totals)


# Doing


def _create_task(core: Core, key: SecretKey, spec: bytes, *, anyway: bool = False) -> Flow[CreatedTask]:
    """Create a task for the job ``spec`` (canonical bytes) and lock its price; return when it is final.

    Raises JobRefused for a job with objections, unless ``anyway`` is set; ClientError if the mempool refuses the
    transaction, TransactionRefused if its rule does.
    """
    from tasks.ledger.transitions import CREATE_TASK, task_id_of  # their rules weigh more than this client

    check_key("key", key)
    quote = yield from (ask_quote(core, spec) if anyway else _check_job(core, spec))
    receipt, raw = yield from send_signed(core, key, CREATE_TASK, [spec])
    return CreatedTask(task_id_of(key.address, decode_transaction(raw).nonce), quote.total, receipt)


def _cancel_task(core: Core, key: SecretKey, task: bytes) -> Flow[Receipt]:
    """End a task early; the unspent escrow is returned."""
    from tasks.ledger.transitions import CANCEL_TASK

    check_hash("task", task)
    return send(core, key, CANCEL_TASK, [task])


def _add_seats(
    core: Core, key: SecretKey, group: bytes, roots: Sequence[bytes], amount: int
) -> Flow[Receipt]:  # fmt: skip
    """Make the next seats of a group: ``roots`` has the state that a member starts from, empty for a spare.

    ``amount`` is the sum of their budgets. The group is a bid once it has all its seats.
    """
    from tasks.ledger.group_transitions import ADD_SEATS

    check_hash("group", group)
    check_amount("amount", amount)
    return send(core, key, ADD_SEATS, [group, list(roots), amount])


def _cancel_group(core: Core, key: SecretKey, group: bytes) -> Flow[Receipt]:
    """End all tasks of a group early; the unspent escrow is returned."""
    from tasks.ledger.group_transitions import CANCEL_GROUP

    check_hash("group", group)
    return send(core, key, CANCEL_GROUP, [group])


def _resume_task(core: Core, key: SecretKey, task: bytes) -> Flow[Receipt]:
    """Resume a paused task with another worker."""
    from tasks.ledger.transitions import RESUME_TASK

    check_hash("task", task)
    return send(core, key, RESUME_TASK, [task])


def _top_up_task(core: Core, key: SecretKey, task: bytes, amount: int) -> Flow[Receipt]:
    """Add to a task's verification budget; the unused part is returned."""
    from tasks.ledger.transitions import TOP_UP_TASK

    check_hash("task", task)
    check_amount("amount", amount)
    return send(core, key, TOP_UP_TASK, [task, amount])


def _demand_result(core: Core, key: SecretKey, task: bytes, amount: int) -> Flow[Receipt]:
    """Demand the result of an ended task that is not available: drawn machines try to fetch it.

    ``amount`` pays them if they succeed. The unused part is returned, and all of it if the worker does not serve
    the result.
    """
    from tasks.ledger.transitions import DEMAND_RESULT

    check_hash("task", task)
    check_amount("amount", amount)
    return send(core, key, DEMAND_RESULT, [task, amount])


def _demand_custody(
    core: Core, key: SecretKey, task: bytes, window: int, custodian: bytes, amount: int
) -> Flow[Receipt]:
    """Demand an output of its custodian: first a chunk on chain, then a delivery to a drawn machine.

    Of ``amount`` what the demand costs is locked; it returns if the demand brings nothing.
    """
    from tasks.ledger.custody_transitions import DEMAND_CUSTODY

    check_hash("task", task)
    check_address("custodian", custodian)
    check_amount("amount", amount)
    return send(core, key, DEMAND_CUSTODY, [task, window, custodian, amount])


def _end_custody(core: Core, key: SecretKey, task: bytes, window: int) -> Flow[Receipt]:
    """End the custody of a final window's output: the requester has it, or wants it no more."""
    from tasks.ledger.custody_transitions import END_CUSTODY

    check_hash("task", task)
    return send(core, key, END_CUSTODY, [task, window])


def _set_payout(core: Core, key: SecretKey, machine: bytes, payout: bytes) -> Flow[Receipt]:
    """Have the earnings of a machine paid to ``payout``; the signer must be the account that is paid now."""
    from tasks.ledger.transitions import SET_PAYOUT

    check_address("machine", machine)
    check_address("payout", payout)
    return send(core, key, SET_PAYOUT, [machine, payout])


def _set_terms(
    core: Core, key: SecretKey, machine: bytes, *, sponsor: bytes | None, share_bps: int = 0,
    withhold_bps: int = 0, withhold_until: int = 0,
) -> Flow[Receipt]:  # fmt: skip
    """Set who may bond for a machine and which shares of its pay that account and the machine's own bond get.

    The signer must be the account that its earnings go to. ``sponsor`` None: nobody.
    """
    from tasks.ledger.bonds import SET_TERMS

    check_address("machine", machine)
    if sponsor is not None:
        check_address("sponsor", sponsor)
    for name, value in (("share_bps", share_bps), ("withhold_bps", withhold_bps), ("until", withhold_until)):
        check_amount(name, value)
    who = bytes(ADDRESS_BYTES) if sponsor is None else sponsor
    return send(core, key, SET_TERMS, [machine, who, share_bps, withhold_bps, withhold_until])


def _sponsor_machine(
    core: Core, key: SecretKey, machine: bytes, amount: int, *, share_bps: int, withhold_bps: int,
    withhold_until: int,
) -> Flow[Receipt]:  # fmt: skip
    """Bond ``amount`` for a machine, on the terms that stand for the signer; others are ``terms_mismatch``."""
    from tasks.ledger.bonds import SPONSOR_NODE

    check_address("machine", machine)
    for name, value in (
        ("amount", amount), ("share_bps", share_bps), ("withhold_bps", withhold_bps), ("until", withhold_until),
    ):  # fmt: skip
        check_amount(name, value)
    return send(core, key, SPONSOR_NODE, [machine, share_bps, withhold_bps, withhold_until, amount])


def _withdraw_sponsor(core: Core, key: SecretKey, machine: bytes, amount: int) -> Flow[Receipt]:
    """Take ``amount`` of the signer's bond for a machine back after seven days; 0 cancels that."""
    from tasks.ledger.bonds import WITHDRAW_SPONSOR

    check_address("machine", machine)
    check_amount("amount", amount)
    return send(core, key, WITHDRAW_SPONSOR, [machine, amount])


def _follow(core: Core, task: bytes, *, timeout_s: float | None = None) -> Stream[TaskUpdate]:
    """Yield each final change of a task and of its windows until the task has ended.

    Raises TaskEnded if it has not ended within ``timeout_s``, ClientError for an unknown task.
    """
    check_hash("task", task)
    if timeout_s is None:
        yield from _follow_to_end(core, task)
        return
    check_timeout("timeout_s", timeout_s)
    try:
        yield from within(_follow_to_end(core, task), timeout_s)
    except DeadlineExceeded:
        raise TaskEnded(f"task {hexed(task)} has not ended in {timeout_s:.10g} s") from None


def _follow_to_end(core: Core, task: bytes) -> Stream[TaskUpdate]:
    """Yield each change of a task and of its windows until the task has ended."""
    seen, phases = 0, dict[int, str]()
    looked = -1
    """The height up to which all changes were reported."""

    def look() -> Generator[Any, Any, bool]:
        nonlocal seen, looked
        name = hexed(task)
        # What is final stays as it is: the windows from the first one on that is not are asked for.
        settled = next((n for n in range(len(phases)) if phases.get(n) != "final"), len(phases))
        parts = (("dekube_getTaskHistory", seen), ("dekube_getTaskWindows", settled))
        calls = [Call(method, {"task": name, "first": first, "limit": PAGE}) for method, first in parts]
        answers = yield from core.batch([*calls, Call("dekube_getTask", {"task": name})])
        found, heights = [], []
        for (method, _), answer in zip(parts, answers, strict=False):
            items, height = yield from _whole(core, method, name, answer)
            found.append(items)
            heights.append(height)
        match answers[-1]:
            case ClientError() as error:
                raise error
            case {"task": dict() as record}:
                shown = read_result(Task, record)
            case _:
                raise AnswerMalformed("a task with a history that is not there")
        changes = tuple(read_result(TaskChange, item) for item in found[0])
        windows = tuple(read_result(Window, item) for item in found[1])
        fresh = tuple(window for window in windows if phases.get(window.number) != window.phase)
        if changes or fresh:
            yield Item(TaskUpdate(shown, changes, fresh))
        seen += len(changes)
        looked = min(heights)
        phases.update({window.number: window.phase for window in fresh})
        # The record may be of a later block than the rest: that is looked at again.
        return shown.has_ended and shown.history <= seen and shown.changed_height <= looked

    # Blocks from here on are told; what they change of the task before it is looked at is not missed.
    start = yield from core.call("dekube_head")
    match start:
        case {"at": {"height": int(height)}}:
            pass
        case _:
            raise AnswerMalformed("dekube_head: not a head")
    ended = yield from look()
    if ended:
        return

    def handle(news: Notification) -> Generator[Any, Any, bool]:
        nonlocal ended
        if news.at.height > looked:
            ended = yield from look()
        return ended

    yield from through(notifications(core, "tasks", task=task, from_height=height + 1), handle)


def _whole(core: Core, method: str, task: str, answer: Any) -> Flow[tuple[list[Any], int]]:
    """Return all items of the list that begins with the page ``answer``, and the list's height."""
    items: list[Any] = []
    pages = Pages(method)
    while True:
        match answer:
            case ClientError() as error:
                raise error
            case {"at": {"height": int(height)}, "items": list() as page, "next": (str() | None) as cursor}:
                items += page
            case _:
                raise AnswerMalformed(f"{method}: not a page")
        if cursor is None:
            return items, height
        pages.check_next(cursor, page)
        answer = yield from core.call(method, task=task, cursor=cursor, limit=PAGE)


# Bulk data: through a node of this machine where there is one, else through the gateway


def put_file(
    core: Core, file: Path, *, control: Path | None = None, key: SecretKey | None = None,
    progress: Progress | None = None,
) -> Flow[bytes]:  # fmt: skip
    """Upload a file for workers; return its blob ID.

    The destination is the blob store of the node at ``control``, or of a gateway that accepts uploads, authorised
    by ``key``. Raises ControlUnavailable if the node does not run; for a gateway as ``rpc.client.blobs.upload``.
    """
    check_file("file", file)
    if control is None:
        if key is None:
            raise ConfigError("an upload needs a node of this machine, or a key that signs for it at a gateway")
        return (yield from upload(core, file, key, progress=progress))
    answer = yield RunBlocking(partial(ask_node, control, "add_blob", path=str(file.absolute())))
    match answer:
        case {"blob": str(blob)}:
            return bytes.fromhex(blob)
        case _:
            raise AnswerMalformed("what the node answers is not a blob's address")


class Places(NamedTuple):
    """Sources of a task's bulk data."""

    task: bytes
    control: Path | None
    sources: list[bytes]
    folder: Path
    progress: Progress | None


def fetch_blob(
    core: Core, places: Places, blob: bytes, limit_bytes: int, *, window: int | None = None
) -> Flow[bytes]:
    """Return the content of a blob. Raises NoResult if it is not available."""
    if places.control is not None:
        data: bytes = yield RunBlocking(
            partial(_fetch_blocking, places.control, blob, places.sources, limit_bytes)
        )
        return data
    file = places.folder / blob.hex()
    try:
        yield from download(
            core, blob, file, task=places.task, window=window, progress=places.progress, limit_bytes=limit_bytes
        )
    except ClientError as error:
        raise NoResult(f"blob {hexed(blob)}: {error}") from None
    data = yield RunBlocking(partial(_take, file))
    return data


def fetch_file(core: Core, places: Places, blob: bytes, limit_bytes: int, to: Path) -> Flow[None]:
    """Write the content of a blob to the new file ``to``. Raises NoResult if it is not available."""
    if places.control is not None:
        control = places.control
        move = partial(_move, to=to)
        yield RunBlocking(partial(_fetch_blocking, control, blob, places.sources, limit_bytes, move))
        return
    file = places.folder / blob.hex()
    try:
        yield from download(
            core, blob, file, task=places.task or None, progress=places.progress, limit_bytes=limit_bytes
        )
    except ClientError as error:
        raise NoResult(f"blob {hexed(blob)}: {error}") from None
    yield RunBlocking(partial(_move, file, to))


def _move(file: Path, to: Path) -> None:
    try:
        shutil.move(file, to)
    except OSError as error:
        raise NoResult(f"{to}: {error.strerror}") from None


def _take(file: Path) -> bytes:
    """Return the content of a file and delete the file."""
    try:
        data = file.read_bytes()
        file.unlink()
    except OSError as error:
        raise NoResult(f"{file}: {error.strerror}") from None
    return data


def _fetch_blocking(
    control: Path, blob: bytes, sources: list[bytes], limit_bytes: int,
    take: Callable[[Path], Any] = Path.read_bytes,
) -> Any:  # fmt: skip
    # Beside the control socket: the node, which may be in another container, writes the file by its path.
    with tempfile.TemporaryDirectory(prefix="dekube-", dir=control.parent) as folder:
        target = os.path.join(folder, "blob")
        try:
            ask_node(
                control, "fetch_blob", timeout_s=FETCH_TIMEOUT_S, blob=blob.hex(),
                sources=[source.hex() for source in sources], path=target,
            )  # fmt: skip
            size_bytes = os.path.getsize(target)
            if size_bytes > limit_bytes:  # a stranger named the blob
                raise NoResult(f"blob {hexed(blob)}: {size_bytes} bytes, at most {limit_bytes} expected")
            return take(Path(target))
        except DekubeError as error:
            if error.code == "node_unavailable":
                raise
            raise NoResult(f"blob {hexed(blob)}: {error}") from None
        except OSError as error:
            raise NoResult(f"blob {hexed(blob)}: {error.strerror}") from None


def ask_result(
    core: Core, task: bytes, *, control: Path | None = None, window: int | None = None, step: int | None = None,
    progress: Progress | None = None, folder: Path | None = None, key: SecretKey | None = None,
) -> Flow[TaskResult]:  # fmt: skip
    """Return the trained state after a final window, by default the last one, checked against its proof.

    ``step`` asks for the state after so many steps, which a window must have left.

    The node at ``control`` fetches it from the worker, through relays if necessary. Without ``control`` the
    gateway's node does; a partial download in ``folder`` is resumed after an interruption. A private task's is
    opened with ``key``, that of its requester's account. Raises NoResult, ResultMismatch, ControlUnavailable,
    GatewayUnreachable; ChunkInvalid and OutputIsGarbage for false bytes in custody.
    """
    record = yield from ask_task(core, task)
    if record is None:
        raise NoResult(f"no task has the id {hexed(task)}")
    windows = yield from gather(ask_windows(core, task))
    found = _left_by(windows, window, step)
    sources: list[bytes] = []
    if control is not None:
        machines = yield from gather(each(core, Machine, "dekube_getNodes"))
        kept = yield from _custody(core, task, found.number)
        custodians = [] if kept is None else [keeper.address for keeper in kept.custodians]
        sources = list(dict.fromkeys([*custodians, found.worker, *(machine.address for machine in machines)]))
    spec = yield RunBlocking(partial(spec_of, record))
    terms = yield from ask_custody_terms(core, task)
    opened = None
    if terms is not None and not terms.is_public:
        opened = yield RunBlocking(partial(_opener_of, terms, spec, key))
    made = None
    if control is None and folder is None:
        made = yield RunBlocking(partial(tempfile.TemporaryDirectory, prefix="dekube-"))
        folder = Path(made.name)
    try:
        places = Places(task, control, sources, folder or Path(), progress)
        blob, limit_bytes = found.proof.output_blob, _output_limit(spec)
        data = yield from fetch_blob(core, places, blob, limit_bytes, window=found.number)
        if opened is not None:
            data = yield RunBlocking(partial(opened.output, found, data))
        state = yield RunBlocking(partial(_check_state, spec, found, data))
        dataset: bytes | None = None
        with suppress(NoResult, GatewayUnreachable):  # the state is there, and would be fetched again
            if (most := _dataset_limit(spec)) is not None:
                dataset = yield from fetch_blob(core, places, spec.dataset.blob, most)
        if dataset is not None and opened is not None:
            dataset = yield RunBlocking(partial(opened.dataset, dataset))
    finally:
        if made is not None:
            made.cleanup()
    return TaskResult(task, found, spec, state, data, dataset)


def _left_by(windows: Sequence[Window], number: int | None, step: int | None) -> Window:
    """Return the final window that is asked for: by its number, by the step that it ends with, or the last one.

    Raises NoResult, which names the steps of which there are states.
    """
    final = [item for item in windows if item.phase == "final" and number in (None, item.number)]
    if not final:
        raise NoResult(
            "no window of this task is final yet" if number is None else f"window {number} is not final"
        )
    found = {step_of(item): item for item in final}
    if step is None:
        return final[-1]
    if step not in found:
        shown = list(map(str, found))
        if len(shown) > STEPS_SHOWN:
            shown[STEPS_SHOWN - 1 : -1] = ["..."]
        raise NoResult(f"no state after step {step} is final; there are states after {', '.join(shown)}")
    return found[step]


def step_of(window: Window) -> int:
    """Return how many steps led to the state that a window leaves."""
    proof = window.proof
    return proof.step_to if proof.result_step is None else proof.result_step


def _dataset_limit(spec: JobSpec) -> int | None:
    """Return the most bytes of a data set that is needed for the result, None where none is."""
    from tasks.custody.sealed import sealed_size
    from tasks.engines.datasets import DATASET_BLOB_BYTES_MAX
    from tasks.kinds.classifier import ClassifierPart
    from tasks.kinds.generate import KIND_GENERATE

    if spec.kind == KIND_GENERATE:  # completions begin where prompts end
        return sealed_size(spec.inputs()[0].size_bytes)
    # A model of texts is asked, and adapters are tested by those who have the model.
    return sealed_size(DATASET_BLOB_BYTES_MAX) if isinstance(spec.part, ClassifierPart) else None


def _output_limit(spec: JobSpec) -> int:
    from tasks.custody.sealed import sealed_size

    return sealed_size(spec.plan().state_limit_bytes)


def _opener_of(terms: CustodyTerms, spec: JobSpec, key: SecretKey | None) -> Opener:
    from tasks.custody.errors import KeyInvalid
    from tasks.custody.sealed import check_task_key, task_key_of

    if key is None:
        raise NoResult("the task is private: the key of its requester's account opens the result")
    found = task_key_of(key.secret, spec)
    try:
        check_task_key(found, terms.key_root, terms.inputs, terms.windows)
    except KeyInvalid:
        raise NoResult("the task is private, and this account is not its requester's") from None
    return Opener(found, spec, terms.inputs)


class Opener(NamedTuple):
    """Opens the blobs of a private task with its key."""

    task_key: bytes
    spec: JobSpec
    inputs: int

    def output(self, window: Window, data: bytes) -> bytes:
        """Return the plain output. Raises ChunkInvalid, OutputIsGarbage, NoResult."""
        from tasks.custody.chunks import BlobCommitment
        from tasks.custody.keys import derive_key, window_key_name
        from tasks.custody.sealed import open_output

        if window.proof.custody is None:
            raise NoResult("the window commits to no output in custody")
        commitment = BlobCommitment(
            window.proof.custody.size_bytes, window.proof.custody.plain_root, window.proof.custody.cipher_root
        )
        return open_output(commitment, derive_key(self.task_key, window_key_name(window.number)), data)

    def dataset(self, data: bytes) -> bytes:
        """Return the plain data set; it is checked where it is read."""
        from tasks.custody.keys import derive_key, input_key_name
        from tasks.custody.sealed import open_input

        return open_input(derive_key(self.task_key, input_key_name(0)), self.spec, data) if self.inputs else data


def spec_of(task: Task) -> JobSpec:
    """Return the job of a task. Raises AnswerMalformed."""
    from tasks.spec import decode_spec

    match task.document:
        case {"spec": {"raw": str(raw)}} if raw.startswith("0x"):
            with suppress(ValueError):
                return decode_spec(bytes.fromhex(raw[2:]))
    raise AnswerMalformed("a task without its job")


def _check_state(spec: JobSpec, window: Window, data: bytes) -> TrainingState:
    from tasks.engines.state import TrainingState

    plan = spec.plan()
    state = TrainingState.decode(data, plan)
    proven = window.proof.result_root or window.proof.state_root_out
    if (root := state.root(plan)) != proven:
        raise ResultMismatch(f"the state's root is {hexed(root)}, the proof says {hexed(proven)}")
    return state


class TaskApi:
    """Methods of both clients about tasks."""

    quote_task = FlowMethod(ask_quote)
    check_job = FlowMethod(_check_job)
    task = FlowMethod(ask_task)
    tasks = StreamMethod(_tasks)
    task_changes = StreamMethod(_task_changes)
    task_windows = StreamMethod(ask_windows)
    disputes = StreamMethod(_disputes)
    dispute = FlowMethod(_dispute)
    custody = FlowMethod(_custody)
    custody_terms = FlowMethod(ask_custody_terms)
    group = FlowMethod(_group)
    bill = FlowMethod(_bill)
    create_task = FlowMethod(_create_task)
    cancel_task = FlowMethod(_cancel_task)
    add_seats = FlowMethod(_add_seats)
    cancel_group = FlowMethod(_cancel_group)
    resume_task = FlowMethod(_resume_task)
    top_up_task = FlowMethod(_top_up_task)
    demand_result = FlowMethod(_demand_result)
    demand_custody = FlowMethod(_demand_custody)
    end_custody = FlowMethod(_end_custody)
    set_payout = FlowMethod(_set_payout)
    set_terms = FlowMethod(_set_terms)
    sponsor_machine = FlowMethod(_sponsor_machine)
    withdraw_sponsor = FlowMethod(_withdraw_sponsor)
    follow = StreamMethod(_follow)
    upload = FlowMethod(put_file)
    result = FlowMethod(ask_result)
