"""The documents name every option, metric and command that there is, and none that is not."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import click
import pytest

from consensus.metrics import METRICS
from node.cli import group
from node.home.options import NodeOptions
from node.relay.home import RelayHomeOptions
from rpc.gateway.process import GatewayOptions, options_from_json

ROOT = Path(__file__).parents[2]
OPERATIONS = (ROOT / "docs" / "operations.md").read_text()
TEXTS = {path.name: path.read_text() for path in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))}
LEFT_OUT = {"testnet layout", "testnet demonstrate"}
"""For the compose file alone."""


def names(options: Any, before: str = "") -> set[str]:
    found: set[str] = set()
    for field in dataclasses.fields(options):
        value = getattr(options, field.name)
        name = before + field.name
        found |= names(value, name + ".") if dataclasses.is_dataclass(value) else {name}
    return found


def test_every_option_is_documented_and_no_other() -> None:
    section = re.search(r"<!-- options -->\n(.*?)<!-- end -->", OPERATIONS, re.DOTALL)
    assert section is not None
    rows = [row.split("|")[1] for row in section[1].splitlines()[2:]]
    assert {name for row in rows for name in re.findall(r"`([^`]+)`", row)} == names(NodeOptions())


def test_every_metric_of_the_consensus_is_documented() -> None:
    section = OPERATIONS[OPERATIONS.index("## Metrics") : OPERATIONS.index("## Moving")]
    assert not {name for name in METRICS if f"`{name}`" not in section}


def test_every_metric_of_the_node_is_documented() -> None:
    section = OPERATIONS[OPERATIONS.index("## Metrics") : OPERATIONS.index("## Moving")]
    source = (ROOT / "node" / "daemon" / "metrics_source.py").read_text()
    found = set(re.findall(r'"dekube_([a-z_]+)"', source))
    assert len(found) > 15
    assert not {name for name in found if f"`{name}`" not in section and f"`{name}_total`" not in section}


def test_every_option_of_a_relay_is_documented_and_no_other() -> None:
    section = re.search(r"<!-- relay options -->\n(.*?)<!-- end -->", OPERATIONS, re.DOTALL)
    assert section is not None
    shown = {name for row in section[1].splitlines()[2:] for name in re.findall(r"`([^`]+)`", row.split("|")[1])}
    parts = tuple(name.removesuffix("NAME") for name in shown if name.endswith(".NAME"))
    options = names(RelayHomeOptions())
    assert all(any(option.startswith(part) for option in options) for part in parts)
    assert {name for name in shown if not name.endswith(".NAME")} <= options
    shared_with_nodes = {"keys.vote", "keys.vote_next"}  # a relay has no vote key
    assert {name for name in options - shared_with_nodes if not name.startswith(parts)} <= shown


def test_the_shown_options_of_a_gateway_are_accepted() -> None:
    shown = re.search(r"^cat > gateway.json <<'END'\n(.*?)^END\n", OPERATIONS, re.DOTALL | re.MULTILINE)
    assert shown is not None
    options = options_from_json(shown[1])
    assert options.hosts and options.port != GatewayOptions(socket="").port


def leaves(command: click.Command, path: str = "") -> dict[str, click.Command]:
    if not isinstance(command, click.Group):
        return {path: command}
    context = click.Context(command)
    found: dict[str, click.Command] = {}
    for name in command.list_commands(context):
        inner = command.get_command(context, name)
        assert inner is not None
        found |= leaves(inner, f"{path} {name}".strip())
    return found


COMMANDS = leaves(group)
GROUPS = {" ".join(path.split()[:count]) for path in COMMANDS for count in range(len(path.split()))}


def shown(text: str) -> list[list[str]]:
    """Return the words of each command in the blocks of shell, and of what stands between backticks."""
    fenced = re.findall(r"^```(\w*)\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    blocks = "\n".join(block for language, block in fenced if language in ("", "sh")).replace("\\\n", " ")
    inline = re.findall(r"`([^`]*dekube [^`]+)`", re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE))
    found = [
        command
        for line in (*blocks.splitlines(), *inline)
        for command in re.findall(r"(?:^|[\s($])dekube ([a-z][^|#;)>&]*)", line.replace("\n", " "))
    ]
    return [command.split() for command in found]


def command_of(words: list[str]) -> tuple[str, list[str]]:
    """Return the path of the command, or of the group, and the words after it."""
    count = 0
    while count < len(words) and " ".join(words[:count]) in GROUPS:
        count += 1
    return " ".join(words[:count]), words[count:]


@pytest.mark.parametrize("name", TEXTS)
def test_every_command_that_is_shown_exists_and_has_its_options(name: str) -> None:
    for words in shown(TEXTS[name]):
        path, rest = command_of(words)
        if path in GROUPS or "..." in path or "NAME" in path:
            continue
        assert path in COMMANDS, f"{name}: dekube {' '.join(words)}"
        if path in ("testnet wan exec", "testnet wan run"):
            continue  # the words after them are another program's
        known = {option for param in COMMANDS[path].params for option in (*param.opts, *param.secondary_opts)}
        used = {option for word in rest for option in re.findall(r"(?<![\w-])--[a-z][a-z-]*", word)}
        assert used <= {*known, "--help"}, f"{name}: dekube {' '.join(words)}"


def test_every_command_is_in_a_document() -> None:
    mentioned = {command_of(words)[0] for text in TEXTS.values() for words in shown(text)}
    everything = "\n".join(TEXTS.values())
    missing = {path for path in set(COMMANDS) - mentioned if not re.search(rf"`{path}\b", everything)}
    assert not missing - LEFT_OUT
