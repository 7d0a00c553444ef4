"""The targets of the Makefile run every test once: folders that a target names hold all tests with its marker."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
MAKEFILE = (ROOT / "Makefile").read_text()
CLIENTS = ("tests/wallets", "tests/clients")
"""Their tests have the marker too, and targets of their own."""


def test_networks_are_in_the_folders_that_make_collects() -> None:
    found = re.search(r"^CLUSTER = (.+)$", MAKEFILE, re.MULTILINE)
    assert found is not None
    places = tuple(f"{folder}/" for folder in (*found[1].split(), *CLIENTS))
    marked = [
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "tests").rglob("test_*.py")
        if re.search(r"\bmark\.(cluster|compose)\b", path.read_text())
    ]
    assert len(marked) > 20
    assert [
        path for path in marked if not path.startswith(places) and path != "tests/house/test_makefile.py"
    ] == []
