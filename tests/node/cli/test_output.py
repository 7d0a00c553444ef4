"""What is shown of amounts is every digit of them, and of nested answers words."""

from __future__ import annotations

import json
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.cli.output import show_amount, show_fields, show_gwei

AMOUNTS = st.integers() | st.integers(-(2**256), 2**256)


def number(text: str, unit: str) -> Fraction:
    shown, _, named = text.rpartition(" ")
    assert named == unit
    whole, point, fraction = shown.removeprefix("-").partition(".")
    assert whole == str(int(whole)) and bool(point) == bool(fraction) and not fraction.endswith("0")
    return Fraction(shown)


@given(AMOUNTS)
def test_an_amount_is_shown_to_its_last_digit(amount: int) -> None:
    assert number(show_amount(amount), "DKB") == Fraction(amount, 10**18)
    assert number(show_gwei(amount), "gwei") == Fraction(amount, 10**9)


@pytest.mark.parametrize(
    ("amount", "shown"),
    [
        (12_345_678_901_123_456_789_012_345_678, "12345678901.123456789012345678 DKB"),
        (0, "0 DKB"), (1, "0.000000000000000001 DKB"), (-1, "-0.000000000000000001 DKB"),
        (15 * 10**17, "1.5 DKB"), (-(10**20), "-100 DKB"),
    ],
)  # fmt: skip
def test_amounts_as_people_read_them(amount: int, shown: str) -> None:
    assert show_amount(amount) == shown


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ({"height": 7, "hash": "0xab", "final": True}, "height 7, hash 0xab, final yes"),
        ({"at": {"height": 7}, "to": None}, "at (height 7), to -"),
        ([{"name": "a", "count": 1}, {"name": "b", "count": 2}], "(name a, count 1), (name b, count 2)"),
        ([["a", 1], []], "(a, 1), ()"), (["a", b"\1"], "a, 0x01"), ({}, "-"), ([], ""),
    ],
)  # fmt: skip
def test_what_has_parts_is_shown_in_words(value: Any, shown: str, capsys: pytest.CaptureFixture[str]) -> None:
    show_fields({"x": value}, as_json=False)
    assert capsys.readouterr().out.split("x", 1)[1].strip() == shown
    if "\\x" not in repr(value):
        show_fields({"x": value}, as_json=True)
        assert json.loads(capsys.readouterr().out) == {"x": value}
