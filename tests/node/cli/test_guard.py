from __future__ import annotations

import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from consensus.guard import Guard, GuardMissing
from consensus.guard_log import VoteDirectory
from node.cli import EXIT_NEEDS_OPERATOR, exit_status, group
from node.cli.guard import WatermarkLower, read_watermark
from node.daemon.service import run_node
from node.home.create import rewrite_options
from node.home.guards import GuardRetired, begin_guard, check_record, open_guard
from node.home.keys import save_key
from node.home.load import load_node_options
from node.home.lock import HomeInUse, live_in
from node.home.paths import Home
from state.primitives.errors import ConfigError, DekubeError, StoreError
from state.primitives.genesis import genesis_hash
from state.primitives.votes import FINALIZE, NOTARIZE, Vote
from testnet.cluster import write_home
from testnet.plan import Member, Placement, Plan, derive_key, make_plan, member_names


def _plan(seed: int) -> Plan:
    placements = {name: Placement("127.0.0.1", "127.0.0.1", 1, 2, 3) for name in member_names(2, 1)}
    return make_plan(validators=2, workers=1, seed=seed, time_ms=1, placements=placements)


def _home(root: Path, plan: Plan, name: str) -> tuple[Home, Member]:
    member = next(member for member in plan.members if member.name == name)
    write_home(root, member, plan)
    return Home(root), member


def _vote(directory: VoteDirectory, guard: Guard, kind: int, view: int) -> None:
    directory.guard.append(guard.record(Vote(kind, 1, view, view - 1, bytes(32), 0, b"\1" * 64)))
    directory.guard.sync()


def _voted(home: Home, member: Member, plan: Plan, views: range) -> None:
    assert member.vote is not None
    directory = VoteDirectory(home.guard)
    guard = directory.load_guard(genesis_hash(plan.genesis), member.vote.vote_key)
    for view in views:
        _vote(directory, guard, NOTARIZE, view)
    _vote(directory, guard, FINALIZE, views[-1])
    directory.close()


def _run(home: Home, *arguments: object) -> Result:
    verb, *rest = map(str, arguments)
    return CliRunner().invoke(
        group, ["node", "guard", verb, "--home", str(home.root), *rest], standalone_mode=False
    )  # fmt: skip


def _json(home: Home, *arguments: object) -> Any:
    done = _run(home, *arguments, "--json")
    assert done.exception is None, done.exception
    return json.loads(done.output)


def test_a_key_that_moves_votes_only_above_its_watermark(tmp_path: Path) -> None:
    plan = _plan(1)
    old, member = _home(tmp_path / "old", plan, "validator-0")
    new, _ = _home(tmp_path / "new", plan, "validator-0")
    _voted(old, member, plan, range(1, 6))
    file = tmp_path / "mark.json"
    assert (_json(old, "show")["epoch"], _json(old, "show")["view"]) == (1, 5)
    assert _json(old, "export", file)["view"] == 5
    assert file.stat().st_mode & 0o077 == 0
    _json(new, "import", file)
    assert member.vote is not None
    directory = VoteDirectory(new.guard)
    try:
        guard = directory.load_guard(genesis_hash(plan.genesis), member.vote.vote_key)
    finally:
        directory.close()
    assert guard.floor == (1, 5)


def test_a_watermark_below_what_is_here_is_refused(tmp_path: Path) -> None:
    plan = _plan(1)
    old, member = _home(tmp_path / "old", plan, "validator-0")
    new, _ = _home(tmp_path / "new", plan, "validator-0")
    _voted(old, member, plan, range(1, 4))
    _voted(new, member, plan, range(1, 10))
    file = tmp_path / "mark.json"
    _json(old, "export", file)
    before = _json(new, "show")
    assert (before["epoch"], before["view"], before["votes_kept"]) == (1, 9, 10)
    assert isinstance(_run(new, "import", file).exception, WatermarkLower)
    assert _json(new, "show") == before
    _json(old, "import", file)
    assert (_json(old, "show")["view"], _json(old, "show")["votes_kept"]) == (3, 0), (
        "its own watermark is no lower"
    )


def test_the_watermark_of_another_key_or_chain_is_refused(tmp_path: Path) -> None:
    plan, other = _plan(1), _plan(2)
    old, member = _home(tmp_path / "old", plan, "validator-0")
    _voted(old, member, plan, range(1, 3))
    file = tmp_path / "mark.json"
    _json(old, "export", file)
    for name, its_plan, said in (
        ("validator-1", plan, "another vote key"),
        ("validator-0", other, "another chain"),
    ):
        home, _ = _home(tmp_path / f"{said}", its_plan, name)
        before = (home.guard / "votes.guard").read_bytes()
        refused = _run(home, "import", file).exception
        assert isinstance(refused, ConfigError)
        assert said in str(refused)
        assert (home.guard / "votes.guard").read_bytes() == before


