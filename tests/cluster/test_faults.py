"""Members of a task crash (kill -9) or hang (SIGSTOP) in each phase of it: it settles, and nobody honest pays.

``make test`` has one case, in which a verifier crashes while the worker hangs. The others are nightly, and take up
to three minutes.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

import pytest

from node.home.paths import Home
from node.market.posting import make_digits_job
from rpc.client import Client
from rpc.client.results import BillLine, Task
from state.primitives.address import parse_address
from state.primitives.hashing import digest
from tasks.ledger.registry import bond_id
from tasks.spec import encode_spec
from testnet.demonstration import MAX_PRICE_PER_TERA_UNIT, wait_machines
from testnet.plan import derive_key
from testnet.scenarios.books import Books, make_books
from tests.cluster.network import Network, network, wait_for

pytestmark = pytest.mark.cluster

SIZES: Final[Mapping[str, Any]] = {
    "widths": (64, 128, 10), "total_steps": 1_200, "segment_steps": 100, "window_steps": 400,
}  # fmt: skip
"""Three windows of four segments: some seconds of work."""
PHASE_PATIENCE_S: Final = 90.0
SETTLE_PATIENCE_S: Final = 600.0
LOSS_BPS_MAX: Final = 500
"""What a fault may cost, of the price of a window."""
TASK_PHASES: Final = ("preparing", "running")
OVER: Final = ("settled", "failed", "cancelled")


class Fault(NamedTuple):
    """``victim`` is hit when the task or its window 0 is in ``phase``: it hangs so long; None: it crashes."""

    victim: str
    phase: str
    hangs_s: float | None

    def __str__(self) -> str:
        return f"{self.victim}-{self.phase}-" + ("killed" if self.hangs_s is None else f"{self.hangs_s:.0f}s")


PARAMETERS: Final[Mapping[str, int]] = {
    "prepare_ms": 900_000, "window_grace_ms": 600_000, "seal_ms_min": 600_000, "reveal_ms": 120_000,
    "window_extra_ms": 3_600_000, "opening_extra_ms": 14_400_000, "serve_ms": 86_400_000, "audit_bps": 10_000,
    "verifiers": 2, "verifiers_sure": 2,
}  # fmt: skip
"""Two verifiers audit each window, so that one is not the gateway that is asked here. Deadlines are those of a
chain for everybody: a machine may hang for minutes."""
SHORT_S: Final = 10.0
"""How long the worker hangs in ``make test``."""
MATRIX: Final = tuple(
    Fault(victim, phase, hangs_s)
    for victim, phases in {
        "worker": (*TASK_PHASES, "sealing", "revealing", "opening"),
        "verifier": ("sealing", "revealing"),
        "validator": ("running", "sealing"),
    }.items()
    for phase in phases
    for hangs_s in (None, 30.0, 180.0)
)


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Network]:
    deadlines = [
        option for name, number in PARAMETERS.items() for option in ("--parameter", f"tasks.{name}={number}")
    ]
    with network(tmp_path_factory.mktemp("faults"), "--no-task", *deadlines) as made:
        made.start()
        made.wait_up()
        with client_of(made) as client:
            wait_machines(client)
        yield made


def test_a_task_settles_though_its_worker_hangs_and_a_verifier_crashes_meanwhile(running: Network) -> None:
    """Verifiers ask for the window's blobs until the worker is back."""
    hangs, crashes = Fault("worker", "sealing", SHORT_S), Fault("verifier", "sealing", None)
    with settles(running, "sample") as (client, task):

        def look() -> tuple[str, str] | None:
            worker, verifier = (who_is_hit(running, client, task, fault) for fault in (hangs, crashes))
            return None if worker is None or verifier is None else (worker, verifier)

        worker, verifier = wait_for(look, "a window is checked", patience_s=PHASE_PATIENCE_S)
        with stopped(running, worker):
            hit(running, verifier, crashes)
            time.sleep(SHORT_S)


