"""Tasks of a file are posted once each and within the budget, wherever the program ends and runs again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from node.workflows.posting import Workflow, shares_of
from node.workflows.progress import MemberState, end_of, summary
from node.workflows.records import MemberRecord, WorkflowRecord, WorkflowStore
from rpc.client import Client, JobRefused, TaskEnded
from rpc.client.core import Flow, Reply, hexed
from rpc.client.jobs import fee_of
from state.primitives.errors import ConfigError, StoreError
from state.primitives.hashing import keccak
from state.primitives.transactions import decode_transaction
from tasks.ledger.custody_transitions import ASK_CUSTODY
from tasks.ledger.settlement import budget_of
from tasks.ledger.transitions import CREATE_TASK, task_id_of
from tasks.requests.reading import JobFile, read_file
from tasks.spec import decode_spec, encode_spec
from tests.rpc.client.answers import at, task_json
from tests.rpc.client.test_core import KEY, receipt
from tests.rpc.client.test_jobs import PARAMETERS, Market
from tests.rpc.client.world import World
from tests.tasks.models.checkpoints import write_folder
from tests.tasks.tuned import TINY

BUDGET = 10**18
SWEEP = """kind: generate
model: model
data: prompts.jsonl
matrix: {new_tokens: [2, 3]}
budget: 1 DKB
"""


class Stopped(BaseException):
    """The program is killed here."""


class Ledger(Market):
    """A chain with the transactions of one account, in the order of their nonces, and what they lock."""

    def __init__(self) -> None:
        super().__init__()
        self.waiting: dict[int, bytes] = {}
        self.final: dict[int, bytes] = {}
        self.tasks: dict[bytes, bytes] = {}
        self.terms: dict[bytes, Any] = {}
        self.locked = self.fees = 0
        self.refused: set[bytes] = set()
        self.phase = "settled"
        self.steps, self.stops_at = 0, 0
        self.fee = 10**9

    def step(self) -> None:
        self.steps += 1
        if self.steps == self.stops_at:
            raise Stopped

    def take(self, raw: bytes) -> None:
        nonce = decode_transaction(raw).nonce
        if nonce >= len(self.final):
            self.waiting.setdefault(nonce, raw)
        while len(self.final) in self.waiting:
            self.apply(self.waiting.pop(len(self.final)))

    def apply(self, raw: bytes) -> None:
        signed = decode_transaction(raw)
        self.final[signed.nonce] = raw
        self.fees += fee_of(raw)
        if raw in self.refused:
            return
        match signed.kind, signed.payload:
            case int(kind), [bytes(spec)] if kind == CREATE_TASK:
                self.tasks[task_id_of(KEY.address, signed.nonce)] = spec
                self.locked += budget_of(decode_spec(spec), PARAMETERS).total
            case int(kind), [bytes(task), bytes(root), int(inputs), int(amount)] if kind == ASK_CUSTODY:
                assert task in self.tasks
                self.terms[task] = {
                    "key_root": hexed(root), "inputs": inputs, "windows": 1, "is_public": True, "demands": 0,
                }  # fmt: skip
                self.locked += amount
            case _:
                pass

    def answer(self, method: str, params: Any) -> Any:
        match method:
            case "dekube_sendTransaction":
                raw = bytes.fromhex(params["raw"][2:])
                self.step()  # killed before it arrives, or after
                self.take(raw)
                self.step()
                return {"hash": hexed(keccak(raw))}
            case "dekube_waitForReceipt" | "dekube_getReceipt":
                found = {hexed(keccak(raw)): raw for raw in self.final.values()}.get(params["hash"])
                shown = None
                if found is not None:
                    shown = receipt() | {"transaction_hash": params["hash"]}
                    if found in self.refused:
                        shown |= {"status": "failed", "success": False, "reason": "insufficient_funds"}
                return {"at": at(5), "receipt": shown, "pending": found is None}
            case "dekube_getNonce" | "dekube_getBalance" | "dekube_getAccount":
                count = len(self.final)
                return {
                    "at": at(5),
                    "nonce": count,
                    "pending_nonce": count,
                    "balance": "9",
                    "address": hexed(KEY.address),
                }
            case "dekube_getTask":
                spec = self.tasks.get(bytes.fromhex(params["task"][2:]))
                shown = task_json(self.phase) | {"id": params["task"], "spec": {"raw": hexed(spec or b"")}}
                return {"at": at(5), "task": None if spec is None else shown}
            case "dekube_getCustody":
                terms = self.terms.get(bytes.fromhex(params["task"][2:]))
                return {"at": at(5), "terms": terms, "custody": None}
            case "dekube_head":
                fees = {"base_fee": "1", "base_fee_next": "1"}
                return {"at": at(9), "time_ms": 1, "state_root": hexed(bytes(32))} | fees
            case "dekube_quote":
                return super().answer(method, params) | {"max_fee_per_gas": str(self.fee)}
            case _:
                return super().answer(method, params)


class Wired(Client):
    """The client, with a gateway that is a function."""

    def __init__(self, ledger: Ledger) -> None:
        super().__init__("http://127.0.0.1:1")
        self.world = World(ledger.answer)
        self.world.all[0].serve = lambda _fetch: Reply(200, {}, b'{"missing": []}')
        self.core = self.world.core

    def perform(self, flow: Flow[Any]) -> Any:
        return self.world.run(flow)


@pytest.fixture
def job(tmp_path: Path) -> JobFile:
    (tmp_path / "model").mkdir()
    write_folder(tmp_path / "model", TINY)
    (tmp_path / "prompts.jsonl").write_text(json.dumps({"input_ids": [1, 2]}))
    return read_file(SWEEP, str(tmp_path / "sweep.yaml"))


def begun(store: WorkflowStore, ledger: Ledger, job: JobFile) -> Workflow:
    """Return the workflow as a command that starts has it."""
    record = store.find("sweep") or WorkflowRecord("sweep", "sweep.yaml", "", "", 5, "07" * 32)
    return Workflow(Wired(ledger), KEY, store, record, job)


def check(ledger: Ledger, store: WorkflowStore, tasks: int = 2) -> None:
    """Check that each task is there once, and within the budget."""
    assert len(ledger.tasks) == len(set(ledger.tasks.values())) == tasks
    assert ledger.locked + ledger.fees <= BUDGET
    record = store.find("sweep")
    assert record is not None and all(member.is_created for member in record.members)
    assert {bytes.fromhex(member.task) for member in record.members} == set(ledger.tasks)
    assert set(ledger.terms) == set(ledger.tasks)


def test_each_task_is_posted_once_wherever_the_program_is_killed(job: JobFile, tmp_path: Path) -> None:
    whole = Ledger()
    store = WorkflowStore(tmp_path / "whole")
    begun(store, whole, job).post(job.steps[0])
    check(whole, store)
    assert whole.locked + whole.fees > BUDGET // 2  # it is used
    for stops_at in range(1, whole.steps + 1):
        ledger, store = Ledger(), WorkflowStore(tmp_path / str(stops_at))
        ledger.stops_at = stops_at
        with pytest.raises(Stopped):
            begun(store, ledger, job).post(job.steps[0])
        begun(store, ledger, job).post(job.steps[0])
        check(ledger, store)
        steps = ledger.steps
        begun(store, ledger, job).post(job.steps[0])  # once more changes nothing
        assert ledger.steps == steps


def test_a_nonce_that_another_program_used_is_signed_again(job: JobFile, tmp_path: Path) -> None:
    ledger, store = Ledger(), WorkflowStore(tmp_path)
    ledger.stops_at = 1
    workflow = begun(store, ledger, job)
    with pytest.raises(Stopped):
        workflow.post(job.steps[0])
    record = store.find("sweep")
    assert record is not None and record.members[0].create and not ledger.final
    client = Wired(ledger)
    made = workflow._made(job.steps[0], 0, 1)
    for match_ms in (1, 2):  # other tasks
        ledger.take(client.sign(KEY, CREATE_TASK, [encode_spec(made.spec._replace(match_ms=match_ms))]))
    others = set(ledger.tasks)
    ledger.locked = ledger.fees = 0
    begun(store, ledger, job).post(job.steps[0])
    mine = store.find("sweep")
    assert mine is not None and {bytes.fromhex(one.task) for one in mine.members} == set(ledger.tasks) - others
    assert mine.lost and ledger.locked + ledger.fees <= BUDGET


def test_fees_that_rise_do_not_break_the_budget(job: JobFile, tmp_path: Path) -> None:
    class Dearer(Ledger):
        def apply(self, raw: bytes) -> None:
            super().apply(raw)
            self.fee = 4 * 10**9  # once the first transaction is there

    ledger, store = Dearer(), WorkflowStore(tmp_path)
    with pytest.raises(JobRefused) as caught:
        begun(store, ledger, job).post(job.steps[0])
    assert caught.value.reasons == ("budget_exceeded",)
    assert ledger.locked + ledger.fees <= BUDGET and len(ledger.tasks) == 1
    begun(store, ledger, job).post(job.steps[0])  # the other one gets a lower price
    check(ledger, store)


def test_a_cancelled_workflow_posts_nothing_more(job: JobFile, tmp_path: Path) -> None:
    ledger, store = Ledger(), WorkflowStore(tmp_path)
    workflow = begun(store, ledger, job)
    workflow.record.is_cancelled = True
    with pytest.raises(ConfigError, match="was cancelled"):
        workflow.post(job.steps[0])
    assert not ledger.tasks


def test_a_step_waits_for_a_settled_one_and_the_budget_is_shared(job: JobFile, tmp_path: Path) -> None:
    ledger, store = Ledger(), WorkflowStore(tmp_path)
    workflow = begun(store, ledger, job)
    workflow.post(job.steps[0])
    workflow.wait_settled([""])
    ledger.phase = "failed"
    with pytest.raises(TaskEnded, match="ended failed; another job needs it"):
        workflow.wait_settled([""])
    text = "budget: 3 DKB\njobs:\n" + "".join(
        f"  {name}: {{kind: generate, model: m, data: d{more}}}\n"
        for name, more in (("a", ", budget: 2 DKB"), ("b", ""), ("c", ""))
    )
    assert shares_of(read_file(text, "f")) == {"a": 2 * 10**18, "b": 5 * 10**17, "c": 5 * 10**17}


def test_the_end_of_all_is_settled_only_if_each_is() -> None:
    def states(*phases: str) -> list[MemberState]:
        return [MemberState(MemberRecord("", ""), phase) for phase in phases]

    assert end_of(states()) == end_of(states("settled", "running")) == end_of(states("not posted")) == ""
    assert end_of(states("settled", "settled")) == "settled"
    assert end_of(states("settled", "cancelled", "failed", "expired")) == "failed"
    assert end_of(states("cancelled", "expired")) == "expired"
    assert summary(states("settled", "running", "settled")) == "2 settled, 1 running; 0 of 0 windows final"


def test_two_commands_do_not_post_at_once(tmp_path: Path) -> None:
    store = WorkflowStore(tmp_path)
    with store.locked("a"), pytest.raises(ConfigError, match="another command works on a"), store.locked("a"):
        raise AssertionError


def test_damaged_records_are_named(tmp_path: Path) -> None:
    store = WorkflowStore(tmp_path)
    record = WorkflowRecord("a", "f", "ab", "cd", 5, "07")
    store.save(record)
    assert store.find("a") == record and store.names() == ["a"] and store.find("b") is None
    content = (tmp_path / "a.json").read_text()
    for was, now in (('"lost": 0', '"lost": -1'), ('"seed": "07"', '"seed": "0"'), ("[]", "[7]"), ("}", "")):
        (tmp_path / "a.json").write_text(content.replace(was, now))
        with pytest.raises(StoreError, match="damaged"):
            store.find("a")
    with pytest.raises(ConfigError, match="a name has letters"):
        store.find("../a")