def test_a_running_validator_is_not_exported_but_shown(tmp_path: Path) -> None:
    plan = _plan(1)
    home, member = _home(tmp_path / "home", plan, "validator-0")
    _voted(home, member, plan, range(1, 3))
    with live_in(home):
        refused = _run(home, "export", tmp_path / "mark.json").exception
        assert isinstance(refused, HomeInUse)
        assert "Stop it first" in str(refused)
        assert _json(home, "show")["view"] == 2
    running = VoteDirectory(home.guard)
    try:  # whoever votes with it, from whatever home
        assert isinstance(_run(home, "export", tmp_path / "mark.json").exception, StoreError)
    finally:
        running.close()
    assert not (tmp_path / "mark.json").exists()


def _start(home: Home, member: Member, plan: Plan) -> None:
    """Open the guard as a starting node does."""
    assert member.vote is not None
    open_guard(
        home.guard, genesis_hash(plan.genesis), member.vote.vote_key, may_have_voted=True, tip=(1, 9),
        accepts_empty=True,
    ).close()  # fmt: skip


def test_who_has_exported_does_not_start_again_until_a_watermark_is_imported(tmp_path: Path) -> None:
    plan = _plan(1)
    home, member = _home(tmp_path / "home", plan, "validator-0")
    _voted(home, member, plan, range(1, 6))
    file, later = tmp_path / "mark.json", tmp_path / "later.json"
    assert not _json(home, "show")["retired"]
    _start(home, member, plan)
    told = _run(home, "export", file).output
    assert "no longer votes" in told and f"dekube node guard import {file}" in told
    assert _json(home, "show")["retired"]
    for _ in range(2):  # whatever the operator says
        with pytest.raises(GuardRetired, match=r"import it here again \(dekube node guard import\)") as refused:
            _start(home, member, plan)
        assert exit_status(refused.value) == EXIT_NEEDS_OPERATOR
    # It is exported once more, and a watermark of before brings nothing back.
    assert _json(home, "export", later)["view"] == 5
    file.write_text(file.read_text().replace('"view": 5', '"view": 4'))
    assert isinstance(_run(home, "import", file).exception, WatermarkLower)
    with pytest.raises(GuardRetired):
        _start(home, member, plan)
    _json(home, "import", later)
    assert not _json(home, "show")["retired"]
    _start(home, member, plan)


def test_a_start_without_the_record_is_refused_before_anything_else(tmp_path: Path) -> None:
    plan = _plan(1)
    home, member = _home(tmp_path / "home", plan, "validator-0")
    _voted(home, member, plan, range(1, 6))
    check_record(home.guard, accepts_empty=False)
    _json(home, "export", tmp_path / "mark.json")
    for accepts in (False, True):
        with pytest.raises(GuardRetired):
            check_record(home.guard, accepts_empty=accepts)
    shutil.rmtree(home.guard)
    check_record(home.guard, accepts_empty=True)
    began: list[object] = []
    with pytest.MonkeyPatch.context() as patch, pytest.raises(GuardMissing):
        patch.setattr("node.daemon.service.Node", lambda *_, **__: began.append("a node"))
        run_node(home, lambda: "", accepts_empty_guard=False)
    assert began == []


def test_an_export_that_cannot_be_written_leaves_the_validator_as_it_was(tmp_path: Path) -> None:
    plan = _plan(1)
    home, member = _home(tmp_path / "home", plan, "validator-0")
    _voted(home, member, plan, range(1, 3))
    (tmp_path / "there").touch()
    for file in (tmp_path / "there", tmp_path / "there" / "mark.json"):  # the second is below a file
        assert isinstance(_run(home, "export", file).exception, ConfigError | OSError)
        assert not _json(home, "show")["retired"]
    _start(home, member, plan)


def test_a_home_without_a_guard_says_so(tmp_path: Path) -> None:
    plan = _plan(1)
    validator, _ = _home(tmp_path / "validator", plan, "validator-0")
    worker, _ = _home(tmp_path / "worker", plan, "worker-0")
    shutil.rmtree(validator.guard)
    for verb in (("show",), ("export", tmp_path / "mark.json")):
        assert isinstance(_run(validator, *verb).exception, GuardMissing)
        assert isinstance(_run(worker, *verb).exception, ConfigError)
    assert not validator.guard.exists()


