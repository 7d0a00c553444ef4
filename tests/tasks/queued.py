"""The model market with signed transactions, which go through the real runtime and its invariants."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from state.primitives.codec import Value
from state.primitives.genesis import Genesis, GenesisValidator
from state.primitives.hashing import digest
from state.primitives.keys import SecretKey
from state.primitives.receipts import Receipt, decode_receipt
from state.primitives.transactions import decode_transaction, sign_transaction
from state.primitives.vrf import vrf_key_of
from state.transition.runtime import BlockInput, Runtime
from state.view.accounts import issued, nonce_of, set_issued
from tasks.ledger.registry import Gpu, NodeProfile, NodeRole
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
from tests.tasks.world import DKB, HONEST, START_MS, WORTH, Manners, World, spec

VALIDATOR: Final = SecretKey(b"\x01" * 32)
CHAIN_ID: Final = 7


@dataclass
class QueuedWorld(World):
    """``send`` signs and queues a transaction; ``block`` executes what is queued.

    ``spent`` adds up the fees of each sender, ``receipts`` are those of the last block.
    """

    keys: dict[bytes, SecretKey] = field(default_factory=dict)
    pending: list[bytes] = field(default_factory=list)
    receipts: list[Receipt] = field(default_factory=list)
    spent: dict[bytes, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        stake = GenesisValidator(VALIDATOR.address, VALIDATOR.vote_key, vrf_key_of(VALIDATOR).public, 1_000 * DKB)
        steady = (("chain.steady_interval_ms_max", self.steady_interval_ms_max),)
        genesis = Genesis(CHAIN_ID, "test", START_MS, True, (), (stake,), steady)
        self.runtime = Runtime(
            genesis, rules=rules(self.parameters, toy_question),
            hooks=hooks(self.parameters, toy_question), invariants=INVARIANTS,
            endowments=endowments(self.parameters),
            holdings=HOLDINGS, check_invariants=True,
        )  # fmt: skip
        self.state.changes.update(self.runtime.genesis_changes())
        self.rules = dict(self.runtime.rules)
        self.height = 0
        self.requester = self.key("requester", 1_000_000 * DKB)

    def key(self, name: str, amount: int = 1_000 * DKB) -> bytes:
        """Make an account with money; returns its address."""
        key = SecretKey(digest(b"test-key", name.encode()))
        if key.address not in self.keys:
            self.keys[key.address] = key
            self.fund(key.address, amount)
            set_issued(self.state, issued(self.state) + amount)
        return key.address

    def send(self, sender: bytes, kind: int, payload: list[Value]) -> str | None:
        nonce = max(self.nonces.get(sender, 0), nonce_of(self.state, sender))
        self.nonces[sender] = nonce + 1
        self.pending.append(
            sign_transaction(
                self.keys[sender], chain_id=CHAIN_ID, nonce=nonce, kind=kind, payload=payload,
                gas_limit=self.runtime.rules[kind].gas, max_fee_per_gas=10**12, max_priority_fee_per_gas=0,
            )
        )  # fmt: skip
        return None

    def block(self, milliseconds: int = 1_000) -> None:
        self.height, self.time_ms = self.height + 1, self.time_ms + milliseconds
        transactions = [decode_transaction(raw) for raw in self.pending]
        self.pending = []
        for transaction in transactions:
            transaction.recover_sender()
        checked = [self.runtime.check(transaction) for transaction in transactions]
        base_fee = self.runtime.base_fee(self.state)
        self.runtime.check_body(self.state, base_fee, checked)
        proof = vrf_key_of(VALIDATOR).prove(self.height.to_bytes(8, "big"))
        execution = self.runtime.execute(
            self.state, BlockInput(self.height, 0, self.height, 0, self.time_ms, base_fee, proof), checked
        )
        self.state.changes.update(execution.changes)
        self.runtime.check_whole_supply(self.state)
        self.receipts = [decode_receipt(receipt) for receipt in execution.receipts]
        self.events = [event for events in execution.events for event in events]
        for transaction, receipt in zip(transactions, self.receipts, strict=True):
            fee = receipt.gas_used * receipt.effective_gas_price
            self.spent[transaction.sender] = self.spent.get(transaction.sender, 0) + fee

    def sign_up(
        self, name: str, *, roles: NodeRole = NodeRole.COMPUTE | NodeRole.VERIFY, manners: Manners = HONEST,
        price: int = WORTH // 2000, rate: int = 10**10, memory_mib: int = 64_000, slots: int = 1, gpus: int = 0,
    ) -> bytes:  # fmt: skip
        """Register a machine; it acts from the next block on."""
        address = self.key(name)
        profile = NodeProfile(
            address, roles, (Gpu("card", 1_000),) * gpus, 64, memory_mib, 64, price, rate, slots, 0, (), "test"
        )
        self.send(address, REGISTER_NODE, node_payload(profile, self.parameters.node_bond_min))
        self.machines[address] = manners
        return address

    def post(self, job: JobSpec | None = None, requester: bytes | None = None) -> bytes:
        """Create a task of ``requester``; returns its id."""
        sender = requester or self.requester
        nonce = max(self.nonces.get(sender, 0), nonce_of(self.state, sender))
        self.send(sender, CREATE_TASK, [encode_spec(job or spec())])
        return task_id_of(sender, nonce)
