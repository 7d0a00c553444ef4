"""A market in a box: one chain with the real rules, without a network. Only this module knows transactions.

``View`` is what an agent may see and the actions that it may return. ``Market`` puts actions into blocks with
chosen times and executes these by ``state.transition.Runtime``. Transactions are decoded from their bytes; their
signatures are not checked, for the senders are known.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Final, NamedTuple, TypeVar

from billing.escrow import Movement, Pool, Purpose, Vault, check_escrows
from state.primitives.codec import encode
from state.primitives.errors import DecodeError, ProtocolError
from state.primitives.genesis import Genesis, GenesisValidator, read_parameters
from state.primitives.keys import SIGNATURE_BYTES, SecretKey
from state.primitives.receipts import decode_receipt
from state.primitives.transactions import decode_transaction
from state.primitives.vrf import VRF_PROOF_BYTES, vrf_key_of, vrf_output
from state.transition.epochs import epoch_of
from state.transition.runtime import BlockInput, Checked, Execution, Runtime
from state.view import Overlay, Reader, Table
from state.view.accounts import balance_of, nonce_of
from tasks.dispute.moves import Move, decode_move
from tasks.dispute.shares import challenge_bond
from tasks.errors import WindowUnknown
from tasks.ledger import queries
from tasks.ledger.check_fund import fund_balance
from tasks.ledger.checkpoint_records import Checkpoints, load_checkpoints
from tasks.ledger.custody import custody_budget, demand_price, demand_stake
from tasks.ledger.custody_queries import CustodyDuty, custody_duties
from tasks.ledger.custody_records import CustodyRecord, DemandKind, find_custody, find_terms
from tasks.ledger.deadlines import (
    TRIAL_DRAW_SLOT,
    TRIAL_SLOT,
    draws_due,
    due_before,
    matches_due,
    trials_due,
    waits_due,
)
from tasks.ledger.disputes import DisputeRecord, load_dispute, load_docket, load_moves, load_seal
from tasks.ledger.group_records import group_id_of, is_spare, seat_task
from tasks.ledger.groups import SEATS_PER_STEP, seats_budget
from tasks.ledger.lifecycle import ENDED, Phase
from tasks.ledger.meter_records import MeterRecord, load_meter
from tasks.ledger.parameters import TaskParameters
from tasks.ledger.queries import CheckDuty, DisputeDuty, WorkDuty
from tasks.ledger.quorum_records import SEATS, QuorumRecord, find_quorum, quorum_seat_task
from tasks.ledger.records import TaskRecord, WindowRecord, load_window
from tasks.ledger.registry import NodeRecord, load_node, save_node, scan_nodes
from tasks.ledger.settlement import delivery_fees, preparation_units
from tasks.ledger.transitions import (
    HOLDINGS,
    INVARIANTS,
    SUBMIT_WINDOW,
    endowments,
    hooks,
    rules,
    task_id_of,
)
from tasks.ledger.trials import TrialRecord, asks_from_ms, find_trial, measured_rate, trials_to_judge
from tasks.proofs import Break, SegmentLeaf, find_break
from tasks.simulation.actions import Action, Actions
from tasks.simulation.actions_boxes import BoxActions
from tasks.simulation.dice import Dice
from tasks.simulation.memory import Memory
from tasks.simulation.segments import INIT_ROOT, question_of
from tasks.spec import Dataset, JobSpec, Model, Optimiser, Requirements, Schedule, classifier_job

__all__ = ["BLOCK_MS", "DKB", "JobShape", "Market", "View", "job_of"]

_Result = TypeVar("_Result")
DKB: Final = 10**18
START_MS: Final = 1_700_000_000_000
BLOCK_MS: Final = 1_000
CHAIN_ID: Final = 7
FEE_CAP: Final = 10**12
_FAR_MS: Final = 1 << 50
_FAR_HEIGHT: Final = 1 << 40
_PAGE: Final = 64
_DISPUTE_KEY_BYTES: Final = 1 + 32 + 4 + 1 + 4
"""Table, task, window, the part of games (1), and the game."""
_BATCH: Final = 32
PROOFS: Final = 32
_VALIDATOR: Final = SecretKey(b"\x01" * 32)
_BONDS: Final = (Purpose.WORKER_BOND, Purpose.CUSTODY_BOND)
_IDLE_FEE: Final = 100_000_000
"""The chain is idle but for this market: its base fee is the least."""


class JobShape(NamedTuple):
    """What makes a job here: everything else of a specification changes nothing in this model."""

    windows: int
    segments: int
    segment_steps: int
    price_max: int
    match_ms: int
    seed: bytes
    rate_min: int = 0


def job_of(shape: JobShape) -> JobSpec:
    """Return a specification of this shape."""
    window = shape.segments * shape.segment_steps
    return classifier_job(
        kind="train", level=3, profile="exact/2", model=Model("mlp", (64, 32, 10), "relu"),
        dataset=Dataset(b"d" * 32, b"D" * 32, 1797, 1437, 4), batch=_BATCH,
        optimiser=Optimiser("adamw", 1_000_000, 900_000_000, 999_000_000, 10, 0), seed=shape.seed,
        init_root=INIT_ROOT, schedule=Schedule(window * shape.windows, shape.segment_steps, window),
        max_price_per_tera_unit=shape.price_max, requirements=Requirements(0, 0, shape.rate_min),
        match_ms=shape.match_ms,
    )  # fmt: skip


@cache
def _proofs() -> tuple[bytes, ...]:
    """Return VRF proofs that execution takes, for verifying them is not its part. Each block mixes one more in."""
    proofs: list[bytes] = []
    dice = Dice(b"proofs")
    while len(proofs) < PROOFS:
        proof = dice.bytes() + bytes(VRF_PROOF_BYTES - 32)
        try:
            vrf_output(proof)
        except DecodeError:  # not a point of the curve
            continue
        proofs.append(proof)
    return tuple(proofs)


_HAS_WINDOWS: Final = (
    Phase.ASSIGNED, Phase.PREPARING, Phase.RUNNING, Phase.DEGRADED, Phase.PAUSED, Phase.OUTPUT, Phase.VERIFYING,
)  # fmt: skip


def _called(state: Reader, task: bytes, window: int, address: bytes) -> list[tuple[int, bytes]]:
    called = [
        (number, load_seal(state, task, window, number)) for number, _ in load_docket(state, task, window).called
    ]
    return [(number, seal.seal) for number, seal in called if seal.address == address]


def _held(state: Reader, pool: Pool, task: bytes, owner: bytes) -> int:
    return Vault.load(Overlay(state), task, lambda _event: None, 0).held(pool, owner)


class _State:
    """The finalised state, its keys sorted within each table."""

    def __init__(self) -> None:
        self._values: dict[bytes, bytes] = {}
        self._keys: dict[int, list[bytes]] = {}

    def get(self, key: bytes) -> bytes | None:
        return self._values.get(key)

    def scan(self, start: bytes, stop: bytes, limit: int) -> list[tuple[bytes, bytes]]:
        found: list[tuple[bytes, bytes]] = []
        for table in range(start[0], stop[0] + 1):
            keys = self._keys.get(table, [])
            first, last = bisect_left(keys, start), bisect_left(keys, stop)
            found += [(key, self._values[key]) for key in keys[first : min(last, first + limit - len(found))]]
        return found

    def apply(self, changes: Mapping[bytes, bytes | None]) -> None:
        for key, value in changes.items():
            keys = self._keys.setdefault(key[0], [])
            if value is None:
                if self._values.pop(key, None) is not None:
                    del keys[bisect_left(keys, key)]
            else:
                if key not in self._values:
                    insort(keys, key)
                self._values[key] = value


class View(Actions, BoxActions):
    """A chain as an agent sees it, and the actions that it has."""

    state: Reader
    parameters: TaskParameters
    time_ms: int
    height: int

    def read(self, function: Callable[..., _Result], *arguments: Hashable) -> _Result:
        """Return what a query of this state finds; its result must not be changed."""
        return function(self.state, *arguments)

    def _work(self, state: Reader, address: bytes) -> list[WorkDuty]:
        return queries.work_duties(state, address, self.parameters)

    def _disputes(self, state: Reader, address: bytes) -> list[DisputeDuty]:
        return queries.dispute_duties(state, address, self.parameters)

    # What is on chain

    def balance(self, address: bytes) -> int:
        """Return the free balance of an account."""
        return balance_of(self.state, address)

    def node(self, address: bytes) -> NodeRecord | None:
        """Return a machine's record."""
        return self.read(load_node, address)

    def task(self, task: bytes) -> TaskRecord:
        """Return a task."""
        return self.read(queries.find_task, task)

    def job(self, task: bytes) -> JobSpec:
        """Return the specification of a task."""
        return self.read(queries.task_spec, task)

    def window(self, task: bytes, number: int) -> WindowRecord:
        """Return a window."""
        return self.read(load_window, task, number)

    def work(self, address: bytes) -> list[WorkDuty]:
        """Return what tasks ask of a worker now."""
        return self.read(self._work, address)

    def checks(self, address: bytes) -> list[CheckDuty]:
        """Return what windows ask of a verifier now."""
        return self.read(queries.verification_duties, address)

    def disputes(self, address: bytes) -> list[DisputeDuty]:
        """Return what disputes ask of one of their sides now."""
        return self.read(self._disputes, address)

    def dispute(self, duty: DisputeDuty) -> DisputeRecord:
        """Return a dispute."""
        return self.read(load_dispute, duty.task, duty.window, duty.game)

    def dispute_moves(self, duty: DisputeDuty) -> list[Move]:
        """Return the moves of a dispute so far."""
        return [decode_move(move) for move in load_moves(self.state, duty.task, duty.window, duty.game)]

    def live_windows(self) -> list[tuple[bytes, int]]:
        """Return all windows that were proved and are not final, by task."""
        tasks = [task for phase in _HAS_WINDOWS for task in self._in_phase(phase)]
        return [(task.id, number) for task in tasks for number in task.open_windows]

    def is_searching(self) -> bool:
        """Tell whether a task looks for a worker."""
        return bool(self._in_phase(Phase.MATCHING) or self._in_phase(Phase.DEGRADED))

    def _in_phase(self, phase: Phase) -> tuple[TaskRecord, ...]:
        return self.read(queries.tasks_by_phase, phase, None, _PAGE).items

    def called(self, task: bytes, window: int, address: bytes) -> list[tuple[int, bytes]]:
        """Return the sealed challenges of ``address`` that it has to open now: numbers and seals."""
        return self.read(_called, task, window, address)

    def worker_bond(self, task: bytes, worker: bytes) -> int:
        """Return S: what a worker has locked for a task."""
        return self.read(_held, Pool.BOND, task, worker)

    def has_custody(self, task: bytes) -> bool:
        """Tell whether the outputs of a task lie in custody."""
        return self.read(find_terms, task) is not None

    def custody(self, task: bytes, window: int) -> CustodyRecord | None:
        """Return the custody of an output, if there is any."""
        return self.read(find_custody, task, window)

    def keeping(self, address: bytes) -> list[CustodyDuty]:
        """Return what custody asks of a machine now."""
        return self.read(custody_duties, address) if self.parameters.custody_copies else []

    def ask_custody(self, sender: bytes, task: bytes, job: JobSpec) -> Action:
        """Ask for custody of all outputs of a task that is created in the same block."""
        return self.custody_terms(sender, task, job.windows, custody_budget(job, self.parameters))

    def demand_custody(self, sender: bytes, custody: CustodyRecord, holder: bytes) -> Action:
        """Demand an output of a custodian, at the most that this costs."""
        prices = (
            demand_price(custody, kind, _IDLE_FEE, self.parameters)
            + demand_stake(custody.bond, kind, self.parameters)
            for kind in DemandKind
        )
        return self.custody_demand(sender, custody.task, custody.window, holder, 2 * max(prices))

    def is_spare(self, task: TaskRecord) -> bool:
        """Tell whether a task is the spare seat of a group."""
        return self.read(is_spare, task)

    def make_group(
        self, sender: bytes, job: JobSpec, members: int, spares: int
    ) -> tuple[list[bytes], list[Action]]:  # fmt: skip
        """Return the tasks of a group's seats and what creates it: first among the sender's transactions."""
        group, roots = group_id_of(sender, nonce_of(self.state, sender)), [INIT_ROOT] * members + [b""] * spares
        actions = [self.group(sender, job, members, spares)]
        for first in range(1, len(roots), SEATS_PER_STEP):
            part = roots[first : first + SEATS_PER_STEP]
            apart = sum(not root for root in part)
            amount = seats_budget(job, len(part) - apart, apart, self.parameters)
            actions.append(self.seats(sender, group, part, amount))
        return [seat_task(group, seat) for seat in range(len(roots))], actions

    def meter_of(self, task: bytes) -> MeterRecord:
        """Return the meter of a container."""
        return self.read(load_meter, task)

    def checkpoints(self, task: bytes) -> Checkpoints:
        """Return what is stored of a container."""
        return self.read(load_checkpoints, task)

    def quorum(self, task: bytes) -> QuorumRecord | None:
        """Return the quorum of a seat, or None for another task."""
        return self.read(find_quorum, task)

    @staticmethod
    def seats_of(quorum: bytes) -> list[bytes]:
        """Return the tasks of a quorum's seats."""
        return [quorum_seat_task(quorum, seat) for seat in range(SEATS)]

    def trial(self, address: bytes) -> TrialRecord | None:
        """Return the speed trial of a machine, if it ever had one."""
        return self.read(find_trial, address)

    def asks_trial(self, address: bytes) -> bool:
        """Tell whether a machine without a rate may ask for a trial."""
        node = self.node(address)
        if node is None or measured_rate(self.state, node, self.time_ms, self.parameters) is not None:
            return False
        return asks_from_ms(self.trial(address), self.parameters) <= self.time_ms

    def to_judge(self, address: bytes) -> list[TrialRecord]:
        """Return the trials that a machine is to judge."""
        return self.read(trials_to_judge, address, _PAGE)

    def fetch_units(self, job: JobSpec) -> int:
        """Return what fetching and hashing the inputs of a job counts as, in work units (R33)."""
        return preparation_units(job, self.parameters) - job.segment_units(0, 0)

    def challenge_price(self, task: bytes, window: int) -> int:
        """Return what the next outsider's challenge of a window locks."""
        docket = self.read(load_docket, task, window)
        held = self.read(_held, Pool.BOND, task, self.window(task, window).worker)
        return challenge_bond(held, docket.seals - docket.first_seal)

    def find_break(self, task: bytes, number: int, leaves: Sequence[SegmentLeaf]) -> Break | None:
        """Return where the leaves of a window do not fit, or None."""
        return find_break(self.job(task), self.window(task, number).proof, leaves)

    def tasks_of(self, requester: bytes) -> list[TaskRecord]:
        """Return the tasks of a requester."""
        return list(queries.tasks_by_requester(self.state, requester, None, queries.PAGE_MAX).items)

    def next_task_id(self, requester: bytes) -> bytes:
        """Return the id of the task that the requester's next transaction creates."""
        return task_id_of(requester, nonce_of(self.state, requester))

    def demand_price(self, task: TaskRecord) -> int:
        """Return what a requester puts down to have a result fetched."""
        return delivery_fees(self.window(task.id, task.final_windows - 1), self.parameters)


