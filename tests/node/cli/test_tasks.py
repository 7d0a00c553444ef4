"""What a requester is told before a fee is paid that brings nothing."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import click
import pytest
from click.testing import CliRunner, Result

from node.cli import group
from node.cli.session import Session
from node.cli.tasks.posting import DIGITS_ENDS
from node.cli.tasks.views import merged_lines, sums_by_party
from node.cli.workers import _measured
from node.market.posting import DIGITS_BLOB
from rpc.client import Client, JobRefused, TransactionRefused
from rpc.client.blobs import blob_of_file
from rpc.client.jobs import JobQuote, judge_job
from rpc.client.results import Bill, BillLine, CustodyLine, EscrowTotals, Group, Task, read_result
from state.primitives.errors import ConfigError
from state.primitives.keys import SecretKey
from state.primitives.transactions import decode_transaction, sign_transaction
from tasks.engines.builtin_datasets import _digit_rows, make_dataset
from tasks.ledger.group_records import group_id_of
from tasks.ledger.group_transitions import CANCEL_GROUP, CREATE_GROUP
from tasks.ledger.transitions import CANCEL_TASK, CREATE_TASK, RESUME_TASK
from tasks.spec import JobSpec, encode_spec
from tests.tasks.executor.helpers import make_spec
from tests.tasks.models.checkpoints import write_folder
from tests.tasks.tuned import TINY

KEY = SecretKey(b"k" * 32)
JOB = make_spec()
TASK_ID = "0x" + "ab" * 32
LOST, OTHER = "0x" + "aB" * 20, "0x" + "cd" * 20
NOW_MS, REPLACE_MS = 1_000_000, 60_000


class Requested:
    """A client of a gateway that notes what is asked of it, in order."""

    def __init__(self, held: bool | None = None, machines: tuple[dict[str, Any], ...] = (), **task: Any) -> None:
        self.asked: list[str] = []
        self.refusal = ""
        self.keys_opened = 0
        self.held = held
        self.objections: list[tuple[str, str]] = []
        self.notices: list[tuple[str, str]] = []
        self.reported: Any = None
        self.calls: Any = ()
        self.custody, self.custody_lines = 0, ()  # type: int, tuple[Any, ...]
        self.machines = machines
        self.groups: dict[bytes, Group] = {}
        self.bills: Any = None
        spec = {"kind": "train", "max_price_per_tera_unit": "100"}
        self.record = {"excluded": [LOST.lower()], "reason": "no_replacement", "spec": spec} | task

    def __enter__(self) -> Requested:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def key(self) -> SecretKey:
        self.keys_opened += 1
        return KEY

    def is_held(self, blob: bytes) -> bool | None:
        assert blob == JOB.dataset.blob
        self.asked.append("is_held")
        return self.held

    def quote_job(self, spec: JobSpec) -> JobQuote:
        return judge_job(spec, self.quote_task(encode_spec(spec)))

    def quote_task(self, _raw: bytes) -> Any:
        objections, notices = (
            tuple(SimpleNamespace(code=code, text=text) for code, text in items)
            for items in (self.objections, self.notices)
        )
        parts = {
            "price": 1,
            "verification": 1,
            "fee": 1,
            "preparation": 1,
            "custody": self.custody,
            "spare": 10**17,
            "total": 10**18,
        }
        document: dict[str, Any] = {name: str(part) for name, part in parts.items()}
        checks = {"fee": 1, "window": 1, "bond": 10, "bond_new": 40, "base_fee": 4}
        document["checks"] = {name: str(amount) for name, amount in checks.items()}
        document |= {"notices": [], "machines": {}, "reported": None, "limit": "7", "calls": []}
        document["custody_lines"] = []
        return SimpleNamespace(
            objections=objections,
            notices=notices,
            reported=self.reported,
            document=document,
            limit=7,
            calls=self.calls,
            checks=SimpleNamespace(**checks),
            custody_lines=self.custody_lines,
            **parts,
        )

    def call(self, method: str) -> Any:
        assert method == "dekube_genesis"
        return {"parameters": {"tasks.replace_ms": str(REPLACE_MS)}}

    def head(self) -> Any:
        return SimpleNamespace(time_ms=NOW_MS, steady_ms=NOW_MS)

    def items(self, method: str) -> Any:
        assert method == "dekube_getNodes"
        return iter(self.machines)

    def task(self, task: bytes) -> Task | None:
        if task != bytes.fromhex(TASK_ID[2:]):
            return None
        return cast(
            Task,
            SimpleNamespace(
                phase="paused", has_ended=False, requester=KEY.address, document=self.record,
            ),
        )  # fmt: skip

    def group(self, group: bytes) -> Group | None:
        return self.groups.get(group)

    def bill(self, _task: bytes) -> Any:
        if self.bills is not None:
            return self.bills
        line: dict[str, Any] = {"number": 0, "height": 1, "movement": "paid", "purpose": "window_pay"}
        line |= {"party": OTHER, "window": 0, "amount": "7"}
        totals = {"deposited": "10", "locked": "0", "paid": "7", "refunded": "2", "burned": "1"}
        return Bill(lines=(read_result(BillLine, line),), totals=read_result(EscrowTotals, totals))

    def add_seats(self, _key: SecretKey, group: bytes, roots: list[bytes], amount: int) -> None:
        self.asked.append(f"add_seats {len(roots)} {amount}")
        assert group == group_id_of(KEY.address, 0)

    def estimate(self, _sender: bytes, _kind: int, _payload: list[Any]) -> Any:
        return SimpleNamespace(succeeded=not self.refusal, reason=self.refusal or None)

    def sign(self, key: SecretKey, kind: int, payload: list[Any], **_: int) -> bytes:
        return sign_transaction(
            key, chain_id=7, nonce=0, kind=kind, payload=payload, gas_limit=1, max_fee_per_gas=1,
            max_priority_fee_per_gas=0,
        )  # fmt: skip

    def chain(self) -> Any:
        return SimpleNamespace(name="test", chain_id=7)

    def account(self, _address: bytes) -> Any:
        return SimpleNamespace(pending_nonce=0)

    def wait(self, raw: bytes) -> Any:
        signed = decode_transaction(raw)
        if signed.kind == RESUME_TASK:
            assert list(signed.payload) == [bytes.fromhex(TASK_ID[2:])]
        names = {
            RESUME_TASK: "resume_task", CREATE_TASK: "create_task", CREATE_GROUP: "create_group",
            CANCEL_GROUP: "cancel_group", CANCEL_TASK: "cancel_task",
        }  # fmt: skip
        self.asked.append(names[signed.kind])
        return SimpleNamespace(transaction_hash="0x12", block=SimpleNamespace(height=7))


def run(monkeypatch: pytest.MonkeyPatch, client: Requested, *arguments: object) -> Result:
    monkeypatch.setattr(Session, "client", lambda _session: cast(Client, client))
    monkeypatch.setattr(Session, "key", lambda _session, name=None: client.key())
    done = CliRunner().invoke(group, ["task", *map(str, arguments)], standalone_mode=False)
    if done.exception is not None:
        raise done.exception
    return done


def job_file(folder: Path, job: JobSpec = JOB) -> Path:
    file = folder / "job"
    file.write_bytes(encode_spec(job))
    return file


@pytest.mark.parametrize(("held", "tells"), [(True, False), (False, True), (None, False)])
def test_a_data_set_that_nobody_is_known_to_have_is_told_before_the_task_is_posted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, held: bool | None, tells: bool
) -> None:
    file = job_file(tmp_path)
    client = Requested(held)
    done = run(monkeypatch, client, "create", "--spec", file, "--home", tmp_path, "--json")
    assert client.asked == ["is_held", "create_task"], "told, and not refused"
    assert ("does not hold the data set 0x" + JOB.dataset.blob.hex() in done.stderr) == tells
    assert "Note" not in done.stdout


def test_a_group_is_posted_with_all_its_seats_shown_and_cancelled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = job_file(tmp_path)
    client = Requested(held=True)
    posting = ("create", "--spec", file, "--home", tmp_path, "--yes")
    done = run(monkeypatch, client, *posting, "--members", 11, "--spares", 2, "--json")
    assert client.asked == ["is_held", "create_group", f"add_seats 8 {8 * 10**18}", f"add_seats 4 {22 * 10**17}"]
    answer = json.loads(done.stdout)
    assert answer["locked"] == str(11 * 10**18 + 2 * 10**17)
    group = bytes.fromhex(answer["group"][2:])
    assert group == group_id_of(KEY.address, 0)
    seats = [
        {
            "seat": at, "is_spare": at == 2, "task": "0x" + "7" * 64, "phase": "standby" if at == 2 else "running",
            "reason": "started", "worker": "0x" + "1" * 40, "windows": 3, "proved_windows": 2, "final_windows": at,
        }
        for at in range(3)
    ]  # fmt: skip
    document = {
        "id": answer["group"], "requester": "0x" + KEY.address.hex(), "phase": "running", "reason": "matched",
        "members": 2, "spares": 1, "rate_min": 100, "rate_max": 114, "lost": 0, "paused": 0, "ended": 0,
        "standby": 1, "final_windows": 1, "seats": seats,
    }  # fmt: skip
    client.groups[group] = read_result(Group, document)
    shown = run(monkeypatch, client, "show", answer["group"], "--home", tmp_path).stdout
    assert "running (matched)" in shown and "100 to 114 work units" in shown and "2 (spare)" in shown
    assert json.loads(run(monkeypatch, client, "show", answer["group"], "--json").stdout)["group"] == document
    told = json.loads(run(monkeypatch, client, "bill", answer["group"], "--json").stdout)
    assert told["totals"] == {"deposited": "30", "locked": "0", "paid": "21", "refunded": "6", "burned": "3"}
    assert len(told["lines"]) == 3 and told["exact"]
    run(monkeypatch, client, "cancel", answer["group"], "--home", tmp_path, "--yes")
    assert client.asked[-1] == "cancel_group"


def test_a_task_is_cancelled_with_its_key_opened_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Standard input has a passphrase in one line; who asks twice finds none."""
    client = Requested()
    run(monkeypatch, client, "cancel", TASK_ID, "--home", tmp_path, "--yes")
    assert (client.asked, client.keys_opened) == (["cancel_task"], 1)


