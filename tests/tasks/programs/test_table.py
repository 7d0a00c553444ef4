"""The table of operators in the specification is the table of the code."""

from __future__ import annotations

import re

from tasks.programs.operators.rows import WIDTHS
from tasks.programs.operators.rules import UNITS
from tasks.programs.table import OPERATORS
from tests.house.spec_tables import text_of

SECTION = text_of("market.md").split("### 4.6 ")[1].split("\n## ")[0]


def test_every_operator_is_specified_and_has_units() -> None:
    described = SECTION.split("| Operator | Inputs; attributes |")[1].split("\n\n")[0]
    names = [name for row in described.splitlines()[2:] for name in re.findall(r"`(\w+)`", row.split("|")[1])]
    assert sorted(names) == sorted(OPERATORS) == sorted(UNITS)
    assert all(name == operator.name for name, operator in OPERATORS.items())


def test_units_are_those_of_the_specification() -> None:
    rows = re.findall(r"^\| (\w+) \| ([\d,]+) \| ([\d,]+) \| ([\d,]+) \| ([\d,]+) \|$", SECTION, re.MULTILINE)
    assert {name: tuple(int(part.replace(",", "")) for part in parts) for name, *parts in rows} == UNITS


def test_widths_are_those_of_the_specification() -> None:
    rows = re.findall(r"^\| (\d+) \| (\d+) \| ([\d,]+|2\^\d+) \|", SECTION, re.MULTILINE)
    found = {
        int(bits): (int(depth), 1 << int(limit[2:]) if "^" in limit else int(limit.replace(",", "")))
        for bits, depth, limit in rows
    }
    assert found == {bits: (width.depth, width.limit) for bits, width in WIDTHS.items()}
