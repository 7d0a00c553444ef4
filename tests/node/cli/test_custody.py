"""Commands of custody: what is sent, to whom, and what is refused before anything is paid."""

from __future__ import annotations

import json
from io import BytesIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import click
import pytest
from click.testing import CliRunner

import node.market.posting
from node.cli import group
from node.cli.session import Session
from node.cli.tasks.keeping import CustodyAsk
from node.cli.tasks.kept_input import KeptInput, commitment_of
from node.market.private_jobs import make_private
from rpc.client import Client, ClientError, TransactionRefused
from state.primitives.address import format_address
from state.primitives.errors import ConfigError
from state.primitives.keys import SecretKey
from state.primitives.manifests import manifest_of
from state.primitives.transactions import decode_transaction, sign_transaction
from tasks.custody.chunks import chunk_proof_from_value, is_garbage
from tasks.custody.keys import KeyCommitments, check_key, derive_key, key_proof_from_value, window_key_name
from tasks.custody.sealed import OutputIsGarbage, open_output, seal_output, task_key_of
from tasks.ledger.custody_records import INPUT_WINDOW
from tasks.ledger.custody_transitions import (
    ASK_CUSTODY,
    DEMAND_CUSTODY,
    END_CUSTODY,
    KEEP_INPUT,
    REVEAL_GARBAGE,
)
from tasks.ledger.transitions import CANCEL_TASK, CREATE_TASK, task_id_of
from tasks.spec import encode_spec
from tests.tasks.executor.helpers import BLOB, make_spec

KEY, STRANGER = SecretKey(b"k" * 32), SecretKey(b"x" * 32)
TASK = b"\xab" * 32
FIRST, SECOND = b"\x01" * 20, b"\x02" * 20
SPEC = make_spec(20, 5, 10)
TASK_KEY = task_key_of(KEY.secret, SPEC)


def keeper(address: bytes, demands: int = 0) -> Any:
    return SimpleNamespace(address=address, bond=10, since_ms=1, demands=demands, failed=False)


class Chain:
    """A gateway of a chain with custody, whose task has two windows."""

    def __init__(self, *custodians: Any, demand: Any = None, requester: SecretKey = KEY) -> None:
        self.sent: list[tuple[int, list[Any]]] = []
        self.custodians, self.demand, self.requester = custodians, demand, requester
        self.garbage: OutputIsGarbage | None = None
        self.keeps_input = True

    def __enter__(self) -> Chain:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def call(self, method: str) -> Any:
        assert method == "dekube_genesis"
        names = {
            "custody_copies": 2,
            "custody_fee_min": 5,
            "custody_delivery_price_per_gib": 1,
            "custody_stake_bps": 0,
        }
        return {"parameters": {f"tasks.{name}": str(value) for name, value in names.items()}}

    def quote(self) -> Any:
        return SimpleNamespace(base_fee_next=1)

    def task(self, task: bytes) -> Any:
        assert task == TASK
        document = {"spec": {"raw": "0x" + encode_spec(SPEC).hex()}}
        return SimpleNamespace(
            id=TASK,
            requester=self.requester.address,
            phase="settled",
            has_ended=True,
            reason="all_final",
            group=None,
            final_windows=2,
            document=document,
        )

    def task_windows(self, _task: bytes) -> Any:
        return [SimpleNamespace(number=number, phase="final") for number in range(2)]

    def custody_terms(self, _task: bytes) -> Any:
        root = KeyCommitments(TASK_KEY, 1, 2).root
        return SimpleNamespace(key_root=root, inputs=1, windows=2, is_public=False, demands=0, document={})

    def custody(self, _task: bytes, window: int) -> Any:
        if window == INPUT_WINDOW and not self.keeps_input:
            return None
        return SimpleNamespace(
            phase="kept", custodians=self.custodians, demand=self.demand, size_bytes=100, bond=10, until_ms=1,
            document={},
        )  # fmt: skip

    def result(self, _task: bytes, **_: Any) -> Any:
        assert self.garbage is not None
        raise self.garbage

    def estimate(self, _sender: bytes, _kind: int, _payload: list[Any]) -> Any:
        return SimpleNamespace(succeeded=True, reason=None)

    def sign(self, key: SecretKey, kind: int, payload: list[Any], nonce: int = 7, **_: int) -> bytes:
        return sign_transaction(
            key, chain_id=7, nonce=nonce, kind=kind, payload=payload, gas_limit=1, max_fee_per_gas=1,
            max_priority_fee_per_gas=0,
        )  # fmt: skip

    def chain(self) -> Any:
        return SimpleNamespace(name="test", chain_id=7)

    def account(self, _address: bytes) -> Any:
        return SimpleNamespace(pending_nonce=7)

    def wait(self, raw: bytes) -> Any:
        signed = decode_transaction(raw)
        self.sent.append((signed.kind, list(signed.payload)))
        return SimpleNamespace(transaction_hash=b"\x12" * 32, block=SimpleNamespace(height=7))