@pytest.mark.parametrize(
    "arguments",
    [("--members", 9, "--spares", 3), ("--spares", 1), ("--members", 2, "--keep-input"), ("--members", 65)],
)
def test_a_group_that_cannot_be_is_refused_before_anything_is_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[object, ...]
) -> None:
    file = job_file(tmp_path)
    client = Requested(held=True)
    with pytest.raises(click.UsageError):
        run(monkeypatch, client, "create", "--spec", file, "--home", tmp_path, "--yes", *arguments)
    assert not any("create" in asked for asked in client.asked)


@pytest.mark.parametrize(
    ("job", "known", "told"),
    [
        (JOB, [("dataset_invalid", "the blob is not a data set")], "not a data set"),
        (JOB, [("no_such_machine", "no registered machine has it")], "no registered machine"),
        (JOB._replace(init_root=bytes(32)), [], "init_root"),
        (JOB.changed(dataset=JOB.dataset._replace(blob=DIGITS_BLOB)), [], "64 features and 10 classes"),
    ],
)
def test_a_job_that_nobody_can_do_is_refused_before_anything_is_locked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, job: Any, known: list[tuple[str, str]], told: str
) -> None:
    file = job_file(tmp_path, job)
    client = Requested(held=True)
    client.objections = known
    for verb in ("quote", "create"):
        with pytest.raises(JobRefused, match=told) as refused:
            run(monkeypatch, client, verb, "--spec", file, "--home", tmp_path, "--json")
        assert len(refused.value.reasons) >= 1
    assert "create_task" not in client.asked
    if job.dataset.blob == JOB.dataset.blob:
        done = run(monkeypatch, client, "create", "--spec", file, "--home", tmp_path, "--json", "--anyway")
        assert "create_task" in client.asked
        assert told in done.stderr


