"""A ``task create`` that is stopped between any two of its steps is harmless, or ``task keep`` finishes it.

The commands are the real ones, and so are the rules that they meet. Only the way between them is short.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from io import BytesIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio
from click.testing import CliRunner

import node.cli.tasks.keeping
import node.market.posting
from node.cli import group
from node.cli.session import Session
from node.market.private_jobs import make_private
from rpc.client import Client, ClientError, TransactionRefused
from rpc.client.jobs import JobQuote, judge_job
from rpc.client.results import Custody, CustodyTerms, Task, TaskQuote, read_result
from state.primitives.address import format_address
from state.primitives.hashing import digest
from state.primitives.keys import SecretKey
from state.primitives.manifests import manifest_of
from state.primitives.transactions import decode_transaction, sign_transaction
from tasks.custody.keys import public_key_root
from tasks.ledger.custody_records import INPUT_WINDOW, CustodyPhase, find_terms
from tasks.ledger.custody_transitions import ASK_CUSTODY, KEEP_INPUT
from tasks.ledger.lifecycle import Phase
from tasks.ledger.queries import tasks_by_requester
from tasks.ledger.transitions import CANCEL_TASK, CREATE_TASK
from tasks.spec import JobSpec, encode_spec
from tests.rpc.harness import hexed
from tests.rpc.test_market import WorldNode
from tests.tasks.executor.helpers import BLOB, make_spec
from tests.tasks.keepers import KeptWorld
from tests.tasks.world import DKB

KEY = SecretKey(b"k" * 32)
MACHINES = [b"\x01" * 20, b"\x02" * 20]


class Stopped(BaseException):
    """The command is killed here."""


class Chain:
    """The market's rules behind what the commands ask of a client. It stops the command before a step, once."""

    def __init__(self, stops_at: int = 0) -> None:
        self.world, self.steps, self.stops_at = KeptWorld(), 0, stops_at
        self.world.fund(KEY.address, 1_000 * DKB)
        for name in (3, 4, 5):
            self.world.add_keeper(name)
        for _ in range(3):  # bonds count once they have stood for a while
            self.world.block()
        self.node = WorldNode(self.world)
        self.sent: dict[bytes, str | None] = {}
        self.kinds: list[int] = []
        self.queued: dict[int, bytes] = {}
        """Transactions behind a gap of nonces."""
        self.uploads = self.shares = 0

    def __enter__(self) -> Chain:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def step(self) -> None:
        self.steps += 1
        if self.steps == self.stops_at:
            raise Stopped

    def ask(self, method: str, *params: Any) -> Any:
        return trio.run(partial(self.node.call, method, *params))

    # What is asked

    def quote_task(self, raw: bytes, task: bytes | None = None) -> TaskQuote:
        return read_result(TaskQuote, self.ask("dekube_quoteTask", hexed(raw), *([hexed(task)] if task else [])))

    def quote_job(self, spec: JobSpec) -> JobQuote:
        return judge_job(spec, self.quote_task(encode_spec(spec)))

    def task(self, task: bytes) -> Task:
        return read_result(Task, self.ask("dekube_getTask", hexed(task))["task"])

    def custody_terms(self, task: bytes) -> CustodyTerms | None:
        found = self.ask("dekube_getCustody", hexed(task), 0)["terms"]
        return None if found is None else read_result(CustodyTerms, found)

    def custody(self, task: bytes, window: int) -> Custody | None:
        self.step()
        self.world.block()
        self.world.act()
        found = self.ask("dekube_getCustody", hexed(task), window)["custody"]
        return None if found is None else read_result(Custody, found)

    def is_held(self, _blob: bytes) -> bool:
        return True

    def items(self, _method: str) -> Any:
        return iter([{"roles": ["storage"]}] * 3)

    def chain(self) -> Any:
        return SimpleNamespace(name="test", chain_id=7)

    def account(self, address: bytes) -> Any:
        return SimpleNamespace(pending_nonce=self.world.nonces.get(address, 0))

    def estimate(self, *_: Any) -> Any:
        return SimpleNamespace(succeeded=True, reason=None)

    # What is sent

    def sign(self, key: SecretKey, kind: int, payload: list[Any], nonce: int | None = None, **_: int) -> bytes:
        return sign_transaction(
            key, chain_id=7, nonce=self.world.nonces.get(key.address, 0) if nonce is None else nonce, kind=kind,
            payload=payload, gas_limit=1, max_fee_per_gas=1, max_priority_fee_per_gas=0,
        )  # fmt: skip

    def submit(self, raw: bytes) -> None:
        self.step()
        nonce = decode_transaction(raw).nonce
        if raw in self.sent or self.queued.get(nonce) == raw:
            return
        if nonce in self.queued or nonce < self.next_nonce:
            raise ClientError("another transaction has this nonce")
        self.queued[nonce] = raw
        while (ready := self.queued.pop(self.next_nonce, None)) is not None:
            self.apply(ready)

    @property
    def next_nonce(self) -> int:
        return self.world.nonces.get(KEY.address, 0)

    def apply(self, raw: bytes) -> None:
        signed = decode_transaction(raw)
        payload = list(signed.payload)
        self.sent[raw] = self.world.send(KEY.address, signed.kind, payload)
        self.kinds.append(signed.kind)
        if signed.kind == KEEP_INPUT:
            self.world.outputs[cast(bytes, payload[0]), INPUT_WINDOW] = cast(Any, None)  # machines sign for it

    def wait(self, raw: bytes) -> Any:
        self.submit(raw)
        self.step()
        if reason := self.sent[raw]:
            raise TransactionRefused(reason, reason=reason)
        return SimpleNamespace(transaction_hash=digest(b"test-tx", raw), block=SimpleNamespace(height=1))

    def cancel_task(self, key: SecretKey, task: bytes) -> Any:
        return self.send(key, CANCEL_TASK, [task])

    def send(self, key: SecretKey, kind: int, payload: list[Any]) -> Any:
        return self.wait(self.sign(key, kind, payload))

    def upload(self, file: Path, **_: Any) -> bytes:
        self.step()
        self.uploads += file.stat().st_size > 0
        return b""

    def control(self, _control: Path, command: str, **_: Any) -> Any:
        """Answer as the requester's node does."""
        self.step()
        if command == "status":
            return {"address": format_address(KEY.address)}
        assert command == "share_key"
        self.shares += 1
        return {"holders": [machine.hex() for machine in MACHINES]}


