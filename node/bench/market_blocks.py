"""Blocks over a large market: each fills what a block may hold with the dearest of one kind.

Every block is executed from the same state, so that none helps another. Its transactions are signed and recovered
before: a node does that in other processes. Their payloads are read in the time of the block. Times are of the
thread on the processor: neither other work on the machine counts, nor what the database does beside. Records of
machines are in memory, as in a node that has run for a while.
"""

from __future__ import annotations

import gc
import statistics
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from time import thread_time
from typing import Any, Final, NamedTuple

from billing.escrow import Pool, Purpose
from node.bench.market_state import (
    CHAIN_ID,
    DKB,
    HEIGHT,
    NOW_MS,
    PRICE,
    SALT,
    START_MS,
    TRIAL_MS,
    WORK,
    Disk,
    MarketState,
    begin_round,
    context_of,
    ignore,
    job_of,
    leaves_of,
    window_of,
)
from node.bench.transfers import secret_of
from node.chain.runtime import make_runtime
from state.primitives.codec import Value
from state.primitives.genesis import Genesis, GenesisValidator
from state.primitives.hashing import digest
from state.primitives.keys import SecretKey
from state.primitives.transactions import decode_transaction, sign_transaction
from state.primitives.vrf import vrf_key_of
from state.transition.runtime import BlockInput, Execution
from state.transition.transfer import TRANSFER_KIND, transfer_payload
from state.view import Overlay, Reader
from state.view.accounts import balance_of, credit, debit
from tasks.custody.chunks import BlobCommitment
from tasks.dispute.commitments import StepRecord
from tasks.dispute.moves import Move, ShowRecords, encode_move
from tasks.engines import plan, tuning_plan
from tasks.kinds import classifier, finetune
from tasks.ledger import jobs, registry
from tasks.ledger.audits import bond_floor
from tasks.ledger.block_end import CALL_EVENTS_MAX
from tasks.ledger.capacity import owe
from tasks.ledger.custody_records import CustodyPhase, CustodyRecord, Terms, save_custody, save_terms
from tasks.ledger.custody_transitions import TAKE_CUSTODY
from tasks.ledger.dispute_transitions import MOVE
from tasks.ledger.disputes import Challenger
from tasks.ledger.dockets import begin_dispute
from tasks.ledger.lifecycle import Phase, Reason, WindowPhase
from tasks.ledger.open_task import Case, Scope
from tasks.ledger.parameters import TaskParameters
from tasks.ledger.records import Opened, Seat, by_duty_key, by_verifier_key
from tasks.ledger.registry import NodeProfile, NodeRole
from tasks.ledger.seats import check_time
from tasks.ledger.settlement import Bonds
from tasks.ledger.transitions import (
    CREATE_TASK,
    HEARTBEAT,
    OPEN_WINDOW,
    REGISTER_NODE,
    REVEAL_VERDICT,
    SEAL_VERDICT,
    SUBMIT_WINDOW,
    SUSPEND_NODE,
    UPDATE_NODE,
    node_payload,
)
from tasks.proofs import (
    Code,
    Finding,
    Opening,
    WindowProof,
    findings_to_value,
    make_opening,
    opening_to_value,
    segment_root,
    verdict_seal,
    window_proof_to_value,
)
from tasks.spec import JobSpec, Model, encode_spec

__all__ = ["LONG", "Blocks", "HostileBlock", "forget", "joined", "sent"]

GAS_LIMIT: Final = 300_000_000
_RATE: Final = 1 << 28
"""Of the first machine; each has another one, so that no bond is that of another machine."""
_VERIFIERS: Final = 1 << 41
"""The first key of the verifiers that share an operator."""
_NEW: Final = 1 << 43
"""The first key of machines that are not registered."""
_DUE: Final = 1 << 44
"""The first number of tasks with deadlines."""
LONG: Final = 100
"""Windows of a bid that a call is made dear with: how many a bond covers follows from each machine's rate."""
_BATCH: Final = 50_000
Fill = Callable[[Overlay], None]
Body = tuple[tuple[SecretKey, int, list[Value]], ...]