def test_what_a_job_may_wait_for_and_what_was_said_against_it_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = job_file(tmp_path)
    client = Requested(held=True)
    client.notices = [("price_below_all", "its highest price is below what every machine asks")]
    client.reported = SimpleNamespace(reason="job_diverged", height=7, worker=b"", task=b"t" * 32, times=2)
    for verb in ("quote", "create"):
        done = run(monkeypatch, client, verb, "--spec", file, "--home", tmp_path)
        assert "Note: its highest price is below what every machine asks." in done.stderr
        assert "2 workers have given this very job up" in done.stderr and "job diverged" in done.stderr


def test_a_quote_shows_the_limit_and_what_recent_calls_paid(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = job_file(tmp_path)
    client = Requested(held=True)
    unpriced = run(monkeypatch, client, "quote", "--spec", file, "--home", tmp_path)
    assert "price limit" in unpriced.stdout and "recent calls" not in unpriced.stdout
    client.calls = [
        SimpleNamespace(time_ms=NOW_MS, matches=2, lowest=10**16, mean=2 * 10**16, highest=3 * 10**16),
        SimpleNamespace(time_ms=NOW_MS, matches=1, lowest=10**17, mean=10**17, highest=10**17),
    ]
    done = run(monkeypatch, client, "quote", "--spec", file, "--home", tmp_path)
    assert "0.1 DKB per 10^12 work units (1 task)" in done.stdout
    assert "0.01 DKB to 0.1 DKB per 10^12 work units" in done.stdout


DAY_MS = 86_400_000
KEPT_LINES = (
    CustodyLine(
        what="output", blobs=3, copies=2, size_bytes=4_096, time_ms=7 * DAY_MS, price_per_gib_hour=10**13,
        amount=3 * 10**15, document={},
    ),
    CustodyLine(
        what="input", blobs=1, copies=2, size_bytes=120_668, time_ms=7 * DAY_MS, price_per_gib_hour=10**13,
        amount=10**15, document={},
    ),
)  # fmt: skip


def test_a_quote_of_a_file_names_the_command_that_posts_the_same_job(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "model").mkdir()
    write_folder(tmp_path / "model", TINY)
    (tmp_path / "prompts.jsonl").write_text('{"input_ids": [1, 2]}')
    (tmp_path / "ask.yaml").write_text("kind: generate\nmodel: model\ndata: prompts.jsonl\nnew_tokens: 4")
    terms = ("--max-price", "0.02", "--match-s", "60", "--seed", "mine")
    file, saved = tmp_path / "ask.yaml", tmp_path / "job.json"
    done = run(monkeypatch, Requested(), "quote", "--file", file, "--save", saved, "--home", tmp_path, *terms)
    assert f"dekube task create --file {file} {' '.join(terms)} --home {tmp_path}" in done.stdout
    assert json.loads(saved.read_text())["max_price_per_tera_unit"] == str(2 * 10**16)


def test_a_quote_shows_copies_time_and_price_of_the_custody_of_outputs_and_of_the_data_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = job_file(tmp_path)
    client = Requested(held=True)
    assert "custody" not in run(monkeypatch, client, "quote", "--spec", file, "--home", tmp_path).stdout
    client.custody, client.custody_lines = 3 * 10**15, KEPT_LINES
    told = " ".join(run(monkeypatch, client, "quote", "--spec", file, "--home", tmp_path).stdout.split())
    assert "0.003 DKB more: 3 windows of 4,096 bytes, 2 copies for 7 days 0 h at most" in told
    assert "with --keep-input 0.001 DKB more: 120,668 bytes, 2 copies for 7 days 0 h at most" in told


def test_a_data_set_that_too_few_machines_could_keep_is_refused_before_anything_is_locked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = job_file(tmp_path)
    client = Requested(held=True)
    client.custody, client.custody_lines = 3 * 10**15, KEPT_LINES
    client.notices = [("few_custodians", "1 operator has machines with role storage")]
    with pytest.raises(JobRefused, match="role storage"):
        run(monkeypatch, client, "create", "--spec", file, "--dataset", file, "--home", tmp_path, "--keep-input")
    assert not client.asked or client.asked == ["is_held"]
    done = run(monkeypatch, client, "create", "--spec", file, "--home", tmp_path, "--no-custody")
    assert "role storage" in done.stderr and client.asked[-1] == "create_task", "outputs alone: it is told"


def test_custody_that_costs_more_than_the_work_is_refused_where_it_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = job_file(tmp_path)
    client = Requested(held=True)
    client.custody, client.custody_lines = 3 * 10**15, KEPT_LINES
    client.notices = [("custody_exceeds_work", "custody of its outputs costs 0.003 DKB")]
    for verb in ("quote", "create"):
        with pytest.raises(JobRefused, match=r"costs 0\.003 DKB"):
            run(monkeypatch, client, verb, "--spec", file, "--home", tmp_path)
    done = run(monkeypatch, client, "create", "--spec", file, "--home", tmp_path, "--no-custody")
    assert "0.003 DKB" not in done.stderr and client.asked[-1] == "create_task"


def machine(address: str = OTHER, **fields: Any) -> dict[str, Any]:
    return {
        "address": address, "roles": ["compute"], "status": "active", "price_per_tera_unit": "100",
        "cool_down_until_ms": 0, "match_from_ms": 0, "bad": int(address == LOST),
    } | fields  # fmt: skip


@pytest.mark.parametrize(
    ("machines", "told"),
    [
        ((machine(LOST), machine()), ""),
        ((machine(LOST, bad=0),), ""),
        ((machine(cool_down_until_ms=NOW_MS + REPLACE_MS),), ""),
        ((machine(LOST),), "of 1 machine for compute none will take this task (1 lost or left this task"),
        ((), "of 0 machines"),
        ((machine(roles=["verify"]),), "of 0 machines"),
        ((machine(price_per_tera_unit="101"),), "1 above its price limit"),
        ((machine(status="retiring"), machine(LOST)), "(1 lost or left this task, 1 retiring)"),
        ((machine(match_from_ms=NOW_MS + REPLACE_MS + 1),), "1 in a longer pause after a fault"),
    ],
)
def test_a_task_that_would_pause_again_is_told_before_it_is_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, machines: tuple[dict[str, Any], ...], told: str
) -> None:
    client = Requested(machines=machines)
    done = run(monkeypatch, client, "resume", TASK_ID, "--home", tmp_path)
    assert client.asked == ["resume_task"], "told, and not refused"
    assert ("Note" in done.stderr) == bool(told)
    assert told in done.stderr
    assert not told or "within 60 s, it pauses again" in done.stderr
    assert "top-up" not in done.stderr


