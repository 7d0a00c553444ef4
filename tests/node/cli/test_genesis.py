"""``dekube genesis`` and founders' homes: nothing is overwritten, nobody begins a chain that it did not sign."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from consensus.guard_log import VoteDirectory
from node.cli import group
from node.home.create import create_founder
from node.home.keys import load_key, read_passphrase
from node.home.load import load_genesis
from node.home.paths import Home
from state.primitives.address import format_address
from state.primitives.errors import ConfigError
from state.primitives.genesis import genesis_hash


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    monkeypatch.setattr("node.cli.genesis.create_founder", partial(create_founder, scrypt_n=16))
    monkeypatch.chdir(tmp_path)

    def run(text: str) -> Any:
        done = CliRunner().invoke(group, [*text.split(), "--json"], standalone_mode=False, catch_exceptions=False)
        return json.loads(done.stdout)

    return run


START = (datetime.now(UTC) + timedelta(days=70)).replace(hour=12, minute=0, second=0, microsecond=0)


def draft(run: Callable[..., Any]) -> None:
    run(
        f"genesis draft --name mine --chain-id 4242 --start {START:%Y-%m-%dT%H:%MZ} --out draft.json "
        "--parameter chain.epoch_blocks=600 --allocation 0x00000000000000000000000000000000000000aa=5"
    )


def test_founders_make_one_genesis_and_go_on_in_their_homes(run: Callable[..., Any], tmp_path: Path) -> None:
    draft(run)
    founders = [run(f"genesis found --home h{n} --draft draft.json --stake 2000 --unattended") for n in range(3)]
    one = run("genesis seal draft.json h0/founder.json h1/founder.json h2/founder.json --out one.json")
    other = run("genesis seal draft.json h2/founder.json h0/founder.json h1/founder.json --out other.json")
    assert one["hash"] == other["hash"]
    assert Path("one.json").read_bytes() == Path("other.json").read_bytes()
    assert {founder["address"] for founder in one["founders"]} == {founder["address"] for founder in founders}
    assert (one["allocated"], one["staked"]) == (str(35 * 10**18), str(6_000 * 10**18))
    assert one["start"].startswith(f"{START:%Y-%m-%d}T12:00:00")

    keys = {file: (tmp_path / "h1/keys" / file).read_bytes() for file in ("account.json", "vote.json")}
    made = run("init --home h1 --genesis one.json --role validator")
    assert made["address"] == founders[1]["address"]
    assert made["vote_key"] == founders[1]["vote_key"]
    assert keys == {file: (tmp_path / "h1/keys" / file).read_bytes() for file in keys}
    home = Home(tmp_path / "h1")
    genesis = load_genesis(home.genesis)
    assert "0x" + genesis_hash(genesis).hex() == one["hash"]
    passphrase = read_passphrase(home.path("keys/passphrase"))
    assert format_address(load_key(home.path("keys/account.json"), passphrase).address) == made["address"]
    directory = VoteDirectory(home.guard)
    directory.load_guard(genesis_hash(genesis), bytes.fromhex(made["vote_key"][2:]))
    directory.close()
    with pytest.raises(ConfigError, match="already the home of a node"):
        run("init --home h1 --genesis one.json --role validator --unattended")


def test_nobody_begins_a_chain_that_does_not_have_it_as_it_signed(run: Callable[..., Any], tmp_path: Path) -> None:
    draft(run)
    for n in range(2):
        run(f"genesis found --home h{n} --draft draft.json --stake 2000 --unattended")
    run("genesis seal draft.json h0/founder.json --out without.json")
    with pytest.raises(ConfigError, match="the genesis lacks the founder"):
        run("init --home h1 --genesis without.json --role validator")
    sealed = json.loads(Path("without.json").read_text())
    sealed["validators"][0]["stake"] = str(3_000 * 10**18)
    Path("changed.json").write_text(json.dumps(sealed))
    with pytest.raises(ConfigError, match="the genesis lacks the founder"):
        run("init --home h0 --genesis changed.json --role validator")
    with pytest.raises(ConfigError, match="--role validator"):
        run("init --home h0 --genesis without.json --role verify")
    assert not (tmp_path / "h0/config.toml").exists()


def test_no_file_and_no_key_is_overwritten(run: Callable[..., Any]) -> None:
    draft(run)
    with pytest.raises(ConfigError, match="exists already"):
        draft(run)
    run("genesis found --home h --draft draft.json --stake 2000 --unattended")
    before = Path("h/keys/vote.json").read_bytes()
    with pytest.raises(ConfigError, match="founder's keys are here"):
        run("genesis found --home h --draft draft.json --stake 2000 --unattended")
    assert Path("h/keys/vote.json").read_bytes() == before
    with pytest.raises(ConfigError, match="exists already"):
        run("genesis seal draft.json h/founder.json --out draft.json")
    assert run("genesis show draft.json --draft")["founders"] == []


@pytest.mark.parametrize("command", ["genesis show draft.json", "init --home h --genesis draft.json --unattended"])
def test_a_draft_that_is_taken_for_a_genesis_is_told_as_one(run: Callable[..., Any], command: str) -> None:
    draft(run)
    with pytest.raises(ConfigError, match=r"draft\.json: the draft of a genesis, without founders yet"):
        run(command)
    assert not Path("h").exists()


OWNER = "0x00000000000000000000000000000000000000AA"
DRAFT = ["genesis", "draft", "--chain-id", "4242", "--out", "draft.json", "--name"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([""], "name: 1 to 64 characters expected, not 0"),
        ([" "], "name: 1 to 64 characters"),
        (["a\nb"], "has characters that cannot be printed"),
        (["\udcff"], r"'\udcff' has characters that cannot be printed"),
        (["x" * 65], "not 65"),
        (["x", "--start", "1970-01-01T00:00Z"], "days ago; the start must be within one year"),
        (["x", "--start", "9999-12-31T23:59Z"], "days from now; the start must be within one year"),
        (["x", "--start", "2027-01-31T12:00"], "has no time zone"),
        (["x", "--start", "soon"], "soon is not a time"),
        (["x", "--parameter", "chain.validators_max=0"], "chain.validators_max is 0, but must be from 1 to"),
        (["x", "--parameter", "chain.epoch_block=5"], "did you mean chain.epoch_blocks"),
        (["x", "--parameter", "chain.epoch_blocks"], "not NAME=NUMBER"),
        (["x", "--parameter", "chain.epoch_blocks=" + "9" * 41], "number too large: 41 digits, at most 40"),
        (["x", "--parameter", "chain.epoch_blocks=" + "9" * 40], f"is {'9' * 40}, but must be from 1 to 429"),
        (["x", *["--parameter", "chain.epoch_blocks=5"] * 2], "chain.epoch_blocks is given twice"),
        (["x", "--allocation", f"{OWNER}=1", "--allocation", f"{OWNER.lower()}=2"], f"{OWNER} is given twice"),
        (["x", "--allocation", "me=1"], "me=1: not an address"),
        (["x", "--allocation", f"{OWNER}=-1"], "not an amount"),
        (["x", "--allocation", f"{OWNER}=" + "9" * 24], "DKB in all; there may never be more than 170141183460"),
    ],
)  # fmt: skip
def test_what_founds_no_chain_is_refused_before_a_file_is_written(
    arguments: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(group, [*DRAFT, *arguments], standalone_mode=False)
    assert isinstance(done.exception, click.UsageError)
    assert said in done.exception.format_message()
    assert not Path("draft.json").exists()


def test_a_chain_may_start_now(run: Callable[..., Any]) -> None:
    started = run("genesis draft --name mine --chain-id 4242 --start now --out draft.json")["start"]
    assert abs(datetime.fromisoformat(started).timestamp() - time.time()) < 60


def test_a_founder_that_stands_there_twice_is_named(run: Callable[..., Any]) -> None:
    draft(run)
    who = run("genesis found --home h --draft draft.json --stake 2000 --unattended")["address"]
    with pytest.raises(ConfigError, match=f"founder {who}: two of the files are its"):
        run("genesis seal draft.json h/founder.json h/founder.json --out genesis.json")


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"\xff\xfe", "not UTF-8 text"),
        (b"", r"not valid JSON \(line 1, column 1"),
        (b'{"format":\n,}', r"not valid JSON \(line 2, column 1"),
        (b"{}", '"format": "dekube-'),
    ],
)
@pytest.mark.parametrize(
    "command", ["genesis show FILE", "genesis seal FILE FILE --out x", "init --home h --genesis FILE"]
)
def test_a_file_that_is_none_is_told_with_its_name_and_line(
    run: Callable[..., Any], data: bytes, said: str, command: str
) -> None:
    draft(run)
    Path("x y").write_bytes(data)
    words = ["x y" if word == "FILE" else word for word in command.split()]
    done = CliRunner().invoke(group, words, standalone_mode=False)
    assert isinstance(done.exception, ConfigError)
    assert re.search(f"^x y: .*{said}", str(done.exception))


def test_a_founder_s_file_that_is_none_is_told_with_its_name_and_line(run: Callable[..., Any]) -> None:
    draft(run)
    for data, said in (
        ("{", r"not valid JSON \(line 1"),
        ('{"format": "dekube-founder/1"}', "founder: .*: missing"),
    ):
        Path("f.json").write_text(data)
        with pytest.raises(ConfigError, match=rf"f\.json: {said}"):
            run("genesis seal draft.json f.json --out genesis.json")
