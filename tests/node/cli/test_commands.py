"""What the commands of tasks, workers and the status say without a network."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from node.cli import group, main
from node.cli.arguments import ADDRESS, TASK
from node.cli.status import (
    SILENT_MAX,
    _clocks,
    _health,
    _height,
    _slashed,
    _upgrade,
    is_following,
    is_slashed,
)
from node.home.paths import Home
from testnet.cluster import write_home
from testnet.plan import Placement, make_plan, member_names

TASK_ID = "0x" + "ab" * 32


@pytest.fixture
def home(tmp_path: Path) -> Home:
    placements = {name: Placement("127.0.0.1", "127.0.0.1", 1, 2, 3) for name in member_names(1, 1)}
    plan = make_plan(validators=1, workers=1, seed=1, time_ms=1, placements=placements)
    write_home(tmp_path / "home", next(member for member in plan.members if member.role == "worker"), plan)
    return Home(tmp_path / "home")


def run(*arguments: object) -> Result:
    return CliRunner().invoke(group, [str(argument) for argument in arguments], standalone_mode=False)


def walk(command: click.Command, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    yield path, command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            assert inner is not None
            yield from walk(inner, (*path, name))


COMMANDS = dict(walk(group, ()))


@pytest.mark.parametrize("path", [path for path in COMMANDS if path[:1] in (("task",), ("worker",), ("status",))])
def test_each_command_has_a_help_that_says_what_it_does_and_how_to_get_json(path: tuple[str, ...]) -> None:
    done = CliRunner().invoke(group, [*path, "--help"])
    assert done.exit_code == 0
    assert COMMANDS[path].help
    if not isinstance(COMMANDS[path], click.Group):
        assert "--json" in done.output
        for parameter in COMMANDS[path].params:
            if isinstance(parameter, click.Option):
                assert parameter.help, f"{path}: {parameter.name}"


@pytest.mark.parametrize("path", [path for path in COMMANDS if isinstance(COMMANDS[path], click.Group)])
def test_a_list_of_commands_says_whole_sentences(path: tuple[str, ...]) -> None:
    told = CliRunner().invoke(group, [*path, "--help"]).output
    listed = told[told.index("Commands:") :]
    assert "..." not in listed


def test_no_option_takes_what_is_no_number() -> None:
    """A float of click reads "nan", in a range of its own too, and no clock takes that: there is SECONDS."""
    for path, command in COMMANDS.items():
        for parameter in command.params:
            assert not isinstance(parameter.type, click.types.FloatParamType), (path, parameter.name)


def test_the_verbs_are_those_of_the_documents() -> None:
    verbs = {name: {path[1] for path in COMMANDS if path[0:1] == (name,) and len(path) == 2} for name in
             ("task", "worker", "node", "db")}  # fmt: skip
    assert verbs["task"] >= {
        *("create", "quote", "list", "show", "watch", "cancel", "top-up", "resume", "demand", "result", "bill"),
        "proof",
    }  # fmt: skip
    assert verbs["worker"] >= {"list", "show", "register", "update", "retire", "earnings", "duties", "jobs"}
    assert verbs["node"] >= {"run", "guard"}
    assert verbs["db"] >= {"inspect", "verify", "rollback", "prune", "repair", "sync"}


@pytest.mark.parametrize("text", ["", "0x", "0x12", "g" * 64, "0x" + "ab" * 33, "ab" * 31])
def test_what_is_no_task_id_is_refused(text: str) -> None:
    with pytest.raises(click.BadParameter):
        TASK.convert(text, None, None)


def test_a_task_id_is_taken_in_any_case_with_or_without_its_prefix() -> None:
    for text in ("AB" * 32, "0x" + "ab" * 32):
        assert TASK.convert(text, None, None) == bytes.fromhex(TASK_ID[2:])


def test_an_address_with_a_wrong_checksum_is_refused() -> None:
    good = "0x19855d03FB6de1Af856B89e8bd0bb0A6cD0485fF"
    assert ADDRESS.convert(good, None, None) == good.lower()
    with pytest.raises(click.BadParameter):
        ADDRESS.convert("0x19855D03FB6de1Af856B89e8bd0bb0A6cD0485fF", None, None)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("task", "create", "--steps", 100, "--windows", 3), "multiple of 10"),
        (("task", "quote", "--widths", "64,x,10"), "numbers separated by commas"),
        (("task", "quote", "--widths", "1,2"), "the first must be 64 and the last 10"),
        (("task", "create", "--widths", "64,9"), "the first must be 64 and the last 10"),
        (("task", "list", "--mine", "--phase", "running"), "at most"),
        (("task", "list", "--all", "--cursor", "x"), "--cursor has no effect with --all"),
        (("task", "result", TASK_ID, "--out", "model.pickle"), ".npz"),
        (("task", "top-up", TASK_ID, "0"), "above zero"),
        (("task", "top-up", TASK_ID, "much"), "not an amount"),
        (("task", "show", "0x12"), "64 hex digits"),
    ],
)
def test_a_mistake_is_told_before_anything_is_sent(home: Home, arguments: tuple[object, ...], said: str) -> None:
    done = run(*arguments, "--home", home.root)
    assert isinstance(done.exception, click.UsageError)
    assert said in done.exception.format_message()


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("task", "create"), "gateway_unreachable"),
        (("task", "list"), "gateway_unreachable"),
        (("task", "watch", TASK_ID), "gateway_unreachable"),
        (("task", "bill", TASK_ID, "--json"), "gateway_unreachable"),
        (("task", "create", "--spec", "nothing.json"), "config_error"),
        (("worker", "list"), "gateway_unreachable"),
        (("worker", "jobs"), "node_unavailable"),
        (("worker", "retire"), "config_error"),
        (("worker", "show", "0x12"), "decode_error"),
        (("worker", "earnings", "nobody"), "config_error"),
        (("task", "list", "--worker", "nobody"), "config_error"),
        (("light", "account", "nobody"), "config_error"),
        (("status",), "node_unavailable"),
        (("task", "list", "--rpc", "gopher://x"), "config_error"),
    ],
)
def test_a_failure_is_one_line_with_its_code_and_status_1(
    home: Home, arguments: tuple[object, ...], code: str, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    with socket.socket() as taken:  # a port that nobody listens at
        taken.bind(("127.0.0.1", 0))
        text = home.config.read_text().replace("127.0.0.1:2", f"127.0.0.1:{taken.getsockname()[1]}")
        home.config.write_text(text)
        command = ["dekube", *map(str, arguments), "--home", str(home.root)]
        monkeypatch.setattr(sys, "argv", command)
        with pytest.raises(SystemExit) as ended:
            main()
    said = capsys.readouterr()
    assert ended.value.code == 1
    assert said.out == ""
    assert said.err.count("\n") == 1
    assert said.err.endswith(f"[{code}]\n")


STATUS: dict[str, Any] = {"syncing": False, "peers": 3, "behind_ms": 900}


def test_a_node_follows_the_chain_when_synced_connected_and_fresh() -> None:
    assert is_following(STATUS)
    assert not is_following(STATUS | {"syncing": True})
    assert not is_following(STATUS | {"peers": 0})
    assert not is_following(STATUS | {"behind_ms": 61_000})


def test_a_status_tells_of_a_version_that_this_release_does_not_know() -> None:
    assert not _upgrade(STATUS) and not _upgrade(STATUS | {"upgrade": None})
    coming = {"version": 2, "percent": 45, "last_height": None}
    assert "45 % of the weight signals version 2" in _upgrade(STATUS | {"upgrade": coming})["upgrade"]
    assert "after block 7,200" in _upgrade(STATUS | {"upgrade": coming | {"last_height": 7_200}})["upgrade"]


def test_a_status_says_what_is_wrong_with_the_clock_or_the_genesis() -> None:
    off = _health(STATUS | {"clock_off_ms": 3_600_500, "behind_ms": 3_600_000})
    assert off.startswith("the clock of this machine is 3,600 s ahead of the validators'")
    assert "5.0 s behind" in _health(STATUS | {"clock_off_ms": -5_000})
    assert not _clocks(None) and not _clocks([])
    clocks = [{"validator": "0xA", "ahead_ms": 4_000}, {"validator": "0xB", "ahead_ms": -600}]
    assert _clocks(clocks) == {"wrong clocks": ["0xA is 4.0 s ahead", "0xB is 0.6 s behind"]}
    assert len(_clocks(clocks * 50)["wrong clocks"]) == SILENT_MAX + 1
    begins = {"target": 0, "stage": "looking for snapshots", "pieces": 0, "pieces_done": 0}
    assert "whether genesis.json" in _health({"peers": 0, "state_sync": begins})
    assert "looking for snapshots" in _health({"peers": 1, "state_sync": begins})


def test_a_status_tells_a_slashed_validator_what_for_and_what_is_left() -> None:
    slashed = {
        "fault": "E1", "epoch": 3, "view": 1_200, "height": 4_000, "taken": str(50 * 10**18),
        "left": str(950 * 10**18), "reporter": "0xR",
    }  # fmt: skip
    state = STATUS | {"slashed": slashed, "roles": ["validator"]}
    assert is_slashed(state) and not is_slashed(STATUS | {"slashed": None, "roles": ["validator"]})
    assert not is_slashed(state | {"roles": ["compute"]}), "an account that no longer votes may do other work"
    assert _health(state).startswith("slashed: this validator no longer votes")
    [said] = _slashed(slashed).values()
    for word in (
        "two NOTARIZE",
        "epoch 3, view 1,200",
        "block 4,000",
        "0xR",
        "50 DKB were taken",
        "950 DKB are left",
    ):
        assert word in said
    assert not _slashed(None)


def test_a_status_before_the_first_block_tells_of_the_genesis_time() -> None:
    state = STATUS | {"height": 0, "genesis_time_ms": 1_700_000_000_000, "roles": []}
    assert _health(state | {"since_genesis_ms": -90_000}).endswith("the chain begins in 1 min 30 s")
    past = state | {"since_genesis_ms": 2 * 86_400_000, "behind_ms": 2 * 86_400_000}
    assert "The genesis time was 2 days 0 h ago, which does no harm" in _health(past)
    assert _height(past) == "0: no block here yet, the genesis is of 2023-11-14 22:13 UTC"
    assert _height(past | {"height": 5, "behind_ms": 900}) == "5, 0.9 s old"
    assert "genesis" not in _health(past | {"height": 5})


def test_a_status_loads_what_asks_a_socket_and_nothing_else(tmp_path: Path) -> None:
    """It is a health check, run every few seconds beside a node that needs its cores."""
    heavy = {
        "trio", "asyncio", "importlib.metadata", "cryptography", "plyvel", "numpy", "orjson", "rich", "tomllib",
        "node.home.config", "node.home.create", "rpc.client.core", "consensus", "p2p", "tasks",
    }  # fmt: skip
    code = (
        "import sys; from node.cli import main\ntry: main()\n"
        f"except SystemExit as end: print(end.code, sorted({heavy} & set(sys.modules)))"
    )
    command = [sys.executable, "-c", code, "status", "--json", "--home", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == "1 []\n", done.stderr