def test_a_task_whose_checks_cannot_be_paid_is_to_be_topped_up_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = Requested(machines=(machine(),), reason="funds_low")
    assert "`dekube task top-up`" in run(monkeypatch, client, "resume", TASK_ID, "--home", tmp_path).stderr


@pytest.mark.parametrize(
    ("line", "phase", "has_ended", "said"),
    [
        (
            "cancel",
            "settled",
            True,
            "has ended (settled): the command needs a task that has not ended; nothing was sent",
        ),
        (
            "top-up",
            "failed",
            True,
            "has ended (failed): the command needs a task that has not ended; nothing was sent",
        ),
        ("demand", "running", False, "is running; the command needs a task that has ended; nothing was sent"),
        ("resume", "running", False, "is running; the command needs a task that is paused; nothing was sent"),
    ],
)
def test_a_task_in_another_phase_is_told_as_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, phase: str, has_ended: bool, said: str
) -> None:
    client = Requested()
    task = SimpleNamespace(phase=phase, has_ended=has_ended, requester=KEY.address, document=client.record)
    monkeypatch.setattr(client, "task", lambda _id: task)
    monkeypatch.setattr(Session, "client", lambda _session: cast(Client, client))
    monkeypatch.setattr(Session, "key", lambda _session, name=None: KEY)
    amount = ["1"] if line in ("top-up", "demand") else []
    done = CliRunner().invoke(
        group, ["task", line, TASK_ID, *amount, "--home", str(tmp_path)], standalone_mode=False
    )
    assert isinstance(done.exception, TransactionRefused)
    assert str(done.exception) == f"task {TASK_ID} {said}"
    assert client.asked == []


