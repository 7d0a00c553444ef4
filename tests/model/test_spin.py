"""Liveness in Spin: in a good network every run makes a block final; with changed rules some do not."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

import pytest

from tests.model.spin import CHANGES, SpinFailed, check, is_installed, read

pytestmark = pytest.mark.slow

POSITIONS = tuple(map(int, os.environ.get("SPIN_POSITIONS", "2 3").split()))
"""1 and 4 take longer; docs/consensus-testing.md tells what was gone through."""
FOUND_AT = {
    "KEEPS_CERTIFICATES": (4, False),
    "FINALIZE_NEEDS_NOTARIZE": (4, True),
    "NO_NULLIFY_AFTER_NOTARIZE": (4, False),
    "NO_NULLIFY_WITHOUT_PROPOSAL": (1, False),
}
"""Where a change shows soon, and whether the faulty seat has to speak in a good network."""


def first_of(cases: Iterable[Any]) -> list[Any]:
    """All cases; those after the first are marked nightly."""
    first, *others = cases
    return [first, *(pytest.param(case, marks=pytest.mark.nightly) for case in others)]


needs_spin = pytest.mark.skipif(
    not is_installed(), reason="spin is not installed: liveness is checked by the explicit check alone"
)


@needs_spin
@pytest.mark.parametrize("faulty_leads", first_of(POSITIONS))
def test_a_block_becomes_final_once_the_network_is_good(faulty_leads: int) -> None:
    found = check(faulty_leads)
    assert found.is_live
    assert found.states > 100_000


@needs_spin
@pytest.mark.parametrize("change", first_of(CHANGES))
def test_a_changed_rule_can_stop_the_chain(change: str) -> None:
    faulty_leads, talks_on = FOUND_AT[change]
    assert not check(faulty_leads, talks_on=talks_on, change=change).is_live


@pytest.mark.parametrize(
    "output",
    [
        "",
        "State-vector 164 byte, depth reached 9, errors: 0\n",
        "Warning: Search not completed\nerrors: 0\n 12 states, stored\n",
        "error: max search depth too small\nerrors: 0\n 12 states, stored\n",
        "pan:1: assertion violated\nWarning: Search not completed\nerrors: 1\n 12 states, stored\n",
    ],
)
def test_a_search_that_is_not_complete_shows_nothing(output: str) -> None:
    with pytest.raises(SpinFailed):
        read(output)
