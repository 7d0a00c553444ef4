"""What commands tell people: amounts in DKB, and next commands that can be copied as they stand."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import click
import pytest
from click.testing import CliRunner

from billing.errors import PaymentMissing
from node.chain.mempool import ReplacementUnderpriced
from node.cli import _text, group
from node.cli.commands import next_command
from node.cli.options import home_option
from node.cli.session import reading_options
from node.cli.wallet.views import AMOUNT_AT, _in_coins
from node.home.paths import Home
from rpc.client.results import Transaction
from rpc.ethereum.contracts import rules_of
from state.primitives.errors import ConfigError, DekubeError
from state.transition.errors import FeeCapTooLow, InsufficientFunds, TipAboveFeeCap

DKB, GWEI = 10**18, 10**9


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (
            InsufficientFunds(balance=DKB, needed=3 * DKB),
            "insufficient funds for gas * price + value: balance 1 DKB, tx cost 3 DKB, overshot 2 DKB",
        ),
        (PaymentMissing(due=DKB // 2, got=0), "0.5 DKB is due, 0 DKB was offered"),
        (
            FeeCapTooLow(fee_cap=GWEI, base_fee=2 * GWEI),
            "max fee per gas less than block base fee: maxFeePerGas 1 gwei, baseFee 2 gwei",
        ),
        (
            TipAboveFeeCap(tip=2, fee_cap=1),
            "max priority fee per gas higher than max fee per gas: maxPriorityFeePerGas 0.000000002 gwei, "
            "maxFeePerGas 0.000000001 gwei",
        ),
        (
            ReplacementUnderpriced(needed_fee=3 * GWEI, needed_tip=GWEI),
            "replacement transaction underpriced: maxFeePerGas 3 gwei and maxPriorityFeePerGas 1 gwei needed",
        ),
        (
            ConfigError(f"a tip of {2 * GWEI} is more than the fee that it is part of, {GWEI}"),
            "a tip of 2 gwei is more than the fee that it is part of, 1 gwei",
        ),
        (ConfigError("roles: 3 are too many"), "roles: 3 are too many"),
    ],
)
def test_errors_tell_people_amounts_in_coins(error: DekubeError, said: str) -> None:
    assert _text(error) == said
    assert not re.search(r"[0-9]{12,}", said)


def test_amounts_in_payloads_are_shown_in_coins() -> None:
    kinds = {rule.name for rule in rules_of(()).values()}
    assert set(AMOUNT_AT) < kinds, "every kind that is named there is one"
    for kind, place in AMOUNT_AT.items():
        payload = ["0x12", "0x34"]
        payload.insert(place, str(3 * DKB // 2))
        document = {"kind_name": kind, "payload": payload, "max_fee_per_gas": str(2 * GWEI), "block": None}
        found = SimpleNamespace(document=document, kind_name=kind, kind=2, block=None)
        shown = _in_coins(cast(Transaction, found))
        assert (shown["amount"], shown["payload"]) == ("1.5 DKB", ["0x12", "0x34"])
        assert shown["max_fee_per_gas"] == "2 gwei"


def told(decorate: Any, *line: str) -> str:
    def run(**_: Any) -> None:
        click.echo(next_command("task", "watch", "0x12"))

    command = click.command()(decorate(run))
    return CliRunner().invoke(command, list(line), standalone_mode=False).output.strip()


def test_a_next_command_asks_the_same_node_and_survives_a_space_in_the_path(tmp_path: Path) -> None:
    home = str(tmp_path / "my home")
    line = told(reading_options, "--home", home, "--rpc", "http://a:1", "--rpc", "http://b:2")
    expected = ["dekube", "task", "watch", "0x12", "--rpc", "http://a:1", "--rpc", "http://b:2", "--home", home]
    assert sorted(shlex.split(line)) == sorted(expected)
    assert shlex.split(told(home_option, "--home", home))[-2:] == ["--home", str(Home(Path(home)).root)]
    assert told(reading_options) == "dekube task watch 0x12", "what was not given is not repeated"


def test_a_next_command_outside_of_a_command_is_plain() -> None:
    assert next_command("wallet", "tx", "0x12") == "dekube wallet tx 0x12"


PRINTED = re.compile(r"dekube [a-z][^`\"\n]*\{[^}]*\b(home|root|file|path|folder|place|save|out)\b[^}]*\}")


def test_no_printed_command_has_a_path_that_is_not_quoted() -> None:
    """Each goes through ``as_command``, ``next_command`` or ``shlex.quote``."""
    root = Path(__file__).parents[3]
    bad = [
        f"{file.relative_to(root)}: {found[0]}"
        for package in ("node", "testnet", "rpc", "relay")
        for file in sorted((root / package).rglob("*.py"))
        for found in PRINTED.finditer(file.read_text())
        if "shlex.quote" not in found[0]
    ]
    assert not bad


TASK = "0x" + "ab" * 32


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("wallet new a%b", r"'a%b': the name of an account has 1 to 64 letters"),
        ("wallet address {}/json", r"/json: version 3 expected"),
        ("wallet import x --keystore {}/csv", r"/csv: not valid JSON \(line 1\); a keystore file"),
        ("wallet sign m --key {}/json", r"/json: version 3 expected"),
        ("worker endorse 0x12 --key {}/json", "'0x12': not an address"),
        ("relay account 0x12", "'0x12': not an address"),
        ("task quote --widths 64,x,10", "for --widths: '64,x,10': not numbers separated by commas"),
        ("task quote --widths 64,-1,10", "for --widths: '64,-1,10': 1 to 8 layers of 1 to 4096 units"),
        ("task quote --max-price 0", "for --max-price: the price must be above 0 DKB and at most [0-9.]+ DKB"),
        ("task quote --max-price 99999999999999999999", "for --max-price: the price must be above 0 DKB"),
        ("task quote --steps 99999999999999", "'--steps': 99999999999999 is not in the range"),
        (f"task demand {TASK} 0", "for AMOUNT: the amount must be above zero"),
        ("tx unstake 0", "for AMOUNT: the amount must be above zero"),
        ("tx stake 5 --possession {}/csv --key {}/json", r"/csv: not valid JSON \(line 1"),
        ("worker register", r"config\.toml: no such file; `dekube init` makes one"),
        ("worker update", r"config\.toml: no such file; `dekube init` makes one"),
        ("worker retire", r"config\.toml: no such file; `dekube init` makes one"),
        ("faucet run --listen x", "for --listen: 'x': host:port expected"),
        ("faucet run --amount 0", "for --amount: the amount of a grant must be above zero"),
    ],
)
def test_a_mistake_names_its_option_or_file_before_anybody_is_asked(line: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "json").write_text("{}")
    (tmp_path / "csv").write_text("a,b\n1,2\n")
    home = tmp_path / "home"
    words = [*(word.replace("{}", str(tmp_path)) for word in line.split()), "--home", str(home)]
    if words[0] in ("task", "tx", "worker", "relay", "faucet"):
        words += ["--rpc", "http://127.0.0.1:1"]
    done = CliRunner().invoke(group, words, standalone_mode=False)
    error = done.exception
    told = error.format_message() if isinstance(error, click.ClickException) else str(error)
    assert isinstance(error, click.ClickException | DekubeError), error
    assert re.search(said, told), told
    assert not home.exists()
