"""What strangers wrote reaches a terminal as text, whatever it is made of."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.cli import main
from node.cli.output import counted, show_fields, show_rows
from node.cli.terminal import printable, printable_lines
from state.primitives.errors import DekubeError

HOSTILE = "\x1b]0;owned\x07\x1b[2J[bold red]x[/]\u202egnp.exe\rSettled \x9b31m"


@given(st.text())
def test_nothing_unseen_passes_and_nothing_is_lost(text: str) -> None:
    shown = printable(text)
    assert shown.isprintable()
    assert shown == text or not text.isprintable()
    assert printable_lines(text).split("\n") == [printable(line) for line in text.split("\n")]


def test_tables_show_hostile_text_as_it_stands(capsys: pytest.CaptureFixture[str]) -> None:
    row: dict[str, Any] = {"name": HOSTILE, "many": [HOSTILE, 1]}
    show_rows([row], ["name", "many"], as_json=False)
    show_fields(row, as_json=False)
    shown = capsys.readouterr().out
    assert shown.count("[bold red]x[/]") == 4
    assert all(line.isprintable() for line in shown.split("\n"))


def test_an_error_that_quotes_a_stranger_is_told_plainly(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*args: object, **kwargs: object) -> None:
        raise DekubeError(HOSTILE)

    monkeypatch.setattr("node.cli.group.main", fail)
    with pytest.raises(SystemExit):
        main()
    told = capsys.readouterr().err
    assert "[bold red]" in told and told.rstrip("\n").isprintable()


def test_one_thing_is_one() -> None:
    assert [counted(count, "block") for count in (0, 1, 2, 1_200)] == [
        "0 blocks",
        "1 block",
        "2 blocks",
        "1,200 blocks",
    ]


def test_no_message_of_the_command_line_counts_in_plurals_alone() -> None:
    """A number of things that can be one is told by ``counted``; constants are known to be more."""
    root = Path(__file__).parents[3]
    things = (
        "argument|block|core|file|home|machine|member|other|peer|piece|relay|sample|segment|step|task|transaction|"
        "validator|view|window|worker"
    )
    plural = re.compile(rf"\{{(?![A-Z_]+\}})[^{{}}\"]+\}} (?:{things})s\b(?!/)")
    for path in (*(root / "node/cli").glob("*.py"), *(root / "testnet").glob("*.py"), root / "node/posting.py"):
        for line in path.read_text().splitlines():
            assert not plural.search(line), f"{path.name}: {line.strip()}"
