"""`dekube bench market`: the worst blocks that anybody can buy, over a market of many tasks and machines.

The state lies in a database as a node has it, but without a trie. Each block is executed from the same state, so
that none helps another. Its transactions are signed and recovered before: a node does that in other processes.
Times are of the processor, so that other work on the machine counts little.
"""

from __future__ import annotations

import gc
import statistics
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from time import process_time
from typing import Any, Final, NamedTuple

from billing.escrow import Pool, Purpose, Vault
from node.bench.transfers import secret_of
from node.chain.runtime import make_runtime
from state.primitives.codec import Value
from state.primitives.genesis import Genesis, GenesisValidator
from state.primitives.hashing import digest
from state.primitives.keys import SecretKey
from state.primitives.transactions import decode_transaction, sign_transaction
from state.primitives.vrf import vrf_key_of
from state.store.database import open_database
from state.store.options import StoreOptions
from state.store.readers import scan_state
from state.store.records import STATE
from state.transition.rules import BlockContext
from state.transition.runtime import BlockInput, Execution, Runtime
from state.view import Overlay, Reader
from state.view.accounts import balance_of, credit, debit
from tasks.ledger import registration, registry
from tasks.ledger.audits import SURE, bond_floor
from tasks.ledger.lifecycle import Phase, Reason, WindowPhase
from tasks.ledger.open_task import WORKER_ASSIGNED, Case, Scope
from tasks.ledger.parameters import TaskParameters
from tasks.ledger.records import Opened, Seat, TaskRecord, WindowRecord, by_duty_key, save_spec
from tasks.ledger.registry import NodeProfile, NodeRole
from tasks.ledger.settlement import Bonds, budget_of
from tasks.ledger.transitions import OPEN_WINDOW, UPDATE_NODE, node_payload
from tasks.proofs import (
    Code,
    Finding,
    Opening,
    SegmentLeaf,
    WindowProof,
    make_opening,
    opening_to_value,
    segment_root,
    work_seal,
)
from tasks.spec import Dataset, JobSpec, Model, Optimiser, Requirements, Schedule, encode_spec

__all__ = ["run"]

CHAIN_ID: Final = 2**31 - 3
START_MS: Final = 1_700_000_000_000
NOW_MS: Final = START_MS + 300_000
HEIGHT: Final = 8
"""Of the block that is executed; what is filled in stands since the first one."""
DKB: Final = 10**18
PRICE: Final = 3 * DKB
"""What machines ask for; parked tasks pay half of it."""
GAS_LIMIT: Final = 300_000_000
_RATE: Final = 1 << 28
"""Of the first machine; each has another one, so that no bond is that of another machine."""
_VERIFIERS: Final = 1 << 41
"""The first key of the verifiers that share an operator."""
_BATCH: Final = 50_000
_ACCOUNT: Final = 10**24
_SALT, _WORK = b"s" * 32, b"p" * 32
_MEMORIES: Final = (0, 1 << 4, 1 << 8, 1 << 12, 1 << 15)
_SPEEDS: Final = (0, 1 << 6, 1 << 12)
Fill = Callable[[Overlay], None]


class _Disk:
    """A state in a database."""

    def __init__(self, path: Path) -> None:
        self._db = open_database(path, StoreOptions())

    def get(self, key: bytes) -> bytes | None:
        value: bytes | None = self._db.get(STATE + key)
        return value

    def scan(self, start: bytes, stop: bytes, limit: int) -> list[tuple[bytes, bytes]]:
        return scan_state(self._db, start, stop, limit)

    def write(self, changes: dict[bytes, bytes | None]) -> None:
        with self._db.write_batch() as batch:
            for key, value in changes.items():
                if value is not None:
                    batch.put(STATE + key, value)

    def close(self) -> None:
        self._db.close()


class _Block(NamedTuple):
    """What is put into the state before a block, and the block's transactions: sender, kind, payload."""

    fill: Fill
    body: tuple[tuple[SecretKey, int, list[Value]], ...]


