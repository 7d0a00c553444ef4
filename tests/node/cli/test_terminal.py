"""What strangers wrote reaches a terminal as text, whatever it is made of."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.cli import main
from node.cli.output import counted, in_words, show_fields, show_rows, show_span
from node.cli.terminal import printable, printable_lines
from state.primitives.errors import DekubeError

HOSTILE = "\x1b]0;owned\x07\x1b[2J[bold red]x[/]\u202egnp.exe\rSettled \x9b31m"


@pytest.mark.slow
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


@pytest.mark.parametrize(
    ("span_ms", "shown"),
    [
        (0, "0.0 s"), (721, "0.7 s"), (59_999, "60.0 s"), (60_000, "1 min 0 s"), (3_725_000, "1 h 2 min"),
        (86_400_000, "1 day 0 h"), (806_400_000, "9 days 8 h"),
    ],
)  # fmt: skip
def test_spans_are_shown_in_the_units_of_people(span_ms: int, shown: str) -> None:
    assert show_span(span_ms) == shown


def test_people_read_yes_and_times_and_machines_the_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    fields = {"expired": False, "proved": True, "age_ms": 61_000, "time_ms": 1_800_000_000_000, "release_ms": None}
    show_fields(in_words(fields), as_json=False)
    shown = [line.split(None, 1) for line in capsys.readouterr().out.splitlines()]
    assert [[word.strip() for word in line] for line in shown] == [
        ["expired", "no"], ["proved", "yes"], ["age", "1 min 1 s"], ["time", "2027-01-15 08:00 UTC"],
        ["release_ms", "-"],
    ]  # fmt: skip
    show_fields(fields, as_json=True)
    assert json.loads(capsys.readouterr().out) == fields


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
    for path in (
        *(root / "node/cli").glob("*.py"),
        *(root / "testnet").glob("*.py"),
        root / "node/market/posting.py",
    ):
        for line in path.read_text().splitlines():
            assert not plural.search(line), f"{path.name}: {line.strip()}"
