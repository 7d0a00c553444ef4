"""All rules at once: money is neither made nor lost, and no block that passes the checks stops the chain.

Stakes, proofs of faults, epochs, unbonding, machines, tasks with their windows and verdicts, and the deposits of
relays' payers, in one history of random choices, through the runtime that nodes have.
"""

from __future__ import annotations

import random
from collections import Counter
from contextlib import suppress
from dataclasses import replace

import pytest

from node.chain.runtime import make_runtime
from state.primitives.codec import Value
from state.primitives.errors import InvalidTransaction
from state.primitives.genesis import Genesis, read_parameters
from state.primitives.keys import SecretKey
from state.transition.runtime import Checked, Runtime
from state.transition.transfer import TRANSFER_KIND
from state.view.accounts import nonce_of
from tasks.errors import GroupUnknown
from tasks.ledger import queries
from tasks.ledger.carriage import FUND_CARRIAGE, WITHDRAW_CARRIAGE
from tasks.ledger.group_records import group_id_of, load_group, seat_task
from tasks.ledger.group_transitions import ADD_SEATS, CANCEL_GROUP, CREATE_GROUP
from tasks.ledger.groups import seats_budget
from tasks.ledger.lifecycle import Phase
from tasks.ledger.parameters import TaskParameters
from tasks.ledger.queries import Action, CheckDuty, WorkDuty
from tasks.ledger.registry import NodeProfile, NodeRole
from tasks.ledger.transitions import (
    ACCEPT_TASK,
    CANCEL_TASK,
    CREATE_TASK,
    OPEN_WINDOW,
    POKE,
    REGISTER_NODE,
    RETIRE_NODE,
    REVEAL_VERDICT,
    SEAL_VERDICT,
    START_TASK,
    SUBMIT_WINDOW,
    SUSPEND_NODE,
    TOP_UP_TASK,
    UPDATE_NODE,
    node_payload,
    task_id_of,
)
from tasks.proofs import (
    Finding,
    SegmentLeaf,
    findings_to_value,
    make_opening,
    opening_to_value,
    verdict_seal,
    window_proof_to_value,
)
from tasks.spec import encode_spec
from tests.state.transition.chain import signed
from tests.state.transition.test_hostile import FEE, KEYS, Chaos
from tests.tasks.toywork import start_root
from tests.tasks.world import DKB, WORTH, found, leaves_of, proof_of, salt, spec, work_of

NONCE = b"n" * 32
GAS_LIMIT = 16_000_000
GAPS_MS = (0, 0, 0, 0, 0, 0, 0, 40_000, 600_000, 10**9)
MARKET = {
    "tasks.presence_ms": 10**12, "tasks.registration_valid_ms": 10**12, "consensus.block_interval_ms": 1,
    "chain.steady_interval_ms_max": 10**12,
}  # fmt: skip


