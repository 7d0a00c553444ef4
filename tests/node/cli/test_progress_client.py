"""A command that waits says for what, after seconds, not minutes: who sees nothing takes it for broken."""

from __future__ import annotations

import contextlib
import socket
import sys
from pathlib import Path
from typing import Any

import pytest

from node.cli import main
from node.cli.progress_client import NOTICE_S, NotFinal, ProgressClient, ProgressNotice, with_notices
from node.home.create import create_home
from node.home.keyring import random_key
from node.home.options import NodeOptions, RpcOptions
from rpc.client import Client, ClientError, GatewayUnreachable, TransactionRefused
from rpc.client.core import ClientOptions, Core, Pause, Post, ReadClock, Steps
from state.primitives.hashing import keccak
from state.primitives.transactions import sign_transaction
from tests.node.cli.test_mistakes import plan_genesis

UNAVAILABLE = (
    b'{"jsonrpc":"2.0","id":0,"error":{"code":-32000,"message":"x","data":{"reason":"node_unavailable"}}}'
)


class Clock:
    """Seconds as the test says."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def perform(
    core: Core, notice: ProgressNotice, clock: Clock, answers: list[tuple[float, bytes]], method: str
) -> list[str]:
    """Answer a call by ``answers``, each after its seconds; return what was said, looking before each answer."""
    said: list[str] = []
    steps = Steps(with_notices(core.call(method), notice))
    for effect in steps:
        if isinstance(effect, Pause):
            clock.now += effect.seconds
        else:
            assert isinstance(effect, Post)
            after_s, answer = answers.pop(0)
            clock.now += after_s
            said.append(notice.due())
            steps.resume(answer, None)
    return said


def test_a_silent_gateway_is_named_after_seconds_and_once(clock: Clock) -> None:
    notice = ProgressNotice(clock)
    notice.wait_for("x")
    assert notice.due() == ""
    clock.now = NOTICE_S
    assert (notice.due(), notice.due()) == ("x", "")
    notice.wait_for("")
    clock.now = 100
    assert notice.due() == ""


def test_a_node_that_does_not_answer_its_gateway_is_told(clock: Clock) -> None:
    core = Core(["h:1"], ClientOptions())
    answers = [(15.0, UNAVAILABLE), (15.0, UNAVAILABLE), (1.0, b'{"jsonrpc":"2.0","id":0,"result":7}')]
    first, second, third = perform(core, ProgressNotice(clock), clock, answers, "dekube_getAccount")
    assert first.startswith("h:1 has not answered dekube_getAccount yet")
    assert second == "h:1 reports that its node does not answer; trying again"
    assert third == "", "the same words once"


def test_many_quick_answers_are_no_waiting(clock: Clock) -> None:
    core, notice = Core(["h:1"], ClientOptions()), ProgressNotice(clock)
    for _ in range(10):
        assert perform(core, notice, clock, [(1.0, b'{"id":0,"result":7}')], "dekube_getTasks") == [""]


def test_a_transaction_that_waits_for_a_block_is_told_so(clock: Clock) -> None:
    core, notice = Core(["h:1"], ClientOptions()), ProgressNotice(clock)
    none = b'{"id":0,"result":{"receipt":null,"pending":true}}'
    [said] = perform(core, notice, clock, [(10.0, none)], "dekube_waitForReceipt")
    assert said.startswith("the transaction was taken and waits for a block")


def test_a_transaction_that_waits_for_others_of_its_sender_is_told_so(clock: Clock) -> None:
    core, notice = Core(["h:1"], ClientOptions()), ProgressNotice(clock, behind="nonces 3 to 8")
    none = b'{"id":0,"result":{"receipt":null,"pending":true}}'
    [said] = perform(core, notice, clock, [(10.0, none)], "dekube_waitForReceipt")
    assert said == "the transaction was taken and waits for nonces 3 to 8 of its sender"


def test_what_fails_fails_as_before_and_what_was_found_comes_back(clock: Clock) -> None:
    core = Core(["h:1"], ClientOptions())
    steps = Steps(with_notices(core.call("dekube_head"), ProgressNotice(clock)))
    with pytest.raises(GatewayUnreachable, match="gone"):
        for _ in steps:
            steps.resume(None, GatewayUnreachable("gone"))
    steps = Steps(with_notices(core.call("dekube_head"), ProgressNotice(clock)))
    for _ in steps:
        steps.resume(b'{"id":0,"result":7}', None)
    assert steps.result == 7


@pytest.mark.parametrize("runs", [True, False])
def test_a_node_whose_gateway_is_not_up_yet_is_told_from_one_that_does_not_run(
    runs: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.socket() as free, socket.socket(socket.AF_UNIX) as control:
        free.bind(("127.0.0.1", 0))
        home = create_home(
            tmp_path / "home", genesis=plan_genesis(), account=random_key(), vote=None, passphrase="p", scrypt_n=2,
            options=NodeOptions(rpc=RpcOptions(listen=f"127.0.0.1:{free.getsockname()[1]}")),
        )  # fmt: skip
        monkeypatch.chdir(home.root)  # the path of a socket is short
        control.bind("run/control.sock")
        if runs:
            control.listen()
        monkeypatch.setattr(sys, "argv", ["dekube", "validators", "--home", "."])
        with pytest.raises(SystemExit):
            main()
    said = capsys.readouterr().err
    assert said.endswith("[gateway_unreachable]\n")
    assert ("its gateway does not listen yet" in said) is runs
    assert ("dekube node run" in said) is not runs


def signed() -> bytes:
    return sign_transaction(
        random_key(), chain_id=1, nonce=0, kind=1, payload=[], gas_limit=1, max_fee_per_gas=1,
        max_priority_fee_per_gas=1,
    )  # fmt: skip


def give(flow: Any, answers: list[bytes]) -> None:
    """Give a flow the answers to its requests, and a clock that stands."""
    effect, left = next(flow), iter(answers)
    while True:
        answer = 0.0 if isinstance(effect, ReadClock) else next(left, None)
        if answer is None:
            return
        effect = flow.send(answer)


@pytest.mark.parametrize(
    ("answers", "names"),
    [
        ([], 0),
        ([b'{"id":0,"result":{"hash":"0x12"}}'], 1),
        ([b'{"id":0,"error":{"code":-32000,"message":"no","data":{"reason":"already_known"}}}'], 1),
        ([b'{"id":0,"error":{"code":-32000,"message":"no","data":{"reason":"insufficient_funds"}}}'], 0),
        (
            # The pool lost it: it is handed in again, and its name is known by then.
            [
                b'{"id":0,"result":{"hash":"0x12"}}', b'{"id":0,"result":{"receipt":null,"pending":false}}',
                b'{"id":0,"result":{"hash":"0x12"}}',
            ],
            1,
        ),
    ],
)  # fmt: skip
def test_the_hash_is_told_once_as_soon_as_a_gateway_has_the_transaction(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], answers: list[bytes], names: int
) -> None:
    def perform(self: Client, flow: Any) -> None:
        give(flow, answers)
        raise GatewayUnreachable("gone")

    raw = signed()
    monkeypatch.setattr(Client, "perform", perform)
    with pytest.raises((GatewayUnreachable, ClientError)):
        ProgressClient("h:1").send_and_wait(raw)
    assert capsys.readouterr().err.count(f"Sent: 0x{keccak(raw).hex()}\n") == names


def test_what_is_not_final_in_time_was_not_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for reason, code in (("", "not_final"), ("stake_insufficient", "transaction_refused")):

        def perform(self: Client, flow: Any, reason: str = reason) -> None:
            raise TransactionRefused("x", reason=reason, hash_=b"h" * 32)

        monkeypatch.setattr(Client, "perform", perform)
        with pytest.raises(TransactionRefused) as caught:
            ProgressClient("h:1").wait(signed())
        assert (caught.value.code, caught.value.hash) == (code, b"h" * 32)


@pytest.mark.parametrize(
    ("answers", "tells"),
    [
        ([], True),  # perhaps it came through
        ([b'{"id":0,"result":{"hash":"0x12"}}'], True),
        ([b'{"id":0,"result":{"hash":"0x12"}}', b'{"id":0,"result":{"receipt":null,"pending":true}}'], True),
        ([b'{"id":0,"error":{"code":-32000,"message":"no","data":{"reason":"already_known"}}}'], True),
        ([b'{"id":0,"error":{"code":-32000,"message":"no","data":{"reason":"insufficient_funds"}}}'], False),
    ],
)
def test_who_is_interrupted_is_told_of_the_transaction_that_was_handed_in(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], answers: list[bytes], tells: bool
) -> None:
    def perform(self: Client, flow: Any) -> None:
        give(flow, answers)
        raise KeyboardInterrupt

    raw = signed()
    monkeypatch.setattr(Client, "perform", perform)
    client = ProgressClient("h:1")
    with pytest.raises((KeyboardInterrupt, ClientError)) as ended:
        client.wait(raw)
    told = f"0x{keccak(raw).hex()} was sent and may still become final" in capsys.readouterr().err
    assert (told, ended.type is KeyboardInterrupt) == (tells, tells)


LOST = GatewayUnreachable("h:1: Remote end closed connection without response")
NOBODY = GatewayUnreachable("h:1: [Errno 111] Connection refused")
POOR = b'{"id":0,"error":{"code":-32000,"message":"no","data":{"reason":"insufficient_funds"}}}'
TAKEN = b'{"id":0,"result":{"hash":"0x12"}}'


@pytest.mark.parametrize(
    ("urls", "answers", "tells"),
    [
        (["h:1"], [LOST], True),
        (["h:1"], [b"<html>"], True),
        (["h:1"], [UNAVAILABLE] * 3, True),  # its node may have it
        (["h:1"], [NOBODY], False),
        (["h:1"], [POOR], False),
        (["h:1", "h:2"], [LOST, POOR], True),  # the one that took it, perhaps, has not refused it
        (["h:1", "h:2"], [NOBODY, POOR], False),
    ],
)
def test_who_fails_while_a_transaction_may_be_on_its_way_is_told_of_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], urls: list[str], answers: list[Any],
    tells: bool,
) -> None:  # fmt: skip
    left = iter(answers)

    def post(_client: object, _post: Post) -> bytes:
        answer = next(left)
        if isinstance(answer, Exception):
            raise answer
        return bytes(answer)

    monkeypatch.setattr(Client, "_post", post)
    monkeypatch.setattr("rpc.client.sync.time.sleep", lambda _: None)
    raw = signed()
    with pytest.raises((GatewayUnreachable, ClientError)):
        ProgressClient(*urls).send_and_wait(raw)
    assert next(left, None) is None
    hash_ = f"0x{keccak(raw).hex()}"
    told = f"The transaction {hash_} was sent and may still become final: `dekube wallet tx {hash_}` shows it.\n"
    assert capsys.readouterr().err == told * tells


@pytest.mark.parametrize(("is_own", "tells"), [(True, False), (False, True)])
def test_only_the_receipt_of_a_transaction_ends_the_doubt_about_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], is_own: bool, tells: bool
) -> None:
    raw = signed()
    receipt = b'{"id":0,"result":{"receipt":{"transaction_hash":"0x%s"}}}'

    def perform(self: Client, flow: Any) -> None:
        named = keccak(raw) if is_own else b"h" * 32
        with contextlib.suppress(GatewayUnreachable):
            give(flow, [TAKEN, receipt % named.hex().encode()])
        raise GatewayUnreachable("gone")

    monkeypatch.setattr(Client, "perform", perform)
    with pytest.raises(GatewayUnreachable, match="gone"):
        ProgressClient("h:1").wait(raw)
    assert ("may still become final" in capsys.readouterr().err) == tells


@pytest.mark.parametrize(("reason", "tells"), [("", True), ("nonce_too_low", False)])
def test_what_is_not_final_in_time_is_told_with_how_to_look_for_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], reason: str, tells: bool
) -> None:
    raw = signed()

    def perform(self: Client, flow: Any) -> None:
        give(flow, [TAKEN])
        raise TransactionRefused("x", reason=reason, hash_=keccak(raw))

    monkeypatch.setattr(Client, "perform", perform)
    with pytest.raises(TransactionRefused) as caught:
        ProgressClient("h:1").wait(raw)
    assert (caught.value.hash, isinstance(caught.value, NotFinal)) == (keccak(raw), tells)
    assert (f"`dekube wallet tx 0x{keccak(raw).hex()}` shows it" in capsys.readouterr().err) == tells


def test_who_is_interrupted_while_nothing_is_handed_in_is_told_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def perform(self: Client, flow: Any) -> None:
        next(flow)
        raise KeyboardInterrupt

    monkeypatch.setattr(Client, "perform", perform)
    with pytest.raises(KeyboardInterrupt):
        ProgressClient("h:1").chain()
    assert capsys.readouterr().err == ""
