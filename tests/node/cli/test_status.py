"""What ``dekube status`` says of a validator's seat."""

from __future__ import annotations

from typing import Any

import pytest

from node.cli.status import _seat

OUT: dict[str, Any] = {"seat": None, "seats": 4, "epoch": 7, "stake": "5", "jail": None}


@pytest.mark.parametrize(
    ("known", "said"),
    [
        ({}, "none of 4 in epoch 7 (dekube validators)"),
        ({"stake": "0"}, "none of 4 in epoch 7, for it has no stake (dekube validators)"),
        (
            {"jail": {"until_epoch": 9, "times": 1}},
            "none of 4 in epoch 7, for it is jailed until epoch 9 (dekube validators)",
        ),
        (
            {"stake": "0", "jail": {"until_epoch": None, "times": 1}},
            "none of 4 in epoch 7, for it is out for ever (dekube validators)",
        ),
    ],
)
def test_who_has_no_seat_is_told_why(known: dict[str, Any], said: str) -> None:
    assert _seat({**OUT, **known}) == said
