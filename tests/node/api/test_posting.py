"""A job has one task, wherever the program is ended: every place of an interruption against a simulated chain."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from node.api.posting import NotPosted, Poster
from node.api.records import TUNING, JobRecord
from node.api.store import Store, new_id
from rpc.client import GatewayUnreachable, TransactionRefused
from rpc.client.jobs import SignedJob
from state.primitives.hashing import digest, keccak
from state.primitives.keys import SecretKey
from state.primitives.transactions import decode_transaction, sign_transaction
from tasks.ledger.custody_transitions import ASK_CUSTODY
from tasks.ledger.transitions import CREATE_TASK, task_id_of

KEY = SecretKey(digest(b"api-tests", b"requester"))
SPEC = b"specification"
RESERVED = 10**18


class Killed(BaseException):
    """The program ends here."""


@dataclass
class Chain:
    """An account's transactions: nonces, a pool, tasks and custody. ``kill_at`` ends the program at that call."""

    kill_at: int = -1
    refuses_custody: bool = False
    calls: int = 0
    pool: dict[int, bytes] = field(default_factory=dict)
    final: dict[int, bytes] = field(default_factory=dict)
    tasks: dict[bytes, bytes] = field(default_factory=dict)
    kept: set[bytes] = field(default_factory=set)
    cancelled: set[bytes] = field(default_factory=set)

    core = SimpleNamespace(url="http://chain")

    def _called(self) -> None:
        self.calls += 1
        if self.calls - 1 == self.kill_at:
            raise Killed

    def include(self) -> None:
        """Include all that is in order."""
        while (raw := self.pool.pop(len(self.final), None)) is not None:
            transaction = decode_transaction(raw)
            self.final[transaction.nonce] = raw
            if transaction.kind == CREATE_TASK:
                task = task_id_of(KEY.address, transaction.nonce)
                self.tasks[task] = transaction.payload[0]
            elif transaction.kind == ASK_CUSTODY and not self.refuses_custody:
                self.kept.add(transaction.payload[0])

    def sign(self, nonce: int, kind: int, payload: list[Any]) -> bytes:
        return sign_transaction(
            KEY, chain_id=1, nonce=nonce, kind=kind, payload=payload, gas_limit=100, max_fee_per_gas=100
        )

    def submit(self, raw: bytes) -> None:
        self._called()
        nonce = decode_transaction(raw).nonce
        if nonce >= len(self.final):
            self.pool.setdefault(nonce, raw)
        self._called()  # taken, and the answer is lost

    def wait(self, raw: bytes, timeout_s: float = 0) -> None:
        self.submit(raw)
        self.include()
        self._called()
        nonce = decode_transaction(raw).nonce
        if self.final.get(nonce) != raw:
            raise TransactionRefused("not final", hash_=keccak(raw))
        if self.refuses_custody and decode_transaction(raw).kind == ASK_CUSTODY:
            raise TransactionRefused("refused", reason="too_late")

    def send(self, _key: SecretKey, kind: int, payload: list[Any]) -> Any:
        self.wait(self.sign(len(self.final) + len(self.pool), kind, payload))
        return SimpleNamespace(fee=7)

    def post_job(self, _key: SecretKey, _made: Any, *, control: Any, note: Any) -> None:
        """As the library: upload, sign, note, submit, wait."""
        self._called()
        nonce = len(self.final)
        create = self.sign(nonce, CREATE_TASK, [SPEC])
        task = task_id_of(KEY.address, nonce)
        ask = self.sign(nonce + 1, ASK_CUSTODY, [task, b"root", 0, 5])
        note(SignedJob(task, create, ask))
        self._called()
        self.submit(ask)
        self.wait(create)
        self.wait(ask)

    def account(self, _address: bytes) -> Any:
        self._called()
        return SimpleNamespace(nonce=len(self.final))

    def task(self, task: bytes) -> Any:
        self._called()
        found = self.tasks.get(task)
        return None if found is None else SimpleNamespace(document={"spec": {"raw": "0x" + found.hex()}})

    def receipt(self, hash_: bytes) -> Any:
        self._called()
        found = any(keccak(raw) == hash_ for raw in self.final.values())
        return SimpleNamespace(succeeded=True, reason=None) if found else None

    def custody_terms(self, task: bytes) -> Any:
        self._called()
        return object() if task in self.kept else None

    def estimate(self, _sender: bytes, _kind: int, _payload: list[Any]) -> Any:
        return SimpleNamespace(succeeded=True)

    def cancel_task(self, _key: SecretKey, task: bytes) -> Any:
        self.cancelled.add(task)
        return SimpleNamespace(fee=7)