@pytest.fixture(params=[False, True], ids=["public", "private"])
def is_private(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


class Commands:
    """``task create`` and ``task keep`` of one job, on a chain that may stop them."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, *, is_private: bool) -> None:
        self.monkeypatch, self.is_private = monkeypatch, is_private
        monkeypatch.setattr(node.market.posting, "INPUT_POLL_S", 0)
        monkeypatch.setattr(Session, "key", lambda _session, name=None: KEY)
        monkeypatch.setattr(Session, "control", lambda _session: folder / "control")
        self.data = folder / "data"
        self.data.write_bytes(BLOB)
        spec, self.file = make_spec(20, 5, 10), folder / "job"
        self.spec = spec.changed(dataset=spec.dataset._replace(blob=manifest_of(BytesIO(BLOB)).blob_id))
        self.file.write_bytes(encode_spec(self.spec))
        private = make_private(KEY, self.spec, BLOB)
        self.root = private.key_root if is_private else public_key_root(self.spec.windows)

    def run(self, chain: Chain, *words: object) -> bool:
        """Return whether the command came to its end."""
        self.monkeypatch.setattr(Session, "client", lambda _session: cast(Client, chain))
        self.monkeypatch.setattr(node.cli.tasks.keeping, "ask_node", chain.control)
        holders = ("--holders", 2) if self.is_private else ()
        more = ("--keep-input", "--dataset", self.data, *holders, "--yes", "--json", "--home", "/nonexistent")
        try:
            done = CliRunner().invoke(group, ["task", *map(str, (*words, *more))], standalone_mode=False)
        except Stopped:
            return False
        if done.exception is not None:
            raise done.exception
        return True

    def create(self, chain: Chain) -> bool:
        return self.run(chain, "create", "--spec", self.file, "--anyway", *["--private"] * self.is_private)

    def keep(self, chain: Chain, task: bytes) -> bool:
        return self.run(chain, "keep", hexed(task))

    def check(self, chain: Chain, task: bytes) -> None:
        """Check that nothing is missing."""
        state = chain.world.state
        terms = find_terms(state, task)
        assert terms is not None and (terms.key_root, terms.inputs) == (self.root, int(self.is_private))
        assert chain.world.phase(task, INPUT_WINDOW) is CustodyPhase.KEPT
        assert chain.world.task(task).phase is Phase.MATCHING
        if self.is_private:
            assert chain.shares and chain.uploads


def tasks_of(chain: Chain) -> Sequence[bytes]:
    return [task.id for task in tasks_by_requester(chain.world.state, KEY.address, None, 10).items]


def test_a_creation_that_is_stopped_before_any_step_is_harmless_or_is_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_private: bool
) -> None:
    """No command asked again: the task stayed out of the book, or its key with its requester alone."""
    commands = Commands(tmp_path, monkeypatch, is_private=is_private)
    whole = Chain()
    assert commands.create(whole)
    commands.check(whole, *tasks_of(whole))
    assert whole.kinds == [CREATE_TASK, ASK_CUSTODY, KEEP_INPUT]
    for stop in range(1, whole.steps + 1):
        chain = Chain(stop)
        assert not commands.create(chain)
        if not (made := tasks_of(chain)):
            assert not chain.kinds, "nothing is on chain, and nothing is locked"
            assert commands.create(chain)
            commands.check(chain, *tasks_of(chain))
            continue
        chain.uploads, chain.shares = 0, 0
        assert commands.keep(chain, *made)
        commands.check(chain, *made)
        assert chain.kinds == [CREATE_TASK, ASK_CUSTODY, KEEP_INPUT], "each of them once"
        assert commands.keep(chain, *made) and len(chain.kinds) == 3


def test_terms_of_another_job_that_were_left_in_the_pools_end_the_task_that_they_meet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They wait for the account's next task, whatever that is. With their keys nobody could open its inputs."""
    commands = Commands(tmp_path, monkeypatch, is_private=True)
    whole = Chain()
    assert commands.create(whole)
    for stop in range(1, whole.steps):
        chain = Chain(stop)
        commands.create(chain)
        if len(chain.queued) == 2:
            break
    assert not tasks_of(chain)
    other = make_spec(20, 5, 10, seed=b"o" * 32)
    commands.file.write_bytes(encode_spec(other.changed(dataset=commands.spec.dataset)))
    with pytest.raises(TransactionRefused, match="was cancelled"):
        commands.create(chain)
    (task,) = tasks_of(chain)
    assert chain.world.task(task).phase is Phase.CANCELLED


def test_finishing_a_creation_may_be_stopped_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_private: bool
) -> None:
    commands = Commands(tmp_path, monkeypatch, is_private=is_private)
    stop, is_done = 1, False
    while not is_done:
        chain = Chain()
        raw = chain.sign(KEY, CREATE_TASK, [encode_spec(posted(commands))])
        chain.wait(raw)
        chain.stops_at = chain.steps + stop
        (task,) = tasks_of(chain)
        is_done = commands.keep(chain, task)
        assert is_done or commands.keep(chain, task)
        commands.check(chain, task)
        assert chain.kinds == [CREATE_TASK, ASK_CUSTODY, KEEP_INPUT]
        stop += 1
    assert stop > 5


