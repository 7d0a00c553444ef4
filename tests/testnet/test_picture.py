"""README's picture is what `make testnet` prints today: drawn again from the answers of a kept run."""

from __future__ import annotations

import copy
import json
import re
from typing import Any

import pytest

from testnet.demonstration import PROMPT, print_run, text_of_demonstration
from testnet.picture import PICTURE, RECORDED_RUN, ROWS_MAX, RecordedRun, Recorder, draw, printed, shortened


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(RECORDED_RUN.read_text())
    return found


def test_the_picture_is_what_the_command_prints(document: dict[str, Any]) -> None:
    assert draw(document) == PICTURE.read_text(), "draw it again: make picture, or python -m testnet.picture draw"


def test_the_kept_run_is_a_whole_one(document: dict[str, Any]) -> None:
    lines = printed(document)
    assert lines[-1] == f"Task {document['asking']['task']} is SETTLED."
    losses = [float(loss) for loss in re.findall(r"([0-9.]+) \(step", document["training"]["result"][0])]
    assert losses[-1] < 0.1 * losses[0]
    answer = "\n".join(line[8:] for line in document["asking"]["result"])
    assert text_of_demonstration().startswith(answer) and len(answer) > len(PROMPT) + 40
    assert any("(exact)" in line for line in lines)
    for title in ("Members", "Machines", "Transactions of the task", "Proofs of work", "Bill", "By party"):
        assert any(line.strip() == title for line in lines), title


def test_another_run_gives_another_picture(document: dict[str, Any]) -> None:
    changed = copy.deepcopy(document)
    changed["members"][0]["name"] = "another"
    assert draw(changed) != draw(document)


def test_a_run_is_kept_as_it_was_told(document: dict[str, Any]) -> None:
    kept: dict[str, Any] = {"members": document["members"]}
    told: list[str] = []
    print_run(Recorder(RecordedRun(document), kept), told.append)
    assert kept == document and told


def test_long_hashes_and_long_tables_are_cut() -> None:
    rows = ["┏━━┓", "┃ n ┃", "┡━━┩", *(f"│ 0x{'ab' * 32} │" for _ in range(20)), "└──┘"]
    found = shortened(rows)
    assert len(found) == 3 + ROWS_MAX + 1 + 1 and found[3] == "│ 0xababab… │"
