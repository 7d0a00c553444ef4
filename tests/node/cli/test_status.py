"""What ``dekube status`` says of a validator's seat."""

from __future__ import annotations

import json
from typing import Any

import pytest
from click.testing import CliRunner

from node.cli import status as module
from node.cli.status import _disputes, _gateway, _seat, status
from node.daemon.reachability import RelayOutage, assess_reachability

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


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (None, {}),
        ({"open": 0, "suspended": 0, "won": 3}, {}),
        (
            {"open": 1, "suspended": 1, "won": 0, "lost": 2},
            {"disputes": "1 open, 1 suspended, 2 lost (dekube verifier disputes)"},
        ),
    ],
)
def test_disputes_are_told_while_they_need_an_owner(found: dict[str, int] | None, said: dict[str, str]) -> None:
    assert _disputes(found) == said


def _status_of(*, down: bool, listens: bool = True) -> dict[str, Any]:
    relay = "relay:" + "ab" * 20 + ":198.51.100.7:7"
    relays_down = [RelayOutage(relay, "2027-01-15 08:00:00", 1_800_000_000_000, "refused")] * down
    found = assess_reachability(listens=listens, configured=[], verdicts={}, relays=[], down=relays_down)
    return {
        "syncing": False, "peers": 3, "behind_ms": 900, "height": 7, "block": "00", "state_root": "00", "epoch": 1,
        "view": 1, "relays": 0, "mempool": 0, "roles": [], "version": "1", "address": "0x", "chain": "c",
        "chain_id": 1, "jobs": [], "sync": {},
        "reachability": found._asdict() | {"relays_down": [relay._asdict() for relay in relays_down]},
    }  # fmt: skip


@pytest.mark.parametrize(
    ("state", "exit_code"),
    [
        (_status_of(down=True), 1),
        (_status_of(down=True, listens=False), 1),
        (_status_of(down=False), 1),
        (_status_of(down=False, listens=False), 0),  # nothing is configured by which it could be reached
    ],
)
def test_a_check_fails_for_a_node_that_nobody_reaches(
    state: dict[str, Any], exit_code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "ask_home", lambda *_arguments, **_named: state)
    told = CliRunner().invoke(status, ["--check"])
    assert told.exit_code == exit_code
    assert ("by nobody" in told.output) == bool(exit_code)
    text = " ".join(told.output.split())
    is_down = bool(state["reachability"]["relays_down"])
    assert ("is down since 2027-01-15 08:00:00 UTC (refused)" in text) == is_down
    as_json = CliRunner().invoke(status, ["--check", "--json"])
    assert as_json.exit_code == exit_code and json.loads(as_json.output) == json.loads(json.dumps(state))


def test_a_gateway_that_is_back_is_not_said_to_be_started_again() -> None:
    def told(*, running: bool, failures: int) -> str | None:
        return _gateway({"gateway": {"running": running, "failures": failures}}).get("gateway")

    assert told(running=True, failures=0) is None
    assert told(running=False, failures=2) == "ended by itself 2 times in a row, is started again (see the log)"
    assert told(running=True, failures=1) == "runs again; it had ended by itself (see the log)"
