"""Custody in the model market: workers commit to outputs, machines with role storage sign, requesters demand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Final

from state.primitives.codec import Value
from state.primitives.hashing import digest
from state.primitives.merkle import MerkleTree
from tasks.claims import claim_to_value, find_fault
from tasks.custody.chunks import BlobCommitment, CipherBlob, Custody, chunk_proof_to_value
from tasks.custody.keys import (
    KeyCommitments,
    derive_key,
    input_key_name,
    key_proof_to_value,
    window_key_name,
)
from tasks.custody.layout import PlainChunk, plain_chunk_to_value
from tasks.custody.sealed import input_blob_size
from tasks.engines.state import TrainingState
from tasks.ledger import queries
from tasks.ledger.custody import custody_budget, demand_price, demand_stake
from tasks.ledger.custody_inputs import input_budget
from tasks.ledger.custody_records import (
    INPUT_WINDOW,
    CustodyPhase,
    DemandKind,
    find_custody,
    find_terms,
    load_custody,
)
from tasks.ledger.custody_transitions import (
    ANSWER_DEMAND,
    ASK_CUSTODY,
    CLAIM_GARBAGE,
    CLAIM_KEYED,
    DEMAND_CUSTODY,
    END_CUSTODY,
    KEEP_INPUT,
    RECEIVE_CUSTODY,
    REVEAL_GARBAGE,
    REVEAL_MISMATCH,
    TAKE_CUSTODY,
)
from tasks.ledger.parameters import TaskParameters
from tasks.ledger.registry import NodeRole
from tasks.proofs import WindowProof
from tasks.spec import JobSpec
from tests.tasks.world import HONEST, QUICK, REQUESTER, Manners, World

KEPT: Final = replace(
    QUICK, custody_copies=2, custody_ms=600_000, custody_sign_ms=5_000, custody_answer_ms=10_000,
    custody_fee_min=10**12,
)  # fmt: skip
KEEP: Final = NodeRole.STORAGE
TASK_KEY: Final = bytes(range(32))
INPUTS: Final = 1


@lru_cache(maxsize=4096)
def output_of(job: JobSpec, proof: WindowProof, manner: str) -> tuple[CipherBlob, bytes]:
    """Return a window's output as its worker prepares it for custody, and the plain bytes that it commits to.

    ``manner`` is how: "right", "garbage" (what lies there is no encryption of what the plain root commits to), or
    "other" (both are of bytes that are no state).
    """
    plan, root = job.plan(), proof.state_root_out
    content = {
        name: (digest(b"test-tensor", root + name.encode()) * (kind.size_bytes // 32 + 1))[: kind.size_bytes]
        for name, kind in plan.tensors().items()
    }
    state = TrainingState(proof.result_step, content).encode()
    if manner == "other":
        state = bytes(len(state))
    key = derive_key(TASK_KEY, window_key_name(proof.window))
    blob = CipherBlob(key, state)
    if manner == "garbage":
        other = CipherBlob(key, state[::-1])
        blob.commitment = BlobCommitment(len(state), blob.commitment.plain_root, other.commitment.cipher_root)
        blob.chunks = other.chunks
    return blob, state


@dataclass
class KeptWorld(World):
    """A market whose tasks have custody. What is in ``silent`` neither signs, answers nor receives."""

    parameters: TaskParameters = KEPT
    outputs: dict[tuple[bytes, int], CipherBlob] = field(default_factory=dict)
    plains: dict[tuple[bytes, int], bytes] = field(default_factory=dict)
    manner: str = "right"
    """How workers prepare outputs."""
    hands_over: bool = True
    hoarders: set[bytes] = field(default_factory=set)
    """Workers that hand their outputs to nobody."""
    unsigning: set[bytes] = field(default_factory=set)
    unanswering: set[bytes] = field(default_factory=set)

    def add_keeper(self, name: int, manners: Manners = HONEST) -> bytes:
        """Register a machine with role storage."""
        return self.add_machine(name, roles=KEEP, manners=manners)

    def create(self, job: JobSpec | None = None) -> bytes:
        task = super().create(job)
        assert self.ask(task) is None
        return task

    def ask(self, task: bytes) -> str | None:
        job = queries.task_spec(self.state, task)
        commitments = KeyCommitments(TASK_KEY, INPUTS, job.windows)
        amount = custody_budget(job, self.parameters)
        return self.send(REQUESTER, ASK_CUSTODY, [task, commitments.root, INPUTS, amount])

    def keep_input(
        self, task: bytes, content: bytes, *, manner: str = "right", sender: bytes = REQUESTER, less: int = 0
    ) -> str | None:
        """Commit to the data set of a task, and have it kept. ``manner`` is as for ``output_of``."""
        root = queries.task_spec(self.state, task).dataset.root
        blob = CipherBlob(derive_key(TASK_KEY, input_key_name(0)), content, root)
        if manner == "garbage":
            other = CipherBlob(derive_key(TASK_KEY, window_key_name(0)), content)
            blob.commitment = blob.commitment._replace(cipher_root=other.commitment.cipher_root)
            blob.chunks = other.chunks
        self.outputs[task, INPUT_WINDOW] = blob
        amount = input_budget(queries.task_spec(self.state, task), self.parameters) - less
        return self.send(sender, KEEP_INPUT, [task, *blob.commitment, amount])

    def claim_garbage(self, task: bytes, number: int, sender: bytes) -> str | None:
        commitments = KeyCommitments(TASK_KEY, INPUTS, queries.task_spec(self.state, task).windows)
        name = input_key_name(0)
        path = key_proof_to_value(commitments.proof(name))
        chunk = self.chunk(task, INPUT_WINDOW, number)
        return self.send(sender, CLAIM_GARBAGE, [task, derive_key(TASK_KEY, name), path, chunk])

    def claim_keyed(
        self, task: bytes, cipher: bytes, plain: bytes, sender: bytes, key: bytes = TASK_KEY, **changed: object
    ) -> str | None:
        """Claim that the task's blob, a cipher, does not decrypt to its data set."""
        job = queries.task_spec(self.state, task)
        name, found = input_key_name(0), find_fault(task, job, plain, cipher, blob_bytes=input_blob_size(job))
        assert found is not None
        path = key_proof_to_value(KeyCommitments(TASK_KEY, INPUTS, job.windows).proof(name))
        claim = claim_to_value(found._replace(**changed))  # type: ignore[arg-type]
        return self.send(sender, CLAIM_KEYED, [claim, derive_key(key, name), path])

    def proof(self, job: JobSpec, proof: WindowProof) -> WindowProof:
        if find_terms(self.state, proof.task) is None:
            return proof
        blob, plain = output_of(job, proof, self.manner)
        self.outputs[proof.task, proof.window], self.plains[proof.task, proof.window] = blob, plain
        return proof._replace(custody=(*blob.commitment,))

    def keep(self) -> None:
        """Let custodians and receivers do what is asked of them, and whoever holds an output answer demands."""
        for task, window in list(self.outputs):
            record = find_custody(self.state, task, window)
            if record is None or record.phase is CustodyPhase.VOID:
                continue
            for address in record.pending:
                if self.hands_over and not {address} & self.unsigning and not {record.author} & self.hoarders:
                    assert self.send(address, TAKE_CUSTODY, [task, window, record.bond]) is None
            asked = record.demand
            if asked is None or asked.holder in self.unanswering:
                continue
            if asked.chunk >= 0:
                self.answer(task, window, asked.holder, asked.chunk)
            elif asked.receiver and asked.receiver not in self.unsigning:
                assert self.send(asked.receiver, RECEIVE_CUSTODY, [task, window]) is None

    def act(self, order: Callable[[Sequence[bytes]], Sequence[bytes]] = sorted) -> None:
        super().act(order)
        self.keep()

    def chunk(self, task: bytes, window: int, number: int) -> list[Value]:
        blob = self.outputs[task, window]
        return chunk_proof_to_value(Custody(blob.commitment, blob.chunks, blob.plain_hashes).proof(number))

    def answer(self, task: bytes, window: int, holder: bytes, number: int) -> str | None:
        return self.send(holder, ANSWER_DEMAND, [task, window, self.chunk(task, window, number)])

    def demand(self, task: bytes, window: int, holder: bytes, sender: bytes = REQUESTER) -> str | None:
        record = load_custody(self.state, task, window)
        amount = max(demand_price(record, kind, 0, self.parameters) for kind in DemandKind)
        amount += demand_stake(record.bond, DemandKind.DELIVERY, self.parameters)
        return self.send(sender, DEMAND_CUSTODY, [task, window, holder, amount])

    def reveal(self, task: bytes, window: int, number: int, sender: bytes, key: bytes = TASK_KEY) -> str | None:

        commitments = KeyCommitments(TASK_KEY, INPUTS, queries.task_spec(self.state, task).windows)
        name = window_key_name(window)
        path = key_proof_to_value(commitments.proof(name))
        payload: list[Value] = [task, window, derive_key(key, name), path, self.chunk(task, window, number)]
        return self.send(sender, REVEAL_GARBAGE, payload)

    def mismatch(self, task: bytes, window: int, number: int, sender: bytes) -> str | None:
        plain = self.plains[task, window]
        parts = [plain[at : at + 16_384] for at in range(0, len(plain), 16_384)]
        tree = MerkleTree(parts)
        chunk = PlainChunk(number, parts[number], tree.siblings(number))
        return self.send(sender, REVEAL_MISMATCH, [task, window, plain_chunk_to_value(chunk), []])

    def end(self, task: bytes, window: int, sender: bytes = REQUESTER) -> str | None:
        return self.send(sender, END_CUSTODY, [task, window])

    def end_shown(self, task: bytes, window: int) -> int:
        """End the custody of a window; if a custodian is drawn then, it shows its chunk (R157).

        Return when that was.
        """
        assert self.end(task, window) is None
        ended_ms = self.time_ms
        if self.phase(task, window) is CustodyPhase.CLOSING:
            self.keep()
            self.block()
        assert self.phase(task, window) is None
        return ended_ms

    def phase(self, task: bytes, window: int) -> CustodyPhase | None:
        record = find_custody(self.state, task, window)
        return None if record is None else record.phase

    def holders(self, task: bytes, window: int) -> list[bytes]:
        return [holder.address for holder in load_custody(self.state, task, window).holders]