def test_a_task_that_waits_because_of_its_inputs_may_be_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = Requested(reason="input_unavailable")
    task = SimpleNamespace(
        phase="matching", has_ended=False, requester=KEY.address, document=client.record,
    )  # fmt: skip
    monkeypatch.setattr(client, "task", lambda _id: task)
    assert "Waiting until it is final" in run(monkeypatch, client, "resume", TASK_ID, "--home", tmp_path).stderr


def test_what_the_chain_would_refuse_is_not_signed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    client = Requested(machines=(machine(),))
    client.refusal = "wrong_phase"
    monkeypatch.setattr(Session, "client", lambda _session: cast(Client, client))
    monkeypatch.setattr(Session, "key", lambda _session, name=None: KEY)
    command = ["task", "resume", TASK_ID, "--home", str(tmp_path)]
    done = CliRunner().invoke(group, command, standalone_mode=False)
    assert isinstance(done.exception, TransactionRefused)
    assert str(done.exception) == (
        "the chain would reject the transaction: the task's phase does not allow it (wrong_phase); "
        "nothing was sent"
    )
    assert "Waiting" not in done.stderr
    assert client.asked == []


@pytest.mark.parametrize("verb", ["show", "proof", "bill", "watch", "result", "cancel", "resume"])
def test_a_task_that_is_not_there_is_said_to_be_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    monkeypatch.setattr(Session, "client", lambda _session: cast(Client, Requested()))
    monkeypatch.setattr(Session, "key", lambda _session, name=None: KEY)
    other = "0x" + "cd" * 32
    done = CliRunner().invoke(group, ["task", verb, other, "--home", str(tmp_path)], standalone_mode=False)
    assert isinstance(done.exception, ConfigError)
    assert str(done.exception) == f"no task has the ID {other}; `dekube task list` shows the tasks"


