"""Trains a small language model and asks it, from the text to the settled bills, and prints each step."""

from __future__ import annotations

import io
import time
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

import trio

from node.cli.output import counted, show_amount, show_rows
from node.cli.prices import show_hour_price
from node.cli.tasks.keeping import end_custody
from node.cli.tasks.views import show_bill
from node.home.load import load_node_options
from node.home.paths import Home
from node.market.posting import next_of_update, say_update, task_transactions
from rpc.client import Client, ClientError, GatewayUnreachable, NoResult, TaskEnded, TaskUpdate
from rpc.client.core import hexed
from rpc.client.jobs import make_job
from rpc.client.results import Bill
from state.primitives.hashing import digest
from state.primitives.keys import SecretKey
from state.primitives.listen import dial_target

if TYPE_CHECKING:
    from rpc.client.making import MadeJob
    from rpc.client.tasks import TaskResult

__all__ = [
    "Document",
    "RunSource",
    "TaskRun",
    "TaskSummary",
    "print_run",
    "run_demonstration",
    "text_of_demonstration",
    "wait_machines",
]

MAX_PRICE_PER_TERA_UNIT: Final = 5 * 10**15
"""Twice what a machine asks for 10^12 work units by default."""
MACHINES_TIMEOUT_S: Final = 90.0
TASK_TIMEOUT_S: Final = 600.0
COMPUTE_MIN: Final = 1
VERIFY_MIN: Final = 3
SEED: Final = digest(b"demonstration", bytes([11]))
"""First weights from which the text is learned, to a loss of 0.014. Of twelve seeds one ended at 0.75, the others
below 0.04. The work is exact, so every run gives the same model."""
PROMPT: Final = "The Zen of Python"
"""The text begins so, and no other line of it does."""
NEW_TOKENS: Final = 46
TRAINING: Final[dict[str, object]] = {
    "kind": "train", "data": "zen-of-python.txt", "shape": {"preset": "tiny", "layers": 1}, "steps": 300,
    "batch": 4, "learning_rate": 0.006, "weight_decay": 0, "segment_steps": 4, "window_steps": 100,
}  # fmt: skip
"""Few steps of few operators: a network of seven processes trains it in seconds on two cores."""

PrintLine = Callable[[str], None]
Document = dict[str, Any]


class TaskSummary(NamedTuple):
    """Summary of a task before it is posted: what it does, its steps, its windows, and the blob of its data."""

    what: str
    total_steps: int
    windows: int
    dataset_blob: bytes


class TaskRun(Protocol):
    """The data of one task, queried in this order."""

    def prepare(self) -> TaskSummary:
        """Create a task; return its summary."""
        ...

    def post(self) -> str:
        """Post the task; return its id."""
        ...

    def updates(self) -> Iterator[tuple[TaskUpdate, list[str]]]:
        """Yield each update and its next steps (``next_of_update``), until the task has ended."""
        ...

    def transactions(self) -> list[Document]:
        """Return the transactions that name the task."""
        ...

    def windows(self) -> list[Document]:
        """Return the task's windows with their proofs."""
        ...

    def result(self) -> list[str]:
        """Return what the task has given, as lines."""
        ...

    def bill(self) -> Bill:
        """Return every movement of the task's money."""
        ...


class RunSource(Protocol):
    """The data of a run, queried in this order. Implemented by a live network and by a recorded run."""

    def machines(self) -> list[Document]:
        """Return the registered machines, once there are enough."""
        ...

    def training(self) -> TaskRun:
        """Return the task that trains a model."""
        ...

    def asking(self) -> TaskRun:
        """Return the task that asks the model."""
        ...


def text_of_demonstration() -> str:
    """Return the Zen of Python, a text that every installation has."""
    with redirect_stdout(io.StringIO()) as printed:  # the module prints it where it is first imported
        import this
    return printed.getvalue() or "".join(this.d.get(letter, letter) for letter in this.s) + "\n"


async def run_demonstration(
    home: Home,
    requester: SecretKey,
    say: PrintLine,
    *,
    through: Callable[[RunSource], RunSource] = lambda source: source,
) -> str:
    """Post a task that trains a model and one that asks it, through the node of ``home``; return the last id.

    Both are followed, and their proofs and bills printed. ``through`` may wrap the source, to record the run.
    Raises TaskEnded if a task did not settle.
    """
    return await trio.to_thread.run_sync(_demonstrate, home, requester, say, through, abandon_on_cancel=True)


