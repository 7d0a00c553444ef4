"""A gateway is a stranger: its texts reach no terminal as they are, and no answer of it makes a traceback."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import pytest

from node.cli import OperatingSystemError, main
from node.cli.output import show_rows, show_time
from node.cli.progress_client import ProgressClient
from node.cli.responses import checked_responses, mark_gateway_used
from node.cli.terminal import printable, printable_heading
from rpc.client import Client, TaskUpdate
from rpc.client.core import Post, hexed
from rpc.client.results import Notification, Task, TaskChange, Window, read_result
from state.primitives.errors import ConfigError, DekubeError
from state.transition.calls import SYSTEM_PREFIX
from testnet.cluster import TestnetError
from tests.rpc.client.answers import ADDRESS, HASH, at, change_json, task_json, window_json

HOSTILE = "\x1b]0;owned\x07\nForged [/bold]\u202e\x9b"
SHOWN = printable(HOSTILE)
AT = at(1)
PLACE = AT | {"index": 0, "time_ms": 1_000}
PAGE = {"at": AT, "next": None}
TRANSACTION = {
    "hash": HASH, "form": 1, "nonce": 9, "kind": 1, "kind_name": HOSTILE, "gas_limit": 1, "max_fee_per_gas": "1",
    "raw": "0x", "block": PLACE, "from": ADDRESS, "payload": [HOSTILE, {HOSTILE: HOSTILE}],
}  # fmt: skip
RECEIPT = {
    "transaction_hash": HASH, "block": PLACE, "kind": 1, "kind_name": HOSTILE, "succeeded": False,
    "reason": HOSTILE, "gas_used": 1, "fee": "1", "events": [],
}  # fmt: skip
ACCOUNT = {
    "at": AT, "address": ADDRESS, "balance": "5", "nonce": 1, "pending_nonce": 1, "unbonding": [], "stake": None,
}  # fmt: skip
CHANGE = {"kind": HOSTILE, "holding": "balance", "amount": "-5", "other": None, "escrow": None}
ENTRY = {"block": PLACE, "transaction": TRANSACTION, "succeeded": True, "changes": [CHANGE], "events": []}
SEAT = {"address": HOSTILE, "seal": None, "findings": [{"segment": HOSTILE, "code": HOSTILE}]}
PROOF = window_json(0, "")["proof"] | {
    "segments": 5, "leaves_blob": HOSTILE,
}  # fmt: skip
WINDOW = window_json(0, HOSTILE) | {
    "reason": HOSTILE, "proof": PROOF, "verifiers": [SEAT], "jurors": [SEAT], "sampled": [HOSTILE],
}  # fmt: skip
SPEC = {
    "schedule": {"total_steps": 5, "window_steps": 5}, "max_price_per_tera_unit": "5", "kind": HOSTILE,
    "batch": HOSTILE, "model": {"name": HOSTILE, "widths": [HOSTILE]}, "optimiser": {"name": HOSTILE},
    "profile": HOSTILE, "dataset": {"blob": HOSTILE},
}  # fmt: skip
TASK = task_json(HOSTILE) | {
    "reason": HOSTILE, "spec": SPEC, "final_root": HOSTILE, "state_root": HOSTILE,
}  # fmt: skip
TASK_CHANGE = change_json(1, HOSTILE, ADDRESS) | {"reason": HOSTILE}
MACHINE = {
    "address": HOSTILE, "status": HOSTILE, "roles": [HOSTILE], "gpus": [{"model": HOSTILE, "memory_mib": HOSTILE}],
    "price_per_device_hour": "1", "rate": 1, "owed_ms": 1,
    "busy_slots": HOSTILE, "slots": HOSTILE, "price_per_tera_unit": "1", "bond": "1", "good": HOSTILE,
    "bad": HOSTILE, "cool_down_until_ms": 0, "match_from_ms": 0, "operator": HOSTILE, "cores": 1,
    "payout": HOSTILE, "present": HOSTILE, "seen_ms": 1, "pcie_lanes": HOSTILE,
    "sponsor": HOSTILE, "sponsored": "1", "sponsor_leaving": "1", "sponsor_leaves_ms": 1,
    "sponsor_share_bps": 1, "withhold_bps": 1, "withhold_until": "1", "withheld": "1", "backing": "1",
    "memory_mib": HOSTILE, "valid_streak": HOSTILE, "reputation_milli": 1, "registered_height": HOSTILE,
    "tampering": {"sign": HOSTILE, "reports": 1, "until_ms": 2**40}, "notice_ms": 1, "until_ms": None,
    "version": HOSTILE, "measured_rate": 1, "trial": {"phase": HOSTILE, "checked": True, "ask_from_ms": 1},
}  # fmt: skip
DUTY = {"action": HOSTILE, "task": HOSTILE, "window": HOSTILE, "segments": [HOSTILE]}
COMMITTEE_SEAT = {"address": HOSTILE, "seat": HOSTILE, "weight": "1"}
ANSWERS: dict[str, Any] = {
    "dekube_chainInfo": {
        "at": AT, "chain_id": 7, "name": HOSTILE, "genesis_hash": HASH, "testnet": True, "version": HOSTILE,
    },
    "dekube_head": {
        "at": AT, "time_ms": 1, "state_root": HASH, "base_fee": "1", "base_fee_next": "1",
    },
    "dekube_getAccount": ACCOUNT,
    "dekube_getTransaction": {"transaction": TRANSACTION},
    "dekube_getReceipt": {"receipt": RECEIPT},
    "dekube_getAccountHistory": PAGE | {"items": [ENTRY]},
    "dekube_getContracts": {
        "contracts": [{"address": hexed(SYSTEM_PREFIX.ljust(20, b"\1")), "name": HOSTILE, "abi": [
            {"type": "function", "name": "f", "inputs": [], "outputs": [{"name": "x", "type": "string"}],
             "stateMutability": "view"},
        ]}],
    },
    "dekube_getTasks": PAGE | {"items": [TASK], "next": HOSTILE},
    "dekube_getTask": {"task": TASK},
    "dekube_getTaskHistory": PAGE | {"items": [TASK_CHANGE]},
    "dekube_getTaskWindows": PAGE | {"items": [WINDOW | {"number": HOSTILE}]},
    "dekube_getNodes": PAGE | {"items": [MACHINE]},
    "dekube_getNode": {"node": MACHINE},
    "dekube_getEarnings": {"earnings": {HOSTILE: "1"}, "total": "1"},
    "dekube_getDuties": {"work": [DUTY], "checks": [DUTY]},
    "dekube_getSlashes": PAGE | {"items": [
        {"operator": HOSTILE, "fault": HOSTILE, "epoch": HOSTILE, "view": HOSTILE, "height": HOSTILE, "taken": "1",
         "reporter": HOSTILE, "reward": "1", "rate_ppm": 5},
    ]},
    "dekube_status": {"epoch": 1},
    "dekube_getEpoch": {
        "epoch": 1, "last_height": 5, "counted_blocks": HOSTILE,
        "seats": [{"address": HOSTILE, "finalised": HOSTILE, "led": HOSTILE, "missed": HOSTILE}],
    },
    "dekube_getCommittee": {"seats": [COMMITTEE_SEAT], "weight": "1"},
    "dekube_getValidators": {
        "validators": [{"address": HOSTILE, "stake": "1", "jail": None}], "leaving": [], "withdrawable": "1",
    },
    "dekube_getNetwork": {
        "next": None,
        "reachability": {
            "how": HOSTILE, "why": HOSTILE, "endpoints": [{"endpoint": HOSTILE, "verdict": HOSTILE}],
        },
        "items": [
            {"address": HOSTILE, "roles": [HOSTILE], "endpoints": [HOSTILE], "relays": [{"endpoint": HOSTILE}],
             "stake": None, "registered_roles": [HOSTILE], "connected": True},
        ],
    },
    "dekube_getCarriage": {
        "deposit": "1", "withdrawing": "1", "due": "1", "release_ms": 0, "earning": True,
        "relays": [{"relay": HOSTILE, "bytes": HOSTILE, "due": "1"}],
    },
}  # fmt: skip
"""By method; every text that a shape leaves free is hostile."""

COMMANDS = (
    f"wallet balance {ADDRESS}", f"wallet tx {HASH}", f"wallet history {ADDRESS}", "wallet call",
    f"wallet watch {ADDRESS}", f"wallet watch {HASH}",
    "task list", f"task show {HASH}", f"task proof {HASH}", f"task watch {HASH}", f"task bill {HASH}",
    "worker list", f"worker show {ADDRESS}", f"worker earnings {ADDRESS}", f"worker duties {ADDRESS}",
    f"relay account {ADDRESS}", "validators", "slashes", "network",
)  # fmt: skip
Dekube = Callable[..., tuple[int, str, str]]


def soiled(document: Any) -> Any:
    """Return a document with one more member in each of its objects, whose name is hostile too."""
    match document:
        case dict():
            return {name: soiled(value) for name, value in document.items()} | {HOSTILE: HOSTILE}
        case list():
            return [soiled(item) for item in document]
        case _:
            return document


@pytest.fixture
def answers() -> dict[str, Any]:
    return {method: soiled(answer) for method, answer in ANSWERS.items()} | {"dekube_getEarnings": ANSWERS[
        "dekube_getEarnings"
    ]}  # fmt: skip


@pytest.fixture
def dekube(
    answers: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Dekube:
    """Run a command against a gateway of ``answers``, by method: a result, or an error in a tuple."""

    def one(request: Any) -> Any:
        answer = answers[request["method"]]
        told = {"error": answer[0]} if isinstance(answer, tuple) else {"result": answer}
        return {"jsonrpc": "2.0", "id": request["id"]} | told

    def post(_client: object, sent: Post) -> bytes:
        asked = json.loads(sent.body)
        return json.dumps([one(item) for item in asked] if isinstance(asked, list) else one(asked)).encode()

    monkeypatch.setattr(ProgressClient, "_post", post)

    def run(*arguments: object) -> tuple[int, str, str]:
        command = [str(argument) for argument in arguments]
        monkeypatch.setattr(sys, "argv", ["dekube", *command, "--rpc", "h:1", "--home", str(tmp_path)])
        with pytest.raises(SystemExit) as ended:
            main()
        said = capsys.readouterr()
        assert isinstance(ended.value.code, int)
        return ended.value.code, said.out, said.err

    return run


def check_plain(text: str) -> None:
    assert all(line.isprintable() for line in text.split("\n")), repr(text)
    assert not any(line.lstrip().startswith("Forged") for line in text.split("\n")), text


@pytest.mark.parametrize("form", [(), ("--json",)])
@pytest.mark.parametrize("command", COMMANDS)
def test_no_text_of_a_gateway_reaches_the_terminal_as_it_is(
    command: str, form: tuple[str, ...], dekube: Dekube, monkeypatch: pytest.MonkeyPatch
) -> None:
    def subscribe(*_: object, **__: object) -> Any:
        changed = soiled(ACCOUNT | {"at": at(2), "balance": "4"})
        monkeypatch.setitem(ANSWERS, "dekube_getAccount", ACCOUNT)
        monkeypatch.setattr(Client, "account", lambda *_: SimpleNamespace(
            at=SimpleNamespace(height=2), balance=4, nonce=1, document=changed,
        ))  # fmt: skip
        monkeypatch.setattr("node.cli.wallet.watching._since", lambda client, who, _: list(client.history(who)))
        yield read_result(Notification, {"at": at(2)})

    def follow(*_: object, **__: object) -> Any:
        yield TaskUpdate(
            read_result(Task, soiled(TASK)), (read_result(TaskChange, soiled(TASK_CHANGE)),),
            tuple(read_result(Window, soiled(WINDOW | {"phase": phase})) for phase in (HOSTILE, "proved")),
        )  # fmt: skip

    sums = SimpleNamespace(
        deposited=1, locked=1, paid=0, refunded=0, burned=0, is_exact=True, document={HOSTILE: HOSTILE}
    )
    line = SimpleNamespace(
        document={"height": HOSTILE, "movement": HOSTILE, "party": HOSTILE, "pool": [HOSTILE]}, amount=1,
        movement="paid", party=b"", window=None,
    )  # fmt: skip
    bill = SimpleNamespace(totals=sums, lines=(line,))
    monkeypatch.setattr(Client, "subscribe", subscribe)
    monkeypatch.setattr(Client, "follow", follow)
    monkeypatch.setattr(Client, "bill", lambda *_: bill)
    status, out, err = dekube(*command.split(), *form)
    check_plain(out + err)
    assert "answer_malformed" not in err, err
    ends_badly = command in (f"wallet watch {HASH}", f"task watch {HASH}")
    assert status == ends_badly, err
    assert ("\\u001b" if form else "\\x") in out, "it is shown all the same"


@pytest.mark.parametrize("form", [(), ("--json",)])
@pytest.mark.parametrize("command", [one for one in COMMANDS if "watch" not in one])
def test_what_a_gateway_fails_with_is_one_line(
    command: str, form: tuple[str, ...], dekube: Dekube, answers: dict[str, Any]
) -> None:
    error = {"code": -32000, "message": HOSTILE, "data": {"reason": HOSTILE, HOSTILE: HOSTILE}}
    answers.update(dict.fromkeys(answers, (error,)))
    assert dekube(*command.split(), *form) == (1, "", f"dekube: {SHOWN} [{SHOWN}]\n")


@pytest.mark.parametrize(
    ("command", "method", "answer"),
    [
        (f"wallet balance {ADDRESS}", "dekube_getAccount", ACCOUNT | {"unbonding": [{}]}),
        (f"wallet balance {ADDRESS}", "dekube_getAccount", ACCOUNT | {"unbonding": 5}),
        (f"wallet balance {ADDRESS}", "dekube_getAccount", ACCOUNT | {
            "unbonding": [{"amount": "1", "release_time_ms": 10**18}],
        }),
        (f"wallet balance {ADDRESS}", "dekube_getAccount", ACCOUNT | {"stake": {"amount": "much"}}),
        ("task list", "dekube_getTasks", {}),
        ("task list", "dekube_getTasks", []),
        ("task list", "dekube_getTasks", PAGE | {"items": [5]}),
        (f"task show {HASH}", "dekube_getTask", {"task": task_json("running") | {"spec": None}}),
        (f"task show {HASH}", "dekube_getTask", {"task": {
            name: value for name, value in task_json("running").items() if name != "spec"
        }}),
        ("validators", "dekube_getCommittee", {"seats": [COMMITTEE_SEAT], "weight": "0"}),
        (f"worker show {ADDRESS}", "dekube_getNode", 7),
        ("network", "dekube_getNetwork", None),
    ],
)  # fmt: skip
def test_an_answer_of_another_shape_is_an_error_with_a_code(
    command: str, method: str, answer: Any, dekube: Dekube, answers: dict[str, Any]
) -> None:
    answers[method] = answer
    status, out, err = dekube(*command.split())
    assert (status, out, err.count("\n")) == (1, "", 1)
    assert err.endswith(" [answer_malformed]\n")


def test_a_bug_of_a_command_that_asks_nobody_stays_one() -> None:
    with click.Context(click.Command("x")):
        with pytest.raises(KeyError), checked_responses():
            raise KeyError("a")
        mark_gateway_used()
        with pytest.raises(DekubeError, match=r"\(KeyError: 'a'\)$") as told, checked_responses():
            raise KeyError("a")
        assert isinstance(told.value.__cause__, KeyError), "whoever looks for it finds where"
        for error in (ConfigError("x"), OperatingSystemError(OSError(2, "x")), TimeoutError()):
            with pytest.raises(type(error)), checked_responses():
                raise error


def test_the_lines_of_a_log_are_kept_and_those_of_a_stranger_are_not(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    told = []
    for error in (TestnetError("it ended:\nlast line"), ConfigError("it ended:\nlast line")):

        def fail(error: DekubeError = error, **_: object) -> None:
            raise error

        monkeypatch.setattr("node.cli.group.main", fail)
        with pytest.raises(SystemExit):
            main()
        told.append(capsys.readouterr().err)
    assert told == [
        "dekube: it ended:\nlast line [testnet_error]\n", "dekube: it ended:\\nlast line [config_error]\n",
    ]  # fmt: skip


def test_a_title_is_one_line_and_no_markup(capsys: pytest.CaptureFixture[str]) -> None:
    for rows in ([], [{"a": 1}]):
        show_rows(rows, ["a"], as_json=False, title=f"\nTask {HOSTILE}")
        shown = capsys.readouterr().out
        assert shown.startswith(f"\nTask {SHOWN}")
        check_plain(shown)
    assert printable_heading("\n\na") == "\n\\na"


@pytest.mark.parametrize("time_ms", [-1, 253_402_300_800_000, 10**30])
def test_what_no_calendar_has_is_no_time(time_ms: int) -> None:
    assert show_time(253_402_300_799_999) == "9999-12-31 23:59 UTC"
    with pytest.raises(ValueError, match="not a time"):
        show_time(time_ms)