def test_the_widths_that_are_asked_for_are_those_of_the_data_set() -> None:
    digits = make_dataset("digits")
    assert (digits.columns, digits.classes) == DIGITS_ENDS


@pytest.mark.slow
def test_the_digits_are_those_that_a_job_names_and_come_without_their_library(tmp_path: Path) -> None:
    """To import scikit-learn takes seconds; the rows of its file are the same."""
    from sklearn.datasets import load_digits

    file = tmp_path / "digits"
    file.write_bytes(make_dataset("digits").encode())
    assert blob_of_file(file).blob_id == DIGITS_BLOB
    bunch = load_digits()
    rows = [bytes([*map(int, row), int(label)]) for row, label in zip(bunch.data, bunch.target, strict=True)]
    assert _digit_rows() == rows
    code = "import sys; from tasks.engines.builtin_datasets import make_dataset; "
    code += "make_dataset('digits'); print('sklearn' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_what_only_asks_a_gateway_of_tasks_loads_no_numpy() -> None:
    code = "import sys, node.cli.tasks; print(sorted({'numpy', 'sklearn', 'torch'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def bill_line(number: int, movement: str, purpose: str, pool: str, party: str | None, window: int | None) -> Any:
    document = {
        "number": number, "height": number, "movement": movement, "purpose": purpose, "pool": pool, "party": party,
        "amount": str(10**18), "window": window,
    }  # fmt: skip
    return read_result(BillLine, document)


