"""One real task, from the data set to the settled bill, shown as it happens."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

import trio

from node.cli.output import counted, show_amount, show_rows
from node.home import Home
from node.posting import follow, make_digits_job, task_transactions
from rpc.client import Client, ClientError, GatewayUnreachable, TaskEnded
from rpc.client.core import hexed
from state.primitives.hashing import digest
from state.primitives.keys import SecretKey
from state.primitives.listen import reached_at
from tasks.spec import encode_spec

__all__ = ["run_demonstration"]

MAX_PRICE_PER_GPU_S: Final = 2 * 10**14
GPU_MS_PER_STEP_MAX: Final = 500
MACHINES_TIMEOUT_S: Final = 90.0
TASK_TIMEOUT_S: Final = 600.0
COMPUTE_MIN: Final = 1
VERIFY_MIN: Final = 3


async def run_demonstration(home: Home, requester: SecretKey, say: Callable[[str], None]) -> str:
    """Post a training task through the node of ``home``, follow it, and print proofs and bill; return its id.

    Raises TaskEnded when it did not settle.
    """
    return await trio.to_thread.run_sync(_demonstrate, home, requester, say, abandon_on_cancel=True)


def _demonstrate(home: Home, requester: SecretKey, say: Callable[[str], None]) -> str:
    with Client(f"http://{reached_at(home.load_options().rpc.listen)}") as client:
        _wait_machines(client, say)
        seed = digest(b"demonstration", requester.address + client.head().at.height.to_bytes(8))
        job = make_digits_job(
            client,
            control=home.control,
            key=None,
            seed=seed,
            max_price_per_gpu_s=MAX_PRICE_PER_GPU_S,
            gpu_ms_per_step_max=GPU_MS_PER_STEP_MAX,
        )
        schedule = job.spec.schedule
        say(
            "\nPosting a task: train a classifier of handwritten digits, "
            f"{counted(schedule.total_steps, 'exact step')} in {counted(job.spec.windows, 'window')}; "
            f"data set blob 0x{job.dataset_blob.hex()}"
        )
        made = client.create_task(requester, encode_spec(job.spec)).id
        task = hexed(made)
        say(f"Task {task}")
        phase = follow(client, made, say, timeout_s=TASK_TIMEOUT_S)
        _show(client, made, say)
        if phase != "settled":
            raise TaskEnded(f"the task ended {phase}")
        say(f"Task {task} is SETTLED.")
        return task


def _wait_machines(client: Client, say: Callable[[str], None]) -> None:
    deadline = time.monotonic() + MACHINES_TIMEOUT_S
    say("\nWaiting until the machines have registered ...")
    while True:
        try:
            nodes = list(client.items("dekube_getNodes"))
        except (GatewayUnreachable, ClientError):  # still starting
            nodes = []
        compute = [node for node in nodes if "compute" in node["roles"]]
        verify = [node for node in nodes if "verify" in node["roles"]]
        if len(compute) >= COMPUTE_MIN and len(verify) >= VERIFY_MIN + COMPUTE_MIN:
            break
        if time.monotonic() > deadline:
            if compute and len(verify) > COMPUTE_MIN:
                break  # a small network: fewer verifiers are drawn
            raise TaskEnded(f"only {counted(len(nodes), 'machine')} registered in {MACHINES_TIMEOUT_S:.0f} s")
        time.sleep(0.5)
    rows = [
        {
            "machine": node["address"],
            "roles": node["roles"],
            "GPU": [gpu["model"] for gpu in node["gpus"]] or "none: processor",
            "speed": node["score"],
            "price": show_amount(int(node["price_per_gpu_s"])) + "/s",
            "bond": show_amount(int(node["bond"])),
        }
        for node in nodes
    ]
    show_rows(rows, ("machine", "roles", "GPU", "speed", "price", "bond"), as_json=False, title="Machines")


def _show(client: Client, task: bytes, say: Callable[[str], None]) -> None:
    rows = [
        {"height": t["height"], "kind": t["kind_name"], "from": t["from"], "transaction": t["hash"]}
        for t in task_transactions(client, task)
    ]
    show_rows(rows, ("height", "kind", "from", "transaction"), as_json=False, title="\nTransactions of the task")
    proofs = [
        {
            "window": window["number"],
            "steps": f"{window['proof']['step_from']}-{window['proof']['step_to']}",
            "state after": window["proof"]["state_root_out"],
            "checked": window["sampled"],
            "by": len(window["verifiers"]),
            "phase": window["phase"],
        }
        for window in client.items("dekube_getTaskWindows", task=hexed(task))
    ]
    show_rows(
        proofs,
        ("window", "steps", "state after", "checked", "by", "phase"),
        as_json=False,
        title="\nProofs of work",
    )
    found = client.bill(task)
    bill = [
        {
            "height": line.height,
            "movement": line.movement,
            "purpose": line.purpose,
            "window": line.window,
            "party": line.document["party"],
            "amount": show_amount(line.amount),
        }
        for line in found.lines
    ]
    show_rows(bill, ("height", "movement", "purpose", "window", "party", "amount"), as_json=False, title="\nBill")
    totals = found.totals
    parts = {name: getattr(totals, name) for name in ("locked", "paid", "refunded", "burned")}
    total = " + ".join(f"{name} {show_amount(amount)}" for name, amount in parts.items())
    exact = "exact" if totals.is_exact else "DOES NOT ADD UP"
    say(f"Sums: deposited {show_amount(totals.deposited)} = {total} ({exact})\n")
