"""A program that changes options leaves a person's file as it was else."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from node.home.config import dump_options, read_table
from node.home.config_edit import edit_options
from node.home.create import rewrite_options
from node.home.load import load_node_options
from node.home.options import KeyOptions, NetworkOptions, NodeOptions, RegistryOptions
from node.home.paths import Home
from state.primitives.errors import ConfigError

WRITTEN = """\
# my node
kind = "node"
roles = ["validator", "verify"]  # both

[p2p]  # the line at home
listen = ":26656"
bootstrap = [
    "0xf39Fd6e51aad88F6F4ce6aB8827279cffFb92266@tcp:a:1",
    'literal # no comment',
]
# forwarded at the router
advertise = []

[keys]
# vote = "keys/old.json"
vote = 'keys/vote.json'   # since May
"""


def test_one_option_changes_and_all_else_stays() -> None:
    before = read_table(WRITTEN, NodeOptions)
    after = replace(before, keys=replace(before.keys, vote="keys/b.json", vote_next="keys/c.json"))
    assert edit_options(WRITTEN, after) == WRITTEN.replace(
        "vote = 'keys/vote.json'   # since May\n",
        'vote = "keys/b.json"   # since May\nvote_next = "keys/c.json"\n',
    )


def test_a_table_that_is_not_there_is_added() -> None:
    after = replace(read_table(WRITTEN, NodeOptions), registry=RegistryOptions(stake=10**20))
    assert edit_options(WRITTEN, after) == WRITTEN + '\n[registry]\nstake = "100000000000000000000"\n'


def test_a_list_over_several_lines_is_replaced_whole() -> None:
    before = read_table(WRITTEN, NodeOptions)
    edited = edit_options(WRITTEN, replace(before, p2p=replace(before.p2p, bootstrap=("x",))))
    assert 'bootstrap = ["x"]\n# forwarded' in edited


@pytest.mark.parametrize(
    "text",
    [
        'keys.vote = "a"\n',
        'keys = { vote = "a" } # mine\n',
        '[keys]\nvote = """a"""\n',
        '[keys]\n"vote" = "a"\n',
        '["keys"]\nvote = "a"\n',
        'roles = ["""\n[keys]\nvote = "a"\n"""]\n',
    ],
)
def test_unusual_spellings_are_changed_too(text: str) -> None:
    after = replace(read_table(text, NodeOptions), keys=KeyOptions(vote="b", vote_next="c"))
    edited = edit_options(text, after)
    assert read_table(edited, NodeOptions) == after
    assert text.count("# mine") == edited.count("# mine")


@pytest.mark.parametrize("text", ["roles = [", "[keys]\nvoote = 'x'\n"])
def test_a_broken_file_is_refused_and_stays(tmp_path: Path, text: str) -> None:
    home = Home(tmp_path)
    home.config.write_text(text)
    with pytest.raises(ConfigError, match=r"config\.toml: "):
        rewrite_options(home, NodeOptions(keys=KeyOptions(vote="b")))
    assert home.config.read_text() == text


COMMENT = st.from_regex(r"\A#[^\n\r\x00-\x08\x0a-\x1f\x7f]{0,20}\Z")
WORDS = st.text(st.characters(codec="utf-8"), max_size=12)
OPTIONS = st.builds(
    lambda roles, vote, vote_next, listen, bootstrap, dial, outbound, stake: NodeOptions(
        roles=tuple(roles),
        keys=KeyOptions(vote=vote, vote_next=vote_next),
        p2p=NetworkOptions(listen=listen, bootstrap=tuple(bootstrap), dial_inner=dial, outbound_max=outbound),
        registry=RegistryOptions(stake=stake),
    ),
    st.lists(WORDS, max_size=3), WORDS, WORDS, WORDS, st.lists(WORDS, max_size=3), st.booleans(),
    st.integers(0, 2**40), st.integers(0, 10**30),
)  # fmt: skip


@settings(max_examples=40)
@given(OPTIONS, OPTIONS, st.lists(COMMENT, min_size=1, max_size=30))
def test_every_change_of_a_file_with_comments_keeps_them(
    before: NodeOptions, after: NodeOptions, comments: list[str]
) -> None:
    lines = []
    for number, line in enumerate(dump_options(before).splitlines()):
        comment = comments[number % len(comments)]
        lines += [comment, f"{line}  {comment}" if line and number else line]
    text = "\n".join(lines) + "\n"
    edited = edit_options(text, after)
    assert read_table(edited, NodeOptions) == after
    kept = edited.split("\n")
    assert all(kept.count(comment) >= lines.count(comment) for comment in comments)
    assert edit_options(edited, after) == edited


def test_a_home_keeps_the_notes_of_its_owner(tmp_path: Path) -> None:
    home = Home(tmp_path)
    home.config.write_text("# mine\nkind = 'node'\nroles = ['verify'] # only\n")
    rewrite_options(home, replace(load_node_options(home), roles=("compute",)))
    assert home.config.read_text() == "# mine\nkind = 'node'\nroles = [\"compute\"] # only\n"
