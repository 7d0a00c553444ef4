"""A requester's side of a task: make the job, post it, follow its life, read its proofs and its bill.

Speaks JSON-RPC to any gateway, and to the control socket of one node for what is no chain data: blobs.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

from node.control import ControlUnavailable, ask_node
from node.home import Home
from rpc.client import Client
from state.primitives.errors import DekubeError
from tasks import spec as specs
from tasks.datasets import make_dataset
from tasks.recipes import digits_spec
from tasks.transitions import task_id_of

__all__ = [
    "ENDED",
    "TaskEnded",
    "bill_of",
    "follow",
    "make_digits_job",
    "pages",
    "task_id_after",
    "task_transactions",
]

ENDED: Final = ("settled", "failed", "cancelled", "expired")
POLL_S: Final = 0.5
PAGE: Final = 100
BLOB_CHARACTERS: Final = 64


class TaskEnded(DekubeError):
    """A task that ended otherwise than settled."""

    code = "task_not_settled"


class Job(NamedTuple):
    """A job specification and the content address of its data set."""

    spec: specs.JobSpec
    dataset_blob: bytes


def make_digits_job(
    home: Home, *, seed: bytes, max_price_per_gpu_s: int, gpu_ms_per_step_max: int, **sizes: Any
) -> Job:
    """Put the digits data set into the node's blob store and return the job that trains a classifier on it.

    ``sizes`` are those of ``tasks.recipes.digits_spec``. Raises UnsupportedJob for what the engine cannot train,
    ConfigError without the extra ``datasets``, ControlUnavailable when the node does not run.
    """
    dataset = make_dataset("digits")
    if not home.control.exists():
        raise ControlUnavailable(f"no node runs in {home.root}; the data set goes into its blob store")
    with tempfile.NamedTemporaryFile(dir=home.root / "run", suffix=".dataset") as file:
        file.write(dataset.encode())
        file.flush()
        blob = bytes.fromhex(ask_node(home.control, "add_blob", path=file.name)["blob"])
    price = specs.Price(max_price_per_gpu_s=max_price_per_gpu_s, gpu_ms_per_step_max=gpu_ms_per_step_max)
    return Job(digits_spec(dataset, dataset_blob=blob, seed=seed, price=price, **sizes), blob)


def task_id_after(sender: bytes, receipt: dict[str, Any], client: Client) -> str:
    """Return the id of the task that the transaction of ``receipt`` created."""
    transaction = client.call("dekube_getTransaction", receipt["transaction_hash"])["transaction"]
    return "0x" + task_id_of(sender, transaction["nonce"]).hex()


def pages(client: Client, method: str, *arguments: Any) -> Iterator[dict[str, Any]]:
    """Return all items of a paged method; pages are bound to one height each."""
    cursor = None
    while True:
        page = client.call(method, *arguments, cursor, PAGE)
        yield from page["items"]
        cursor = page["next"]
        if cursor is None:
            return


def follow(client: Client, task: str, say: Callable[[str], None], *, timeout_s: float = 3600.0) -> str:
    """Say each change of a task and of its windows as it becomes final; return the phase in which it ended.

    Raises TaskEnded when it has not within ``timeout_s``.
    """
    seen, windows = 0, dict[int, str]()
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        for change in list(pages(client, "dekube_getTaskHistory", task))[seen:]:
            seen += 1
            acts = change["actor"] is not None and int(change["actor"], 16)
            actor = f" by {change['actor']}" if acts else ""
            say(f"  height {change['height']:>5}  {change['after'].upper():<10} {change['reason']}{actor}")
        for window in pages(client, "dekube_getTaskWindows", task):
            if windows.get(window["number"]) != window["phase"]:
                windows[window["number"]] = window["phase"]
                say(f"                  window {window['number']} {window['phase']}{_detail(window)}")
        record = client.call("dekube_getTask", task)["task"]
        if record is not None and record["phase"] in ENDED and record["history"] <= seen:
            return str(record["phase"])
        time.sleep(POLL_S)
    raise TaskEnded(f"task {task} has not ended in {timeout_s:.0f} s")


def _detail(window: dict[str, Any]) -> str:
    match window["phase"]:
        case "proved":
            proof = window["proof"]
            steps = f"steps {proof['step_from']}-{proof['step_to']}"
            return f": {steps}, {proof['meter']['gpu_ms']} ms, segments {proof['segment_root'][:18]}..."
        case "sealing" | "jury_sealing":
            who = window["jurors"] if window["phase"] == "jury_sealing" else window["verifiers"]
            return f": {len(who)} verifiers re-run segments {window['sampled']}"
        case _:
            return ""


def task_transactions(client: Client, task: str) -> list[dict[str, Any]]:
    """Return every transaction that names the task, in the order of the chain."""
    record = client.call("dekube_getTask", task)["task"]
    head = client.call("dekube_head")["at"]["height"]
    found: list[dict[str, Any]] = []
    for height in range(record["created_height"], min(record["changed_height"], head) + 1):
        block = client.call("dekube_getBlock", height, True)["block"]
        for transaction in block["transactions"]:
            creates = height == record["created_height"] and transaction["from"] == record["requester"]
            if task[2:] in transaction["raw"] or (creates and transaction["kind_name"] == "create_task"):
                found.append({**transaction, "height": height})
    return found


def bill_of(client: Client, task: str) -> tuple[list[dict[str, Any]], dict[str, int]]:
    """Return the lines of a task's bill and its totals."""
    totals = client.call("dekube_getBill", task)["totals"]
    return list(pages(client, "dekube_getBill", task)), {name: int(amount) for name, amount in totals.items()}
