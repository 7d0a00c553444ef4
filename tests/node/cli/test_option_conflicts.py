"""Options without effect are refused, in the whole tree of commands, and no command lists what it never reads."""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from node.cli import group
from node.cli.option_conflicts import Rule, not_with, only_with, rules_of
from node.cli.session import Session
from tests.node.cli.test_commands import COMMANDS

LEAVES = {path: command for path, command in COMMANDS.items() if not isinstance(command, click.Group)}
BROKEN = [
    pytest.param(path, rule, option, other, id=f"{' '.join(path)}: {option} {other}")
    for path, command in LEAVES.items()
    for rule in rules_of(command)
    for option in rule.options
    for other in (("",) if rule.needs_others else rule.others)
]
SIGNING = ("--key", "--passphrase-file", "--chain-id")
"""Shared options of commands that sign and send."""
SIGNS = {
    *(("wallet", name) for name in ("send", "call")),
    *(("tx", name) for name in ("stake", "unstake", "rotate-keys")),
    *(
        ("task", name)
        for name in ("create", "keep", "cancel", "top-up", "demand", "receipt", "refuse", "result", "resume")
    ),
    *(("worker", name) for name in ("register", "update", "retire", "payout", "terms", "sponsor", "unsponsor")),
    *(("relay", name) for name in ("deposit", "withdraw")),
    ("blob", "put"),
    ("faucet", "run"),
    ("api", "run"),
    ("workflow", "cancel"),
}
"""Every command that takes all of SIGNING: it sends a signed transaction, or hands something in that is signed."""
SAMPLES = {"--reporter": "0x" + "ab" * 20, "--client": "0x" + "ab" * 20, "--path": "m/44'/60'/0'/0/1"}
TYPED = {"amount": "1.5", "fee": "1gwei", "integer range": "5", "integer": "5", "task": "0x" + "ab" * 32,
         "blob": "0x" + "ab" * 32, "hash": "0x" + "ab" * 32}  # fmt: skip


def parameter(command: click.Command, name: str) -> click.Parameter:
    [found] = (
        one
        for one in command.params
        if name in (*one.opts, *one.secondary_opts) or name == one.human_readable_name
    )
    return found


def written(one: click.Parameter, name: str, folder: Path) -> list[str]:
    """Return how a parameter is given with a value that it takes."""
    if isinstance(one, click.Option) and (one.is_flag or one.secondary_opts):
        return [name]
    match one.type:
        case click.Choice(choices=choices):
            value = str(choices[0])
        case click.Path() as kind:
            value = str(folder if not kind.file_okay else folder / "file")
        case kind:
            value = SAMPLES.get(name) or TYPED.get(kind.name, "text")
    return [value] if isinstance(one, click.Argument) else [name, value]


