"""Every known attack has a row in docs/attacks.md and a test that names it."""

from __future__ import annotations

import re
from typing import Final

from tests.house.imports import ROOT

ATTACKS: Final = [f"A{number}" for number in range(1, 14)] + [f"N{number}" for number in range(1, 16)]


def test_every_known_attack_has_a_test_of_its_name_and_a_row() -> None:
    named = {
        found.upper()
        for folder in ("tests/tasks", "tests/node/market", "tests/kubernetes")
        for path in (ROOT / folder).rglob("test_*.py")
        for found in re.findall(r"^(?:async )?def test_([an]\d+)_", path.read_text(), re.MULTILINE)
    }
    assert [attack for attack in ATTACKS if attack not in named] == []
    rows = re.findall(r"^\| ([AN]\d+) \|", (ROOT / "docs/attacks.md").read_text(), re.MULTILINE)
    assert rows[: len(ATTACKS)] == ATTACKS
    assert sorted(named) == sorted(rows), "attacks that were found later have a row and a test too"