def run(monkeypatch: pytest.MonkeyPatch, chain: Chain, *arguments: object) -> Any:
    monkeypatch.setattr(Session, "client", lambda _session: cast(Client, chain))
    monkeypatch.setattr(Session, "key", lambda _session, name=None: KEY)
    words = ["task", *map(str, arguments), "--home", "/nonexistent"]
    done = CliRunner().invoke(group, words, standalone_mode=False)
    if done.exception is not None:
        raise done.exception
    return done


def test_a_demand_goes_to_the_custodian_with_fewest_demands_unless_one_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    chain = Chain(keeper(FIRST, 1), keeper(SECOND))
    told = json.loads(run(monkeypatch, chain, "demand", "0x" + TASK.hex(), "--yes", "--json").stdout)
    assert told["kind"] == "chunk" and told["window"] == 1
    run(monkeypatch, chain, "demand", "0x" + TASK.hex(), "0.5", "--yes", "--custodian", format_address(FIRST))
    [(kind, first), (_, second)] = chain.sent
    assert kind == DEMAND_CUSTODY and first[:3] == [TASK, 1, SECOND]
    assert second == [TASK, 1, FIRST, 5 * 10**17]


def test_a_data_set_is_demanded_as_an_output_is(monkeypatch: pytest.MonkeyPatch) -> None:
    chain = Chain(keeper(FIRST, 1), keeper(SECOND))
    told = json.loads(run(monkeypatch, chain, "demand", "0x" + TASK.hex(), "--input", "--yes", "--json").stdout)
    assert (told["kind"], told["input"], "window" in told) == ("chunk", True, False)
    [(kind, payload)] = chain.sent
    assert kind == DEMAND_CUSTODY and payload[:3] == [TASK, INPUT_WINDOW, SECOND]
    shown = run(monkeypatch, chain, "custody", "0x" + TASK.hex()).stdout
    assert "data set" in shown
    chain = Chain(keeper(FIRST))
    chain.keeps_input = False
    with pytest.raises(TransactionRefused, match="the data set is not in custody"):
        run(monkeypatch, chain, "demand", "0x" + TASK.hex(), "--input", "--yes")
    with pytest.raises(click.UsageError, match="--window"):
        run(monkeypatch, chain, "demand", "0x" + TASK.hex(), "--input", "--window", "1", "--yes")
    assert not chain.sent


@pytest.mark.parametrize(
    ("chain", "option", "why"),
    [
        (Chain(keeper(FIRST)), ("--custodian", format_address(SECOND)), "does not keep the output"),
        (Chain(keeper(FIRST)), ("--window", "9"), "no such output is in custody"),
        (Chain(), (), "is not kept yet"),
        (Chain(keeper(FIRST), demand=object()), (), "is not over yet"),
    ],
)
def test_a_demand_that_would_fail_is_not_sent(
    monkeypatch: pytest.MonkeyPatch, chain: Chain, option: tuple[str, ...], why: str
) -> None:
    with pytest.raises(TransactionRefused, match=why):
        run(monkeypatch, chain, "demand", "0x" + TASK.hex(), "--yes", *option)
    assert not chain.sent