@pytest.mark.parametrize(("path", "rule", "option", "other"), BROKEN)
def test_an_option_without_effect_is_a_usage_error_that_names_it(
    path: tuple[str, ...], rule: Rule, option: str, other: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = LEAVES[path]
    (tmp_path / "file").touch()
    needed = [one for one in command.params if one.required and one.human_readable_name != other]
    line = [word for one in needed for word in written(one, one.opts[0], tmp_path)]
    for name in filter(None, (option, other)):
        if not any(name in one.opts for one in needed):
            line += written(parameter(command, name), name, tmp_path)
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(group, [*path, *line], standalone_mode=False)
    assert isinstance(done.exception, click.UsageError), (line, done.exception)
    said = done.exception.format_message()
    assert re.search(rf"{re.escape(option)}( and \S+)? (has|have) no effect with(out)? ", said), said
    assert (other or rule.others[0]) in said


def test_each_command_whose_options_depend_on_each_other_has_rules() -> None:
    """A command that gets an option of this kind is added here, and to its rules."""
    assert {" ".join(path) for path, command in LEAVES.items() if rules_of(command)} >= {
        "task quote", "task create", "task list", "blob get", "wallet balance", "wallet new", "wallet import",
        "wallet list", "wallet export", "wallet sign", "wallet verify", "light fork", "relay settle",
        "signer init", "signer add-key", "db repair", "init", "node drain", "testnet up",
    }  # fmt: skip


def test_a_job_of_a_file_takes_none_of_the_options_that_make_a_job() -> None:
    for path in (("task", "quote"), ("task", "create")):
        [rule] = (rule for rule in rules_of(LEAVES[path]) if "--spec" in rule.others)
        beside = {
            "--custody",
            "--private",
            "--keep-input",
            "--dataset",
            "--holders",
            "--threshold",
            "--members",
            "--spares",
            "--name",
        }
        others = {
            "--spec",
            "--watch",
            "--save",
            "--json",
            "--yes",
            "--anyway",
            "--home",
            "--rpc",
            *SIGNING,
            *beside,
        }
        opts = {option.opts[0] for option in LEAVES[path].params if isinstance(option, click.Option)}
        assert set(rule.options) == opts - others


@pytest.mark.parametrize("path", [path for path in LEAVES if path[0] != "signer"], ids=" ".join)
def test_only_a_command_that_signs_lists_the_key_that_signs(path: tuple[str, ...]) -> None:
    opts = {opt for option in LEAVES[path].params for opt in option.opts}
    listed = set(SIGNING) & opts
    if path in SIGNS:
        assert listed == set(SIGNING)
    elif path in {("wallet", "sign"), ("worker", "endorse"), ("task", "logs")}:
        assert listed == {"--key", "--passphrase-file"}
    elif path in {("wallet", "new"), ("wallet", "import"), ("wallet", "export")}:
        assert listed == {"--passphrase-file"}
    elif path in {("contracts",), ("genesis", "draft")}:
        assert listed == {"--chain-id"}
    else:
        assert not listed


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("contracts {} --abi --chain-id 7", "--chain-id has no effect here: only the descriptions of --erc7730"),
        ("contracts {} --chain-id 0", "0 is not in the range"),
        ("wallet call --value 1", "--value has no effect here: without a FUNCTION"),
        ("wallet call staking --key me --yes", "--yes and --key have no effect here: without a FUNCTION"),
        ("wallet balance --home= x", "the path is empty"),
    ],
)
def test_what_has_no_effect_by_more_than_the_command_line_is_refused_as_well(
    line: str, said: str, tmp_path: Path
) -> None:
    words = [word.format(tmp_path / "out") for word in line.split()]
    if words[1] == "call":
        words += ["--rpc", "http://127.0.0.1:1"]
    done = CliRunner().invoke(group, words, standalone_mode=False)
    assert isinstance(done.exception, click.UsageError), done.exception
    assert said in done.exception.format_message()


def test_a_blob_that_the_node_takes_is_signed_by_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Session, "control", lambda _session: tmp_path / "sock")
    (tmp_path / "file").write_bytes(b"x")
    line = ["blob", "put", str(tmp_path / "file"), "--home", str(tmp_path), "--key", "me"]
    done = CliRunner().invoke(group, line, standalone_mode=False)
    assert isinstance(done.exception, click.UsageError)
    assert "--key has no effect here: the node in" in done.exception.format_message()


def test_a_rule_that_names_what_a_command_has_not_is_an_error_at_once() -> None:
    for rule in (only_with(("--one",), "--two"), not_with(("--two",), "--one")):
        with pytest.raises(AssertionError, match="has no --two"):
            rule(click.Command("x", params=[click.Option(["--one"])], callback=lambda: None))


def test_a_switch_breaks_a_rule_only_as_it_is_written() -> None:
    command = not_with(("--end",), "--no-task")(
        click.Command(
            "x",
            params=[click.Option(["--end"], is_flag=True), click.Option(["--task/--no-task"], default=True)],
            callback=lambda end, task: None,
        )
    )
    for line, is_refused in ((["--end"], False), (["--end", "--task"], False), (["--end", "--no-task"], True)):
        done = CliRunner().invoke(command, line, standalone_mode=False)
        assert isinstance(done.exception, click.UsageError) == is_refused