def kept_job(folder: Path) -> tuple[Store, JobRecord]:
    store = Store(folder)
    made = JobRecord(
        new_id(TUNING), TUNING, 5, {}, "queued", "m", "file-x", 1, spec=SPEC.hex(), locked=5, reserved=RESERVED
    )
    store.add_job(made, budget=RESERVED, now_ms=0)
    return store, made


def step(store: Store, poster: Poster, chain: Chain) -> None:
    """What the driver does with a job until it is posted."""
    [job] = store.open_jobs()
    try:
        if job.signed is None:
            poster.post(chain, job, None)  # type: ignore[arg-type]
        else:
            poster.resume(chain, job)  # type: ignore[arg-type]
    except (GatewayUnreachable, TransactionRefused):
        pass


def run(folder: Path, chain: Chain, kills: tuple[int, ...], before: Any = None) -> tuple[Store, JobRecord]:
    """Post a job; the program is ended at each of ``kills`` and started again."""
    store, made = kept_job(folder)
    for kill_at in (*kills, -1):
        chain.kill_at, chain.calls = kill_at, 0
        poster = Poster(store, KEY, lambda: None)
        try:
            for _ in range(8):
                if store.job(made.id, TUNING).is_posted:
                    break
                step(store, poster, chain)
        except Killed:
            store.close()
            if before is not None:
                before(chain)
            store = Store(folder)
    return store, store.job(made.id, TUNING)


@pytest.mark.parametrize("kills", [*((at,) for at in range(14)), *itertools.product((3, 6), (0, 2, 5))])
def test_one_job_is_one_task_wherever_it_is_interrupted(tmp_path: Path, kills: tuple[int, ...]) -> None:
    chain = Chain()
    store, job = run(tmp_path, chain, kills)
    assert job.is_posted
    assert list(chain.tasks) == [job.task] and chain.kept == {job.task}
    store.close()


@pytest.mark.parametrize("kill_at", range(1, 8))
def test_another_transaction_may_take_the_nonce_meanwhile(tmp_path: Path, kill_at: int) -> None:
    """The account is also that of a node, and of a person with the command line."""

    def other(chain: Chain) -> None:
        if not chain.pool and not chain.final:
            chain.pool[0] = chain.sign(0, CREATE_TASK, [b"another job"])
        chain.include()

    chain = Chain()
    store, job = run(tmp_path, chain, (kill_at,), other)
    assert job.is_posted
    assert [raw for raw in chain.tasks.values() if raw == SPEC] == [SPEC]
    assert chain.tasks[job.task or b""] == SPEC
    store.close()


def test_a_task_without_its_custody_is_cancelled(tmp_path: Path) -> None:
    chain = Chain(refuses_custody=True)
    store, job = run(tmp_path, chain, (7,))
    assert job.is_posted and chain.cancelled == {job.task} and (job.is_cancel_sent, job.more_fees) == (True, 7)
    store.close()


def test_a_job_whose_fees_have_risen_is_not_sent(tmp_path: Path) -> None:
    store, made = kept_job(tmp_path)
    chain = Chain()
    with pytest.raises(NotPosted, match="fees have risen"):
        Poster(store, KEY, lambda: None).post(chain, replace(made, reserved=19_999), None)  # type: ignore[arg-type]
    assert not chain.pool and not chain.final and store.job(made.id, TUNING).signed is None
    store.close()