def test_a_bill_is_short_names_pools_and_sums_up_each_party(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It had a row for each movement of each window."""
    me, worker = "0x" + "11" * 20, "0x" + "22" * 20
    lines = [
        bill_line(0, "locked", "price", "price", me, None),
        *(bill_line(1 + n, "paid", "window_pay", "price", worker, n) for n in (0, 1, 2, 4)),
        *(bill_line(9 + n, "burned", "protocol_fee", "fee", None, n) for n in (0, 1)),
        *(bill_line(20 + n, "refunded", "unspent", pool, me, None) for n, pool in enumerate(("price", "fee"))),
    ]
    rows = merged_lines(lines)
    assert [(row["purpose"], row["pool"], row["windows"], row["amount"]) for row in rows] == [
        ("price", "price", None, "1 DKB"),
        ("window_pay", "price", "0-2, 4", "4 DKB"),
        ("protocol_fee", "fee", "0-1", "2 DKB"),
        ("unspent", "price", None, "1 DKB"),
        ("unspent", "fee", None, "1 DKB"),
    ]
    coin = 10**18
    assert sums_by_party(lines) == {
        me: {"locked": coin, "paid": 0, "refunded": 2 * coin},
        worker: {"locked": 0, "paid": 4 * coin, "refunded": 0},
    }
    client = Requested()
    totals = SimpleNamespace(deposited=9, locked=9, paid=0, refunded=0, burned=0, is_exact=True, document={})
    client.bills = SimpleNamespace(lines=tuple(lines), totals=totals)
    short = run(monkeypatch, client, "bill", TASK_ID, "--home", tmp_path).stdout
    whole = run(monkeypatch, client, "bill", TASK_ID, "--lines", "--home", tmp_path).stdout
    assert "By party" in short and short.count("window_pay") == 1
    assert whole.count("window_pay") == 4 and "pool" in whole


def test_the_list_of_machines_shows_their_pauses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shown: dict[str, Any] = {
        "gpus": [], "rate": 1, "price_per_device_hour": "1", "busy_slots": 0, "slots": 1,
        "bond": "1", "backing": "1", "good": 0, "present": True,
        "bad": 0,
    }  # fmt: skip
    client = Requested(
        machines=(
            machine(**shown, cool_down_until_ms=NOW_MS + 42_000),
            machine(**shown, match_from_ms=NOW_MS + 7_000),
            machine(**shown),
        )
    )
    rows: list[dict[str, str]] = []
    monkeypatch.setattr(Session, "client", lambda _session: cast(Client, client))
    monkeypatch.setattr("node.cli.workers.show_rows", lambda shown, *_, **__: rows.extend(shown))
    done = CliRunner().invoke(group, ["worker", "list", "--home", str(tmp_path)], standalone_mode=False)
    assert done.exception is None
    assert [row["status"] for row in rows] == ["active, paused 42 s", "active, paused 7 s", "active"]


@pytest.mark.parametrize(
    ("of", "price", "speed"),
    [
        ({"gpus": [], "rate": 4 * 10**10}, "0.36 DKB a core-hour", "40.0 * 10^9 units/s"),
        ({"gpus": [{"model": "Card", "memory_mib": 8}], "rate": 4 * 10**10}, "0.36 DKB a GPU-hour", "40.0 *"),
        ({"gpus": [], "rate": 0}, "0.0025 DKB per 10^12 work units", "unknown"),
    ],
)
def test_what_an_hour_of_a_machine_costs_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, of: dict[str, Any], price: str, speed: str
) -> None:
    shown: dict[str, Any] = {
        "busy_slots": 0, "slots": 1, "bond": "1", "backing": "1", "present": True, "good": 0, "bad": 0,
        "price_per_tera_unit": str(25 * 10**14),
        "price_per_device_hour": str(36 * 10**16 + 7), **of,
    }  # fmt: skip
    rows: list[dict[str, str]] = []
    client = Requested(machines=(machine(**shown),))
    monkeypatch.setattr(Session, "client", lambda _session: cast(Client, client))
    monkeypatch.setattr("node.cli.workers.show_rows", lambda shown, *_, **__: rows.extend(shown))
    done = CliRunner().invoke(group, ["worker", "list", "--home", str(tmp_path)], standalone_mode=False)
    assert done.exception is None
    [row] = rows
    assert row["price"] == price and row["speed"].startswith(speed)


@pytest.mark.parametrize(
    ("of", "told"),
    [
        ({"measured_rate": 5 * 10**9, "trial": None}, None),
        (
            {"measured_rate": 5 * 10**9, "trial": {"phase": "idle", "checked": True, "ask_from_ms": 1}},
            "5.0 * 10^9 units/s counts, checked",
        ),
        (
            {"measured_rate": None, "trial": {"phase": "running", "checked": False, "ask_from_ms": 1}},
            "none: it is offered nothing; trial under way: running",
        ),
        (
            {"measured_rate": None, "trial": {"phase": "idle", "checked": False, "ask_from_ms": NOW_MS}},
            "none: it is offered nothing; the next trial can begin at ",
        ),
    ],
)
def test_what_trials_measured_is_shown(of: dict[str, Any], told: str | None) -> None:
    shown = _measured(of)
    assert shown == told if told is None else shown is not None and shown.startswith(told)