def forget() -> None:
    """Drop what was built of jobs: those of a block are jobs that no node has seen before."""
    plan._program.cache_clear()
    tuning_plan._HELD.forget()
    for kept in (jobs.kept_job, classifier._plan, finetune._plan):
        kept.cache_clear()


class HostileBlock(NamedTuple):
    """What is put into the state before a block, and the block's transactions: sender, kind, payload."""

    fill: Fill
    body: Body = ()
    is_refused: bool = False
    """Whether its transactions are refused, after what is dear about them."""


def joined(body: HostileBlock, hook: HostileBlock) -> HostileBlock:
    """Return the transactions of one block with what another one has its end do."""

    def fill(state: Overlay) -> None:
        hook.fill(state)
        body.fill(state)

    return body._replace(fill=fill)


class Blocks:
    """The filled state and the blocks over it."""

    def __init__(self, disk: Disk, tasks: int, machines: int) -> None:
        self.tasks = tasks
        self.keys = [secret_of(number) for number in range(max(machines, 4))]
        self.requester = secret_of(1 << 40)
        self.validator = secret_of((1 << 40) + 1)
        stake = GenesisValidator(
            self.validator.address, self.validator.vote_key, vrf_key_of(self.validator).public, 1_000 * DKB
        )
        values = (("tasks.custody_copies", 2), ("tasks.trial_ms", TRIAL_MS))
        self.runtime = make_runtime(Genesis(CHAIN_ID, "bench", START_MS, True, (), (stake,), values))
        self.parameters = TaskParameters(custody_copies=2, trial_ms=TRIAL_MS)
        self.disk = disk
        for changes in self._filled():
            disk.write(changes)

    def scope(self, state: Overlay) -> Scope:
        """Return what the records in ``state`` are changed under."""
        return Scope(state, self.market(state).block, ignore, self.parameters)

    def market(self, state: Overlay) -> MarketState:
        """Return what writes tasks and machines into ``state``."""
        return MarketState(state, context_of(START_MS, self.runtime), self.parameters)

    def _filled(self) -> Iterator[dict[bytes, bytes | None]]:
        yield self.runtime.genesis_changes()
        for start in range(0, max(self.tasks, len(self.keys)), _BATCH):
            state = Overlay(self.disk)
            market = self.market(state)
            if not start:
                credit(state, self.requester.address, 10**30)
                begin_round(state)
            for at, key in enumerate(self.keys[start : start + _BATCH], start):
                market.machine(key, _RATE + at * (_RATE >> 10))
            market.parked(range(start, min(self.tasks, start + _BATCH)), self.requester.address)
            yield {key: value for key, value in state.changes.items() if not _is_wake(key)}

    def _searching(
        self, state: Overlay, count: int, price: int, windows: int, **fields: Any
    ) -> Iterator[Case]:  # fmt: skip
        """Yield tasks of as many requesters; no two have the same bond for a machine."""
        market = self.market(state)
        for at in range(count):
            requester = secret_of((1 << 42) + at).address
            credit(state, requester, 10**30)
            yield market.task(
                self.tasks + at, job_of(price=price + at, windows=windows), requester, match_at_ms=START_MS,
                changed_ms=START_MS, history=at, **fields,
            )  # fmt: skip

    def call(self) -> HostileBlock:
        """No transaction: a call with more bids than it takes, for all of which there is a machine."""
        return HostileBlock(partial(self._fill_bids, price=2 * PRICE))

    def hopeless_call(self) -> HostileBlock:
        """No transaction: a call of bids that all machines want, none of which can quite lock a bond."""
        return HostileBlock(self._fill_hopeless)

    def _fill_hopeless(self, state: Overlay) -> None:
        self._fill_bids(state, price=2 * PRICE, windows=LONG)
        self._make_poor(state)

    def _make_poor(self, state: Overlay) -> None:
        """Leave each machine a little less than its bond for the bids of a hopeless call."""
        bonds = Bonds(job_of(price=2 * PRICE, windows=LONG), 0, self.parameters)
        for key in self.keys:
            node = registry.require_node(state, key.address)
            is_new = bonds.is_new(node, node.profile.price_per_tera_unit)
            floor = bond_floor(self.runtime.base_fee(state), is_new=is_new, parameters=self.parameters)
            short = bonds.at(PRICE, node.profile.rate, floor) - 1
            debit(state, key.address, balance_of(state, key.address) - short)

    def shared_call(self) -> HostileBlock:
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

        return HostileBlock(fill)

    def _put(self, state: Overlay, node: registry.NodeRecord) -> None:
        registry.save_node(state, node)
        registry.index(state, node, self.parameters)

    def scarce_call(self) -> HostileBlock:
        """No transaction: a call of bids that compete for few slots, so that losers set prices."""

        def fill(state: Overlay) -> None:
            self._fill_bids(state, price=2 * PRICE)
            for key in self.keys[4:]:
                node = registry.require_node(state, key.address)
                registry.save_node(state, node._replace(busy_slots=node.profile.slots))

        return HostileBlock(fill)

    def _fill_bids(self, state: Overlay, price: int, windows: int = 3) -> None:
        for case in self._searching(state, 2 * self.parameters.bids_per_call, price, windows):
            case.save()

    def openings(self) -> HostileBlock:
        """Only openings of windows with three verifiers."""
        count = GAS_LIMIT // self.runtime.rules[OPEN_WINDOW].gas
        worker, verifiers = self.keys[0], [key.address for key in self.keys[1:4]]
        leaves = leaves_of(job_of(price=PRICE, windows=2), 0)
        shown: list[Opening] = [make_opening(leaves, at, WORK, SALT) for at in range(len(leaves))]
        ids: list[bytes] = []

        def fill(state: Overlay) -> None:
            market = self.market(state)
            running = partial(market.running, requester=self.requester.address, worker=worker.address)
            ids.extend(running(self.tasks + at, verifiers=verifiers, windows=1) for at in range(count))

        fill(Overlay(self.disk))
        values: list[Value] = [opening_to_value(opening) for opening in shown]
        return HostileBlock(fill, tuple((worker, OPEN_WINDOW, [task, 0, values]) for task in ids[:count]))

    def updates(self) -> HostileBlock:
        """Only updates of machines that ask for next to nothing now: each wakes parked tasks."""
        count = min(len(self.keys), GAS_LIMIT // self.runtime.rules[UPDATE_NODE].gas)
        body = []
        for key in self.keys[:count]:
            node = registry.require_node(self.disk, key.address)
            body.append((key, UPDATE_NODE, node_payload(node.profile._replace(price_per_tera_unit=1), 0)))
        return HostileBlock(lambda state: None, tuple(body))

    def deadlines(self) -> HostileBlock:
        """No transaction: deadlines, each of which voids as many windows as a task may have open."""
        return HostileBlock(self._fill_deadlines)

    def _fill_deadlines(self, state: Overlay, count: int = 64) -> None:
        market = self.market(state)
        verifiers = [key.address for key in self.keys[1:4]]
        for at in range(count):
            number = _DUE + at
            windows = self.parameters.open_windows_max
            task = market.running(number, self.requester.address, self.keys[0].address, verifiers, windows)
            case = Case.load(Scope(state, market.block, ignore, self.parameters), task)
            case.put_window(case.window(0)._replace(deadline_ms=NOW_MS - 1))
            case.save()

    def everything(self) -> HostileBlock:
        """Machines that leave the market, and at the end of the block as many deadlines as it takes."""
        return HostileBlock(self._fill_deadlines, self.suspensions().body)

    def everything_called(self) -> HostileBlock:
        """The same with the dearest call, and as many deadlines as leave it in the block."""
        call, count = self.hopeless_call(), CALL_EVENTS_MAX // self.parameters.open_windows_max

        def fill(state: Overlay) -> None:
            call.fill(state)
            self._fill_deadlines(state, count)

        return HostileBlock(fill, self.suspensions().body)

    # Transactions

    def _count(self, kind: int) -> int:
        return GAS_LIMIT // self.runtime.rules[kind].gas

    def _cycle(self, count: int) -> list[SecretKey]:
        return [self.keys[at % len(self.keys)] for at in range(count)]

    def payments(self) -> HostileBlock:
        """Only payments, each to an account that is not there yet."""
        count = self._count(TRANSFER_KIND)
        to = [digest(b"bench-new", at.to_bytes(4, "big"))[:20] for at in range(count)]
        return HostileBlock(
            ignore, sent(self._cycle(count), TRANSFER_KIND, lambda at: transfer_payload(to[at], 1))
        )

    def heartbeats(self) -> HostileBlock:
        """Only heartbeats, of as many machines as there are."""
        keys = self.keys[: self._count(HEARTBEAT)]
        return HostileBlock(ignore, tuple((key, HEARTBEAT, []) for key in keys))

    def suspensions(self) -> HostileBlock:
        """Only machines that leave the market, with their places in its indexes."""
        keys = self.keys[: self._count(SUSPEND_NODE)]
        return HostileBlock(ignore, tuple((key, SUSPEND_NODE, []) for key in keys))

    def registrations(self) -> HostileBlock:
        """Only machines that register and ask for next to nothing: each looks at parked tasks."""
        keys = [secret_of(_NEW + at) for at in range(self._count(REGISTER_NODE))]
        bond = self.parameters.node_bond_min
        roles = NodeRole.COMPUTE | NodeRole.VERIFY

        def fill(state: Overlay) -> None:
            for key in keys:
                credit(state, key.address, 10**24)

        profiles = (NodeProfile(key.address, roles, (), 64, 64_000, 64, 1, _RATE, 16, 0, (), "b") for key in keys)
        body = zip(keys, profiles, strict=True)
        return HostileBlock(
            fill, tuple((key, REGISTER_NODE, node_payload(profile, bond)) for key, profile in body)
        )

    def creations(self) -> HostileBlock:
        """Only tasks whose jobs have the largest programs; none of these is known."""
        keys = self._cycle(self._count(CREATE_TASK))
        return HostileBlock(ignore, sent(keys, CREATE_TASK, lambda at: [encode_spec(_large_job(at))]))

    def proofs(self) -> HostileBlock:
        """Only proofs of windows, each of another task."""
        job = job_of(price=PRICE, windows=2)
        leaves = leaves_of(job, 0)
        start, stop = job.window_range(0)
        keys = self._cycle(self._count(SUBMIT_WINDOW))
        body: list[tuple[SecretKey, int, list[Value]]] = []

        def fill(state: Overlay) -> None:
            market = self.market(state)
            body.clear()
            for at, key in enumerate(keys):
                task = market.running(2 * self.tasks + at, self.requester.address, key.address, [], 0)
                proof = WindowProof(
                    task, 0, start, stop, job.init_root, leaves[-1].state_root_after, segment_root(leaves),
                    len(leaves), b"L" * 32, b"O" * 32,
                )  # fmt: skip
                body.append((key, SUBMIT_WINDOW, [window_proof_to_value(proof)]))

        fill(Overlay(self.disk))
        return HostileBlock(fill, tuple(body))

    def _checked(self, state: Overlay, count: int, phase: WindowPhase, seal: bytes | None) -> list[bytes]:
        """Write tasks whose first window has one verifier; returns their ids."""
        market = self.market(state)
        ids = []
        for at, key in enumerate(self._cycle(count)):
            worker = self.keys[(at + 1) % len(self.keys)].address
            task = market.running(2 * self.tasks + at, self.requester.address, worker, [key.address], 1)
            case = Case.load(Scope(state, market.block, ignore, self.parameters), task)
            window = case.window(0)
            found = window.verifiers[0].findings or ()
            made = b"" if seal is None else verdict_seal(task, 0, key.address, found, seal)
            window = window._replace(phase=phase, verifiers=(Seat(key.address, made, None),), wanted=1)
            case.put_window(window)
            case.vault.lock(Pool.CHECK, self.requester.address, DKB, Purpose.CHECK_FUND)
            state.put(by_verifier_key(key.address, task, 0), b"\x01")
            if seal is None:
                owe(state, key.address, 1, check_time(case, window).owed_ms)
            case.save()
            ids.append(task)
        return ids

    def seals(self) -> HostileBlock:
        """Only sealed verdicts, each the last one of its window."""
        count = self._count(SEAL_VERDICT)
        fill = partial(self._checked, count=count, phase=WindowPhase.SEALING, seal=None)
        ids = fill(Overlay(self.disk))
        return HostileBlock(
            lambda state: ignore(fill(state)),
            sent(self._cycle(count), SEAL_VERDICT, lambda at: [ids[at], 0, b"v" * 32]),
        )

    def reveals(self) -> HostileBlock:
        """Only verdicts that are revealed, each the last one of its window."""
        count = self._count(REVEAL_VERDICT)
        fill = partial(self._checked, count=count, phase=WindowPhase.REVEALING, seal=SALT)
        ids = fill(Overlay(self.disk))
        leaves = leaves_of(job_of(price=PRICE, windows=2), 0)
        found = [Finding(leaf.segment, Code.COMPUTED, WORK, leaf.state_root_after, 0) for leaf in leaves]
        values = findings_to_value(found)
        return HostileBlock(
            lambda state: ignore(fill(state)),
            sent(self._cycle(count), REVEAL_VERDICT, lambda at: [ids[at], 0, values, SALT]),
        )

    def moves(self) -> HostileBlock:
        """Only first moves of disputes, each about a job with a large program that is not known."""
        records = tuple(StepRecord(bytes([at]) * 32, bytes([at]) * 32, at) for at in range(15))
        return self.first_moves(_large_job, ShowRecords(records), WORK)

    def first_moves(self, job_at: Callable[[int], JobSpec], move: Move, work: bytes) -> HostileBlock:
        """Only first moves of disputes, each about another job; ``work`` is what its worker committed to."""
        data, keys = encode_move(move), self._cycle(self._count(MOVE))
        ids: list[bytes] = []

        def fill(state: Overlay) -> None:
            market = MarketState(state, context_of(NOW_MS - 1, self.runtime), self.parameters)
            ids.clear()
            for at, key in enumerate(keys):
                job = job_at(at)
                challenger = self.keys[(at + 1) % len(self.keys)].address
                case = market.task(
                    2 * self.tasks + at, job, self.requester.address, phase=Phase.RUNNING, reason=Reason.STARTED,
                    worker=key.address, price_per_tera_unit=PRICE, next_window=1, started_ms=START_MS,
                )  # fmt: skip
                case.vault.lock(Pool.BOND, key.address, DKB, Purpose.WORKER_BOND, owner=key.address)
                state.put(by_duty_key(key.address, case.record.id), b"\x01")
                leaves = leaves_of(job, 0)
                window = window_of(case.record.id, job, 0, leaves, key.address, [challenger])
                window = window._replace(phase=WindowPhase.DISPUTED, deadline_ms=0)
                case.begin_window(window)
                first = leaves[0]
                opened = Opened(0, first.state_root_before, first.state_root_after, work, 0)
                root = b"x" * 32, b"y" * 32, 1
                begin_dispute(case, window, Challenger.VERIFIER, challenger, 0, root, opened)
                case.save()
                ids.append(case.record.id)

        fill(Overlay(self.disk))
        return HostileBlock(fill, sent(keys, MOVE, lambda at: [ids[at], 0, 0, 0, data]))

    def receipts(self) -> HostileBlock:
        """Only receipts of custodians, each the last one of its output."""
        keys = self._cycle(self._count(TAKE_CUSTODY))
        bond = self.parameters.custody_fee_min
        ids: list[bytes] = []

        def fill(state: Overlay) -> None:
            market = self.market(state)
            ids.clear()
            for at, key in enumerate(keys):
                worker = self.keys[(at + 1) % len(self.keys)].address
                task = market.running(2 * self.tasks + at, self.requester.address, worker, [], 1)
                case = Case.load(Scope(state, market.block, ignore, self.parameters), task)
                case.vault.lock(
                    Pool.CUSTODY, self.requester.address, DKB, Purpose.CUSTODY, owner=self.requester.address
                )
                save_terms(state, task, Terms(b"k" * 32, 0, 2, 10**13, DKB // 2, DKB // 2, 1, 0))
                blob = BlobCommitment(100_000, b"p" * 32, b"c" * 32)
                record = CustodyRecord(
                    task, 0, worker, CustodyPhase.SIGNING, blob, DKB // 2, bond, 1, NOW_MS + 60_000, 0, 0, 1,
                    (key.address,), (), (key.address,), None, b"",
                )  # fmt: skip
                save_custody(state, record, START_MS)
                case.save()
                ids.append(task)

        fill(Overlay(self.disk))
        return HostileBlock(fill, sent(keys, TAKE_CUSTODY, lambda at: [ids[at], 0, bond]))

    def execute(self, block: HostileBlock, repeats: int) -> tuple[float, Execution]:
        """Return the median time of ``repeats`` executions in milliseconds, and what one of them did."""
        times = []
        proof = vrf_key_of(self.validator).prove(HEIGHT.to_bytes(8, "big"))
        for _ in range(repeats):
            parent: Overlay = Overlay(self.disk)
            block.fill(parent)
            forget()
            transactions = list(self._signed(parent, block))
            registry._decoded.clear()
            for key in self.keys[: registry.DECODED_NODES_MAX]:
                registry.load_node(parent, key.address)
            given = BlockInput(HEIGHT, 0, HEIGHT, 0, NOW_MS, self.runtime.base_fee(parent), proof)
            gc.collect()
            begun_s = thread_time()
            checked = [self.runtime.check(transaction) for transaction in transactions]
            execution = self.runtime.execute(parent, given, checked)
            times.append(1000 * (thread_time() - begun_s))
        refused = [receipt for receipt in execution.receipts if receipt[1] != 1]
        if refused and not block.is_refused:
            raise AssertionError(f"{len(refused)} of {len(checked)} transactions were refused: {refused[0]!r}")
        return statistics.median(times), execution

    def _signed(self, state: Reader, block: HostileBlock) -> Iterator[Any]:
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


def sent(keys: Sequence[SecretKey], kind: int, payload_of: Callable[[int], list[Value]]) -> Body:
    """Return one transaction of each sender."""
    return tuple((key, kind, payload_of(at)) for at, key in enumerate(keys))


def _large_job(number: int) -> JobSpec:
    """Return a job with as many operators as one may have; each number is another program."""
    widths = (64, *(32 + (number >> 4 * at) % 16 for at in range(7)), 10)
    job = job_of(price=PRICE // 2, windows=2)
    schedule = job.schedule._replace(segment_steps=20, window_steps=100, total_steps=200)
    return job.changed(model=Model("mlp", widths, "silu"), schedule=schedule)


def _is_wake(key: bytes) -> bool:
    """Tell whether a change is a machine's look that its registration asks for: the state is at rest."""
    return key[0] == 0x23 and key[1] & 0x20 != 0 and not key[1] & 0xC0
