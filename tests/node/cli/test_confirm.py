"""What moves money: shown before it leaves, asked for at a terminal, in every command alike."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import click
import pytest
from click.testing import CliRunner

from node.cli import group
from node.cli.confirm import WHY, send, why_refused
from node.cli.wallet.payments import in_coins
from rpc.client import Client, ClientError, TransactionRefused
from rpc.ethereum.contracts import CONTRACTS, abi_json
from state.primitives.abi import Parameter
from state.primitives.keys import SecretKey
from state.primitives.transactions import decode_transaction, sign_transaction
from tests.node.cli.test_option_conflicts import LEAVES, SIGNS

KEY = SecretKey(b"k" * 32)
NOT_ASKED = {("api", "run"), ("blob", "put"), ("faucet", "run"), ("worker", "endorse"), ("task", "result")}
"""A blob and an endorsement cost nothing, a faucet is there to give, and a server of jobs has a budget. Of a
result --yes overwrites the file too."""
MONEY = (SIGNS - NOT_ASKED) | {("relay", "register"), ("relay", "settle")}
"""Commands that hand in a transaction."""


class Chain:
    """A gateway that notes what is done, in order."""

    def __init__(self, refusal: str = "", taken: Sequence[int] = (3,)) -> None:
        """``taken``: the next nonces of the account, as they are told one after the other."""
        self.refusal = refusal
        self.did: list[str] = []
        self.nonces = list(taken)

    def estimate(self, _sender: bytes, _kind: int, _payload: list[Any]) -> Any:
        self.did.append("estimate")
        return SimpleNamespace(succeeded=not self.refusal, reason=self.refusal or None)

    def sign(
        self, key: SecretKey, kind: int, payload: list[Any], *, max_fee_per_gas: int = 2 * 10**9,
        max_priority_fee_per_gas: int = 5,
    ) -> bytes:  # fmt: skip
        self.did.append("sign")
        return sign_transaction(
            key, chain_id=7, nonce=self.nonces[0], kind=kind, payload=payload, gas_limit=21_000,
            max_fee_per_gas=max_fee_per_gas, max_priority_fee_per_gas=max_priority_fee_per_gas,
        )  # fmt: skip

    def chain(self) -> Any:
        return SimpleNamespace(name="test", chain_id=7)

    def account(self, _address: bytes) -> Any:
        return SimpleNamespace(pending_nonce=self.nonces[0])

    def wait(self, raw: bytes) -> str:
        signed = decode_transaction(raw)
        if len(self.nonces) > 1:  # the node of the account was faster
            self.nonces.pop(0)
            raise ClientError({"message": "x", "data": {"reason": "replacement_underpriced"}})
        assert (signed.max_fee_per_gas, signed.max_priority_fee_per_gas) == (2 * 10**9, 5), "as it was shown"
        self.did.append(f"wait {signed.nonce}")
        return "receipt"


def run(chain: Chain, *, yes: bool = False) -> Any:
    what = {"does": "stakes", "amount": "5 DKB"}
    prepare = lambda: chain.did.append("prepare")  # noqa: E731
    return send(cast(Client, chain), KEY, 2, [5], what, yes=yes, prepare=prepare)


@pytest.mark.parametrize("path", sorted(MONEY), ids=" ".join)
def test_every_command_that_moves_money_has_the_same_way_round_the_question(path: tuple[str, ...]) -> None:
    [option] = (option for option in LEAVES[path].params if option.name == "yes")
    assert isinstance(option, click.Option)
    assert (set(option.opts), option.help) == ({"--yes", "-y"}, "Send without asking for confirmation.")


def test_nothing_leaves_before_somebody_at_a_terminal_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("node.cli.options.is_at_terminal", lambda: True)

    def refuse(question: str, **_: Any) -> None:
        said = capsys.readouterr()
        assert question == "Send it?" and not said.out
        shown = " ".join(said.err.split())
        assert "does stakes amount 5 DKB fee at most 0.000042 DKB (21000 gas, 2 gwei each) nonce 3" in shown
        raise click.Abort

    monkeypatch.setattr("click.confirm", refuse)
    chain = Chain()
    with pytest.raises(click.Abort):
        run(chain)
    assert chain.did == ["estimate", "sign"]
    assert run(chain, yes=True) == "receipt"
    assert chain.did[2:] == ["estimate", "sign", "prepare", "wait 3"], (
        "what has to be there first is made after the answer"
    )


def test_what_the_account_signed_meanwhile_costs_another_signature_and_not_the_command(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("node.cli.options.is_at_terminal", lambda: True)
    chain = Chain()
    monkeypatch.setattr("click.confirm", lambda *_, **__: chain.nonces.__setitem__(0, 9))
    assert run(chain) == "receipt"
    assert chain.did == ["estimate", "sign", "prepare", "sign", "wait 9"], "while somebody thought about it"
    chain = Chain(taken=(3, 4, 6))
    assert run(chain, yes=True) == "receipt"
    assert chain.did == ["estimate", "sign", "prepare", "sign", "sign", "wait 6"], "between signature and hand-in"
    with pytest.raises(ClientError):
        run(Chain(taken=range(9)), yes=True)


def test_scripts_are_told_and_not_asked(capsys: pytest.CaptureFixture[str]) -> None:
    chain = Chain()
    assert run(chain) == "receipt"
    said = capsys.readouterr()
    assert "To be signed" in said.err and "Waiting until it is final" in said.err and not said.out
    assert chain.did[-2:] == ["prepare", "wait 3"]


@pytest.mark.parametrize("reason", [*WHY, "another_word"])
def test_what_the_chain_would_refuse_is_told_in_words_before_anything_is_said_or_signed(
    reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    chain = Chain(reason)
    with pytest.raises(TransactionRefused, match=r"nothing was sent$") as caught:
        run(chain)
    assert reason in str(caught.value) and caught.value.reason == reason
    assert why_refused(reason).endswith(f"({reason})") or reason == "another_word"
    assert chain.did == ["estimate"] and not capsys.readouterr().err


def test_amounts_of_contracts_are_shown_in_coins() -> None:
    parameters = (Parameter("amount", "uint256"), Parameter("slots", "uint32"))
    shown = in_coins(parameters, {"amount": "1500000000000000000", "slots": "3"})
    assert shown == {"amount": "1.5 DKB (1500000000000000000)", "slots": "3"}
    of_256_bits = {
        parameter["name"]
        for address in CONTRACTS
        for item in abi_json(address, (), {})
        for parameter in (*item.get("inputs", ()), *item.get("outputs", ()))
        if item["type"] == "function" and parameter["type"] == "uint256"
    }
    amounts = "amount bond budget burned deposit deposited held leaving paid pricePerTeraUnit refunded"
    amounts += " until withdrawing withheld"
    assert " ".join(sorted(of_256_bits)) == " ".join(sorted(amounts.split())), "no other number has 256 bits"


class Granting:
    """A faucet, and a gateway whose chain has the grant two blocks later."""

    def __init__(self, *urls: str) -> None:
        self.urls = urls
        self.height = 5

    def __enter__(self) -> Granting:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def faucet(self, _url: str, _who: bytes) -> bytes:
        return b"h" * 32

    def head(self) -> Any:
        return SimpleNamespace(at=SimpleNamespace(height=self.height))

    def receipt(self, hash_: bytes) -> Any:
        assert hash_ == b"h" * 32
        return SimpleNamespace(block=SimpleNamespace(height=7)) if self.height >= 7 else None

    def subscribe(self, _kind: str, *, from_height: int, timeout_s: float) -> Any:
        assert (from_height, timeout_s) == (6, 60)
        for self.height in range(from_height, 9):
            yield self.height

    def balance(self, _who: bytes) -> int:
        return 10**19 if self.height >= 7 else 0


def test_a_grant_is_on_the_account_when_the_command_returns_or_it_says_that_it_is_not(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("node.cli.wallet.payments.ProgressClient", Granting)
    command = ["wallet", "faucet", "0x" + "ab" * 20, "--from", "http://faucet", "--home", str(tmp_path)]
    told = CliRunner().invoke(group, [*command, "--rpc", "http://gateway"], standalone_mode=False)
    assert "10 DKB" in told.stdout and "7" in told.stdout and "not on the account" not in told.stdout
    told = CliRunner().invoke(group, [*command, "--rpc", "http://gateway", "--json"], standalone_mode=False)
    assert json.loads(told.stdout)["balance"] == str(10**19)
    told = CliRunner().invoke(group, command, standalone_mode=False)
    assert "The coins are not on the account yet" in told.stdout and "DKB" not in told.stdout
