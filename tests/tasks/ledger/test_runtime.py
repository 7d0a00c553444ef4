"""The market inside the whole runtime: signed transactions, fees, receipts, hooks, and the supply of the chain."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest

from billing.escrow import escrow_totals
from state.primitives.codec import Value
from state.primitives.errors import ConfigError
from state.primitives.genesis import Genesis, GenesisValidator, read_parameters
from state.primitives.keys import SecretKey
from state.primitives.receipts import Receipt, decode_receipt
from state.primitives.transactions import decode_transaction, sign_transaction
from state.primitives.vrf import vrf_key_of
from state.transition.runtime import BlockInput, Runtime
from state.view import EMPTY, Overlay
from state.view.accounts import nonce_of
from tasks.ledger import queries
from tasks.ledger.lifecycle import Phase
from tasks.ledger.parameters import TaskParameters
from tasks.ledger.queries import Action
from tasks.ledger.registry import NodeProfile, NodeRole
from tasks.ledger.transitions import (
    ACCEPT_TASK,
    CREATE_TASK,
    HOLDINGS,
    INVARIANTS,
    OPEN_WINDOW,
    REGISTER_NODE,
    REVEAL_VERDICT,
    SEAL_VERDICT,
    START_TASK,
    SUBMIT_WINDOW,
    endowments,
    hooks,
    node_payload,
    rules,
    task_id_of,
)
from tasks.proofs import (
    findings_to_value,
    make_opening,
    opening_to_value,
    verdict_seal,
    window_proof_to_value,
)
from tasks.spec import encode_spec
from tests.tasks.world import DKB, WORTH, found, leaves_of, proof_of, salt, spec, work_of

VALIDATOR, REQUESTER, WORKER, VERIFIER = (SecretKey(bytes([at]) * 32) for at in range(1, 5))
GENESIS = Genesis(
    7,
    "test",
    1_700_000_000_000,
    True,
    tuple((key.address, 1_000 * DKB) for key in (REQUESTER, WORKER, VERIFIER)),
    (GenesisValidator(VALIDATOR.address, VALIDATOR.vote_key, vrf_key_of(VALIDATOR).public, 1_000 * DKB),),
    (("tasks.final_ms", 2_000), ("tasks.new_windows", 0)),
)


class Chain:
    def __init__(self) -> None:
        self.parameters = read_parameters(TaskParameters, "tasks", GENESIS)
        self.runtime = Runtime(
            GENESIS, rules=rules(self.parameters), hooks=hooks(self.parameters), invariants=INVARIANTS,
            endowments=endowments(self.parameters),
            holdings=HOLDINGS, check_invariants=True,
        )  # fmt: skip
        self.state = Overlay(EMPTY)
        self.state.changes.update(self.runtime.genesis_changes())
        self.height, self.time_ms = 0, GENESIS.time_ms
        self.pending: list[bytes] = []

    def send(self, key: SecretKey, kind: int, payload: list[Value]) -> None:
        self.pending.append(
            sign_transaction(
                key, chain_id=7, nonce=nonce_of(self.state, key.address), kind=kind, payload=payload,
                gas_limit=self.runtime.rules[kind].gas, max_fee_per_gas=10**10, max_priority_fee_per_gas=10,
            )
        )  # fmt: skip

    def block(self) -> list[Receipt]:
        self.height, self.time_ms = self.height + 1, self.time_ms + 1_000
        transactions = [decode_transaction(raw) for raw in self.pending]
        self.pending = []
        for transaction in transactions:
            transaction.recover_sender()
        checked = [self.runtime.check(transaction) for transaction in transactions]
        base_fee = self.runtime.base_fee(self.state)
        self.runtime.check_body(self.state, base_fee, checked)
        proof = vrf_key_of(VALIDATOR).prove(self.height.to_bytes(8, "big"))
        block = BlockInput(self.height, 0, self.height, 0, self.time_ms, base_fee, proof)
        execution = self.runtime.execute(self.state, block, checked)
        self.state.changes.update(execution.changes)
        self.runtime.check_whole_supply(self.state)
        return [decode_receipt(receipt) for receipt in execution.receipts]


def test_a_task_lives_and_is_settled_by_signed_transactions() -> None:
    chain, job = Chain(), spec()
    for key, role in ((WORKER, NodeRole.COMPUTE), (VERIFIER, NodeRole.VERIFY)):
        profile = NodeProfile(key.address, role, (), 8, 16_000, 0, WORTH // 2000, 1, 1, 0, (), "1")
        chain.send(key, REGISTER_NODE, node_payload(profile, chain.parameters.node_bond_min))
    task = task_id_of(REQUESTER.address, 0)
    chain.send(REQUESTER, CREATE_TASK, [encode_spec(job)])
    assert [receipt.status for receipt in chain.block()] == [1, 1, 1]
    leaves = {}
    for _ in range(60):
        if queries.find_task(chain.state, task).phase == Phase.SETTLED:
            break
        for work in queries.work_duties(chain.state, WORKER.address, chain.parameters)[:1]:
            match work.action:
                case Action.ACCEPT:
                    chain.send(WORKER, ACCEPT_TASK, [task, work.bond])
                case Action.START:
                    chain.send(WORKER, START_TASK, [task, b"m" * 32])
                case Action.COMPUTE if not work.blocked:
                    mine = leaves[work.window] = leaves_of(job, work.window, work.state_root)
                    proof = proof_of(job, task, work.window, mine)
                    chain.send(WORKER, SUBMIT_WINDOW, [window_proof_to_value(proof)])
                case Action.OPEN:
                    mine = leaves[work.window]
                    openings: list[Value] = [
                        opening_to_value(make_opening(mine, at, work_of(mine[at]), salt(mine[at].step_from)))
                        for at in work.segments
                    ]
                    chain.send(WORKER, OPEN_WINDOW, [task, work.window, openings])
                case _:
                    pass
        for check in queries.verification_duties(chain.state, VERIFIER.address)[:1]:
            findings = [found(leaves[check.window][at]) for at in check.segments]
            if check.action == Action.SEAL:
                sealed = verdict_seal(task, check.window, VERIFIER.address, findings, b"n" * 32)
                chain.send(VERIFIER, SEAL_VERDICT, [task, check.window, sealed])
            else:
                shown: list[Value] = [task, check.window, findings_to_value(findings), b"n" * 32]
                chain.send(VERIFIER, REVEAL_VERDICT, shown)
        assert all(receipt.reason is None for receipt in chain.block())
    record = queries.find_task(chain.state, task)
    assert (record.phase, record.final_windows) == (Phase.SETTLED, 3)
    totals = escrow_totals(chain.state, task)
    assert totals.deposited == totals.locked + totals.paid + totals.refunded + totals.burned
    assert totals.paid > 0 and totals.burned > 0


def test_a_refused_transaction_leaves_only_its_fee() -> None:
    chain = Chain()
    chain.send(REQUESTER, ACCEPT_TASK, [b"?" * 32, 5])
    (receipt,) = chain.block()
    assert (receipt.status, receipt.reason, receipt.events) == (0, "task_unknown", ())


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("jury", 2), ("samples", 0), ("samples", 17), ("hold_bps", 10_001), ("draws_max", 0), ("node_bond_min", 0),
        ("final_ms", -1), ("reveal_ms", 0), ("pause_ms", 1 << 60),
    ],
)  # fmt: skip
def test_parameters_that_cannot_work_are_refused(name: str, value: int) -> None:
    genesis = replace(GENESIS, parameters=((f"tasks.{name}", value),))
    with pytest.raises(ConfigError, match=name):
        read_parameters(TaskParameters, "tasks", genesis)


@pytest.mark.parametrize("name", [field.name for field in fields(TaskParameters)])
def test_every_parameter_is_bounded_on_both_sides(name: str) -> None:
    for value in (-1, 1 << 110):
        with pytest.raises(ConfigError, match=name):
            replace(TaskParameters(), **{name: value})
