"""The field ``verifiers`` of a job: how it is read, what it changes in the job, and what the quote says."""

from __future__ import annotations

import json
from typing import Any

import pytest

from node.cli.jobs import spec_from_json, spec_to_json
from node.cli.tasks.verifying import count_verifiers, told_verifiers
from state.primitives.address import format_address
from state.primitives.errors import ConfigError
from tasks.kinds.verifiers import ANYBODY, Verifiers
from tasks.requests.errors import RequestInvalid
from tasks.requests.reading import read_file
from tests.tasks.world import DKB, spec

FIRST, SECOND, BOSS = b"\xaa" * 20, b"\xbb" * 20, b"\xcc" * 20
FILE = "kind: generate\nmodel: m\ndata: d.jsonl\n"


@pytest.mark.parametrize(
    ("text", "chosen"),
    [
        ("", ANYBODY),
        ("verifiers: anybody", ANYBODY),
        ("verifiers: {bond: 100 DKB}", Verifiers(100 * DKB)),
        (
            f"verifiers: {{operators: ['{format_address(SECOND)}', '0x{FIRST.hex()}']}}",
            Verifiers(0, (FIRST, SECOND)),
        ),
    ],
)  # fmt: skip
def test_a_choice_is_read(text: str, chosen: Verifiers) -> None:
    assert read_file(FILE + text, "job.yaml").terms.verifiers == chosen


@pytest.mark.parametrize(
    "text",
    [
        "everybody", "{bond: 5}", "{bond: 0 DKB}", "{operators: []}", "{operators: [me]}", "[1]",
        "{bond: 1 DKB, by: x}",
        f"{{operators: {['0x' + 'ab' * 20] * 9}}}", f"{{operators: ['{format_address(FIRST)[:-1]}b']}}",
    ],
)  # fmt: skip
def test_what_is_no_choice_is_refused_with_its_line(text: str) -> None:
    with pytest.raises(RequestInvalid) as caught:
        read_file(FILE + f"verifiers: {text}", "job.yaml")
    assert (caught.value.line, caught.value.field) == (4, "verifiers")


@pytest.mark.parametrize("chosen", [ANYBODY, Verifiers(7 * DKB), Verifiers(0, (FIRST, SECOND))])
def test_a_choice_survives_its_json_form(chosen: Verifiers) -> None:
    job = spec().changed(verifiers=chosen)
    document = json.loads(json.dumps(spec_to_json(job)))
    assert ("verifiers" in document) == chosen.is_chosen
    assert spec_from_json(document) == job


@pytest.mark.parametrize(
    "wrong", [{}, {"bond_min": "1", "names": "x"}, {"bond_min": "0", "names": ["0x12"]}, [], None]
)
def test_other_json_is_refused(wrong: Any) -> None:
    with pytest.raises(ConfigError, match="verifiers"):
        spec_from_json(spec_to_json(spec()) | {"verifiers": wrong})


def machine(address: bytes, backing: int, *roles: str, operator: bytes = BOSS) -> dict[str, Any]:
    return {
        "address": format_address(address), "operator": format_address(operator), "sponsor": None, "roles": roles,
        "backing": str(backing),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("chosen", "count", "told"),
    [
        (ANYBODY, 2, "any of 2 machines"),
        (Verifiers(2 * DKB), 1, "1 machine with a bond of 2 DKB or more"),
        (Verifiers(0, (FIRST,)), 1, "1 machine of the accounts"),
        (Verifiers(0, (BOSS,)), 2, "2 machines of the accounts"),
        (Verifiers(0, (b"\x01" * 20,)), 0, "0 machines of the accounts"),
    ],
)
def test_the_quote_says_who_may_verify_and_how_many_read(chosen: Verifiers, count: int, told: str) -> None:
    nodes = [
        machine(FIRST, DKB, "verify"),
        machine(SECOND, 3 * DKB, "verify"),
        machine(b"\x03" * 20, DKB, "compute"),
    ]
    assert count_verifiers(nodes, chosen) == count
    lines = told_verifiers(chosen, count)
    assert told in lines["who may verify"] and f" {count} machine" in lines["who reads a private job"]
    assert "none of your own" in lines["who may verify"]
    assert ("if none of them answers" in lines) == (chosen.is_chosen and count > 0)
    assert ("as there is none now" in lines) == (chosen.is_chosen and not count)