def _demonstrate(
    home: Home, requester: SecretKey, say: PrintLine, through: Callable[[RunSource], RunSource]
) -> str:
    with Client(f"http://{dial_target(load_node_options(home).rpc.listen)}") as client:
        return print_run(through(_Network(client, home, requester)), say)


def print_run(source: RunSource, say: PrintLine) -> str:
    """Print the course of both tasks from ``source``, their proofs, results and bills; return the last one's id.

    Raises TaskEnded.
    """
    say("\nWaiting until the machines have registered ...")
    _show_machines(source.machines())
    _print_task(source.training(), say)
    return _print_task(source.asking(), say)


def _print_task(run: TaskRun, say: PrintLine) -> str:
    posting = run.prepare()
    say(
        f"\nPosting a task: {posting.what}, {counted(posting.total_steps, 'exact step')} in "
        f"{counted(posting.windows, 'window')}; data blob 0x{posting.dataset_blob.hex()}"
    )
    task = run.post()
    say(f"Task {task}")
    phase = ""
    for update, what_follows in run.updates():
        say_update(update, say, what_follows)
        phase = update.task.phase
    _show_transactions(run.transactions())
    _show_proofs(run.windows())
    say("")
    for line in run.result():
        say(line)
    show_bill(run.bill(), title="\nBill")
    say("")
    if phase != "settled":
        raise TaskEnded(f"the task ended {phase}")
    say(f"Task {task} is SETTLED.")
    return task


class _Network:
    """Both tasks on a live network."""

    def __init__(self, client: Client, home: Home, requester: SecretKey) -> None:
        self._client, self._home, self._requester = client, home, requester
        self._trained: _Training | None = None

    def machines(self) -> list[Document]:
        return wait_machines(self._client)

    def training(self) -> TaskRun:
        self._trained = _Training(self._client, self._home, self._requester)
        return self._trained

    def asking(self) -> TaskRun:
        assert self._trained is not None
        return _Asking(self._client, self._home, self._requester, self._trained)


class _LiveTask:
    """A task on a live network."""

    def __init__(self, client: Client, home: Home, requester: SecretKey) -> None:
        self._client, self._home, self._requester = client, home, requester
        self._job: MadeJob | None = None
        self._custody: bool | None = None
        self.task = b""

    def _make(self) -> tuple[str, MadeJob]:
        """Return what the task does, and its job."""
        raise NotImplementedError

    def _made(self, fields: dict[str, object], data: bytes, tuned: TaskResult | None = None) -> MadeJob:
        from tasks.requests.reading import request_of

        return make_job(
            request_of(fields), data=data, tuned=tuned, max_price_per_tera_unit=MAX_PRICE_PER_TERA_UNIT, seed=SEED
        )

    def _result(self) -> TaskResult:
        return self._client.result(self.task, control=self._home.control)

    def prepare(self) -> TaskSummary:
        what, self._job = self._make()
        spec = self._job.spec
        return TaskSummary(what, spec.schedule.total_steps, spec.windows, spec.dataset.blob)

    def post(self) -> str:
        assert self._job is not None
        self.task = self._client.post_job(
            self._requester, self._job, control=self._home.control, custody=self._custody
        ).id
        return hexed(self.task)

    def updates(self) -> Iterator[tuple[TaskUpdate, list[str]]]:
        for update in self._client.follow(self.task, timeout_s=TASK_TIMEOUT_S):
            yield update, next_of_update(self._client, update)

    def transactions(self) -> list[Document]:
        return task_transactions(self._client, self.task)

    def windows(self) -> list[Document]:
        return list(self._client.items("dekube_getTaskWindows", task=hexed(self.task)))

    def bill(self) -> Bill:
        if self._client.custody_terms(self.task) is not None:
            # The requester has what it wants: custodians are paid now, not in an hour.
            end_custody(self._client, self._requester, self.task)
        return self._client.bill(self.task)


