"""docs/operations.md names every option and metric that there is, and none that is not."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

from consensus.metrics import METRICS
from node.config import NodeOptions

OPERATIONS = (Path(__file__).parents[2] / "docs" / "operations.md").read_text()


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