class Everything(Chaos):
    """A chain of the whole runtime whose every choice is drawn."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.parameters = read_parameters(TaskParameters, "tasks", self.runtime.genesis)
        self.tasks: list[bytes] = []
        self.groups: list[bytes] = []
        self.other = random.Random(seed)
        """For groups."""
        self.published: dict[tuple[bytes, int], list[SegmentLeaf]] = {}
        self.found: dict[tuple[bytes, bytes, int, bool], tuple[Finding, ...]] = {}

    def make_runtime(self, genesis: Genesis) -> Runtime:
        parameters = tuple(sorted((dict(genesis.parameters) | MARKET).items()))
        return make_runtime(replace(genesis, parameters=parameters), check_invariants=True)

    def transactions(self) -> list[Checked]:
        made = super().transactions()
        nonces = {checked.transaction.sender: checked.transaction.nonce + 1 for checked in made}

        def add(key: SecretKey, kind: int, payload: list[Value]) -> None:
            nonce = nonces.setdefault(key.address, nonce_of(self.state, key.address))
            try:
                made.append(self.runtime.check(signed(key, nonce, kind, payload, gas_limit=GAS_LIMIT, fee=FEE)))
            except InvalidTransaction as error:
                self.seen[error.code] += 1
                return
            nonces[key.address] = nonce + 1
            if kind == CREATE_TASK:
                self.tasks.append(task_id_of(key.address, nonce))

        for key in KEYS:
            for work in queries.work_duties(self.state, key.address, self.parameters):
                if self.draw.random() < 0.8 and not work.blocked:
                    add(key, *self.work(work))
            for check in queries.verification_duties(self.state, key.address):
                if self.draw.random() < 0.8:
                    add(key, *self.check(key, check))
        for _ in range(self.draw.randint(0, 4)):
            key = self.draw.choice(KEYS)
            add(key, *self.whim(key))
        if self.other.random() < 0.1:
            key = self.other.choice(KEYS)
            add(key, *self.group_whim(key, nonces.get(key.address, nonce_of(self.state, key.address))))
        return made

    def group_whim(self, key: SecretKey, nonce: int) -> tuple[int, list[Value]]:
        """Return a new group, the seats that one lacks, or the end of one; it may be another account's."""
        group = self.other.choice(self.groups) if self.groups else bytes(32)
        match self.other.randrange(4):
            case 0 | 1:
                group = group_id_of(key.address, nonce)
                self.groups.append(group)
                self.tasks += [seat_task(group, seat) for seat in range(3)]
                return CREATE_GROUP, [encode_spec(spec()), 2, 1]
            case 2:
                due = seats_budget(spec(), 1, 1, self.parameters)
                return ADD_SEATS, [group, [start_root(8.0), b""], due]
            case _:
                return CANCEL_GROUP, [group]

    def work(self, duty: WorkDuty) -> tuple[int, list[Value]]:
        """Return what a worker sends, who lies now and then."""
        match duty.action:
            case Action.ACCEPT:
                return ACCEPT_TASK, [duty.task, duty.bond]
            case Action.START:
                return START_TASK, [duty.task, b"m" * 32]
            case Action.COMPUTE:
                job = queries.task_spec(self.state, duty.task)
                leaves = leaves_of(job, duty.window, duty.state_root, lie=self.draw.random() < 0.2)
                self.published[duty.task, duty.window] = leaves
                return SUBMIT_WINDOW, [window_proof_to_value(proof_of(job, duty.task, duty.window, leaves))]
            case _:
                leaves = self.published[duty.task, duty.window]
                openings: list[Value] = [
                    opening_to_value(make_opening(leaves, at, work_of(leaves[at]), salt(leaves[at].step_from)))
                    for at in duty.segments
                ]
                return OPEN_WINDOW, [duty.task, duty.window, openings]

    def check(self, key: SecretKey, duty: CheckDuty) -> tuple[int, list[Value]]:
        """Return what a verifier sends, who is honest and forgets what it sealed in a block that was not built."""
        kept = (key.address, duty.task, duty.window, duty.is_jury)
        if duty.action == Action.SEAL or kept not in self.found:
            leaves = [self.published[duty.task, duty.window][at] for at in duty.segments]
            findings = self.found[kept] = tuple(found(leaf) for leaf in leaves)
            sealed = verdict_seal(duty.task, duty.window, key.address, findings, NONCE)
            return SEAL_VERDICT, [duty.task, duty.window, sealed]
        return REVEAL_VERDICT, [duty.task, duty.window, findings_to_value(self.found[kept]), NONCE]

    def whim(self, key: SecretKey) -> tuple[int, list[Value]]:
        """Return something that may or may not be allowed."""
        draw = self.draw
        task = draw.choice(self.tasks) if self.tasks else bytes(32)
        match draw.randrange(11):
            case 0 | 1:
                roles, price = NodeRole.COMPUTE | NodeRole.VERIFY, WORTH // 2000
                profile = NodeProfile(
                    key.address, roles, (), 64, 64_000, 64, price, 10**10, 1, 0, (), "test"
                )  # fmt: skip
                kind = UPDATE_NODE if queries.find_node(self.state, key.address) else REGISTER_NODE
                return kind, node_payload(profile, draw.choice([0, self.parameters.node_bond_min]))
            case 2:
                return draw.choice([CANCEL_TASK, POKE]), [task]
            case 3 | 4:
                return CREATE_TASK, [encode_spec(spec())]
            case 5:
                return TOP_UP_TASK, [task, draw.choice([0, 1, DKB])]
            case 6:
                return FUND_CARRIAGE, [draw.choice([1, 10**20])]
            case 7:
                return draw.choice([RETIRE_NODE, SUSPEND_NODE]), []
            case 8:
                return WITHDRAW_CARRIAGE, [draw.choice([0, 1, 10**20])]
            case _:
                return TRANSFER_KIND, [draw.choice(KEYS).address, draw.choice([0, 1, 2**90, 2**100])]


@pytest.mark.slow
@pytest.mark.parametrize("part", range(4))
def test_no_history_of_everything_makes_or_loses_money_or_stops_the_chain(part: int) -> None:
    seen: Counter[str] = Counter()
    for seed in range(part * 2, part * 2 + 2):
        chaos = Everything(seed)
        for _ in range(60):
            chaos.time_ms += chaos.draw.choice(GAPS_MS)
            chaos.step()  # checks the whole supply
        seen.update(chaos.seen)
        for group in chaos.groups:
            with suppress(GroupUnknown):
                seen[f"group {load_group(chaos.state, group).phase.name}"] += 1
        for phase in Phase:
            seen[phase.name] += len(queries.tasks_by_phase(chaos.state, phase, None, 100).items)
    assert min(seen["applied"], seen["evidence"]) > 5
    assert seen["SETTLED"] + seen["FAILED"] > 0, seen
    assert any(name.startswith("group ") for name in seen)