class _Training(_LiveTask):
    """The task that trains a model on a text."""

    def _make(self) -> tuple[str, MadeJob]:
        job = self._made(TRAINING, text_of_demonstration().encode())
        weights = job.spec.plan().parameters
        return f"train a language model of {weights:,} weights on the Zen of Python", job

    def result(self) -> list[str]:
        try:
            points = self._client.losses(self.task, control=self._home.control)
        except (NoResult, GatewayUnreachable, ClientError) as error:  # information alone: its worker may be gone
            return [f"The losses could not be fetched: {error}"]
        ends = {point.window: point for point in points}  # the last one of each window
        shown = [points[0], *ends.values()]
        return [f"Loss of a token: {', '.join(f'{one.loss:.2f} (step {one.step_to})' for one in shown)}"]

    def trained(self) -> TaskResult:
        """Return the model that the task has left."""
        return self._result()


class _Asking(_LiveTask):
    """The task that asks the model of another task."""

    def __init__(self, client: Client, home: Home, requester: SecretKey, training: _Training) -> None:
        super().__init__(client, home, requester)
        self._training = training
        self._custody = False  # of so small a job it would cost half as much as the work

    def _make(self) -> tuple[str, MadeJob]:
        fields: dict[str, object] = {
            "kind": "generate", "model": f"task:{hexed(self._training.task)}", "data": "prompts.jsonl",
            "new_tokens": NEW_TOKENS, "segment_steps": 2,
        }  # fmt: skip
        data = f'{{"prompt": "{PROMPT}"}}\n'.encode()
        return f"ask this model to continue {PROMPT!r}", self._made(fields, data, self._training.trained())

    def result(self) -> list[str]:
        from tasks.models.byte_tokens import ByteTokens

        (tokens,) = self._result().completions()
        return [f"Answer: {line}" if not at else f"        {line}" for at, line in enumerate(
            f"{PROMPT}{ByteTokens().decode(tokens)}".split("\n")
        )]  # fmt: skip


def wait_machines(client: Client, *, compute_min: int = COMPUTE_MIN) -> list[Document]:
    """Return the registered machines once they are enough for a task; ``compute_min`` of them run jobs."""
    deadline = time.monotonic() + MACHINES_TIMEOUT_S
    while True:
        try:
            nodes = list(client.items("dekube_getNodes"))
        except (GatewayUnreachable, ClientError):  # still starting
            nodes = []
        compute = [node for node in nodes if "compute" in node["roles"]]
        verify = [node for node in nodes if "verify" in node["roles"]]
        if len(compute) >= compute_min and len(verify) >= VERIFY_MIN + COMPUTE_MIN:
            return nodes
        if time.monotonic() > deadline:
            if compute and len(verify) > COMPUTE_MIN:
                return nodes  # a small network: fewer verifiers are drawn
            raise TaskEnded(f"only {counted(len(nodes), 'machine')} registered in {MACHINES_TIMEOUT_S:.0f} s")
        time.sleep(0.5)


def _show_machines(nodes: list[Document]) -> None:
    rows = [
        {
            "machine": node["address"],
            "roles": node["roles"],
            "GPU": [gpu["model"] for gpu in node["gpus"]] or "none: processor",
            "speed": f"{node['rate'] / 10**9:.1f} * 10^9 units/s",
            "price": show_hour_price(int(node["price_per_device_hour"]), has_gpus=bool(node["gpus"])),
            "bond": show_amount(int(node["bond"])),
        }
        for node in nodes
    ]
    show_rows(rows, ("machine", "roles", "GPU", "speed", "price", "bond"), as_json=False, title="Machines")


def _show_transactions(transactions: list[Document]) -> None:
    rows = [
        {"height": t["height"], "kind": t["kind_name"], "from": t["from"], "transaction": t["hash"]}
        for t in transactions
    ]
    show_rows(rows, ("height", "kind", "from", "transaction"), as_json=False, title="\nTransactions of the task")


def _show_proofs(windows: list[Document]) -> None:
    proofs = [
        {
            "window": window["number"],
            "steps": f"{window['proof']['step_from']}-{window['proof']['step_to']}",
            "state after": window["proof"]["state_root_out"],
            "checked": window["sampled"],
            "by": len(window["verifiers"]),
            "phase": window["phase"],
        }
        for window in windows
    ]
    show_rows(
        proofs,
        ("window", "steps", "state after", "checked", "by", "phase"),
        as_json=False,
        title="\nProofs of work",
    )