def _job(number: int = 0, *, price: int = PRICE // 2, windows: int = 3, match_ms: int = 86_400_000) -> JobSpec:
    """Return a job that no machine takes at its price, of one of the classes of requirements."""
    wanted = Requirements(0, _MEMORIES[number % len(_MEMORIES)], _SPEEDS[number % len(_SPEEDS)])
    return JobSpec(
        kind="train", level=3, profile="exact/2", model=Model("mlp", (64, 32, 10), "relu"),
        dataset=Dataset(b"d" * 32, b"D" * 32, 1797, 1437, 4), batch=32,
        optimiser=Optimiser("adamw", 1_000_000, 900_000_000, 999_000_000, 10, 0), seed=b"s" * 32,
        init_root=b"i" * 32, schedule=Schedule(20 * windows, 5, 20), max_price_per_tera_unit=price,
        requirements=wanted, match_ms=match_ms,
    )  # fmt: skip


def _context(time_ms: int, runtime: Runtime) -> BlockContext:
    return BlockContext(
        1, time_ms, 1, bytes(20), digest(b"beacon", b"bench"), runtime.chain, CHAIN_ID, runtime.genesis_hash, 0
    )


def _ignore(_event: object) -> None:
    """Events of what is filled in are of no interest."""


class _Market:
    """Writes tasks and machines as the rules would, without their transactions."""

    def __init__(self, state: Overlay, runtime: Runtime, parameters: TaskParameters) -> None:
        self.state = state
        self.parameters = parameters
        self.block = _context(START_MS, runtime)

    def machine(self, key: SecretKey, rate: int) -> None:
        address = key.address
        credit(self.state, address, _ACCOUNT)
        roles = NodeRole.COMPUTE | NodeRole.VERIFY
        profile = NodeProfile(address, roles, (), 64, 64_000, 64, PRICE, rate, 16, 0, (), "bench")
        bond = self.parameters.node_bond_min
        registration.register(self.state, address, profile, bond, self.block, _ignore, self.parameters)

    def task(self, number: int, job: JobSpec, requester: bytes, **fields: Any) -> Case:
        """Write a task with its escrow; returns it open for changes."""
        task_id = digest(b"bench-task", number.to_bytes(8, "big"))
        save_spec(self.state, task_id, encode_spec(job))
        times = dict.fromkeys(TaskRecord._fields, 0)
        values: dict[str, Any] = {
            **times, "id": task_id, "requester": requester, "phase": Phase.MATCHING, "reason": Reason.ADMITTED,
            "created_ms": START_MS, "changed_ms": START_MS, "match_by_ms": NOW_MS + 86_400_000, "worker": b"",
            "waker": b"",
            "diverged": (), "excluded": (), "target": job.windows, "state_root": job.init_root,
            "final_root": job.init_root, "history": 2, "deadline_ms": NOW_MS + 86_400_000, **fields,
        }  # fmt: skip
        vault = Vault.create(self.state, task_id, requester, _ignore, 0)
        checks = max(10 * DKB, budget_of(job, self.parameters).verification)
        vault.lock(Pool.PRICE, requester, 10 * DKB, Purpose.PRICE)
        vault.lock(Pool.VERIFICATION, requester, checks, Purpose.VERIFICATION)
        case = Case(Scope(self.state, self.block, _ignore, self.parameters), TaskRecord(**values), is_new=True)
        case.vault = vault
        return case

    def parked(self, number: int, requester: bytes) -> None:
        self.task(number, _job(number), requester, parked=1).save()

    def running(self, number: int, requester: bytes, worker: bytes, verifiers: list[bytes], windows: int) -> bytes:
        """Write a task whose first ``windows`` windows wait for their worker's opening; returns its id."""
        job = _job(price=PRICE, windows=windows + 1)
        case = self.task(
            number, job, requester, phase=Phase.RUNNING, reason=Reason.STARTED, worker=worker, busy=0, attempts=1,
            price_per_tera_unit=PRICE, next_window=windows, started_ms=START_MS,
        )  # fmt: skip
        case.vault.lock(Pool.BOND, worker, DKB, Purpose.WORKER_BOND, owner=worker)
        self.state.put(by_duty_key(worker, case.record.id), b"\x01")
        for window in range(windows):
            leaves = _leaves(job, window)
            case.begin_window(_window(case.record.id, job, window, leaves, worker, verifiers))
        case.save()
        return case.record.id


def _leaves(job: JobSpec, window: int) -> list[SegmentLeaf]:
    roots = [digest(b"bench-state", bytes([window, at])) for at in range(job.window_segments(window) + 1)]
    return [
        SegmentLeaf(
            at, *job.segment_range(window, at), roots[at], roots[at + 1], 0,
            work_seal(_WORK, _SALT), b"B" * 32,
        )
        for at in range(len(roots) - 1)
    ]  # fmt: skip


def _window(
    task: bytes, job: JobSpec, number: int, leaves: list[SegmentLeaf], worker: bytes, verifiers: list[bytes]
) -> WindowRecord:
    step_from, step_to = job.window_range(number)
    proof = WindowProof(
        task, number, step_from, step_to, leaves[0].state_root_before, leaves[-1].state_root_after,
        segment_root(leaves), len(leaves), b"L" * 32, b"O" * 32,
    )  # fmt: skip
    findings = tuple(Finding(leaf.segment, Code.COMPUTED, _WORK, leaf.state_root_after, 0) for leaf in leaves)
    seats = tuple(Seat(verifier, b"v" * 32, findings) for verifier in verifiers)
    opened: tuple[Opened, ...] = ()
    return WindowRecord(
        task, number, WindowPhase.OPENING, Reason.OPENING_LATE, proof, worker, 0, NOW_MS + 60_000, 0,
        tuple(leaf.segment for leaf in leaves), seats, opened, -1, (), tuple(verifiers), (), DKB // 1000,
        5 * 10**14, 0, (), (), SURE, len(verifiers), 0, 0,
    )  # fmt: skip


class _Bench:
    """The filled state and the blocks over it."""

    def __init__(self, disk: _Disk, tasks: int, machines: int) -> None:
        self.tasks = tasks
        self.keys = [secret_of(number) for number in range(max(machines, 4))]
        self.requester = secret_of(1 << 40)
        self.validator = secret_of((1 << 40) + 1)
        stake = GenesisValidator(
            self.validator.address, self.validator.vote_key, vrf_key_of(self.validator).public, 1_000 * DKB
        )
        self.runtime = make_runtime(Genesis(CHAIN_ID, "bench", START_MS, True, (), (stake,), ()))
        self.parameters = TaskParameters()
        self.disk = disk
        for changes in self._filled():
            disk.write(changes)

    def _filled(self) -> Iterator[dict[bytes, bytes | None]]:
        yield self.runtime.genesis_changes()
        for start in range(0, max(self.tasks, len(self.keys)), _BATCH):
            state = Overlay(self.disk)
            market = _Market(state, self.runtime, self.parameters)
            if not start:
                credit(state, self.requester.address, 10**30)
            for at, key in enumerate(self.keys[start : start + _BATCH], start):
                market.machine(key, _RATE + at * (_RATE >> 10))
            for number in range(start, min(self.tasks, start + _BATCH)):
                market.parked(number, self.requester.address)
            yield {key: value for key, value in state.changes.items() if not _is_wake(key)}

    def _searching(self, state: Overlay, count: int, price: int) -> Iterator[Case]:
        """Yield tasks of as many requesters; no two have the same bond for a machine."""
        market = _Market(state, self.runtime, self.parameters)
        for at in range(count):
            requester = secret_of((1 << 42) + at).address
            credit(state, requester, 10**30)
            yield market.task(
                self.tasks + at, _job(price=price + at), requester, match_at_ms=START_MS,
                changed_ms=START_MS, history=at,
            )  # fmt: skip

    def call(self) -> _Block:
        """No transaction: a call with more bids than it takes, for all of which there is a machine."""
        return _Block(partial(self._fill_bids, price=2 * PRICE), ())

    def hopeless_call(self) -> _Block:
        """No transaction: a call of bids that all machines want, none of which can quite lock a bond."""
        return _Block(self._fill_hopeless, ())

    def _fill_hopeless(self, state: Overlay) -> None:
        self._fill_bids(state, price=2 * PRICE)
        bonds = Bonds(_job(price=2 * PRICE), 0, self.parameters)
        for key in self.keys:
            node = registry.require_node(state, key.address)
            floor = bond_floor(self.runtime.base_fee(state), is_new=bonds.is_new(node), parameters=self.parameters)
            short = bonds.at(PRICE, node.profile.rate, floor) - 1
            debit(state, key.address, balance_of(state, key.address) - short)

    def shared_call(self) -> _Block:
        """No transaction: a call where each machine has an owner of its own, and all verifiers have the same."""

        def fill(state: Overlay) -> None:
            self._fill_hopeless(state)
            owner = secret_of(_VERIFIERS).address
            for at, key in enumerate(self.keys):
                node = registry.require_node(state, key.address)
                profile = node.profile._replace(
                    roles=NodeRole.COMPUTE, operator=digest(b"owner", key.address)[:20]
                )
                self._put(state, node._replace(profile=profile))
                if at < self.parameters.candidates_max:
                    address = secret_of(_VERIFIERS + 1 + at).address
                    profile = profile._replace(roles=NodeRole.VERIFY, operator=owner)
                    self._put(state, node._replace(address=address, profile=profile))

        return _Block(fill, ())

    def _put(self, state: Overlay, node: registry.NodeRecord) -> None:
        registry.save_node(state, node)
        registry.index(state, node, self.parameters)

    def scarce_call(self) -> _Block:
        """No transaction: a call of bids that compete for few slots, so that losers set prices."""

        def fill(state: Overlay) -> None:
            self._fill_bids(state, price=2 * PRICE)
            for key in self.keys[4:]:
                node = registry.require_node(state, key.address)
                registry.save_node(state, node._replace(busy_slots=node.profile.slots))

        return _Block(fill, ())

    def _fill_bids(self, state: Overlay, price: int) -> None:
        for case in self._searching(state, 2 * self.parameters.bids_per_call, price):
            case.save()

    def openings(self) -> _Block:
        """Only openings of windows with three verifiers."""
        count = GAS_LIMIT // self.runtime.rules[OPEN_WINDOW].gas
        worker, verifiers = self.keys[0], [key.address for key in self.keys[1:4]]
        leaves = _leaves(_job(price=PRICE, windows=2), 0)
        shown: list[Opening] = [make_opening(leaves, at, _WORK, _SALT) for at in range(len(leaves))]
        ids: list[bytes] = []

        def fill(state: Overlay) -> None:
            market = _Market(state, self.runtime, self.parameters)
            running = partial(market.running, requester=self.requester.address, worker=worker.address)
            ids.extend(running(self.tasks + at, verifiers=verifiers, windows=1) for at in range(count))

        fill(Overlay(self.disk))
        values: list[Value] = [opening_to_value(opening) for opening in shown]
        return _Block(fill, tuple((worker, OPEN_WINDOW, [task, 0, values]) for task in ids[:count]))

    def updates(self) -> _Block:
        """Only updates of machines that ask for next to nothing now: each wakes parked tasks."""
        count = min(len(self.keys), GAS_LIMIT // self.runtime.rules[UPDATE_NODE].gas)
        body = []
        for key in self.keys[:count]:
            node = registry.require_node(self.disk, key.address)
            body.append((key, UPDATE_NODE, node_payload(node.profile._replace(price_per_tera_unit=1), 0)))
        return _Block(lambda state: None, tuple(body))

    def deadlines(self) -> _Block:
        """No transaction: deadlines, each of which voids as many windows as a task may have open."""
        return _Block(self._fill_deadlines, ())

    def _fill_deadlines(self, state: Overlay) -> None:
        market = _Market(state, self.runtime, self.parameters)
        verifiers = [key.address for key in self.keys[1:4]]
        for at in range(64):
            number = 2 * self.tasks + at
            windows = self.parameters.open_windows_max
            task = market.running(number, self.requester.address, self.keys[0].address, verifiers, windows)
            case = Case.load(Scope(state, market.block, _ignore, self.parameters), task)
            case.put_window(case.window(0)._replace(deadline_ms=NOW_MS - 1))
            case.save()

    def everything(self) -> _Block:
        """Updates, and at the end of the block deadlines and a call in full."""
        updates, call = self.updates(), self.call()

        def fill(state: Overlay) -> None:
            call.fill(state)
            self._fill_deadlines(state)

        return _Block(fill, updates.body)

    def execute(self, block: _Block, repeats: int) -> tuple[float, Execution]:
        """Return the median time of ``repeats`` executions in milliseconds, and what one of them did."""
        times = []
        proof = vrf_key_of(self.validator).prove(HEIGHT.to_bytes(8, "big"))
        for _ in range(repeats):
            parent: Overlay = Overlay(self.disk)
            block.fill(parent)
            checked = [self.runtime.check(transaction) for transaction in self._signed(parent, block)]
            given = BlockInput(HEIGHT, 0, HEIGHT, 0, NOW_MS, self.runtime.base_fee(parent), proof)
            gc.collect()
            begun_s = process_time()
            execution = self.runtime.execute(parent, given, checked)
            times.append(1000 * (process_time() - begun_s))
        refused = [receipt for receipt in execution.receipts if receipt[1] != 1]
        if refused:
            raise AssertionError(f"{len(refused)} of {len(checked)} transactions were refused")
        return statistics.median(times), execution

    def _signed(self, state: Reader, block: _Block) -> Iterator[Any]:
        nonces: dict[bytes, int] = {}
        for key, kind, payload in block.body:
            nonce = nonces.get(key.address, 0)
            nonces[key.address] = nonce + 1
            raw = sign_transaction(
                key, chain_id=CHAIN_ID, nonce=nonce, kind=kind, payload=payload, gas_limit=GAS_LIMIT,
                max_fee_per_gas=10**10, max_priority_fee_per_gas=0,
            )  # fmt: skip
            transaction = decode_transaction(raw)
            transaction.recover_sender()
            yield transaction


def _is_wake(key: bytes) -> bool:
    """Tell whether a change is a machine's look that its registration asks for: the state is at rest."""
    return key[0] == 0x23 and key[1] & 0x20 != 0 and not key[1] & 0xC0


def _matched(execution: Execution) -> int:
    topic = WORKER_ASSIGNED.topic
    return sum(event.topics[0] == topic for events in execution.events for event in events)


def run(*, tasks: int = 100_000, machines: int = 1_000, repeats: int = 3) -> dict[str, float]:
    """Fill a state with ``tasks`` parked tasks and ``machines`` machines; return the times of the worst blocks.

    ``matches_per_s`` counts the workers that a call assigns, by the time of the block in which it is.
    """
    with tempfile.TemporaryDirectory(prefix="dekube-market-") as name:
        disk = _Disk(Path(name))
        try:
            begun_s = process_time()
            bench = _Bench(disk, tasks, machines)
            figures: dict[str, float] = {
                "tasks": tasks, "machines": machines, "fill_s": round(process_time() - begun_s, 1),
            }  # fmt: skip
            for block in (
                bench.openings, bench.updates, bench.deadlines, bench.call, bench.scarce_call, bench.hopeless_call,
                bench.shared_call, bench.everything,
            ):  # fmt: skip
                taken_ms, execution = bench.execute(block(), repeats)
                figures[f"{block.__name__}_block_ms"] = round(taken_ms, 1)
                if block == bench.call:
                    figures["matches_per_s"] = round(1000 * _matched(execution) / taken_ms)
                    if not _matched(execution):
                        raise AssertionError("the call of the benchmark matched nothing")
        finally:
            disk.close()
    times = [value for name, value in figures.items() if name.endswith("_block_ms")]
    return {"worst_block_ms": max(times), **figures}
