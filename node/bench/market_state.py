"""A market of many tasks and machines, written as the rules would: the state of ``dekube bench market``."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from billing.escrow import Pool, Purpose, Vault
from state.primitives.codec import encode
from state.primitives.hashing import digest
from state.primitives.keys import SecretKey
from state.store.database import open_database
from state.store.options import StoreOptions
from state.store.readers import scan_state
from state.store.records import STATE
from state.transition.rules import BlockContext
from state.transition.runtime import Runtime
from state.view import Overlay
from state.view.accounts import credit
from tasks.ledger import registration, trials
from tasks.ledger.audits import SURE
from tasks.ledger.jobs import sizes_of
from tasks.ledger.lifecycle import Phase, Reason, WindowPhase
from tasks.ledger.open_task import Case, Scope
from tasks.ledger.parameters import TaskParameters
from tasks.ledger.records import Opened, Seat, TaskRecord, WindowRecord, by_duty_key, save_spec
from tasks.ledger.registry import NodeProfile, NodeRole
from tasks.ledger.settlement import budget_of
from tasks.proofs import Code, Finding, SegmentLeaf, WindowProof, segment_root, work_seal
from tasks.spec import Dataset, JobSpec, Model, Optimiser, Requirements, Schedule, classifier_job, encode_spec

__all__ = [
    "CHAIN_ID", "DKB", "HEIGHT", "NOW_MS", "PRICE", "SALT", "START_MS", "TRIAL_MS", "WORK", "Disk", "MarketState",
    "begin_round", "context_of", "ignore", "job_of", "leaves_of", "task_name", "window_of",
]  # fmt: skip

CHAIN_ID: Final = 2**31 - 3
START_MS: Final = 1_700_000_000_000
NOW_MS: Final = START_MS + 300_000
HEIGHT: Final = 32
"""Of the block that is executed; what is filled in stands since the first one."""
DKB: Final = 10**18
PRICE: Final = 3 * DKB
"""What machines ask for; parked tasks pay half of it."""
SALT, WORK = b"s" * 32, b"p" * 32
TRIAL_MS: Final = 1_000
"""Time of a speed trial: the chain has them."""
_ACCOUNT: Final = 10**24
_MEMORIES: Final = (0, 1 << 4, 1 << 8, 1 << 12, 1 << 15)
_SPEEDS: Final = (0, 1 << 6, 1 << 12)
CLASSES: Final = len(_MEMORIES) * len(_SPEEDS)
"""Classes of requirements that parked tasks have."""
_NAME: Final = b"\xee" * 32
"""Stands for the id of a task that many are copied from."""


class Disk:
    """A state in a database."""

    def __init__(self, path: Path) -> None:
        self._db = open_database(path, StoreOptions())

    def get(self, key: bytes) -> bytes | None:
        """Return the value at ``key``."""
        value: bytes | None = self._db.get(STATE + key)
        return value

    def scan(self, start: bytes, stop: bytes, limit: int) -> list[tuple[bytes, bytes]]:
        """Return the first ``limit`` entries from ``start`` on, below ``stop``."""
        return scan_state(self._db, start, stop, limit)

    def write(self, changes: dict[bytes, bytes | None]) -> None:
        """Write what is not deleted."""
        with self._db.write_batch() as batch:
            for key, value in changes.items():
                if value is not None:
                    batch.put(STATE + key, value)

    def close(self) -> None:
        """Close the database."""
        self._db.close()


def job_of(number: int = 0, *, price: int = PRICE // 2, windows: int = 3, match_ms: int = 86_400_000) -> JobSpec:
    """Return a job that no machine takes at its price, of one of the classes of requirements."""
    wanted = Requirements(0, _MEMORIES[number % len(_MEMORIES)], _SPEEDS[number % len(_SPEEDS)])
    return classifier_job(
        kind="train", level=3, profile="exact/2", model=Model("mlp", (64, 32, 10), "relu"),
        dataset=Dataset(b"d" * 32, b"D" * 32, 1797, 1437, 4), batch=32,
        optimiser=Optimiser("adamw", 1_000_000, 900_000_000, 999_000_000, 10, 0), seed=b"s" * 32,
        init_root=b"i" * 32, schedule=Schedule(20 * windows, 5, 20), max_price_per_tera_unit=price,
        requirements=wanted, match_ms=match_ms,
    )  # fmt: skip


def context_of(time_ms: int, runtime: Runtime) -> BlockContext:
    """Return the context in which the state is written."""
    beacon = digest(b"beacon", b"bench")
    return BlockContext(
        1, time_ms, 1, bytes(20), beacon, runtime.chain, CHAIN_ID, runtime.genesis_hash, 0, time_ms
    )  # fmt: skip


def ignore(_event: object) -> None:
    """Events of what is filled in are of no interest."""


class _Empty:
    """A state without records."""

    def get(self, _key: bytes) -> bytes | None:
        return None

    def scan(self, _start: bytes, _stop: bytes, _limit: int) -> list[tuple[bytes, bytes]]:
        return []


_EMPTY: Final = _Empty()


def task_name(number: int) -> bytes:
    """Return the id of a task of the benchmark."""
    return digest(b"bench-task", number.to_bytes(8, "big"))


def begin_round(state: Overlay) -> None:
    """Have a round of speed trials under way."""
    state.put(trials._ROUND, encode([digest(b"bench-round", b""), 0, 0]))


class MarketState:
    """Writes tasks and machines as the rules would, without their transactions."""

    def __init__(self, state: Overlay, block: BlockContext, parameters: TaskParameters) -> None:
        self.state = state
        self.parameters = parameters
        self.block = block

    def machine(self, key: SecretKey, rate: int) -> None:
        """Register a machine."""
        address = key.address
        credit(self.state, address, _ACCOUNT)
        roles = NodeRole.COMPUTE | NodeRole.VERIFY
        profile = NodeProfile(address, roles, (), 64, 64_000, 64, PRICE, rate, 16, 0, (), "bench")
        bond = self.parameters.node_bond_min
        registration.register(self.state, address, profile, bond, self.block, ignore, self.parameters)
        registered = trials.find_trial(self.state, address)
        if registered is not None:  # its first trial has measured what it says
            trial = registered._replace(due_ms=0, rate=rate, measured_ms=START_MS, cap=rate, cap_ms=START_MS)
            trials._save(self.state, registered, trial)

    def task(self, number: int, job: JobSpec, requester: bytes, **fields: Any) -> Case:
        """Write a task with its escrow; returns it open for changes."""
        task_id = _NAME if number < 0 else task_name(number)
        save_spec(self.state, task_id, encode_spec(job))
        times = dict.fromkeys(TaskRecord._fields, 0)
        values: dict[str, Any] = {
            **times, "id": task_id, "requester": requester, "phase": Phase.MATCHING, "reason": Reason.ADMITTED,
            "created_ms": START_MS, "changed_ms": START_MS, "match_by_ms": NOW_MS + 86_400_000, "worker": b"",
            "waker": b"",
            "excluded": (), "complaints": (), "target": job.windows, "state_root": job.init_root,
            "final_root": job.init_root, "history": 2, "sizes": sizes_of(job),
            "deadline_ms": NOW_MS + 86_400_000, **fields,
        }  # fmt: skip
        vault = Vault.create(self.state, task_id, requester, ignore, 0)
        checks = max(10 * DKB, budget_of(job, self.parameters).verification)
        vault.lock(Pool.PRICE, requester, 10 * DKB, Purpose.PRICE)
        vault.lock(Pool.VERIFICATION, requester, checks, Purpose.VERIFICATION)
        case = Case(Scope(self.state, self.block, ignore, self.parameters), TaskRecord(**values), is_new=True)
        case.vault = vault
        return case

    def parked(self, numbers: Iterable[int], requester: bytes) -> None:
        """Write parked tasks: copies of one for each class of requirements."""
        copied = []
        for at in range(CLASSES):
            alone = MarketState(Overlay(_EMPTY), self.block, self.parameters)
            credit(alone.state, requester, _ACCOUNT)
            alone.task(-1, job_of(at), requester, parked=1).save()
            changes = alone.state.changes.items()
            copied.append([(key, value) for key, value in changes if value is not None and _NAME in key])
        for number in numbers:
            name = task_name(number)
            for key, value in copied[number % CLASSES]:
                self.state.put(key.replace(_NAME, name), value.replace(_NAME, name))

    def running(self, number: int, requester: bytes, worker: bytes, verifiers: list[bytes], windows: int) -> bytes:
        """Write a task whose first ``windows`` windows wait for their worker's opening; returns its id."""
        job = job_of(price=PRICE, windows=windows + 1)
        case = self.task(
            number, job, requester, phase=Phase.RUNNING, reason=Reason.STARTED, worker=worker, busy=0, attempts=1,
            price_per_tera_unit=PRICE, next_window=windows, started_ms=START_MS,
        )  # fmt: skip
        case.vault.lock(Pool.BOND, worker, DKB, Purpose.WORKER_BOND, owner=worker)
        self.state.put(by_duty_key(worker, case.record.id), b"\x01")
        for window in range(windows):
            leaves = leaves_of(job, window)
            case.begin_window(window_of(case.record.id, job, window, leaves, worker, verifiers))
        case.save()
        return case.record.id