@pytest.mark.nightly
@pytest.mark.parametrize("fault", MATRIX, ids=str)
def test_a_task_settles_whoever_crashes_or_hangs(running: Network, fault: Fault) -> None:
    with settles(running, str(fault)) as (client, task):
        victim = wait_for(
            lambda: who_is_hit(running, client, task, fault), f"{fault}", patience_s=PHASE_PATIENCE_S
        )
        hit(running, victim, fault)


@contextmanager
def settles(running: Network, name: str) -> Iterator[tuple[Client, bytes]]:
    """Post a task, and check after what was done to it that it settles and that nobody honest has paid."""
    with client_of(running) as client:
        before = bond_lines(client)
        failures = {node["address"]: node["failures"] for node in client.items("dekube_getNodes")}
        task = post(running, client, name)
        yield client, task
        ended = wait_for(
            lambda: found if (found := task_of(client, task)).phase in OVER else None, "the task ends",
            patience_s=SETTLE_PATIENCE_S,
        )  # fmt: skip
        assert ended.phase == "settled"
        books = settled_books(client, task, before)
        price = max(window.charge for window in client.task_windows(task))
        after = {node["address"]: node["failures"] for node in client.items("dekube_getNodes")}
    assert books.is_exact
    machines = {address: books.gains.get(address, 0) for address in before}
    assert min(machines.values()) >= -price * LOSS_BPS_MAX // 10_000, machines
    assert all(count <= failures.get(address, 0) for address, count in after.items())


def client_of(running: Network) -> Client:
    return Client(running.url("validator-0"))


def task_of(client: Client, task: bytes) -> Task:
    found = client.task(task)
    assert found is not None
    return found


def post(running: Network, client: Client, name: str) -> bytes:
    """Post a job of its own for each case; return its id."""
    job = make_digits_job(
        client, control=Home(running.root / "validator-0").control, key=None,
        seed=digest(b"scenario", name.encode()), max_price_per_tera_unit=MAX_PRICE_PER_TERA_UNIT, **SIZES,
    )  # fmt: skip
    return client.create_task(derive_key(1, "requester"), encode_spec(job.spec)).id


def who_is_hit(running: Network, client: Client, task: bytes, fault: Fault) -> str | None:
    """Return the member that is hit, once the task or its first window is in the phase of the fault."""
    found = task_of(client, task)
    assert found.phase not in OVER, "it ended before the phase was seen"
    windows: list[dict[str, Any]] = list(client.items("dekube_getTaskWindows", task="0x" + task.hex()))
    if fault.phase in TASK_PHASES:
        is_time = found.phase == fault.phase
    else:
        is_time = bool(windows) and windows[0]["phase"] == fault.phase
    if not is_time or found.worker is None:
        return None
    names = {parse_address(row["address"]): row["name"] for row in running.verb("list") if row["role"] != "relay"}
    if fault.victim == "worker":
        return str(names[found.worker])
    if fault.victim == "validator":
        return "validator-3"
    seats = [names[parse_address(seat["address"])] for seat in windows[0]["verifiers"]]
    return next((name for name in seats if name != "validator-0"), None)


def hit(running: Network, victim: str, fault: Fault) -> None:
    """Let the fault happen, and heal."""
    if fault.hangs_s is None:
        running.verb("kill", victim)
        running.verb("restart", victim)
        return
    with stopped(running, victim):
        time.sleep(fault.hangs_s)


@contextmanager
def stopped(running: Network, victim: str) -> Iterator[None]:
    """Let a member hang for a while."""
    [pid] = [row["pid"] for row in running.verb("list") if row["name"] == victim]
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def bond_lines(client: Client) -> dict[bytes, int]:
    """Return how many lines the bill of each machine's bond has."""
    return {
        address: len(client.bill(bond_id(address)).lines)
        for address in (parse_address(node["address"]) for node in client.items("dekube_getNodes"))
    }


def settled_books(client: Client, task: bytes, before: Mapping[bytes, int]) -> Books:
    """Return the books once nothing is locked in the task any more."""

    def look() -> Books | None:
        lines: dict[bytes, list[BillLine]] = {
            address: list(client.bill(bond_id(address)).lines[known:]) for address, known in before.items()
        }
        books = make_books([client.bill(task)], lines)
        return None if books.locked else books

    return wait_for(look, "bonds returned")