def test_a_receipt_ends_the_custody_of_all_final_windows_of_an_own_task(monkeypatch: pytest.MonkeyPatch) -> None:
    chain = Chain(keeper(FIRST))
    run(monkeypatch, chain, "receipt", "0x" + TASK.hex(), "--yes")
    assert chain.sent == [(END_CUSTODY, [TASK, 0]), (END_CUSTODY, [TASK, 1])]
    other = Chain(keeper(FIRST), requester=STRANGER)
    with pytest.raises(ConfigError, match="belongs to"):
        run(monkeypatch, other, "receipt", "0x" + TASK.hex(), "--yes")
    assert not other.sent


def test_a_result_that_is_garbage_is_shown_with_the_key_of_its_window(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    sealed = seal_output(b"?" * 32, b"a result" * 9_000)
    with pytest.raises(OutputIsGarbage) as caught:
        open_output(sealed.commitment, derive_key(TASK_KEY, window_key_name(1)), sealed.blob)
    chain = Chain(keeper(FIRST))
    chain.garbage = caught.value
    with pytest.raises(OutputIsGarbage):
        run(monkeypatch, chain, "result", "0x" + TASK.hex(), "--yes", "--out", tmp_path / "model.npz")
    [(kind, [task, window, key, path, chunk])] = chain.sent
    assert (kind, task, window) == (REVEAL_GARBAGE, TASK, 1)
    terms = chain.custody_terms(TASK)
    check_key(terms.key_root, 1, 2, window_key_name(1), key, key_proof_from_value(path))
    assert is_garbage(sealed.commitment, key, chunk_proof_from_value(chunk)), "what every validator judges"


class Gateway(Chain):
    """A gateway that takes transactions, and a chain that refuses one kind of them."""

    refused = 0
    loses = False

    def __init__(self, *custodians: Any) -> None:
        super().__init__(*custodians)
        self.order: list[int] = []
        """Kinds of transactions as they were handed in."""

    def submit(self, raw: bytes) -> bytes:
        if self.loses:
            raise ClientError("not taken")
        self.order.append(decode_transaction(raw).kind)
        self.sent.append((decode_transaction(raw).kind, list(decode_transaction(raw).payload)))
        return b""

    def wait(self, raw: bytes) -> Any:
        if decode_transaction(raw).kind not in self.order:
            self.order.append(decode_transaction(raw).kind)
        if decode_transaction(raw).kind == self.refused:
            raise TransactionRefused("too late", reason="wrong_phase")

    def send(self, key: SecretKey, kind: int, payload: list[Any]) -> None:
        self.sent.append((kind, payload))

    def cancel_task(self, _key: SecretKey, task: bytes) -> None:
        self.sent.append((CANCEL_TASK, [task]))


@pytest.mark.parametrize("loses", [False, True])
def test_custody_is_asked_for_with_the_next_nonce_or_again(loses: bool) -> None:
    gateway = Gateway()
    gateway.loses = loses
    job = make_private(KEY, SPEC, BLOB)
    ask = CustodyAsk(cast(Client, gateway), KEY, job.key_root, 1, 99)
    created = gateway.sign(KEY, CREATE_TASK, [encode_spec(job.spec)])
    ask.send(created)
    ask.finish(task_id_of(KEY.address, 7))
    assert gateway.sent == [(ASK_CUSTODY, [task_id_of(KEY.address, 7), job.key_root, 1, 99])]


def test_a_requester_is_told_that_a_machine_came_before_custody_of_the_data_set(
    capsys: pytest.CaptureFixture[str],
) -> None:
    gateway, job = Gateway(), make_private(KEY, SPEC, BLOB)
    gateway.refused = KEEP_INPUT
    kept = KeptInput(cast(Client, gateway), KEY, job.commitment, 5)
    ask = CustodyAsk(cast(Client, gateway), KEY, job.key_root, 1, 99, kept)
    ask.send(gateway.sign(KEY, CREATE_TASK, [encode_spec(job.spec)]))
    ask.finish(task_id_of(KEY.address, 7))
    assert "Keep the data set available" in capsys.readouterr().err
    assert [kind for kind, _ in gateway.sent] == [ASK_CUSTODY, KEEP_INPUT]


class Receipts(Gateway):
    """A gateway of a chain on which machines sign for a data set in the ``good`` request for it, from 1."""

    good, looked_after = 1, 0

    def custody(self, _task: bytes, window: int) -> Any:
        assert window == INPUT_WINDOW
        asked = sum(kind == KEEP_INPUT for kind, _ in self.sent)
        if asked < self.good and asked == self.looked_after:
            return None  # drawn machines have not signed: it is over
        self.looked_after = asked
        is_kept = asked >= self.good
        return SimpleNamespace(
            phase="kept" if is_kept else "signing", custodians=(keeper(FIRST),) * (1 + is_kept),
            document={"drawn": [] if is_kept else ["0x"]},
        )  # fmt: skip


def test_custody_waits_in_the_pool_before_the_task_comes() -> None:
    """A block with the task alone lets a machine be matched in it: then custody of the data set is refused."""
    gateway, job = Receipts(), make_private(KEY, SPEC, BLOB)
    kept = KeptInput(cast(Client, gateway), KEY, job.commitment, 5)
    CustodyAsk(cast(Client, gateway), KEY, job.key_root, 1, 99, kept).create(encode_spec(job.spec))
    assert gateway.order == [ASK_CUSTODY, KEEP_INPUT, CREATE_TASK]


@pytest.mark.parametrize("good", [1, 3, 9])
def test_custody_of_a_data_set_is_asked_for_with_the_task_and_again_until_machines_have_signed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], good: int
) -> None:
    monkeypatch.setattr(node.market.posting, "INPUT_POLL_S", 0)
    gateway, job = Receipts(), make_private(KEY, SPEC, BLOB)
    gateway.good = good
    kept = KeptInput(cast(Client, gateway), KEY, job.commitment, 5)
    ask = CustodyAsk(cast(Client, gateway), KEY, job.key_root, 1, 99, kept)
    ask.send(gateway.sign(KEY, CREATE_TASK, [encode_spec(job.spec)]))
    task = task_id_of(KEY.address, 7)
    if good > 3:
        with pytest.raises(TransactionRefused, match="nobody keeps the data set"):
            ask.finish(task)
    else:
        ask.finish(task)
        assert "custody of the data set stands, signed by 2" in capsys.readouterr().err
    asked: tuple[int, list[Any]] = (KEEP_INPUT, [task, *job.commitment, 5])
    assert gateway.sent == [(ASK_CUSTODY, [task, job.key_root, 1, 99]), *[asked] * min(good, 3)]