def posted(commands: Commands) -> Any:
    return make_private(KEY, commands.spec, BLOB).spec if commands.is_private else commands.spec


def test_a_task_with_terms_of_other_keys_or_with_a_worker_is_not_touched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_private: bool
) -> None:
    commands, chain = Commands(tmp_path, monkeypatch, is_private=is_private), Chain()
    chain.wait(chain.sign(KEY, CREATE_TASK, [encode_spec(posted(commands))]))
    (task,) = tasks_of(chain)
    amount = chain.quote_task(encode_spec(commands.spec)).custody
    chain.wait(chain.sign(KEY, ASK_CUSTODY, [task, b"o" * 32, int(is_private), amount]))
    with pytest.raises(TransactionRefused, match="of other keys"):
        commands.keep(chain, task)
    assert len(chain.kinds) == 2

    chain = Chain()
    for name in (1, 2):  # one of them checks
        chain.world.add_machine(name, price=10**15)
    chain.wait(chain.sign(KEY, CREATE_TASK, [encode_spec(posted(commands))]))
    (task,) = tasks_of(chain)
    chain.world.run_to(task, Phase.ASSIGNED)
    with pytest.raises(TransactionRefused, match="before it has a worker"):
        commands.keep(chain, task)
    assert len(chain.kinds) == 1
