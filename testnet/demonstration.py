"""Runs one real task, from the data set to the settled bill, and prints each step."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple, Protocol

import trio

from node.cli.output import counted, show_amount, show_rows
from node.cli.prices import show_hour_price
from node.cli.tasks.keeping import CustodyAsk, end_custody
from node.cli.tasks.views import show_bill
from node.home.load import load_node_options
from node.home.paths import Home
from node.market.posting import Job, make_digits_job, next_of_update, say_update, task_transactions
from rpc.client import Client, ClientError, GatewayUnreachable, TaskEnded, TaskUpdate
from rpc.client.core import hexed
from rpc.client.results import Bill
from state.primitives.hashing import digest
from state.primitives.keys import SecretKey
from state.primitives.listen import dial_target
from tasks.custody.keys import public_key_root
from tasks.spec import encode_spec

__all__ = ["Document", "RunSource", "TaskSummary", "print_run", "run_demonstration", "wait_machines"]

MAX_PRICE_PER_TERA_UNIT: Final = 5 * 10**15
"""Twice what a machine asks for 10^12 work units by default."""
MACHINES_TIMEOUT_S: Final = 90.0
TASK_TIMEOUT_S: Final = 600.0
COMPUTE_MIN: Final = 1
VERIFY_MIN: Final = 3

PrintLine = Callable[[str], None]
Document = dict[str, Any]


class TaskSummary(NamedTuple):
    """Summary of a task before it is posted."""

    total_steps: int
    windows: int
    dataset_blob: bytes


class RunSource(Protocol):
    """The data of a run, queried in this order. Implemented by a live network and by a recorded run."""

    def machines(self) -> list[Document]:
        """Return the registered machines, once there are enough."""
        ...

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

    def bill(self) -> Bill:
        """Return every movement of the task's money."""
        ...


async def run_demonstration(
    home: Home,
    requester: SecretKey,
    say: PrintLine,
    *,
    through: Callable[[RunSource], RunSource] = lambda source: source,
) -> str:
    """Post a training task through the node of ``home``, follow it, and print proofs and bill; return its id.

    ``through`` may wrap the source, to record the run. Raises TaskEnded if the task did not settle.
    """
    return await trio.to_thread.run_sync(_demonstrate, home, requester, say, through, abandon_on_cancel=True)


def _demonstrate(
    home: Home, requester: SecretKey, say: PrintLine, through: Callable[[RunSource], RunSource]
) -> str:
    with Client(f"http://{dial_target(load_node_options(home).rpc.listen)}") as client:
        return print_run(through(_Network(client, home, requester)), say)


def print_run(source: RunSource, say: PrintLine) -> str:
    """Print a task's course, its proofs and its bill from ``source``; return its id. Raises TaskEnded."""
    say("\nWaiting until the machines have registered ...")
    _show_machines(source.machines())
    posting = source.prepare()
    say(
        "\nPosting a task: train a classifier of handwritten digits, "
        f"{counted(posting.total_steps, 'exact step')} in {counted(posting.windows, 'window')}; "
        f"data set blob 0x{posting.dataset_blob.hex()}"
    )
    task = source.post()
    say(f"Task {task}")
    phase = ""
    for update, what_follows in source.updates():
        say_update(update, say, what_follows)
        phase = update.task.phase
    _show_transactions(source.transactions())
    _show_proofs(source.windows())
    show_bill(source.bill(), title="\nBill")
    say("")
    if phase != "settled":
        raise TaskEnded(f"the task ended {phase}")
    say(f"Task {task} is SETTLED.")
    return task


class _Network:
    """A task on a live network."""

    def __init__(self, client: Client, home: Home, requester: SecretKey) -> None:
        self._client = client
        self._home = home
        self._requester = requester
        self._job: Job | None = None
        self._task = b""
        self._is_kept = False

    def machines(self) -> list[Document]:
        return wait_machines(self._client)

    def prepare(self) -> TaskSummary:
        height = self._client.head().at.height
        self._job = make_digits_job(
            self._client,
            control=self._home.control,
            key=None,
            seed=digest(b"demonstration", self._requester.address + height.to_bytes(8)),
            max_price_per_tera_unit=MAX_PRICE_PER_TERA_UNIT,
        )
        return TaskSummary(self._job.spec.schedule.total_steps, self._job.spec.windows, self._job.dataset_blob)

    def post(self) -> str:
        assert self._job is not None
        spec = self._job.spec
        raw, quoted = encode_spec(spec), self._client.quote_task(encode_spec(spec))
        if not quoted.custody:
            self._task = self._client.create_task(self._requester, raw).id
            return hexed(self._task)
        ask = CustodyAsk(self._client, self._requester, public_key_root(spec.windows), 0, quoted.custody)
        self._task = ask.create(raw)
        self._is_kept = True
        return hexed(self._task)

    def updates(self) -> Iterator[tuple[TaskUpdate, list[str]]]:
        for update in self._client.follow(self._task, timeout_s=TASK_TIMEOUT_S):
            yield update, next_of_update(self._client, update)
        if self._is_kept:  # the requester has what it wants: custodians are paid now, not in an hour
            end_custody(self._client, self._requester, self._task)

    def transactions(self) -> list[Document]:
        return task_transactions(self._client, self._task)

    def windows(self) -> list[Document]:
        return list(self._client.items("dekube_getTaskWindows", task=hexed(self._task)))

    def bill(self) -> Bill:
        return self._client.bill(self._task)


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