@pytest.mark.parametrize("is_private", [True, False])
def test_a_data_set_of_another_job_is_not_committed_to(is_private: bool) -> None:
    job = make_private(KEY, SPEC, BLOB)
    spec = job.spec if is_private else SPEC.changed(dataset=SPEC.dataset._replace(blob=name_of(BLOB)))
    commitment = commitment_of(KEY, spec, BLOB, is_private=is_private)
    assert commitment.size == len(BLOB) and (commitment == job.commitment) == is_private
    with pytest.raises(ConfigError, match="not the data set"):
        commitment_of(KEY, spec, BLOB[:-1] + b"x", is_private=is_private)


def name_of(content: bytes) -> bytes:
    return manifest_of(BytesIO(content)).blob_id


def test_a_task_whose_custody_is_refused_is_cancelled() -> None:
    gateway = Gateway()
    gateway.refused = ASK_CUSTODY
    ask = CustodyAsk(cast(Client, gateway), KEY, b"r" * 32, 1, 99)
    ask.send(gateway.sign(KEY, CREATE_TASK, [encode_spec(SPEC)]))
    with pytest.raises(TransactionRefused) as caught:
        ask.finish(task_id_of(KEY.address, 7))
    assert caught.value.reason == "wrong_phase"
    assert gateway.sent[-1] == (CANCEL_TASK, [task_id_of(KEY.address, 7)])
    with pytest.raises(ConfigError, match="no custody"):
        CustodyAsk(cast(Client, gateway), KEY, b"r" * 32, 1, 0)
