"""``dekube relay`` of who puts coins down for carriage: what would cost a fee for nothing is not sent."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import click
import pytest
from click.testing import CliRunner, Result

from node.cli import group
from node.cli.session import Session
from rpc.client import Client, TransactionRefused
from state.primitives.keys import SecretKey
from state.primitives.transactions import decode_transaction, sign_transaction
from tasks.ledger.carriage import FUND_CARRIAGE, WITHDRAW_CARRIAGE

KEY = SecretKey(b"k" * 32)
COIN = 10**18
RELEASE_MS = 1_800_000_000_000


class Paying:
    """A client of a gateway whose account has put coins down, and what is sent to it."""

    def __init__(self, *, deposit: int, withdrawing: int = 0) -> None:
        self.deposit, self.withdrawing = deposit * COIN, withdrawing * COIN
        self.sent: list[tuple[int, list[Any]]] = []

    def __enter__(self) -> Paying:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def carriage(self, address: bytes) -> Any:
        assert address == KEY.address
        release_ms = RELEASE_MS if self.sent and self.sent[-1][1] != [0] else None
        return SimpleNamespace(deposit=self.deposit, withdrawing=self.withdrawing, release_ms=release_ms)

    def estimate(self, _sender: bytes, _kind: int, _payload: list[Any]) -> Any:
        return SimpleNamespace(succeeded=True, reason=None)

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
        self.sent.append((signed.kind, list(signed.payload)))
        document = {"transaction_hash": "0x12", "block": {"height": 7}, "kind_name": "x", "reason": None}
        return SimpleNamespace(
            transaction_hash="0x12", block=SimpleNamespace(height=7), kind_name="x", succeeded=True, reason=None,
            fee=1, gas_used=2, document=document,
        )  # fmt: skip


def relay(monkeypatch: pytest.MonkeyPatch, client: Paying, home: Path, *arguments: object) -> Result:
    monkeypatch.setattr(Session, "client", lambda _session: cast(Client, client))
    monkeypatch.setattr(Session, "key", lambda _session, name=None: KEY)
    command = ["relay", *map(str, arguments), "--home", str(home)]
    return CliRunner().invoke(group, command, standalone_mode=False)


@pytest.mark.parametrize(
    ("deposit", "withdrawing", "amount", "told"),
    [
        (0, 0, 0, "no withdrawal is pending, so there is nothing to cancel"),
        (2, 0, 0, "no withdrawal is pending, so there is nothing to cancel"),
        (0, 0, 5, "the deposit is 0 DKB; withdraw at most this amount"),
        (2, 1, 3, "the deposit is 2 DKB; withdraw at most this amount"),
    ],
)
def test_a_withdrawal_of_nothing_costs_no_fee(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, deposit: int, withdrawing: int, amount: int, told: str
) -> None:
    client = Paying(deposit=deposit, withdrawing=withdrawing)
    done = relay(monkeypatch, client, tmp_path, "withdraw", amount)
    assert isinstance(done.exception, TransactionRefused)
    assert str(done.exception) == told
    assert client.sent == []


def test_what_is_withdrawn_says_when_it_returns_and_can_be_taken_back(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    client = Paying(deposit=2, withdrawing=1)
    done = relay(monkeypatch, client, tmp_path, "withdraw", 2)
    assert done.exception is None
    assert "on the account again from 2027-01-15 08:00 UTC on" in done.output
    done = relay(monkeypatch, client, tmp_path, "withdraw", 0)
    assert done.exception is None
    assert "again" not in done.output
    assert client.sent == [(WITHDRAW_CARRIAGE, [2 * COIN]), (WITHDRAW_CARRIAGE, [0])]


def test_a_deposit_of_nothing_is_no_deposit(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    client = Paying(deposit=0)
    done = relay(monkeypatch, client, tmp_path, "deposit", 0)
    assert isinstance(done.exception, click.BadParameter)
    assert relay(monkeypatch, client, tmp_path, "deposit", 1).exception is None
    assert client.sent == [(FUND_CARRIAGE, [COIN])]