def leaves_of(job: JobSpec, window: int) -> list[SegmentLeaf]:
    """Return leaves of a window that fit together."""
    roots = [digest(b"bench-state", bytes([window, at])) for at in range(job.window_segments(window) + 1)]
    return [
        SegmentLeaf(
            at, *job.segment_range(window, at), roots[at], roots[at + 1], 0,
            work_seal(WORK, SALT), b"B" * 32,
        )
        for at in range(len(roots) - 1)
    ]  # fmt: skip


def window_of(
    task: bytes, job: JobSpec, number: int, leaves: list[SegmentLeaf], worker: bytes, verifiers: list[bytes]
) -> WindowRecord:
    """Return a window of which ``verifiers`` have revealed what they found, and that waits for its opening."""
    step_from, step_to = job.window_range(number)
    proof = WindowProof(
        task, number, step_from, step_to, leaves[0].state_root_before, leaves[-1].state_root_after,
        segment_root(leaves), len(leaves), b"L" * 32, b"O" * 32,
    )  # fmt: skip
    findings = tuple(Finding(leaf.segment, Code.COMPUTED, WORK, leaf.state_root_after, 0) for leaf in leaves)
    seats = tuple(Seat(verifier, b"v" * 32, findings) for verifier in verifiers)
    opened: tuple[Opened, ...] = ()
    return WindowRecord(
        task, number, WindowPhase.OPENING, Reason.OPENING_LATE, proof, worker, 0, NOW_MS + 60_000, 0,
        tuple(leaf.segment for leaf in leaves), seats, opened, (), 0, (), tuple(verifiers), (), DKB // 1000,
        5 * 10**14, 0, (), (), SURE, len(verifiers), 0, 0, 0,
    )  # fmt: skip
