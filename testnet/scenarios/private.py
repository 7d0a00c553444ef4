"""A private task of a scenario: posted with its custody, shared, fetched with its requester's key, and ended."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final

from node.cli.tasks.keeping import CustodyAsk
from node.cli.tasks.kept_input import KeptInput, input_price
from node.market.posting import Job
from node.market.private_jobs import INPUTS, make_private, put_private
from node.process.control import ask_node
from rpc.client import Client, NoResult, TaskEnded
from rpc.client.control import ControlRefused
from rpc.client.tasks import TaskResult
from state.primitives.keys import SecretKey
from tasks.engines.builtin_datasets import make_dataset
from tasks.spec import encode_spec

__all__ = ["HOLDERS", "THRESHOLD", "fetch", "post_private", "share", "wait_storage"]

HOLDERS: Final = 3
THRESHOLD: Final = 2
PATIENCE_S: Final = 90.0
SHARE_S: Final = 120.0
PAUSE_S: Final = 0.5


def wait_storage(client: Client) -> None:
    """Wait until enough machines keep shares and outputs. Raises TaskEnded."""
    deadline = time.monotonic() + PATIENCE_S
    while sum("storage" in node["roles"] for node in client.items("dekube_getNodes")) < HOLDERS:
        if time.monotonic() > deadline:
            raise TaskEnded(f"no {HOLDERS} machines with role storage in {PATIENCE_S:.0f} s")
        time.sleep(PAUSE_S)


def post_private(client: Client, key: SecretKey, job: Job, control: Path, *, keeps_input: bool) -> bytes:
    """Post the private form of a job on the built-in data set, with its custody; return the task.

    ``keeps_input``: its data set is in custody too, and was signed for when this returns.
    """
    private = make_private(key, job.spec, make_dataset("digits").encode())
    put_private(client, private, control)
    spec = encode_spec(private.spec)
    quoted = client.quote_task(spec)
    ask = CustodyAsk(client, key, private.key_root, INPUTS, quoted.custody)
    if keeps_input:
        ask.kept = KeptInput(client, key, private.commitment, input_price(quoted))
    return ask.create(spec)


def share(control: Path, task: bytes) -> int:
    """Have the requester's node share the key of a task; return how many machines keep a share."""
    deadline = time.monotonic() + SHARE_S
    while True:  # a machine may be down for a while: then too few keep one
        try:
            found = ask_node(
                control, "share_key", timeout_s=SHARE_S, task=task.hex(), threshold=THRESHOLD, holders=HOLDERS
            )  # fmt: skip
            return len(found["holders"])
        except ControlRefused:
            if time.monotonic() > deadline:
                raise
            time.sleep(PAUSE_S)


def fetch(client: Client, key: SecretKey, task: bytes, control: Path) -> TaskResult:
    """Fetch the result through the requester's node, which may just have started. Raises NoResult."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            return client.result(task, control=control, key=key)
        except NoResult:
            if time.monotonic() > deadline:
                raise
            time.sleep(PAUSE_S)