class Branch(View):
    """What the chain would be after a block that its leader has not published."""

    def __init__(self, market: Market, execution: Execution) -> None:
        overlay = Overlay(market.state)
        overlay.changes = execution.changes
        self.state = overlay
        self.parameters, self.genesis_hash = market.parameters, market.genesis_hash
        self.time_ms, self.height = market.time_ms, market.height


Leader = Callable[[View, View], int]
"""What a dishonest leader makes of a block of its own: a view of the chain with it and one without it, where the
next leader's stands in its place; returns 1 to skip its own."""


_ALWAYS_MS: Final = 1 << 40
"""Machines of the simulation are on without a heartbeat, and their records do not expire: what that costs is the
same for all of them."""


@dataclass
class Figures:
    """What blocks took, and what was refused."""

    gas_max: int = 0
    changes_max: int = 0
    events_max: int = 0
    refused: Counter[str] = field(default_factory=Counter)


class Market(View):
    """A chain of its own for ``accounts``, each with a balance. Only ``wait_until`` moves its time."""

    def __init__(self, accounts: Mapping[bytes, int], parameters: Mapping[str, int], dice: Dice) -> None:
        stake = 1_000 * DKB
        always_on = {"presence_ms": _ALWAYS_MS, "registration_valid_ms": _ALWAYS_MS, **parameters}
        self._dice = dice.fork("beacon")
        vrf_key = vrf_key_of(_VALIDATOR).public
        self.genesis: Final = Genesis(
            CHAIN_ID, "simulation", START_MS, True, tuple(accounts.items()),
            (GenesisValidator(_VALIDATOR.address, _VALIDATOR.vote_key, vrf_key, stake),),
            (
                ("chain.base_fee_initial", _IDLE_FEE), ("chain.steady_interval_ms_max", _ALWAYS_MS),
                *((f"tasks.{name}", at) for name, at in always_on.items()),
            ),
        )  # fmt: skip
        self.parameters = read_parameters(TaskParameters, "tasks", self.genesis)
        self.runtime: Final = Runtime(
            self.genesis, rules=rules(self.parameters, question_of),
            hooks=hooks(self.parameters, question_of), invariants=INVARIANTS,
            endowments=endowments(self.parameters),
            holdings=HOLDINGS, check_invariants=True,
        )  # fmt: skip
        self.genesis_hash = self.runtime.genesis_hash
        self._state = _State()
        self._state.apply(self.runtime.genesis_changes())
        self.state = self._state
        self._memory = Memory(self._state)
        self.height, self.time_ms, self._epoch, self._view = 0, START_MS, 0, 0
        self.figures = Figures()
        self._endings: dict[tuple[bytes, int, int], str] = {}
        self.chances: Final[dict[tuple[bytes, int, bytes], int]] = {}
        """The probability of an audit of each proof in 10^-18, by task, window and state root after it."""
        self.leader: Leader | None = None
        self.leads_share = 0.0
        """Share of the blocks that the dishonest leader leads."""

    def read(self, function: Callable[..., _Result], *arguments: Hashable) -> _Result:
        """Return what a query of the state finds, computed only if that has changed."""
        return self._memory.read(function, *arguments)

    def vouch(self, address: bytes, proved: int) -> None:
        """Give a machine a record, as if it had proved windows worth ``proved``."""
        node = load_node(self.state, address)
        assert node is not None, "only a registered machine has a record"
        overlay = Overlay(self.state)
        save_node(overlay, node._replace(proved=proved))
        self._state.apply(overlay.changes)

    def wait_until(self, time_ms: int) -> None:
        """Let no block come before ``time_ms``, and none sooner than a block time after the last."""
        self.time_ms = max(self.time_ms + BLOCK_MS, time_ms)

    def next_due_ms(self) -> int | None:
        """Return when the chain itself does something next, or None."""
        due = due_before(self.state, _FAR_MS, 1) + matches_due(self.state, _FAR_MS, 4)
        if self.parameters.trial_ms and not self.is_over():
            due += trials_due(self.state, TRIAL_SLOT, _FAR_MS, 1)
        return min((at.time_ms for at in due), default=None)

    def awaits_draw(self) -> bool:
        """Tell whether verifiers are drawn in a block to come, which does not depend on the time."""
        state, trials = self.state, self.parameters.trial_ms
        waits = draws_due(state, _FAR_HEIGHT, 1) or waits_due(state, _FAR_HEIGHT, 1)
        return bool(waits or (trials and trials_due(state, TRIAL_DRAW_SLOT, _FAR_HEIGHT, 1)))

    def block(self, actions: Iterable[Action]) -> bool:
        """Put actions into the next block, at the present time; tell whether anything happened in it."""
        self.height += 1
        epoch = epoch_of(self.height, self.runtime.chain)
        if epoch != self._epoch:  # views are counted from 1 in each epoch
            self._epoch, self._view = epoch, 0
        base_fee = self.runtime.base_fee(self.state)
        checked = self.runtime.select(self.state, base_fee, self._transactions(actions))
        self.runtime.check_body(self.state, base_fee, checked)
        execution = self._execute(1, base_fee, checked)
        skipped = 0
        if self.leader is not None and self._dice.chance(self.leads_share):
            other = self._execute(2, base_fee, checked)
            skipped = self.leader(Branch(self, execution), Branch(self, other))
            execution = other if skipped else execution
        self._view += 1 + skipped
        self._state.apply(execution.changes)
        self._note_endings(execution.changes)
        self._note_chances(checked)
        self._note(execution)
        return bool(execution.receipts) or execution.block_receipt is not None

    def _execute(self, view: int, base_fee: int, checked: Sequence[Checked]) -> Execution:
        block = BlockInput(self.height, self._epoch, self._view + view, 0, self.time_ms, base_fee, self._proof())
        return self.runtime.execute(self.state, block, checked)

    def _proof(self) -> bytes:
        return self._dice.pick(_proofs())

    def _transactions(self, actions: Iterable[Action]) -> list[Checked]:
        nonces: dict[bytes, int] = {}
        made: list[Checked] = []
        for sender, kind, payload in actions:
            nonce = nonces.get(sender, nonce_of(self.state, sender))
            body = encode(
                [CHAIN_ID, nonce, 0, FEE_CAP, self.runtime.rules[kind].gas, kind, payload, bytes(SIGNATURE_BYTES)]
            )
            transaction = decode_transaction(b"\x44" + body)
            transaction.sender = sender
            try:
                made.append(self.runtime.check(transaction))
            except ProtocolError as error:
                self.figures.refused[error.code] += 1
                continue
            nonces[sender] = nonce + 1
        return made

    def _note_chances(self, checked: Sequence[Checked]) -> None:
        for proof in (one.payload for one in checked if one.transaction.kind == SUBMIT_WINDOW):
            try:
                window = load_window(self._state, proof.task, proof.window)
            except WindowUnknown:  # the proof was refused
                continue
            if window.proof == proof:
                self.chances[proof.task, proof.window, proof.state_root_out] = window.chance

    def _note_endings(self, changes: Mapping[bytes, bytes | None]) -> None:
        for key, value in changes.items():
            if value is None or len(key) != _DISPUTE_KEY_BYTES or key[0] != Table.DISPUTE or key[37] != 1:
                continue
            place = key[1:33], int.from_bytes(key[33:37], "big"), int.from_bytes(key[38:], "big")
            ending = load_dispute(self._state, *place).ending
            if ending:
                self._endings[place] = ending.name.lower()

    def _note(self, execution: Execution) -> None:
        figures = self.figures
        figures.gas_max = max(figures.gas_max, execution.gas_used)
        figures.changes_max = max(figures.changes_max, len(execution.changes))
        figures.events_max = max(figures.events_max, sum(map(len, execution.events)))
        for raw in execution.receipts:
            if (reason := decode_receipt(raw).reason) is not None:
                figures.refused[reason] += 1

    # What it came to

    def is_over(self) -> bool:
        """Tell whether every task has ended."""
        live = [phase for phase in Phase if phase not in ENDED]
        return not any(queries.tasks_by_phase(self.state, phase, None, 1).items for phase in live)

    def endings(self, tasks: Iterable[bytes]) -> Counter[str]:
        """Return how the disputes about the windows of some tasks ended; the chain forgets them with the task."""
        chosen = set(tasks)
        return Counter(ending for (task, *_), ending in self._endings.items() if task in chosen)

    def reasons(self, tasks: Iterable[bytes]) -> Counter[str]:
        """Return why some tasks and their windows changed."""
        return Counter(
            entry.reason.name.lower() for task in tasks for entry in queries.task_history(self.state, task)
        )

    def check_sums(self) -> None:
        """Raise AssertionError unless all money is accounted for, in each escrow and in all."""
        self.runtime.check_whole_supply(self.state)
        check_escrows(self.state)

    def wealth(self, address: bytes) -> int:
        """Return what an account has: the bond of its machine, and what it has bonded for others, included."""
        sponsored = sum(node.sponsored for node in scan_nodes(self.state, b"", _PAGE) if node.sponsor == address)
        node = self.node(address)
        return self.balance(address) + (node.bond if node is not None else 0) + sponsored

    def fund(self) -> int:
        """Return what the check fund has."""
        return fund_balance(self.state)

    def bond_lost(self, address: bytes, registered: int, tasks: Iterable[bytes]) -> int:
        """Return what a machine lost of its bonds: of the ``registered`` one and of those for ``tasks``.

        These are the bonds of workers and of custodians. What is locked still is not lost.
        """
        node = self.node(address)
        lost = registered - (node.bond if node is not None else registered)
        for task in tasks:
            lost -= sum(self.read(_held, pool, task, address) for pool in (Pool.BOND, Pool.CUSTODY))
            for line in queries.bill(self.state, task).lines:
                if line.party != address:
                    continue
                if line.purpose in _BONDS and line.movement == Movement.LOCKED:
                    lost += line.amount
                elif line.purpose == Purpose.BOND_RETURN:
                    lost -= line.amount
        return lost