GOOD = {"version": 1, "genesis_hash": "0x" + "11" * 32, "vote_key": "0x" + "22" * 32, "epoch": 1, "view": 7}


@pytest.mark.parametrize(
    "document",
    [
        [], {}, "x", GOOD | {"version": 2}, GOOD | {"view": -1}, GOOD | {"view": 1 << 48}, GOOD | {"epoch": True},
        GOOD | {"view": "7"}, GOOD | {"vote_key": "0x22"}, GOOD | {"genesis_hash": "zz" * 32}, GOOD | {"more": 1},
        {key: value for key, value in GOOD.items() if key != "view"},
    ],
)  # fmt: skip
def test_a_file_that_is_no_watermark_is_refused(tmp_path: Path, document: Any) -> None:
    file = tmp_path / "mark.json"
    file.write_text(json.dumps(GOOD))
    assert read_watermark(file).view == 7
    file.write_text(json.dumps(document))
    fields = document if isinstance(document, dict) else {}
    changed = [name for name in GOOD if repr(fields.get(name)) != repr(GOOD[name])]
    named = changed[0] if len(changed) == 1 else "version, genesis_hash, vote_key, epoch, view"
    with pytest.raises(ConfigError, match=f"mark.json: .*{named}"):
        read_watermark(file)


def test_bytes_that_are_no_json_are_refused(tmp_path: Path) -> None:
    for data in (b"", b"\xff\xfe", b"[" * 4000, b" " * 5000):
        (tmp_path / "mark.json").write_bytes(data)
        with pytest.raises(DekubeError):
            read_watermark(tmp_path / "mark.json")


def test_a_validator_between_two_keys_moves_with_the_watermark_of_each(tmp_path: Path) -> None:
    plan = _plan(1)
    chain = genesis_hash(plan.genesis)
    old, member = _home(tmp_path / "old", plan, "validator-0")
    _voted(old, member, plan, range(1, 6))
    assert member.vote is not None
    following = derive_key(1, "following")
    options = load_node_options(old)
    save_key(old.path("keys/vote-next.json"), following, plan.passphrase, scrypt_n=2)
    begin_guard(old.own_guard_of(following.vote_key), chain, following.vote_key)
    rewrite_options(old, replace(options, keys=replace(options.keys, vote_next="keys/vote-next.json")))
    directory = VoteDirectory(old.guard_of(following.vote_key))
    _vote(directory, directory.load_guard(chain, following.vote_key), NOTARIZE, 9)
    directory.close()
    shown = _json(old, "show")
    assert (shown["view"], [other["view"] for other in shown["others"]]) == (5, [9])

    assert "choose a key with --vote-key" in str(_run(old, "export", tmp_path / "which.json").exception)
    files = {}
    for key in (member.vote, following):
        files[key.vote_key] = tmp_path / f"{key.vote_key[:4].hex()}.json"
        _json(old, "export", "--vote-key", "0x" + key.vote_key.hex(), files[key.vote_key])

    new = Home(tmp_path / "new")
    shutil.copytree(old.root, new.root, ignore=shutil.ignore_patterns("data", "run"))
    (new.root / "data").mkdir()
    for vote_key in (following.vote_key, member.vote.vote_key):  # in any order
        _json(new, "import", files[vote_key])
    shown = _json(new, "show")
    assert (shown["view"], [other["view"] for other in shown["others"]]) == (5, [9])
    assert shown["vote_key"] == "0x" + member.vote.vote_key.hex()


def test_an_export_whose_report_cannot_be_printed_is_repeated(tmp_path: Path) -> None:
    """The key no longer votes, and its file is there: the next try says so, and writes over no other file."""
    plan = _plan(1)
    home, member = _home(tmp_path / "home", plan, "validator-0")
    _voted(home, member, plan, range(1, 4))
    file, other = tmp_path / "mark.json", tmp_path / "other.json"
    line = [sys.executable, "-c", "from node.cli import main; main()", "node", "guard", "export"]
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [*line, "--home", home.root, file], stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert done.returncode == 1 and "standard output" in done.stderr
    before = file.read_bytes()
    assert _json(home, "export", file)["view"] == 3
    assert file.read_bytes() == before
    other.write_text("mine")
    assert isinstance(_run(home, "export", other).exception, ConfigError)
    assert other.read_text() == "mine"
