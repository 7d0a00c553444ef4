"""The market of ``world`` inside the real runtime: every act is a signed transaction in a block of its own."""

from __future__ import annotations

from dataclasses import fields
from typing import Final

from state.primitives.codec import Value
from state.primitives.genesis import Genesis, GenesisValidator
from state.primitives.keys import SecretKey
from state.primitives.receipts import decode_receipt
from state.primitives.signing import personal_digest, wallet_form
from state.primitives.transactions import decode_transaction, sign_transaction
from state.primitives.vrf import vrf_key_of
from state.transition.runtime import BlockInput, Runtime
from state.view import EMPTY, Overlay
from state.view.accounts import nonce_of
from tasks.ledger.parameters import TaskParameters
from tasks.ledger.registration import operator_words
from tasks.ledger.registry import NodeProfile, NodeRole
from tasks.ledger.transitions import (
    CREATE_TASK,
    HOLDINGS,
    INVARIANTS,
    REGISTER_NODE,
    endowments,
    hooks,
    node_payload,
    rules,
    task_id_of,
)
from tasks.spec import JobSpec, encode_spec
from tests.tasks.toywork import toy_question
from tests.tasks.world import DKB, HONEST, QUICK, WORTH, Manners, World, spec

VALIDATOR: Final = SecretKey(b"\xf0" * 32)
KEYS: Final = tuple(SecretKey(bytes([at]) * 32) for at in range(1, 64))
"""Accounts with money: the first pays for tasks, tests give the others their parts."""
REQUESTER_KEY: Final = KEYS[0]
WORK, CHECK = NodeRole.COMPUTE, NodeRole.VERIFY
FEE: Final = 10**10


def genesis_of(parameters: TaskParameters) -> Genesis:
    proof_key = vrf_key_of(VALIDATOR).public
    return Genesis(
        7, "test", 1_700_000_000_000, True,
        tuple(sorted((key.address, 10_000 * DKB) for key in KEYS)),
        (GenesisValidator(VALIDATOR.address, VALIDATOR.vote_key, proof_key, 1_000 * DKB),),
        tuple(sorted([
            ("chain.steady_interval_ms_max", World.steady_interval_ms_max),
            *((f"tasks.{field.name}", getattr(parameters, field.name)) for field in fields(parameters)),
        ])),
    )  # fmt: skip


class SignedWorld(World):
    """A world whose machines have keys, and whose state only the runtime changes."""

    def __init__(self, parameters: TaskParameters = QUICK) -> None:
        super().__init__(parameters)
        self.genesis = genesis_of(parameters)
        self.runtime = Runtime(
            self.genesis, rules=rules(parameters, toy_question),
            hooks=hooks(parameters, toy_question), invariants=INVARIANTS,
            endowments=endowments(parameters),
            holdings=HOLDINGS, check_invariants=True,
        )  # fmt: skip
        self.state = Overlay(EMPTY)
        self.state.changes.update(self.runtime.genesis_changes())
        self.height, self.time_ms = 0, self.genesis.time_ms
        self.keys = {key.address: key for key in KEYS}

    def fund(self, address: bytes, amount: int) -> None:
        """Every account has its money from the genesis."""

    def send(self, sender: bytes, kind: int, payload: list[Value]) -> str | None:
        raw = sign_transaction(
            self.keys[sender], chain_id=7, nonce=nonce_of(self.state, sender), kind=kind, payload=payload,
            gas_limit=self.runtime.rules[kind].gas, max_fee_per_gas=FEE, max_priority_fee_per_gas=10,
        )  # fmt: skip
        return self._execute([raw], 1)

    def block(self, milliseconds: int = 1_000) -> None:
        self._execute([], milliseconds)

    def _execute(self, body: list[bytes], milliseconds: int) -> str | None:
        """Make the next block; return why its transaction was refused, or None."""
        self.height, self.time_ms = self.height + 1, self.time_ms + milliseconds
        transactions = [decode_transaction(raw) for raw in body]
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
        self.events += [event for events in execution.events for event in events]
        receipts = [decode_receipt(receipt) for receipt in execution.receipts]
        return next((receipt.reason for receipt in receipts if receipt.reason), None)

    # Actors

    def profile(
        self, key: SecretKey, *, roles: NodeRole = WORK | CHECK, price: int = WORTH // 2000, slots: int = 1,
        operator: SecretKey | None = None,
    ) -> NodeProfile:  # fmt: skip
        """Return the offer of a machine, with the signature of its operator where that is another account."""
        owner, consent = key.address, b""
        if operator is not None:
            words = operator_words(self.runtime.genesis_hash, key.address)
            owner, consent = operator.address, wallet_form(operator.sign(personal_digest(words)))
        return NodeProfile(owner, roles, (), 64, 64_000, 64, price, 10**10, slots, 0, (), "test", consent)

    def join(self, key: SecretKey, profile: NodeProfile, manners: Manners = HONEST) -> bytes:
        """Register a machine with the least bond."""
        payload = node_payload(profile, self.parameters.node_bond_min)
        assert self.send(key.address, REGISTER_NODE, payload) is None
        self.machines[key.address] = manners
        return key.address

    def create(self, job: JobSpec | None = None) -> bytes:
        task = task_id_of(REQUESTER_KEY.address, nonce_of(self.state, REQUESTER_KEY.address))
        assert self.send(REQUESTER_KEY.address, CREATE_TASK, [encode_spec(job or spec())]) is None
        return task
